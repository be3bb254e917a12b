"""A decision on a job, together with what the kernel lines in its log say of its nodes."""

from dataclasses import replace

from raydiag.model import Confidence
from raydiag.triage import kernel_log
from raydiag.triage.decision import TriageCase, TriageOutcome
from raydiag.triage.symptoms import Symptom, cascade
from raydiag.triage.verdict import JobStatus

_RULE = "the kernel log in the job's log shows a fault of the node"


def explained(case: TriageCase, outcome: TriageOutcome) -> TriageOutcome:
    """The decision, with the fault of a node as its cause where the kernel lines show one."""
    if not case.witnesses or outcome.status is JobStatus.COMPLETED:
        return outcome
    failure_class = outcome.primary
    if failure_class is None:
        return _ended_by_fault(case, outcome)
    if outcome.origin is not None and outcome.origin.failure_class == failure_class:
        placed = kernel_log.with_place(outcome.origin, case.witnesses)
        outcome = replace(outcome, origin=placed)
    time, text = _time_of(case, outcome), outcome.origin.text if outcome.origin else ""
    fault = kernel_log.cause_of(failure_class, time, text, case.witnesses)
    if fault is None or fault.failure_class == failure_class:
        return outcome
    return _with_root(outcome, outcome.status, fault)


def _time_of(case: TriageCase, outcome: TriageOutcome) -> float | None:
    """When the job failed: by the line of its failure; of a hang, by the last step."""
    if outcome.origin is not None:
        return outcome.origin.near_time
    return case.progress.last_step_time if outcome.primary == "hang" else case.facts.last_time


def _ended_by_fault(case: TriageCase, outcome: TriageOutcome) -> TriageOutcome:
    """A log that ends with a grave fault; a job that somebody knows to be alive goes on."""
    fault = kernel_log.last_word(case.facts, case.witnesses)
    if fault is None or case.moment.alive:
        return outcome
    return _with_root(outcome, JobStatus.FAILED, fault)


def _with_root(outcome: TriageOutcome, status: JobStatus, fault: Symptom) -> TriageOutcome:
    return TriageOutcome(
        status,
        fault.failure_class,
        _RULE,
        cascade(fault.failure_class, (), *outcome.cascade),
        Confidence.LIKELY,
        fault,
        outcome.stall,
    )
