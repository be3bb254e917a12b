"""What the logs show of failures, in one form: signatures, stages and exits.

An error is history when the job went on after it: steps followed, or it belongs to an earlier run
in the same file.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse
from operator import attrgetter
from typing import Any

from raydiag import catalog
from raydiag.catalog.failure_classes import FailureClass
from raydiag.catalog.signatures import table
from raydiag.joblog.facts import TERMINATED, JobFacts, LoggedSteps, Match, StageEvent, TaskExit
from raydiag.joblog.numbers import whole_number
from raydiag.model import Evidence
from raydiag.triage.exits import all_terminated, failed_exits
from raydiag.triage.progress import step_interval
from raydiag.triage.tables import TABLES

ROOT, CONSEQUENCE, EITHER, HARMLESS = "root", "consequence", "either", "harmless"
_FAILED_OR_TIMED_OUT, _TIMEOUT = "nccl-failed-or-timed-out", "nccl-timeout"  # a row, a class
_ENDS_WITHIN_S = 60.0  # after its last word a job is gone
SURVIVED_STEPS = 2  # so many steps after an error show that the job went on; one may be in flight

_LOSS = re.compile(r"\bloss\b\W{0,4}\d", re.IGNORECASE)
# Answers of a server: work that it did, not a check of its health.
_SERVED = re.compile(
    r'"POST /\S{1,200} HTTP/\d\.\d" 200\b|generation throughput: (?!0\.0 )\d'
    r"|gen throughput \(token/s\): (?!0\.0\d?,)\d"
)
_INODES = re.compile(r"\binodes?\b", re.IGNORECASE)
_INODE_TABLE, _NONE_FREE = "IUse%", re.compile(r"\s0 {1,16}100% ")  # of df -i
_CLOCK = re.compile(r"\d\d:\d\d(?::\d\d\S{0,8})?|\d{4}-\d\d-\d\d")
_BY_FRAME: Mapping[str, re.Pattern[str]] = {
    failure_class: re.compile("|".join(patterns))
    for failure_class, patterns in TABLES["raised_in"].items()
}
_STAGE_TIMEOUTS: Mapping[str, str] = TABLES["stage_timeouts"]


@dataclass(frozen=True)
class Symptom:
    """Something that went wrong, at one line."""

    failure_class: str
    role: str
    file: str
    line: int
    order: tuple[int, int]  # (index of the file, line)
    text: str  # verbatim
    stage: str = ""
    time: float | None = None  # printed on the line
    near_time: float | None = None
    task: str | None = None  # rank where it is known, else task
    srun_task: int | None = None
    host: str | None = None
    pid: int | None = None
    where: str = ""
    last_step: int | None = None
    exception: str | None = None
    match: Match | None = None
    code: int | None = None  # exit code, where it is about an exit
    row: str = ""
    weak: bool = False  # it counts only where nothing stronger explains the end
    survived: bool = False

    @property
    def place(self) -> tuple[str, int]:
        """(file, line)."""
        return self.file, self.line

    @property
    def failure(self) -> FailureClass:
        """What is true of its class."""
        return catalog.failure(self.failure_class)

    @property
    def is_exception(self) -> bool:
        """An exception that no class of its own explains."""
        return self.failure_class == "python-exception"

    @property
    def is_specific(self) -> bool:
        """It says why, not only that something raised or ended."""
        return not self.failure.mechanism and not self.is_exception

    @property
    def priority(self) -> int:
        """Among symptoms of one line the lowest comes first."""
        priority = catalog.failure_table().log_priority
        if self.failure_class not in priority:
            return len(priority)
        return priority.index(self.failure_class)

    @property
    def rank(self) -> tuple[tuple[int, int], int]:
        """Sorts by file and line, then by class."""
        return self.order, self.priority

    def evidence(self) -> Evidence:
        """The line, verbatim, and where it stands."""
        return Evidence(f"{self.file}:{self.line}", self.text, None, self.time)


def symptoms(facts: JobFacts) -> list[Symptom]:
    """Every symptom in the order of files and lines, those of the same line by class priority."""
    file_order = {file.path: index for index, file in enumerate(facts.files)}
    collected = [
        *_of_matches(facts, file_order),
        *_of_stages(facts, file_order),
        *_of_exits(facts, file_order),
    ]
    distinct = _without_side_effects(collected)
    marked = [replace(symptom, survived=_is_survived(symptom, facts)) for symptom in distinct]
    return sorted(marked, key=attrgetter("rank"))


def live(symptoms: Iterable[Symptom]) -> list[Symptom]:
    """Those that the job did not get over."""
    return list(filterfalse(attrgetter("survived"), symptoms))


def ended_it_late(symptoms: Iterable[Symptom], facts: JobFacts, step_s: float) -> list[Symptom]:
    """Of errors that the job seems to have got over: those shortly before a failure.

    What ends a job takes its time, and peers do steps until then.
    """
    steps, summary = facts.steps, facts.summary
    if steps is None or summary is None or not summary.exit_code:
        return []
    return [symptom for symptom in symptoms if _is_shortly_before(symptom, steps, step_s)]


def _is_shortly_before(symptom: Symptom, steps: LoggedSteps, step_s: float) -> bool:
    if symptom.last_step is None or symptom.file != steps.file:
        return False
    went_on_s = (steps.last_step - symptom.last_step) * step_s
    return symptom.failure.ends_hang and 0 <= went_on_s <= _ENDS_WITHIN_S


def strong(symptoms: Iterable[Symptom]) -> list[Symptom]:
    """Those that are not weak."""
    return list(filterfalse(attrgetter("weak"), symptoms))


def of_class(symptoms: Iterable[Symptom], *failure_classes: str) -> list[Symptom]:
    """Those of one of these classes."""
    return [symptom for symptom in symptoms if symptom.failure_class in failure_classes]


def of_role(symptoms: Iterable[Symptom], *roles: str) -> list[Symptom]:
    """Those that play one of these roles."""
    return [symptom for symptom in symptoms if symptom.role in roles]


def classes(symptoms: Iterable[Symptom]) -> list[str]:
    """Classes in the order in which they appear, each once."""
    return list(dict.fromkeys(map(attrgetter("failure_class"), symptoms)))


def cascade(root: str, symptoms: Iterable[Symptom], *ends: str) -> tuple[str, ...]:
    """The root's class, then the others in the order in which they appear, then `ends`."""
    return tuple(dict.fromkeys([root, *classes(symptoms), *ends]))


def first_of(symptoms: Sequence[Symptom], failure_class: str) -> Symptom:
    """The first symptom of a class: by the clock where all print one, else by line."""
    candidates = of_class(symptoms, failure_class)
    if None in map(attrgetter("time"), candidates):
        return candidates[0]
    return min(candidates, key=lambda symptom: (symptom.time or 0.0, symptom.order))


def _without_side_effects(symptoms: Sequence[Symptom]) -> list[Symptom]:
    """A line that names a cause is not evidence of another class by its other words."""
    named = set(map(attrgetter("place"), strong(of_role(symptoms, ROOT))))
    return [symptom for symptom in symptoms if symptom.role == ROOT or symptom.place not in named]


def _is_survived(symptom: Symptom, facts: JobFacts) -> bool:
    """Steps came after it, or a new run has begun since."""
    steps = facts.steps
    if steps is None or not steps.runs or not steps.regular:
        is_served = _is_served_after(symptom, facts)
        return is_served or _is_restarted(symptom, facts) or _is_trained_after(symptom, facts)
    run = steps.runs[-1]
    before_run = symptom.file == run.file and symptom.line < run.first_line
    if before_run and len(steps.runs) > 1:
        return True
    if symptom.last_step is None:
        has_steps = before_run and run.steps > SURVIVED_STEPS
        return has_steps or _is_trained_after(symptom, facts)
    return steps.last_step - symptom.last_step >= SURVIVED_STEPS * step_interval(run)


def _is_served_after(symptom: Symptom, facts: JobFacts) -> bool:
    """A server answered requests after it: a request failed, not the server."""
    newest = facts.tail[max(0, symptom.line + 1 - facts.tail_first_line) :]
    is_in_tail = symptom.line >= facts.tail_first_line and symptom.file == facts.files[-1].path
    return is_in_tail and any(map(_SERVED.search, newest))


def _is_trained_after(symptom: Symptom, facts: JobFacts) -> bool:
    """Losses without step numbers came after it."""
    newest = facts.tail[max(0, symptom.line + 1 - facts.tail_first_line) :]
    if not facts.files or symptom.file != facts.files[0].path:
        return False
    # Peers print theirs until the failure has reached them: each writer is counted for itself.
    losses: Counter[str] = Counter()
    for text in newest:
        loss = _LOSS.search(text)
        if loss:
            losses[_CLOCK.sub("", text[: loss.start()])] += 1
    return max(losses.values(), default=0) > SURVIVED_STEPS


def _is_restarted(symptom: Symptom, facts: JobFacts) -> bool:
    """The workers were started anew after it, and then trained."""
    restart = max((mark.last_line for mark in facts.phases if mark.phase == "restart"), default=0)
    newest = facts.tail[max(0, restart + 1 - facts.tail_first_line) :]
    return symptom.line < restart and any(map(_LOSS.search, newest))


# ---- signatures


def _of_matches(facts: JobFacts, file_order: dict[str, int]) -> Iterator[Symptom]:
    was_cancelled = all_terminated(facts)
    for match in facts.matches:
        if match.role == HARMLESS or not match.failure_class:
            continue
        code = whole_number(match.groups.get("code"))
        is_normal_exit = code == 0 or (was_cancelled and code in TERMINATED)
        if match.failure_class == "node-fail" and is_normal_exit:
            continue
        yield _symptom(
            match,
            _class_of(match, facts),
            match.role,
            file_order,
            stage=match.stage,
            near_time=match.near_time,
            task=_task_name(facts, match),
            srun_task=match.task,
            host=_host(facts, match),
            pid=whole_number(match.groups.get("pid")) or match.pid,
            where=match.where,
            last_step=match.last_step,
            exception=match.exception,
            match=match,
            code=code,
            row=match.row,
            weak=_is_weak(match.row),
        )


def _class_of(match: Match, facts: JobFacts) -> str:
    """As its row says, else by where it was raised; beside a timeout, what may be one is one.

    A file system without inodes says that it has no space; the line itself or `df -i` says more.
    """
    if match.failure_class == "disk-full" and _is_about_inodes(match):
        return "inode-exhausted"
    if match.failure_class == "python-exception":
        return _raised_in(match.frame or _frame_above(match, facts)) or match.failure_class
    timeouts = (_TIMEOUT for seen in facts.matches if seen.failure_class == _TIMEOUT)
    is_either = match.row == _FAILED_OR_TIMED_OUT
    return next(timeouts, match.failure_class) if is_either else match.failure_class


def _is_about_inodes(match: Match) -> bool:
    around = "\n".join(_around(match))
    is_shown = _NONE_FREE.search(around.partition(_INODE_TABLE)[2]) is not None
    return is_shown or _INODES.search(match.raw) is not None


def _around(match: Match) -> tuple[str, ...]:
    return (*match.before, match.raw, *match.after)


def _frame_above(match: Match, facts: JobFacts) -> str:
    """The innermost frame of the traceback that ends on the match's line; "" without one."""
    for traceback in facts.tracebacks:
        if (traceback.file, traceback.end_line) == (match.file, match.line):
            return traceback.frame
    return ""


def _raised_in(frame: str) -> str | None:
    """The class of what was raised in that file; None where the file tells none."""
    for failure_class, files in _BY_FRAME.items():
        if files.search(frame):
            return failure_class
    return None


def _symptom(
    entry: Match | StageEvent | TaskExit,
    failure_class: str,
    role: str,
    file_order: dict[str, int],
    **details: Any,
) -> Symptom:
    """A symptom at the entry's line."""
    return Symptom(
        failure_class,
        role,
        file=entry.file,
        line=entry.line,
        order=(file_order.get(entry.file, len(file_order)), entry.line),
        text=entry.raw,
        time=entry.time,
        **details,
    )


def _is_weak(row_id: str) -> bool:
    row = table().by_id.get(row_id)
    return row is not None and row.weak


def _task_name(facts: JobFacts, match: Match) -> str | None:
    """The task that the line is about where it names one, else the one that wrote it."""
    for group in ("rank", "task"):
        if match.groups.get(group):
            return match.groups[group]
    if match.groups.get("local_rank"):
        return _global_rank(facts, match) or match.groups["local_rank"]
    if catalog.failure(match.failure_class).told_by_others:
        return None
    for number in (match.rank, match.task):
        if number is not None:
            return str(number)
    if match.pid is not None:
        return f"{match.actor or 'process'} pid={match.pid}"
    return None


def _global_rank(facts: JobFacts, match: Match) -> str | None:
    """Of the process whose end the line tells, by the launcher's own table of failures."""
    code = match.groups.get("code") or f"-{match.groups.get('signal')}"
    told = whole_number(match.groups.get("pid")), code
    ranks = {ended.rank for ended in facts.exits if (ended.pid, str(ended.code)) == told}
    ranks.discard(None)
    return str(ranks.pop()) if len(ranks) == 1 else None


def _host(facts: JobFacts, match: Match) -> str | None:
    """The host that the line is about where it names one, else the one that wrote it."""
    name = match.groups.get("host") or match.groups.get("ip") or match.groups.get("peer")
    if name:
        return name if _is_address(name) else name.split(".")[0]
    task = whole_number(match.groups.get("task"))
    if task is not None and task in facts.hosts:
        return facts.hosts[task]
    if catalog.failure(match.failure_class).told_by_others:
        return None
    return match.host or match.ip


def _is_address(text: str) -> bool:
    return ":" in text or text.replace(".", "").isdigit()


# ---- stages and exits


def _places_of_matches(facts: JobFacts) -> set[tuple[str, int]]:
    """(file, line) of every line that a signature explains."""
    return {(match.file, match.line) for match in facts.matches if match.role != HARMLESS}


def _of_stages(facts: JobFacts, file_order: dict[str, int]) -> Iterator[Symptom]:
    """The stage grammar itself: complete also for stages that no signature names."""
    explained = _places_of_matches(facts)
    for event in facts.stages:
        failure_class = _stage_class(event)
        if failure_class and (event.file, event.line) not in explained:
            role = ROOT if event.event == "timeout" else CONSEQUENCE
            details = {"stage": event.name, "near_time": event.time, "code": event.exit_code}
            yield _symptom(event, failure_class, role, file_order, **details)


def _stage_class(event: StageEvent) -> str:
    if event.event == "timeout":
        return _STAGE_TIMEOUTS.get(event.name, "stage-fail")
    if event.event == "failed" and event.exit_code not in TERMINATED:
        return "stage-fail"
    return ""


def _of_exits(facts: JobFacts, file_order: dict[str, int]) -> Iterator[Symptom]:
    """Node exits; other kinds of exits are signatures of their own."""
    explained = _places_of_matches(facts)
    for task_exit in failed_exits(facts):
        if task_exit.kind == "node-exit" and (task_exit.file, task_exit.line) not in explained:
            yield _symptom(
                task_exit,
                "node-fail",
                CONSEQUENCE,
                file_order,
                near_time=task_exit.near_time,
                task=None if task_exit.task is None else str(task_exit.task),
                srun_task=task_exit.task,
                host=task_exit.host,
                where=task_exit.where,
                code=task_exit.code,
            )
