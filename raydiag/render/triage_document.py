"""The verdict on a job's logs as JSON; `raydiag/schemas/triage.json` states its shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from raydiag import __version__
from raydiag.model import Coverage, Diagnosis
from raydiag.render import document
from raydiag.triage.verdict import Attempts, JobStatus, Phase, Verdict

SCHEMA = "raydiag.triage/1"

_FIELDS = (  # of the projection, by the names that scripts depend on
    *("start", "first_step", "last_step", "total_steps", "steps_this_run", "percent"),
    *("step_time_s", "last_step_time", "expected_step", "stalled_s", "checkpoint_period"),
    *("last_checkpoint", "progress_lost_steps", "progress_lost_s", "time_remaining_s"),
    *("unexplained_s", "complete", "source"),
)


def json_report(verdicts: Sequence[Verdict], generated_at: float) -> Iterator[str]:
    """One job's object, or a document with a list of several, as JSON text."""
    if len(verdicts) == 1:
        return document.lines(triage_document(verdicts[0], generated_at))
    return document.lines(jobs_document(verdicts, generated_at))


def triage_document(verdict: Verdict, generated_at: float) -> dict[str, Any]:
    """The JSON object of one job; `raydiag/schemas/triage.json` states its shape."""
    return {**_head(generated_at), **_job(verdict)}


def jobs_document(verdicts: Sequence[Verdict], generated_at: float) -> dict[str, Any]:
    """Several jobs; `findings` and `coverage` are those of all of them."""
    of_each = [verdict.diagnosis for verdict in verdicts]
    unread = tuple(item for one in of_each for item in one.coverage.unread)
    findings = [finding for one in of_each for finding in one.findings]
    chains = [chain for one in of_each for chain in one.chains]
    whole = Diagnosis(findings, chains, Coverage(0, 0, (), unread))
    return {
        **_head(generated_at),
        "jobs": [_job(verdict) for verdict in verdicts],
        **document.findings_and_coverage(whole),
    }


def _head(generated_at: float) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "raydiag_version": __version__,
        "generated_at": document.rfc3339(generated_at),
    }


def _job(verdict: Verdict) -> dict[str, Any]:
    progress = {name: getattr(verdict.progress, name) for name in _FIELDS}
    speed = verdict.progress.throughput
    return {
        "log": verdict.log,
        "job_dir": verdict.resolved.job_dir,
        "job_id": verdict.job_id,
        "job_name": verdict.job_name,
        "status": verdict.status.value,
        "primary": verdict.primary,
        "stage": verdict.stage,
        "cascade": list(verdict.cascade),
        "rule": verdict.rule,
        "what_happened": " ".join(verdict.story),
        "progress": {
            **{name: _plain(value) for name, value in progress.items()},
            "throughput": {k: _plain(v) for k, v in asdict(speed).items()} if speed else {},
        },
        "tasks": [asdict(task) for task in verdict.tasks],
        "dashboards": dict(verdict.dashboards),
        "phase": _plain_object(verdict.phase),
        "attempts": _plain_object(verdict.attempts),
        "notes": list(verdict.notes),
        "next_steps": list(verdict.next_steps),
        **document.findings_and_coverage(verdict.diagnosis),
    }


def _plain(value: Any) -> Any:
    """In JSON's own types; what is no number, and infinity, is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, JobStatus):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _plain_object(value: Phase | Attempts | None) -> Any:
    return _plain(asdict(value)) if value is not None else None
