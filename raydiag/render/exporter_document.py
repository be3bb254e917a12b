"""The state of a node's exporter, and checked plugin files, as JSON.

`raydiag/schemas/exporter.json` states the shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from raydiag.exporter.check import CheckedPlugin
from raydiag.exporter.status import ExaminedExporter
from raydiag.model import Coverage, Diagnosis
from raydiag.render import document
from raydiag.render.document import picked

_NOTHING_JUDGED = Diagnosis((), (), Coverage(0, 0))
_LAST_RESTARTS = 5


def status_document(examined: ExaminedExporter, generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag exporter status`."""
    now, served = examined.now, examined.served
    return {
        **document.head("exporter", generated_at),
        "report": "status",
        **picked(examined, "host", "port", exporter="kind", answer="answer"),
        "malformed": now.malformed,
        **picked(examined, "fresh", "moved", "compared"),
        "waited_s": round(examined.waited_s, 3),
        "samples": len(now.lines),
        **_record(examined),
        "version": served.version or None,
        **picked(served, "interval_s", "page_age_s", "cycle_time"),
        "abandoned_readers": served.abandoned_readers if served.is_there else None,
        "plugins": list(map(asdict, served.plugins)),
        "processes": list(map(asdict, now.processes)),
        "restarts": _restarts(examined),
        **document.findings_and_coverage(examined.diagnosis),
    }


def check_document(checked: Sequence[CheckedPlugin], generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag exporter check`."""
    files = []
    for plugin in checked:
        problems = list(plugin.problems)
        files.append({"passes": plugin.passes, **asdict(plugin), "problems": problems})
    return {
        **document.head("exporter", generated_at),
        "report": "check",
        "files": files,
        **document.findings_and_coverage(_NOTHING_JUDGED),
    }


def _record(examined: ExaminedExporter) -> dict[str, Any]:
    """What the exporter says of its own cycles; nothing where there is no record."""
    if examined.now.record is None:
        unknown = {"scrape_duration_s": None, "file_age_s": None}
        return {"reason": "", **unknown, "timed_out": {}, "skipped": []}
    names = ("reason", "scrape_duration_s", "file_age_s", "timed_out", "skipped")
    return picked(examined.now.record, *names)


def _restarts(examined: ExaminedExporter) -> dict[str, Any]:
    watched = examined.now.watched
    last = []
    for time_s, code, number in watched.restarts[-_LAST_RESTARTS:]:
        last.append({"time": time_s, "exit_code": int(code), "number": int(number)})
    return {
        "number": watched.number if watched.log else None,
        **picked(watched, "left", "gave_up"),
        "log": watched.log or None,
        "last": last,
    }
