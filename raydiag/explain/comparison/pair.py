"""Two jobs next to each other, before and after causes are looked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raydiag.explain.comparison.gap import SINCE, SpeedGap
from raydiag.explain.comparison.metrics import ComparedMetrics, Looked, odd_hosts
from raydiag.explain.comparison.settings import Setting
from raydiag.explain.comparison.side import Side
from raydiag.explain.comparison.steps import Overlap
from raydiag.model import Confidence, Finding, HostUnread
from raydiag.playbooks.observations import RuledOut
from raydiag.timeline.training_series import SECONDS, TGS

# Kinds of answers: what makes the difference, or why there is none.
ALIKE, SPIKE, UNRELATED, UNEXPLAINED = "alike", "transient", "not comparable", "unexplained"
UNDECIDED = "undecided"
SETTINGS, NETWORK, LEAK, CPU = "configuration", "rdma", "communicator leak", "cpu"
STORAGE, GPU, OWN = "storage", "gpu", "diagnosis of the slower job"


@dataclass(frozen=True)
class Environment:
    """One fact about where the jobs ran."""

    what: str
    a: str
    b: str

    @property
    def same(self) -> bool:
        """Whether both jobs have it alike."""
        return self.a == self.b


@dataclass(frozen=True)
class SlownessCause:
    """One thing that may make one of the jobs slower."""

    kind: str
    label: str  # of the job that it slows down
    finding: Finding
    explains: str  # one sentence


@dataclass(frozen=True, eq=False)
class Pair:
    """What was seen of both."""

    a: Side
    b: Side
    settings: Sequence[Setting]
    environment: Sequence[Environment]
    overlap: Overlap
    gaps: Sequence[SpeedGap]
    metrics: Sequence[ComparedMetrics]
    looked_a: Looked | None = None
    looked_b: Looked | None = None

    @property
    def speed(self) -> SpeedGap | None:
        """Throughput, else the time of steps; None without either."""
        by_metric = {gap.metric: gap for gap in self.gaps}
        return by_metric.get(TGS) or by_metric.get(SECONDS)

    @property
    def slower_by(self) -> float | None:
        """Percent of the first job's throughput that the second lacks; negative: has more."""
        gap = self.speed
        if gap is None:
            return None
        change = gap.percent
        if gap.kind == SINCE and gap.spike_percent is not None:
            change = gap.spike_percent
        if gap.metric == TGS:
            return -change
        if change <= -100:
            return None
        # A step that takes twice as long is half the throughput.
        return 100.0 * (1.0 - 1.0 / (1.0 + change / 100.0))

    @property
    def slower(self) -> Side | None:
        """The slower job where the difference stays; None otherwise."""
        by = self.slower_by
        if self.speed is None or by is None or not self.speed.stays:
            return None
        return self.b if by > 0 else self.a

    def may_be_slower(self, cause: SlownessCause) -> bool:
        """Whether a cause slows the slower job; any does where neither is slower."""
        return self.slower is None or cause.label == self.slower.label

    @property
    def lacks_percent(self) -> float:
        """Of the faster job's throughput, what the slower one lacks."""
        by = self.slower_by or 0.0
        return by if by >= 0 else -100.0 * by / (100.0 - by)

    def looked(self, side: Side) -> Looked | None:
        """What was queried of a side; None without metrics."""
        return self.looked_a if side is self.a else self.looked_b

    def unread(self, side: Side) -> Sequence[HostUnread]:
        """What failed of the queries about a side; nothing of a job that is none of the two."""
        looked = self.looked(side) if side in (self.a, self.b) else None
        return looked.unread if looked is not None else ()

    def other(self, side: Side) -> Side:
        """The other one of the two jobs."""
        return self.b if side is self.a else self.a

    def metric(self, name: str) -> ComparedMetrics | None:
        """A compared metric by its name; None where it is not measured."""
        named = (compared for compared in self.metrics if compared.measure.metric == name)
        return next(named, None)

    def values(self, name: str, side: Side) -> tuple[float | None, Mapping[str, float]]:
        """A metric of one job: the job's value and that of each host."""
        compared = self.metric(name)
        return (None, {}) if compared is None else compared.of(side is self.b)

    def differing(self, name: str) -> ComparedMetrics | None:
        """A compared metric that differs between the jobs; None where it does not."""
        compared = self.metric(name)
        return compared if compared is not None and compared.differs else None

    def is_same(self, name: str) -> bool:
        """Whether both jobs have a metric, and have it alike."""
        compared = self.metric(name)
        return compared is not None and compared.differs is False

    def odd_hosts(self, name: str, side: Side) -> list[str]:
        """Hosts of one job that stand out by a metric that differs, the furthest first."""
        compared = self.differing(name)
        return odd_hosts(compared, side is self.b) if compared is not None else []


@dataclass(frozen=True)
class ComparisonAnswer:
    """Why the two differ."""

    kind: str
    failure_class: str  # of the root; healthy, or unknown
    confidence: Confidence
    summary: str
    slower: str | None = None  # label of the slower job, where the difference stays
    hosts: tuple[str, ...] = ()
    trace: str = ""  # where to read in the sources, when a mechanism is missing


@dataclass(frozen=True, eq=False)
class Contrast:
    """The whole answer about two jobs."""

    pair: Pair
    answer: ComparisonAnswer
    causes: Sequence[SlownessCause]
    ruled_out: Sequence[RuledOut]
    notes: Sequence[str] = ()
