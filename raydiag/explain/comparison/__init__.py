"""EXPLAIN: two or more jobs -> why does one run slower.

The order: triage and diagnosis of each; their settings; the steps that they share; throughput over
these steps; then the whole checklist of both, host by host, and what the workers' logs say. The
first job is what the others are compared with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from raydiag.catalog.completion import completed, order
from raydiag.explain.comparison import answer, metrics, saves, settings, side
from raydiag.explain.comparison.gap import gap
from raydiag.explain.comparison.pair import UNDECIDED, UNRELATED, Contrast, Environment, Pair
from raydiag.explain.comparison.saves import Saves
from raydiag.explain.comparison.side import AskedJob, Side
from raydiag.explain.comparison.steps import overlap
from raydiag.model import (
    Blind,
    Chain,
    Confidence,
    Coverage,
    Diagnosis,
    Finding,
    HostUnread,
    Severity,
    Status,
)
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
        queries = [job_side.asked_besides for job_side in sides]
    closed = [replace(job_side, connection=None) for job_side in sides]
    diagnosis, owners = _diagnosis(sides, contrasts, saved)
    return Comparison(closed, contrasts, saved, diagnosis, owners, queries)


def exit_code(comparison: Comparison) -> int:
    """1: a problem was found; 3: none, but not everything could be seen or compared."""
    if any(finding.severity is not Severity.INFO for finding in comparison.diagnosis.findings):
        return 1
    is_told = all(job_side.examined.case.told for job_side in comparison.sides)
    return 0 if is_told and comparison.diagnosis.coverage.complete else 3


def _pair(a: Side, b: Side, deadline_s: float) -> Pair:
    shared = overlap(a.run, b.run, (*a.saves, *b.saves))
    paid = tuple(sorted({*a.saves, *b.saves}))
    looked_a = metrics.look(a, shared, paid, deadline_s)
    looked_b = metrics.look(b, shared, paid, deadline_s)
    steady_a, steady_b = shared.steady(a.run), shared.steady(b.run)
    gaps = [
        gap(metric, a.run.of(metric, steady_a), b.run.of(metric, steady_b)) for metric in TRAINING
    ]
    return Pair(
        a,
        b,
        settings.differences(a.settings, b.settings),
        tuple(_environment(a, b)),
        shared,
        [metric_gap for metric_gap in gaps if metric_gap is not None],
        metrics.compare(looked_a, looked_b),
        looked_a,
        looked_b,
    )


def _environment(a: Side, b: Side) -> list[Environment]:
    """What the jobs did not ask for and got all the same."""
    mine, theirs = set(a.hosts), set(b.hosts)
    common = len(mine & theirs)
    nodes = [f"{len(hosts)} nodes, {common} of them in both" for hosts in (mine, theirs)]
    environment = [
        Environment("node set", *(("the same", "the same") if mine == theirs else nodes)),
        Environment("start", _start(a), _start(b)),
        Environment("metrics", a.source, b.source),
        Environment("families", _families(a), _families(b)),
    ]
    if mine != theirs:
        environment.append(
            Environment("nodes of one job only", _names(mine - theirs), _names(theirs - mine))
        )
    return environment


def _start(job_side: Side) -> str:
    return job_side.examined.triage.progress.start or "unknown"


def _names(hosts: set[str]) -> str:
    return ",".join(sorted(hosts)) or "none"


def _families(job_side: Side) -> str:
    queried = job_side.examined.metrics
    if queried is None:
        return "none"
    return " ".join(sorted(f"{family.prefix}*" for family in queried.discovery.families))


# ---- all jobs together


def _diagnosis(
    sides: Sequence[Side], contrasts: Sequence[Contrast], saved: Sequence[Saves]
) -> tuple[Diagnosis, list[str]]:
    """What the comparison found, and what each job has by itself; whose each finding is."""
    chains: list[Chain] = []
    owned: list[tuple[Finding, str]] = []
    for contrast in contrasts:
        causes = answer.findings(contrast)
        owned += [(finding, label) for label, finding in causes]
        if causes:
            linked = tuple(finding for _, finding in causes)
            chains.append(Chain(linked, contrast.answer.confidence))
    for job_side, its_saves in zip(sides, saved, strict=True):
        listed = {_what(finding) for finding, label in owned if label == job_side.label}
        findings = _findings_of(job_side, its_saves, listed)
        owned += [(finding, job_side.label) for finding in findings]
        if its_saves.findings:
            roots = findings[: len(its_saves.findings)]
            failed = [finding for finding in findings if finding.failure_class == saves.CLASS]
            chains.append(Chain((*roots, *failed), Confidence.LIKELY))
    owned.sort(key=lambda pair: order(pair[0]))
    findings = [finding for finding, _ in owned]
    chained = set(map(id, itertools.chain.from_iterable(chain.findings for chain in chains)))
    alone = [finding for finding in findings if id(finding) not in chained]
    chains += [Chain((finding,), finding.confidence) for finding in alone]
    coverage = _coverage(sides, contrasts, saved)
    return Diagnosis(findings, chains, coverage), [label for _, label in owned]


def _findings_of(
    job_side: Side, its_saves: Saves, listed: Collection[tuple[str, Optional[str]]]
) -> list[Finding]:
    """Of its saves, of its bridge, then of its diagnosis what is not `listed` yet."""
    metrics_of = job_side.examined.metrics
    origin = metrics_of.origin if metrics_of is not None else job_side.label
    findings = [*its_saves.findings, *job_side.bridge.findings(origin)]
    known = {*listed, *map(_what, findings)}
    of_diagnosis = job_side.examined.explained.diagnosis.findings
    findings += [finding for finding in of_diagnosis if _what(finding) not in known]
    return [completed(finding) for finding in findings]


def _what(finding: Finding) -> tuple[str, str | None]:
    return finding.failure_class, finding.host


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
        items = [*of_job.unread, *job_side.unread, *job_side.bridge.unread, *its_saves.unread]
        items += [HostUnread("", i.source, i.status, i.reason) for i in job_side.workers.unread]
        for pair in (contrast.pair for contrast in contrasts):
            looked = pair.looked(job_side) if job_side in (pair.a, pair.b) else None
            items += looked.unread if looked is not None else ()
        prefix = f"job {job_side.label}: " if len(sides) > 1 else ""
        unread += [
            HostUnread(item.host, f"{prefix}{item.source}", item.status, item.reason)
            for item in dict.fromkeys(items)
        ]
    for contrast in contrasts:
        if contrast.answer.kind in (UNRELATED, UNDECIDED):
            names = f"job {contrast.pair.a.label} and job {contrast.pair.b.label}"
            unread.append(HostUnread("", names, Status.NO_DATA, contrast.answer.summary))
    return Coverage(nodes_asked, answered, tuple(blind), tuple(unread))
