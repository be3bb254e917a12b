from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import Denied, NoData
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.previous_boot import CrashDump, parse_dump, previous_boot

# A write-only setting: opening it for reading is refused to everybody, root included.
EACCES_FILE = "/proc/sys/vm/compact_memory"
PANIC = """Panic#2 Part1
<6>[ 8120.000001] eth0: link is up
<1>[ 8123.100000] BUG: kernel NULL pointer dereference, address: 0000000000000018
<4>[ 8123.100001] CPU: 7 UID: 0 PID: 991 Comm: kworker/7:1 Not tainted 6.8.0 #1
<4>[ 8123.100002] RIP: 0010:some_driver_irq+0x1c/0x90 [some_driver]
<0>[ 8123.456789] Kernel panic - not syncing: Fatal exception in interrupt
"""


def put(root: Path, path: str, text: str = PANIC, time_s: float = 1_700_000_000.0) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (time_s, time_s))


def read(root: Path) -> tuple[list[CrashDump], list[Unread]]:
    found = list(previous_boot(Host(str(root))))
    return (
        [x for x in found if isinstance(x, CrashDump)],
        [x for x in found if isinstance(x, Unread)],
    )


def test_ok_a_panic(tmp_path: Path) -> None:
    put(tmp_path, "sys/fs/pstore/dmesg-ramoops-0")
    put(tmp_path, "sys/fs/pstore/console-ramoops-0", "no dump")
    (dump,), unread = read(tmp_path)
    assert unread == []
    assert dump == CrashDump(
        file="/sys/fs/pstore/dmesg-ramoops-0",
        time_s=1_700_000_000.0,
        reason="Panic",
        lines=(
            "BUG: kernel NULL pointer dereference, address: 0000000000000018",
            "CPU: 7 UID: 0 PID: 991 Comm: kworker/7:1 Not tainted 6.8.0 #1",
            "RIP: 0010:some_driver_irq+0x1c/0x90 [some_driver]",
            "Kernel panic - not syncing: Fatal exception in interrupt",
        ),
    )


def test_ok_the_time_is_in_efi_names_and_in_systemds_directories(tmp_path: Path) -> None:
    put(tmp_path, "sys/fs/pstore/dmesg-efi_pstore-171000000001001", time_s=5.0)
    archive = "var/lib/systemd/pstore"
    put(tmp_path, f"{archive}/1690000000/dmesg.txt", "Oops#1 Part1\nOops: 0000 [#1] SMP\n", 6.0)
    put(tmp_path, f"{archive}/1690000000/dmesg-efi-169000000001001", "part of it", 7.0)
    put(tmp_path, f"{archive}/7f000000/001/dmesg-erst-7f000000001", PANIC, 1_680_000_000.0)
    put(tmp_path, f"{archive}/dmesg-efi-17", PANIC, 1_670_000_000.0)
    dumps, unread = read(tmp_path)
    assert unread == []
    assert [(dump.file.rsplit("/", 1)[1], dump.time_s, dump.reason) for dump in dumps] == [
        ("dmesg-efi_pstore-171000000001001", 1_710_000_000.0, "Panic"),
        ("dmesg.txt", 1_690_000_000.0, "Oops"),
        ("dmesg-erst-7f000000001", 1_680_000_000.0, "Panic"),
        ("dmesg-efi-17", 1_670_000_000.0, "Panic"),
    ]


def test_ok_the_newest_of_many(tmp_path: Path) -> None:
    for number in range(40):
        put(tmp_path, f"sys/fs/pstore/dmesg-erst-{number}", time_s=1_700_000_000.0 + number)
    dumps, _ = read(tmp_path)
    assert len(dumps) == 16
    assert dumps[0].time_s == 1_700_000_039.0


def test_ok_a_compressed_dump_is_told_and_not_read(tmp_path: Path) -> None:
    put(tmp_path, "sys/fs/pstore/dmesg-erst-1.enc.z", "\x78\x9c")
    (dump,), _ = read(tmp_path)
    assert (dump.reason, dump.lines) == ("", ())


def test_no_data_without_dumps(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        read(tmp_path)
    (tmp_path / "sys/fs/pstore").mkdir(parents=True)
    put(tmp_path, "var/lib/systemd/pstore/notes.txt")
    with pytest.raises(NoData):
        read(tmp_path)


class Refusing(Host):
    """Does not show one directory, as to users who are not root."""

    def listdir(self, path: str) -> list[str]:
        if path == "/sys/fs/pstore":
            raise Denied(f"{path}: Permission denied")
        return super().listdir(path)


def test_denied_directory_is_not_clean(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="/sys/fs/pstore"):
        list(previous_boot(Refusing(str(tmp_path))))
    put(tmp_path, "var/lib/systemd/pstore/dmesg-erst-1")
    dump, unread = previous_boot(Refusing(str(tmp_path)))
    assert isinstance(dump, CrashDump)
    assert isinstance(unread, Unread)
    assert (unread.source, unread.status) == ("/sys/fs/pstore", Status.DENIED)


def test_denied_file_costs_no_other(tmp_path: Path) -> None:
    put(tmp_path, "sys/fs/pstore/dmesg-erst-1")
    (tmp_path / "sys/fs/pstore/dmesg-erst-2").symlink_to(EACCES_FILE)
    (dump,), (unread,) = read(tmp_path)
    assert dump.file.endswith("-1")
    assert unread.status is Status.DENIED


def test_malformed_dump_has_no_reason(tmp_path: Path) -> None:
    put(tmp_path, "sys/fs/pstore/dmesg-erst-1", "\0\0\x7fELF Part #\n")
    (dump,), _ = read(tmp_path)
    assert (dump.reason, dump.lines) == ("", ())


def test_the_panics_own_line_is_kept_however_late() -> None:
    text = "Oops#1 Part2\n" + "RIP: 0010:f+0x1/0x2\n" * 50 + "Panic#2 Part1\nKernel panic - x\n"
    reason, lines = parse_dump(text)
    assert reason == "Panic"
    assert (len(lines), lines[-1]) == (12, "Kernel panic - x")


@given(st.text(), st.booleans())
def test_arbitrary_text_gives_few_short_lines(text: str, decisive: bool) -> None:
    _, lines = parse_dump(f"{text}\nBUG: {text}" if decisive else text)
    assert len(lines) <= 12
    assert all(len(line) <= 240 and "\n" not in line for line in lines)


@given(st.integers(0, 7), st.floats(0, 1e7), st.text("abc [<>]:", min_size=1))
def test_level_and_time_are_taken_off(level: int, time_s: float, tail: str) -> None:
    _, lines = parse_dump(f"<{level}>[{time_s:12.6f}] BUG: {tail}")
    assert lines == (f"BUG: {tail}".strip(),)
