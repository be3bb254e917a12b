"""A comparison of jobs as JSON; `raydiag/schemas/compare.json` states its shape."""

from __future__ import annotations

import math
from typing import Any, Optional

from raydiag import __version__
from raydiag.explain.comparison import Comparison
from raydiag.explain.comparison.gap import SpeedGap
from raydiag.explain.comparison.metrics import ComparedMetrics
from raydiag.explain.comparison.pair import Contrast, SlownessCause
from raydiag.explain.comparison.saves import Saves
from raydiag.explain.comparison.side import Side
from raydiag.model import Evidence
from raydiag.render import document
from raydiag.tsdb.series import AskedQuery

SCHEMA = "raydiag.compare/1"


def compare_document(found: Comparison, generated_at: float) -> dict[str, Any]:
    """Several jobs with a list of them; one job is the object itself."""
    head = {
        "schema": SCHEMA,
        "raydiag_version": __version__,
        "generated_at": document.rfc3339(generated_at),
    }
    told = document.findings_and_coverage(found.diagnosis)
    for finding, owner in zip(told["findings"], found.owners, strict=True):
        finding["job"] = owner
    jobs = [
        _job(side, saves, asked)
        for side, saves, asked in zip(found.sides, found.saves, found.asked, strict=True)
    ]
    if len(jobs) == 1:
        return {**head, **jobs[0], **told}
    return {**head, "jobs": jobs, "comparisons": [_contrast(c) for c in found.contrasts], **told}


def _job(side: Side, saves: Saves, asked: Any) -> dict[str, Any]:
    examined, triage = side.examined, side.examined.triage
    metrics, verdict = examined.metrics, examined.explained.verdict
    return {
        "job": side.label,
        "asked": side.asked,
        "log": triage.log,
        "job_dir": triage.resolved.job_dir,
        "job_id": triage.job_id,
        "status": examined.case.status,
        "primary": triage.primary,
        "start": triage.progress.start,
        "restored": side.restored,
        "steps": {
            "first": side.run.first,
            "last": side.run.last,
            "count": len(side.run),
            "sources": dict(side.run.sources),
        },
        "checkpoint_period": side.period,
        "metrics": side.source,
        "origin": metrics.origin if metrics is not None else None,
        "identity": metrics.identity.belief.value if metrics is not None else None,
        "log_only": examined.log_only or None,
        "hosts": list(side.hosts),
        "verdict": {
            "class": verdict.failure_class,
            "hosts": list(verdict.hosts),
            "onset": _finite(verdict.onset),
            "confidence": verdict.confidence.value,
            "summary": verdict.summary,
        },
        "settings": dict(sorted(side.settings.given.items())),
        "worker_logs": {
            "files": side.workers.files,
            "waves": side.workers.waves,
            "counts": dict(side.workers.counts),
            "jit_create_zeros": side.workers.dumped_zeros,
        },
        "event_files": {
            "files": list(side.bridge.files),
            "steps": side.bridge.steps,
            "missing": [{"first": a, "last": b} for a, b in side.bridge.missing],
            "missing_total": side.bridge.missing_total,
            "cut": side.bridge.cut,
        },
        "saves": [
            {
                "step": one.step,
                "failed": one.failed,
                "window": {"start": one.window.start, "end": one.window.end},
                "peaks": {metric: dict(hosts) for metric, hosts in one.peaks.items()},
            }
            for one in saves.loads
        ],
        "queries": [_query(one) for one in asked],
    }


def _query(one: AskedQuery) -> dict[str, Any]:
    return {
        "id": one.id,
        "promql": one.promql,
        "start": one.start,
        "end": one.end,
        "step": one.step_s,
        "status": one.status.value,
        "reason": one.reason,
        "rows": one.rows,
    }


def _contrast(told: Contrast) -> dict[str, Any]:
    pair, answer, shared = told.pair, told.answer, told.pair.overlap
    return {
        "a": pair.a.label,
        "b": pair.b.label,
        "verdict": {
            "kind": answer.kind,
            "class": answer.failure_class,
            "slower": answer.slower,
            "slower_percent": _finite(pair.lacks_percent) if answer.slower else None,
            "hosts": list(answer.hosts),
            "confidence": answer.confidence.value,
            "summary": answer.summary,
            "trace": answer.trace or None,
        },
        "config": [
            {"parameter": one.parameter, "a": one.a, "b": one.b, "explains": one.explains}
            for one in pair.settings
        ],
        "environment": [
            {"what": one.what, "a": one.a, "b": one.b, "same": one.same} for one in pair.environment
        ],
        "overlap": {
            "first": shared.first,
            "last": shared.last,
            "compared_from": shared.start,
            "left_out": list(shared.saves),
            "reason": shared.reason or None,
        },
        "training": [_gap(one) for one in pair.gaps],
        "metrics": [_metric(one) for one in pair.metrics],
        "causes": [_cause(one) for one in told.causes],
        "ruled_out": [{"class": one.failure_class, "why": one.why} for one in told.ruled_out],
        "notes": list(told.notes),
    }


def _gap(one: SpeedGap) -> dict[str, Any]:
    return {
        "metric": one.metric,
        "a": {key: _finite(value) for key, value in vars(one.a).items()},
        "b": {key: _finite(value) for key, value in vars(one.b).items()},
        "percent": _finite(one.percent),
        "error_percent": _finite(one.error_percent),
        "pattern": one.kind,
        "since_step": one.since_step,
        "until_step": one.until_step,
        "furthest_percent": _finite(one.spike_percent),
    }


def _metric(one: ComparedMetrics) -> dict[str, Any]:
    return {
        "group": one.measure.group,
        "metric": one.measure.metric,
        "unit": one.measure.unit,
        "how": one.measure.how,
        "query": one.measure.question,
        "a": _finite(one.a),
        "b": _finite(one.b),
        "delta": _finite(one.delta),
        "percent": _finite(one.percent),
        "differs": one.differs,
        "missing": one.missing or None,
        "hosts_a": {host: _finite(value) for host, value in sorted(one.hosts_a.items())},
        "hosts_b": {host: _finite(value) for host, value in sorted(one.hosts_b.items())},
    }


def _cause(one: SlownessCause) -> dict[str, Any]:
    found = one.finding
    return {
        "kind": one.kind,
        "job": one.label,
        "class": found.failure_class,
        "host": found.host,
        "device": found.device,
        "onset": _finite(found.onset),
        "confidence": found.confidence.value,
        "explains": one.explains,
        "evidence": [_evidence(item) for item in found.evidence],
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    value, time = _finite(item.value), _finite(item.time)
    return {"source": item.source, "text": item.text, "value": value, "time": time}


def _finite(value: Optional[float]) -> Optional[float]:
    return value if value is not None and math.isfinite(value) else None
