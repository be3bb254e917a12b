"""What the logs know of a job, in the words of the playbooks and of the identity check."""

import bisect
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from raydiag.explain.job.request import TriagedJob
from raydiag.joblog.facts import JobFacts, LoggedSave, LoggedSteps
from raydiag.model import Evidence, Window
from raydiag.timeline import steps as training_steps
from raydiag.timeline.answers import Answers
from raydiag.timeline.context import SaveWindow, TrainingJob
from raydiag.timeline.rhythm import Rhythm, rhythm_of
from raydiag.timeline.steps import MetricSteps, PlacedSteps, place
from raydiag.timeline.training_series import (
    BALANCE,
    GRAD,
    LOSS,
    RATE,
    SECONDS,
    STEP,
    TFLOPS,
    TGS,
    TrainingSeries,
    with_training,
)
from raydiag.triage.progress import longest_save_s, reference_steps
from raydiag.triage.verdict import Verdict as Triage
from raydiag.tsdb import stack_logs
from raydiag.tsdb.discovery_types import short_name
from raydiag.tsdb.identity import Logged
from raydiag.tsdb.series import Series
from raydiag.tsdb.stack_logs import StackLogs

_SHORTEST_PERIOD = 2.0  # steps between two saves
_MIN_TIMED = 8  # step lines with a time, to go by those
_SPARSE_STEPS = 5  # from one line to the next
_TIMED_SHARE = 0.8  # of all step lines
_PRINTED_LATE_S = 2.0  # after its step a line may be printed
_FAILURES = ("no-server", "port-taken", "gave-up")
_HEAD_LINES = 3


def job_of(facts: JobFacts, judged: Triage) -> TrainingJob:
    """What triage says, as the playbooks want it."""
    header, progress = facts.header, judged.progress
    steps, _ = reference_steps(facts)
    beats = facts.heartbeats
    saves = tuple(_saves(facts.saves or facts.worker_logs.saves, steps))
    rhythm = _rhythm(progress.checkpoint_period, saves)
    crash, accused = None, []
    if judged.origin is not None:
        crash = judged.origin.time
    if beats is not None:
        crash = beats.time or crash
        accused = [facts.hosts.get(task) for task in beats.accused]
    return TrainingJob(
        status=judged.status.value,
        primary=judged.primary,
        cascade=judged.cascade,
        end=facts.summary_time,
        first_step=progress.first_step,
        last_step=progress.last_step,
        total_steps=progress.total_steps,
        last_step_time=progress.last_step_time,
        step_time_s=progress.step_time_s,
        longest_save_s=longest_save_s(facts, steps, progress.checkpoint_period) or None,
        crash_time=crash,
        heartbeat_timeout_s=header.heartbeat_timeout_s,
        accused=tuple(dict.fromkeys(short_name(host) for host in accused if host)),
        coordinator=next(map(short_name, header.nodelist), None),
        checkpoint_period=rhythm.period if rhythm is not None else None,
        save_offset=rhythm.offset if rhythm is not None else 0,
        async_saves=header.async_checkpointing,
        saves=saves,
        config={**header.config, **header.passthrough},
    )


def _saves(logged: Sequence[LoggedSave], steps: LoggedSteps | None) -> Iterator[SaveWindow]:
    """Saves of the log; a start and its end are one, and what names no step follows one."""
    begun: dict[int | None, LoggedSave] = {}
    for save in logged:
        if save.event == "started":
            begun[save.step] = save
            continue
        start = begun.pop(save.step, None)
        since = start.time if start is not None else None
        if since is None and save.time is not None and save.seconds is not None:
            since = save.time - save.seconds
        step = _step_of(start or save, steps)
        yield SaveWindow(step, since, save.time, save.event == "failed")
    for save in begun.values():
        yield SaveWindow(_step_of(save, steps), save.time)


def _step_of(save: LoggedSave, steps: LoggedSteps | None) -> int | None:
    """The step that a save follows: by its own line, or by the step line before it."""
    if save.step is not None or steps is None or save.file != steps.file:
        return save.step
    before = bisect.bisect_left(steps.series.line, save.line) - 1
    return int(steps.series.step[before]) + 1 if before >= 0 else None


def _rhythm(period: int | None, saves: Iterable[SaveWindow]) -> Rhythm | None:
    """Which steps save: as the job was started, else as they did."""
    named = sorted({save.step for save in saves if save.step is not None})
    seen = rhythm_of(np.array(named, dtype=np.float64), _SHORTEST_PERIOD)
    if not period or (seen is not None and seen.period == period):
        return seen
    return Rhythm(period)


def start_of(facts: JobFacts, steps: MetricSteps) -> float | None:
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


def placed(answers: Answers, facts: JobFacts, job: TrainingJob) -> PlacedSteps:
    """Steps of the log alone, where the metrics have none: by its own times, else by power."""
    reference, _ = reference_steps(facts)
    if reference is None:
        return PlacedSteps()
    series, (first, last) = reference.series, answers.sampled
    numbers, times = np.array(series.step), np.array(series.time)
    inside = (times >= first) & (times <= last)  # a log without times, or of another zone: none
    if inside.sum() >= max(_MIN_TIMED, _TIMED_SHARE * times.size):
        timed = Series({}, times[inside], numbers[inside])
        return PlacedSteps(training_steps.completed(timed), _PRINTED_LATE_S)
    saves = sorted({save.step for save in job.saves if save.step is not None})
    return place(answers, numbers, np.array(series.seconds), saves)


def with_logged_training(answers: Answers, facts: JobFacts, steps: MetricSteps) -> Answers:
    """The answers with what the log prints of its steps, at the times at which they ended.

    Where the metrics have steps of their own, they lack at most some scalars.
    """
    reference, _ = reference_steps(facts)
    training = TrainingSeries.of(answers)
    if reference is None or not len(steps):
        return answers
    logged = reference.series
    columns = {GRAD: logged.grad_norm, RATE: logged.rate, BALANCE: logged.balance}
    columns = {name: column for name, column in columns.items() if training.series(name) is None}
    if training.series(TGS) is None:
        columns[TFLOPS] = logged.tflops
    if training.host is None:
        columns |= {STEP: logged.step, LOSS: logged.loss, SECONDS: logged.seconds}
        if logged.throughput_unit == "tokens/s/device":
            columns[TGS] = logged.tokens_per_s
    lines = {int(number): line for line, number in enumerate(logged.step)}
    is_logged = np.isin(steps.numbers, logged.step)
    interval = np.median(np.diff(logged.step)) if len(lines) > 1 else 1.0  # of the log's steps
    if is_logged.sum() * interval < _TIMED_SHARE * len(steps):
        return answers  # too few lines to follow the speed by
    if interval > _SPARSE_STEPS and training.series(SECONDS) is not None:
        return answers  # its own step times show more
    rows = np.array(list(map(lines.__getitem__, map(int, steps.numbers[is_logged]))), int)
    loss_printed = np.frombuffer(logged.loss_state, np.uint8)[rows] != ord("n")
    series = list(training.by_metric.values())
    for metric, column in columns.items():
        values = np.array(column)[rows]
        keep = loss_printed if metric == LOSS else np.isfinite(values)
        if not keep.any():
            continue
        labels = {"__name__": metric, "host": training.host or ""}
        series.append(Series.of(labels, steps.ended_at[is_logged][keep], values[keep]))
    return with_training(answers, series, f"step lines of {reference.file or 'the log'}")


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


def logs_of(job: TriagedJob) -> StackLogs:
    """The logs of what watches the job."""
    return stack_logs.read(job.directory) if job.directory is not None else StackLogs()


def lines_on_no_samples(job: TriagedJob) -> list[Evidence]:
    """Lines of the monitoring's own logs, then of the job's log, that tell why."""
    logs, facts = logs_of(job), job.facts
    evidence = []
    for failure in _FAILURES:
        for line in logs.of(failure):
            evidence.append(Evidence(f"{line.file}:{line.line}", line.text, time=line.time))
    head = [line for line in facts.head if line.startswith("[Prometheus]")]
    log = facts.files[0].path if facts.files else facts.resolved.asked
    evidence += [Evidence(log, line) for line in head[:_HEAD_LINES]]
    return evidence
