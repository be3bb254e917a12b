"""The watchdog: which ends it answers with a restart, how often, and how it is ended itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raydiag.errors import CannotRun
from raydiag.exporter.supervise import MOST_RESTARTS, PARENT, RestartPace, supervise

pytestmark = pytest.mark.slow

SOON = RestartPace(first_s=0.01, most_s=0.02)


def exits(*codes: int, counter: Path) -> list[str]:
    """A command that exits with these codes, one a start, then with 0; negative: that signal."""
    program = """if True:
        import os, sys
        counter, *codes = sys.argv[1:]
        number = len(open(counter).read()) if os.path.exists(counter) else 0
        open(counter, "a").write("x")
        code = int(codes[number]) if number < len(codes) else 0
        if code < 0: os.kill(os.getpid(), -code)
        sys.exit(code)
    """
    return [sys.executable, "-I", "-S", "-c", program, str(counter), *map(str, codes)]


@pytest.mark.parametrize("code", [0, 143, 130, -15, -2])
def test_an_end_that_was_wanted_is_the_end(tmp_path: Path, code: int) -> None:
    said: list[str] = []
    ended = supervise(exits(code, counter=tmp_path / "n"), said.append, SOON)
    assert (ended, said) == (code if code >= 0 else 128 - code, [])


def test_any_other_end_is_answered_with_a_restart(tmp_path: Path) -> None:
    said: list[str] = []
    assert supervise(exits(1, -9, 4, counter=tmp_path / "n"), said.append, SOON) == 0
    stamp = r"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\]"
    words = r"\[Metrics Exporter\] Watchdog: exited with code (\d+), restart #(\d+)"
    found = [re.fullmatch(f"{stamp} {words}", line) for line in said]
    assert [one.groups() for one in found if one] == [("1", "1"), ("137", "2"), ("4", "3")]
    assert len(found) == 3


def test_it_gives_up_in_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    argv = ["/bin/sh", "-c", f"printf x >> {tmp_path}/n; exit 3"]
    assert supervise(argv, said.append, SOON) == 3
    assert len((tmp_path / "n").read_text()) == MOST_RESTARTS + 1
    assert said[-1].endswith("Watchdog: too many restarts (50), giving up")
    assert len(said) == MOST_RESTARTS + 1


def test_it_waits_longer_each_time_and_less_after_a_good_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raydiag.exporter import supervise as module

    waits: list[float] = []
    monkeypatch.setattr(module, "_sleep", lambda delay_s, _: waits.append(delay_s))
    supervise(
        exits(1, 1, 1, 1, 1, counter=tmp_path / "n"), lambda line: None, RestartPace(5, 18, 600)
    )
    assert waits == [5, 10, 18, 18, 18]
    waits.clear()
    supervise(exits(1, 1, 1, counter=tmp_path / "m"), lambda line: None, RestartPace(5, 18, 0))
    assert waits == [5, 5, 5]


def test_a_command_that_is_none_is_told() -> None:
    with pytest.raises(CannotRun, match="cannot be started: No such file"):
        supervise(["/no/such/program"], lambda line: None, SOON)


WATCHDOG = """if True:
    import sys
    from raydiag.exporter.supervise import supervise, RestartPace
    def say(line): print(line, flush=True)
    sys.exit(supervise(sys.argv[1:], say, RestartPace(30.0)))
"""


def watchdog(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WATCHDOG, *command], stdout=subprocess.PIPE, text=True
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_goes_on_to_the_exporter(number: signal.Signals) -> None:
    program = "trap 'echo told; exit 143' TERM; echo ready; while :; do sleep 0.05; done"
    with watchdog("/bin/sh", "-c", program) as process:
        assert line(process) == "ready\n"
        process.send_signal(number)
        assert line(process) == "told\n"
        assert process.wait(120) == 143


def test_it_can_be_ended_while_it_waits() -> None:
    with watchdog("/bin/sh", "-c", "exit 7") as process:
        assert "exited with code 7, restart #1" in line(process)
        process.terminate()
        assert process.wait(120) == 143


def test_an_exporter_that_does_not_obey_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = WATCHDOG.replace(
        "import sys", "import sys, raydiag.exporter.supervise as s; s._GRACE_S = 0.2", 1
    )
    argv = [sys.executable, "-c", program, "/bin/sh", "-c", "trap '' TERM; echo ready; sleep 60"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert line(process) == "ready\n"
        process.terminate()
        assert process.wait(120) == 137


def test_the_exporter_ends_with_its_watchdog() -> None:
    program = (
        "import os, time; from raydiag.exporter.supervise import end_with_watchdog; "
        "end_with_watchdog(); print(os.getpid(), flush=True); time.sleep(60)"
    )
    with watchdog(sys.executable, "-c", program) as process:
        pid = int(line(process))
        process.kill()
        process.wait()
        until = time.monotonic() + 120
        while os.path.exists(f"/proc/{pid}/root") and time.monotonic() < until:
            time.sleep(0.02)
        assert not os.path.exists(f"/proc/{pid}/exe") or " Z " in stat(pid)


def stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return " Z "


def test_an_exporter_whose_watchdog_is_gone_does_not_begin() -> None:
    program = (
        "from raydiag.exporter.supervise import end_with_watchdog; end_with_watchdog(); print(1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, PARENT: "1"}, capture_output=True
    )
    assert (done.returncode, done.stdout) == (1, b"")
