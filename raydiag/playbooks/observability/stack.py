"""What the symptoms of a faulty observability stack are judged from, and what they share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from raydiag.model import Confidence, Evidence, Finding, Observation, Severity
from raydiag.playbooks.tables import ROWS
from raydiag.timeline.answers import ALIVE, EXPORTER, RAY, Answers
from raydiag.timeline.context import Context
from raydiag.timeline.queries import SCRAPE
from raydiag.timeline.steps import MetricSteps
from raydiag.tsdb.discovery_types import Target, is_address
from raydiag.tsdb.stack_logs import StackLine, StackLogs
from raydiag.tsdb.unread import unanswered

ID = "observability"

_MAX_EVIDENCE = 4
# Rows that are judged by when samples came.
_BY_SAMPLES = ("gap", "exporter-down", "ray-metrics", "hosts-missing")


@dataclass(frozen=True)
class Stack:
    """All that the symptoms are judged from."""

    context: Context
    answers: Answers
    logs: StackLogs
    steps: MetricSteps
    last_step: int | None = None  # by the job's log
    is_ray: bool = True  # the job started Ray, so its metrics should be there

    @property
    def end(self) -> float:
        """Of the window."""
        return self.context.window.end

    @property
    def resolution_s(self) -> float:
        """Usual distance of two samples."""
        return self.context.resolution_s()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Of the job, whether they have series or not."""
        return self.context.hosts

    def newest_samples(self, source: str) -> dict[str, float]:
        """Newest sample of each host, of its exporter or of its Ray."""
        sample_times = self.answers.sample_times(source)
        return {host: float(stamps.max()) for host, (_, stamps) in sample_times.items()}

    @cached_property
    def nameless(self) -> frozenset[str]:
        """Hosts whose Ray is known by an address alone, and nothing says which address is whose.

        So many addresses of Ray as there are hosts without it: none is known to be missing. That
        may hide one where an address is no host's of the job; to accuse a host that has its Ray
        under its address is the worse error.
        """
        exporters, ray = self.newest_samples(EXPORTER), self.newest_samples(RAY)
        addresses = [
            host.name
            for host in self.context.discovery.hosts
            if is_address(host.name) and host.name not in exporters and host.sample_range("ray_")
        ]
        names = [host for host in exporters if not is_address(host) and host not in ray]
        return frozenset(names) if 0 < len(names) <= len(addresses) else frozenset()

    @property
    def _exporters(self) -> list[Target]:
        return [target for target in self.context.discovery.targets if target.job == "node_hw"]

    def is_scraped(self, host: str) -> bool:
        """Whether the host's exporter answered Prometheus, whatever it had to say."""
        return any(target.host == host and target.share_up > 0 for target in self._exporters)

    @cached_property
    def silent(self) -> frozenset[str]:
        """Hosts whose exporter did not answer its last scrape, though that of another did."""
        answering = {target.host for target in self._exporters if target.up}
        all_hosts = frozenset(target.host for target in self._exporters)
        return all_hosts - answering if answering else frozenset()

    @cached_property
    def translated(self) -> frozenset[str]:
        """Hosts with other exporters than ours."""
        dialects = self.context.discovery.dialects
        return frozenset(chain.from_iterable(dialect.hosts for dialect in dialects))

    @cached_property
    def never_there(self) -> Mapping[str, str]:
        """Why a symptom cannot be judged, by row: what was never installed is not missing."""
        hw, ray = self.newest_samples(EXPORTER), self.newest_samples(RAY)
        reasons: dict[str, str] = {}
        if self.translated:
            timed = ("plugin-timeout", "plugin-skipped", "ghost-data")
            if SCRAPE not in self.answers.table("driver").metrics:
                reasons |= dict.fromkeys(timed, "the exporters do not time their cycles")
            if self.context.discovery.family("tb_") is None:
                reasons["bridge-gap"] = "no tb_* was ever there"
            if not ray:
                reasons["ray-metrics"] = "no ray_node_* was ever there"
        if any(unread.source == ALIVE for unread in unanswered(self.answers)):
            # No answer is no sign that nothing was there.
            reasons |= dict.fromkeys(_BY_SAMPLES, "when samples came was not answered")
        if not len(self.answers.table("cycle-age")):
            reasons["clock-skew"] = "no series tells the time of a node's own clock"
        if not hw and not self._exporters and not self.logs.lines:
            reasons["exporter-down"] = "no exporter of hardware metrics was ever there"
        if hw and ray and not hw.keys() & ray.keys():
            reasons["ray-metrics"] = "Ray's series and the exporters' name no host alike"
        if not {*hw, *ray}.intersection(self.hosts):
            reasons["hosts-missing"] = "no series names a host of the job"
        return reasons

    def evidence_of_samples(self, text: str, value: float, time: float) -> Evidence:
        """About when samples came."""
        return Evidence(self.answers.promql(ALIVE), text, value, time)


def observation(
    row: str,
    evidence: Sequence[Evidence],
    host: str | None = None,
    onset: float | None = None,
    severity: Severity | None = None,
    until: float | None = None,
    uncertainty_s: float = 0.0,
    recovered: bool = False,
) -> Observation:
    """A symptom of the stack, with at most four pieces of evidence."""
    finding = Finding(
        ROWS[row].failure_class,
        host,
        severity=severity,
        onset=onset,
        confidence=Confidence.CONFIRMED,
        evidence=tuple(evidence[:_MAX_EVIDENCE]),
    )
    return Observation(
        finding, ID, row, until=until, recovered=recovered, uncertainty_s=uncertainty_s
    )


def log_evidence(lines: Iterable[StackLine]) -> list[Evidence]:
    """Lines of the stack's own logs."""
    return [Evidence(f"{line.file}:{line.line}", line.text, time=line.time) for line in lines]
