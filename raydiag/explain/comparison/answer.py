"""Why two jobs differ: one answer, the settings first, then what was measured."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from raydiag.catalog.completion import completed
from raydiag.explain.comparison import gap, slowness_causes
from raydiag.explain.comparison.gap import SpeedGap
from raydiag.explain.comparison.metrics import TABLES
from raydiag.explain.comparison.pair import (
    ALIKE,
    LEAK,
    SETTINGS,
    SPIKE,
    UNDECIDED,
    UNEXPLAINED,
    UNRELATED,
    ComparisonAnswer,
    Contrast,
    Pair,
    SlownessCause,
)
from raydiag.explain.comparison.settings import Setting
from raydiag.model import Confidence, Evidence, Finding, Severity
from raydiag.rules.grades import confirmed_if, warning_if
from raydiag.timeline.training_series import TGS

_LEAK_PERCENT = 4.0  # a leak costs about one percent: more has another cause as well
_SETTINGS_NAMED, _BESIDES_NAMED = 4, 3
_TRACE: str = TABLES["trace"]


def contrast(pair: Pair) -> Contrast:
    """The answer about two jobs, with everything that speaks for it and against it."""
    causes, ruled_out = slowness_causes.look(pair)
    relevant = list(filter(pair.may_be_slower, causes))
    return Contrast(pair, _answer(pair, relevant), causes, ruled_out, tuple(_notes(pair, causes)))


def _answer(pair: Pair, causes: Sequence[SlownessCause]) -> ComparisonAnswer:
    if pair.speed is None:
        reason = pair.overlap.reason or "no throughput or step time of the common steps"
        return _undecided(UNRELATED, reason)
    slower = pair.slower
    if slower is None:
        return _no_gap(pair.speed, pair, causes)
    settings = list(filter(attrgetter("explains"), pair.settings))[:_SETTINGS_NAMED]
    if settings and not _sure(causes):
        names = ", ".join(map("{0.parameter} ({0.a}, {0.b})".format, settings))
        text = f"{_gap_text(pair)}. They run with other settings, which may explain it: {names}"
        return _undecided(SETTINGS, text, slower.label)
    if not causes:
        return _unexplained(pair, slower.label)
    return _caused(pair, causes, settings, slower.label)


def _undecided(
    kind: str, text: str, slower: str | None = None, trace: str = ""
) -> ComparisonAnswer:
    """An answer without a cause."""
    sentence = _sentence(text)
    return ComparisonAnswer(kind, "unknown", Confidence.POSSIBLE, sentence, slower, trace=trace)


def _unexplained(pair: Pair, slower: str) -> ComparisonAnswer:
    blind = [f"job {side.label}" for side in (pair.a, pair.b) if pair.looked(side) is None]
    if blind:
        names = " and ".join(blind)
        text = f"{_gap_text(pair)}. There are no metrics of {names} to compare, so no cause"
        return _undecided(UNEXPLAINED, text, slower)
    text = f"{_gap_text(pair)}, and nothing that was looked at explains it"
    return _undecided(UNEXPLAINED, text, slower, _TRACE)


def _caused(
    pair: Pair, causes: Sequence[SlownessCause], settings: Sequence[Setting], slower: str
) -> ComparisonAnswer:
    """The cause that explains most, with what else was found."""
    root = _root(causes, pair)
    hosts = {cause.finding.host for cause in causes if _class(cause) == _class(root)}
    text = f"{_gap_text(pair)}: {root.explains}"
    besides = [cause.explains for cause in causes if cause is not root]
    if besides:
        text += f"; besides: {'; '.join(besides[:_BESIDES_NAMED])}"
    if root.kind == LEAK and pair.lacks_percent > _LEAK_PERCENT:
        text += "; a leak costs about a percent, so it does not explain all of it"
    confidence = root.finding.confidence
    if settings:
        names = ", ".join(map(attrgetter("parameter"), settings))
        text += f"; settings differ as well ({names})"
        if root.kind != LEAK:
            confidence = confidence.at_most(Confidence.LIKELY)
    named = tuple(sorted(filter(None, hosts)))
    return ComparisonAnswer(root.kind, _class(root), confidence, _sentence(text), slower, named)


def _sure(causes: Sequence[SlownessCause]) -> list[SlownessCause]:
    """Causes that are more than possible."""
    return [cause for cause in causes if cause.finding.confidence is not Confidence.POSSIBLE]


def _no_gap(speed: SpeedGap, pair: Pair, causes: Sequence[SlownessCause]) -> ComparisonAnswer:
    leaks = [cause for cause in causes if cause.kind == LEAK]
    if leaks:
        text = f"{leaks[0].explains}; throughput differs by {abs(speed.percent):.1f} % only"
        confidence = leaks[0].finding.confidence
        return ComparisonAnswer(LEAK, _class(leaks[0]), confidence, _sentence(text))
    measure = "throughput" if speed.metric == TGS else "step time"
    if speed.kind == gap.TRANSIENT:
        return _passed(speed, measure, pair, _sure(causes))
    size = f"{speed.percent:+.1f} % (± {speed.error_percent:.1f} %)"
    if abs(speed.percent) >= gap.LEAST_PERCENT:
        chance = "which chance may do: steps vary, and few are in common"
        return _undecided(UNDECIDED, f"{measure} differs by {size}, {chance}")
    is_precise = speed.error_percent < gap.LEAST_PERCENT
    text = _sentence(f"Alike: {measure} differs by {size}")
    return ComparisonAnswer(ALIKE, "healthy", confirmed_if(is_precise), text)


def _passed(
    speed: SpeedGap, measure: str, pair: Pair, causes: Sequence[SlownessCause]
) -> ComparisonAnswer:
    """Apart for a while only; the causes are more than possible."""
    median = f"{measure} differs by {speed.percent:+.1f} % in the median"
    step = f"step {speed.since_step}"
    if speed.until_step not in (None, speed.since_step):
        step += f" to {speed.until_step}"
    if speed.spike_percent is not None:
        step += f" ({speed.spike_percent:+.0f} %)"
    text = f"No lasting difference: {median}. It was apart for a while at {step}, which passed"
    if not causes:
        return ComparisonAnswer(SPIKE, "healthy", Confidence.LIKELY, _sentence(text))
    root = _root(causes, pair)
    text = _sentence(f"{text}: {root.explains}")
    hosts = tuple(filter(None, [root.finding.host]))
    return ComparisonAnswer(SPIKE, _class(root), root.finding.confidence, text, hosts=hosts)


def _root(causes: Sequence[SlownessCause], pair: Pair) -> SlownessCause:
    """The surest; of equals the earliest, where their times are known, else the first kind."""
    best = max(map(attrgetter("finding.confidence.rank"), causes))
    surest = [cause for cause in causes if cause.finding.confidence.rank == best]
    if pair.lacks_percent > _LEAK_PERCENT:
        surest = [cause for cause in surest if cause.kind != LEAK] or surest
    alike = [cause for cause in surest if cause.kind == surest[0].kind]
    return min(alike, key=_dated_first)


def _dated_first(cause: SlownessCause) -> tuple[bool, float]:
    return cause.finding.onset is None, cause.finding.onset or 0.0


def _class(cause: SlownessCause) -> str:
    return cause.finding.failure_class


def _gap_text(pair: Pair) -> str:
    speed, slower, by = pair.speed, pair.slower, pair.lacks_percent
    assert speed is not None and slower is not None
    since = f" from step {speed.since_step} on" if speed.kind == gap.SINCE else ""
    size = f"{by:.1f} %" if by < 20 else f"{by:.0f} %"
    return f"Job {slower.label} is {size} slower than job {pair.other(slower).label}{since}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _notes(pair: Pair, causes: Sequence[SlownessCause]) -> Iterator[str]:
    """What a reader should know before the numbers."""
    a, b = pair.a, pair.b
    if a.restored is not b.restored and None not in (a.restored, b.restored):
        fresh, resumed = (b, a) if a.restored else (a, b)
        jobs = f"job {fresh.label} started afresh, job {resumed.label} was {resumed.start}"
        yield f"{jobs}; first steps are not compared"
    for side in (a, b):
        if side.examined.log_only:
            yield f"job {side.label}: by its log alone: {side.examined.log_only}"
    speed = pair.speed
    if speed is not None and speed.less_steady is not None:
        side = a if speed.less_steady == "a" else b
        yield f"the steps of job {side.label} vary more: see its variance"
    for cause in list(itertools.filterfalse(pair.may_be_slower, causes))[:3]:
        yield f"in the faster job {cause.label}, so no reason: {cause.explains}"


def findings(contrast: Contrast) -> list[tuple[str, Finding]]:
    """What makes the difference, root first, and the difference itself, with the job's label.

    What the faster job has makes none.
    """
    pair, answer = contrast.pair, contrast.answer
    slower = pair.slower
    ordered = sorted(contrast.causes, key=lambda cause: _class(cause) != answer.failure_class)
    if slower is None:
        return [_labelled(cause) for cause in ordered if cause.kind == LEAK]
    labelled = list(map(_labelled, filter(pair.may_be_slower, ordered)))
    return [*labelled, (slower.label, completed(_slower(pair, answer, slower.label)))]


def _labelled(cause: SlownessCause) -> tuple[str, Finding]:
    """With the job's label. What is a note elsewhere is a problem where it costs throughput."""
    finding = completed(cause.finding)
    if finding.severity is Severity.INFO:
        finding = replace(finding, severity=Severity.WARNING)
    return cause.label, finding


def _slower(pair: Pair, answer: ComparisonAnswer, label: str) -> Finding:
    speed = pair.speed
    assert speed is not None
    a = f"{speed.a.median:.5g} in job {pair.a.label}"
    b = f"{speed.b.median:.5g} in job {pair.b.label}"
    text = f"{a}, {b} over steps {pair.overlap.start} to {pair.overlap.last}"
    return Finding(
        slowness_causes.SLOWER,
        severity=warning_if(answer.kind != SETTINGS),
        onset=_onset(pair),
        confidence=Confidence.CONFIRMED,
        evidence=(Evidence(speed.metric, text, speed.percent),),
        title=_gap_text(pair),
        explanation=answer.summary,
        next_steps=tuple(_next(answer, label)),
    )


def _onset(pair: Pair) -> float | None:
    """When the slower job began to be so, where that is a step and not the start."""
    speed, slower = pair.speed, pair.slower
    if speed is None or slower is None or speed.kind != gap.SINCE or speed.since_step is None:
        return None
    return slower.run.dated.at(speed.since_step)


def _next(answer: ComparisonAnswer, label: str) -> Iterator[str]:
    if answer.kind == SETTINGS:
        yield "Compare with a job of the same settings before anything else."
    elif answer.kind == UNEXPLAINED:
        yield "Compare the workers' logs and the sources (see the trace); then profiles."
        yield f"Run job {label} again on the other job's nodes to tell nodes from software."
    else:
        yield "See the cause; other sources may add to it."
