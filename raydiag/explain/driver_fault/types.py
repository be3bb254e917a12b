"""What an investigation of GPU driver faults finds: the types between looking and showing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

from raydiag.model import Coverage, Finding, Severity
from raydiag.rules.kernel_stacks import KernelStack as KernelStack


class NodeVerdict(str, Enum):
    """What is said of one node."""

    CLEAN = "clean"
    SUSPECT = "suspect"
    CONFIRMED = "confirmed"
    UNREACHABLE = "unreachable"
    NOT_CHECKED = "not-checked"


FAULTY = (NodeVerdict.CONFIRMED, NodeVerdict.SUSPECT)


class SignKind(str, Enum):
    """What a sign rests on: two of different kinds are independent."""

    KERNEL = "kernel-signature"
    BLOCKED = "blocked-tasks"
    RAS_READ = "hung-ras-read"
    EXPORTER = "exporter-cycles"
    COUNTER = "errors-counter"


ON_NODE = frozenset((SignKind.KERNEL, SignKind.BLOCKED, SignKind.RAS_READ))


@dataclass(frozen=True)
class Sign:
    """One sign of a fault in the driver's error path."""

    kind: SignKind
    text: str
    source: str  # path on the node, or the PromQL
    time: float | None = None  # Unix seconds, since when


@dataclass(frozen=True)
class StuckTasks:
    """Tasks that hang in the driver, and what becomes of the node if they go on to pile up."""

    count: int | None = None  # None: blocked tasks were not looked for
    channels: Mapping[str, int] = field(default_factory=dict)  # kernel function -> tasks
    readers: int = 0  # of them, raydiag's own
    first_start: float | None = None  # Unix seconds, start of the oldest
    last_start: float | None = None
    pid_max: int | None = None
    pids_in_use: int | None = None

    @property
    def per_hour(self) -> float | None:
        """By the starts of the tasks; None where fewer than two tell."""
        if self.first_start is None or self.last_start is None or not self.count:
            return None
        hours = (self.last_start - self.first_start) / 3600
        return (self.count - 1) / hours if hours > 0 else None

    @property
    def hours_left(self) -> float | None:
        """Until no process id is left, at that rate."""
        if not self.per_hour or self.pid_max is None or self.pids_in_use is None:
            return None
        return max(0, self.pid_max - self.pids_in_use) / self.per_hour


@dataclass(frozen=True)
class Onset:
    """Since when, Unix seconds, by two clocks."""

    kernel: float | None = None  # first line of the kernel log
    kernel_uncertainty_s: float = 0.0
    kernel_not_later_than: bool = False  # earlier records are lost
    metric: float | None = None  # first sample of the errors counter above zero
    metric_not_later_than: bool = False  # the series begin with it

    @property
    def first(self) -> float | None:
        """The earlier of the two."""
        return min(filter(None, (self.kernel, self.metric)), default=None)

    @property
    def is_bound(self) -> bool:
        """Whether the earlier of the two only says "not later than"."""
        if self.first == self.kernel:
            return self.kernel_not_later_than
        return self.metric_not_later_than


@dataclass(frozen=True)
class GpuEvent:
    """What the kernel log says of a GPU, once or several times."""

    event: str  # class id of the kernel-log family
    failure_class: str  # that it is evidence of
    device: str | None
    gpu: int | None
    count: int
    first: float  # Unix seconds, to within `uncertainty_s`
    last: float
    uncertainty_s: float
    not_later_than: bool  # it may have begun in records that are lost
    meaning: str  # of the Xid or SXid, else of the class
    next_step: str
    severity: Severity
    text: str  # the first line, verbatim
    reset: str = ""  # "begun", "ended": of a GPU, which mostly reports both


@dataclass(frozen=True)
class GpuState:
    """One GPU of the node, by all its names, and what it counts."""

    gpu: int
    address: str
    uuid: str
    driver: str  # "amdgpu" or "nvidia"
    rank: str  # that runs on it, with its last step; "" unknown
    errors: Mapping[str, tuple[int | None, int | None, int | None]]  # block -> ue, ce, deferred
    # Retired, pending, could not be retired: pages of AMD's memory, rows of NVIDIA's.
    bad_pages: tuple[int, int, int] | None
    resets: int  # that the kernel log reports

    @property
    def is_ill(self) -> bool:
        """Whether it lost data, or was reset."""
        for uncorrectable, _, deferred in self.errors.values():
            if uncorrectable or deferred:
                return True
        # A row that NVIDIA has replaced does no harm, and is no reason to return a GPU.
        pages = (self.bad_pages or ())[self.driver == "nvidia" :]
        return self.resets > 0 or any(pages)


@dataclass(frozen=True)
class InvestigatedNode:
    """All about one node. Empty is what was not seen; why stands in `reason` and `unread`."""

    host: str
    address: str
    verdict: NodeVerdict
    reason: str  # one sentence
    classes: tuple[str, ...] = ()  # failure classes that are a problem
    signs: tuple[Sign, ...] = ()
    findings: tuple[Finding, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)  # component -> version
    stacks: tuple[KernelStack, ...] = ()
    events: tuple[GpuEvent, ...] = ()
    stuck: StuckTasks = field(default_factory=StuckTasks)
    onset: Onset = field(default_factory=Onset)
    errors_counter: float | None = None  # newest hw_dmesg_gpu_errors_total
    errors_counter_source: str = ""  # where it is from, or why there is none
    gpus: tuple[GpuState, ...] = ()
    unread: tuple[str, ...] = ()
    asked: bool = True  # False: only series know it
    dated: bool = True  # False: times are seconds after an unknown boot


@dataclass(frozen=True)
class Investigation:
    """Every node, what was asked besides, and what the job has to do with it."""

    nodes: Sequence[InvestigatedNode]
    findings: Sequence[Finding]  # of all nodes, those about GPUs and their drivers
    coverage: Coverage
    seen_at: float  # Unix seconds
    metrics: str = ""  # where series came from; "" where none were asked
    no_metrics: str = ""  # why none were
    job: str = ""  # the verdict on the job, in a sentence; "" where there is none
    force_ras: bool = False
    named: tuple[str, ...] = ()  # the nodes that were asked for; empty: all

    def of(self, *verdicts: NodeVerdict) -> list[InvestigatedNode]:
        """The nodes with one of these verdicts."""
        return list(filter(lambda node: node.verdict in verdicts, self.nodes))

    @property
    def was_asked(self) -> bool:
        """Whether any node was, or would have been had it answered."""
        return any(map(attrgetter("asked"), self.nodes))

    @property
    def faulty(self) -> list[InvestigatedNode]:
        """Confirmed ones first."""
        return sorted(self.of(*FAULTY), key=lambda node: FAULTY.index(node.verdict))

    @property
    def faulty_by_findings(self) -> list[InvestigatedNode]:
        """Those of them with a problem that has a class, not only a sign of one."""
        return list(filter(attrgetter("classes"), self.faulty))

    @property
    def problems(self) -> list[Finding]:
        """All findings but notes."""
        return [finding for finding in self.findings if finding.severity is not Severity.INFO]

    @property
    def exit_code(self) -> int:
        """1: a problem; 3: none, but not every node could be checked; 0: all are clean."""
        if self.problems:
            return 1
        unseen = self.of(NodeVerdict.UNREACHABLE, NodeVerdict.NOT_CHECKED)
        return 3 if unseen or not self.nodes or not self.coverage.complete else 0

    def others(self, node: InvestigatedNode) -> dict[NodeVerdict, list[str]]:
        """All other nodes by verdict, in the order of verdicts."""
        hosts: dict[NodeVerdict, list[str]] = {}
        for verdict in NodeVerdict:
            rest = list(map(attrgetter("host"), filter(node.__ne__, self.of(verdict))))
            if rest:
                hosts[verdict] = rest
        return hosts
