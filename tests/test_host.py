"""Host reads and nothing else, below its root, and says what a failure means."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.host import TEXT_LIMIT_BYTES, Host, as_read_error, parse_int
from raydiag.model import Status


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/number").write_text(" 42\n")
    (tmp_path / "sys/class/words").write_bytes(b"one \xff two\n\0")
    (tmp_path / "sys/class/link").symlink_to("number")
    (tmp_path / "sys/class/broken").symlink_to("/nowhere")
    (tmp_path / "sys/class/around").symlink_to("around")
    return tmp_path


@pytest.fixture
def host(tree: Path) -> Host:
    return Host(str(tree))


def test_ok_everything_is_read_below_the_root(host: Host, tree: Path) -> None:
    assert host.read_bytes("/sys/class/number") == b" 42\n"
    assert host.read_text("/sys/class/number") == "42"
    assert parse_int(host.read_text("/sys/class/number")) == 42
    assert host.read_text("/sys/class/words") == "one \N{REPLACEMENT CHARACTER} two\n\0"
    assert host.listdir("/sys/class") == ["around", "broken", "link", "number", "words"]
    assert host.readlink("/sys/class/link") == "number"
    assert host.realpath("/sys/class/link") == "/sys/class/number"
    assert host.statvfs("/sys").f_blocks == os.statvfs(tree).f_blocks
    assert host.exists("/sys/class/broken")
    assert not host.exists("/sys/class/absent")


@pytest.mark.parametrize("root", ["", "/"])
def test_ok_the_root_of_a_node_is_the_machine_itself(root: str) -> None:
    host = Host(root)
    assert host.path("/proc/stat") == "/proc/stat"
    assert "btime" in host.read_text("/proc/stat", 1 << 20)
    assert host.realpath("/proc/self").startswith("/proc/")


def test_a_read_ends_at_its_limit(host: Host, tree: Path) -> None:
    (tree / "large").write_bytes(b"x" * (TEXT_LIMIT_BYTES + 1))
    assert len(host.read_bytes("/large")) == TEXT_LIMIT_BYTES
    assert host.read_bytes("/large", 3) == b"xxx"
    assert len(Host().read_bytes("/dev/zero", 200_000)) == 200_000


def test_a_pipe_without_a_writer_holds_nobody_up(host: Host, tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    begun = time.monotonic()
    assert host.read_bytes("/pipe") == b""
    assert time.monotonic() - begun < 5


def test_a_descriptor_is_for_reading_and_goes_to_no_child(host: Host) -> None:
    fd = host.open("/sys/class/number")
    try:
        assert not os.get_inheritable(fd)
        assert not os.get_blocking(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(fd, b"0")
    finally:
        os.close(fd)


def test_descriptors_do_not_leak(host: Host) -> None:
    before = os.listdir("/proc/self/fd")
    for path in ("/sys/class/number", "/sys/class", "/absent"):
        try:
            host.read_bytes(path)
        except ReadError:
            continue
    assert os.listdir("/proc/self/fd") == before


READS: dict[str, Callable[[Host, str], Any]] = {
    "read_bytes": Host.read_bytes,
    "read_text": Host.read_text,
    "open": Host.open,
    "listdir": Host.listdir,
    "readlink": Host.readlink,
    "statvfs": Host.statvfs,
}
every_read = pytest.mark.parametrize("read", READS.values(), ids=READS)


@every_read
@pytest.mark.parametrize("path", ["/absent", "/sys/class/number/below", "/absent/below"])
def test_no_data_what_is_not_there(read: Callable[[Host, str], Any], path: str, host: Host) -> None:
    with pytest.raises(NoData, match=path):
        read(host, path)


@pytest.mark.parametrize("name", ["read_bytes", "open", "listdir"])
def test_denied_what_others_may_not_read(name: str) -> None:
    path = "/proc/1/fd" if name == "listdir" else "/proc/1/environ"
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            READS[name](Host(), path)
        except Denied as error:
            os._exit(0 if str(error) == f"{path}: Permission denied" else 2)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


@every_read
@pytest.mark.parametrize(
    "path",
    [
        "/sys/kernel/debug/dri/0/amdgpu_ring_gfx",
        "/sys/kernel/debug",
        "/sys/kernel/tracing/trace_pipe",
        "/sys/class/drm/card0/amdgpu_gpu_recover",
    ],
)
def test_denied_files_that_act_when_they_are_read(
    read: Callable[[Host, str], Any], path: str, tree: Path
) -> None:
    (tree / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    (tree / path[1:]).write_text("1")
    for host in (Host(str(tree)), Host()):
        with pytest.raises(Denied, match="acts on the hardware"):
            read(host, path)


@pytest.mark.parametrize("text", ["", "N/A", "4 2", "0x2a", "4.2", "None"])
def test_malformed_a_number_that_is_none(text: str, host: Host, tree: Path) -> None:
    (tree / "number").write_text(text)
    with pytest.raises(ParseError, match="not an integer"):
        parse_int(host.read_text("/number"))


@given(st.integers(-(2**70), 2**70))
def test_every_integer_comes_back(tmp_path_factory: pytest.TempPathFactory, value: int) -> None:
    path = tmp_path_factory.getbasetemp() / "integer"
    path.write_text(f"{value}\n")
    assert parse_int(Host().read_text(str(path))) == value


def test_malformed_a_directory_and_a_circle_are_errors_and_not_absent(host: Host) -> None:
    for path, words in (("/sys/class", "Is a directory"), ("/sys/class/around", "symbolic links")):
        with pytest.raises(ReadError, match=words) as caught:
            host.read_bytes(path)
        assert caught.value.status is Status.ERROR


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (errno.ENOENT, Status.NO_DATA),
        (errno.ENODEV, Status.NO_DATA),
        (errno.EOPNOTSUPP, Status.NO_DATA),  # a feature that is switched off
        (errno.ESRCH, Status.NO_DATA),  # a process that ended meanwhile
        (errno.EPERM, Status.DENIED),
        (errno.EACCES, Status.DENIED),
        (errno.EIO, Status.ERROR),
        (errno.EINVAL, Status.ERROR),
        (errno.EBUSY, Status.ERROR),
        (None, Status.ERROR),
    ],
)
def test_what_an_error_of_the_kernel_means(number: int | None, status: Status) -> None:
    error = as_read_error(OSError(number, "words") if number else OSError("words"), "/path")
    assert error.status is status
    assert str(error).startswith("/path: ")


def test_a_process_that_is_gone_has_no_data() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    fd = os.open(f"/proc/{pid}", os.O_RDONLY)
    os.waitpid(pid, 0)
    with pytest.raises(NoData):
        Host().read_text(f"/proc/self/fd/{fd}/stat")
    os.close(fd)
