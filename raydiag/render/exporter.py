"""The state of a node's exporter, and what is wrong with plugin files: text, Markdown, JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from raydiag import __version__
from raydiag.exporter.check import CheckedPlugin
from raydiag.exporter.findings import MOST_RESTARTS, PluginHealth
from raydiag.exporter.status import ExaminedExporter
from raydiag.model import Coverage, Diagnosis, Finding
from raydiag.render import document
from raydiag.render.document import severity_of
from raydiag.render.escape import fenced, markdown, terminal
from raydiag.render.layout import COLOURS, GREEN, RED, ReportPage, count, utc

SCHEMA = "raydiag.exporter/1"
_NOTHING = Diagnosis((), (), Coverage(0, 0))
_KINDS = {
    "raydiag": "raydiag's exporter",
    "shell": "the shell exporter",
    "other": "an exporter that is neither raydiag's nor the shell one",
    "none": "no exporter",
}


# ---- status


def status_document(examined: ExaminedExporter, generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag exporter status`; `raydiag/schemas/exporter.json` states it."""
    now, served, watched = examined.now, examined.served, examined.now.watched
    record = now.record
    return {
        **_head("status", generated_at),
        "host": examined.host,
        "port": examined.port,
        "exporter": examined.kind,
        "answer": examined.answer,
        "reason": record.reason if record else "",
        "malformed": now.malformed,
        "fresh": examined.fresh,
        "moved": examined.moved,
        "compared": examined.compared,
        "waited_s": round(examined.waited_s, 3),
        "samples": len(now.lines),
        "scrape_duration_s": record.scrape_duration_s if record else None,
        "file_age_s": record.file_age_s if record else None,
        "version": served.version or None,
        "interval_s": served.interval_s,
        "page_age_s": served.page_age_s,
        "cycle_time": served.cycle_time,
        "abandoned_readers": served.abandoned_readers if served.is_there else None,
        "plugins": [asdict(one) for one in served.plugins],
        "timed_out": dict(record.timed_out) if record else {},
        "skipped": list(record.skipped) if record else [],
        "processes": [asdict(one) for one in now.processes],
        "restarts": {
            "number": watched.number if watched.log else None,
            "left": watched.left,
            "gave_up": watched.gave_up,
            "log": watched.log or None,
            "last": [
                {"time": time, "exit_code": int(code), "number": int(number)}
                for time, code, number in watched.restarts[-5:]
            ],
        },
        **document.findings_and_coverage(examined.diagnosis),
    }


def status_text(
    examined: ExaminedExporter, colour: bool, width: int, verbose: bool
) -> Iterator[str]:
    """The report for people: what it is, what is wrong, what the plugins do."""
    page = ReportPage(max(width, 40), colour)
    yield "".join(f"{line}\n" for line in page.wrap(terminal(_summary(examined))))
    for fact in _facts(examined):
        yield "".join(f"{line}\n" for line in page.wrap(terminal(fact), "  ", "    "))
    for finding in examined.diagnosis.findings:
        yield "\n" + "\n".join(_block(finding, page)) + "\n"
    plugins = [one for one in examined.served.plugins if verbose or _trouble(one)]
    if plugins:
        yield "\nPLUGINS\n"
        for plugin in plugins:
            yield "".join(f"{line}\n" for line in page.wrap(terminal(_told(plugin)), "  ", "    "))
    for item in examined.diagnosis.coverage.unread:
        text = f"Not read: {item.source}: {item.reason}"
        yield "\n" + "\n".join(page.wrap(terminal(text), "", "  ")) + "\n"


def status_markdown(examined: ExaminedExporter, verbose: bool) -> Iterator[str]:
    """The same to paste into a ticket."""
    yield f"**{markdown(_summary(examined))}**\n\n"
    yield from (f"- {markdown(fact)}\n" for fact in _facts(examined))
    for finding in examined.diagnosis.findings:
        title = f"{severity_of(finding).value.upper()} {finding.failure_class}: {finding.title}"
        yield f"\n## {markdown(title)}\n\n"
        yield fenced([f"{item.source}: {item.text}" for item in finding.evidence]) + "\n"
        yield f"\n{markdown(finding.explanation)}\n"
        yield from (f"\n{markdown(f'Next: {step}')}\n" for step in finding.next_steps[:1])
    plugins = [one for one in examined.served.plugins if verbose or _trouble(one)]
    if plugins:
        yield "\n## Plugins\n\n"
        yield from (f"- {markdown(_told(plugin))}\n" for plugin in plugins)
    if examined.diagnosis.coverage.unread:
        yield "\n## Not read\n\n"
    for item in examined.diagnosis.coverage.unread:
        yield f"- {markdown(f'{item.source}: {item.reason}')}\n"


def _summary(examined: ExaminedExporter) -> str:
    what = f"{examined.host}: {_KINDS[examined.kind]} on port {examined.port}"
    if examined.kind == "none":
        return f"{what}."
    if examined.kind == "other" and examined.answer != "ok":
        return f"{examined.host}: what listens on port {examined.port} does not answer."
    if examined.answer != "ok":
        return f"{what} does not answer."
    if examined.fresh is None:
        return f"{what} answers, without a hardware metric to tell how fresh it is."
    if examined.fresh:
        return f"{what} is alive, and its values move."
    return f"{what} answers, but no value moved within {examined.waited_s:.0f} s."


def _facts(examined: ExaminedExporter) -> Iterator[str]:
    record, served, watched = examined.now.record, examined.served, examined.now.watched
    if examined.compared:
        yield (
            f"{examined.moved} of {examined.compared} hardware series "
            f"moved within {examined.waited_s:.1f} s"
        )
    if record is not None and record.scrape_duration_s is not None:
        yield f"the last cycle took {record.scrape_duration_s:.3f} s"
    if record is not None and record.data_age_s is not None:
        yield f"what is served was written {record.data_age_s:.1f} s ago"
    if served.is_there:
        yield (
            f"version {served.version or '?'}, a cycle each {served.interval_s or 0:g} s, page "
            f"{served.page_age_s or 0:.1f} s old, {count(len(served.plugins), 'plugin')}, "
            f"{count(served.abandoned_readers, 'abandoned reader')}"
        )
    if examined.now.malformed:
        yield f"Prometheus would stumble over the page: {examined.now.malformed}"
    if record is not None and record.timed_out:
        told = ", ".join(f"{name} {times}" for name, times in record.timed_out.items())
        yield f"plugins that timed out since its start: {told}"
    if record is not None and record.skipped:
        yield f"plugins that are not run any more: {', '.join(record.skipped)}"
    if watched.log:
        used = f"watchdog: {watched.number} of {MOST_RESTARTS} restarts used"
        last = f", the last at {utc(watched.restarts[-1][0])}" if watched.restarts else ""
        # A log without any says neither that there is a watchdog nor that there is none.
        yield f"{used}{last} ({watched.log})" if last else f"no restart in {watched.log}"


def _trouble(plugin: PluginHealth) -> bool:
    return plugin.up is False or plugin.outdated or plugin.disabled or bool(plugin.timeouts)


def _told(plugin: PluginHealth) -> str:
    parts = ["up" if plugin.up else "failing" if plugin.up is False else "not run yet"]
    parts += ["disabled by itself (exit 99)"] if plugin.disabled else []
    parts += ["new version is broken, the last good one runs"] if plugin.outdated else []
    parts += [f"{plugin.series} series"]
    parts += [count(plugin.timeouts, "timeout")] if plugin.timeouts else []
    parts += [count(plugin.failures, "failure")] if plugin.failures else []
    if plugin.replay_age_s is not None:
        parts.append(f"repeats values that are {plugin.replay_age_s:.0f} s old")
    if plugin.last_success:
        parts.append(f"last success {utc(plugin.last_success)}")
    return f"{plugin.name}: {', '.join(parts)}"


def _block(finding: Finding, page: ReportPage) -> list[str]:
    word = severity_of(finding).value.upper()
    heading = terminal(f"{word} {finding.failure_class}  {finding.title}")
    lines = page.wrap(heading, "", "    ")
    lines[0] = page.paint(word, COLOURS[severity_of(finding)]) + lines[0][len(word) :]
    for item in finding.evidence:
        lines += page.wrap(terminal(f"{item.source}: {item.text}"), "    ", "      ")
    lines += page.wrap(terminal(finding.explanation), "  ", "  ")
    for step in finding.next_steps[:1]:
        lines += page.wrap(terminal(f"Next: {step}"), "  ", "        ")
    return lines


# ---- check


def check_document(checked: Sequence[CheckedPlugin], generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag exporter check`."""
    files = [
        {"passes": one.passes, **asdict(one), "problems": list(one.problems)} for one in checked
    ]
    return {
        **_head("check", generated_at),
        "files": files,
        **document.findings_and_coverage(_NOTHING),
    }


def check_text(checked: Sequence[CheckedPlugin], colour: bool, width: int) -> Iterator[str]:
    """One block a file: passes or not, why not, and what it exports."""
    page = ReportPage(max(width, 40), colour)
    for index, one in enumerate(checked):
        word = "PASSES" if one.passes else "FAILS"
        lines = page.wrap(terminal(f"{word} {one.path}  {_what(one)}"), "", "    ")
        lines[0] = page.paint(word, GREEN if one.passes else RED) + lines[0][len(word) :]
        for label, texts in (("Problem", one.problems), ("Note", one.warnings)):
            for text in texts:
                lines += page.wrap(terminal(f"{label}: {text}"), "  ", "    ")
        for metric in one.metrics:
            text = f"{metric.name} {metric.type} ({', '.join(metric.labels)}): {metric.series}"
            lines += page.wrap(terminal(text), "    ", "      ")
        yield ("\n" if index else "") + "\n".join(lines) + "\n"


def check_markdown(checked: Sequence[CheckedPlugin]) -> Iterator[str]:
    """The same to paste into a ticket."""
    for one in checked:
        yield f"\n## {'Passes' if one.passes else 'Fails'}: {markdown(one.path)}\n\n"
        yield f"{markdown(_what(one))}\n\n"
        yield from (f"- **Problem**: {markdown(text)}\n" for text in one.problems)
        yield from (f"- Note: {markdown(text)}\n" for text in one.warnings)
        for metric in one.metrics:
            labels = ", ".join(metric.labels)
            yield f"- {markdown(f'{metric.name} {metric.type} ({labels}): {metric.series}')}\n"


def _what(one: CheckedPlugin) -> str:
    parts = [f"{one.kind} plugin" if one.kind else "no plugin"]
    if one.digest:
        parts.append(f"sha256 {one.digest[:12]}, {count(one.size_bytes, 'byte')}")
    if one.was_run and one.duration_s is not None:
        parts.append(f"ran for {one.duration_s:.2f} s")
    elif one.passes:
        parts.append("not run")
    if one.not_here:
        parts.append("asks not to be run on this node (exit status 99)")
    return ", ".join(parts)


def _head(report: str, generated_at: float) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "raydiag_version": __version__,
        "generated_at": document.rfc3339(generated_at),
        "report": report,
    }
