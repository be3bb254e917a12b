"""The loss that workers, or the driver, printed last: one that is no number does not come back."""

import itertools
import re
from collections.abc import Iterator

from raydiag.model import Evidence, Finding, Snapshot
from raydiag.probes.ray_logs import RayLog
from raydiag.rules.machines import Samples, machines

_NO_NUMBER = re.compile(r"\bloss['\"]?\s*[:=]\s*(?:nan|[-+]?inf(?:inity)?)\b", re.IGNORECASE)
_SKIPPED = re.compile(r"\bskipped iterations:\s*[1-9]")
_MOST_EVIDENCE = 4


def diverged_loss(snapshot: Snapshot) -> Iterator[Finding]:
    """One finding for all: ranks share their loss. Two steps, since one may be skipped."""
    evidence = list(itertools.islice(_lines(snapshot), _MOST_EVIDENCE))
    if evidence and snapshot.job_start is not None:
        yield Finding("loss-divergence", evidence=tuple(evidence))


def _lines(snapshot: Snapshot) -> Iterator[Evidence]:
    for machine in machines(snapshot):
        for samples in machine.newest(RayLog):
            lines = _last_lines(samples)
            is_lasting = len(lines) > 1 and all(map(_is_no_number, lines))
            if is_lasting and _is_of_now(samples.first, snapshot):
                yield machine.evidence(f"{machine.name}:{samples.later.path}", lines[-1])


def _last_lines(samples: Samples[RayLog]) -> list[str]:
    """Of different steps, as far as the two samples have them: the newest last."""
    first, later = samples.first, samples.later
    lines = [first.step_line] if first.step != later.step else []
    return [*lines, *filter(None, [later.step_line_before]), later.step_line]


def _is_no_number(line: str) -> bool:
    """Loss scaling skips a step whose gradients are too large, and says so."""
    return bool(_NO_NUMBER.search(line)) and not _SKIPPED.search(line)


def _is_of_now(log: RayLog, snapshot: Snapshot) -> bool:
    """Whether a living worker printed it, or the driver of a job that runs."""
    return log.component == "worker" or log.job_id in snapshot.running
