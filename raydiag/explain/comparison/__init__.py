"""EXPLAIN: two or more jobs -> why does one run slower.

The order: triage and diagnosis of each; their settings; the steps that they share; throughput over
these steps; then the whole checklist of both, host by host, and what the workers' logs say. The
first job is what the others are compared with.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter

from raydiag.catalog.completion import completed, order
from raydiag.explain.comparison import answer, metrics, saves, settings, side
from raydiag.explain.comparison.gap import gap
from raydiag.explain.comparison.pair import UNDECIDED, UNRELATED, Contrast, Environment, Pair
from raydiag.explain.comparison.saves import Saves
from raydiag.explain.comparison.side import AskedJob, Side
from raydiag.explain.comparison.steps import overlap
from raydiag.model import Blind, Chain, Confidence, Coverage, Diagnosis, Finding, HostUnread, Status
from raydiag.timeline.training_series import BALANCE, GRAD, LOSS, RATE, RAW_GRAD, SECONDS, TGS
from raydiag.tsdb.series import AskedQuery as Question

__all__ = ["AskedJob", "Comparison", "compare", "exit_code"]

TRAINING = (TGS, SECONDS, LOSS, GRAD, RAW_GRAD, RATE, BALANCE)
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Everything that is told; `saves` and `asked` by job, in the order of `sides`."""

    sides: Sequence[Side]
    contrasts: Sequence[Contrast]  # of each other job with the first
    saves: Sequence[Saves]
    diagnosis: Diagnosis
    owners: Sequence[str]  # label of the job that each finding is about
    asked: Sequence[Sequence[Question]]


def compare(
    jobs: Sequence[AskedJob], deadline_s: float = 120.0, say: Say = lambda text: None
) -> Comparison:
    """Look at all, then compare. Of one job alone its saves are compared with each other."""
    with side.opened(jobs, deadline_s, say) as sides:
        contrasts = []
        for side_b in sides[1:]:
            say(f"comparing job {side_b.label} with job {sides[0].label} ...")
            contrasts.append(answer.contrast(_pair(sides[0], side_b, deadline_s)))
        saved = [saves.compare(job_side, len(sides) == 1, deadline_s) for job_side in sides]
        queries = list(map(attrgetter("asked_besides"), sides))
    closed = [replace(job_side, connection=None) for job_side in sides]  # the servers are gone
    diagnosis, owners = _diagnosis(sides, contrasts, saved)
    return Comparison(closed, contrasts, saved, diagnosis, owners, queries)


def exit_code(comparison: Comparison) -> int:
    """1: a problem was found; 3: none, but not everything could be seen or compared."""
    if comparison.diagnosis.problems:
        return 1
    is_told = all(map(attrgetter("examined.case.told"), comparison.sides))
    if is_told and comparison.diagnosis.coverage.complete:
        return 0
    return 3


def _pair(a: Side, b: Side, deadline_s: float) -> Pair:
    shared = overlap(a.run, b.run, (*a.saves, *b.saves))
    paid = tuple(sorted({*a.saves, *b.saves}))
    looked = [metrics.look(job_side, shared, paid, deadline_s) for job_side in (a, b)]
    steady_a, steady_b = shared.steady(a.run), shared.steady(b.run)
    gaps = []
    for metric in TRAINING:
        gaps.append(gap(metric, a.run.of(metric, steady_a), b.run.of(metric, steady_b)))
    known_gaps, compared = list(filter(None, gaps)), metrics.compare(*looked)
    environment, differences = (
        tuple(_environment(a, b)),
        settings.differences(a.settings, b.settings),
    )
    return Pair(a, b, differences, environment, shared, known_gaps, compared, *looked)


def _environment(a: Side, b: Side) -> Iterator[Environment]:
    """What the jobs did not ask for and got all the same."""
    mine, theirs = set(a.hosts), set(b.hosts)
    nodes_a = nodes_b = "the same"
    if mine != theirs:
        in_both = f"{len(mine & theirs)} of them in both"
        nodes_a, nodes_b = f"{len(mine)} nodes, {in_both}", f"{len(theirs)} nodes, {in_both}"
    yield Environment("node set", nodes_a, nodes_b)
    yield Environment("start", a.start or "unknown", b.start or "unknown")
    yield Environment("metrics", a.source, b.source)
    yield Environment("families", _families(a), _families(b))
    if mine != theirs:
        names = [",".join(sorted(hosts)) or "none" for hosts in (mine - theirs, theirs - mine)]
        yield Environment("nodes of one job only", *names)


def _families(job_side: Side) -> str:
    queried = job_side.examined.metrics
    if queried is None:
        return "none"
    return " ".join(sorted(map("{0.prefix}*".format, queried.discovery.families)))


# ---- all jobs together


def _diagnosis(
    sides: Sequence[Side], contrasts: Sequence[Contrast], saved: Sequence[Saves]
) -> tuple[Diagnosis, list[str]]:
    """What the comparison found, and what each job has by itself; whose each finding is."""
    chains: list[Chain] = []
    owned: list[tuple[str, Finding]] = []  # label of the job, finding
    for contrast in contrasts:
        causes = answer.findings(contrast)
        owned += causes
        if causes:
            chains.append(Chain(list(map(itemgetter(1), causes)), contrast.answer.confidence))
    for job_side, its_saves in zip(sides, saved, strict=True):
        listed = {finding.class_and_host for label, finding in owned if label == job_side.label}
        findings = list(map(completed, _findings_of(job_side, its_saves, listed)))
        owned += zip(itertools.repeat(job_side.label), findings)
        if its_saves.findings:
            roots = findings[: len(its_saves.findings)]
            failed = [finding for finding in findings if finding.failure_class == saves.CLASS]
            chains.append(Chain((*roots, *failed), Confidence.LIKELY))
    owned.sort(key=lambda labelled: order(labelled[1]))
    findings = list(map(itemgetter(1), owned))
    chained = set(map(id, itertools.chain.from_iterable(map(attrgetter("findings"), chains))))
    for finding in findings:
        if id(finding) not in chained:
            chains.append(Chain((finding,), finding.confidence))
    diagnosis = Diagnosis(findings, chains, _coverage(sides, contrasts, saved))
    return diagnosis, list(map(itemgetter(0), owned))


def _findings_of(
    job_side: Side, its_saves: Saves, listed: Collection[tuple[str, str | None]]
) -> Iterator[Finding]:
    """Of its saves, of its bridge, then of its diagnosis what is not `listed` yet."""
    metrics_of = job_side.examined.metrics
    origin = metrics_of.origin if metrics_of is not None else job_side.label
    own_findings = (*its_saves.findings, *job_side.bridge.findings(origin))
    yield from own_findings
    known = {*listed, *map(attrgetter("class_and_host"), own_findings)}
    for finding in job_side.examined.explained.diagnosis.findings:
        if finding.class_and_host not in known:
            yield finding


def _coverage(
    sides: Sequence[Side], contrasts: Sequence[Contrast], saved: Sequence[Saves]
) -> Coverage:
    """Of all jobs; the source names the job where there are several."""
    nodes_asked = answered = 0
    blind: list[Blind] = []
    unread: list[HostUnread] = []
    for job_side, its_saves in zip(sides, saved, strict=True):
        of_job = job_side.examined.explained.diagnosis.coverage
        nodes_asked, answered = nodes_asked + of_job.asked, answered + of_job.answered
        blind += of_job.blind
        prefix = f"job {job_side.label}: " if len(sides) > 1 else ""
        for item in dict.fromkeys(_unread(job_side, its_saves, contrasts)):
            unread.append(replace(item, source=f"{prefix}{item.source}"))
    for contrast in contrasts:
        if contrast.answer.kind in (UNRELATED, UNDECIDED):
            names = f"job {contrast.pair.a.label} and job {contrast.pair.b.label}"
            unread.append(HostUnread("", names, Status.NO_DATA, contrast.answer.summary))
    return Coverage(nodes_asked, answered, tuple(blind), tuple(unread))


def _unread(
    job_side: Side, its_saves: Saves, contrasts: Iterable[Contrast]
) -> Iterator[HostUnread]:
    """What could not be read of one job, also what its comparisons asked for."""
    yield from job_side.examined.explained.diagnosis.coverage.unread
    yield from (*job_side.unread, *job_side.bridge.unread, *its_saves.unread)
    yield from map(HostUnread.without_host, job_side.workers.unread)
    for contrast in contrasts:
        yield from contrast.pair.unread(job_side)
