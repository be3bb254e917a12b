"""Reports on a terminal: a real one, a pseudo-terminal of 24 lines and 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

_LINE = "[  100.0] amdgpu 0000:0{}:00.0: amdgpu: ring gfx timeout, signaled seq=1, emitted seq=2\n"


class Terminal:
    """A command whose stdin, stdout and stderr are one terminal, which is its own."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        names = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "raydiag", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**names, "TERM": "xterm", **environment},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.shown = ""

    def until(self, words: str = "") -> str:
        """What it shows up to these words, or to its end."""
        while not words or words not in self.shown:
            assert select.select([self._ours], [], [], 60)[0], self.shown
            try:
                self.shown += os.read(self._ours, 1 << 16).decode()
            except OSError:  # nobody has the terminal any more
                break
        return self.shown

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def exit_code(self) -> int:
        self.until()
        return self._process.wait(60)

    def is_running(self) -> bool:
        return self._process.poll() is None


@pytest.fixture
def long_log(tmp_path: Path) -> str:
    """A kernel log whose report takes more than a screen."""
    log = tmp_path / "dmesg"
    log.write_text("".join(map(_LINE.format, range(9))))
    return str(log)


@pytest.fixture
def short_log(tmp_path: Path) -> str:
    log = tmp_path / "dmesg"
    log.write_text("[    1.000000] Linux version 5.15.0\n")
    return str(log)


_PROMPT = ":\x1b[K"  # of less

needs_less = pytest.mark.skipif(shutil.which("less") is None, reason="no less on this machine")


@needs_less
def test_a_long_report_begins_at_its_beginning_and_waits(long_log: str) -> None:
    terminal = Terminal("kmsg", "-v", long_log)
    first_screen = terminal.until(_PROMPT)
    assert "amdgpu-ring-timeout" in first_screen and "0000:08:00.0" not in first_screen
    assert terminal.is_running()
    terminal.press(b"q")
    assert terminal.exit_code() == 1


@needs_less
def test_ctrl_c_ends_no_pager(long_log: str) -> None:
    terminal = Terminal("kmsg", "-v", long_log)
    terminal.until(_PROMPT)
    terminal.press(b"\x03")
    while terminal.is_running():  # keys that come together with Ctrl-C are lost
        terminal.press(b"q")
        time.sleep(0.1)
    assert terminal.exit_code() == 1
    assert "Traceback" not in terminal.shown


@needs_less
def test_what_fits_the_screen_just_stays_there(short_log: str) -> None:
    terminal = Terminal("kmsg", short_log)
    assert terminal.exit_code() == 0
    assert "No event in 1 file." in terminal.shown


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--no-pager"], {}),
        (["--json"], {}),
        (["--format", "html"], {}),
        ([], {"PAGER": "cat"}),
        ([], {"PAGER": "less", "RAYDIAG_PAGER": ""}),
        ([], {"PAGER": "no-such-pager -x"}),
        ([], {"TERM": "dumb"}),
    ],
)
def test_no_pager(long_log: str, arguments: list[str], environment: dict[str, str]) -> None:
    terminal = Terminal("kmsg", "-v", long_log, *arguments, **environment)
    assert terminal.exit_code() == 1
    assert "0000:08:00.0" in terminal.shown


def test_the_pager_of_the_environment(long_log: str, tmp_path: Path) -> None:
    pager = f"tee {tmp_path}/paged | sed s/^/paged:/"
    terminal = Terminal("kmsg", long_log, PAGER=pager, LESS="")
    assert terminal.exit_code() == 1
    assert "paged:" in terminal.shown
    assert "0000:08:00.0" in (tmp_path / "paged").read_text()


def test_a_file_and_a_pipe_are_not_paged(long_log: str, tmp_path: Path) -> None:
    marker = tmp_path / "started"
    terminal = Terminal("kmsg", long_log, "-o", str(tmp_path / "report"), PAGER=f"touch {marker}")
    assert terminal.exit_code() == 1
    command = [sys.executable, "-m", "raydiag", "kmsg", long_log]
    environment = {**os.environ, "TERM": "xterm", "PAGER": f"touch {marker}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert "0000:08:00.0" in done.stdout and not marker.exists()


def test_the_first_screen_of_a_diagnosis_has_the_answer(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    steps = [f"completed step: {step}, seconds: 10.0, loss: 4.0\n" for step in range(40)]
    names = "".join(f"{rank}: loaded shard {rank} of the checkpoint\n" for rank in range(64))
    error = "3: RuntimeError: NCCL error: unhandled system error, NCCL version 2.21\n"
    log.write_text("".join([names, *steps, error, "Status: FAILED (exit 1)\n"]))
    terminal = Terminal("diagnose", str(log), "--no-pager")
    assert terminal.exit_code() == 1
    lines = terminal.shown.splitlines()
    assert max(map(len, lines)) <= 80 + len("\x1b[31m\x1b[0m")
    first_screen = "\n".join(lines[:25])
    for heading in ("VERDICT", "nccl-error", "RECOMMENDED NEXT STEPS", "FINDINGS"):
        assert heading in first_screen
    assert len(lines) < 60
