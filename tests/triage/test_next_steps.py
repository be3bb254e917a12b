"""Next steps are for this job: its state, its framework, its scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raydiag import catalog
from raydiag.catalog.completion import completed
from raydiag.model import Confidence, Finding
from raydiag.triage import judge
from raydiag.triage.verdict import JobStatus, Moment
from tests.triage.jobs import START, header, job, steps, summary

_HOUR = 3600.0


def _steps_after_a_stall(alive: bool) -> tuple[JobStatus, str]:
    facts = job(steps=steps(range(101), 10.0, start=START), header=header(framework="maxtext"))
    end = None if alive else summary("FAILED", 143, 2 * _HOUR)
    facts = replace(facts, last_time=START + 2 * _HOUR, summary=end)
    verdict = judge(facts, Moment(START + 2 * _HOUR, alive=alive, source="--job-state"))
    assert verdict.primary == "hang"
    return verdict.status, " ".join(verdict.next_steps)


def test_of_a_job_that_hangs() -> None:
    status, advice = _steps_after_a_stall(alive=True)
    assert status is JobStatus.HANGING
    assert "Ray dashboard" in advice and "Cancel it" in advice and "Submit it again" not in advice


def test_of_a_job_that_is_over() -> None:
    status, advice = _steps_after_a_stall(alive=False)
    assert status is JobStatus.CANCELLED
    assert "dashboard" not in advice and "ancel it" not in advice and "Submit it again" in advice


@pytest.mark.parametrize(
    ("situation", "present", "absent"),
    [
        ({"framework": "torch"}, "PYTORCH_CUDA_ALLOC_CONF", "XLA_"),
        ({"framework": "jax"}, "XLA_PYTHON_CLIENT_MEM_FRACTION", "PYTORCH_"),
    ],
)
def test_of_a_framework(situation: dict[str, str], present: str, absent: str) -> None:
    finding = completed(Finding("oom-gpu", confidence=Confidence.LIKELY), situation)
    advice = " ".join(finding.next_steps)
    assert present in advice and absent not in advice


def test_where_nothing_is_known_all_steps_are_given() -> None:
    finding = completed(Finding("oom-gpu", confidence=Confidence.LIKELY))
    assert tuple(finding.next_steps) == catalog.failure("oom-gpu").next_steps


def test_no_step_names_scripts_of_one_site() -> None:
    for entry in catalog.failures().values():
        for step in entry.next_steps:
            assert "_env_" not in step and "slurm_job_monitor" not in step, entry.id
