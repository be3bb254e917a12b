"""What the logs show of failures, in one form: signatures, stages, exits and tracebacks.

Of a job that went on afterwards, an error is history: it was survived, or belongs to an earlier run
in the same file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from raydiag import catalog
from raydiag.catalog.signatures import table
from raydiag.joblog.facts import JobFacts
from raydiag.joblog.failure_facts import Match, TaskExit
from raydiag.joblog.script_facts import StageEvent
from raydiag.joblog.step_facts import StepRun
from raydiag.model import Evidence

ROOT, CONSEQUENCE, EITHER, HARMLESS = "root", "consequence", "either", "harmless"
SURVIVED_STEPS = 2  # so many steps after an error show that the job went on; one may be in flight

_STAGE_TIMEOUTS = {
    "Preflight": "preflight-timeout",
    "Docker pull": "pull-timeout",
    "ECC check": "ecc-timeout",
    "Training": "train-timeout",
}
_TERMINATED = (130, 143)  # SIGINT, SIGTERM: somebody ended it


@dataclass(frozen=True)
class Symptom:
    """One thing that went wrong, at one line."""

    failure_class: str
    role: str
    file: str
    line: int
    order: tuple[int, int]  # place in the order of files and lines
    text: str  # verbatim
    stage: str = ""
    time: Optional[float] = None  # printed on the line
    near_time: Optional[float] = None
    task: Optional[str] = None  # rank where it is known, else task
    srun_task: Optional[int] = None
    host: Optional[str] = None
    pid: Optional[int] = None
    where: str = ""
    last_step: Optional[int] = None
    exception: Optional[str] = None
    match: Optional[Match] = None
    code: Optional[int] = None  # exit code, where it is about an exit
    row: str = ""
    weak: bool = False  # it counts only where nothing stronger explains the end
    survived: bool = False

    @property
    def is_mechanism(self) -> bool:
        """It says how a process ended, not why."""
        return catalog.failure(self.failure_class).mechanism

    @property
    def is_specific(self) -> bool:
        """It says why, not only that something raised or ended."""
        return not self.is_mechanism and self.failure_class != "python-exception"

    @property
    def priority(self) -> int:
        """Place among the errors of one line, the first one first."""
        priority = catalog.log_priority()
        if self.failure_class not in priority:
            return len(priority)
        return priority.index(self.failure_class)

    def evidence(self) -> Evidence:
        return Evidence(f"{self.file}:{self.line}", self.text, None, self.time)


def symptoms(facts: JobFacts) -> list[Symptom]:
    """Every symptom in the order of files and lines, those of the same line by class priority."""
    places = {file.path: index for index, file in enumerate(facts.files)}
    found = [*_of_matches(facts, places), *_of_stages(facts, places), *_of_exits(facts, places)]
    steps = facts.steps
    run = steps.runs[-1] if steps is not None and steps.runs and steps.regular else None
    last = steps.last_step if run is not None and steps is not None else None
    found = _one_a_line(found)
    marked = [replace(one, survived=_is_survived(one, facts, run, last)) for one in found]
    return sorted(marked, key=lambda one: (one.order, one.priority))


def _one_a_line(found: Sequence[Symptom]) -> list[Symptom]:
    """A line that names a cause is not, by its other words, evidence of something else as well."""
    named = {(one.file, one.line) for one in found if one.role == ROOT and not one.weak}
    return [one for one in found if one.role == ROOT or (one.file, one.line) not in named]


def live(found: Iterable[Symptom]) -> list[Symptom]:
    """Those that the job did not get over."""
    return [one for one in found if not one.survived]


def _of_matches(facts: JobFacts, places: dict[str, int]) -> Iterator[Symptom]:
    clean_cancel = _all_terminated(facts)
    for match in facts.matches:
        if match.role == HARMLESS or not match.failure_class:
            continue
        code = _number(match.groups.get("code"))
        if match.failure_class == "node-fail" and (
            code == 0 or (clean_cancel and code in _TERMINATED)
        ):
            continue
        yield Symptom(
            failure_class=match.failure_class,
            role=match.role,
            file=match.file,
            line=match.line,
            order=(places.get(match.file, len(places)), match.line),
            text=match.raw,
            stage=match.stage,
            time=match.time,
            near_time=match.near_time,
            task=_task_name(match),
            srun_task=match.task,
            host=_host(facts, match),
            pid=_number(match.groups.get("pid")) or match.pid,
            where=match.where,
            last_step=match.last_step,
            exception=match.exception,
            match=match,
            code=code,
            row=match.row,
            weak=_is_weak(match.row),
        )


def _is_weak(row: str) -> bool:
    known = table().by_id.get(row)
    return known is not None and known.weak


def _task_name(match: Match) -> Optional[str]:
    """Whom the line is about where it says so, else who wrote it."""
    for key in ("rank", "task", "local_rank"):
        if match.groups.get(key):
            return match.groups[key]
    if match.rank is not None:
        return str(match.rank)
    if match.task is not None:
        return str(match.task)
    return f"{match.actor or 'process'} pid={match.pid}" if match.pid is not None else None


def _host(facts: JobFacts, match: Match) -> Optional[str]:
    told = match.groups.get("host") or match.groups.get("ip") or match.groups.get("peer")
    if told:
        return told.split(".")[0] if not _is_address(told) else told
    named = _number(match.groups.get("task"))
    if named is not None and named in facts.hosts:
        return facts.hosts[named]
    return match.host or match.ip


def _is_address(text: str) -> bool:
    return ":" in text or text.replace(".", "").isdigit()


def _number(text: Optional[str]) -> Optional[int]:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _of_stages(facts: JobFacts, places: dict[str, int]) -> Iterator[Symptom]:
    """The stage grammar itself: complete also for stages that no signature names."""
    told = {(match.file, match.line) for match in facts.matches if match.role != HARMLESS}
    for event in facts.stages:
        failure = _stage_class(event)
        if failure and (event.file, event.line) not in told:
            yield Symptom(
                failure_class=failure,
                role=ROOT if event.event == "timeout" else CONSEQUENCE,
                file=event.file,
                line=event.line,
                order=(places.get(event.file, 0), event.line),
                text=event.raw,
                stage=event.name,
                time=event.time,
                near_time=event.time,
                code=event.exit_code,
            )


def _stage_class(event: StageEvent) -> str:
    if event.event == "timeout":
        return _STAGE_TIMEOUTS.get(event.name, "stage-fail")
    if event.event == "failed" and event.exit_code not in _TERMINATED:
        return "stage-fail"
    return ""


def failed_exits(facts: JobFacts) -> list[TaskExit]:
    """Exits that mean a failure: not 0, and not what ends every task of a cancelled job."""
    clean = _all_terminated(facts)
    return [
        one
        for one in facts.exits
        if (one.code not in (0, None) or one.signal)
        and not (clean and (one.code in _TERMINATED or one.signal in (2, 15)))
    ]


def _all_terminated(facts: JobFacts) -> bool:
    """All tasks that ended with an error ended by SIGTERM or SIGINT: a cancellation."""
    codes = {one.code for one in facts.exits if one.code is not None}
    return bool(codes) and codes <= {0, *_TERMINATED} and bool(codes & set(_TERMINATED))


def _of_exits(facts: JobFacts, places: dict[str, int]) -> Iterator[Symptom]:
    """Node exits; other kinds of exits are signatures of their own."""
    told = {(match.file, match.line) for match in facts.matches if match.role != HARMLESS}
    for one in failed_exits(facts):
        if one.kind == "node-exit" and (one.file, one.line) not in told:
            yield Symptom(
                failure_class="node-fail",
                role=CONSEQUENCE,
                file=one.file,
                line=one.line,
                order=(places.get(one.file, 0), one.line),
                text=one.raw,
                time=one.time,
                near_time=one.near_time,
                task=None if one.task is None else str(one.task),
                srun_task=one.task,
                host=one.host,
                where=one.where,
                code=one.code,
            )


def _is_survived(
    one: Symptom, facts: JobFacts, run: Optional[StepRun], last: Optional[int]
) -> bool:
    """Steps came after it, or a new run has begun since."""
    if run is None or last is None:
        return False
    runs = facts.steps.runs if facts.steps else ()
    if len(runs) > 1 and one.file == run.file and one.line < run.first_line:
        return True
    if one.last_step is None:
        return one.file == run.file and one.line < run.first_line and run.steps > SURVIVED_STEPS
    return last - one.last_step >= SURVIVED_STEPS * max(1, _interval(run))


def _interval(run: StepRun) -> int:
    return max(1, round((run.last_step - run.first_step) / max(1, run.steps - 1)))


def first_of(found: Sequence[Symptom], failure_class: str) -> Symptom:
    """The one of a class with which it began: by the clock where all have one, else by line."""
    same = [one for one in found if one.failure_class == failure_class]
    if all(one.time is not None for one in same):
        return min(same, key=lambda one: (one.time or 0.0, one.order))
    return same[0]
