"""Guarded children against the real kernel: everything that could act is tried and refused."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raydiag import confinement

KINDS = ("files", "processes", "sockets")  # those that may not act at all
LEGACY_MACHINE = 0xC0000016  # AUDIT_ARCH of a machine that raydiag does not know
X86_64, AARCH64 = 0, 1  # columns of the table
every_kind = pytest.mark.parametrize("kind", KINDS)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="without root the kernel refuses anyway")

libc = ctypes.CDLL(None, use_errno=True)


def in_child(act: Callable[[], Any]) -> Any:
    """What `act` returns when a forked child calls it; JSON values only."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    assert text, "the child ended without an answer"
    return json.loads(text)


def under(kind: str, act: Callable[[], Any]) -> Any:
    def confined() -> Any:
        confinement.confine(kind)
        return act()

    return in_child(confined)


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader is forked off a lean process; this one has imported half of everything."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * os.sysconf("SC_PAGE_SIZE")
    room = size + confinement._ADDRESS_SPACE_BYTES
    monkeypatch.setattr(confinement, "_ADDRESS_SPACE_BYTES", room)


@pytest.fixture(scope="module")
def sleeper() -> Iterator[int]:
    """Another process, blocked in the kernel for as long as anybody looks."""
    with subprocess.Popen(["sleep", "600"]) as process:
        while not Path(f"/proc/{process.pid}/wchan").read_text().endswith("nanosleep"):
            time.sleep(0.01)
        yield process.pid
        process.kill()


# ---- what a reader may not do


def _c(name: str, *arguments: Any) -> None:
    ctypes.set_errno(0)
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _read_memory(pid: int) -> None:
    buffer = ctypes.create_string_buffer(16)
    here, there = (struct.pack("@PN", at, 16) for at in (ctypes.addressof(buffer), 4096))
    _c("process_vm_readv", pid, here, 1, there, 1, 0)


def attempts(directory: Path, other: int) -> dict[str, Callable[[], object]]:
    """Everything that acts, by name. The last ones would end `other`."""
    file, new = directory / "file", directory / "new"
    number = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine, -1)
    reader = os.open(file, os.O_RDONLY)
    return {
        "open to write": lambda: os.open(file, os.O_WRONLY),
        "open to read and write": lambda: os.open(file, os.O_RDWR),
        "open to append": lambda: os.open(file, os.O_RDONLY | os.O_APPEND),
        "open and truncate": lambda: os.open(file, os.O_RDONLY | os.O_TRUNC),
        "open a new file": lambda: os.open(new, os.O_RDONLY | os.O_CREAT),
        "open without a name": lambda: os.open(directory, os.O_WRONLY | os.O_TMPFILE),
        "open /dev/null to write": lambda: os.open("/dev/null", os.O_WRONLY),
        "unlink": lambda: os.unlink(directory / "unlinked"),
        "rename": lambda: os.rename(directory / "renamed", directory / "renamed2"),
        "mkdir": lambda: os.mkdir(directory / "made"),
        "rmdir": lambda: os.rmdir(directory / "empty"),
        "mknod of a device": lambda: os.mknod(directory / "node", 0o20600, os.makedev(1, 3)),
        "mkfifo": lambda: os.mkfifo(directory / "fifo"),
        "symlink": lambda: os.symlink("x", directory / "symbolic"),
        "link": lambda: os.link(file, directory / "hard"),
        "chmod": lambda: os.chmod(file, 0o600),
        "fchmod": lambda: os.fchmod(reader, 0o600),
        "chown": lambda: os.chown(file, 0, 0),
        "utime": lambda: os.utime(file),
        "truncate": lambda: os.truncate(file, 1),
        "setxattr": lambda: os.setxattr(file, "user.raydiag", b"1"),
        "flock": lambda: fcntl.flock(reader, fcntl.LOCK_SH),
        "fcntl lock": lambda: fcntl.lockf(reader, fcntl.LOCK_SH),
        "lease": lambda: fcntl.fcntl(reader, fcntl.F_SETLEASE, fcntl.F_RDLCK),
        "syncfs": lambda: _c("syncfs", reader),
        "ioctl": lambda: fcntl.ioctl(reader, 0x80086601, bytearray(8)),  # FS_IOC_GETFLAGS
        "pidfd_open": lambda: os.pidfd_open(other),  # type: ignore[attr-defined, unused-ignore]
        "ptrace": lambda: _c("ptrace", 0x4206, other, None, None),  # PTRACE_SEIZE
        "process_vm_readv": lambda: _read_memory(other),
        "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, other, 0),
        "sched_setaffinity": lambda: os.sched_setaffinity(other, os.sched_getaffinity(0)),
        "limits of another": lambda: resource.prlimit(other, resource.RLIMIT_CORE, (0, 0)),
        "fork": _fork,
        "thread": lambda: threading.Thread(target=time.time).start(),
        "posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "exec": lambda: os.execv("/nowhere", ["nowhere"]),
        "mount": lambda: _c("mount", b"none", bytes(directory), b"no-such-type", 0, None),
        "unshare": lambda: _c("unshare", 0x04000000),  # CLONE_NEWUTS
        "chroot": lambda: os.chroot("/"),
        "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "local socket": lambda: socket.socket(socket.AF_UNIX),
        "bpf": lambda: _c("syscall", number, 99, None, 0),
        "io_uring_setup": lambda: _c("syscall", 425, 0, None),
        "clear the kernel log": lambda: _c("klogctl", 99, None, 0),
        "set the host name": lambda: socket.sethostname(socket.gethostname()),
        "signal 0": lambda: os.kill(other, 0),
        "signal": lambda: os.kill(other, signal.SIGKILL),
    }


def tried(directory: Path, other: int) -> dict[str, str]:
    """Name of the error of each attempt; "done" where it went through."""
    outcome = {}
    for name, act in attempts(directory, other).items():
        try:
            act()
            outcome[name] = "done"
        except OSError as error:
            outcome[name] = errno.errorcode[error.errno or 0]
        except RuntimeError:  # what threading makes of EPERM
            outcome[name] = "EPERM"
    return outcome


def prepared(directory: Path) -> Path:
    directory.mkdir()
    (directory / "empty").mkdir()
    for name in ("file", "unlinked", "renamed"):
        (directory / name).write_text("as it was")
    return directory


def state(directory: Path) -> list[tuple[str, bytes, os.stat_result]]:
    return [
        (path.name, b"" if path.is_dir() else path.read_bytes(), path.stat())
        for path in sorted(directory.iterdir())
    ]


@needs_root
@every_kind
def test_whatever_acts_is_refused(kind: str, tmp_path: Path, sleeper: int) -> None:
    directory = prepared(tmp_path / "tree")
    before = state(directory)
    outcome = under(kind, lambda: tried(directory, sleeper))
    assert {name: end for name, end in outcome.items() if end not in ("EPERM", "EACCES")} == {}
    # Reading them for the comparison may have moved the time of access.
    assert [(n, b, s.st_mode, s.st_mtime_ns, s.st_ctime_ns) for n, b, s in state(directory)] == [
        (n, b, s.st_mode, s.st_mtime_ns, s.st_ctime_ns) for n, b, s in before
    ]
    assert Path(f"/proc/{sleeper}/comm").read_text() == "sleep\n"


@needs_root
def test_without_confinement_none_of_it_is_refused(tmp_path: Path) -> None:
    directory = prepared(tmp_path / "tree")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        outcome = in_child(lambda: tried(directory, victim.pid))
    assert {name for name, end in outcome.items() if end in ("EPERM", "EACCES")} == set()
    assert victim.returncode == -signal.SIGKILL


@every_kind
def test_reading_measuring_and_answering_work(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")

    def read() -> list[object]:
        time.sleep(0.001)
        return [
            (tmp_path / "file").read_text(),
            "MemTotal" in Path("/proc/meminfo").read_text(),
            Path("/proc/self/comm").exists(),
            os.listdir(tmp_path),
            "kernel" in os.listdir("/sys"),
            os.statvfs("/").f_blocks > 0,
            len(bytearray(64 << 20)) >> 20,
            time.time() > 0,
            os.readlink("/proc/self/exe").startswith("/"),
            os.getpriority(os.PRIO_PROCESS, 0) >= 0,
        ]

    expected = ["text", True, True, ["file"], True, True, 64, True, True, True]
    assert under(kind, read) == expected


@every_kind
def test_memory_is_limited(kind: str) -> None:
    def take() -> str:
        try:
            return f"{len(bytearray(2 << 30))} bytes"
        except MemoryError:
            return "refused"

    assert under(kind, take) == "refused"


@every_kind
def test_says_what_holds(kind: str) -> None:
    holds = in_child(lambda: confinement.confine(kind))
    status = under(kind, lambda: Path("/proc/self/status").read_text())
    assert holds["no_new_privs"] is ("NoNewPrivs:\t1" in status) is True
    assert holds["seccomp"] is ("Seccomp:\t2" in status) is True
    assert kind == "files" or holds["landlock_abi"] == 0


@needs_root
def test_a_lower_limit_that_is_there_already_stays() -> None:
    def confined() -> list[object]:
        resource.setrlimit(resource.RLIMIT_AS, (900 << 20, 900 << 20))
        os.setuid(65534)  # root could raise it
        return [confinement.confine("files")["seccomp"], resource.getrlimit(resource.RLIMIT_AS)[1]]

    assert in_child(confined) == [True, 900 << 20]


# ---- what the two kinds see of another process


def _looked_at(pid: int) -> list[str]:
    found = []
    for name in ("wchan", "stack"):
        try:
            found.append(Path(f"/proc/{pid}/{name}").read_text())
        except OSError as error:
            found.append(errno.errorcode[error.errno or 0])
    return found


@needs_root
def test_a_reader_of_processes_sees_where_another_is_blocked(sleeper: int) -> None:
    wchan, stack = under("processes", lambda: _looked_at(sleeper))
    assert "nanosleep" in wchan
    assert "nanosleep" in stack


@needs_root
def test_a_reader_of_files_does_not_and_that_is_why_there_are_two(sleeper: int) -> None:
    if in_child(lambda: confinement.confine("files"))["landlock_abi"] == 0:
        pytest.skip("this kernel has no Landlock: a reader of files sees as much as the other")
    wchan, stack = under("files", lambda: _looked_at(sleeper))
    assert wchan == "0"
    assert stack in ("EPERM", "EACCES")


# ---- the tables


def table() -> dict[str, list[str]]:
    """Name -> numbers by column, "-" for none; every syscall that the filter knows."""
    lines = [line for line in confinement._REFUSED.splitlines() if not line.startswith("#")]
    items = [item.split(":") for item in " ".join(lines).split()]
    assert all(len(item) == 3 for item in items)
    assert len({item[0] for item in items}) == len(items)
    found = {name: numbers for name, *numbers in items}
    for name in ("open", "openat", "fcntl", "syslog", "prlimit"):
        numbers = getattr(confinement, f"_{name.upper()}")
        found[name] = [str(number) if number >= 0 else "-" for number in numbers]
    found["prlimit64"] = found.pop("prlimit")
    return found


@pytest.mark.parametrize("column", [X86_64, AARCH64])
def test_no_number_is_listed_twice(column: int) -> None:
    numbers = [int(row[column]) for row in table().values() if row[column] != "-"]
    assert sorted(set(numbers)) == sorted(numbers)


def test_only_calls_that_newer_machines_dropped_lack_a_number() -> None:
    lacking = {name for name, row in table().items() if "-" in row}
    assert all(row[X86_64] != "-" for row in table().values())
    # asm-generic has the ...at form of each of these, or no such thing (ports).
    assert lacking == {
        *("open", "creat", "unlink", "rename", "mkdir", "rmdir", "link", "symlink", "mknod"),
        *("chmod", "chown", "lchown", "utime", "utimes", "futimesat", "fork", "vfork"),
        *("iopl", "ioperm"),
    }


@pytest.mark.parametrize(
    ("column", "header"),
    [(X86_64, "x86_64-linux-gnu/asm/unistd_64.h"), (AARCH64, "asm-generic/unistd.h")],
)
def test_numbers_agree_with_the_kernel_headers(column: int, header: str) -> None:
    path = Path("/usr/include", header)
    if not path.exists():
        pytest.skip(f"{path} is not installed (linux-libc-dev): numbers not compared")
    define = re.compile(r"#define __NR(?:3264)?_(\w+)\s+(\d+)")
    known = dict(define.findall(path.read_text()))
    ours = {name: row[column] for name, row in table().items() if row[column] != "-"}
    wrong = {name: n for name, n in ours.items() if known.get(name, n) != n}
    assert wrong == {}
    # Newer calls than the header are fine; a table of misspelt names is not.
    assert all(int(n) > 440 for name, n in ours.items() if name not in known)


# ---- the filter, instruction by instruction, also for the machine that this is not


def verdict(
    column: int, number: int, *arguments: int, machine: int | None = None, tcp: bool = False
) -> str:
    """Run the classic BPF program over one call, as the kernel would (bpf in net/core/filter.c)."""
    arch = list(confinement._AUDIT_ARCH.values())[column][0]
    program = [struct.unpack("=HBBI", c) for c in confinement._program(arch, column, tcp).code]
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("=iIQ6Q", number, machine or arch, 0, *padded)
    at, loaded = 0, 0
    while True:
        op, if_true, if_false, value = program[at]
        at += 1
        if op == 0x20:  # load a word
            (loaded,) = struct.unpack_from("=I", data, value)
        elif op == 0x54:  # and
            loaded &= value
        elif op == 0x06:  # return
            return {0x7FFF0000: "allowed", 0x00050001: "EPERM"}[value]
        else:
            tests = {0x15: loaded == value, 0x45: loaded & value, 0x35: loaded >= value}
            at += if_true if tests[op] else if_false


@pytest.mark.parametrize("column", [X86_64, AARCH64])
def test_filter_refuses_the_table_and_the_wrong_arguments(column: int) -> None:
    conditional = {"open", "openat", "fcntl", "syslog", "prlimit64"}
    rows = {name: int(row[column]) for name, row in table().items() if row[column] != "-"}
    for name, number in rows.items():
        if name not in conditional:
            assert verdict(column, number) == "EPERM", name
    reading = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_DIRECTORY
    wanted: list[tuple[str, tuple[int, ...], str]] = [
        ("openat", (0, 0, reading), "allowed"),
        ("openat", (0, 0, os.O_WRONLY), "EPERM"),
        ("openat", (0, 0, os.O_CREAT), "EPERM"),
        ("openat", (0, 0, 0o20000000), "EPERM"),  # a file without a name
        ("fcntl", (3, fcntl.F_GETFL), "allowed"),
        ("fcntl", (3, fcntl.F_SETLK), "EPERM"),
        ("syslog", (3,), "allowed"),  # read
        ("syslog", (10,), "allowed"),  # size
        ("syslog", (2,), "EPERM"),  # wait for more
        ("syslog", (4,), "EPERM"),  # read and clear
        ("syslog", (5,), "EPERM"),  # clear
        ("prlimit64", (0,), "allowed"),  # our own
        ("prlimit64", (1,), "EPERM"),
    ]
    for name, arguments, expected in wanted:
        assert verdict(column, rows[name], *arguments) == expected, (name, arguments)
    read, write = {X86_64: (0, 1), AARCH64: (63, 64)}[column]
    assert verdict(column, read) == verdict(column, write) == "allowed"
    assert verdict(column, read, machine=LEGACY_MACHINE) == "EPERM"


@pytest.mark.parametrize("column", [X86_64, AARCH64])
def test_filter_for_sockets_lets_tcp_through_and_nothing_else(column: int) -> None:
    rows = {name: int(row[column]) for name, row in table().items() if row[column] != "-"}
    stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
    for family in (socket.AF_INET, socket.AF_INET6):
        flags = stream | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        assert verdict(column, rows["socket"], family, flags, tcp=True) == "allowed"
        assert verdict(column, rows["socket"], family, datagram, tcp=True) == "EPERM"
        assert verdict(column, rows["socket"], family, flags) == "EPERM"
    for family in (socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET):
        assert verdict(column, rows["socket"], family, stream, tcp=True) == "EPERM"
    assert verdict(column, rows["ioctl"], 3, 0x5421, tcp=True) == "allowed"  # FIONBIO
    assert verdict(column, rows["ioctl"], 3, 0x5401, tcp=True) == "EPERM"  # TCGETS
    for name, number in rows.items():
        conditional = {"open", "openat", "fcntl", "syslog", "prlimit64", "socket", "ioctl"}
        if name not in conditional:
            expected = "allowed" if name in ("connect", "sendto") else "EPERM"
            assert verdict(column, number, tcp=True) == expected, name


def test_a_reader_of_sockets_talks_tcp() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def talk() -> str:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
                client.settimeout(5)
                client.connect(("127.0.0.1", port))
                client.send(b"hello")
            return "sent"

        assert under("sockets", talk) == "sent"
        connection, _ = server.accept()
        assert connection.recv(5) == b"hello"
        connection.close()


def test_a_reader_of_commands_keeps_its_privileges_as_they_are() -> None:
    holds = in_child(lambda: confinement.confine("commands"))
    assert holds == {"no_new_privs": True, "seccomp": False, "landlock_abi": 0}


def test_filter_refuses_the_x32_numbers() -> None:
    assert verdict(X86_64, 0x40000000) == "EPERM"
