"""What the exporter says, into files, pipes and what takes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """if True:
    import os, sys
    from raydiag.exporter.log import Log
    log = Log()
    for number in range(int(sys.argv[1])): log.write(b"line %d\\n" % number)
    log.close()
    os.write(1, b"done")
"""


def say(lines: int, stderr: int) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-c", PROGRAM, str(lines)]
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=True)


def test_lines_come_whole_into_a_file(tmp_path: Path) -> None:
    with open(tmp_path / "log", "ab") as file:
        assert say(100, file.fileno()).stdout == b"done"
    assert (tmp_path / "log").read_text().splitlines() == [f"line {n}" for n in range(100)]


def test_lines_come_whole_through_a_pipe() -> None:
    reading, writing = os.pipe()
    say(3, writing)
    os.close(writing)
    with open(reading) as file:
        assert file.read() == "line 0\nline 1\nline 2\n"


def test_what_a_pipe_does_not_take_is_dropped() -> None:
    reading, writing = os.pipe()
    assert say(20_000, writing).stdout == b"done"
    os.close(writing)
    with open(reading) as file:
        said = file.read().splitlines()
    assert said == [f"line {n}" for n in range(len(said))]
    assert 0 < len(said) < 20_000


@pytest.mark.parametrize("device", ["/dev/full", "/dev/null"])
def test_no_room_is_no_end(device: str) -> None:
    with open(device, "wb") as file:
        assert say(3, file.fileno()).stdout == b"done"


def test_a_closed_stderr_is_no_end() -> None:
    argv = [sys.executable, "-c", PROGRAM, "3"]
    command = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *argv]
    assert subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True).stdout == b"done"


STOPPED = """if True:
    import os, signal, sys
    from raydiag.exporter.log import Log
    log = Log()
    pid = log._pid
    log.write(b"it is there\\n")
    while not os.fstat(2).st_size: pass
    os.kill(pid, signal.SIGSTOP)
    for number in range(20000): log.write(b"line %d\\n" % number)
    log.close()
    print(pid)
"""


def test_a_child_that_does_not_go_on_holds_nobody_up(tmp_path: Path) -> None:
    """It is stopped, which for us is what a hung file is: it takes no more."""
    with open(tmp_path / "log", "ab") as file:
        argv = [sys.executable, "-c", STOPPED]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=file, timeout=60, check=True)
    os.kill(int(done.stdout), signal.SIGCONT)
