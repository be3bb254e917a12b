"""What the reports on a comparison say, in text as in Markdown. Not escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raydiag import __version__
from raydiag.explain.comparison import Comparison
from raydiag.explain.comparison.checklist import MEAN
from raydiag.explain.comparison.gap import PERSISTENT, SINCE, TRANSIENT, SpeedGap
from raydiag.explain.comparison.metrics import ComparedMetrics, odd_hosts
from raydiag.explain.comparison.pair import Contrast, SlownessCause
from raydiag.explain.comparison.saves import LOADS, Saves
from raydiag.explain.comparison.settings import Setting
from raydiag.explain.comparison.side import Side
from raydiag.model import Finding, Severity
from raydiag.nodeset import fold
from raydiag.playbooks.training import SECONDS, TGS
from raydiag.render.document import severity_of
from raydiag.render.groups import scope
from raydiag.render.layout import count, number, utc

EVIDENCE = 6
_SAME_PERCENT = 2.0  # of loss, gradient norm and the like
_UNITS = {TGS: "tokens/s/device", SECONDS: "s"}
_CAUSES = {
    "cpu": "CPU contention: a leak where it is alike on all hosts, else other processes",
    "tcp": "storage and coordination, not collectives: explains no throughput",
    "rdma": "a bad link makes all collectives wait",
    "storage": "storage outside saves",
    "memory": "not by itself: look for swapping or an OOM kill",
    "thermal": "a symptom, unless temperature is at its limit",
    "hardware": "faulty hardware",
}


@dataclass(frozen=True)
class Cells:
    """One row of the table of metrics."""

    metric: str
    a: str
    b: str
    delta: str
    cause: str


def title(told: Contrast) -> str:
    return f"Multi-Job Comparison: {told.pair.a.label} vs {told.pair.b.label}"


def about(side: Side) -> str:
    """One job in one line."""
    triage, run = side.examined.triage, side.run
    steps = f"steps {run.first} to {run.last}" if run.first is not None else "no steps"
    told = ", ".join(f"{name} {n}" for name, n in run.sources.items())
    only = f" ({side.examined.log_only})" if side.examined.log_only else ""
    parts = [
        side.label,
        triage.resolved.job_dir or triage.log,
        side.examined.case.status,
        triage.progress.start or "start unknown",
        f"{steps} ({told})" if told else steps,
        f"metrics: {side.source}{only}",
        f"own diagnosis: {side.examined.explained.verdict.failure_class}",
    ]
    return "  ".join(parts)


def settings(told: Contrast, every: bool) -> Sequence[Setting]:
    """What differs; names, paths and the like only on demand."""
    return [one for one in told.pair.settings if every or one.explains or _is_known(one)]


def _is_known(one: Setting) -> bool:
    words = ("checkpoint", "ckpt", "RAY", "steps")
    return any(word in one.parameter for word in words)


def steps(told: Contrast) -> Iterator[str]:
    """The range of steps, and what of it counts."""
    shared = told.pair.overlap
    if shared.start is None:
        yield f"none: {shared.reason}"
        return
    yield f"{shared.first} to {shared.last}"
    left = f", without {len(shared.saves)} that a save of either job slows" if shared.saves else ""
    yield f"Compared: {shared.start} to {shared.last}{left}."
    for side in (told.pair.a, told.pair.b):
        looked = told.pair.looked(side)
        if looked is not None:
            window = looked.window
            yield f"In job {side.label} from {utc(window.start)} to {utc(window.end)}."


def rows(told: Contrast, every: bool) -> Iterator[Cells]:
    """Training first, then the whole checklist; what is the same only on demand."""
    for gap in told.pair.gaps:
        unit = _UNITS.get(gap.metric, "")
        yield Cells(
            gap.metric,
            _stat(gap.a.mean, gap.a.deviation, unit),
            _stat(gap.b.mean, gap.b.deviation, unit),
            _change(gap),
            _pattern(gap) if gap.metric in _UNITS else _training(gap),
        )
    for one in told.pair.metrics:
        if every or one.differs:
            yield _checked(told, one)


def _stat(mean: float, deviation: float, unit: str) -> str:
    return f"{mean:.5g} ± {deviation:.2g} {unit}".strip()


def _change(gap: SpeedGap) -> str:
    """Of the medians; of what begins late, where it has begun: over all steps it would hide."""
    if gap.kind == SINCE and gap.spike_percent is not None:
        return f"{gap.spike_percent:+.2f} % since then"
    return f"{gap.percent:+.2f} %"


def _pattern(gap: SpeedGap) -> str:
    if gap.kind == PERSISTENT:
        return "stays over all steps"
    if gap.kind == SINCE:
        return f"from step {gap.since_step} on"
    if gap.kind == TRANSIENT:
        until = "" if gap.until_step in (None, gap.since_step) else f" to {gap.until_step}"
        return f"transient, at step {gap.since_step}{until}"
    return "none"


def _training(gap: SpeedGap) -> str:
    """Whether training itself is the same: these numbers wander from step to step."""
    if abs(gap.percent) <= max(_SAME_PERCENT, 3 * gap.error_percent):
        return "none: the same"
    return "training itself: data, settings or numerics"


def _checked(told: Contrast, one: ComparedMetrics) -> Cells:
    measure = one.measure
    name = measure.metric if measure.how == MEAN else f"{measure.metric} (counted)"
    a, b = _value(one.a, measure.unit), _value(one.b, measure.unit)
    if one.delta is None:
        return Cells(name, a, b, "-", one.missing)
    percent = f" ({one.percent:+.0f} %)" if one.percent is not None else ""
    named = [c.finding.failure_class for c in told.causes if _rests_on(c, measure.metric)]
    cause = ", ".join(dict.fromkeys(named)) or _CAUSES[measure.group]
    cause = cause if one.differs else "none: the same"
    hosts = []
    for side, of_b in ((told.pair.a, False), (told.pair.b, True)):
        odd = odd_hosts(one, of_b) if one.differs else []
        if odd and len(odd) < max(2, len(side.hosts)):
            hosts.append(f"{fold(odd)} of job {side.label}")
    cause += f"; {', '.join(hosts)}" if hosts else ""
    return Cells(name, a, b, f"{one.delta:+.4g}{percent}", cause)


def _rests_on(cause: SlownessCause, metric: str) -> bool:
    return any(item.source == metric for item in cause.finding.evidence)


def _value(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.4g} {unit}".strip()


def cause(told: Contrast) -> Iterator[str]:
    """The answer, its confidence, and what else may slow the slower job."""
    answer = told.answer
    where = f" on {fold(answer.hosts)}" if answer.hosts else ""
    yield f"{answer.failure_class}{where} ({answer.confidence.value}; {answer.kind})"
    yield answer.summary
    for one in told.causes:
        if pair_label(told) in (None, one.label) and one.explains not in answer.summary:
            found = one.finding
            parts = [found.failure_class, scope([found]), found.confidence.value, one.explains]
            yield "  ".join(part for part in parts if part)


def pair_label(told: Contrast) -> str | None:
    """Label of the slower job; None where neither is."""
    return told.answer.slower


def evidence(told: Contrast) -> Iterator[str]:
    """Of the causes; the whole of it stands in the JSON."""
    for one in told.causes:
        if pair_label(told) not in (None, one.label):
            continue
        for item in one.finding.evidence[:EVIDENCE]:
            source = f"{item.source}: " if item.source else ""
            yield f"{source}{item.text}" if item.text else source.rstrip(": ")


def logs(told: Contrast) -> Iterator[tuple[str, str, str]]:
    """Lines of the workers' logs by pattern, of both jobs."""
    mine, theirs = told.pair.a.workers, told.pair.b.workers
    if not mine.files and not theirs.files:
        return
    yield "waves of communicator initialisations", _known(mine.waves), _known(theirs.waves)
    for name in dict.fromkeys([*mine.counts, *theirs.counts]):
        pair = [str(one.counts.get(name, 0)) if one.files else "-" for one in (mine, theirs)]
        yield f"lines: {name}", pair[0], pair[1]
    if mine.dumped_zeros is not None or theirs.dumped_zeros is not None:
        yield "xla_dump: jit_create_zeros", _known(mine.dumped_zeros), _known(theirs.dumped_zeros)


def _known(value: int | None) -> str:
    return "-" if value is None else str(value)


def environment(told: Contrast, every: bool) -> Iterator[tuple[str, str, str]]:
    for one in told.pair.environment:
        if every or not one.same or one.what == "node set":
            yield one.what, one.a, one.b


def trace(told: Contrast) -> str:
    """Where to read on; the mechanism where it is known."""
    if told.answer.trace:
        return told.answer.trace
    known = [one.finding.explanation for one in told.causes if one.finding.explanation]
    return known[0] if told.answer.kind == "communicator leak" and known else ""


def next_steps(found: Comparison) -> list[str]:
    """Of the gravest findings, each once."""
    told = [
        step
        for finding in found.diagnosis.findings
        if severity_of(finding) is not Severity.INFO
        for step in finding.next_steps
    ]
    return list(dict.fromkeys(told))[:8]


def others(found: Comparison, every: bool) -> Iterator[tuple[str, Finding]]:
    """Findings that no comparison has told: saves, the bridge, the jobs' own.

    Remarks only on demand, but for what the bridge has lost.
    """
    told = {
        (one.finding.failure_class, one.finding.host, one.label)
        for contrast in found.contrasts
        for one in contrast.causes
    }
    for finding, label in zip(found.diagnosis.findings, found.owners, strict=True):
        remark = severity_of(finding) is Severity.INFO and finding.failure_class != "tb-bridge-gap"
        if (finding.failure_class, finding.host, label) not in told and (every or not remark):
            yield label, finding


def finding_line(label: str, finding: Finding) -> str:
    since = f"since {utc(finding.onset)}" if finding.onset is not None else ""
    parts = [
        severity_of(finding).value.upper(),
        f"job {label}",
        finding.failure_class,
        scope([finding]),
        since,
        finding.title,
    ]
    return "  ".join(part for part in parts if part)


def seen(finding: Finding, every: bool) -> Iterator[str]:
    """Its evidence, a line each; PromQL stands in the JSON."""
    for item in finding.evidence if every else finding.evidence[:2]:
        yield item.text or item.source


def save_header() -> list[str]:
    return ["Save", "From", *(f"{load.metric} ({load.unit})" for load in LOADS)]


def save_rows(saves: Saves) -> Iterator[list[str]]:
    """The highest peak of each save, and whose it is."""
    for one in saves.loads:
        step = f"{one.step} (failed)" if one.failed else str(one.step)
        cells = [step, utc(one.window.start)]
        for load in LOADS:
            peaks = one.peaks.get(load.metric, {})
            host = max(peaks, key=lambda name: peaks[name], default=None)
            cells.append("-" if host is None else f"{peaks[host]:.4g} {host}")
        yield cells


def ruled_out(found: Comparison) -> Iterator[str]:
    seen = [one for contrast in found.contrasts for one in contrast.ruled_out]
    seen += [one for saves in found.saves for one in saves.ruled_out]
    for one in dict.fromkeys(seen):
        yield f"{one.failure_class}: {one.why}"


def notes(found: Comparison) -> Iterator[str]:
    told = [note for contrast in found.contrasts for note in contrast.notes]
    told += [note for saves in found.saves for note in saves.notes]
    told += [f"job {side.label}: {note}" for side in found.sides for note in side.examined.notes]
    yield from dict.fromkeys(told)


def coverage(found: Comparison) -> Iterator[str]:
    seen = found.diagnosis.coverage
    if seen.asked:
        yield f"{seen.answered} of {count(seen.asked, 'node')} seen."
    for blind in seen.blind:
        yield f"not seen: {blind.host}: {blind.reason}"
    for item in seen.unread:
        host = f"{item.host}: " if item.host else ""
        yield f"unread: {host}{item.source}: {item.reason}"


def footer(found: Comparison) -> str:
    asked = sum(len(one) for one in found.asked)
    parts = [f"raydiag {__version__}", *(side.label for side in found.sides)]
    return "  ".join([*parts, f"{number(asked)} queries"])
