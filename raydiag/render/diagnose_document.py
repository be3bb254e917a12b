"""The diagnosis of one job as JSON; `raydiag/schemas/diagnose.json` states its shape."""

from __future__ import annotations

import math
from typing import Any, Optional

from raydiag import __version__
from raydiag.explain.job import ExaminedJob
from raydiag.playbooks.observations import Report, ReportRow
from raydiag.playbooks.queries import parts
from raydiag.render import document
from raydiag.render.diagnose_content import reports
from raydiag.render.triage_document import triage_document

SCHEMA = "raydiag.diagnose/1"
_HEAD = ("schema", "raydiag_version")


def diagnose_document(examined: ExaminedJob, generated_at: float) -> dict[str, Any]:
    """The JSON object; `raydiag/schemas/diagnose.json` states its shape."""
    told = document.findings_and_coverage(examined.explained.diagnosis)
    findings = told["findings"]
    log = triage_document(examined.triage, generated_at)
    return {
        "schema": SCHEMA,
        "raydiag_version": __version__,
        "generated_at": document.rfc3339(generated_at),
        "verdict": _verdict(examined),
        "chains": [[findings[index] for index in chain] for chain in told["chains"]],
        "ruled_out": [
            {"class": one.failure_class, "why": one.why, "playbook": one.playbook}
            for one in examined.explained.ruled_out
        ],
        "log_only": examined.log_only or None,
        "no_log": examined.no_log or None,
        "cluster": _cluster(examined),
        "status": examined.case.status,
        "triage": None if examined.no_log else {k: v for k, v in log.items() if k not in _HEAD},
        "metrics": _metrics(examined),
        "playbooks": [_playbook(one, examined) for one in reports(examined)],
        "notes": list(examined.notes),
        "findings": findings,
        "coverage": told["coverage"],
    }


def _verdict(examined: ExaminedJob) -> dict[str, Any]:
    one = examined.explained.verdict
    return {
        "class": one.failure_class,
        "hosts": list(one.hosts),
        "gpus": [{"host": host, "gpu": gpu} for host, gpu in one.gpus],
        "devices": [{"host": host, "device": device} for host, device in one.devices],
        "onset": _finite(one.onset),
        "uncertainty_s": _finite(one.uncertainty_s),
        "recovered": one.recovered,
        "kill_time": _finite(one.kill_time),
        "pattern": one.pattern,
        "confidence": one.confidence.value,
        "summary": one.summary,
    }


def _cluster(examined: ExaminedJob) -> Optional[dict[str, Any]]:
    """The live cluster and how its nodes answered; what they show is in the findings."""
    seen = examined.nodes
    if seen is None:
        return None
    known = ("address", "ssh", "session_name", "ray_version", "gcs_address")
    return {
        **{name: seen.cluster.get(name) for name in known},
        "job": seen.job or None,
        "nodes": [
            {"host": one.node.host, "status": one.status.value, "reason": one.reason}
            for one in seen.snapshot.nodes
        ],
    }


def _metrics(examined: ExaminedJob) -> Optional[dict[str, Any]]:
    seen = examined.metrics
    if seen is None:
        return None
    window = seen.context.window
    return {
        "origin": seen.origin,
        "identity": {"belief": seen.identity.belief.value, "reason": seen.identity.reason},
        "window": {"start": window.start, "end": window.end},
        "hosts": [one.name for one in seen.discovery.hosts],
        "missing": list(seen.discovery.missing),
        "families": [
            {
                "prefix": one.prefix,
                "metrics": len(one.metrics),
                "hosts": len(one.hosts),
                "resolution_s": _finite(one.resolution_s),
                "refresh_s": _finite(one.refresh_s),
                "lag_s": _finite(one.lag_s),
            }
            for one in seen.discovery.families
        ],
        "masks": [
            {
                "kind": one.kind,
                "start": _finite(one.start),
                "end": _finite(one.end),
                "host": one.host,
            }
            for one in seen.context.masks
        ],
        "queries": len(seen.asked),
        "training": examined.training or "metrics",
    }


def _playbook(report: Report, examined: ExaminedJob) -> dict[str, Any]:
    asked = examined.metrics.asked if examined.metrics is not None else ()
    return {
        "id": report.playbook,
        "title": report.title,
        "analysis": report.analysis,
        "verdict": report.verdict,
        "window": {"start": report.window.start, "end": report.window.end},
        "queries": [
            {
                "id": one.id,
                "promql": one.promql,
                "start": one.start,
                "end": one.end,
                "step": one.step_s,
                "status": one.status.value,
                "reason": one.reason,
                "rows": one.rows,
            }
            for one in asked
            if not set(parts(one.id)).isdisjoint(report.questions)
        ],
        "rows": [_row(one) for one in report.rows],
        "exclude": [
            {"host": one.host, "priority": one.priority, "reason": one.reason}
            for one in report.exclude
        ],
        "block": list(report.block),
    }


def _row(row: ReportRow) -> dict[str, Any]:
    return {
        "row": row.row,
        "holds": row.holds,
        "interpretation": row.interpretation,
        "hosts": list(row.hosts),
        "gpu": row.gpu,
        "device": row.device,
        "value": _finite(row.value),
        "unit": row.unit,
        "query": row.question,
    }


def _finite(value: Optional[float]) -> Optional[float]:
    return float(value) if value is not None and math.isfinite(value) else None
