"""Lines of the kernel log that speak of a GPU in trouble, counted since the node booted.

A line counts when the kernel wrote it, at level 4 (warning) or more severe, about amdgpu, drm or
xgmi, with a word of trouble. The count goes on where the last cycle ended, also of an exporter
before this one, and so never falls while records leave the ring buffer; what was overwritten unread
is counted as lost. A function of the driver fault in the log is told to the collector through the
state: then RAS files are not read any more until the node has been rebooted.

Source: /dev/kmsg (Documentation/ABI/testing/dev-kmsg), /proc/sys/kernel/random/boot_id
"""

from __future__ import annotations

import json
import os
import pkgutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Optional

from raydiag.errors import Denied, NoData
from raydiag.exporter.metrics import OWN_PREFIX
from raydiag.exporter.plugins import Collected, Sample, State, plugin
from raydiag.host import Host, as_read_error
from raydiag.probes.kernel_log import NOT_CHECKED, PATH, parse_line, read_lines
from raydiag.procfs import boot_id

_WARNING, _KERNEL_LEVELS = 4, 8  # a priority is 8 x facility + level, and the kernel is 0
_DEVICES = (b"amdgpu", b"drm", b"xgmi")
_TROUBLES = (b"error", b"fault", b"fail", b"reset", b"timeout")
_READING_S = 3.0  # below the timeout; the rest of a long log is read in the next cycle
_LOOK_AT_CLOCK_LINES = 512

# Kernel functions that show the driver fault; as in the catalog, which nodes need not have.
_SYMBOLS = pkgutil.get_data("raydiag.exporter", "driver_fault_symbols.json")
DRIVER_FAULT_SYMBOLS: tuple[str, ...] = tuple(json.loads(_SYMBOLS or b""))


@dataclass
class Count:
    """What was read of the log of one boot."""

    boot_id: str
    seq: int = -1  # number of the last record that was read
    errors: int = 0
    lost: int = 0  # records that were overwritten before they were read
    driver_fault: str = ""  # the first function of it that was seen

    def add(self, line: bytes) -> None:
        """Take the next line; one that was read before, or has no number, changes nothing."""
        record = parse_line(line)
        if record.seq <= self.seq:
            return
        if self.seq >= 0:
            self.lost += record.seq - self.seq - 1
        self.seq = record.seq
        if record.priority >= _KERNEL_LEVELS:
            return  # user space wrote it
        text = record.text.lower()
        if record.priority <= _WARNING and _holds(text, _DEVICES) and _holds(text, _TROUBLES):
            self.errors += 1
        if not self.driver_fault and (b"amdgpu_" in text or b"aca_" in text):
            words = text.decode("utf-8", "replace")
            self.driver_fault = next(filter(words.__contains__, DRIVER_FAULT_SYMBOLS), "")


def _holds(text: bytes, words: tuple[bytes, ...]) -> bool:
    return any(word in text for word in words)


class _Log:
    """The log, open from one cycle to the next: what was read does not come again."""

    def __init__(self, host: Host, path: str) -> None:
        self.path = path
        self.fd = host.open(PATH)
        self.seq = -1  # of the last record that came from it
        self.lines: Optional[Iterator[bytes]] = None  # not None: those that are still to come


_open: Optional[_Log] = None


@plugin(timeout_s=4.0, keeps_state=True)
def collect(host: Host, state: Mapping[str, Any]) -> Collected:
    """Raises Denied when there is nothing to read: not checked is not the same as no errors.

    The state has "driver_fault", the function that shows it or "", and "is_behind": the log was not
    read to its end, so that it may still show it.
    """
    count = resumed(state, boot_id(host))
    try:
        is_behind = _read(_log(host, count.seq), count)
    except NoData as error:
        raise Denied(f"{error}; {NOT_CHECKED}") from None
    if count.seq < 0:
        raise Denied(f"{PATH}: holds no record; {NOT_CHECKED}")
    yield State({**asdict(count), "is_behind": is_behind})
    yield Sample("hw_dmesg_gpu_errors_total", {}, count.errors)
    yield Sample(f"{OWN_PREFIX}kernel_log_records_lost_total", {}, count.lost)


def resumed(state: Mapping[str, Any], boot: str) -> Count:
    """The count to go on from: that of this boot, else a new one; the state may hold anything."""
    saved: dict[str, Any] = {field.name: state.get(field.name) for field in fields(Count)}
    numbers = (saved["seq"], saved["errors"], saved["lost"])
    is_valid = saved["boot_id"] == boot and isinstance(saved["driver_fault"], str)
    if not is_valid or any(type(number) is not int or number < -1 for number in numbers):
        return Count(boot)
    return Count(**saved)


def _log(host: Host, seq: int) -> _Log:
    """The log as it was left, or opened anew where another reader has read it since."""
    global _open
    path = host.path(PATH)
    if _open is not None and (_open.path != path or _open.seq != seq):
        os.close(_open.fd)
        _open = None
    if _open is None:
        _open = _Log(host, path)
    return _open


def _read(log: _Log, count: Count) -> bool:
    """Count what is new; returns whether time was up before the end. Raises ReadError."""
    until = time.monotonic() + _READING_S
    lines, log.lines = log.lines or read_lines(log.fd), None
    try:
        for number, line in enumerate(lines):
            if line:
                count.add(line)
            if number % _LOOK_AT_CLOCK_LINES == 0 and time.monotonic() > until:
                log.lines = lines
                return True
    except OSError as error:
        raise as_read_error(error, PATH) from None
    finally:
        log.seq = count.seq
    return False
