"""Step lines of every framework, told once each, with what they print and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import pytest

from raydiag.joblog.facts import LoggedSteps
from raydiag.joblog.step_formats import FORMATS
from tests.joblog.joblogs import facts_of, maxtext


def steps_of(content: str, tmp_path: Path) -> LoggedSteps:
    steps = facts_of(content, tmp_path).steps
    assert steps is not None
    return steps


NAN = math.nan
# format, line, step, total, seconds, loss, tflops, tokens
LINES: list[tuple[str, str, int, Optional[int], float, float, float, float]] = [
    (
        "maxtext",
        "completed step: 41, seconds: 9.500, TFLOP/s/device: 410.200, MFU: 31.5%, "
        "Tokens/s/device: 2510.750, total_weights: 65536, loss: 3.125",
        41, None, 9.5, 3.125, 410.2, 2510.75,
    ),
    (
        "megatron",
        " [2026-03-01 10:00:00] iteration      120/    5000 | consumed samples:        61440 | "
        "elapsed time per iteration (ms): 2500.0 | throughput per GPU (TFLOP/s/GPU): 388.1 | "
        "learning rate: 1.5E-05 | global batch size:   512 | lm loss: 7.25E+00 | loss scale: 1.0 "
        "| grad norm: 1.001 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        120, 5000, 2.5, 7.25, 388.1, NAN,
    ),
    (
        "nemo",
        "Training epoch 0, iteration 11/999 | lr: 1e-05 | global_batch_size: 512 | "
        "global_step: 11 | reduced_train_loss: 11.03 | train_step_timing in s: 12.5 | "
        "consumed_samples: 6144",
        11, None, 12.5, 11.03, NAN, NAN,
    ),
    (
        "nemo",
        "Epoch 0: :   1%|  | 12/1000 [02:24<3:17:36, v_num=1, reduced_train_loss=10.50, "
        "global_step=11.00, consumed_samples=6144.0, train_step_timing in s=12.00]",
        11, None, 12.0, 10.5, NAN, NAN,
    ),
    (
        "deepspeed-pipe",
        "steps: 30 loss: 8.5000 iter time (s): 0.625 samples/sec: 51.200",
        30, None, 0.625, 8.5, NAN, 51.2,
    ),
    (
        "deepspeed",
        "[2026-03-01 10:00:00,100] [INFO] [logging.py:96:log_dist] [Rank 0] step=700, skipped=3, "
        "lr=[1e-05], mom=[(0.9, 0.95)]",
        700, None, NAN, NAN, NAN, NAN,
    ),
    (
        "torchtitan",
        "[titan] 2026-03-01 10:00:00,100 - root - INFO - \x1b[31mstep: 70  \x1b[32mloss:  4.50000  "
        "\x1b[38;2;180;60;0mgrad_norm:  0.9000  memory: 60.10GiB(75.00%)  \x1b[34mtps: 8,125  "
        "\x1b[36mtflops: 310.50  \x1b[35mmfu: 31.05%\x1b[39m",
        70, None, NAN, 4.5, 310.5, 8125.0,
    ),
    (
        "torchspec",
        "Training:  12%|█▏        | 12/100 [01:00<07:20, 5.00s/it, loss=1.250, acc=0.40, "
        "thru=8.2, I=1.0, T=2.0, epoch=0]",
        12, 100, 5.0, 1.25, NAN, 8.2,
    ),
    (
        "nanogpt",
        "iter 250: loss 3.5000, time 512.00ms, mfu 41.20%",
        250, None, 0.512, 3.5, NAN, NAN,
    ),
    (
        "modded-nanogpt",
        "step:608/6200 train_loss:3.7500 train_time:131404ms step_avg:216.00ms",
        608, 6200, 0.216, 3.75, NAN, NAN,
    ),
    ("llm.c", "s:940 trl:3.241000", 940, None, NAN, 3.241, NAN, NAN),
    (
        "nanogpt-bar",
        "step   40 | loss: 6.250000 | lr 1.0e-04 | norm: 1.1 | dt: 340.00ms | tok/sec: 1500.00",
        40, None, 0.34, 6.25, NAN, 1500.0,
    ),
    ("composer", "[batch=10/1000]:", 10, 1000, NAN, NAN, NAN, NAN),
    (
        "fairseq",
        '2026-03-01 10:00:00 | INFO | train_inner | {"epoch": 1, "loss": "9.5", "wps": "3200", '
        '"num_updates": "300", "lr": "1e-05"}',
        300, None, NAN, 9.5, NAN, 3200.0,
    ),
    (
        "verl",
        "step:12 - actor/pg_loss:0.1 - timing_s/step:70.5 - perf/throughput:1400.5",
        12, None, 70.5, NAN, NAN, 1400.5,
    ),
    ("bar", "Training:  12%|#  | 12/100 [01:00<07:20,  5.00s/it]", 12, 100, 5.0, NAN, NAN, NAN),
    (
        "bar",
        "Epoch 2:  50%|## | 5/10 [00:02<00:02, 2.00it/s, loss=1.5]",
        25, None, 0.5, 1.5, NAN, NAN,
    ),
    ("generic", "step 120/1000 loss 2.31", 120, 1000, NAN, 2.31, NAN, NAN),
    ("generic", "2026-03-01 10:00:00 INFO Iteration: 7, Loss = 0.3", 7, None, NAN, 0.3, NAN, NAN),
    ("generic", "step 14/450 | loss 8.5 | lr 2.3e-05 | 13.9 s/it", 14, 450, 13.9, 8.5, NAN, NAN),
    ("generic", "step=247 loss=2.5 lr=4.9e-04 step_time=10.7s", 247, None, 10.7, 2.5, NAN, NAN),
    ("generic", "iter 9, loss 2.5, iteration time: 512 ms", 9, None, 0.512, 2.5, NAN, NAN),
    ("generic", "step 9 loss 2.5 4.0it/s", 9, None, 0.25, 2.5, NAN, NAN),
    ("generic", "{'step': 5, 'train_loss': 0.75}", 5, None, NAN, 0.75, NAN, NAN),
]  # fmt: skip


@pytest.mark.parametrize("row", LINES, ids=[f"{row[0]}-{row[2]}" for row in LINES])
def test_a_line_of_each_form(
    row: tuple[str, str, int, Optional[int], float, float, float, float], tmp_path: Path
) -> None:
    form, line, step, total, *numbers = row
    if form == "bar" and line.startswith("Training"):
        form = "torchspec"  # the same bar; TorchSpec's is the row that stands first
    steps = steps_of(line + "\n", tmp_path)
    series = steps.series
    assert (steps.format, steps.last_step, steps.total) == (form, step, total)
    assert steps.regular
    told = [series.seconds[0], series.loss[0], series.tflops[0], series.tokens_per_s[0]]
    assert told == pytest.approx(numbers, nan_ok=True)


def bars(seconds: Sequence[float]) -> str:
    """A bar's lines, its speed smoothed as tqdm does."""
    lines, speed, passed_s = [], seconds[0], 0.0
    for step, step_s in enumerate(seconds, 1):
        speed, passed_s = 0.3 * step_s + 0.7 * speed, passed_s + step_s
        elapsed = f"{int(passed_s) // 60:02d}:{int(passed_s) % 60:02d}"
        lines.append(f"Training:  3%|#  | {step}/100 [{elapsed}<07:20,  {speed:.2f}s/it]\n")
    return "".join(lines)


def test_the_speed_of_a_bar_counts_once_it_has_forgotten_the_start(tmp_path: Path) -> None:
    steps = steps_of(bars([60.0] + 29 * [5.0]), tmp_path)
    seconds = steps.series.seconds
    assert all(map(math.isnan, seconds[1:10]))
    assert max(seconds[10:]) < 6.6
    assert steps.runs[0].steady_sum / steps.runs[0].steady_count < 5.5


def test_until_then_the_time_that_the_bar_shows_counts(tmp_path: Path) -> None:
    steps = steps_of(bars([60.0] + 7 * [25.0]), tmp_path)
    assert list(steps.series.seconds) == [60.0] + 7 * [25.0]


def test_a_step_without_a_time_has_that_of_its_line_in_another_form(tmp_path: Path) -> None:
    lines = []
    for step in range(1, 6):
        if step != 3:
            stamp = f"[2026-03-01 10:00:{10 * step:02d},100] [INFO] [logging.py:96:log_dist]"
            lines.append(
                f"{stamp} [Rank 0] step={step}, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]\n"
            )
        lines.append(f"steps: {step} loss: 8.5000 iter time (s): 0.625 samples/sec: 51.200\n")
    steps = steps_of("".join(lines), tmp_path)
    times = steps.series.time
    assert times[4] - times[3] == 10.0 and steps.last_time == times[4]
    assert math.isnan(times[2])


def test_a_step_without_a_time_has_that_of_lines_that_go_on_as_steps_do(tmp_path: Path) -> None:
    stamp = "2026-03-01 10:00:{:02d} INFO saved logs; Error: none\n"
    log = "".join(stamp.format(10 * step) + maxtext(step) for step in range(6))
    steps = steps_of(log, tmp_path)
    assert steps.series.time[5] - steps.series.time[1] == 40.0
    assert steps.last_time is None and steps.last_near_time == steps.series.time[5]
    late = "".join(maxtext(step) for step in range(6, 100))
    late += "2026-03-01 10:16:40 INFO saved logs; Error: none\n" + maxtext(100)
    assert all(map(math.isnan, steps_of(log + late, tmp_path).series.time[6:]))


def test_every_form_has_a_line_above() -> None:
    assert {form.id for form in FORMATS} == {row[0] for row in LINES}


@pytest.mark.parametrize(
    "line",
    [
        "Downloading shards:  45%|####  | 5/11 [00:10<00:12, 2.00s/it]",
        "Loading checkpoint shards: 100%|##| 4/4 [00:08<00:00, 2.00s/it]",
        "validate step:  20  loss: 4.5  memory: 10GiB  tps: 9,000",
        "    loss = step(batch)",
        "Warmup (500) + decay (800) steps exceed total steps (1000).",
        "val step 10 loss 2.5",
        "Step 1: compute the loss of the batch",
        "[INFO] using loss_fn at iteration_dir=/tmp/5",
    ],
)
def test_what_is_no_step_of_training(line: str, tmp_path: Path) -> None:
    assert facts_of(line + "\n", tmp_path).steps is None


def test_a_nameless_bar_counts_something_unknown(tmp_path: Path) -> None:
    line = " 12%|#  | 12/100 [01:00<07:20,  5.00s/it]\n"
    assert not steps_of(line, tmp_path).regular
    told = steps_of(line + "{'loss': 1.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n", tmp_path)
    assert told.regular and told.format == "huggingface"
    assert told.series.loss[0] == 1.5 and told.total == 100


def test_a_nameless_bar_with_a_loss_is_of_training(tmp_path: Path) -> None:
    steps = steps_of(" 12%|#  | 12/100 [01:00<07:20,  5.00s/it, lr=1e-4, loss=1.5]\n", tmp_path)
    assert steps.regular and steps.series.loss[0] == 1.5


def test_a_loss_below_a_line_of_deepspeed_is_that_of_its_step(tmp_path: Path) -> None:
    """Its own lines have none: a diverged run would look well."""
    content = ""
    for step, loss in ((1, "2.5"), (2, "nan")):
        content += f"[2026-01-02 03:04:0{step},292] [INFO] [logging.py:96:log_dist] [Rank 0] "
        content += f"step={step}, skipped=0, lr=[0.0003], mom=[[0.9, 0.95]]\n"
        content += f"{{'loss': {loss}, 'grad_norm': 0.4, 'learning_rate': 0.0003, 'epoch': 0.1}}\n"
    steps = steps_of(content, tmp_path)
    assert steps.series.loss_state == b"fa" and steps.series.loss[0] == 2.5


def test_the_loss_of_an_evaluation_is_no_step_of_training(tmp_path: Path) -> None:
    content = "[2026-01-02 03:04:01,292] [INFO] [logging.py:96:log_dist] [Rank 0] "
    content += "step=1, skipped=0, lr=[0.0003], mom=[[0.9, 0.95]]\n"
    content += "eval {'loss': nan, 'accuracy': 0.4}\n"
    assert steps_of(content, tmp_path).series.loss_state != b"a"
    maxtext_line = maxtext(1, loss="2.5") + "\n{'loss': nan, 'learning_rate': 0.1}\n"
    assert steps_of(maxtext_line, tmp_path).series.loss_state == b"f"


@pytest.mark.parametrize(
    ("text", "state"), [("nan", "a"), ("inf", "i"), ("-inf", "i"), ("1e-5", "f")]
)
def test_losses_that_are_no_numbers_are_kept_as_such(text: str, state: str, tmp_path: Path) -> None:
    steps = steps_of(maxtext(0) + maxtext(1, loss=text), tmp_path)
    assert steps.series.loss_state == f"f{state}".encode()


def test_steps_that_every_task_prints_count_once(tmp_path: Path) -> None:
    content = "".join(
        maxtext(n, 10 + n, prefix=f"{task:>2}: ") for n in range(9) for task in range(4)
    )
    steps = steps_of(content, tmp_path)
    run = steps.runs[0]
    assert (run.steps, len(steps.series.step)) == (9, 9)
    assert run.seconds_sum == sum(10.0 + n for n in range(9))
    assert (run.steady_sum, run.steady_count) == (15 + 16 + 17 + 18, 4)
    assert [(w.where, w.last_step) for w in steps.writers] == [(str(task), 8) for task in range(4)]


def test_the_last_step_of_each_task_tells_the_straggler(tmp_path: Path) -> None:
    content = "".join(
        maxtext(n, prefix=f"{task}: ")
        for n in range(20)
        for task in range(3)
        if task != 1 or n < 12
    )
    steps = steps_of(content, tmp_path)
    assert [w.last_step for w in steps.writers] == [19, 11, 19]
    assert steps.last_step == 19


def test_a_jump_back_is_a_restart_for_whoever_jumps(tmp_path: Path) -> None:
    content = "".join(maxtext(n, prefix=f"{task}: ") for n in range(30) for task in range(2))
    content += "".join(maxtext(n, prefix=f"{task}: ") for n in range(20, 26) for task in range(2))
    steps = steps_of(content, tmp_path)
    assert [(r.first_step, r.last_step) for r in steps.runs] == [(0, 29), (20, 25)]
    assert steps.last_step == 25
    assert [w.last_step for w in steps.writers] == [25, 25]


def test_a_restarted_actor_has_a_new_process(tmp_path: Path) -> None:
    content = "".join(maxtext(n, prefix="(Trainer pid=7) ") for n in range(30))
    content += "".join(maxtext(n, prefix="(Trainer pid=9) ") for n in range(5))
    assert [r.last_step for r in steps_of(content, tmp_path).runs] == [29, 4]


def test_ranks_without_prefixes_that_lag_are_no_restart(tmp_path: Path) -> None:
    content = "".join(maxtext(n) + (maxtext(n - 2) if n > 1 else "") for n in range(30))
    steps = steps_of(content, tmp_path)
    assert [(r.first_step, r.last_step) for r in steps.runs] == [(0, 29)]
    again = steps_of(content + maxtext(0) + maxtext(1), tmp_path)  # further back than any lag
    assert [(r.first_step, r.last_step) for r in again.runs] == [(0, 29), (0, 1)]


def test_seconds_come_from_the_clock_where_the_line_has_none(tmp_path: Path) -> None:
    lines = [
        f"[titan] 2026-03-01 10:0{minute}:00,000 - root - INFO - step: {step}  loss: 4.0  tps: 9\n"
        for minute, step in ((0, 10), (1, 20), (2, 30))
    ]
    steps = steps_of("".join(lines), tmp_path)
    assert list(steps.series.seconds)[1:] == [6.0, 6.0]
    assert steps.runs[0].seconds_sum == 120.0
    assert steps.last_time == 1772359320.0
    assert (steps.zero_based, steps.counts_done) == (False, True)


def test_times_around_the_last_step_bound_it(tmp_path: Path) -> None:
    facts = facts_of(
        "2026-03-01 10:00:00 start\n" + maxtext(0) + "2026-03-01 10:30:00 NCCL WARN x\n", tmp_path
    )
    steps = facts.steps
    assert steps and steps.last_time is None
    assert (steps.last_near_time, steps.last_next_time) == (1772359200.0, 1772361000.0)


def test_a_long_series_is_thinned_in_its_middle_and_summed_whole(tmp_path: Path) -> None:
    steps = steps_of("".join(maxtext(n, 2.0) for n in range(40000)), tmp_path)
    series = steps.series
    assert len(series.step) <= 16384
    assert list(series.step[:256]) == list(range(256))
    assert list(series.step[-4096:]) == list(range(40000 - 4096, 40000))
    assert list(series.step) == sorted(series.step)
    assert steps.runs[0].seconds_sum == pytest.approx(80000.0)


def test_every_segment_of_a_progress_bar_is_seen_and_one_line_counted(tmp_path: Path) -> None:
    bar = "".join(
        f"\rTraining:  {n}%|#| {n}/100 [00:{n:02d}<01:00,  1.00s/it]" for n in range(1, 40)
    )
    facts = facts_of("start\n" + bar + "\nValueError: Error\n", tmp_path)
    assert facts.steps and (facts.steps.last_step, facts.steps.total) == (39, 100)
    assert facts.steps.last_line == 2
    assert [m.line for m in facts.matches] == [3]


def test_an_error_glued_to_a_bar_is_still_seen(tmp_path: Path) -> None:
    facts = facts_of(" 12%|# | 12/100 [01:00<07:20,  5.00s/it]ValueError: Error\n", tmp_path)
    assert [m.row for m in facts.matches] == ["error"]


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_line_that_the_log_ends_within_gives_no_wrong_number(cut: int, tmp_path: Path) -> None:
    whole = maxtext(1230, 123.456, "7.125")
    steps = facts_of(maxtext(1229, 100.0) + whole[:-cut], tmp_path).steps
    assert steps is not None
    told = (steps.last_step, steps.series.loss[-1], steps.series.seconds[-1])
    assert told[0] in (1229, 1230)
    assert math.isnan(told[1]) or told[1] in (2.5, 7.125)
    assert told[2] in (100.0, 123.456)


def test_an_exit_code_that_is_cut_is_no_code(tmp_path: Path) -> None:
    assert facts_of("0: NODE_EXIT host=mi07 exit=13", tmp_path).exits == ()


def test_a_bar_that_never_ends_its_line_is_read(tmp_path: Path) -> None:
    bars = "".join(f"\rTraining:  {n}%|#| {n}/100 [00:01<00:09,  1.00s/it]" for n in range(1, 20))
    assert steps_of(bars, tmp_path).last_step == 19


@pytest.mark.parametrize(
    "line",
    [
        " iteration       12/     500 | elapsed time per iteration (ms): 801.0 | lm loss: 4.1E+00 "
        "| grad norm: 1.750 | number of skipped iterations:   0 |",
        "[titan] INFO - step: 12  loss:  4.1000  grad_norm:  1.7500  memory: 61.00GiB(44.10%)",
    ],
)
def test_the_gradient_norm_stands_beside_the_loss(line: str, tmp_path: Path) -> None:
    series = steps_of(line + "\n", tmp_path).series
    assert (series.loss[0], series.grad_norm[0]) == (4.1, 1.75)
