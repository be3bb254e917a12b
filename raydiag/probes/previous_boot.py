"""What the kernel saved of its log when it crashed, which outlives the reboot (pstore).

Source: /sys/fs/pstore/dmesg-<backend>-<id>, and /var/lib/systemd/pstore, where systemd-pstore moves
these at boot (kernel documentation, admin-guide/ramoops; fs/pstore/platform.c,
drivers/firmware/efi/efi-pstore.c; systemd-pstore.service(8)). Sample:

    Panic#2 Part1
    <0>[ 8123.456789] Kernel panic - not syncing: Fatal exception
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional, Union

from raydiag.errors import Denied, NoData, ReadError
from raydiag.host import Host, as_unread
from raydiag.model import Status, Unread
from raydiag.probes import probe
from raydiag.probes.kernel_log import message_of

_LIVE, _ARCHIVE = "/sys/fs/pstore", "/var/lib/systemd/pstore"
_DEPTH = 2  # systemd makes a directory for each crash, and may make others in it
_WHOLE = "dmesg.txt"  # what systemd puts together from the parts beside it
_COMPRESSED = ".z"  # left so by a kernel that cannot decompress it
_MAX_FILES, _MAX_ENTRIES = 16, 512
_LIMIT_BYTES = 256 << 10
_MAX_LINES, _LINE_LENGTH = 12, 240

# fmt: off
_DECISIVE = (
    "kernel panic", "bug: ", "oops:", "rip: ", "hardware error", "machine check", "lockup",
    "general protection", "unable to handle", "not syncing", "rcu: info", "hung_task",
    "out of memory", "comm: ", "*error*", "call trace:",
)
# fmt: on


@dataclass(frozen=True)
class CrashDump:
    file: str  # path on the node; one crash may have left several
    time_s: float  # Unix seconds: in its name, else its modification time, at the latest the boot's
    reason: str  # of its first line, "Panic" or "Oops"; "" where it has none, or is compressed
    lines: tuple[str, ...]  # those that say what happened, at most 12, without their log prefix


@probe(CrashDump, identity=("file",))
def previous_boot(host: Host) -> Iterator[Union[CrashDump, Unread]]:
    """One record per file, the newest 16 first; an Unread for each that could not be read.

    Raises NoData when the kernel saved nothing or has nowhere to, Denied when that is hidden.
    """
    unread: list[Unread] = []
    found = []
    for path in [*_dumps(host, _LIVE, 0, unread), *_dumps(host, _ARCHIVE, _DEPTH, unread)]:
        try:
            found.append((_time_s(host, path), path))
        except ReadError as error:
            unread += as_unread(path, error)
    if not found:
        for item in unread:
            raise (Denied if item.status is Status.DENIED else ReadError)(item.reason)
        raise NoData("no crash dump of an earlier boot")
    for time_s, path in sorted(found, reverse=True)[:_MAX_FILES]:
        try:
            text = "" if path.endswith(_COMPRESSED) else host.read_text(path, _LIMIT_BYTES)
        except ReadError as error:
            unread += as_unread(path, error)
            continue
        reason, lines = parse_dump(text)
        yield CrashDump(path, time_s, reason, lines)
    yield from unread


def parse_dump(text: str) -> tuple[str, tuple[str, ...]]:
    """Reason and decisive lines, the panic's own among them however late it comes."""
    lines = text.replace("\0", "").split("\n")
    reason = ""
    decisive = []
    for line in lines:
        before, sharp, _ = line.partition("#")
        if sharp and before.isalpha() and " Part" in line:
            # A whole text has one such line for each part; a panic is graver than its oops.
            reason = before if not reason or before == "Panic" else reason
        elif any(word in line.lower() for word in _DECISIVE):
            decisive.append(message_of(line.strip())[:_LINE_LENGTH])
    last = [line for line in decisive[_MAX_LINES:] if "panic" in line.lower()][-1:]
    return reason, tuple(decisive[: _MAX_LINES - len(last)] + last)


def _dumps(host: Host, directory: str, depth: int, unread: list[Unread]) -> list[str]:
    """Files with kernel log text in and below a directory, the latest name first."""
    try:
        names = host.listdir(directory)[-_MAX_ENTRIES:]
    except ReadError as error:
        unread += as_unread(directory, error)
        return []
    if _WHOLE in names:
        return [f"{directory}/{_WHOLE}"]
    files = []
    for name in reversed(names):
        path = f"{directory}/{name}"
        if name.startswith("dmesg-"):
            files.append(path)
        elif depth and len(files) < _MAX_ENTRIES:
            files += _dumps(host, path, depth - 1, unread)  # of a file: nothing
    return files


def _time_s(host: Host, path: str) -> float:
    with host.descriptor(path) as fd:
        return _named_time_s(path) or os.fstat(fd).st_mtime


def _named_time_s(path: str) -> Optional[float]:
    """Seconds that EFI's names begin their number with, and systemd its directories.

    `dmesg-efi_pstore-170000000001001`: seconds, two digits of the part, three of a count.
    """
    *directories, name = path.split("/")
    backend, _, number = name[len("dmesg-") :].partition("-")
    number = number.partition(".")[0]
    if backend.startswith("efi") and len(number) == 15:
        directories.append(number[:10])
    for word in reversed(directories):
        if len(word) == 10 and word.isascii() and word.isdigit() and word[0] != "0":
            return float(word)
    return None
