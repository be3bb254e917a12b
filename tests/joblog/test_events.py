"""Stages, summary, exits, heartbeats, saves, start-up marks, dashboards, matches."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from raydiag.joblog.log_line import Hit, JobLogLine
from tests.joblog.joblogs import facts_at, facts_of, maxtext, write


def summary(status: str, wall: str = "1h 2m 3s") -> str:
    return (
        "========================== JOB SUMMARY ==========================\n"
        f"  Job:    4711 (llama)\n  Model:  llama2\n  Nodes:  2\n  Wall:   {wall}\n{status}"
    )


@pytest.mark.parametrize(
    ("status", "word", "code", "reason"),
    [
        ("  Status: \x1b[32mSUCCESS\x1b(B\x1b[m (exit 0)\n", "SUCCESS", 0, ""),
        (
            "  Status: FAILED (exit 1) \u2014 Training FAILED (exit=1)\n",
            "FAILED", 1, "Training FAILED (exit=1)",
        ),
        (
            "  Status: FAILED (exit 143) \u2014 CANCELLED (scancel / SIGTERM)\n",
            "FAILED", 143, "CANCELLED (scancel / SIGTERM)",
        ),
        ("  Status: FAILED (exit 2)", "FAILED", 2, ""),
        ("", None, None, ""),
        ("  Status: ?\n", None, None, ""),
    ],
)  # fmt: skip
def test_summaries(
    status: str, word: Optional[str], code: Optional[int], reason: str, tmp_path: Path
) -> None:
    told = facts_of("x\n" + summary(status), tmp_path).summary
    assert told and told.line == 2
    assert (told.word, told.exit_code, told.reason) == (word, code, reason)
    assert told.wall_s == 3723.0


def test_the_last_of_two_summaries_counts(tmp_path: Path) -> None:
    first, second = summary("  Status: FAILED (exit 1)\n"), summary("  Status: SUCCESS (exit 0)\n")
    told = facts_of(first + second, tmp_path).summary
    assert told and (told.word, told.count) == ("SUCCESS", 2)


def test_words_about_a_summary_are_none(tmp_path: Path) -> None:
    assert facts_of('echo "== JOB SUMMARY =="\nsee JOB SUMMARY\n', tmp_path).summary is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("== Docker pull BEGIN (timeout=900s) ==", ("Docker pull", "begin", None, None)),
        ("== Training BEGIN (no timeout) ==", ("Training", "begin", None, None)),
        ("== Preflight (timeout 900s)", ("Preflight", "begin", None, None)),
        ("== Preflight END (12s) ==", ("Preflight", "end", 12.0, None)),
        ("== ECC check TIMEOUT (301s/300s) ==", ("ECC check", "timeout", 301.0, None)),
        ("== Training FAILED (exit=1, 830s) ==", ("Training", "failed", 830.0, 1)),
        ("== Preflight TIMEOUT", ("Preflight", "timeout", None, None)),
    ],
)
def test_stage_lines(line: str, told: tuple[Any, ...], tmp_path: Path) -> None:
    (event,) = facts_of(line + "\n", tmp_path).stages
    found = (event.name, event.event, event.elapsed_s, event.exit_code)
    assert found == told


@pytest.mark.parametrize("line", ["if a == b END", "== x ==", "========== Training =========="])
def test_what_is_no_stage_line(line: str, tmp_path: Path) -> None:
    assert facts_of(line + "\n", tmp_path).stages == ()


@pytest.mark.parametrize(
    ("line", "kind", "code", "signal", "host", "task", "rank"),
    [
        ("3: NODE_EXIT host=mi07 exit=137", "node-exit", 137, 9, "mi07", 3, None),
        ("srun: error: mi07: task 3: Exited with exit code 143", "srun", 143, 15, "mi07", 3, None),
        ("srun: error: mi07: task 3: Killed", "srun", None, 9, "mi07", 3, None),
        (
            "srun: error: mi07: task 3: Segmentation fault (core dumped)",
            "srun", None, 11, "mi07", 3, None,
        ),
        (
            "2: Training subprocess killed by SIGSEGV (signal 11)",
            "subprocess", None, 11, None, 2, None,
        ),
        ("Training subprocess killed by SIGKILL", "subprocess", None, 9, None, None, None),
        ("Training subprocess exited with code 1", "subprocess", 1, None, None, None, None),
        ("[Node 4] Actor failed: boom", "actor", None, None, None, 4, None),
        (
            "failed (exitcode: -9) local_rank: 2 (pid: 77) of binary: /usr/bin/python",
            "torchrun", -9, 9, None, None, None,
        ),
        (
            "mpirun noticed that process rank 5 with PID 77 on node mi07 exited on signal 11 (S).",
            "mpirun", None, 11, "mi07", None, 5,
        ),
        (
            "[ERROR] [launch.py:1:sigkill_handler] ['python'] exits with return code = -6",
            "launcher", -6, 6, None, None, None,
        ),
    ],
)  # fmt: skip
def test_exits(
    line: str,
    kind: str,
    code: Optional[int],
    signal: Optional[int],
    host: Optional[str],
    task: Optional[int],
    rank: Optional[int],
    tmp_path: Path,
) -> None:
    (exit_,) = facts_of(line + "\n", tmp_path).exits
    assert (exit_.kind, exit_.code, exit_.signal) == (kind, code, signal)
    assert (exit_.host, exit_.task, exit_.rank) == (host, task, rank)


def test_srun_names_several_tasks_at_once(tmp_path: Path) -> None:
    facts = facts_of("srun: error: mi07: tasks 0-2,5: Exited with exit code 1\n", tmp_path)
    assert [one.task for one in facts.exits] == [0, 1, 2, 5]


def test_torchruns_table_names_rank_and_host(tmp_path: Path) -> None:
    table = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-01_10:00:00\n"
        "  host      : mi07\n  rank      : 9 (local_rank: 1)\n  exitcode  : -9 (pid: 77)\n"
        "  error_file: <N/A>\n"
    )
    (exit_,) = facts_of(table, tmp_path).exits
    assert (exit_.host, exit_.rank, exit_.signal, exit_.pid) == ("mi07", 9, 9, 77)


def test_accused_tasks_on_lines_of_their_own_and_on_one_line(tmp_path: Path) -> None:
    error = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"
    own = (
        f"0: E0301 10:00:00.000000 1 x.cc:1] {error}\n0: /job:jax_worker/replica:0/task:5\n"
        "1: something else\n0: /job:jax_worker/replica:0/task:2\n0: The tasks have crashed.\n"
        "0: connected /job:jax_worker/replica:0/task:9\n"
    )
    told = facts_of(own, tmp_path).heartbeats
    assert told and told.accused == (2, 5) and told.first_line == 1
    one = f"{error} /job:jax_worker/replica:0/task:5 /job:jax_worker/replica:0/task:7\n"
    again = facts_of(one + "3: Polled error from coordination service: x\n", tmp_path).heartbeats
    assert again and again.accused == (5, 7) and again.reporters == ("3",)
    assert facts_of("/job:jax_worker/replica:0/task:5 connected\n", tmp_path).heartbeats is None


@pytest.mark.parametrize(
    ("line", "event", "step", "seconds"),
    [
        ("Saved a checkpoint at step 80.", "finished", 80, None),
        ("Saving checkpoint at step 80...", "started", 80, None),
        ("[INFO] saving checkpoint to /ckpt/run/step_253", "started", 253, None),
        ("[INFO] checkpoint saved in 21.5s", "finished", None, 21.5),
        ("saving checkpoint at iteration     500 to /ckpt in torch format", "started", 500, None),
        (
            "successfully saved checkpoint from iteration     500 to /ckpt",
            "finished", 500, None,
        ),
        (
            "SAVE_CHECKPOINT: iteration: 500, ckpt saving takes 12.5 seconds",
            "finished", 500, 12.5,
        ),
        ("    save-checkpoint ................: (1200.1, 1250.5)", "finished", None, None),
        ("Saved checkpoint to /ckpt/step_80", "finished", 80, None),
        ("Saving model checkpoint to out/checkpoint-300", "started", 300, None),
        ("[Torch] Checkpoint global_step140 is ready now!", "finished", 140, None),
        (
            "Finished saving the checkpoint (or staging if async is enabled) in 3.50 seconds.",
            "finished", None, 3.5,
        ),
        ("Training stopped: Checkpointing failed", "failed", None, None),
    ],
)  # fmt: skip
def test_saves(
    line: str, event: str, step: Optional[int], seconds: Optional[float], tmp_path: Path
) -> None:
    (save,) = facts_of(line + "\n", tmp_path).saves
    assert (save.event, save.step, save.seconds) == (event, step, seconds)


def test_of_many_saves_the_ends_are_kept(tmp_path: Path) -> None:
    facts = facts_of("".join(f"Saved a checkpoint at step {n}.\n" for n in range(500)), tmp_path)
    steps = [save.step for save in facts.saves]
    assert steps[:64] == list(range(64)) and steps[-192:] == list(range(308, 500))


def test_what_a_run_was_restored_from(tmp_path: Path) -> None:
    fresh = facts_of("No existing checkpoints found, not restoring checkpoint.\n", tmp_path)
    assert [r.step for r in fresh.restores] == [None]
    again = facts_of("restoring from this run's directory step 160\n", tmp_path)
    assert [r.step for r in again.restores] == [160]


def test_tunnels_new_and_old(tmp_path: Path) -> None:
    new = (
        "  ssh -J me@login -L 8265:localhost:8265 -L 6006:localhost:6006 "
        "-L 9191:localhost:9191 root@mi07\n"
    )
    boards = facts_of("[Prometheus] Started on port 9190 (ray)\n" + new, tmp_path).dashboards
    assert (boards.head, boards.prometheus_port, boards.prometheus_source) == (
        "mi07", 9191, "tunnel",
    )  # fmt: skip
    assert boards.tunnels == (new.strip(),)
    old = "ssh -L 8265:mi09:8265 -L 9190:mi09:9190 me@login\n"
    boards = facts_of(old, tmp_path).dashboards
    assert (boards.head, boards.prometheus_port) == ("mi09", 9190)


def test_ports_without_a_tunnel(tmp_path: Path) -> None:
    lines = (
        "[Prometheus] WARNING: port 9190 was occupied; using 9193 instead\n"
        "[Prometheus] Started on port 9193\n[Prometheus] TSDB -> /o/prometheus (persistent)\n"
        "[Metrics Exporter] Started on port 9400 on mi07 (log: /x)\n"
        "[TensorBoard] Started on port 6006\n[Ray] Starting HEAD on mi07:6379 (bind=10.0.0.7)\n"
        "[Ray] Logs -> /o/ray_logs (persistent)\n"
        "[!] Ray cluster failed, falling back to non-Ray mode\n"
    )
    boards = facts_of(lines, tmp_path).dashboards
    assert (boards.prometheus_port, boards.prometheus_source) == (9193, "occupied")
    assert boards.prometheus_dir == "/o/prometheus"
    assert boards.tensorboard_port == 6006
    assert boards.ray_fallback_line == 8


def test_start_up_phases(tmp_path: Path) -> None:
    lines = (
        "[2026-03-01 10:00:00] a.py:1 INFO Added 1,200 samples to controller\n"
        "[2026-03-01 10:00:05] a.py:1 INFO bundle    0, actual_bundle_index:    0, node: 10.0.0.1\n"
        "[2026-03-01 10:00:06] a.py:1 INFO bundle    1, actual_bundle_index:    1, node: 10.0.0.2\n"
        "Multi-thread loading shards:  45% Completed\rMulti-thread loading shards: 100% Completed\n"
    )
    phases = {(p.phase, p.event): p for p in facts_of(lines, tmp_path).phases}
    assert phases[("dataset", "done")].last_line == 1
    assert phases[("placement", "reached")].last_time == 1772359206.0
    assert {("engine-init", "progress"), ("engine-init", "done")} <= phases.keys()


def test_who_reached_the_barrier(tmp_path: Path) -> None:
    lines = "".join(f"{task}: Synchronizing hosts before training loop\n" for task in range(3))
    facts = facts_of(lines, tmp_path)
    assert facts.barrier_writers == ("0", "1", "2") and facts.barrier_line == 1


def test_a_match_has_its_context_and_where_training_stood(tmp_path: Path) -> None:
    content = "JOB_NODELIST=mi[07-08]\nNNODES=2\n" + maxtext(3) + "above\n1: NCCL WARN x\nbelow\n"
    (match,) = facts_of(content, tmp_path).matches
    assert (match.row, match.line, match.task, match.host) == ("nccl", 5, 1, "mi08")
    assert match.last_step == 3
    assert (match.text, match.raw) == ("NCCL WARN x", "1: NCCL WARN x")
    assert (match.before[-1], match.after) == ("above", ("below",))


def test_a_dead_actor_is_told_by_the_lines_below(tmp_path: Path) -> None:
    block = (
        "(Runner pid=4) ray.exceptions.ActorDiedError: the Actor died unexpectedly\n"
        "(Runner pid=4) \tclass_name: Trainer\n(Other pid=5) pid: 77\n"
        "(Runner pid=4) \tactor_id: 00ff\n(Runner pid=4) \tpid: 514\n"
        "(Runner pid=4) \tnamespace: demo\n(Runner pid=4) \tip: 10.0.0.3\n"
    )
    [match] = facts_of(block, tmp_path).matches
    assert (match.groups["pid"], match.groups["ip"], match.pid) == ("514", "10.0.0.3", 4)


def test_other_lines_below_are_not_a_dead_actor(tmp_path: Path) -> None:
    [match] = facts_of("Error of an Actor\npid: 514\nip: 10.0.0.3\n", tmp_path).matches
    assert "ip" not in match.groups


def test_a_harmless_line_is_nothing_else(tmp_path: Path) -> None:
    facts = facts_of("0: NCCL WARN MSCCL++: Feature not enabled\n", tmp_path)
    assert [m.row for m in facts.matches] == ["quiet"]


def test_matches_are_bounded(tmp_path: Path) -> None:
    facts = facts_of("".join(f"{n % 9}: NCCL WARN {n}\n" for n in range(3000)), tmp_path)
    assert len(facts.matches) == 9 * 4
    assert facts.matches[-1].line == 3000


def test_a_traceback_ends_with_its_exception(tmp_path: Path) -> None:
    content = (
        "0: Traceback (most recent call last):\n1: noise\n"
        '0:   File "train.py", line 3, in main\n0:     step()\n0:     ~~~~^^\n'
        '0:   File "step.py", line 9, in step\n0: torch.OutOfMemoryError: HIP Error\n'
    )
    facts = facts_of(content, tmp_path)
    (one,) = facts.tracebacks
    assert (one.line, one.end_line, one.where) == (1, 7, "0")
    assert one.exception == "torch.OutOfMemoryError: HIP Error"


def test_equal_tracebacks_of_one_writer_are_told_once(tmp_path: Path) -> None:
    one = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 3\n'
    facts = facts_of(
        one * 5 + "During handling of the above exception, another\n\n" + one, tmp_path
    )
    assert len(facts.tracebacks) == 1


def test_a_traceback_in_a_logger_that_repeats_its_header(tmp_path: Path) -> None:
    head = "ERROR 03-01 10:00:00 core.py:68] "
    lines = ["Traceback (most recent call last):", 'File "a.py", line 1, in f', "return g()"]
    content = "".join(f"{head}{line}\n" for line in [*lines, "ValueError: bad"])
    assert facts_of(content, tmp_path).tracebacks[0].exception == "ValueError: bad"


def test_a_traceback_that_the_log_cuts_has_no_exception(tmp_path: Path) -> None:
    content = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g('
    facts = facts_of(content, tmp_path)
    assert facts.tracebacks[0].exception == "" and not facts.last_line_complete


def test_the_exception_stands_with_the_match_that_opens_it(tmp_path: Path) -> None:
    def judge(line: JobLogLine) -> list[Hit]:
        return [Hit("tb", "python-exception", "either", "")] if "Traceback" in line.text else []

    content = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 3\n'
    (match,) = facts_at(write(tmp_path / "job.log", content), judge).matches
    assert match.exception == "KeyError: 3"


def test_markers_of_the_end(tmp_path: Path) -> None:
    facts = facts_of("Training completed: 100 steps in 5.0s\nlast\n", tmp_path)
    assert facts.done_markers == ((1, "Training completed: 100 steps in 5.0s"),)
    assert facts.tail == ("Training completed: 100 steps in 5.0s", "last")
