"""All logs of one job together: pieces, attempts, ranks, workers, and what cannot be read."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from raydiag.errors import CannotRun
from raydiag.joblog.find import resolve
from raydiag.joblog.read import read
from tests.joblog.joblogs import facts_at, literals, maxtext, write

HEADER = "JOB_ID=7\nNNODES=2\nJOB_NODELIST=mi[07-08]\nRAY_PORT=1\n"


def test_the_workers_logs_may_know_more_than_the_drivers(tmp_path: Path) -> None:
    write(tmp_path / "7-a.log", HEADER + "".join(maxtext(n) for n in range(34)))
    ray = tmp_path / "7-a" / "ray_logs"
    write(ray / "mi07" / "worker-a-01-1.out", "".join(maxtext(n) for n in range(100)))
    write(ray / "mi08" / "worker-b-01-2.out", "".join(maxtext(n) for n in range(90)))
    write(ray / "mi08" / "worker-b-01-2.err", "NCCL WARN late\nSaved a checkpoint at step 80.\n")
    facts = facts_at(tmp_path / "7-a")
    workers = facts.worker_logs
    assert facts.steps and facts.steps.last_step == 33
    assert workers.steps and workers.steps.runs[0].seconds_sum == 1000.0
    assert workers.steps.file == str(ray / "mi07" / "worker-a-01-1.out")
    assert workers.steps.last_step == 99
    assert [(m.row, m.host) for m in workers.matches] == [("nccl", "mi08")]
    assert facts.matches == () and [s.step for s in workers.saves] == [80]
    assert facts.header.ray


def test_rotated_pieces_are_one_log(tmp_path: Path) -> None:
    steps = [maxtext(n) for n in range(30)]
    write(tmp_path / "7-a.log.2.gz", gzip.compress("".join(steps[:10]).encode()))
    write(tmp_path / "7-a.log.1", "".join(steps[10:20]) + "NCCL WARN x\n")
    write(tmp_path / "7-a.log", "".join(steps[20:]))
    facts = facts_at(tmp_path / "7-a.log")
    assert facts.steps and len(facts.steps.runs) == 1
    assert facts.steps.runs[0].steps == 30 and facts.steps.runs[0].seconds_sum == 300.0
    assert (facts.matches[0].file, facts.matches[0].line) == (str(tmp_path / "7-a.log.1"), 11)
    assert facts.steps.last_line == 10 and facts.steps.file == str(tmp_path / "7-a.log")
    assert [file.role for file in facts.files] == ["piece", "piece", "main"]
    assert facts.tail_first_line == 1 and len(facts.tail) == 10


def test_the_ranks_of_a_kubernetes_job_join_in(tmp_path: Path) -> None:
    name = "k8s-20260310-080957-475e-a"
    write(tmp_path / f"{name}.log", "".join(maxtext(n) for n in range(20)))
    write(tmp_path / name / "rank-1.log", "".join(maxtext(n) for n in range(12)) + "NCCL WARN x\n")
    facts = facts_at(tmp_path / name)
    assert [(m.rank, m.where) for m in facts.matches] == [(1, "1")]
    assert facts.steps and {w.where: w.last_step for w in facts.steps.writers} == {"": 19, "1": 11}
    assert facts.steps.last_step == 19


def test_every_attempt_has_facts_of_its_own(tmp_path: Path) -> None:
    for minute, last in ((10, 50), (20, 80)):
        name = f"a_7_date_26-03-10_time_00-{minute}-00.log"
        write(tmp_path / name, "".join(maxtext(n) for n in range(last)))
    paths = sorted(str(p) for p in tmp_path.iterdir())
    facts = facts_at("7", outputs=str(tmp_path))
    assert facts.files[0].path == paths[1] and facts.attempts[0].files[0].path == paths[0]
    assert facts.steps and facts.steps.last_step == 79
    assert facts.attempts[0].steps and facts.attempts[0].steps.last_step == 49


def test_a_job_that_wrote_nothing_has_empty_facts(tmp_path: Path) -> None:
    (tmp_path / "7-a").mkdir()
    facts = facts_at(tmp_path / "7-a")
    assert facts.resolved.empty_dir and facts.files == () and facts.steps is None
    assert facts.unread == () and facts.tail == ()


def test_a_log_of_nothing_readable_cannot_be_judged(tmp_path: Path) -> None:
    path = write(tmp_path / "7-a.log", "x\n")
    found = resolve(str(path))
    path.unlink()
    with pytest.raises(CannotRun, match="does not exist"):
        read(found, literals(), lambda line: [])


def test_a_worker_log_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    write(tmp_path / "7-a.log", HEADER)
    path = write(tmp_path / "7-a" / "ray_logs" / "mi07" / "worker-a-01-1.out.gz", b"\x1f\x8bnope")
    facts = facts_at(tmp_path / "7-a")
    assert [(item.source, item.reason[:18]) for item in facts.unread] == [
        (str(path), "ends in the middle")
    ]
