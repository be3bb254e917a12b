"""Is this Prometheus the job's own? Asked before anything that it says is believed.

The training bridge stores each step's loss under the event's own time, so the steps that both the
log and the server know are compared one by one. What the bridge fills in while nothing happens
(`tb_metrics_plugin_staleness_fill` 1) repeats old values and is left out. Without the bridge, hosts
and times can contradict but not prove.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Optional

from raydiag.model import Evidence, Finding, Window
from raydiag.tsdb import promql
from raydiag.tsdb.client import Client
from raydiag.tsdb.discovery_types import Discovery, is_address
from raydiag.tsdb.series import Query, QueryResult, Series

_STEP, _LOSS = "tb_step", "tb_learning_loss"
_FILL = "tb_metrics_plugin_staleness_fill"
_AGREE, _CONTRADICT = 0.9, 0.5  # shares of the compared steps
_SHOWN = 3
_ZONES_S = 14 * 3600.0  # how far off a log without a time zone may be
_FLOAT32 = 1e-6


class Belief(str, Enum):
    """Whether the series may be used as the job's."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    WRONG = "wrong"  # of another job: nothing that it says may be used


@dataclass(frozen=True)
class Logged:
    """What the job's log says, to be compared."""

    steps: Sequence[int] = ()
    losses: Sequence[float] = ()  # beside `steps`, as printed; NaN where none was
    hosts: Sequence[str] = ()
    window: Optional[Window] = None  # of the times that the log prints


@dataclass(frozen=True)
class ComparedSteps:
    """One step that both know."""

    step: int
    logged: float
    stored: float
    time: float

    def equal(self, tolerance: float) -> bool:
        """Whether both losses are the same number: the log rounds, the server has float32."""
        return abs(self.logged - self.stored) <= tolerance + _FLOAT32 * abs(self.logged)


@dataclass(frozen=True)
class TsdbIdentity:
    """What the comparison came to."""

    belief: Belief
    reason: str
    compared: int = 0
    agreeing: int = 0
    examples: tuple[ComparedSteps, ...] = ()  # those that contradict, else the newest

    def findings(self, origin: str) -> list[Finding]:
        """One when these are another job's series."""
        if self.belief is not Belief.WRONG:
            return []
        evidence = []
        for pair in self.examples:
            text = f"step {pair.step} has loss {pair.logged:g} in the log"
            evidence.append(Evidence(origin, text, pair.stored, pair.time))
        return [Finding("tsdb-wrong-job", evidence=evidence, explanation=self.reason)]


def check(client: Client, discovery: Discovery, logged: Logged) -> TsdbIdentity:
    """One query for the steps, where there are any to compare; else hosts and times."""
    if not discovery.has(_STEP) or not discovery.has(_LOSS) or discovery.window is None:
        return _without_steps(discovery, logged, "no training series to compare")
    length = promql.duration(discovery.window.end - discovery.window.start + 1)
    names = promql.any_of([_STEP, _LOSS, _FILL])
    span = f"{promql.selector('', match={'__name__': names})}[{length}]"
    answer = client.ask(Query.at("identity", span, discovery.window.end))
    if not answer.ok:
        reason = f"the training series cannot be read: {answer.reason}"
        return _without_steps(discovery, logged, reason)
    pairs = list(_compared(answer, logged))
    if not pairs:
        return _without_steps(discovery, logged, "no step that both the log and the server know")
    return _judged(pairs, logged)


def _without_steps(discovery: Discovery, logged: Logged, reason: str) -> TsdbIdentity:
    contradiction = _contradiction(discovery, logged)
    if contradiction:
        return TsdbIdentity(Belief.WRONG, contradiction)
    return TsdbIdentity(Belief.UNVERIFIED, f"{reason}; {_hosts(discovery, logged)}")


def _judged(pairs: list[ComparedSteps], logged: Logged) -> TsdbIdentity:
    tolerance = _last_decimal(logged.losses)
    different = [pair for pair in pairs if not pair.equal(tolerance)]
    agreeing = len(pairs) - len(different)
    share = agreeing / len(pairs)
    counted = f"{agreeing} of {len(pairs)} steps have the loss that the log prints"
    belief = Belief.UNVERIFIED
    if share >= _AGREE:
        belief = Belief.VERIFIED
    elif share <= _CONTRADICT:
        belief = Belief.WRONG
        counted += ": these are another job's series"
    examples = tuple((different or pairs)[-_SHOWN:])
    return TsdbIdentity(belief, counted, len(pairs), agreeing, examples)


def _compared(answer: QueryResult, logged: Logged) -> Iterable[ComparedSteps]:
    """Steps in the server's order; of a step that the log prints twice, the nearer loss counts."""
    printed: dict[int, list[float]] = {}
    for step, loss in zip(logged.steps, logged.losses, strict=True):
        if math.isfinite(loss):
            printed.setdefault(int(step), []).append(loss)
    sources: dict[tuple[str, str], dict[str, Series]] = {}
    for series in answer.series:
        source = series.labels.get("host", ""), series.labels.get("instance", "")
        sources.setdefault(source, {})[series.metric] = series
    for by_metric in sources.values():
        steps, losses = _by_time(by_metric.get(_STEP)), _by_time(by_metric.get(_LOSS))
        fills = _by_time(by_metric.get(_FILL))
        for time, number in steps.items():
            step = int(number)
            if time in losses and step in printed and not fills.get(time):
                yield ComparedSteps(step, _nearest(printed[step], losses[time]), losses[time], time)


def _nearest(losses: Sequence[float], stored: float) -> float:
    return min(losses, key=lambda loss: abs(loss - stored))


def _by_time(series: Optional[Series]) -> Mapping[float, float]:
    if series is None:
        return {}
    return dict(zip(series.times.tolist(), series.values.tolist(), strict=True))


def _last_decimal(losses: Iterable[float]) -> float:
    """One in the last decimal that the log prints, e.g. 0.001."""
    digits = 0
    for loss in losses:
        text = repr(float(loss))
        if math.isfinite(loss) and "e" not in text:
            digits = max(digits, len(text.partition(".")[2]))
    return float(10.0 ** -min(digits, 9))


def _contradiction(discovery: Discovery, logged: Logged) -> str:
    """Why the two cannot belong together; "" where nothing contradicts."""
    # An address is on no node list, and says nothing.
    named = [host.name for host in discovery.hosts if host.labels and not is_address(host.name)]
    if logged.hosts and named and not any(map(discovery.host, discovery.expected)):
        return (
            f"none of its hosts ({', '.join(named[:5])}) is on the job's node list "
            f"({', '.join(discovery.expected[:5])})"
        )
    window, ran = discovery.window, logged.window
    if window is not None and ran is not None:
        if window.end < ran.start - _ZONES_S:
            return "its samples are all from before the job"
        if window.start > ran.end + _ZONES_S:
            return "its samples are all from after the job"
    return ""


def _hosts(discovery: Discovery, logged: Logged) -> str:
    if not logged.hosts:
        return "the log names no hosts"
    stored = len(discovery.expected) - len(discovery.missing)
    return f"{stored} of the job's {len(discovery.expected)} hosts have series in it"
