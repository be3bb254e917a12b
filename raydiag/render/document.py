"""A probe run as a JSON document: everything that was measured and found, nothing truncated.

The shape is the public contract; `raydiag/schemas/probe.json` states it.
"""

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from raydiag import __version__, model
from raydiag.model import Coverage, Diagnosis, Evidence, Finding, Severity, Window
from raydiag.render.secrets import masked_value

# Keys of `cluster` that are always there, null when the caller does not know them.
_CLUSTER = ("address", "session_name", "ray_version", "gcs_address", "deadline_s")
_ATOMS = frozenset((str, int, bool, type(None)))


def probe_document(
    snapshot: model.Snapshot, diagnosis: Diagnosis, cluster: Mapping[str, Any], generated_at: float
) -> dict[str, Any]:
    """The JSON document of `raydiag probe`, made of plain dicts, lists, strings and numbers.

    `cluster`: address (dashboard URL), session_name, ray_version, gcs_address, deadline_s, and
    whatever else the caller knows. `generated_at` is Unix seconds. NaN and infinity become null.
    """
    return {
        **head("probe", generated_at),
        "cluster": plain({**dict.fromkeys(_CLUSTER), **cluster}),
        **findings_and_coverage(diagnosis),
        "nodes": list(map(_node, snapshot.nodes)),
    }


def head(command: str, generated_at: float) -> dict[str, Any]:
    """What every document starts with; `generated_at` is Unix seconds."""
    return {
        "schema": f"raydiag.{command}/1",
        "raydiag_version": __version__,
        "generated_at": rfc3339(generated_at),
    }


def findings_and_coverage(diagnosis: Diagnosis) -> dict[str, Any]:
    """The parts that every document has."""
    return {
        "findings": list(map(_finding, diagnosis.findings)),
        "chains": chain_indices(diagnosis),
        "coverage": _coverage(diagnosis.coverage),
    }


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The document as JSON text: one finding, one node per line, so that grep and diff are of use.

    Compact and streamed, because a thousand nodes are tens of megabytes; ASCII only. Secrets are
    masked.
    """
    yield "{\n"
    for index, (key, value) in enumerate(document.items()):
        yield f"{',' if index else ' '}{_json(key)}: "
        if isinstance(value, list) and value:
            for number, entry in enumerate(value):
                yield f"{',' if number else '['}\n  {_json(masked_value(entry))}"
            yield "\n ]\n"
        else:
            yield f"{_json(masked_value(value))}\n"
    yield "}\n"


def one_line(document: Mapping[str, Any]) -> str:
    """The document as one line of JSON with its end, ASCII only. Secrets are masked."""
    return f"{_json(masked_value(document))}\n"


def error_line(message: str, exit_code: int) -> str:
    """Why a command could not run or what was wrong with its options, as one line of JSON."""
    error = {"message": message, "exit_code": exit_code}
    return f"{_json({**head('error', time.time()), 'error': error})}\n"


def chain_indices(diagnosis: Diagnosis) -> list[list[int]]:
    """The chains as positions in `diagnosis.findings`, root first.

    Raises ValueError for a chain with a finding that is not in `findings`.
    """
    # By identity first: comparing thousands of findings field by field would be quadratic.
    positions = {id(finding): index for index, finding in enumerate(diagnosis.findings)}

    def _position(finding: Finding) -> int:
        index = positions.get(id(finding))
        if index is None:
            return diagnosis.findings.index(finding)
        return index

    return [list(map(_position, chain.findings)) for chain in diagnosis.chains]


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


def finite(value: float | None) -> float | None:
    """The number; null for NaN and infinity, which JSON does not have."""
    if value is not None and math.isfinite(value):
        return value
    return None


def plain(value: Any) -> Any:
    """`value` in JSON's own types: dataclasses as objects, enums as their values."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is float:
        return finite(value)
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain(held) for key, held in value.items()}
    if is_dataclass(value):
        return _plain_record(value)
    return list(map(plain, value))


def picked(record: Any, *fields: str, **renamed: str) -> dict[str, Any]:
    """Fields of a record in JSON's own types; `key="field"` gives a field another name."""
    keys = {**dict(zip(fields, fields, strict=True)), **renamed}
    return {key: plain(getattr(record, field)) for key, field in keys.items()}


def picked_from_each(records: Iterable[Any], *fields: str, **renamed: str) -> list[dict[str, Any]]:
    """The same fields of several records."""
    return [picked(record, *fields, **renamed) for record in records]


def evidence(evidence: Evidence) -> dict[str, Any]:
    """One piece of evidence, as in every finding."""
    return picked(evidence, "source", "text", "value", "time")


def window(window: Window | None) -> dict[str, Any] | None:
    """Start and end in Unix seconds; null without a window."""
    return None if window is None else picked(window, "start", "end")


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _plain_record(record: Any) -> dict[str, Any]:
    # A copied instance dict shares its keys with all others of the class: a third of the memory
    # of a new dict, and there are hundreds of thousands.
    data: dict[str, Any] = vars(record).copy()
    for name, value in data.items():
        kind = type(value)
        if kind not in _ATOMS and not (kind is float and math.isfinite(value)):
            data[name] = plain(value)
    return data


def _finding(finding: Finding) -> dict[str, Any]:
    scope_and_onset = picked(finding, "host", "gpu", "device", "pid", "task", "onset")
    known = {} if finding.known is None else {"known": _known(finding.known)}
    return {
        "class": finding.failure_class,
        "severity": severity_of(finding).value,
        "title": finding.title,
        **scope_and_onset,
        "confidence": finding.confidence.value,
        "evidence": list(map(evidence, finding.evidence)),
        "explanation": finding.explanation,
        "next_steps": list(finding.next_steps),
        **known,
    }


def _known(known: model.KnownFinding) -> dict[str, Any]:
    """From earlier probes; `times` 0 is a new finding, of which nothing else is known."""
    if not known.times:
        return {"times": 0, "first_seen": None, "last_seen": None, "jobs": []}
    return picked(known, "times", "first_seen", "last_seen", "jobs")


def _coverage(coverage: Coverage) -> dict[str, Any]:
    blind = picked_from_each(coverage.blind, "host", "reason")
    unread = picked_from_each(coverage.unread, "host", "source", "status", "reason")
    return {
        "nodes": {"asked": coverage.asked, "answered": coverage.answered, "blind": blind},
        "unread": unread,
        "window": window(coverage.window),
    }


def _node(report: model.NodeReport) -> dict[str, Any]:
    return {
        **picked(report.node, "node_id", "host", "address"),
        **picked(report, "status", "reason", "duration_s", "collected_at", "cpu_s", "pid"),
        **picked(report, "clock_offset_s", "sandbox", "stuck"),
        "probes": {name: _result(result) for name, result in report.probes.items()},
    }


def _result(result: model.ProbeResult) -> dict[str, Any]:
    return {
        **picked(result, "status", "duration_s", "reason"),
        "unread": picked_from_each(result.unread, "source", "status", "reason"),
        **picked(result, "records", "later", "interval_s"),
    }
