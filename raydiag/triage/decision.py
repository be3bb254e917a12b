"""What a decision on a job rests on, and the decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from raydiag import catalog
from raydiag.joblog.facts import JobFacts
from raydiag.model import Confidence
from raydiag.triage.loss import Divergence, divergence
from raydiag.triage.phases import phase
from raydiag.triage.stall import StallJudgement, pace
from raydiag.triage.symptoms import Symptom, live, symptoms
from raydiag.triage.verdict import JobStatus, Moment, Phase, TrainingProgress

TERMINATED = (130, 143)  # SIGINT, SIGTERM: somebody ended it


@dataclass(frozen=True)
class TriageCase:
    """All that a decision rests on."""

    facts: JobFacts
    moment: Moment
    progress: TrainingProgress
    found: Sequence[Symptom]
    live: Sequence[Symptom]
    stall: StallJudgement
    divergence: Optional[Divergence]
    phase: Optional[Phase]


@dataclass(frozen=True)
class TriageOutcome:
    """The decision, before it is put in words."""

    status: JobStatus
    primary: Optional[str] = None
    rule: str = ""
    origin: Optional[Symptom] = None
    cascade: tuple[str, ...] = ()
    stall: Optional[StallJudgement] = None  # of a hang
    confidence: Confidence = Confidence.LIKELY


def examined(facts: JobFacts, moment: Moment, progress: TrainingProgress) -> TriageCase:
    """Everything that the rules look at, worked out once."""
    found = symptoms(facts)
    return TriageCase(
        facts=facts,
        moment=moment,
        progress=progress,
        found=found,
        live=[one for one in live(found) if not catalog.failure(one.failure_class).survivable],
        stall=pace(facts, progress, moment),
        divergence=divergence(facts.steps),
        phase=phase(facts, moment),
    )


def chain_of(root: str, found: Sequence[Symptom], *more: str) -> tuple[str, ...]:
    """Classes in the order in which they appear, the root first."""
    return tuple(dict.fromkeys([root, *(one.failure_class for one in found), *more]))
