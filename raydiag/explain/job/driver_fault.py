"""What the sources of one job say of the GPU drivers on its nodes."""

from collections.abc import Iterator
from dataclasses import replace

from raydiag.explain.driver_fault import Investigation, investigate
from raydiag.explain.job import ExaminedJob
from raydiag.model import Snapshot


def investigated(
    examined: ExaminedJob, is_selection: bool = False, force_ras: bool = False
) -> Investigation:
    """Of nodes, series and log, as far as there are any.

    `is_selection`: some nodes were named, and are those of which GPUs were asked for.
    """
    explained, metrics = examined.explained, examined.metrics
    snapshot = Snapshot((), metrics.context.now if metrics is not None else 0.0)
    if examined.nodes is not None:
        snapshot = examined.nodes.snapshot
    investigation = investigate(
        snapshot,
        explained.diagnosis.findings,
        explained.diagnosis.coverage,
        metrics.driver_signs if metrics is not None else (),
        examined.log_only,
    )
    verdict = explained.verdict
    return replace(
        investigation,
        metrics=metrics.origin if metrics is not None else "",
        job="" if examined.no_log else f"{verdict.failure_class}: {verdict.summary}",
        named=tuple(_named(snapshot)) if is_selection else (),
        force_ras=force_ras,
    )


def _named(snapshot: Snapshot) -> Iterator[str]:
    """Hosts that were looked at closely."""
    for report in snapshot.nodes:
        if "ras" in report.probes:
            yield report.node.host
