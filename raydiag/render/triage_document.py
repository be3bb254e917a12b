"""The verdict on a job's logs as JSON; `raydiag/schemas/triage.json` states its shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raydiag.model import Chain, Coverage, Diagnosis, Finding, HostUnread
from raydiag.render import document
from raydiag.render.document import picked, plain
from raydiag.triage.verdict import Verdict

_STEPS = ("start", "first_step", "last_step", "total_steps", "steps_this_run", "percent")
_TIMES = ("step_time_s", "last_step_time", "expected_step", "stalled_s")
_CHECKPOINTS = ("checkpoint_period", "last_checkpoint", "progress_lost_steps", "progress_lost_s")
_REST = ("time_remaining_s", "unexplained_s", "complete", "source")


def triage_document(verdicts: Sequence[Verdict], generated_at: float) -> dict[str, Any]:
    """One job's object, or a document with a list of several."""
    if len(verdicts) == 1:
        return {**document.head("triage", generated_at), **job_object(verdicts[0])}
    return _jobs_document(verdicts, generated_at)


def _jobs_document(verdicts: Sequence[Verdict], generated_at: float) -> dict[str, Any]:
    """Several jobs; `findings` and `coverage` are those of all of them."""
    findings: list[Finding] = []
    chains: list[Chain] = []
    unread: list[HostUnread] = []
    for verdict in verdicts:
        findings += verdict.diagnosis.findings
        chains += verdict.diagnosis.chains
        unread += verdict.diagnosis.coverage.unread
    merged = Diagnosis(findings, chains, Coverage(0, 0, (), unread))
    return {
        **document.head("triage", generated_at),
        "jobs": list(map(job_object, verdicts)),
        **document.findings_and_coverage(merged),
    }


def job_object(verdict: Verdict) -> dict[str, Any]:
    """What triage says of one job, without the head of a document."""
    return {
        "log": verdict.log,
        "job_dir": verdict.resolved.job_dir,
        **picked(verdict, "job_id", "job_name", "status", "primary", "stage", "cascade", "rule"),
        "what_happened": " ".join(verdict.story),
        "progress": {
            **picked(verdict.progress, *_STEPS, *_TIMES, *_CHECKPOINTS, *_REST),
            "throughput": plain(verdict.progress.throughput) or {},
        },
        **picked(verdict, "tasks", "dashboards", "phase", "attempts", "notes", "next_steps"),
        **document.findings_and_coverage(verdict.diagnosis),
    }
