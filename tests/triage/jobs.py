"""Facts of jobs for the tests of the judges, without reading any log."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any, Optional

from raydiag.joblog.facts import (
    Dashboards,
    Header,
    Heartbeats,
    JobFacts,
    LogFile,
    LoggedSave,
    LoggedSteps,
    Match,
    Resolved,
    StepRun,
    StepSeries,
    Summary,
    TaskExit,
    WorkerLogs,
    WriterProgress,
)

LOG = "outputs/41-demo.log"
START = 1_780_000_000.0  # Unix seconds


def job(**changes: Any) -> JobFacts:
    """A job of four nodes whose log holds nothing but its header."""
    nothing = JobFacts(
        resolved=Resolved(LOG, "41", "demo", "outputs/41-demo", (LOG,)),
        files=(LogFile(LOG, "main", 1000, 1000, 100, None, True),),
        header=Header(job_id="41", nnodes=4, nodelist=("n1", "n2", "n3", "n4")),
        stages=(),
        summary=None,
        steps=None,
        saves=(),
        restores=(),
        matches=(),
        tracebacks=(),
        exits=(),
        heartbeats=None,
        dashboards=Dashboards(),
        phases=(),
        barrier_writers=(),
        barrier_line=None,
        worker_logs=WorkerLogs(),
        attempts=(),
        first_time=None,
        last_time=None,
        last_time_line=None,
        clock_jumps=0,
        head=(),
        tail=("the last line",),
        tail_first_line=100,
        last_line_complete=True,
        hosts={0: "n1", 1: "n2", 2: "n3", 3: "n4"},
        unread=(),
    )
    return replace(nothing, **changes)


def header(**changes: Any) -> Header:
    return replace(job().header, **changes)


def steps(
    numbers: Sequence[int],
    seconds: Sequence[float] | float = 10.0,
    *,
    start: Optional[float] = None,
    loss: Sequence[float] | None = None,
    tokens: Sequence[float] | None = None,
    zero_based: bool = True,
    total: Optional[int] = None,
    writers: Mapping[str, int] | None = None,
    first_line: int = 10,
) -> LoggedSteps:
    """Step lines of one run; with `start` each prints its time. `writers`: last step by task."""
    each = [seconds] * len(numbers) if isinstance(seconds, (int, float)) else list(seconds)
    lines = [first_line + index for index in range(len(numbers))]
    times = [nan] * len(numbers)
    if start is not None:
        times = [start + sum(each[: index + 1]) for index in range(len(numbers))]
    losses = list(loss) if loss is not None else [2.5] * len(numbers)
    state = bytes(
        ord("a") if one != one else ord("i") if abs(one) == float("inf") else ord("f")
        for one in losses
    )
    steady = [t for n, t in zip(numbers, each, strict=True) if n >= numbers[0] + 5 and t == t]
    known = [t for t in each if t == t]
    run = StepRun(
        first_step=numbers[0],
        last_step=numbers[-1],
        first_line=lines[0],
        last_line=lines[-1],
        first_time=times[0] if start is not None else None,
        last_time=times[-1] if start is not None else None,
        steps=len(set(numbers)),
        seconds_sum=sum(known),
        seconds_count=len(known),
        steady_sum=sum(steady),
        steady_count=len(steady),
        file=LOG,
    )
    lasts = writers or {"0": numbers[-1]}
    progress = tuple(
        WriterProgress(name, int(name), None, f"n{int(name) + 1}", last)
        for name, last in lasts.items()
    )
    return LoggedSteps(
        format="demo",
        zero_based=zero_based,
        counts_done=False,
        total=total,
        series=StepSeries(
            where="0",
            step=array("d", numbers),
            seconds=array("d", each),
            loss=array("d", losses),
            loss_state=state,
            grad_norm=array("d", [nan] * len(numbers)),
            rate=array("d", [nan] * len(numbers)),
            balance=array("d", [nan] * len(numbers)),
            tflops=array("d", [nan] * len(numbers)),
            tokens_per_s=array("d", tokens if tokens is not None else [nan] * len(numbers)),
            time=array("d", times),
            line=array("d", lines),
            throughput_unit="tokens/s/device",
        ),
        runs=(run,),
        runs_total=1,
        writers=progress,
        last_step=numbers[-1],
        last_line=lines[-1],
        last_time=times[-1] if start is not None else None,
        last_near_time=times[-1] if start is not None else None,
        last_next_time=None,
        file=LOG,
    )


def summary(word: Optional[str], code: Optional[int], wall_s: Optional[float] = None) -> Summary:
    text = f"{word} (exit {code})" if word else ""
    return Summary(
        line=95,
        file=LOG,
        word=word,
        exit_code=code,
        reason="",
        status_line=99 if word else None,
        status_text=text,
        wall_s=wall_s,
        time=None,
    )


def match(failure_class: str, line: int, role: str = "root", **changes: Any) -> Match:
    """A signature at a line; it stands after the last step unless `last_step` says otherwise."""
    fields: dict[str, Any] = {
        "row": f"{failure_class} row",
        "failure_class": failure_class,
        "role": role,
        "stage": "",
        "groups": {},
        "file": LOG,
        "line": line,
        "where": "0",
        "task": 0,
        "rank": None,
        "host": "n1",
        "actor": None,
        "pid": None,
        "ip": None,
        "time": None,
        "near_time": None,
        "text": f"{failure_class} at {line}",
        "raw": f"0: {failure_class} at {line}",
        "before": (),
        "after": (),
        "exception": None,
        "last_step": 10**9,
    }
    if "task" in changes:
        task = changes["task"]
        fields.update(where=str(task), host=f"n{task + 1}" if task is not None else None)
    return Match(**{**fields, **changes})


def save(
    step: int, event: str = "finished", seconds: Optional[float] = None, line: int = 50
) -> LoggedSave:
    return LoggedSave(step, event, seconds, line, None, None)


def exited(host: str, code: int, line: int = 90, kind: str = "node-exit") -> TaskExit:
    task = int(host[1:]) - 1
    raw = f"NODE_EXIT host={host} exit={code}"
    return TaskExit(kind, code, None, host, task, None, str(task), None, line, None, None, raw, LOG)


def heartbeats(accused: Sequence[int], reporters: Sequence[str], line: int = 60) -> Heartbeats:
    return Heartbeats(tuple(accused), line, None, tuple(reporters), LOG)
