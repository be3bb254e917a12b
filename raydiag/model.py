"""The vocabulary: the few types that cross modules.

Times are Unix seconds UTC (float), sizes bytes, durations seconds. Everything is frozen and made of
plain values, so that `dataclasses.asdict` gives JSON. Runs on Python 3.9: no dependency, no import
of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any, Optional, Union


class Status(str, Enum):
    """What became of one probe or one source. Missing, refused and stuck are not zero."""

    OK = "ok"
    NO_DATA = "no_data"
    DENIED = "denied"
    TIMEOUT = "timeout"
    ERROR = "error"


class NodeStatus(str, Enum):
    """What became of one node: `ok` when every probe ended with ok, no_data or denied."""

    OK = "ok"
    PARTIAL = "partial"
    TIMEOUT = "timeout"
    DEAD = "dead"
    UNREACHABLE = "unreachable"


class Severity(str, Enum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for info, 2 for critical."""
        return ("info", "warning", "critical").index(self.value)


class Confidence(str, Enum):
    POSSIBLE = "possible"
    LIKELY = "likely"
    CONFIRMED = "confirmed"

    @property
    def rank(self) -> int:
        """0 for possible, 2 for confirmed."""
        return ("possible", "likely", "confirmed").index(self.value)

    def at_most(self, limit: Confidence) -> Confidence:
        """The lower one of the two."""
        return min(self, limit, key=attrgetter("rank"))


@dataclass(frozen=True)
class Node:
    """A node as Ray's global control store lists it."""

    node_id: str  # 56 hex digits
    hostname: str  # as the raylet reported it; may be fully qualified
    address: str  # NodeManagerAddress
    alive: bool = True
    death_reason: str = ""  # Ray's DeathReason and its message; empty while alive
    ended_at: Optional[float] = None  # Unix s; None while alive, or where Ray does not say

    @functools.cached_property
    def host(self) -> str:
        """Short host name, the `host` of every finding; the address when Ray has no name."""
        if ":" in self.hostname or self.hostname.replace(".", "").isdigit():
            return self.hostname  # an IP address, which has no short form
        return self.hostname.split(".")[0] or self.address

    @property
    def machine(self) -> tuple[str, str]:
        """What tells machines apart: clones, or hosts of several domains, share a short name."""
        return self.host, self.address


@dataclass(frozen=True)
class Window:
    start: float
    end: float
    step: float = 0.0


@dataclass(frozen=True)
class Unread:
    """One source that gave no value, and why; goes to `coverage.unread`."""

    source: str  # path on the node, or the probe's name
    status: Status
    reason: str


@dataclass(frozen=True)
class ProbeResult:
    """One probe on one node. `records` are the probe's own frozen dataclasses."""

    probe: str
    status: Status
    duration_s: float = 0.0
    reason: str = ""
    records: Sequence[Any] = ()
    unread: Sequence[Unread] = ()
    later: Sequence[Any] = ()  # records of the second sample, for probes that take two
    interval_s: float = 0.0  # from the first sample to the second


@dataclass(frozen=True)
class StuckReader:
    """A guarded child of ours that hangs in the kernel on `source`; it ends when the read does."""

    source: str  # path on the node, or the probe's name
    probe: str
    pid: int  # on the node
    seconds: float  # since it was started
    wchan: str = ""  # kernel symbol it waits in; empty when unknown
    new: bool = True  # False: left by an earlier run, and this run stayed away from the source


@dataclass(frozen=True)
class LastWords:
    """What the resident agent remembers of a node that gave no answer."""

    last_seen: float  # Unix s
    kernel_log: tuple[tuple[float, str], ...] = ()  # Unix s and text, the newest last


@dataclass(frozen=True)
class KnownFinding:
    """What earlier probes have found, as the resident agent remembers it."""

    failure_class: str
    host: str  # "" where it has none, as `gpu` and `device`
    gpu: str
    device: str
    severity: str
    first_seen: float  # Unix s
    last_seen: float
    times: int  # probes that found it; 0: it is new
    jobs: tuple[str, ...] = ()  # submission ids of the jobs that ran meanwhile

    @property
    def key(self) -> tuple[str, str, str, str]:
        """By which a finding is found again."""
        return self.failure_class, self.host, self.gpu, self.device


@dataclass(frozen=True)
class NodeReport:
    """Everything that one node answered, or why it did not."""

    node: Node
    status: NodeStatus
    duration_s: float = 0.0
    reason: str = ""  # set unless status is ok
    probes: Mapping[str, ProbeResult] = field(default_factory=dict)
    stuck: Sequence[StuckReader] = ()
    sandbox: Mapping[str, Any] = field(default_factory=dict)
    collected_at: float = 0.0
    cpu_s: float = 0.0  # what the node runner and its readers used
    pid: Optional[int] = None  # of the node runner, in its own PID namespace
    # The node's clock minus the head's: the bounds between which it lies. None: not measured.
    clock_offset_s: Optional[tuple[float, float]] = None
    last_words: Optional[LastWords] = None  # where it gave no answer, and a resident agent is up

    def records(self, probe: str) -> Sequence[Any]:
        """Records of one probe; empty when it did not run, found nothing or failed."""
        result = self.probes.get(probe)
        return result.records if result else ()


@dataclass(frozen=True)
class Actor:
    """A Ray actor that is not ours, as the state API lists it: joins a pid to a training rank."""

    node_id: str
    pid: int
    class_name: str
    name: str  # e.g. "maxtext_trainer_3"; empty when the actor has none
    alive: bool
    job_id: str = ""  # as workers name it, 8 hex digits


@dataclass(frozen=True, eq=False)  # itself and no other: what it leads to is kept by it
class Snapshot:
    """The cluster at one moment: the input of every rule."""

    nodes: Sequence[NodeReport]
    time: float  # of the coordinator, when it asked
    job_start: Optional[float] = None  # earliest start of the jobs that run now; None: no job known
    actors: Sequence[Actor] = ()
    whole_cluster: bool = False  # every node of the cluster was asked
    running: Sequence[str] = ()  # submission ids of the jobs that run now
    known: Optional[Sequence[KnownFinding]] = None  # None: nobody remembers

    @property
    def news_since(self) -> float:
        """From when on things matter, Unix seconds: the start of the jobs, else a day ago."""
        if self.job_start is None:
            return self.time - 86_400.0
        return self.job_start


@dataclass(frozen=True)
class Evidence:
    """What was seen, where, when. `text` is verbatim and may hold anything: render escapes it."""

    source: str  # path, "job.log:1234", the PromQL
    text: str = ""
    value: Optional[float] = None
    time: Optional[float] = None


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: the one currency between rules, diagnosis and render.

    A rule fills class, scope, onset, confidence and evidence. `catalog.completion` adds title, next
    steps and, where the rule left it None, severity from `catalog/failures.yaml`.
    """

    failure_class: str
    host: Optional[str] = None
    gpu: Optional[int] = None
    device: Optional[str] = None  # PCI address, mount point, port, path of a hung file
    pid: Optional[int] = None
    task: Optional[str] = None  # training rank or actor
    severity: Optional[Severity] = None
    onset: Optional[float] = None
    confidence: Confidence = Confidence.CONFIRMED
    evidence: Sequence[Evidence] = ()
    explanation: str = ""
    title: str = ""
    next_steps: Sequence[str] = ()
    address: Optional[str] = None  # of its machine, only where several machines share the host name
    before_job: bool = False  # all of it was so before the job, or the first sample of its metrics
    known: Optional[KnownFinding] = None  # from earlier probes; None: no resident agent remembers

    @property
    def class_and_host(self) -> tuple[str, Optional[str]]:
        """What findings about the same trouble of one host have in common."""
        return self.failure_class, self.host

    @property
    def key(self) -> tuple[str, str, str, str]:
        """By which `KnownFinding` knows it."""
        gpu = "" if self.gpu is None else str(self.gpu)
        return self.failure_class, self.host or "", gpu, self.device or ""


@dataclass(frozen=True)
class Observation:
    """A finding, and what ordering by cause needs besides."""

    finding: Finding
    playbook: str  # id of the playbook; "triage", or "nodes" for what the rules find on nodes
    row: str  # what in it decided: id of a row, name of a rule
    symptom: bool = False  # by its circumstances; some classes always are one, see the catalog
    until: Optional[float] = None  # when it was last seen; None: a fact without an end
    recovered: bool = False  # it ended well before the window did
    uncertainty_s: float = 0.0  # of the onset
    facts: Mapping[str, Union[float, str]] = field(default_factory=dict)  # pattern, kill_time, ...

    @property
    def before_job(self) -> bool:
        """Whether the job began with it."""
        return self.finding.before_job


@dataclass(frozen=True)
class Blind:
    """A node of which nothing could be seen."""

    host: str
    reason: str


@dataclass(frozen=True)
class HostUnread:
    """A source on one host that could not be read."""

    host: str
    source: str
    status: Status
    reason: str

    @classmethod
    def without_host(cls, unread: Unread) -> HostUnread:
        """Of a source that is no host's."""
        return cls("", unread.source, unread.status, unread.reason)


@dataclass(frozen=True)
class Coverage:
    """What the answer rests on. "Healthy" is impossible while `complete` is False."""

    asked: int
    answered: int
    blind: Sequence[Blind] = ()
    unread: Sequence[HostUnread] = ()
    window: Optional[Window] = None

    @property
    def complete(self) -> bool:
        return not self.blind and not self.unread


@dataclass(frozen=True)
class Chain:
    """One root cause and, in order, the findings that it caused."""

    findings: Sequence[Finding]
    confidence: Confidence = Confidence.POSSIBLE


@dataclass(frozen=True)
class Diagnosis:
    """The findings in order (most severe first), how they hang together, and what was not seen."""

    findings: Sequence[Finding]
    chains: Sequence[Chain]
    coverage: Coverage

    @property
    def problems(self) -> list[Finding]:
        """All findings but notes, in the same order."""
        return [finding for finding in self.findings if finding.severity is not Severity.INFO]
