"""The parts of a comparison that need no Prometheus: steps, gaps, settings, waves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raydiag import cli
from raydiag.explain.comparison import worker_logs
from raydiag.explain.comparison.gap import NONE, PERSISTENT, SINCE, TRANSIENT, SpeedGap, gap
from raydiag.explain.comparison.settings import JobSettings, differences
from raydiag.explain.comparison.steps import TrainingRun, merged, overlap, slowed_by_saves
from raydiag.joblog.facts import Resolved
from raydiag.tsdb.series import Floats

RNG = np.random.default_rng(7)
TGS = "tb_perf_per_device_tokens_per_sec"


def run(first: int, last: int, source: str = "metrics") -> TrainingRun:
    numbers = np.arange(first, last + 1, dtype=np.float64)
    return TrainingRun(numbers, 1e9 + 10 * numbers, {}, {source: int(numbers.size)})


# ---- gaps


def between(change: Floats, noise: float = 0.003) -> SpeedGap:
    """Of two runs of as many steps, the second changed by these shares."""
    numbers = np.arange(change.size, dtype=np.float64) + 10
    level = 4000.0 * (1 + RNG.normal(0, noise, change.size))
    other = 4000.0 * (1 + RNG.normal(0, noise, change.size)) * (1 + change)
    found = gap(TGS, (numbers, level), (numbers, other))
    assert found is not None
    return found


def test_a_gap_of_a_percent_that_stays() -> None:
    found = between(np.full(200, -0.011))
    assert found.kind == PERSISTENT and found.stays
    assert found.percent == pytest.approx(-1.1, abs=0.2)


def test_a_gap_that_begins_late_and_one_that_passes() -> None:
    late = np.zeros(200)
    late[120:] = -0.05
    found = between(late)
    assert (found.kind, found.until_step) == (SINCE, None)
    assert found.since_step == pytest.approx(130, abs=12)
    assert found.spike_percent == pytest.approx(-5, abs=0.5)
    passing = np.zeros(200)
    passing[60:90] = -0.2
    found = between(passing)
    assert found.kind == TRANSIENT and not found.stays
    assert found.since_step == pytest.approx(70, abs=12)
    assert found.until_step == pytest.approx(100, abs=12)


def test_a_single_slow_step_moves_the_mean_and_no_median() -> None:
    spike = np.zeros(100)
    spike[40] = -0.8
    found = between(spike)
    assert (found.kind, found.since_step, found.until_step) == (TRANSIENT, 50, 50)
    assert found.less_steady == "b"


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.03])
@pytest.mark.parametrize("steps", [12, 40, 300])
def test_noise_alone_is_no_gap(noise: float, steps: int) -> None:
    kinds = [between(np.zeros(steps), noise).kind for _ in range(40)]
    assert kinds.count(NONE) >= 38
    assert PERSISTENT not in kinds and SINCE not in kinds


def test_steps_that_hang_together_are_no_gap() -> None:
    """What is above the mean in one step mostly is in the next."""
    kinds = []
    for _ in range(40):
        wander = RNG.normal(0, 0.004, 200)
        for step in range(1, 200):
            wander[step] += 0.7 * wander[step - 1]
        kinds.append(between(wander, 0.0005).kind)
    assert kinds.count(NONE) >= 37


def test_too_few_values_and_values_of_nothing() -> None:
    few = np.arange(6.0), np.ones(6)
    many = np.arange(40.0), np.zeros(40)
    assert gap(TGS, few, few) is None
    assert gap(TGS, many, many) is None


# ---- steps


def test_only_common_steps_count_and_the_later_start_is_skipped() -> None:
    found = overlap(run(0, 500), run(200, 700), {400, 401, 900})
    assert (found.first, found.last, found.start) == (200, 500, 210)
    assert found.saves == (400, 401)
    steady = found.steady(run(0, 500))
    assert steady.sum() == 289 and not steady[400]
    few = overlap(run(0, 500), run(480, 700), ())
    assert (few.start, few.reason) == (485, "")


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (run(0, 100), run(101, 200), "no step in common: 0 to 100, and 101 to 200"),
        (run(0, 100), run(95, 200), "only 1 steady steps in common, of 95 to 100"),
        (run(0, 100), TrainingRun(), "the second job has no completed step"),
        (TrainingRun(), run(0, 100), "the first job has no completed step"),
    ],
)
def test_why_nothing_is_compared(a: TrainingRun, b: TrainingRun, reason: str) -> None:
    found = overlap(a, b, ())
    assert (found.start, found.reason) == (None, reason)
    assert not found.steady(a).any()


def test_a_save_that_goes_on_beside_training_slows_two_more_steps() -> None:
    assert slowed_by_saves([200], False) == {200, 201}
    assert slowed_by_saves([200], True) == {200, 201, 202}
    assert slowed_by_saves([200], None) == {200, 201, 202}  # the wider one where nobody says


def test_the_first_source_counts_and_the_next_fills_in() -> None:
    metrics, events, log = run(0, 9), run(5, 19, "event file"), run(0, 21, "log")
    metrics = TrainingRun(
        metrics.numbers, metrics.ended_at, {TGS: np.full(10, 1.0)}, metrics.sources
    )
    events = TrainingRun(events.numbers, events.ended_at, {TGS: np.full(15, 2.0)}, events.sources)
    log = TrainingRun(log.numbers, np.full(22, np.nan), {TGS: np.full(22, 3.0)}, log.sources)
    found = merged([metrics, events, log, TrainingRun()])
    assert found.sources == {"metrics": 10, "event file": 10, "log": 2}
    assert list(found.values[TGS]) == [1.0] * 10 + [2.0] * 10 + [3.0] * 2
    assert found.dated.last == 19 and found.last == 21
    assert len(merged([])) == 0


# ---- settings


def test_what_explains_comes_first_and_equal_values_are_equal() -> None:
    a = JobSettings({"remat_policy": "full", "run_name": "a", "steps": "100", "lr": "1e-5"})
    b = JobSettings({"run_name": "b", "steps": "200", "lr": "0.00001", "_env_X": "True"})
    found = differences(a, b)
    assert [(one.parameter, one.a, one.b, one.explains) for one in found] == [
        ("_env_X", "not set", "True", True),
        ("remat_policy", "full", "not set", True),
        ("run_name", "a", "b", False),
        ("steps", "100", "200", False),
    ]


def test_what_one_log_does_not_print_is_no_difference() -> None:
    a = JobSettings({"NNODES": "8", "GPU model": "x"}, {"attention": "dot", "quantization": ""})
    b = JobSettings({"NNODES": "8", "attention": "flash"}, {})
    assert [(one.parameter, one.a, one.b) for one in differences(a, b)] == [
        ("attention", "dot", "flash")
    ]
    assert JobSettings({}, {"flag": "True"}).is_on("flag")
    assert not JobSettings({"flag": "false"}, {"flag": "True"}).is_on("flag")


# ---- waves in the workers' logs

INIT = "mi10:1:2 [{}] init.cc:2095 NCCL WARN MSCCL++: Feature not enabled"


def waves(tmp_path: Path, text: str, hosts: int = 1) -> worker_logs.WorkerLogCounts:
    paths = []
    for number in range(hosts):
        folder = tmp_path / "ray_logs" / f"mi1{number}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "worker-0-01000000-1.out"
        path.write_text(text)
        paths.append(str(path))
    resolved = Resolved("7", "7", None, str(tmp_path), (), worker_logs=tuple(paths))
    return worker_logs.read(resolved, "mi10")


def wave(second: int | None = None) -> str:
    stamp = "" if second is None else f"[2026-11-20 03:12:{second:02d}] "
    return "".join(f"{stamp}{INIT.format(gpu)}\n" for gpu in range(8))


def test_waves_are_told_apart_by_time(tmp_path: Path) -> None:
    found = waves(tmp_path, wave(1) + "noise\n" * 5 + wave(3) + wave(30) + wave(50))
    assert found.waves == 3 and found.counts[worker_logs.INIT] == 32
    assert [one.lines for one in found.of_file] == [16, 8, 8]
    assert found.of_file[1].first_line == 22


def test_without_times_by_what_stands_between(tmp_path: Path) -> None:
    chatter = "a line\nanother\n"
    assert waves(tmp_path, wave() + chatter + wave()).waves == 1
    assert waves(tmp_path, wave() + chatter * 2 + wave()).waves == 2
    restored = "restoring from this run's directory step 60\n"
    assert waves(tmp_path, wave() + restored + wave() + "Compiling module\n" + wave()).waves == 3
    # Other lines print the time, beside the waves.
    around = "I1120 03:12:07.000000 1 a.py:1] a\n" + wave()
    assert waves(tmp_path, around + around.replace("12:07", "14:07")).waves == 2
    assert waves(tmp_path, around + around.replace("12:07", "12:08")).waves == 1


def test_most_hosts_say_how_many_and_no_log_says_nothing(tmp_path: Path) -> None:
    assert waves(tmp_path, "nothing of the kind\n").waves is None
    found = waves(tmp_path, wave(1) + wave(30), 3)
    odd = tmp_path / "ray_logs" / "mi12" / "worker-0-01000000-1.out"
    odd.write_text(wave(1))
    paths = [str(path) for path in sorted((tmp_path / "ray_logs").rglob("*.out"))]
    resolved = Resolved("7", "7", None, str(tmp_path), (), worker_logs=tuple(paths))
    assert found.waves == worker_logs.read(resolved, "mi10").waves == 2
    assert "mi10" in found.file
    gone = worker_logs.read(
        Resolved("7", "7", None, None, (), worker_logs=(str(tmp_path / "none"),)), None
    )
    assert gone.waves is None and gone.unread[0].reason == "does not exist"


def test_an_overlong_line_is_no_trouble(tmp_path: Path) -> None:
    assert waves(tmp_path, "x" * 5_000_000 + "\n" + wave(1)).waves == 1


# ---- next steps


def _log(path: Path, step_s: float, end: str) -> str:
    lines = []
    for step in range(60):
        speed = f"Tokens/s/device: {2000 / step_s:.3f}"
        lines.append(f"completed step: {step}, seconds: {step_s:.3f}, {speed}, loss: 4.0\n")
    path.write_text("".join(lines) + end, encoding="utf-8")
    return str(path)


def test_next_steps_are_about_the_slowness_that_was_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = "RuntimeError: NCCL error: unhandled system error, NCCL version 2.21\n"
    faster = _log(tmp_path / "faster.log", 1.0, failure)
    slower = _log(tmp_path / "slower.log", 1.2, "")
    cli.main(["compare", faster, slower, "--job-state", "ended"])
    steps = capsys.readouterr().out.partition("RECOMMENDED NEXT STEPS\n")[2]
    steps = " ".join(steps.partition("\n\n")[0].split())
    assert "tell nodes from software" in steps
    assert "2. Run job slower again on the other job's nodes" in steps
    problem = "Job faster has a problem of its own (nccl-error): raydiag diagnose "
    assert problem in steps
    assert faster in steps.replace(" ", "")  # a long path is broken over lines
    assert "NCCL_DEBUG" not in steps
