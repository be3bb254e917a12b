"""What the machines of a cluster answered: reports grouped by machine, records and samples of each.

One machine may run several Ray nodes, which then report the same hardware: it is judged once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from raydiag import catalog, model, probes
from raydiag.model import Evidence, Finding, NodeReport, NodeStatus, Snapshot
from raydiag.probes.processes import RayProcess

Record = TypeVar("Record")


@dataclass(frozen=True)
class Samples(Generic[Record]):
    """One record as the two samples of a run show it."""

    first: Record
    later: Record
    seconds: float  # between them


@dataclass(frozen=True, eq=False)
class Machine:
    """One machine that answered, through one or more Ray nodes."""

    name: str  # the `host` of findings, see `machine_names`
    reports: Sequence[NodeReport]
    _records: dict[type, Any] = field(default_factory=dict, repr=False)

    @property
    def read_at(self) -> float | None:
        """When its first report was collected, Unix seconds; None: unknown."""
        return self.reports[0].collected_at or None

    def results(self, probe: str) -> list[model.ProbeResult]:
        """Results of one probe, one for each Ray node that ran it."""
        return [report.probes[probe] for report in self.reports if probe in report.probes]

    def unread(self, probe: str) -> Iterator[model.Unread]:
        """What one probe could not read."""
        return chain.from_iterable(map(attrgetter("unread"), self.results(probe)))

    def records(self, kind: type[Record]) -> Sequence[Record]:
        """All records of a kind, each once: of equal identity the first report's."""
        if kind not in self._records:
            self._records[kind] = self._distinct(kind)
        return cast("Sequence[Record]", self._records[kind])

    def _distinct(self, kind: type[Record]) -> tuple[Record, ...]:
        probe = probes.of_record(kind)
        distinct: dict[Any, Record] = {}
        for result in self.results(probe.name):
            for record in result.records:
                distinct.setdefault(probe.identity_of(record), record)
        return tuple(distinct.values())

    def samples(self, kind: type[Record]) -> list[Samples[Record]]:
        """What both samples show; of several Ray nodes the first that saw it counts."""
        probe = probes.of_record(kind)
        distinct: dict[Any, Samples[Record]] = {}
        for result in self.results(probe.name):
            later = {probe.identity_of(record): record for record in result.later}
            for record in result.records:
                key = probe.identity_of(record)
                if key in later:
                    distinct.setdefault(key, Samples(record, later[key], result.interval_s))
        return list(distinct.values())

    def newest(self, kind: type[Record]) -> list[Samples[Record]]:
        """All records of a kind, each once; where one sample alone has it, twice the same."""
        probe = probes.of_record(kind)
        distinct: dict[Any, Samples[Record]] = {}
        for record in self.records(kind):
            distinct[probe.identity_of(record)] = Samples(record, record, 0.0)
        for samples in self.samples(kind):
            distinct[probe.identity_of(samples.first)] = samples
        return list(distinct.values())

    def working_processes(self) -> list[RayProcess]:
        """Ray workers with work to do, and what they started."""
        return list(filter(_is_working, self.records(RayProcess)))

    def evidence(self, source: str, text: str, value: float | None = None) -> Evidence:
        """A piece of evidence with the time of this machine's report."""
        return Evidence(source, text, value, self.read_at)

    def finding(
        self, failure_class: str, *evidence: Evidence, variant: str = "", **fields: Any
    ) -> Finding:
        """A finding about this machine; `fields`: what else is known of it.

        `variant`: the circumstance, as the catalog has it of the class.
        """
        known = catalog.variant(failure_class, variant) if variant else {}
        return Finding(failure_class, self.name, evidence=evidence, **{**known, **fields})


def _is_working(process: RayProcess) -> bool:
    return process.role in ("worker", "child") and process.command != "ray::IDLE"


@lru_cache(maxsize=1)  # each rule asks for them
def machines(snapshot: Snapshot) -> Sequence[Machine]:
    """The machines that answered, in the order of the node list."""
    names = machine_names(snapshot)
    reports: dict[str, list[NodeReport]] = {}
    for report in snapshot.nodes:
        if report.status in (NodeStatus.OK, NodeStatus.PARTIAL):
            reports.setdefault(names[report.node.machine], []).append(report)
    return tuple(Machine(name, reports_of_machine) for name, reports_of_machine in reports.items())


def each_record(snapshot: Snapshot, kind: type[Record]) -> Iterator[tuple[Machine, Record]]:
    """Every record of a kind with its machine."""
    for machine in machines(snapshot):
        for record in machine.records(kind):
            yield machine, record


def each_sample(
    snapshot: Snapshot, kind: type[Record]
) -> Iterator[tuple[Machine, Samples[Record]]]:
    """Every record of a kind that both samples show, with its machine."""
    for machine in machines(snapshot):
        for samples in machine.samples(kind):
            yield machine, samples


@lru_cache(maxsize=1)
def machine_names(snapshot: Snapshot) -> Mapping[tuple[str, str], str]:
    """What rules call each machine, by `Node.machine`: its host name alone where that is unique.

    Where several machines share a host name, the address follows it, so that no two are mixed up.
    `judge` gives findings the host name back.
    """
    identities = dict.fromkeys(report.node.machine for report in snapshot.nodes)
    sharing = Counter(host for host, _ in identities)
    return {
        (host, address): host if sharing[host] == 1 else f"{host} ({address})"
        for host, address in identities
    }
