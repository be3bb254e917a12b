from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.worker_log import LINE_LIMIT, MOST_LINES, markers, parse_end, shown

STEP_LINES = [
    ("MaxText", 118, None, 3.412, b"completed step: 118, seconds: 3.412, TFLOP/s/device: 402.1"),
    (
        "Megatron",
        120,
        9000,
        2.5041,
        b" [2026-02-12 19:58:10] iteration      120/    9000 | consumed samples:        15360 | "
        b"elapsed time per iteration (ms): 2504.1 | learning rate: 1.0E-05 |",
    ),
    (
        "DeepSpeed",
        40,
        None,
        None,
        b"[2026-02-12 19:58:10,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=40, skipped=0, "
        b"lr=[1e-05], mom=[(0.9, 0.95)]",
    ),
    ("progress bar", 7, 50, 3.35, b"Training:  14%|#4        | 7/50 [00:23<02:24,  3.35s/it]"),
    ("progress bar", 8, 50, 0.5, b" 16%|#6        | 8/50 [00:04<00:21,  2.00it/s, loss=2.1]"),
    (
        "step and loss",
        12,
        None,
        None,
        b"[titan] 2026-02-12 19:58:10,001 - root - INFO - \x1b[31mstep: 12  \x1b[32mloss:  8.14",
    ),
    ("step and loss", 12, 80, None, b"Step 12/80 - loss: 3.1"),
]

NOT_STEPS = [
    b"completed step: 118",  # half written
    b"completed step: 11, sec",
    b"validation loss at iteration 100 | lm loss value: 2.1",
    b"Loading checkpoint shards:  50%|#####     | 15/30 [00:10<00:10,  1.4it/s]",
    b"Epoch 3:  12%|#2        | 120/1000 [02:00<14:40,  1.00it/s]",
    b"eval step 5 loss: 2.0",
    b"restored from step 57",
    b"completed step: 1234567890123456789, seconds: 1.0, loss",
]


@pytest.mark.parametrize(("form", "step", "total", "duration_s", "line"), STEP_LINES)
def test_step_lines(
    form: str, step: int, total: int | None, duration_s: float | None, line: bytes
) -> None:
    end = parse_end(b"something\n" + line + b"\nNCCL INFO comm destroyed\n")
    assert (end.step_format, end.step, end.total_steps) == (form, step, total)
    assert end.step_duration_s == pytest.approx(duration_s)
    assert not end.step_is_last


@pytest.mark.parametrize("line", NOT_STEPS)
def test_lines_that_are_no_steps(line: bytes) -> None:
    assert parse_end(line).step is None
    assert parse_end(b"a\n" + line + b"\n").step is None


def test_last_step_and_its_time() -> None:
    end = parse_end(
        b"2026-02-12 19:58:10 completed step: 9, seconds: 3.0, x\n"
        b"2026-02-12 19:58:13 completed step: 10, seconds: 3.0, x\n"
        b"completed step: 11, sec"
    )
    assert (end.step, end.step_is_last, end.buffered) == (10, False, True)
    assert end.step_stamp == time.mktime((2026, 2, 12, 19, 58, 13, 0, 0, -1))
    assert parse_end(b"2026-99-12 19:58:10 completed step: 9, seconds: 3.0, x\n").step == 9


def test_the_step_before_is_another_step() -> None:
    line = b"completed step: %d, seconds: 1.5, loss: %d.0\n"
    end = parse_end(line % (7, 1) + line % (8, 2) + line % (8, 2))
    assert (end.step, end.step_stride) == (8, 1)
    assert end.step_line_before == shown(line % (7, 1)).strip()
    assert parse_end(line % (8, 2)).step_line_before == ""


def test_progress_bar_is_one_line_that_is_written_over() -> None:
    bar = b"\rTraining:  %d%%|##  | %d/50 [00:23<02:24,  3.35s/it]"
    end = parse_end(b"start\n" + b"".join(bar % (2 * n, n) for n in range(9)))
    assert (end.step, end.total_steps, end.step_is_last, end.buffered) == (8, 50, True, False)


def test_steps_of_an_earlier_task_do_not_count() -> None:
    text = b":task_name:one\ncompleted step: 57, seconds: 1.0, x\n:task_name:two\nhello\n"
    assert parse_end(b":job_id:02000000\n" + text).step is None
    assert markers(text) == [("task_name", "one"), ("task_name", "two")]


def test_errors_are_words_and_not_parts_of_words() -> None:
    lines = [b"ValueError: no", b"zoom the room", b"0 errors", b"Killed", b"OOM when", b"mirrored"]
    end = parse_end(b"\n".join(lines) + b"\n")
    assert end.error_lines == ("ValueError: no", "Killed", "OOM when")
    many = parse_end(b"error here\n" * 40)
    assert (many.errors, len(many.error_lines)) == (40, MOST_LINES)


def test_secrets_are_hidden() -> None:
    assert shown(b"login error: api_key=abcdef and more") == "login error: api_key=***"
    assert "2210.5" in shown(b"completed step: 1, seconds: 3.4, Tokens/s/device: 2210.5, loss: 3")


def test_waves_of_communicators() -> None:
    start = b"n1:7:9 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 8 - Init START\n"
    channel = b"n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P\n"
    complete = start.replace(b"START", b"COMPLETE")
    wave = start * 3 + channel * 60 + complete * 3
    other = b"loading\n"
    end = parse_end(wave + other * 19 + wave + other * 20 + wave)
    assert (end.comm_inits_started, end.comm_inits_completed) == (9, 9)
    assert end.comm_init_waves == 2
    mscclpp = b"n1:7:9 [0] init.cc:2095 NCCL WARN MSCCL++: Feature not enabled on this GPU\n"
    end = parse_end(mscclpp * 4 + other * 30 + mscclpp * 4)
    assert (end.comm_init_waves, end.comm_warnings, len(end.comm_lines)) == (2, 8, MOST_LINES)


@given(st.binary(max_size=4000))
def test_any_bytes_give_bounded_lines(text: bytes) -> None:
    end = parse_end(text)
    assert end.step is None or 0 <= end.step < 10**15
    for line in (*end.error_lines, *end.comm_lines, end.step_line):
        assert len(line) <= LINE_LIMIT


@given(st.integers(0, 10**9), st.integers(0, 60))
def test_a_step_line_that_is_cut_gives_the_one_before(step: int, cut: int) -> None:
    line = b"completed step: %d, seconds: 1.000, x" % step
    text = b"completed step: 3, seconds: 1.000, x\n" + line[:cut]
    assert parse_end(text).step == (step if b"1.000," in line[:cut] else 3)


@given(st.lists(st.sampled_from([line for *_, line in STEP_LINES]), min_size=1))
def test_the_last_step_line_counts(lines: list[bytes]) -> None:
    expected = parse_end(lines[-1] + b"\n")
    assert parse_end(b"\n".join(lines) + b"\n").step_line == expected.step_line
