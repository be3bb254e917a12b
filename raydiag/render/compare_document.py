"""A comparison of jobs as JSON; `raydiag/schemas/compare.json` states its shape."""

from collections.abc import Mapping, Sequence
from typing import Any

from raydiag.explain.comparison import Comparison
from raydiag.explain.comparison.gap import SpeedGap
from raydiag.explain.comparison.metrics import ComparedMetrics
from raydiag.explain.comparison.pair import Contrast, SlownessCause
from raydiag.explain.comparison.saves import SaveLoad, Saves
from raydiag.explain.comparison.side import Side
from raydiag.render import document
from raydiag.render.diagnose_document import query_object, ruled_out_objects
from raydiag.render.document import finite, picked, picked_from_each, plain
from raydiag.tsdb.series import AskedQuery

_WORKER_LOGS = ("files", "waves", "counts")


def compare_document(comparison: Comparison, generated_at: float) -> dict[str, Any]:
    """Several jobs with a list of them; one job is the object itself."""
    head = document.head("compare", generated_at)
    common = document.findings_and_coverage(comparison.diagnosis)
    for finding, owner in zip(common["findings"], comparison.owners, strict=True):
        finding["job"] = owner
    jobs = list(map(_job, comparison.sides, comparison.saves, comparison.asked))
    if len(jobs) == 1:
        return {**head, **jobs[0], **common}
    comparisons = list(map(_contrast, comparison.contrasts))
    return {**head, "jobs": jobs, "comparisons": comparisons, **common}


def _job(side: Side, saves: Saves, queries: Sequence[AskedQuery]) -> dict[str, Any]:
    examined, triage = side.examined, side.examined.triage
    return {
        **picked(side, job="label", asked="asked"),
        "log": triage.log,
        "job_dir": triage.resolved.job_dir,
        "job_id": triage.job_id,
        "status": examined.case.status,
        "primary": triage.primary,
        **picked(side, "start", "restored"),
        "steps": {**picked(side.run, "first", "last"), "count": len(side.run)}
        | picked(side.run, "sources"),
        "checkpoint_period": side.period,
        "metrics": side.source,
        **_metrics(side),
        "log_only": examined.log_only or None,
        "hosts": list(side.hosts),
        "verdict": _verdict(side),
        "settings": dict(sorted(side.settings.given.items())),
        "worker_logs": picked(side.workers, *_WORKER_LOGS, jit_create_zeros="dumped_zeros"),
        "event_files": _event_files(side),
        "saves": list(map(_save, saves.loads)),
        "queries": list(map(query_object, queries)),
    }


def _metrics(side: Side) -> dict[str, Any]:
    """Where the series come from, and whether they are the job's."""
    metrics = side.examined.metrics
    if metrics is None:
        return {"origin": None, "identity": None}
    return {"origin": metrics.origin, "identity": metrics.identity.belief.value}


def _verdict(side: Side) -> dict[str, Any]:
    verdict = side.examined.explained.verdict
    names = ("hosts", "onset", "confidence", "summary")
    return {"class": verdict.failure_class, **picked(verdict, *names)}


def _save(load: SaveLoad) -> dict[str, Any]:
    return {**picked(load, "step", "failed", "peaks"), "window": document.window(load.window)}


def _event_files(side: Side) -> dict[str, Any]:
    missing = [{"first": first, "last": last} for first, last in side.bridge.missing]
    return {
        **picked(side.bridge, "files", "steps"),
        "missing": missing,
        **picked(side.bridge, "missing_total", "cut"),
    }


def _contrast(contrast: Contrast) -> dict[str, Any]:
    pair = contrast.pair
    return {
        "a": pair.a.label,
        "b": pair.b.label,
        "verdict": _answer(contrast),
        "config": picked_from_each(pair.settings, "parameter", "a", "b", "explains"),
        "environment": picked_from_each(pair.environment, "what", "a", "b", "same"),
        "overlap": {
            **picked(pair.overlap, "first", "last", compared_from="start", left_out="saves"),
            "reason": pair.overlap.reason or None,
        },
        "training": list(map(_gap, pair.gaps)),
        "metrics": list(map(_metric, pair.metrics)),
        "causes": list(map(_cause, contrast.causes)),
        "ruled_out": ruled_out_objects(contrast.ruled_out, "why"),
        "notes": list(contrast.notes),
    }


def _answer(contrast: Contrast) -> dict[str, Any]:
    answer = contrast.answer
    return {
        **picked(answer, "kind", **{"class": "failure_class"}, slower="slower"),
        "slower_percent": finite(contrast.pair.lacks_percent) if answer.slower else None,
        **picked(answer, "hosts", "confidence", "summary"),
        "trace": answer.trace or None,
    }


def _gap(gap: SpeedGap) -> dict[str, Any]:
    names = ("metric", "a", "b", "percent", "error_percent")
    return {
        **picked(gap, *names, pattern="kind", since_step="since_step", until_step="until_step"),
        "furthest_percent": finite(gap.spike_percent),
    }


def _metric(compared: ComparedMetrics) -> dict[str, Any]:
    return {
        **picked(compared.measure, "group", "metric", "unit", "how", query="question"),
        **picked(compared, "a", "b", "delta", "percent", "differs"),
        "missing": compared.missing or None,
        "hosts_a": _by_host(compared.hosts_a),
        "hosts_b": _by_host(compared.hosts_b),
    }


def _by_host(values: Mapping[str, float]) -> Any:
    return plain(dict(sorted(values.items())))


def _cause(cause: SlownessCause) -> dict[str, Any]:
    finding = cause.finding
    return {
        **picked(cause, "kind", job="label"),
        "class": finding.failure_class,
        **picked(finding, "host", "device", "onset", "confidence"),
        "explains": cause.explains,
        "evidence": list(map(document.evidence, finding.evidence)),
    }
