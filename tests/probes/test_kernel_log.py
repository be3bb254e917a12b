from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import Denied, NoData, ParseError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.kernel_log import KernelLine, kernel_log, parse_line
from raydiag.procfs import boot_time_s

BOOT_S = 1_760_000_000
# A write-only setting: opening it for reading is refused to everybody, root included.
EACCES_FILE = "/proc/sys/vm/compact_memory"


def node(root: Path, log: bytes | None) -> Host:
    """A node that booted at BOOT_S and whose /dev/kmsg is a file with that content."""
    (root / "proc").mkdir()
    (root / "dev").mkdir()
    (root / "proc/stat").write_text(f"cpu  1 2 3\nintr 9 0 0\nbtime {BOOT_S}\nprocesses 7\n")
    if log is not None:
        (root / "dev/kmsg").write_bytes(log)
    return Host(str(root))


def record(seq: int, text: str, usec: int | None = None, priority: int = 6) -> str:
    return f"{priority},{seq},{seq * 10_000_000 if usec is None else usec},-;{text}\n"


def read(host: Host, *words: str) -> tuple[list[KernelLine], list[Unread]]:
    found = list(kernel_log(host, words=words))
    lines = [item for item in found if isinstance(item, KernelLine)]
    return lines, [item for item in found if isinstance(item, Unread)]


def seqs(lines: list[KernelLine]) -> list[int]:
    return [line.seq for line in lines]


def test_ok_records_of_the_device_form(tmp_path: Path) -> None:
    log = (
        "5,0,0,-;Linux version 6.8.0-71-generic\n"
        "3,71,90500000,-,caller=T55;amdgpu 0000:1b:00.0: amdgpu: RING gfx_0.0.0; timeout\\x0a\n"
        " SUBSYSTEM=pci\n"
        " DEVICE=+pci:0000:1b:00.0\n"
        "14,72,95000000,-;amdgpu is what a user wrote\n"
    )
    lines, unread = read(node(tmp_path, log.encode()), "amdgpu", "pci")
    assert unread == []
    first, fault, written = lines
    assert (first.seq, first.matched, first.level, first.time_s) == (0, False, 5, BOOT_S)
    assert fault == KernelLine(
        seq=71,
        time_s=BOOT_S + 90.5,
        uncertainty_s=1 + 50e-6 * 90.5,
        level=3,
        facility=0,
        text="amdgpu 0000:1b:00.0: amdgpu: RING gfx_0.0.0; timeout\\x0a",
        matched=True,
        lost_before=0,
    )
    assert (written.facility, written.level, written.matched) == (1, 6, True)


def test_ok_without_a_match_is_the_first_record_only(tmp_path: Path) -> None:
    log = record(900, "oldest") + record(901, "usb 1-1: new device")
    lines, _ = read(node(tmp_path, log.encode()), "amdgpu")
    assert [(line.seq, line.matched) for line in lines] == [(900, False)]


def test_words_are_sought_in_the_text_and_not_in_the_header(tmp_path: Path) -> None:
    log = record(1, "a") + "6,7777,20000000,-,caller=T7777;b\n" + record(7778, "c 7777")
    lines, _ = read(node(tmp_path, log.encode()), "7777")
    assert [line.seq for line in lines if line.matched] == [7778]


def test_errors_of_drivers_come_without_a_word(tmp_path: Path) -> None:
    log = record(0, "first") + record(5, "mlx5_core 0000:3b:00.0: odd", priority=3)
    log += record(9, "mlx5_core 0000:3b:00.0: even", priority=6) + record(12, "odd", priority=3)
    lines = list(kernel_log(node(tmp_path, log.encode()), drivers=["mlx5"]))
    assert [line.seq for line in lines if isinstance(line, KernelLine) and line.matched] == [5]


def test_errors_of_a_form_without_records_come_too(tmp_path: Path) -> None:
    log = "<6>[ 1.000001] first\n<3>[ 5.000001] ice 0000:3b:00.0: odd\n<4>[ 9.000001] ice : even\n"
    lines = list(kernel_log(node(tmp_path, log.encode()), drivers=["ice "]))
    texts = [line.text for line in lines if isinstance(line, KernelLine) and line.matched]
    assert texts == ["ice 0000:3b:00.0: odd"]


def test_context_is_two_records_before_and_a_call_trace_after(tmp_path: Path) -> None:
    log = "".join(record(n, f"calm {n}") for n in range(10))
    log += record(10, "BUG: kernel NULL pointer dereference", 100_000_000)
    log += "".join(record(n, f" frame_{n}+0x1/0x2", 100_000_000 + n) for n in range(11, 61))
    log += record(61, "much later", 200_000_000)
    lines, _ = read(node(tmp_path, log.encode()), "bug:")
    assert seqs(lines) == [0, 8, 9, 10, *range(11, 51)]
    assert [line.seq for line in lines if line.matched] == [10]


def test_context_ends_after_one_second_and_is_not_sent_twice(tmp_path: Path) -> None:
    log = record(1, "first") + record(2, "fault", 1_000_000) + record(3, "near", 2_000_000)
    log += record(4, "far", 2_000_001) + record(5, "fault", 2_000_002) + record(6, "end", 9_000_000)
    lines, _ = read(node(tmp_path, log.encode()), "fault")
    assert seqs(lines) == [1, 2, 3, 4, 5]


def test_plain_lines_have_no_number(tmp_path: Path) -> None:
    log = (
        b"[    3.250000] nfs: server store not responding\n<28>[   12.5] eth0: link down\nlink up\n"
    )
    lines, _ = read(node(tmp_path, log), "nfs", "link")
    assert [(x.seq, x.text) for x in lines] == [
        (-1, "nfs: server store not responding"),
        (-1, "eth0: link down"),
        (-1, "link up"),
    ]
    assert [(x.level, x.facility) for x in lines] == [(4, 0), (4, 3), (4, 0)]
    assert [x.time_s - BOOT_S for x in lines] == [3.25, 12.5, 12.5]
    # Bare text may be of any time since the last dated line.
    assert lines[1].uncertainty_s < 1.1
    assert lines[2].uncertainty_s == pytest.approx(time.time() - BOOT_S, abs=60)


def test_bare_frames_of_a_call_trace_are_kept_apart_from_keys(tmp_path: Path) -> None:
    log = b"[ 1.000000] Oops: 0002\n ? foo+0x1/0x2\n SUBSYSTEM=pci\n size=3 bytes\n"
    lines, _ = read(node(tmp_path, log), "oops")
    assert [x.text for x in lines] == ["Oops: 0002", " ? foo+0x1/0x2", " size=3 bytes"]


def test_a_file_cut_in_the_middle_of_a_record(tmp_path: Path) -> None:
    log = "aring text\n" + record(5, "fault A") + "3,6,60000000,-;fault B is cu"
    lines, _ = read(node(tmp_path, log.encode()), "fault")
    assert [(x.seq, x.text) for x in lines] == [
        (-1, "aring text"),
        (5, "fault A"),
        (6, "fault B is cu"),
    ]


def test_a_line_of_100_mb_costs_neither_memory_nor_the_next_record(tmp_path: Path) -> None:
    host = node(tmp_path, None)
    with (tmp_path / "dev/kmsg").open("wb") as log:
        log.write(b"6,1,1,-;fault \n")
        log.write(b"6,2,2,-;fault ")
        log.seek(100 << 20, os.SEEK_CUR)
        log.write(b"\n6,3,3,-;fault after it\n")
    lines, _ = read(host, "fault")
    assert [(x.seq, len(x.text)) for x in lines] == [(1, 6), (2, 4096), (3, 14)]


def test_the_newest_text_is_kept_and_the_rest_reported(tmp_path: Path) -> None:
    log = "".join(record(n, "fault " + "x" * 994) for n in range(400))
    lines, unread = read(node(tmp_path, log.encode()), "fault")
    assert seqs(lines) == [0, *range(400 - 262, 400)]
    assert unread == [
        Unread(
            "/dev/kmsg",
            Status.ERROR,
            f"{(399 - 262) * 1000} bytes of older matching lines dropped: "
            "the newest 256 KiB are kept",
        )
    ]


def test_many_short_matches_are_bounded_by_their_number(tmp_path: Path) -> None:
    log = "".join(record(n, "oops") for n in range(9000))
    lines, unread = read(node(tmp_path, log.encode()), "oops")
    assert len(lines) == 8193
    assert lines[-1].seq == 8999
    assert unread[0].reason.startswith(f"{(8999 - 8192) * 4} bytes of older matching lines")


class DeviceHost(Host):
    """A node whose /dev/kmsg answers each read with the next of `answers`, then with EAGAIN."""

    def __init__(self, root: Host, monkeypatch: pytest.MonkeyPatch, answers: list[object]) -> None:
        super().__init__(root.root)
        self.fd = os.open("/dev/null", os.O_RDONLY)
        self.sizes: list[int] = []
        real_read = os.read

        def answer(fd: int, size: int) -> bytes:
            if fd != self.fd:
                return real_read(fd, size)
            self.sizes.append(size)
            given = answers.pop(0) if answers else errno.EAGAIN
            if isinstance(given, int):
                raise OSError(given, os.strerror(given))
            assert isinstance(given, str)
            return given.encode()

        monkeypatch.setattr(os, "read", answer)

    def open(self, path: str) -> int:
        assert path == "/dev/kmsg"
        return self.fd


def test_overwritten_records_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[object] = [record(10, "first"), record(11, "calm"), errno.EPIPE]
    answers += [record(40, "calm"), record(41, "calm"), record(42, "fault")]
    lines, _ = read(DeviceHost(node(tmp_path, None), monkeypatch, answers), "fault")
    assert [(x.seq, x.lost_before, x.matched) for x in lines] == [
        (10, 0, False),
        (40, 28, False),
        (41, 0, False),
        (42, 0, True),
    ]


def test_a_gap_before_the_first_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[object] = [errno.EPIPE, record(40, "fault")]
    lines, _ = read(DeviceHost(node(tmp_path, None), monkeypatch, answers), "fault")
    assert [(x.seq, x.lost_before) for x in lines] == [(40, 0)]


def test_the_buffer_grows_until_a_record_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[object] = [errno.EINVAL, errno.EINVAL, record(1, "fault")]
    host = DeviceHost(node(tmp_path, None), monkeypatch, answers)
    lines, _ = read(host, "fault")
    assert seqs(lines) == [1]
    assert host.sizes[:3] == [8192, 16384, 32768]


def test_denied_when_a_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.EPERM, errno.ENODEV):
        root = tmp_path / str(number)
        root.mkdir()
        host = DeviceHost(node(root, None), monkeypatch, [record(1, "fault"), number])
        with pytest.raises(Denied, match="not checked: it needs root, CAP_SYSLOG"):
            read(host, "fault")


def test_a_log_that_never_ends_is_left_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raydiag.probes.kernel_log._READING_S", -1.0)
    log = "".join(record(n, "fault") for n in range(2000))
    lines, unread = read(node(tmp_path, log.encode()), "fault")
    assert len(lines) == 512
    assert [(x.source, x.status) for x in unread] == [("/dev/kmsg", Status.TIMEOUT)]


def test_no_data_is_denied_because_missing_means_not_checked(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="the kernel log was not checked"):
        read(node(tmp_path, None), "fault")


def test_denied_for_an_empty_log(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="holds no record; the kernel log was not checked"):
        read(node(tmp_path, b""), "fault")


def test_denied_when_the_device_may_not_be_opened(tmp_path: Path) -> None:
    host = node(tmp_path, None)
    (tmp_path / "dev/kmsg").symlink_to(EACCES_FILE)
    with pytest.raises(Denied, match="Permission denied; the kernel log was not checked"):
        read(host, "fault")


def test_malformed_stat_has_no_boot_time(tmp_path: Path) -> None:
    host = node(tmp_path, b"6,1,1,-;fault\n")
    for text in ("cpu 1\n", "btime soon\n", ""):
        (tmp_path / "proc/stat").write_text(text)
        with pytest.raises(ParseError, match="no btime"):
            read(host, "fault")
    (tmp_path / "proc/stat").unlink()
    with pytest.raises(ParseError, match="no btime"):
        boot_time_s(host)


def test_malformed_bytes_come_out_as_bare_text(tmp_path: Path) -> None:
    host = node(
        tmp_path, bytes(range(256)) * 40 + b"\nfa\xffult\n99999999999999999999999,1,1,-;x\n"
    )
    lines, _ = read(host, "ult", "999")
    assert [x.seq for x in lines] == [-1] * len(lines)
    assert lines[-2].text == "fa\N{REPLACEMENT CHARACTER}ult"
    assert lines[-1].text.startswith("99999999999999999999999,")


@given(
    priority=st.integers(0, 2047),
    seq=st.integers(0, 2**64 - 1),
    usec=st.integers(0, 2**64 - 1),
    flags=st.sampled_from(["-", "c", "-,caller=T1", "-,caller=C0,more=1"]),
    text=st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"])),
)
def test_every_record_is_parsed(priority: int, seq: int, usec: int, flags: str, text: str) -> None:
    parsed = parse_line(f"{priority},{seq},{usec},{flags};{text}".encode())
    assert parsed == (seq, usec, priority, text.encode()[:4096], False, 0)


@given(st.binary(max_size=6000))
def test_no_line_breaks_the_parser(line: bytes) -> None:
    parsed = parse_line(line)
    assert len(parsed.text) <= 4096
    assert parsed.priority >= 0


@given(st.lists(st.sampled_from(["fault", "calm", "FAULT x", "amdgpu", ""]), max_size=40))
def test_exactly_the_lines_with_a_word_are_matched(
    tmp_path_factory: object, texts: list[str]
) -> None:
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    log = "".join(record(n, text) for n, text in enumerate(["start", *texts]))
    lines, _ = read(node(tmp_path_factory.mktemp("node"), log.encode()), "Fault")
    expected = [n for n, text in enumerate(texts, 1) if "fault" in text.lower()]
    assert [line.seq for line in lines if line.matched] == expected
    assert seqs(lines) == sorted(seqs(lines))


@pytest.fixture
def real_log() -> Iterator[list[KernelLine]]:
    try:
        lines, _ = read(Host(), "linux version")
    except Denied as error:
        pytest.skip(f"this machine's kernel log is not readable: {error}")
    yield lines


def test_real_device(real_log: list[KernelLine]) -> None:
    assert seqs(real_log) == sorted(seqs(real_log))
    assert boot_time_s(Host()) <= real_log[0].time_s <= time.time() + 1
    assert real_log[0].text


class WithoutDevice(Host):
    def open(self, path: str) -> int:
        raise NoData(f"{path}: No such file or directory")


def test_real_syslog_where_the_device_is_missing(real_log: list[KernelLine]) -> None:
    try:
        lines, _ = read(WithoutDevice(), "e")
    except Denied as error:
        assert "syslog(2)" in str(error)
        pytest.skip(f"syslog(2) is refused: {error}")
    # The same ring, but syslog(2) may start later (`dmesg --clear`, a long log) and has no numbers.
    assert set(seqs(lines)) == {-1}
    device, syslog = (
        {(line.text, line.level, line.facility, round(line.time_s, 3)) for line in found}
        for found in (read(Host(), "e")[0], lines)
    )
    assert device & syslog


def test_denied_when_device_and_syslog_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def klogctl(self, *_: object) -> int:
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: Refusing())
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EPERM)
    with pytest.raises(Denied, match=r"No such file.*syslog\(2\): Operation not permitted; the ke"):
        read(WithoutDevice(), "fault")
