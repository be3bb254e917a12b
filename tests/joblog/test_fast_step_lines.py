"""What is read the short way, or not looked for at all, against the long way."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raydiag.joblog import line_shapes, passes
from raydiag.joblog.fast_step_lines import FastStepLines
from raydiag.joblog.line_shapes import Interest, Interests
from raydiag.joblog.lines import LOOKED_AT_BYTES
from raydiag.joblog.step_formats import FORMATS
from raydiag.joblog.step_values import read_at_once, searched
from tests.joblog.joblogs import facts_at, facts_of, maxtext, write
from tests.joblog.test_passes import shown
from tests.joblog.test_steps import LINES

MAXTEXT = FORMATS[0]
MEGATRON = next(line for name, line, *_ in LINES if name == "megatron")
ALL = line_shapes._ANY
number = st.one_of(
    st.decimals(0, 10**6, places=3).map(str),
    st.sampled_from(["0.0", "00012.50", "7", "1e-3", "nan", "inf", "-1.5", "1,024.0", "1.", ""]),
)
step_line = st.builds(
    "completed step: {}, seconds: {}, TFLOP/s/device: {},{} Tokens/s/device: {}, "
    "total_weights: {}, loss: {}{}".format,
    st.one_of(st.integers(0, 40), st.sampled_from(["007", "1" * 16, "x"])),
    number,
    number,
    st.sampled_from(["", " MFU: 31.5%,", " loss: 1.5,"]),
    number,
    st.sampled_from(["4096", "4096.5", ""]),
    number,
    st.sampled_from(
        ["", "", "", " ", ", perplexity: 2.0", "\x1b[0m", " 10:00:00", "\u00e9", "Error"]
    ),
)
lead = st.sampled_from(
    [
        "", "", "0: ", " 1: ", " 17: ", "[rank3]: ", "mi01: ", "(Trainer pid=7, ip=10.0.0.1) ",
        "INFO:absl:", "loss: 3.5 ", "seconds: 1.0, ", "\x1b[32m", "\x1b[", "2026-03-01 10:00:00 ",
        "0: I0301 10:00:01.000001 9 m.py:1] ", "seconds: ", "\u00e9", "TFLOP/s/device: 2 Tokens",
    ]
)  # fmt: skip
other = st.sampled_from(
    [
        *(line for _, line, *_ in LINES), "JOB_ID=4711", "NODELIST_EXPANDED=mi01,mi02", "loss = 3",
        "0: Error: loss of step 5", "== Preflight BEGIN (timeout=900s) ==", "\x1b[3J\x1b(Bloss",
        "NODE_EXIT host=mi01 exit=137", "saving checkpoint at iteration     500 to /ckpt",
        "2026-03-01 10:45:00 a loss", "FINISHED", "{'loss': 2.1, 'epoch': 0.02}",
        "12%|# | 1/10 [00:01<00:09, 1.00s/it]", "Traceback (most recent call last):",
    ]
)  # fmt: skip
usual = st.integers(0, 40).map(lambda step: maxtext(step, step + 1.5, f"{step}.5").rstrip())
few = st.sampled_from(["", "0: ", "mi01: [rank3]: ", "loss: 3.5 "])
log = st.lists(
    st.one_of(
        st.tuples(few, usual),
        st.tuples(few, usual),
        st.tuples(lead, step_line),
        st.tuples(lead, other),
    ).map("".join)
)

# Another form's line about the same step, with a time.
_DATED_30 = "2026-03-01 10:00:00 steps: 30 loss: 8.5000 iter time (s): 0.625 samples/sec: 51.200"


@settings(max_examples=150, deadline=None)
@given(step_line)
def test_a_line_read_at_once_says_what_searching_finds(line: str) -> None:
    data = line.encode()
    values = read_at_once(MAXTEXT, data, 0, len(data))
    found = MAXTEXT.pattern.search(line)
    if values is not None:
        assert found is not None
        assert repr(values) == repr(searched(MAXTEXT, found, line))


def test_the_usual_line_is_read_at_once() -> None:
    for line in (maxtext(5), maxtext(6, loss="nan"), LINES[0][1] + "\n"):
        data = line.encode()
        assert read_at_once(MAXTEXT, data, 0, len(data) - 1) is not None


@settings(max_examples=80, deadline=None)
@given(log, st.booleans(), st.sampled_from(["\n", "\n", "\r\n"]))
@example([maxtext(0).rstrip(), _DATED_30, maxtext(30).rstrip()], True, "\n")
def test_the_short_way_tells_what_the_long_way_tells(
    lines: list[str], whole: bool, feed: str
) -> None:
    _same_both_ways(feed.join([*lines, ""] if whole else lines).encode())


def _same_both_ways(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = write(Path(folder) / "job.log", content)
        short = shown(facts_at(path))
        patch.setattr(FastStepLines, "take", lambda *_: False)
        patch.setattr(Interests, "__call__", lambda *_: ALL)
        assert short == shown(facts_at(path))


@pytest.mark.parametrize(
    "content",
    [
        maxtext(0) + maxtext(1) + maxtext(2)[:-4],
        maxtext(0) + maxtext(1).rstrip(),
        "".join("loss: 7.5 " + maxtext(step) for step in range(3)),
        maxtext(0, prefix="mi01: [rank3]: ")
        + "NODELIST_EXPANDED=mi01\n"
        + maxtext(1, prefix="mi01: [rank3]: "),
        "".join(maxtext(step % 7, prefix=f"{task}: ") for step in range(20) for task in range(3)),
        maxtext(0)
        + maxtext(1, prefix="0: ")
        + MEGATRON
        + "\n"
        + maxtext(1)
        + "0: Error: loss of step 5\n",
    ],
    ids=[
        "cut",
        "without its end",
        "a field before the step",
        "a host by now",
        "from the start",
        "two formats",
    ],
)
def test_hard_cases_of_the_short_way(content: str, tmp_path: Path) -> None:
    _same_both_ways(content.encode())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 30), st.just(-1)), max_size=60),
    st.integers(1, 9),
    st.sampled_from(["\n", "\n", "\r\n", "\r"]),
)
def test_steps_that_many_tasks_repeat(steps: list[int], tasks: int, feed: str) -> None:
    rows = [
        maxtext(step, prefix=f"{task:2}: ")[:-1] if step >= 0 else "2026-03-01 10:00:00 Error"
        for step in sorted(steps[: len(steps) // 2]) + steps[len(steps) // 2 :]
        for task in range(tasks)
    ]
    _same_both_ways(feed.join([*rows, ""]).encode())


def test_the_short_way_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(passes.Pass, "_segment", _noting(passes.Pass._segment, seen))
    tasks = ["  0: ", "  1: ", ""]
    content = "".join(maxtext(step, prefix=task) for step in range(50) for task in tasks)
    steps = facts_of(content, tmp_path).steps
    assert steps is not None and len(steps.series.step) == 50
    assert seen == [1, 2, 3]


def _noting(method: object, seen: list[int]) -> object:
    def noting(self: object, window: object, start: int, end: int, number: int) -> None:
        seen.append(number)
        method(self, window, start, end, number)  # type: ignore[operator]

    return noting


words = st.lists(
    st.sampled_from(
        [
            "step", "Step", "iter", "iteration", "global_", "train_", "val ", "loss", "Loss",
            " ", " ", "\t", "\u00a0", ":", "=", "#", "[", "]", "/", " of ", "|", ",", "'", '"', "-",
            "LOSS", "5", "120", "0.5", ".5", "nan", "inf", "x", "_", "\u0663", "\u017f", "1" * 13,
        ]
    ),
    max_size=14,
).map("".join)  # fmt: skip


@example("step\u00a05, loss 2.5")
@example("step\u00a05 loss 2.5")
@settings(max_examples=200, deadline=None)
@given(words)
def test_no_form_is_ruled_out_that_a_line_is_of(text: str) -> None:
    forms = Interests()(text.encode()).forms
    for form in FORMATS:
        if any(word in text for word in form.anchors) and form.pattern.search(text):
            assert form in forms


def test_lines_that_only_mention_a_loss_are_of_no_interest() -> None:
    for text in ('"train_step_time": 0.4, "reduced_loss": 3.6', "moe_aux_loss_coeff=0.0,"):
        assert Interests()(text.encode()) == Interest(False, (), *[False] * 7)


@pytest.mark.parametrize("ends", ["\n", ""])
def test_of_an_overlong_line_beginning_and_end_are_looked_at(tmp_path: Path, ends: str) -> None:
    size = 6 * LOOKED_AT_BYTES
    middle = "x" * size + "NCCL WARN" + "y" * size
    content = f"2026-03-01 10:00:00 a\nError {middle} Error{ends}" + (
        "0: Error\n2026-03-01 10:00:09 Error\n" if ends else ""
    )
    facts = facts_of(content, tmp_path)
    assert [match.row for match in facts.matches] == ["error"] * (4 if ends else 2)
    assert [match.line for match in facts.matches] == [2, 2, 3, 4][: len(facts.matches)]
    assert (facts.first_time, facts.last_time_line) == (1772359200.0, 4 if ends else 1)
    assert facts.files[0].lines == (4 if ends else 2)


def test_an_almost_overlong_line_is_looked_at_whole(tmp_path: Path) -> None:
    half = "x" * (LOOKED_AT_BYTES // 2 - 100)
    facts = facts_of(f"{half} NCCL WARN {half}\n", tmp_path)
    assert [match.row for match in facts.matches] == ["nccl"]


def test_a_line_of_nul_bytes_is_taken_off_at_once() -> None:
    from raydiag.joblog.line_selection import _HIDING

    assert len(_HIDING.findall(b"\0" * 4096)) == 1
