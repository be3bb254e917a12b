"""The state of a node's exporter, and what is wrong with plugin files, as reports and as JSON.

`raydiag/schemas/exporter.json` states the shape.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from raydiag.exporter.check import CheckedPlugin
from raydiag.exporter.findings import MOST_RESTARTS, PluginHealth
from raydiag.exporter.status import ExaminedExporter
from raydiag.model import Coverage, Diagnosis
from raydiag.render import document
from raydiag.render.coverage import not_read
from raydiag.render.document import picked
from raydiag.render.formats import count, counted, utc
from raydiag.render.groups import Group
from raydiag.render.report import Paragraph, Report, Section, Tone, Toned, bullets

_KINDS = {
    "raydiag": "raydiag's exporter",
    "shell": "the shell exporter",
    "other": "an exporter that is neither raydiag's nor the shell one",
    "none": "no exporter",
}
_NOTHING_JUDGED = Diagnosis((), (), Coverage(0, 0))
_LAST_RESTARTS = 5


def status_report(examined: ExaminedExporter, verbose: bool) -> Report:
    """What it is, what is wrong, what the plugins do; plugins without trouble if `verbose`."""
    plugins = [p for p in examined.served.plugins if verbose or _is_in_trouble(p)]
    sections = [
        Section(blocks=[Paragraph(_summary(examined), strong=True), bullets(_facts(examined))])
    ]
    sections += [Group([finding]).section(verbose=True) for finding in examined.diagnosis.findings]
    sections.append(Section("Plugins", [bullets(map(_health, plugins))]))
    sections.append(not_read(examined.diagnosis.coverage.unread))
    return Report(sections)


def check_report(checked: Sequence[CheckedPlugin]) -> Report:
    """A section for each file: passes or not, why not, and what it exports."""
    return Report(list(map(_checked, checked)))


def _summary(examined: ExaminedExporter) -> str:
    exporter = f"{examined.host}: {_KINDS[examined.kind]} on port {examined.port}"
    if examined.kind == "none":
        return f"{exporter}."
    if examined.kind == "other" and examined.answer != "ok":
        return f"{examined.host}: what listens on port {examined.port} does not answer."
    if examined.answer != "ok":
        return f"{exporter} does not answer."
    if examined.fresh is None:
        return f"{exporter} answers, without a hardware metric that shows how fresh it is."
    if examined.fresh:
        return f"{exporter} is alive, and its values change."
    return f"{exporter} answers, but no value changed within {examined.waited_s:.0f} s."


def _facts(examined: ExaminedExporter) -> Iterator[str]:
    if examined.compared:
        series = f"{examined.moved} of {examined.compared} hardware series"
        yield f"{series} changed within {examined.waited_s:.1f} s"
    yield from _cycle(examined)
    if examined.served.is_there:
        yield _served(examined)
    if examined.now.malformed:
        yield f"Prometheus would reject the page: {examined.now.malformed}"
    yield from _plugin_record(examined)
    if examined.now.watched.log:
        yield _restarts(examined)


def _cycle(examined: ExaminedExporter) -> Iterator[str]:
    record = examined.now.record
    if record is not None and record.scrape_duration_s is not None:
        yield f"the last cycle took {record.scrape_duration_s:.3f} s"
    if record is not None and record.data_age_s is not None:
        yield f"what is served was written {record.data_age_s:.1f} s ago"


def _served(examined: ExaminedExporter) -> str:
    served = examined.served
    cycle = f"version {served.version or '?'}, a cycle every {served.interval_s or 0:g} s"
    page = f"page {served.page_age_s or 0:.1f} s old, {count(len(served.plugins), 'plugin')}"
    return f"{cycle}, {page}, {count(served.abandoned_readers, 'abandoned reader')}"


def _plugin_record(examined: ExaminedExporter) -> Iterator[str]:
    record = examined.now.record
    if record is not None and record.timed_out:
        yield f"timeouts of plugins since its start: {counted(record.timed_out)}"
    if record is not None and record.skipped:
        yield f"plugins that are no longer run: {', '.join(record.skipped)}"


def _restarts(examined: ExaminedExporter) -> str:
    watched = examined.now.watched
    if not watched.restarts:
        # A log without any says neither that there is a watchdog nor that there is none.
        return f"no restart in {watched.log}"
    used = f"watchdog: {watched.number} of {MOST_RESTARTS} restarts used"
    return f"{used}, the last at {utc(watched.restarts[-1][0])} ({watched.log})"


def _is_in_trouble(plugin: PluginHealth) -> bool:
    return plugin.up is False or plugin.outdated or plugin.disabled or bool(plugin.timeouts)


def _health(plugin: PluginHealth) -> str:
    """`gpu_metrics: up, 48 series, 2 timeouts`."""
    return f"{plugin.name}: {', '.join(_health_facts(plugin))}"


def _health_facts(plugin: PluginHealth) -> Iterator[str]:
    yield {True: "up", False: "failing", None: "not run yet"}[plugin.up]
    if plugin.disabled:
        yield "disabled by itself (exit 99)"
    if plugin.outdated:
        yield "new version is broken, the last good one runs"
    yield f"{plugin.series} series"
    if plugin.timeouts:
        yield count(plugin.timeouts, "timeout")
    if plugin.failures:
        yield count(plugin.failures, "failure")
    if plugin.replay_age_s is not None:
        yield f"repeats values that are {plugin.replay_age_s:.0f} s old"
    if plugin.last_success:
        yield f"last success {utc(plugin.last_success)}"


def _checked(plugin: CheckedPlugin) -> Section:
    label = Toned("PASSES", Tone.GOOD) if plugin.passes else Toned("FAILS", Tone.BAD)
    remarks = list(map("Problem: {}".format, plugin.problems))
    remarks += map("Note: {}".format, plugin.warnings)
    metrics = []
    for metric in plugin.metrics:
        labels = ", ".join(metric.labels)
        metrics.append(f"{metric.name} {metric.type} ({labels}): {metric.series}")
    facts = [", ".join(_file_facts(plugin))]
    return Section(plugin.path, [bullets(remarks), bullets(metrics)], label=label, facts=facts)


def _file_facts(plugin: CheckedPlugin) -> Iterator[str]:
    yield f"{plugin.kind} plugin" if plugin.kind else "no plugin"
    if plugin.digest:
        yield f"sha256 {plugin.digest[:12]}"
        yield count(plugin.size_bytes, "byte")
    if plugin.was_run and plugin.duration_s is not None:
        yield f"ran for {plugin.duration_s:.2f} s"
    elif plugin.passes:
        yield "not run"
    if plugin.not_here:
        yield "asks not to be run on this node (exit status 99)"


# ---- JSON


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
        "restarts": _restarts_object(examined),
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


def _restarts_object(examined: ExaminedExporter) -> dict[str, Any]:
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
