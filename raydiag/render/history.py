"""What the resident agent remembers, as a report and as JSON; `raydiag/schemas/history.json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from raydiag.model import Coverage, Diagnosis
from raydiag.render import document
from raydiag.render.formats import count, span, utc
from raydiag.render.report import Paragraph, Quote, Report, Section, Tone, table

_LINES = 20  # of the kernel log of one node, in the report; JSON has all of them
_NOTHING = "No resident agent is up, so nothing is remembered: `raydiag agent up --every 60s`."
_LINE_FIELDS = ("host", "address", "time", "level", "facility", "text")
_FOUND_FIELDS = ("class", "host", "gpu", "device", "severity")
_FOUND_NUMBERS = ("first_seen", "last_seen", "times", "jobs")

_Json = Mapping[str, Any]


def history_document(seen: _Json | None, generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag history`; `seen` as the agent tells it, None without one."""
    seen = seen or {"nodes": (), "found": (), "kernel_log": ()}
    lines = [dict(zip(_LINE_FIELDS, line, strict=True)) for line in seen["kernel_log"]]
    return {
        **document.head("history", generated_at),
        **document.findings_and_coverage(Diagnosis((), (), Coverage(0, 0))),
        "nodes": list(seen["nodes"]),
        "found": list(map(_found, seen["found"])),
        "kernel_log": lines,
    }


def _found(known: _Json) -> dict[str, Any]:
    """One finding; a scope that it does not have is null."""
    scope = {name: known[name] or None for name in _FOUND_FIELDS}
    gpu = scope["gpu"]
    numbers = {name: known[name] for name in _FOUND_NUMBERS}
    return {**scope, "gpu": None if gpu is None else int(gpu), **numbers}


def history_report(seen: _Json | None, node: str | None, now: float) -> Report:
    """The report of `raydiag history`; the end of the kernel log only for one node."""
    if seen is None:
        return Report([Section(blocks=[Paragraph(_NOTHING)], tone=Tone.DOUBTFUL)])
    found = sorted(seen["found"], key=lambda known: -known["last_seen"])
    summary = (
        f"{count(len(seen['nodes']), 'node')} seen, {count(len(found), 'finding')} remembered."
    )
    sections = [Section(blocks=[Paragraph(summary, strong=True)])]
    if found:
        header = ("last seen", "class", "where", "times", "since", "jobs")
        sections.append(Section("Found", [table(header, _found_rows(found))]))
    of_nodes = ("node", "address", "last seen", "asked", "silent since")
    sections.append(Section("Nodes", [table(of_nodes, _node_rows(seen["nodes"], now))]))
    if node is not None:
        lines = [f"{utc(line[2])}  {line[5]}" for line in seen["kernel_log"][-_LINES:]]
        sections.append(Section("End of its kernel log", [Quote(lines or ["(nothing)"])]))
    return Report(sections)


def _found_rows(found: Iterable[_Json]) -> Iterator[tuple[str, ...]]:
    for known in found:
        part = f" gpu {known['gpu']}" if known["gpu"] else f" {known['device']}".rstrip()
        where = f"{known['host'] or 'the cluster'}{part}"
        jobs = ", ".join(known["jobs"][-3:]) or "-"
        yield (
            utc(known["last_seen"]),
            known["class"],
            where,
            str(known["times"]),
            utc(known["first_seen"]),
            jobs,
        )


def _node_rows(nodes: Iterable[_Json], now: float) -> Iterator[tuple[str, ...]]:
    for node in nodes:
        silent = f"{count(node['silent'], 'round')}" if node["silent"] else "-"
        age = f"{span(now - node['last_seen'])} ago"
        yield node["host"], node["address"], age, str(node["asked"]), silent
