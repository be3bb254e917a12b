"""Signs of a fault in the error path of a GPU driver, of which `confirmed` needs two kinds.

Kernel log and stuck tasks are read on the node itself; the exporter's cycles and its count of
errors come from series, and the exporter's log stands in where there are none.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from raydiag.catalog import kernel_table
from raydiag.explain.driver_fault.types import Sign, SignKind
from raydiag.exporter_hangs import gpu_timeouts, is_recent
from raydiag.model import Confidence, Evidence, Finding, NodeReport, Observation, Snapshot
from raydiag.playbooks.node_failure.driver import DriverSigns
from raydiag.probes.exporter import Exporter
from raydiag.rules.blocked import driver_faults
from raydiag.rules.kernel import kernel_findings
from raydiag.rules.machines import Machine
from raydiag.timeline.queries import DMESG

FAULT = "gpu-driver-fault"


def signs_on_node(machine: Machine, snapshot: Snapshot) -> list[Sign]:
    """What the node itself shows, of each kind once, in the order in which it was read."""
    alone = replace(snapshot, nodes=machine.reports)
    signs = []
    for rule, kind in ((kernel_findings, SignKind.KERNEL), (driver_faults, SignKind.BLOCKED)):
        for finding in rule(alone):
            is_hint = finding.confidence is Confidence.POSSIBLE
            if finding.failure_class == FAULT and not is_hint:
                signs.append(_sign(kind, finding))
    signs += _exporter_log(machine)
    signs += _hung_ras_reads(machine.reports)
    return signs


def _sign(kind: SignKind, finding: Finding) -> Sign:
    """By the piece of evidence that names the function, else by the first."""
    names_function = re.compile("|".join(kernel_table().driver_fault_symbols)).search
    first = max(finding.evidence, key=lambda piece: bool(names_function(piece.text)))
    return Sign(kind, first.text.strip(), first.source, finding.onset)


def _exporter_log(machine: Machine) -> Iterator[Sign]:
    for exporter in machine.records(Exporter):
        count = gpu_timeouts(exporter.timed_out)
        if count and is_recent(exporter.log_age_s):
            text = f"the exporter's GPU plugin timed out {count} times since the exporter started"
            yield Sign(SignKind.EXPORTER, text, "/tmp/metrics_exporter.log")


def _hung_ras_reads(reports: Iterable[NodeReport]) -> Iterator[Sign]:
    """A RAS file that does not answer, whatever function its reader waits in."""
    symbols = kernel_table().driver_fault_symbols
    for report in reports:
        for reader in report.stuck:
            if "/ras" in reader.source and reader.wchan not in symbols:
                text = f"a read of {reader.source} hangs (pid {reader.pid})"
                yield Sign(SignKind.RAS_READ, text, reader.source)
                return


def signs_in_series(series: DriverSigns) -> list[Sign]:
    """What the series of a host show."""
    signs = [Sign(SignKind.EXPORTER, text, query) for query, text in series.exporter.items()]
    if series.is_only_here:
        text = f"{series.most_errors:.0f} GPU errors in its kernel log, "
        if series.few and series.others_clean:
            text += f"none in those of {series.others_clean} other nodes"
        else:
            text += f"new ones among them; none are new on {series.others_still} other nodes"
        signs.append(Sign(SignKind.COUNTER, text, DMESG, series.onset))
    return signs


def kinds(signs: Iterable[Sign]) -> set[SignKind]:
    """Those that are independent of each other."""
    return set(map(attrgetter("kind"), signs))


def with_series(
    of_nodes: Iterable[Observation], all_series: Sequence[DriverSigns]
) -> list[Observation]:
    """What nodes show of such faults, confirmed where the host's series show one as well."""
    series_of = {series.host: series for series in all_series}
    weighed = []
    for observation in of_nodes:
        finding = observation.finding
        series = series_of.get(finding.host or "")
        is_likely = finding.confidence is Confidence.LIKELY
        if finding.failure_class == FAULT and is_likely and series is not None:
            signs = signs_in_series(series)
            if signs:
                told = [Evidence(sign.source, sign.text, time=sign.time) for sign in signs]
                finding = replace(
                    finding,
                    confidence=Confidence.CONFIRMED,
                    evidence=(*finding.evidence, *told),
                )
        weighed.append(replace(observation, finding=finding))
    return weighed
