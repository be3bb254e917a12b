"""The loss that workers, or the driver, printed last: one that is no number does not come back."""

import itertools
import re
from collections.abc import Iterator

from raydiag.model import Evidence, Finding, Snapshot
from raydiag.probes.ray_logs import RayLog
from raydiag.rules.machines import machines

_NO_NUMBER = re.compile(r"\bloss['\"]?\s*[:=]\s*(?:nan|[-+]?inf(?:inity)?)\b", re.IGNORECASE)
_MOST_EVIDENCE = 4


def diverged_loss(snapshot: Snapshot) -> Iterator[Finding]:
    """One finding for all: ranks share their loss. Both samples, since a step may be skipped."""
    evidence = list(itertools.islice(_lines(snapshot), _MOST_EVIDENCE))
    if evidence and snapshot.job_start is not None:
        yield Finding("loss-divergence", evidence=tuple(evidence))


def _lines(snapshot: Snapshot) -> Iterator[Evidence]:
    for machine in machines(snapshot):
        for samples in machine.newest(RayLog):
            lines = (samples.first.step_line, samples.later.step_line)
            if all(map(_NO_NUMBER.search, lines)) and _is_of_now(samples.first, snapshot):
                yield machine.evidence(f"{machine.name}:{samples.later.path}", lines[1])


def _is_of_now(log: RayLog, snapshot: Snapshot) -> bool:
    """Whether a living worker printed it, or the driver of a job that runs."""
    return log.component == "worker" or log.job_id in snapshot.running
