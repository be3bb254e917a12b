"""A probe run as a JSON document: everything that was measured and found, nothing truncated.

The shape is the public contract; `raydiag/schemas/probe.json` states it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from raydiag import __version__
from raydiag.model import (
    Coverage,
    Diagnosis,
    Evidence,
    Finding,
    HostUnread,
    NodeReport,
    ProbeResult,
    Severity,
    Snapshot,
    Unread,
)

SCHEMA = "raydiag.probe/1"

# Keys of `cluster` that are always there, null when the caller does not know them.
_CLUSTER = ("address", "session_name", "ray_version", "gcs_address", "deadline_s")
_ATOMS = frozenset((str, int, bool, type(None)))


def probe_document(
    snapshot: Snapshot, diagnosis: Diagnosis, cluster: Mapping[str, Any], generated_at: float
) -> dict[str, Any]:
    """The JSON document of `raydiag probe`, made of plain dicts, lists, strings and numbers.

    `cluster`: address (dashboard URL), session_name, ray_version, gcs_address, deadline_s, and
    whatever else the caller knows. `generated_at` is Unix seconds. NaN and infinity become null.
    """
    return {
        "schema": SCHEMA,
        "raydiag_version": __version__,
        "generated_at": rfc3339(generated_at),
        "cluster": _plain({**dict.fromkeys(_CLUSTER), **cluster}),
        **findings_and_coverage(diagnosis),
        "nodes": [_node(report) for report in snapshot.nodes],
    }


def findings_and_coverage(diagnosis: Diagnosis) -> dict[str, Any]:
    """The parts that every document has."""
    return {
        "findings": [_finding(finding) for finding in diagnosis.findings],
        "chains": chain_indices(diagnosis),
        "coverage": _coverage(diagnosis.coverage),
    }


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The document as JSON text: one finding, one node per line, so that grep and diff are of use.

    Compact and streamed, because a thousand nodes are tens of megabytes; ASCII only.
    """
    yield "{\n"
    for index, (key, value) in enumerate(document.items()):
        yield f"{',' if index else ' '}{_json(key)}: "
        if isinstance(value, list) and value:
            for number, item in enumerate(value):
                yield f"{',' if number else '['}\n  {_json(item)}"
            yield "\n ]\n"
        else:
            yield f"{_json(value)}\n"
    yield "}\n"


def chain_indices(diagnosis: Diagnosis) -> list[list[int]]:
    """The chains as positions in `diagnosis.findings`, root first.

    Raises ValueError for a chain with a finding that is not in `findings`.
    """
    # By identity first: comparing thousands of findings field by field would be quadratic.
    position = {id(finding): index for index, finding in enumerate(diagnosis.findings)}

    def index(finding: Finding) -> int:
        found = position.get(id(finding))
        return diagnosis.findings.index(finding) if found is None else found

    return [[index(finding) for finding in chain.findings] for chain in diagnosis.chains]


def rfc3339(time_s: float) -> str:
    """Unix seconds as `2026-11-20T03:12:07Z`. Raises ValueError outside the years 1 to 9999."""
    try:
        moment = datetime.fromtimestamp(math.floor(time_s), timezone.utc)
    except (OverflowError, OSError) as error:
        raise ValueError(f"not a time: {time_s!r}") from error
    return moment.replace(tzinfo=None).isoformat() + "Z"


def severity_of(finding: Finding) -> Severity:
    """The finding's severity; one that nobody rated counts as a warning, never as harmless."""
    return finding.severity or Severity.WARNING


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "class": finding.failure_class,
        "severity": severity_of(finding).value,
        "title": finding.title,
        "host": finding.host,
        "gpu": finding.gpu,
        "device": finding.device,
        "pid": finding.pid,
        "task": finding.task,
        "onset": _number(finding.onset),
        "confidence": finding.confidence.value,
        "evidence": [_evidence(item) for item in finding.evidence],
        "explanation": finding.explanation,
        "next_steps": list(finding.next_steps),
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    return {
        "source": item.source,
        "text": item.text,
        "value": _number(item.value),
        "time": _number(item.time),
    }


def _coverage(coverage: Coverage) -> dict[str, Any]:
    window = coverage.window
    return {
        "nodes": {
            "asked": coverage.asked,
            "answered": coverage.answered,
            "blind": [{"host": item.host, "reason": item.reason} for item in coverage.blind],
        },
        "unread": [{"host": item.host, **_unread(item)} for item in coverage.unread],
        "window": {"start": _number(window.start), "end": _number(window.end)} if window else None,
    }


def _unread(item: Unread | HostUnread) -> dict[str, Any]:
    return {"source": item.source, "status": item.status.value, "reason": item.reason}


def _node(report: NodeReport) -> dict[str, Any]:
    return {
        "node_id": report.node.node_id,
        "host": report.node.host,
        "address": report.node.address,
        "status": report.status.value,
        "reason": report.reason,
        "duration_s": _number(report.duration_s),
        "collected_at": _number(report.collected_at),
        "cpu_s": _number(report.cpu_s),
        "pid": report.pid,
        "clock_offset_s": _plain(report.clock_offset_s),
        "sandbox": _plain(report.sandbox),
        "stuck": [_plain(reader) for reader in report.stuck],
        "probes": {name: _result(result) for name, result in report.probes.items()},
    }


def _result(result: ProbeResult) -> dict[str, Any]:
    return {
        "status": result.status.value,
        "duration_s": _number(result.duration_s),
        "reason": result.reason,
        "unread": [_unread(item) for item in result.unread],
        "records": [_plain(record) for record in result.records],
        "later": [_plain(record) for record in result.later],
        "interval_s": _number(result.interval_s),
    }


def _plain(value: Any) -> Any:
    """`value` in JSON's own types: dataclasses as objects, enums as their values."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if is_dataclass(value):
        # A copied instance dict shares its keys with all others of the class: a third of the
        # memory of a new dict, and there are hundreds of thousands.
        data = vars(value).copy()
        for name, item in data.items():
            kind = type(item)
            if kind not in _ATOMS and not (kind is float and math.isfinite(item)):
                data[name] = _plain(item)
        return data
    return [_plain(item) for item in value]
