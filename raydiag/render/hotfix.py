"""What a hotfix would do, did, or left: as text, Markdown and JSON; equal hosts folded together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydiag import __version__
from raydiag.render import document as documents
from raydiag.render.escape import fenced, terminal
from raydiag.render.layout import GREEN, RED, YELLOW, ReportPage, count, hosts, utc

SCHEMA = "raydiag.hotfix/1"

_COLOURS = {
    "verified": GREEN,
    "planned": GREEN,
    "change": "",
    "same": GREEN,
    "refused": YELLOW,
    "rolled back": YELLOW,
    "untouched": "",
}
_HASH = 12  # characters of one that are shown
_INDENT, _DEEPER = "  ", "      "
_MOST_PROCESS_LINES = 16


def json_report(document: Mapping[str, Any], generated_at: float) -> Iterator[str]:
    """The document as JSON text, one host a line; see `raydiag/schemas/hotfix.json`."""
    head = {
        "schema": SCHEMA,
        "raydiag_version": __version__,
        "generated_at": documents.rfc3339(generated_at),
    }
    return documents.lines({**head, **document})


def markdown_report(document: Mapping[str, Any]) -> str:
    """The text report, to paste into a ticket."""
    return f"{fenced(text_report(document, False, 100, False).splitlines())}\n"


def text_report(document: Mapping[str, Any], colour: bool, width: int, plan_shown: bool) -> str:
    """The report for people; `plan_shown`: what was planned stands above it already."""
    page = ReportPage(max(width, 40), colour)
    if document["command"] == "status":
        blocks = [_rollout(rollout, page) for rollout in document["rollouts"]]
        blocks = blocks or [["No rollout is on record."]]
    else:
        plan_shown = plan_shown or document["command"] == "rollback"
        blocks = [_summary(document, page)]
        if not plan_shown:
            blocks += [_what(document, page)]
        blocks += [_hosts(document, page, plan_shown), _events(document, page)]
    blocks.append(_blind(document, page))
    text = "\n\n".join("\n".join(block) for block in blocks if block)
    return f"\n{text}\n" if plan_shown and document["command"] == "apply" else f"{text}\n"


def _summary(document: Mapping[str, Any], page: ReportPage) -> list[str]:
    outcome, name = str(document["outcome"]), document["rollout"]
    what = f"Rollout {name}: " if name else "Plan: " if document["command"] == "plan" else ""
    changing = [host for host in document["hosts"] if host["state"] == "change"]
    words = {
        "planned": f"{count(len(changing), 'host')} to change; nothing has been changed yet.",
        "verified": f"live and verified on {count(len(changing), 'host')}.",
        "nothing to do": "nothing to do.",
        "refused": "refused, nothing was changed.",
        "rolled back": "rolled back: every host has its old files again.",
        "incomplete": "NOT rolled back everywhere: see the hosts below.",
    }
    text = what + words.get(outcome, f"{outcome}.")
    text = text[0].upper() + text[1:]
    lines = page.wrap(page.paint(terminal(text), _COLOURS.get(outcome, RED)))
    if document["reason"]:
        lines += page.wrap(f"why: {terminal(document['reason'])}", _INDENT, _DEEPER)
    if outcome == "incomplete":
        hint = f"when these hosts answer again, or are mended: raydiag hotfix rollback {name}"
        lines += page.wrap(terminal(hint), _INDENT, _DEEPER)
    return lines


def _what(document: Mapping[str, Any], page: ReportPage) -> list[str]:
    lines = []
    for file in document["files"]:
        text = f"{file['name']}  sha256 {file['sha256'][:_HASH]}  {file['size_bytes']} bytes"
        lines += page.wrap(terminal(text), _INDENT, _DEEPER)
    if document["canary"]:
        lines += page.wrap(f"canary {terminal(document['canary'])}", _INDENT, _DEEPER)
        batches = [hosts(batch) for batch in document["batches"]]
        lines += page.wrap(f"batches: {' | '.join(batches)}", _INDENT, _DEEPER)
    for place in document["directories"]:
        written = f", written once, by {place['writer']}" if place["writer"] else ""
        text = f"{place['path']} ({place['source']}) is one directory of {hosts(place['hosts'])}"
        lines += page.wrap(terminal(text + written), _INDENT, _DEEPER)
    return lines


def _hosts(document: Mapping[str, Any], page: ReportPage, plan_shown: bool) -> list[str]:
    """Hosts that are alike stand in one row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for host in document["hosts"]:
        rows.setdefault(_row(host, plan_shown), []).append(host["host"])
    lines = []
    for (state, *details), names in rows.items():
        shown = page.paint(terminal(state), _COLOURS.get(state, RED))
        lines += page.wrap(f"{hosts(names)}  {shown}", "", _INDENT)
        for detail in details:
            lines += page.wrap(terminal(detail), _INDENT, _DEEPER)
    if not plan_shown:
        lines += _processes(document, page)
    return lines


def _row(host: Mapping[str, Any], plan_shown: bool) -> tuple[str, ...]:
    details = [] if plan_shown else [_change(change) for change in host["changes"]]
    details += host["reasons"]
    details += [host["outcome_reason"]] if host["outcome_reason"] else []
    details += host["notes"]
    if host["driver_fault"]:
        details.append(f"shows the GPU driver fault: {host['driver_fault']}")
    return (host["outcome"] or host["state"], *details)


def _change(change: Mapping[str, Any]) -> str:
    old = change["old_sha256"][:_HASH] or "(new)"
    restart = ", exporter restarted" if change["restart"] else ""
    return f"{change['path']}  {old} -> {change['new_sha256'][:_HASH]}{restart}"


def _processes(document: Mapping[str, Any], page: ReportPage) -> list[str]:
    """What a restart would end, host by host."""
    ending = [host for host in document["hosts"] if host["ends"]]
    lines = []
    for host in ending[:_MOST_PROCESS_LINES]:
        ends = ", ".join(f"{one['role']} {one['pid']}" for one in host["ends"])
        left = f"; restarts {host['restarts']}, {host['restarts_left']} left"
        lines += page.wrap(terminal(f"{host['host']} ends {ends}{left}"), _INDENT, _DEEPER)
    if ending[_MOST_PROCESS_LINES:]:
        more = len(ending) - _MOST_PROCESS_LINES
        lines.append(f"{_INDENT}and on {count(more, 'more host')}: see --format json")
    return lines


def _events(document: Mapping[str, Any], page: ReportPage) -> list[str]:
    lines = []
    for event in document["events"]:
        lines += page.wrap(f"{utc(event['at'])}  {terminal(event['text'])}", _INDENT, _DEEPER)
    return lines


def _rollout(rollout: Mapping[str, Any], page: ReportPage) -> list[str]:
    """One rollout of `status`."""
    state = str(rollout["state"])
    began = utc(rollout["began_at"]) if rollout["began_at"] else "at an unknown time"
    text = f"Rollout {rollout['rollout']}: {state}. Began {began}, by {rollout['who'] or '?'}."
    lines = page.wrap(page.paint(terminal(text), _COLOURS.get(state, RED)))
    if rollout["reason"]:
        lines += page.wrap(f"why: {terminal(rollout['reason'])}", _INDENT, _DEEPER)
    if state in ("its driver died", "incomplete"):
        hint = f"undo it: raydiag hotfix rollback {rollout['rollout']}"
        lines += page.wrap(terminal(hint), _INDENT, _DEEPER)
    rows: dict[tuple[str, ...], list[str]] = {}
    for host in rollout["hosts"]:
        rows.setdefault(_content(host), []).append(host["host"])
    for (content, *details), names in rows.items():
        lines += page.wrap(f"{hosts(names)}  {terminal(content)}", _INDENT, _DEEPER)
        for detail in details:
            lines += page.wrap(terminal(detail), _DEEPER, _DEEPER)
    return lines


def _content(host: Mapping[str, Any]) -> tuple[str, ...]:
    details = [
        f"{one['path']}: {one['content']} ({one['sha256'][:_HASH]})" for one in host["files"]
    ]
    details += [f"not seen: {host['unseen']}"] if host["unseen"] else []
    details += [f"ended there: {host['ended']}"] if host["ended"] else []
    details += [host["outcome_reason"]] if host["outcome_reason"] else []
    return (f"content {host['content']}", *details, *host["notes"])


def _blind(document: Mapping[str, Any], page: ReportPage) -> list[str]:
    nodes = document["coverage"]["nodes"]
    lines = []
    for blind in nodes["blind"]:
        text = f"not seen: {blind['host']}: {blind['reason']}"
        lines += page.wrap(page.paint(terminal(text), YELLOW), "", _INDENT)
    return lines
