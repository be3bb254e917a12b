"""The journal: nothing is lost that counted, and nothing counts that was not whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from raydiag.errors import CannotRun
from raydiag.recovery.decision import EndedAttempt, RecoveryAction, RecoveryDecision
from raydiag.recovery.journal import RecoveryJournal

_ATTEMPT = EndedAttempt("failed", "nvidia-xid", "confirmed", ("n1",), True, 10.0, 11.0)
_EVICT = RecoveryDecision(RecoveryAction.EVICT, "nvidia-xid on n1", ("n1",), 25.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a journal with one line."""
    path = tmp_path / "journal"
    with closing(RecoveryJournal(str(path))) as journal:
        journal.add("7877", _ATTEMPT, _EVICT, 12.0)
    return path


def test_what_was_written_is_read_again(path: Path) -> None:
    with closing(RecoveryJournal(str(path))) as journal:
        past = journal.history()
        decided = journal.decided(_ATTEMPT)
    assert (past.attempts, past.restarted, past.evicted) == ((_ATTEMPT,), (12.0,), ("n1",))
    assert past.stopped == "" and decided is not None and decided.not_before == 25.0
    assert path.stat().st_mode & 0o077 == 0


def test_every_half_of_a_last_line_is_cut_off(path: Path) -> None:
    line = path.read_bytes()
    for length in range(1, len(line) - 1):
        path.write_bytes(line + line[:length])
        with closing(RecoveryJournal(str(path))) as journal:
            assert len(journal.entries) == 1
        assert path.read_bytes() == line


def test_a_last_line_that_lacks_only_its_newline_is_kept(path: Path) -> None:
    line = path.read_bytes()
    path.write_bytes(line + line[:-1])
    with closing(RecoveryJournal(str(path))) as journal:
        assert len(journal.entries) == 2
    assert path.read_bytes() == line + line


@pytest.mark.parametrize(
    "content",
    [b"{}\n", b"no journal\n", b"no journal", b'{"at": 1}\n', b"\xff\n", b"[" * 9999 + b"\n"],
)
def test_a_damaged_one_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CannotRun, match="journal"):
        RecoveryJournal(str(path))
    assert path.read_bytes() == content


def test_one_process_at_a_time(path: Path) -> None:
    with closing(RecoveryJournal(str(path))), pytest.raises(CannotRun, match="holds it"):
        RecoveryJournal(str(path))
    RecoveryJournal(str(path)).close()


def test_a_stop_stays(path: Path) -> None:
    stop = RecoveryDecision(RecoveryAction.STOP, "a person ended it")
    with closing(RecoveryJournal(str(path))) as journal:
        journal.add("7877", EndedAttempt("cancelled"), stop, 13.0)
    with closing(RecoveryJournal(str(path))) as journal:
        assert journal.history().stopped == "a person ended it"


_WRITER = """
import sys
from raydiag.recovery.journal import RecoveryJournal
from tests.recovery.test_journal import _ATTEMPT, _EVICT
journal = RecoveryJournal(sys.argv[1])
while True:
    journal.add("7877", _ATTEMPT, _EVICT, 12.0)
    print("written", flush=True)
"""


def test_what_was_said_to_be_written_survives_a_kill(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, path], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert writer.stdout is not None
    for _ in range(20):
        writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    said = 20 + len(writer.stdout.readlines())
    writer.wait(10)
    writer.stdout.close()
    with closing(RecoveryJournal(path)) as journal:
        assert len(journal.entries) in (said, said + 1)
