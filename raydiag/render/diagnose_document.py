"""The diagnosis of one job as JSON; `raydiag/schemas/diagnose.json` states its shape."""

from collections.abc import Iterable
from typing import Any

from raydiag.explain.job import ExaminedJob
from raydiag.explain.job.driver_fault import investigated
from raydiag.explain.job.ticket import asked_queries, playbook_reports
from raydiag.playbooks.observations import Report as PlaybookReport
from raydiag.playbooks.observations import RuledOut
from raydiag.render import document
from raydiag.render.document import picked, picked_from_each
from raydiag.render.driver_fault_document import node_objects
from raydiag.render.triage import job_object
from raydiag.timeline.queries import template_ids
from raydiag.tsdb.series import AskedQuery

_CLUSTER = ("address", "ssh", "session_name", "ray_version", "gcs_address")


def diagnose_document(examined: ExaminedJob, generated_at: float) -> dict[str, Any]:
    """The JSON object of `raydiag diagnose`."""
    head = document.head("diagnose", generated_at)
    common = document.findings_and_coverage(examined.explained.diagnosis)
    findings = common["findings"]
    return {
        **head,
        "verdict": _verdict(examined),
        "chains": [list(map(findings.__getitem__, chain)) for chain in common["chains"]],
        "ruled_out": ruled_out_objects(examined.explained.ruled_out, "why", "playbook"),
        "candidates": _candidates(examined),
        "log_only": examined.log_only or None,
        "no_log": examined.no_log or None,
        "cluster": _cluster(examined),
        "status": examined.case.status,
        "triage": _triage(examined, head["generated_at"]),
        "metrics": _metrics(examined),
        "playbooks": [_playbook(report, examined) for report in playbook_reports(examined)],
        "driver_faults": _driver_faults(examined),
        "notes": list(examined.notes),
        "findings": findings,
        "coverage": common["coverage"],
    }


def _driver_faults(examined: ExaminedJob) -> list[dict[str, Any]]:
    """Nodes whose GPU driver is at fault, as in the document of `driver-fault`."""
    investigation = investigated(examined)
    return node_objects(investigation.faulty_by_findings, investigation)


def ruled_out_objects(causes: Iterable[RuledOut], *fields: str) -> list[dict[str, Any]]:
    """Causes that the evidence speaks against."""
    return [{"class": cause.failure_class, **picked(cause, *fields)} for cause in causes]


def _candidates(examined: ExaminedJob) -> list[dict[str, Any]]:
    names = ("host", "speaks_for", "speaks_against")
    candidates = examined.explained.candidates
    return [{"class": each.failure_class, **picked(each, *names)} for each in candidates]


def query_object(query: AskedQuery) -> dict[str, Any]:
    """What was asked, over which time, and what came of it."""
    names = ("id", "promql", "start", "end")
    return {**picked(query, *names, step="step_s"), **picked(query, "status", "reason", "rows")}


def _triage(examined: ExaminedJob, generated_at: str) -> dict[str, Any] | None:
    if examined.no_log:
        return None
    return {"generated_at": generated_at, **job_object(examined.triage)}


def _verdict(examined: ExaminedJob) -> dict[str, Any]:
    verdict = examined.explained.verdict
    return {
        "class": verdict.failure_class,
        "hosts": list(verdict.hosts),
        "gpus": [{"host": host, "gpu": gpu} for host, gpu in verdict.gpus],
        "devices": [{"host": host, "device": device} for host, device in verdict.devices],
        **picked(verdict, "onset", "uncertainty_s", "recovered", "kill_time", "pattern"),
        **picked(verdict, "confidence", "summary"),
    }


def _cluster(examined: ExaminedJob) -> dict[str, Any] | None:
    """The live cluster and how its nodes answered; what they show is in the findings."""
    live = examined.nodes
    if live is None:
        return None
    nodes = []
    for report in live.snapshot.nodes:
        nodes.append({"host": report.node.host, **picked(report, "status", "reason")})
    cluster = {name: live.cluster.get(name) for name in _CLUSTER}
    return {**cluster, "job": live.job or None, "nodes": nodes}


def _metrics(examined: ExaminedJob) -> dict[str, Any] | None:
    metrics = examined.metrics
    if metrics is None:
        return None
    families = []
    for family in metrics.discovery.families:
        sizes = {"metrics": len(family.metrics), "hosts": len(family.hosts)}
        lags = picked(family, "resolution_s", "refresh_s", "lag_s")
        families.append({"prefix": family.prefix, **sizes, **lags})
    masks = metrics.context.masks
    return {
        "origin": metrics.origin,
        "identity": picked(metrics.identity, "belief", "reason"),
        "window": document.window(metrics.context.window),
        "hosts": [host.name for host in metrics.discovery.hosts],
        "missing": list(metrics.discovery.missing),
        "families": families,
        "masks": picked_from_each(masks, "kind", "start", "end", "host"),
        "queries": len(metrics.asked),
        "training": examined.training or "metrics",
    }


def _playbook(report: PlaybookReport, examined: ExaminedJob) -> dict[str, Any]:
    queries = []
    for query in asked_queries(examined):
        if not set(template_ids(query.id)).isdisjoint(report.queries):
            queries.append(query_object(query))
    names = ("row", "holds", "interpretation", "hosts", "gpu", "device", "value", "unit")
    return {
        "id": report.playbook,
        **picked(report, "title", "analysis", "verdict"),
        "window": document.window(report.window),
        "queries": queries,
        "rows": picked_from_each(report.rows, *names, query="query_id"),
        "exclude": picked_from_each(report.exclude, "host", "priority", "reason"),
        "block": list(report.block),
    }
