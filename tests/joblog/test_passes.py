"""The same facts however a log is cut, ended, prefixed or gone on with."""

from __future__ import annotations

import dataclasses
import gzip
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raydiag.joblog import lines, passes
from raydiag.joblog.facts import JobFacts
from raydiag.joblog.state import PassState
from tests.joblog.joblogs import facts_at, facts_of, maxtext, write

# The margins are the same for every example.
_FIXTURE = [HealthCheck.function_scoped_fixture]
PIECES = st.lists(
    st.sampled_from(
        [
            maxtext(0),
            maxtext(1, 9.0, "nan"),
            maxtext(2),
            maxtext(7, prefix="  3: "),
            "0: NCCL WARN MSCCL++: Feature not enabled\n",
            "2026-03-01 10:00:00,125 ValueError: shape\n",
            "2026-03-01 10:45:00,125 - nothing of note\n",
            "I0301 11:00:00.000001 12 x.cc:1] NCCL WARN Timeout\n",
            "Traceback (most recent call last):\n",
            '  File "a.py", line 3, in f\n',
            "KeyError: 'x'\n",
            "\r 10%|# | 1/10 [00:01<00:09, 1.00s/it]\r 20%|## | 2/10 [00:02<00:08, 1.00s/it]\n",
            "\n",
            "x" * 700 + "\n",
            "\udc80\udcff\x00 half\n",
            "saving checkpoint at iteration     500 to /ckpt\n",
            "NODE_EXIT host=mi01 exit=137\n",
            "JOB SUMMARY\n",
            "=== JOB SUMMARY ===\n  Status: FAILED (exit 1)\n",
        ]
    ),
    max_size=40,
)


def shown(facts: JobFacts) -> Any:
    """Facts without what differs by file, NaN made equal to itself."""

    def plain(value: Any) -> Any:
        if isinstance(value, float) and math.isnan(value):
            return "nan"
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in ("mtime", "resumed_at")}
        if isinstance(value, (list, tuple)) or type(value).__name__ == "array":
            return [plain(item) for item in value]
        return value

    return plain(dataclasses.asdict(facts))


@pytest.fixture
def small_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Margins of a few lines, so that short logs have many windows."""
    for module in (lines, passes):
        monkeypatch.setattr(module, "BEHIND_BYTES", 1024)
        monkeypatch.setattr(module, "AHEAD_BYTES", 512)
    monkeypatch.setattr("raydiag.joblog.line_context.BEHIND_BYTES", 1024)
    monkeypatch.setattr("raydiag.joblog.line_context.AHEAD_BYTES", 512)
    monkeypatch.setattr(passes, "GRID_BYTES", 256)
    monkeypatch.setattr(lines, "LINE_BYTES", 512)
    monkeypatch.setattr("raydiag.joblog.line_context.LINE_BYTES", 512)


def text_of(pieces: list[str]) -> bytes:
    return "".join(pieces).encode("utf-8", "surrogateescape")


@pytest.mark.usefixtures("small_margins")
@settings(max_examples=60, deadline=None, suppress_health_check=_FIXTURE)
@given(PIECES, st.integers(1, 3000), st.booleans())
def test_the_chunk_size_does_not_matter(pieces: list[str], chunk: int, cut: bool) -> None:
    content = text_of(pieces)[: -1 if cut else None]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "job.log", content)
        assert shown(facts_at(path, chunk=chunk)) == shown(facts_at(path))


@pytest.mark.usefixtures("small_margins")
@settings(max_examples=60, deadline=None, suppress_health_check=_FIXTURE)
@given(PIECES, PIECES, st.integers(1, 3000))
def test_going_on_gives_what_reading_all_gives(
    before: list[str], after: list[str], chunk: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "job.log", text_of(before))
        state = PassState("x")
        facts_at(path, state=state, chunk=chunk)
        with path.open("ab") as log:
            log.write(text_of(after))
        resumed = PassState.loads(state.dumps(), "x")
        assert shown(facts_at(path, state=resumed)) == shown(facts_at(path))


@settings(max_examples=40, deadline=None)
@given(PIECES)
def test_line_ends_do_not_matter(pieces: list[str]) -> None:
    content = text_of([p for p in pieces if "\r" not in p and len(p) < 200])
    with tempfile.TemporaryDirectory() as folder:
        unix = facts_at(write(Path(folder) / "a" / "job.log", content))
        windows = facts_at(write(Path(folder) / "b" / "job.log", content.replace(b"\n", b"\r\n")))
    assert [(m.line, m.text, m.raw, m.before) for m in unix.matches] == [
        (m.line, m.text, m.raw, m.before) for m in windows.matches
    ]
    assert (unix.steps is None) == (windows.steps is None)
    if unix.steps and windows.steps:
        assert unix.steps.runs[-1].steps == windows.steps.runs[-1].steps
        assert list(unix.steps.series.line) == list(windows.steps.series.line)
    assert unix.head == windows.head and unix.files[0].lines == windows.files[0].lines
    assert (unix.first_time, unix.last_time) == (windows.first_time, windows.last_time)


@settings(max_examples=40, deadline=None)
@given(
    PIECES, st.sampled_from(["  4: ", "[rank4]:", "(Trainer pid=4, ip=10.0.0.4) ", "4: [rank4]: "])
)
def test_prefixes_do_not_matter(pieces: list[str], prefix: str) -> None:
    plain = [
        p for p in pieces if p.count("\n") == 1 and "\r" not in p and not p.startswith("  3: ")
    ]
    with tempfile.TemporaryDirectory() as folder:
        bare = facts_at(write(Path(folder) / "a" / "job.log", text_of(plain)))
        told = facts_at(
            write(Path(folder) / "b" / "job.log", text_of([prefix + piece for piece in plain]))
        )
    shifted = [(m.line, m.row, m.text) for m in told.matches]
    assert [(m.line, m.row, m.text.partition("0: ")[2] or m.text) for m in bare.matches] == [
        (line, row, text.partition("0: ")[2] or text) for line, row, text in shifted
    ]
    assert all(m.where for m in told.matches)
    assert [t.exception for t in bare.tracebacks] == [t.exception for t in told.tracebacks]


@pytest.mark.usefixtures("small_margins")
def test_a_line_of_many_windows_is_looked_at_in_pieces(tmp_path: Path) -> None:
    content = b"a" * 5000 + b"NCCL WARN x" + b"b" * 5000 + b"\nNCCL WARN y\n"
    facts = facts_of(content, tmp_path, chunk=700)
    assert [m.line for m in facts.matches] == [1, 2]
    assert max(len(m.text) for m in facts.matches) <= 512
    assert facts.files[0].lines == 2


def test_compressed_logs_read_like_plain_ones(tmp_path: Path) -> None:
    content = "".join(maxtext(step) for step in range(30)).encode()
    plain = facts_of(content, tmp_path)
    packed = facts_of(gzip.compress(content), tmp_path, "job.log.gz")
    assert plain.steps and packed.steps
    assert plain.steps.last_step == packed.steps.last_step == 29
    assert packed.files[0].read_bytes == len(content)


def test_half_a_gzip_file_gives_what_it_holds_and_says_so(tmp_path: Path) -> None:
    content = b"".join(b"%d %s" % (n, maxtext(n).encode()) for n in range(3000))
    facts = facts_of(gzip.compress(content)[:-4000], tmp_path, "job.log.gz")
    assert facts.steps and 0 < facts.steps.last_step < 2999
    assert "ends in the middle" in facts.unread[0].reason


@pytest.mark.usefixtures("small_margins")
def test_steps_are_gone_on_with(tmp_path: Path) -> None:
    state = PassState("x")
    lines = [maxtext(n, 10.0 + n % 3) for n in range(200)]
    path = write(tmp_path / "job.log", "".join(lines[:100]))
    facts_at(path, state=state)
    write(path, "".join(lines))
    resumed = facts_at(path, state=PassState.loads(state.dumps(), "x"))
    assert resumed.resumed_at > 0 and shown(resumed) == shown(facts_at(path))


@pytest.mark.usefixtures("small_margins")
def test_another_file_of_the_same_name_is_read_from_its_start(tmp_path: Path) -> None:
    state = PassState("x")
    path = write(tmp_path / "job.log", "".join(maxtext(n) for n in range(100)))
    facts_at(path, state=state)
    assert state.marks[str(path)].offset > 0
    write(path, "".join(maxtext(n, 5.0) for n in range(200)))
    facts = facts_at(path, state=state)
    assert facts.resumed_at == 0 and facts.steps
    assert facts.steps.runs[0].seconds_sum == pytest.approx(1000.0)


@pytest.mark.usefixtures("small_margins")
def test_a_damaged_state_is_no_state(tmp_path: Path) -> None:
    state = PassState("x")
    path = write(tmp_path / "job.log", "".join(maxtext(n) for n in range(100)))
    whole = shown(facts_at(path, state=state))
    good = state.dumps()
    for bad in (
        good[:-9],
        good.replace('"steps"', '"stops"'),
        "[]",
        "null",
        "{}",
        '{"version": 1}',
    ):
        damaged = PassState.loads(bad, "x")
        assert shown(facts_at(path, state=damaged)) == whole
    assert PassState.loads(good, "other signatures").marks == {}
