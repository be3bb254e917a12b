"""Guarded readers: that they serve, and that whatever becomes of them holds nobody up."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag import sandbox
from raydiag.errors import ReadError
from raydiag.sandbox import Reader
from tests.cluster import fuse_hang
from tests.cluster.fuse_hang import HangingFile

PATIENCE_S = 120.0  # only a hang takes that long


@pytest.fixture(scope="module")
def file_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HangingFile]:
    if reason := fuse_hang.unavailable():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("hanging")
    (directory / "counter").write_text("42")
    with HangingFile(directory) as file_system:
        yield file_system


@pytest.fixture
def counter(file_system: HangingFile) -> Iterator[Path]:
    """A file whose reads do not answer until the test ends, or releases them."""
    file_system.hang("counter")
    yield file_system.directory / "counter"
    file_system.release()


def serve(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the reader: say it back, or read a file, or run a program, or talk without end."""
    if "run" in request:
        try:
            status, stdout, stderr = sandbox.run_command(request["run"], request["timeout_s"], 1000)
            yield {"status": status, "stdout": stdout.decode(), "stderr": stderr.decode()}
        except ReadError as error:
            yield {"failed": f"{type(error).__name__}: {error}"}
    if "read" in request:
        yield {"text": Path(request["read"]).read_text()}
    while "endless" in request:
        yield {"text": "x" * 1000}
    yield {"said": request}


def until(condition: Callable[[], Any]) -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.005)
    return value


def messages(reader: Reader, until_key: str = "end") -> list[dict[str, Any]]:
    """All messages up to the one with that key."""
    found: list[dict[str, Any]] = []
    while not any(until_key in message for message in found):
        assert select.select([reader], [], [], PATIENCE_S)[0], "no answer"
        found += reader.receive()
    return found


def comm_and_state(pid: int) -> tuple[str, str]:
    head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return head.partition("(")[2], rest.split()[0]


def is_gone(pid: int) -> bool:
    """Ended; a zombie has."""
    try:
        return comm_and_state(pid)[1] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(params=["files", "processes", "sockets", "commands"])
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    reader = Reader(serve, request.param)
    yield reader
    if not reader._killed_at:
        reader.abandon()


def test_one_reader_serves_several_requests(reader: Reader) -> None:
    for number in range(3):
        reader.ask({"number": number}, sandbox.tag(f"s{number} {os.getpid()}"), None)
        found = [m for m in messages(reader) if "sandbox" not in m]
        assert found == [{"said": {"number": number}}, {"end": True}]
    assert comm_and_state(reader.pid)[0] == "rd-idle"
    assert sandbox.tag(f"s2 {os.getpid()}") not in sandbox.readers_at_work()


def test_a_request_larger_than_a_message_keeps_its_lock_until_it_is_served(reader: Reader) -> None:
    name = sandbox.tag(f"large {os.getpid()}")
    held = sandbox.lock(name)
    assert held is not None
    reader.ask({"words": "x" * 150_000}, name, held)
    messages(reader)
    again = until(lambda: sandbox.lock(name))
    again.close()


def test_first_it_says_how_it_is_confined(reader: Reader) -> None:
    (first, *_) = messages(reader, "sandbox")
    assert first["sandbox"]["no_new_privs"] is True


def test_it_keeps_no_descriptor_of_its_parent(reader: Reader) -> None:
    reading, writing = os.pipe()  # after the fork: the one below is from before
    os.close(reading)
    os.close(writing)
    reader.ask({}, sandbox.tag("fd"), None)
    messages(reader)
    links = [os.readlink(path) for path in Path(f"/proc/{reader.pid}/fd").iterdir()]
    assert sorted(links)[:3] == ["/dev/null"] * 3
    assert [link.split(":")[0] for link in sorted(links)[3:]] == ["socket"]


def test_a_pipe_of_the_parent_closes_with_the_parent() -> None:
    reading, writing = os.pipe()
    reader = Reader(serve, "files")
    messages(reader, "sandbox")
    os.close(writing)
    assert select.select([reading], [], [], PATIENCE_S)[0]
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert reader.abandon() is False


def test_a_reader_that_is_killed_gives_eof(reader: Reader) -> None:
    messages(reader, "sandbox")
    os.kill(reader.pid, signal.SIGKILL)
    with pytest.raises(EOFError, match="ended"):
        messages(reader)
    assert reader.abandon() is False
    with pytest.raises(ProcessLookupError):
        os.kill(reader.pid, 0)


def test_a_reader_that_talks_too_much_is_cut_off(reader: Reader) -> None:
    reader.ask({"endless": True}, sandbox.tag("endless"), None)
    with pytest.raises(EOFError, match="more than 4 MiB"):
        messages(reader)
    assert reader.abandon() is False


def test_a_reader_ends_when_its_parent_does() -> None:
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        child = Reader(serve, "files")
        messages(child, "sandbox")
        os.write(writing, json.dumps(child.pid).encode())
        signal.pause()
    pid = json.loads(os.read(reading, 100))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    until(lambda: is_gone(pid))
    os.close(reading)
    os.close(writing)


# ---- programs


def ran(argv: list[str], kind: str = "commands", timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    reader = Reader(serve, kind)
    reader.ask({"run": argv, "timeout_s": timeout_s}, sandbox.tag(f"run {os.getpid()}"), None)
    (answer,) = [m for m in messages(reader) if not m.keys() & {"sandbox", "said", "end"}]
    assert reader.abandon() is False
    return answer


def test_a_program_is_run_with_nothing_to_read_and_in_plain_english() -> None:
    answer = ran(["sh", "-c", "cat; echo out; echo $LC_ALL >&2; exit 3"])
    assert answer == {"status": 3, "stdout": "out\n", "stderr": "C\n"}


def test_a_program_that_is_not_there_is_no_data() -> None:
    assert ran(["raydiag-no-such-program"])["failed"].startswith("NoData: raydiag-no-such-program")


def test_a_program_that_does_not_end_is_left() -> None:
    began = time.monotonic()
    assert ran(["sleep", "600"], timeout_s=0.2)["failed"].startswith("ReadError: sleep: no answer")
    assert time.monotonic() - began < PATIENCE_S


def test_a_program_that_closes_its_output_and_stays_is_left() -> None:
    answer = ran(["sh", "-c", "exec >&- 2>&-; exec sleep 600"], timeout_s=0.2)
    assert answer["failed"] == "ReadError: sh: no answer within 0.2 s"


def test_a_program_that_says_too_much_is_left() -> None:
    assert ran(["yes"])["failed"] == "ReadError: yes: says more than 1000 bytes"


@pytest.mark.parametrize("kind", ["files", "processes", "sockets"])
def test_no_other_reader_may_run_a_program(kind: str) -> None:
    assert "Operation not permitted" in ran(["true"], kind)["failed"]


def test_a_program_ends_with_its_reader_and_holds_the_lock_until_then() -> None:
    name = sandbox.tag(f"program {os.getpid()}")
    reader = Reader(serve, "commands")
    script = "echo $$ >&2; exec sleep 600"
    held = sandbox.lock(name)
    reader.ask({"run": ["sh", "-c", script], "timeout_s": PATIENCE_S}, name, held)
    children = Path(f"/proc/{reader.pid}/task/{reader.pid}/children")
    pid = int(until(lambda: children.read_text().split() or None)[0])
    assert sandbox.lock(name) is None
    assert reader.abandon() is False
    until(lambda: is_gone(pid))
    until(lambda: sandbox.lock(name))


# ---- stuck


def test_a_stuck_reader_is_seen_and_locked_out_until_it_is_gone(
    counter: Path, file_system: HangingFile, reader: Reader
) -> None:
    name = sandbox.tag(str(counter))
    held = sandbox.lock(name)
    assert held is not None
    reader.ask({"read": str(counter)}, name, held)
    file_system.wait_for_readers()
    assert sandbox.readers_at_work()[name][1] is False  # blocked, but nobody has given it up

    assert reader.abandon() is True
    assert comm_and_state(reader.pid) == (name, "D")
    assert sandbox.wchan(reader.pid) == fuse_hang.WAIT_CHANNEL
    assert sandbox.lock(name) is None
    pid, stuck, age_s = sandbox.readers_at_work()[name]
    assert (pid, stuck) == (reader.pid, True)
    assert 0 < age_s < PATIENCE_S

    file_system.release()
    until(lambda: is_gone(reader.pid))
    again = until(lambda: sandbox.lock(name))
    again.close()
    assert name not in sandbox.readers_at_work()
    os.waitpid(reader.pid, 0)


# A process in vfork(), which is state D: its child opens a pipe that nobody writes to. A thread
# gives it its name meanwhile, so that the child has another one.
_IN_VFORK = """
import ctypes, sys, threading
libc = ctypes.CDLL(None)
name, pipe = sys.argv[1:]
def rename():
    while ") D " not in open("/proc/self/stat").read():
        pass
    open("/proc/self/comm", "w").write(name)
threading.Thread(target=rename).start()
actions = ctypes.create_string_buffer(1024)
libc.posix_spawn_file_actions_init(actions)
libc.posix_spawn_file_actions_addopen(actions, 0, pipe.encode(), 0, 0)
words = (ctypes.c_char_p * 2)(b"true", None)
libc.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, words, None)
"""


def test_a_process_that_is_blocked_and_was_not_killed_is_not_stuck(tmp_path: Path) -> None:
    name, pipe = sandbox.tag(f"blocked {tmp_path}"), tmp_path / "pipe"
    os.mkfifo(pipe)
    argv = [sys.executable, "-c", _IN_VFORK, name, str(pipe)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            pid, stuck, _ = until(lambda: sandbox.readers_at_work().get(name))
            assert (pid, stuck) == (process.pid, False)
            assert comm_and_state(pid) == (name, "D")
        finally:
            writer = os.open(pipe, os.O_RDWR)  # lets the child go on
            process.wait(PATIENCE_S)
            os.close(writer)


def test_several_stuck_readers_are_abandoned_together(
    counter: Path, file_system: HangingFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = [Reader(serve, "files") for _ in range(4)]
    for number, reader in enumerate(readers):
        reader.ask({"read": str(counter)}, sandbox.tag(f"{counter} {number}"), None)
    file_system.wait_for_readers(4)
    for reader in readers:
        reader.kill()
    assert readers[0].abandon() is True
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=waits.append)
    monkeypatch.setattr(sandbox, "time", clock)
    assert [reader.abandon() for reader in readers[1:]] == [True] * 3
    assert waits == []  # their moments passed with that of the first
    monkeypatch.undo()
    file_system.release()
    for reader in readers:
        os.waitpid(reader.pid, 0)


# ---- names and locks


def test_a_lock_is_taken_once() -> None:
    name = sandbox.tag(f"locked once {os.getpid()}")
    first = sandbox.lock(name)
    assert first is not None
    assert sandbox.lock(name) is None
    first.close()
    second = sandbox.lock(name)
    assert second is not None
    second.close()


@given(st.text())
def test_a_tag_is_a_tag(source: str) -> None:
    name = sandbox.tag(source)
    assert sandbox.is_tag(name)
    assert len(name.encode()) <= 15  # what the kernel keeps of a name


@given(st.lists(st.text(), unique=True, max_size=20))
def test_sources_differ_in_their_tags(sources: list[str]) -> None:
    assert len({sandbox.tag(source) for source in sources}) == len(sources)


def test_a_name_that_is_not_utf_8_has_a_tag() -> None:
    assert sandbox.is_tag(sandbox.tag(os.fsdecode(b"/mnt/\xff\xfe")))


@given(st.text())
def test_other_names_are_no_tags(name: str) -> None:
    assert not sandbox.is_tag(name)
    assert not sandbox.is_tag(f"rd-{name}x")
    assert not sandbox.is_tag("rd-idle")
