"""The contention checklist of two jobs side by side, over the steps that they share.

Everything is asked that the playbooks ask; what is compared is the mean of each host over the
steady steps, without saves of either job, warm-up, ghost data and time after the last step.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from raydiag import playbooks
from raydiag.explain.comparison.side import Side
from raydiag.explain.comparison.steps import Overlap
from raydiag.joblog.tables import tables
from raydiag.model import HostUnread, Window
from raydiag.timeline.answers import Answers, ResultTable
from raydiag.timeline.context import SAVE, Mask
from raydiag.timeline.queries import DMESG
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import AskedQuery, Floats
from raydiag.tsdb.unread import unanswered

MEAN, WORST = "mean", "worst"  # else what it grew by
TCP, HEAT = "rate(hw_tcp_retransmits_total)", "hw_gpu_temperature_celsius"
RETX, TIMEOUTS = "rate(hw_rdma_tx_retx_pkts_total)", "rate(hw_rdma_tx_ack_timeout_total)"
CNP, CLOCK = "rate(hw_rdma_rx_cnp_pkts_total)", 'hw_gpu_clock_mhz{type="sclk"}'


@dataclass(frozen=True)
class Measure:
    """One line of the checklist."""

    group: str
    metric: str
    unit: str
    question: str
    pick: str | None = None  # label `metric`, `stat` or name within the question
    how: str = MEAN  # over time: mean, growth over the window, worst value
    share: float = 0.1  # least change that counts, of the smaller value
    least: float = 0.0  # least change that counts, in the unit
    falls: bool = False  # lower is worse


TABLES = tables("raydiag.explain.comparison", "tables.yaml")
MEASURES = tuple(Measure(**row) for row in TABLES["measures"])
UNITS = {measure.metric: measure.unit for measure in MEASURES}


@dataclass(frozen=True)
class ComparedMetrics:
    """One metric of both jobs; None where a job has none of it, and `missing` says why."""

    measure: Measure
    a: float | None = None  # mean of the hosts; of what grew or is counted, their sum
    b: float | None = None
    hosts_a: Mapping[str, float] = field(default_factory=dict)
    hosts_b: Mapping[str, float] = field(default_factory=dict)
    missing: str = ""

    @property
    def delta(self) -> float | None:
        """The second job minus the first; None where one has no value."""
        if self.a is None or self.b is None:
            return None
        return self.b - self.a

    def of(self, is_second: bool) -> tuple[float | None, Mapping[str, float]]:
        """The value of one of the jobs, and of each of its hosts."""
        if is_second:
            return self.b, self.hosts_b
        return self.a, self.hosts_a

    @property
    def percent(self) -> float | None:
        """The difference, in percent of the first job."""
        if self.delta is None or not self.a:
            return None
        return 100.0 * self.delta / abs(self.a)

    @property
    def differs(self) -> bool | None:
        """Of the jobs' means, or of one host against all of the other job; None: unknown."""
        if self.a is None or self.b is None:
            return None
        if _apart(self.measure, self.a, self.b):
            return True
        if self.measure.how != MEAN or self.measure.falls:
            return False
        return _apart(self.measure, max(self.hosts_a.values()), max(self.hosts_b.values()))


@dataclass(frozen=True, eq=False)
class Looked:
    """One job's answers over the steps that are compared."""

    scene: RunTimeline
    window: Window
    asked: tuple[AskedQuery, ...]
    unread: tuple[HostUnread, ...]


def look(side: Side, overlap: Overlap, saves: Sequence[int], deadline_s: float) -> Looked | None:
    """Asks one job about the window of the steps; None where it has no metrics or no times."""
    metrics, steps = side.examined.metrics, side.run.dated
    if side.connection is None or metrics is None or overlap.start is None or overlap.last is None:
        return None
    within = (steps.numbers >= overlap.start - 1) & (steps.numbers <= overlap.last)
    times = steps.ended_at[within]
    if times.size < 2:
        return None
    window = Window(float(times[0]), float(times[-1]))
    masks_of_job = (*metrics.context.masks, *_saving(side, saves))
    context = replace(metrics.context, window=window, masks=masks_of_job)
    before = len(side.connection.client.asked)
    answers = Answers(side.ask(playbooks.plan(context), deadline_s), context.discovery)
    finer = side.ask(playbooks.follow_up(context, answers), deadline_s)
    answers = Answers([*answers, *finer], context.discovery)
    queries = tuple(side.connection.client.asked[before:])
    return Looked(RunTimeline(context, answers), window, queries, tuple(unanswered(answers)))


def _saving(side: Side, steps: Sequence[int]) -> list[Mask]:
    """The time of steps that are left out, also of those where only the other job saved."""
    dated = side.run.dated
    spans = []
    for step in steps:
        start, end = dated.at(step - 1), dated.at(step)
        if start is not None and end is not None:
            spans.append(Mask(SAVE, start, end))
    return spans


def compare(a: Looked | None, b: Looked | None) -> list[ComparedMetrics]:
    """Every line of the checklist, also after one that differs: sources add up."""
    with warnings.catch_warnings():
        # Of a row without any sample numpy warns, and gives the NaN that is wanted.
        warnings.simplefilter("ignore", RuntimeWarning)
        return [_compared(measure, a, b) for measure in MEASURES]


def _compared(measure: Measure, a: Looked | None, b: Looked | None) -> ComparedMetrics:
    hosts_a, reason_a = _by_host(measure, a)
    hosts_b, reason_b = _by_host(measure, b)
    reasons = {"A": reason_a, "B": reason_b}
    missing = "; ".join(f"job {name}: {reason}" for name, reason in reasons.items() if reason)
    values = _of_job(measure, hosts_a, reason_a), _of_job(measure, hosts_b, reason_b)
    return ComparedMetrics(measure, *values, hosts_a, hosts_b, missing)


def _of_job(measure: Measure, hosts: Mapping[str, float], missing: str) -> float | None:
    if missing:
        return None
    values = list(hosts.values())
    if measure.how == MEAN and values:
        return float(np.mean(values))
    return float(sum(values))


def _by_host(measure: Measure, looked: Looked | None) -> tuple[dict[str, float], str]:
    """One value a host, or why there is none. What keeps only faults has none where all is well."""
    if looked is None:
        return {}, "no metrics of these steps"
    scene = looked.scene
    reason = scene.missing(measure.question)
    if reason:
        return {}, reason
    table = scene.steady(measure.question).pick(measure.pick)
    if not len(table) and measure.how == MEAN:
        return {}, "metric absent"
    by_host: dict[str, float] = {}
    for place, row in table:
        value = _over_time(measure, table, row)
        if value is None:
            continue
        if measure.how == MEAN:
            by_host[place.host] = value
        else:
            by_host[place.host] = by_host.get(place.host, 0.0) + value
    if measure.how == MEAN and not by_host:
        return {}, "no sample in these steps"
    return by_host, ""


def _over_time(measure: Measure, table: ResultTable, row: Floats) -> float | None:
    finite = row[np.isfinite(row)]
    if not finite.size:
        return None
    if measure.how == MEAN:
        return float(finite.mean())
    if measure.how == WORST:
        return float(finite.max())
    if measure.metric == DMESG:  # a count of lines that the ring buffer may lose again
        return max(0.0, float(finite[-1] - finite[0]))
    return float(finite.sum()) / table.overlap


def _apart(measure: Measure, a: float, b: float) -> bool:
    change = abs(b - a)
    return change > measure.share * min(abs(a), abs(b)) and change > measure.least


def odd_hosts(compared_metrics: ComparedMetrics, of_b: bool) -> list[str]:
    """Hosts of one job that are beyond all of the other job's, the furthest first."""
    measure = compared_metrics.measure
    sign = -1.0 if measure.falls else 1.0
    _, theirs = compared_metrics.of(not of_b)
    limit = max((sign * value for value in theirs.values()), default=0.0)
    away = {}
    for host, value in compared_metrics.of(of_b)[1].items():
        if sign * value > limit and _apart(measure, limit, sign * value):
            away[host] = -sign * value
    return sorted(away, key=away.__getitem__)
