"""What a decision on a job rests on, and the decision."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydiag.joblog.facts import JobFacts
from raydiag.model import Confidence
from raydiag.triage.kernel_log import Witness, witnesses
from raydiag.triage.loss import Divergence, divergence
from raydiag.triage.phases import phase
from raydiag.triage.stall import StallJudgement, pace
from raydiag.triage.symptoms import Symptom, live, symptoms
from raydiag.triage.verdict import JobStatus, Moment, Phase, TrainingProgress


@dataclass(frozen=True)
class TriageCase:
    """All that a decision rests on."""

    facts: JobFacts
    moment: Moment
    progress: TrainingProgress
    symptoms: Sequence[Symptom]
    live: Sequence[Symptom]  # those that can have ended the job
    stall: StallJudgement
    divergence: Divergence | None
    phase: Phase | None
    witnesses: Sequence[Witness] = ()  # of faults of nodes, by kernel lines in the log

    @property
    def diverged(self) -> Divergence | None:
        """A loss that was not finite up to the end; None without one, or when it recovered."""
        if self.divergence is None or not self.divergence.lasting:
            return None
        return self.divergence

    @property
    def late_phase(self) -> Phase | None:
        """The start-up phase that takes longer than normal; None without one."""
        if self.phase is None or not self.phase.late:
            return None
        return self.phase


@dataclass(frozen=True)
class TriageOutcome:
    """The decision, before it is put into words."""

    status: JobStatus
    primary: str | None = None
    rule: str = ""
    cascade: tuple[str, ...] = ()
    confidence: Confidence = Confidence.LIKELY
    origin: Symptom | None = None
    stall: StallJudgement | None = None  # of a hang


def examined(facts: JobFacts, moment: Moment, progress: TrainingProgress) -> TriageCase:
    """Everything that the rules look at, worked out once."""
    observed = symptoms(facts)
    return TriageCase(
        facts=facts,
        moment=moment,
        progress=progress,
        symptoms=observed,
        live=[symptom for symptom in live(observed) if not symptom.failure.survivable],
        stall=pace(facts, progress, moment),
        divergence=divergence(facts.steps),
        phase=phase(facts, moment),
        witnesses=witnesses(facts),
    )


def single(
    status: JobStatus, primary: str, rule: str, confidence: Confidence = Confidence.LIKELY
) -> TriageOutcome:
    """The decision for a failure without consequences."""
    return TriageOutcome(status, primary, rule, (primary,), confidence)
