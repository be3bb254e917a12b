"""What the checks look at, and what they answer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from raydiag.model import Coverage, Finding, NodeReport, Severity, Snapshot


class CheckStatus(str, Enum):
    """How a check ended."""

    OK = "ok"
    PROBLEM = "problem"  # somebody should act
    ADVICE = "advice"  # could be better, harms nobody
    UNKNOWN = "unknown"  # not checked


@dataclass(frozen=True)
class CheckResult:
    """One check and its answer."""

    id: str
    area: str  # exposure, versions, privileges, metrics, job
    status: CheckStatus
    title: str  # what was checked, or what is wrong
    hosts: tuple[str, ...] = ()  # of a problem on nodes
    evidence: tuple[str, ...] = ()
    fix: str = ""  # one line; "" where nothing is to be done


@dataclass(frozen=True)
class ScrapeTarget:
    """What a Prometheus says of one of its targets."""

    job: str
    address: str  # the URL that is scraped
    health: str  # up, down, unknown
    error: str
    interval_s: float | None


@dataclass(frozen=True)
class PrometheusSetUp:
    """The server that scrapes the cluster; without a URL, why there is none."""

    url: str = ""
    reason: str = ""
    targets: Sequence[ScrapeTarget] = ()


@dataclass(frozen=True)
class SetUp:
    """A cluster, its nodes, and the machine of the caller."""

    snapshot: Snapshot
    findings: Sequence[Finding]  # of the nodes, completed
    cluster: Mapping[str, Any]  # ray_version, address, ...
    token_is_needed: bool | None  # None: not asked, as of a temporary Ray
    prometheus: PrometheusSetUp
    prometheus_program: str  # path; "" without
    coverage: Coverage  # of the nodes
    raydiag_version: str
    probes_asked: Sequence[str] = field(default_factory=tuple)

    @property
    def is_temporary(self) -> bool:
        """Whether the cluster was started for this call."""
        return self.cluster.get("address") == "local"

    @property
    def answered(self) -> list[NodeReport]:
        """Nodes that said anything."""
        return [report for report in self.snapshot.nodes if report.probes]

    def without(self, told: Callable[[NodeReport], bool]) -> tuple[str, ...]:
        """Hosts that have not `told` something, or nothing at all.

        Nodes that left on purpose are not missed.
        """
        silent = [blind.host for blind in self.coverage.blind]
        partly = [report.node.host for report in self.answered if not told(report)]
        return tuple(dict.fromkeys((*partly, *silent)))

    def findings_of(self, *classes: str) -> list[Finding]:
        """Findings of these classes that are more than a note."""
        return [
            finding
            for finding in self.findings
            if finding.failure_class in classes and finding.severity is not Severity.INFO
        ]


def not_checked(well: CheckResult, blind: tuple[str, ...]) -> CheckResult:
    """The same check where these hosts did not tell: silence is not health."""
    first = well.title.split()[0]
    words = well.title if first.isupper() else f"{well.title[0].lower()}{well.title[1:]}"
    title = f"Not checked on every node: {words}"
    return CheckResult(well.id, well.area, CheckStatus.UNKNOWN, title, blind)


def hosts_of(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Each host once, in order."""
    return tuple(dict.fromkeys(finding.host for finding in findings if finding.host))


def texts_of(findings: Iterable[Finding], most: int = 4) -> tuple[str, ...]:
    """The first pieces of evidence, with their host."""
    texts = []
    for finding in findings:
        for evidence in finding.evidence:
            place = f"{finding.host}: " if finding.host else ""
            texts.append(f"{place}{evidence.text}")
    return tuple(texts[:most])
