"""What the symptoms of a sick observability stack are judged from, and what they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from raydiag.model import (
    Confidence,
    Evidence,
    Finding,
    Severity,
)
from raydiag.playbooks.context import Context
from raydiag.playbooks.masks import MetricSteps, sampled_at
from raydiag.playbooks.observations import Observation
from raydiag.playbooks.query_results import Answers
from raydiag.tsdb.stack_logs import StackLine, StackLogs

ID = "observability"

EVIDENCE = 4


@dataclass(frozen=True)
class Stack:
    """All that the symptoms are judged from."""

    context: Context
    answers: Answers
    logs: StackLogs
    steps: MetricSteps
    last_step: Optional[int] = None  # by the job's log
    is_ray: bool = True  # the job started Ray, so its metrics should be there

    @property
    def end(self) -> float:
        return self.context.window.end

    @property
    def resolution_s(self) -> float:
        return self.context.resolution_s()


def observation(
    failure_class: str,
    row: str,
    evidence: Sequence[Evidence],
    host: Optional[str] = None,
    onset: Optional[float] = None,
    severity: Optional[Severity] = None,
    until: Optional[float] = None,
    uncertainty_s: float = 0.0,
    recovered: bool = False,
    confidence: Confidence = Confidence.CONFIRMED,
) -> Observation:
    finding = Finding(
        failure_class,
        host,
        severity=severity,
        onset=onset,
        confidence=confidence,
        evidence=tuple(evidence[:EVIDENCE]),
    )
    return Observation(
        finding, ID, row, until=until, recovered=recovered, uncertainty_s=uncertainty_s
    )


def log_lines(lines: Iterable[StackLine]) -> list[Evidence]:
    return [Evidence(f"{one.file}:{one.line}", one.text, time=one.time) for one in lines]


def newest_samples(stack: Stack, source: str) -> dict[str, float]:
    """Newest sample by host."""
    found = sampled_at(stack.context, stack.answers, source)
    return {host: float(values.max()) for host, (_, values) in found.items()}


def scraped(stack: Stack, host: str) -> bool:
    """Whether the host's exporter answered Prometheus, whatever it had to say."""
    targets = stack.context.discovery.targets
    return any(one.host == host and one.job == "node_hw" and one.share_up > 0 for one in targets)
