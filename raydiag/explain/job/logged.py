"""What triage knows of a job, in the words of the playbooks and of the identity check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

import numpy as np

from raydiag.joblog.facts import JobFacts
from raydiag.joblog.step_facts import LoggedSave
from raydiag.model import Window
from raydiag.timeline import steps as training_steps
from raydiag.timeline.answers import Answers
from raydiag.timeline.context import SaveWindow, TrainingJob
from raydiag.timeline.steps import MetricSteps
from raydiag.timeline.steps_from_power import PlacedSteps, place
from raydiag.triage.progress import longest_save_s, reference_steps
from raydiag.triage.verdict import Verdict as Triage
from raydiag.tsdb.discovery_types import short_name
from raydiag.tsdb.identity import Logged


def job_of(facts: JobFacts, judged: Triage) -> TrainingJob:
    """What triage says, as the playbooks want it."""
    header, progress = facts.header, judged.progress
    steps, _ = reference_steps(facts)
    beats = facts.heartbeats
    accused = [facts.hosts.get(task) for task in (beats.accused if beats is not None else ())]
    crash = None
    if judged.origin is not None:
        crash = judged.origin.time
    if beats is not None and beats.time is not None:
        crash = beats.time
    return TrainingJob(
        status=judged.status.value,
        primary=judged.primary,
        cascade=judged.cascade,
        end=facts.summary.time if facts.summary is not None else None,
        first_step=progress.first_step,
        last_step=progress.last_step,
        total_steps=progress.total_steps,
        last_step_time=progress.last_step_time,
        step_time_s=progress.step_time_s,
        longest_save_s=longest_save_s(facts, steps, progress.checkpoint_period) or None,
        crash_time=crash,
        heartbeat_timeout_s=header.heartbeat_timeout_s,
        accused=tuple(dict.fromkeys(short_name(host) for host in accused if host)),
        coordinator=short_name(header.nodelist[0]) if header.nodelist else None,
        checkpoint_period=progress.checkpoint_period,
        async_saves=header.async_checkpointing,
        saves=tuple(_saves(facts.saves)),
        config={**header.config, **header.passthrough},
    )


def _saves(logged: Sequence[LoggedSave]) -> Iterator[SaveWindow]:
    """Saves that the log dates; a start and its end are one."""
    begun: dict[Optional[int], LoggedSave] = {}
    for save in logged:
        if save.event == "started":
            begun[save.step] = save
            continue
        start = begun.pop(save.step, None)
        since = start.time if start is not None else None
        if since is None and save.time is not None and save.seconds is not None:
            since = save.time - save.seconds
        yield SaveWindow(save.step, since, save.time, save.event == "failed")


def start_of(facts: JobFacts, steps: MetricSteps) -> Optional[float]:
    """The first time in the log, when that is one from before training: mostly the only one."""
    begun = facts.first_time
    if begun is None or not len(steps) or begun > float(steps.ended_at[0]):
        return None
    return begun


def with_log(steps: MetricSteps, facts: JobFacts) -> MetricSteps:
    """Steps of the metrics, and those that only the log has: saves are placed by them."""
    logged, _ = reference_steps(facts)
    if logged is None:
        return steps
    series = logged.series
    return training_steps.with_log(steps, np.array(series.step), np.array(series.seconds))


def placed_by_power(answers: Answers, facts: JobFacts) -> PlacedSteps:
    """Steps of the log alone, where the metrics have none."""
    reference, _ = reference_steps(facts)
    if reference is None:
        return PlacedSteps()
    return place(answers, np.array(reference.series.step), np.array(reference.series.seconds))


def logged(facts: JobFacts) -> Logged:
    """What the log says, for the check whose the metrics are."""
    steps, _ = reference_steps(facts)
    hosts = facts.header.nodelist
    window = None
    if facts.first_time is not None and facts.last_time is not None:
        window = Window(facts.first_time, facts.last_time)
    if steps is None:
        return Logged(hosts=hosts, window=window)
    numbers = [int(number) for number in steps.series.step]
    return Logged(numbers, list(steps.series.loss), hosts, window)
