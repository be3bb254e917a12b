"""An investigation of GPU driver faults: which nodes, and for each the report to send its admin."""

from collections.abc import Iterator
from operator import attrgetter

from raydiag import __version__
from raydiag.explain.driver_fault.signs import FAULT
from raydiag.explain.driver_fault.types import (
    FAULTY,
    InvestigatedNode,
    Investigation,
    NodeVerdict,
)
from raydiag.nodeset import fold
from raydiag.render.admin_report import admin_sections
from raydiag.render.formats import count, filled, grouped, joined, utc
from raydiag.render.report import (
    Paragraph,
    Report,
    Section,
    Tone,
    Toned,
    bullets,
    table,
)

_MOST_REPORTS = 8  # in one text; JSON has all
TONES = {
    NodeVerdict.CLEAN: Tone.GOOD,
    NodeVerdict.CONFIRMED: Tone.BAD,
    **dict.fromkeys((NodeVerdict.SUSPECT, NodeVerdict.UNREACHABLE), Tone.DOUBTFUL),
    NodeVerdict.NOT_CHECKED: Tone.DOUBTFUL,
}
_ORDER = (
    "Read in this order: kernel log, blocked tasks, the exporter's history, and then RAS files, on "
    "nodes without a sign of the fault."
)


def driver_fault_report(investigation: Investigation, generated_at: float, verbose: bool) -> Report:
    """The verdict on all nodes, then a report for the admin of each that is at fault."""
    sections = [Section(blocks=[Paragraph(headline(investigation), strong=True)])]
    sections.append(_nodes(investigation))
    sections.append(Section("How it was found", [bullets(_method(investigation))]))
    shown = shown_nodes(investigation)
    most = len(shown) if verbose else _MOST_REPORTS
    for node in shown[:most]:
        sections += admin_sections(node, investigation)
    if len(shown) > most:
        rest = fold(map(attrgetter("host"), shown[most:]))
        sections.append(Section("More reports", [Paragraph(f"{rest}: -v and JSON have them.")]))
    return Report(sections, joined([f"raydiag {__version__}", utc(generated_at)]))


def shown_nodes(investigation: Investigation) -> list[InvestigatedNode]:
    """Those with a report: the faulty ones, then others that were asked for by name."""
    shown = investigation.faulty
    for node in investigation.nodes:
        if node.host in investigation.named and node.verdict not in FAULTY:
            shown.append(node)
    return shown


def headline(investigation: Investigation) -> str:
    """One sentence on the whole cluster; what was not seen is said, and never clean."""
    total = count(len(investigation.nodes), "node")
    if not investigation.nodes:
        return "No node was asked and no series were read, so nothing is known."
    numbers: list[str] = []
    for verdict in NodeVerdict:
        nodes = investigation.of(verdict)
        if nodes:
            numbers.append(f"{len(nodes)} {verdict.value}")
    faulty = investigation.faulty
    start = "No GPU driver fault found"
    if faulty:
        classes: dict[str, None] = {}
        for node in faulty:
            classes.update(dict.fromkeys(node.classes or (FAULT,)))
        start = f"{', '.join(classes)} on {fold(map(attrgetter('host'), faulty))}"
    return f"{start}. {total}: {', '.join(numbers)}."


def _nodes(investigation: Investigation) -> Section:
    """Every node, like ones in one row."""
    rows = []
    for verdict in (*FAULTY, NodeVerdict.UNREACHABLE, NodeVerdict.NOT_CHECKED, NodeVerdict.CLEAN):
        nodes = investigation.of(verdict)
        for reason, alike in grouped(nodes, attrgetter("reason")).items():
            hosts = fold(map(attrgetter("host"), alike))
            rows.append([hosts, Toned(verdict.value, TONES[verdict]), reason])
    return Section("Nodes", [table(("Nodes", "Verdict", "Why"), rows)])


def _method(investigation: Investigation) -> Iterator[str]:
    """What was asked and what was not, and what the verdict has to do with the job's."""
    if investigation.was_asked:
        yield _ORDER
        yield "No SMI tool for AMD GPUs was run: it would hang in the same place."
    else:
        yield "No node was asked: --address or --ssh name the cluster of the nodes."
    if investigation.force_ras:
        yield "RAS files were read in any case (--force-ras)."
    yield (
        "confirmed takes two independent signs of: a kernel signature, tasks blocked in the "
        "driver, a RAS file that hangs, an exporter whose cycles or power series come and go, and "
        "an errors counter that only this node has."
    )
    if investigation.metrics:
        yield f"Series of {investigation.metrics} were read."
    else:
        yield f"No series were read: {investigation.no_metrics or 'none were asked for'}."
    yield filled("The job itself: {}", investigation.job)
