"""A kernel log's events as JSON; `raydiag/schemas/kmsg.json` states the shape."""

from __future__ import annotations

from typing import Any

from raydiag.kmsg import ExaminedKernelLog, LoggedEvent
from raydiag.render import document


def kmsg_document(examined: ExaminedKernelLog, generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag kmsg`."""
    return {
        **document.head("kmsg", generated_at),
        "events": [_event(event) for event in examined.events],
        **document.findings_and_coverage(examined.diagnosis),
    }


def _event(event: LoggedEvent) -> dict[str, Any]:
    fields = {**vars(event), "severity": event.severity.value}
    return {"class": fields.pop("event_class"), **fields}
