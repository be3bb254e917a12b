"""What a verdict tells besides the failure: stage, tasks, dashboards, notes."""

from collections.abc import Iterator

from raydiag.joblog.facts import JobFacts
from raydiag.model import Coverage, HostUnread, Window
from raydiag.triage.decision import TriageCase, TriageOutcome
from raydiag.triage.exits import exit_codes
from raydiag.triage.verdict import Task

_TASKS = 65536


def stage(facts: JobFacts, outcome: TriageOutcome) -> str | None:
    """Where the failure belongs: its row's stage, else the stage that was open last."""
    if outcome.primary is None:
        return None
    if outcome.origin is not None and outcome.origin.stage:
        return outcome.origin.stage
    last = next(reversed(facts.stages), None)
    if last is not None and last.event == "end":
        last = None
    if facts.steps is not None and (last is None or last.line < facts.steps.last_line):
        return "training"
    return last.name if last is not None else None


def coverage(facts: JobFacts) -> Coverage:
    """Sources that could not be read, and the time that the log covers."""
    unread = tuple(map(HostUnread.without_host, facts.unread))
    window = None
    if facts.first_time is not None and facts.last_time is not None:
        window = Window(facts.first_time, facts.last_time)
    return Coverage(0, 0, (), unread, window)


def tasks(facts: JobFacts) -> tuple[Task, ...]:
    """Tasks of the node list, of the step lines and of the exits, by number."""
    codes = exit_codes(facts)
    writers = {}
    if facts.steps is not None:
        writers = {writer.where: writer for writer in facts.steps.writers}
    names = {*map(str, facts.hosts), *map(str, codes), *filter(None, writers)}
    listed = []
    for name in sorted(names, key=_task_order)[:_TASKS]:
        number = int(name) if name.isdigit() else -1
        host, last_step = facts.hosts.get(number), None
        if name in writers:
            host, last_step = writers[name].host or host, writers[name].last_step
        listed.append(Task(name, host, last_step, codes.get(number)))
    return tuple(listed)


def _task_order(name: str) -> tuple[bool, str, str]:
    """Numbers first, by value."""
    return not name.isdigit(), name.zfill(12), name


def dashboards(facts: JobFacts, live: bool) -> dict[str, object]:
    """Where dashboards listen; empty without Ray. `live`: they may still answer."""
    if not facts.header.ray:
        return {}
    printed = facts.dashboards
    return {
        "live": live,
        "tunnels": list(printed.tunnels),
        "head": printed.head,
        "ray": 8265,
        "tensorboard": printed.tensorboard_port or 6006,
        "prometheus": printed.prometheus_port or 9190,
        "prometheus_dir": printed.prometheus_dir,
        "fell_back": printed.ray_fallback_line is not None,
    }


def notes(case: TriageCase) -> Iterator[str]:
    """What a reader should know besides, one line each."""
    facts, steps = case.facts, case.facts.steps
    yield from facts.resolved.notes
    if case.progress.source:
        last_step = "none" if steps is None else steps.last_step
        yield (
            f"the log's last step is {last_step}, a worker's log has {case.progress.last_step}: "
            "the driver's output was lost or is buffered"
        )
    if steps is not None and steps.runs_total > 1:
        yield f"steps jump back: {steps.runs_total} runs in one log, the last one counts"
    if facts.summary is not None and facts.summary.count > 1:
        yield f"{facts.summary.count} summaries in one log: the last one counts"
    if facts.clock_jumps:
        yield f"times in the log run backwards {facts.clock_jumps} times"
    if facts.dashboards.ray_fallback_line is not None:
        yield "Ray did not start and training went on without it: no Prometheus data"
    unread = facts.worker_logs.files_found - len(facts.worker_logs.files)
    if unread > 0:
        yield f"{unread} of {facts.worker_logs.files_found} worker logs were not read"
