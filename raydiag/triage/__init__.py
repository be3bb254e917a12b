"""JUDGE: what a job's logs say -> status, failure class, first cause, progress, what was lost.

Pure functions over `joblog.facts.JobFacts`. A wrong cause is worse than none: where nothing
decides, the answer is "unknown", with what was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

from raydiag.joblog.facts import JobFacts
from raydiag.joblog.step_facts import WriterProgress
from raydiag.model import Chain, Coverage, Diagnosis, Finding, HostUnread, Severity, Window
from raydiag.triage.attempts import attempts
from raydiag.triage.deaths import exit_codes
from raydiag.triage.decision import TriageCase, TriageOutcome, examined
from raydiag.triage.findings import findings
from raydiag.triage.progress import project
from raydiag.triage.status import decide
from raydiag.triage.story import story
from raydiag.triage.verdict import (
    Attempts,
    JobStatus,
    Moment,
    Task,
    Verdict,
)

_TASKS = 65536
_LIVE = (JobStatus.RUNNING, JobStatus.HANGING)


def judge(facts: JobFacts, moment: Moment) -> Verdict:
    """The verdict on one job, at one moment."""
    progress = project(facts, moment.now)
    case = examined(facts, moment, progress)
    outcome = decide(case)
    told = story(case, outcome)
    found = findings(case, outcome, told)
    stall = outcome.stall or case.stall
    if outcome.stall is not None and stall.basis != "wall time":
        progress = replace(progress, stalled_s=stall.since_s)
    return Verdict(
        resolved=facts.resolved,
        log=_log(facts),
        job_id=facts.resolved.job_id or facts.header.job_id,
        job_name=facts.header.job_name or facts.resolved.name,
        status=outcome.status,
        primary=outcome.primary,
        stage=_stage(facts, outcome),
        cascade=outcome.cascade,
        rule=outcome.rule,
        story=told,
        progress=progress,
        tasks=_tasks(facts),
        diagnosis=Diagnosis(found, _chains(found, outcome), _coverage(facts)),
        origin=outcome.origin.match if outcome.origin is not None else None,
        tunnels=facts.dashboards.tunnels,
        dashboards=_dashboards(facts, outcome.status),
        live=outcome.status in _LIVE,
        phase=case.phase,
        attempts=_attempts(facts, moment, outcome),
        notes=tuple(_notes(facts, case)),
        next_steps=tuple(found[0].next_steps) if outcome.primary else (),
    )


def exit_code(verdict: Verdict) -> int:
    """1: a problem was found; 3: none, but not all could be seen or told; 0: all is well."""
    if any(one.severity is not Severity.INFO for one in verdict.diagnosis.findings):
        return 1
    told = verdict.status is not JobStatus.UNKNOWN
    return 0 if told and verdict.diagnosis.coverage.complete else 3


def _log(facts: JobFacts) -> str:
    return facts.resolved.logs[-1] if facts.resolved.logs else facts.resolved.asked


def _stage(facts: JobFacts, outcome: TriageOutcome) -> Optional[str]:
    """Where the failure belongs: its row's stage, else the stage that was open last."""
    if outcome.primary is None:
        return None
    if outcome.origin is not None and outcome.origin.stage:
        return outcome.origin.stage
    last = None
    for event in facts.stages:
        last = event if event.event != "end" else None
    steps = facts.steps
    if steps is not None and (last is None or last.line < steps.last_line):
        return "training"
    return last.name if last is not None else None


def _chains(found: list[Finding], outcome: TriageOutcome) -> list[Chain]:
    """The cascade is one chain; what it does not account for stands alone."""
    linked = [one for one in found if one.failure_class in outcome.cascade]
    chains = [Chain(tuple(linked), outcome.confidence)] if linked else []
    return chains + [Chain((one,), one.confidence) for one in found if one not in linked]


def _coverage(facts: JobFacts) -> Coverage:
    items = tuple(HostUnread("", one.source, one.status, one.reason) for one in facts.unread)
    window = None
    if facts.first_time is not None and facts.last_time is not None:
        window = Window(facts.first_time, facts.last_time)
    return Coverage(0, 0, (), items, window)


def _tasks(facts: JobFacts) -> tuple[Task, ...]:
    """Tasks of the node list, of the step lines and of the exits, by number."""
    codes = exit_codes(facts)
    steps = {one.where: one for one in (facts.steps.writers if facts.steps else ())}
    names = {str(task) for task in (*facts.hosts, *codes)} | {name for name in steps if name}
    ordered = sorted(names, key=lambda name: (not name.isdigit(), name.zfill(12), name))
    return tuple(_task(name, facts.hosts, codes, steps) for name in ordered[:_TASKS])


def _task(
    name: str,
    hosts: Mapping[int, str],
    codes: Mapping[int, int],
    steps: Mapping[str, WriterProgress],
) -> Task:
    number = int(name) if name.isdigit() else -1
    step = steps.get(name)
    host = step.host if step is not None and step.host else hosts.get(number)
    return Task(name, host, step.last_step if step is not None else None, codes.get(number))


def _dashboards(facts: JobFacts, status: JobStatus) -> dict[str, object]:
    """Empty without Ray: then there is nothing to look at."""
    if not facts.header.ray:
        return {}
    seen = facts.dashboards
    return {
        "live": status in _LIVE,
        "tunnels": list(seen.tunnels),
        "head": seen.head,
        "ray": 8265,
        "tensorboard": seen.tensorboard_port or 6006,
        "prometheus": seen.prometheus_port or 9190,
        "prometheus_dir": seen.prometheus_dir,
        "fell_back": seen.ray_fallback_line is not None,
    }


def _attempts(facts: JobFacts, moment: Moment, outcome: TriageOutcome) -> Optional[Attempts]:
    judged = []
    for one in facts.attempts:
        # Of an attempt that another one followed, it is known that it ended.
        past = Moment(one.last_time, alive=False, source="a later attempt")
        decided = decide(examined(one, past, project(one, one.last_time)))
        judged.append((one, decided.status, decided.primary))
    return attempts(facts, [*judged, (facts, outcome.status, outcome.primary)], moment)


def _notes(facts: JobFacts, case: TriageCase) -> list[str]:
    """What a reader should know besides, one line each."""
    notes = list(facts.resolved.notes)
    steps = facts.steps
    if case.progress.source:
        own = steps.last_step if steps is not None else "none"
        notes.append(
            f"the log's last step is {own}, a worker's log has {case.progress.last_step}: the "
            "driver's output was lost or is buffered"
        )
    if steps is not None and steps.runs_total > 1:
        notes.append(f"steps jump back: {steps.runs_total} runs in one log, the last one counts")
    if facts.summary is not None and facts.summary.count > 1:
        notes.append(f"{facts.summary.count} summaries in one log: the last one counts")
    if facts.clock_jumps:
        notes.append(f"times in the log run backwards {facts.clock_jumps} times")
    if facts.dashboards.ray_fallback_line is not None:
        notes.append("Ray did not start and training went on without it: no Prometheus data")
    unread = facts.worker_logs.files_found - len(facts.worker_logs.files)
    if unread > 0:
        notes.append(f"{unread} of {facts.worker_logs.files_found} worker logs were not read")
    return notes
