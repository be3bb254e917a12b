"""One node of an investigation: its signs weighed, and all that its administrator has to know."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from raydiag.explain.driver_fault.hardware import (
    gpu_events,
    gpu_states,
    kernel_lines,
    stuck_tasks,
)
from raydiag.explain.driver_fault.signs import FAULT, kinds, signs_in_series, signs_on_node
from raydiag.explain.driver_fault.types import (
    ON_NODE,
    GpuEvent,
    InvestigatedNode,
    NodeVerdict,
    Onset,
    Sign,
    SignKind,
)
from raydiag.model import Confidence, Finding, Severity, Snapshot, Status
from raydiag.playbooks.node_failure.driver import DriverSigns
from raydiag.probes.exporter import Exporter
from raydiag.probes.versions import Version
from raydiag.rules.kernel_stacks import gpu_stacks
from raydiag.rules.machines import Machine

_COMPARED = ("kernel_log", "d_state")  # a node is clean only where both were looked at
_REPORTED = (*_COMPARED, "ras", "bad_pages", "nvidia", "exporter", "versions", "pids")
_READ = frozenset((Status.OK, Status.NO_DATA))
_NO_SERIES = DriverSigns("")


@dataclass(frozen=True)
class NodeCase:
    """All that is known of one node that answered, or that only series know."""

    host: str
    machine: Machine | None
    snapshot: Snapshot
    findings: Sequence[Finding]  # of this node, about GPUs and their drivers
    series: DriverSigns | None  # None: none were asked, or none name it
    no_series: str  # why
    dated: bool = True

    def investigated(self) -> InvestigatedNode:
        """The node with its verdict."""
        signs = signs_in_series(self.series) if self.series is not None else []
        if self.machine is None:
            verdict, reason = self._verdict(signs, "only the metrics know it: no node was asked")
            known = InvestigatedNode(self.host, "", verdict, reason, asked=False)
            return self._with_series(known, signs)
        signs = [*signs_on_node(self.machine, self.snapshot), *signs]
        verdict, reason = self._verdict(signs, self._unchecked(self.machine))
        seen_events = gpu_events(self.machine)
        versions = map(attrgetter("component", "version"), self.machine.records(Version))
        return self._with_series(
            InvestigatedNode(
                self.host,
                self.machine.reports[0].node.address,
                verdict,
                reason,
                versions=dict(versions),
                stacks=tuple(gpu_stacks(kernel_lines(self.machine))),
                events=tuple(seen_events),
                stuck=stuck_tasks(self.machine),
                onset=self._kernel_onset(seen_events),
                gpus=tuple(gpu_states(self.machine, self.snapshot, seen_events)),
                unread=tuple(self._unread(self.machine)),
                dated=self.dated,
            ),
            signs,
        )

    @property
    def _problems(self) -> list[Finding]:
        return [one for one in self.findings if one.severity is not Severity.INFO]

    def _with_series(self, node: InvestigatedNode, signs: Sequence[Sign]) -> InvestigatedNode:
        """With what holds of every node: signs, findings, and what the series know."""
        series = self.series or _NO_SERIES
        counter, source = series.errors, "newest sample" if self.series else self.no_series
        if self.series is not None and series.errors is None:
            source = "the exporter of this node has no such series"
        served = self.machine.records(Exporter) if self.machine and counter is None else []
        for exporter in served:
            if exporter.gpu_errors is not None:
                counter, source = exporter.gpu_errors, f"127.0.0.1:{exporter.port}/metrics"
        onset = replace(node.onset, metric=series.onset, metric_not_later_than=series.is_bound)
        classes = tuple(dict.fromkeys(map(attrgetter("failure_class"), self._problems)))
        return replace(
            node,
            signs=tuple(signs),
            findings=tuple(self.findings),
            classes=classes,
            onset=onset,
            errors_counter=counter,
            errors_counter_source=source,
        )

    def _verdict(self, signs: Sequence[Sign], unchecked: str) -> tuple[NodeVerdict, str]:
        """What was found outweighs what was not seen; what was not seen is never clean."""
        shown = sorted(kinds(signs), key=list(SignKind).index)
        named = ", ".join(map(attrgetter("value"), shown))
        others = [one for one in self._problems if one.failure_class != FAULT]
        certain = [one for one in others if one.confidence is Confidence.CONFIRMED]
        classes = ", ".join(dict.fromkeys(map(attrgetter("failure_class"), certain or others)))
        besides = f"; besides: {classes}" if classes else ""
        if len(shown) > 1:
            return (
                NodeVerdict.CONFIRMED,
                f"{len(shown)} independent signs of {FAULT}: {named}{besides}",
            )
        if certain and not ON_NODE.intersection(shown):
            return NodeVerdict.CONFIRMED, f"the node reports {classes}"
        if shown:
            return NodeVerdict.SUSPECT, f"one sign of {FAULT} alone: {named}{besides}"
        if others:
            return NodeVerdict.SUSPECT, f"signs of {classes}"
        if unchecked:
            return NodeVerdict.NOT_CHECKED, unchecked
        return NodeVerdict.CLEAN, "no sign in its kernel log and among its blocked tasks"

    def _unchecked(self, machine: Machine) -> str:
        """What must be read before a node is clean, and was not; "" where all of it was."""
        for probe in _COMPARED:
            results = machine.results(probe)
            if not results:
                return f"{probe} was not read"
            if _READ.isdisjoint(map(attrgetter("status"), results)):
                return f"{probe}: {results[0].reason or results[0].status.value}"
        return ""

    def _unread(self, machine: Machine) -> Iterator[str]:
        """What an administrator would look for in the report, and why it is not there."""
        for probe in _REPORTED:
            for result in machine.results(probe):
                if result.status in (Status.DENIED, Status.TIMEOUT, Status.ERROR):
                    yield f"{probe}: {result.reason or result.status.value}"
                yield from map("{0.source}: {0.reason}".format, result.unread)

    def _kernel_onset(self, seen_events: Sequence[GpuEvent]) -> Onset:
        """The first line about the fault: of the driver fault itself where there is one."""
        problems = [event for event in seen_events if event.severity is not Severity.INFO]
        # What is of the driver fault comes before what is not.
        problems.sort(key=lambda event: (event.failure_class != FAULT, event.first))
        first = next(iter(problems), None)
        if first is None:
            return Onset()
        return Onset(first.first, first.uncertainty_s, first.not_later_than)
