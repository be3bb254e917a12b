"""An investigation of GPU driver faults as JSON; `schemas/driver-fault.json` states its shape."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from raydiag.explain.driver_fault.types import (
    InvestigatedNode,
    Investigation,
    KernelStack,
    NodeVerdict,
    Onset,
)
from raydiag.model import Diagnosis
from raydiag.render import document
from raydiag.render.admin_report import admin_sections, others
from raydiag.render.driver_fault import headline, shown_nodes
from raydiag.render.markdown import markdown_text
from raydiag.render.report import Report


def driver_fault_document(investigation: Investigation, generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag driver-fault`; `generated_at` is Unix seconds."""
    diagnosis = Diagnosis(investigation.findings, (), investigation.coverage)
    reports = []
    for node in shown_nodes(investigation):
        sections = list(admin_sections(node, investigation))
        reports.append({"host": node.host, "markdown": markdown_text(Report(sections))})
    return {
        **document.head("driver-fault", generated_at),
        **document.findings_and_coverage(diagnosis),
        **investigation_object(investigation),
        "admin_reports": reports,
    }


def investigation_object(investigation: Investigation) -> dict[str, Any]:
    """What was found on each node, and what was asked."""
    counts = {verdict.value: len(investigation.of(verdict)) for verdict in NodeVerdict}
    return {
        "summary": headline(investigation),
        "verdicts": counts,
        "metrics": {
            "origin": investigation.metrics or None,
            "reason": investigation.no_metrics or None,
        },
        "job": investigation.job or None,
        "force_ras": investigation.force_ras,
        "nodes": node_objects(investigation.nodes, investigation),
    }


def node_objects(
    nodes: Iterable[InvestigatedNode], investigation: Investigation
) -> list[dict[str, Any]]:
    """All that is known of each."""
    return list(map(partial(_node, investigation=investigation), nodes))


def _node(node: InvestigatedNode, investigation: Investigation) -> dict[str, Any]:
    return {
        "host": node.host,
        "address": node.address or None,
        "verdict": node.verdict.value,
        "reason": node.reason,
        "classes": list(node.classes),
        "signs": document.picked_from_each(node.signs, "kind", "text", "source", "time"),
        "kernel": node.versions.get("kernel"),
        "amdgpu": node.versions.get("amdgpu"),
        "nvidia": node.versions.get("nvidia"),
        "dmesg_gpu_errors": {
            "value": node.errors_counter,
            "source": node.errors_counter_source or None,
        },
        "stuck_tasks": {
            **document.picked(node.stuck, "count", "channels", "readers", "per_hour"),
            **document.picked(node.stuck, "first_start", "last_start", "pid_max", "pids_in_use"),
            **document.picked(node.stuck, "hours_left"),
        },
        "onset": _onset(node.onset),
        "stacks": list(map(_stack, node.stacks)),
        "events": list(map(_event, node.events)),
        "gpus": list(map(_gpu, node.gpus)),
        "others": others(node, investigation),
        "unread": list(node.unread),
        "dated": node.dated,
    }


def _onset(onset: Onset) -> dict[str, Any]:
    return {
        "time": onset.first,
        "not_later_than": onset.is_bound,
        "kernel": onset.kernel,
        "kernel_uncertainty_s": onset.kernel_uncertainty_s,
        "kernel_not_later_than": onset.kernel_not_later_than,
        "metric": onset.metric,
        "metric_not_later_than": onset.metric_not_later_than,
    }


def _stack(stack: KernelStack) -> dict[str, Any]:
    lines = document.picked_from_each(stack.lines, "seq", "level", "text", time="time_s")
    return {"symbol": stack.symbol or None, "count": stack.count, "lines": lines}


def _event(event: Any) -> dict[str, Any]:
    names = ("device", "gpu", "count", "first", "last", "uncertainty_s", "not_later_than")
    texts = ("severity", "meaning", "next_step", "text")
    return {
        "event": event.event,
        "class": event.failure_class,
        **document.picked(event, *names, *texts),
    }


def _gpu(gpu: Any) -> dict[str, Any]:
    errors = {
        block: dict(zip(("ue", "ce", "deferred"), counts, strict=True))
        for block, counts in gpu.errors.items()
    }
    pages = None
    if gpu.bad_pages is not None:
        pages = dict(zip(("retired", "pending", "failed"), gpu.bad_pages, strict=True))
    return {
        **document.picked(gpu, "gpu", "address", "driver", "resets"),
        "uuid": gpu.uuid or None,
        "rank": gpu.rank or None,
        "errors": errors,
        "bad_pages": pages,
    }
