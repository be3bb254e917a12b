"""The job of a cluster that is meant, and what it has printed, as Ray's Jobs API tells of both."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from raydiag.cluster.jobs_api import TERMINAL, is_ours, running_jobs

_NAMED = 5
_NEWS_S = 86_400.0  # a job that ended before that is history
_QUIET_S = 600.0  # a log may be opened, and then stay empty while the cluster comes up


@dataclass(frozen=True)
class RayJob:
    """What is known of the job; without an id, the reason why none can be meant."""

    id: str = ""  # submission id
    alive: Optional[bool] = None  # that it runs, or any job where none is meant; None: unknown
    idle: bool = False  # no job runs at all, and the last one did not fail
    reason: str = ""  # set without an id
    start: Optional[float] = None  # Unix s
    end: Optional[float] = None
    other_jobs: int = 0  # that run besides
    ray_id: str = ""  # as its workers name it, 8 hex digits
    note: str = ""  # why this one is meant
    status: str = ""  # as Ray has it


def named(jobs: Sequence[Mapping[str, Any]], name: str) -> Optional[RayJob]:
    """The job of that submission id, or that Ray numbers so, ended or not; None without one."""
    for job in jobs:
        if name in (job.get("submission_id"), job.get("job_id")) and not is_ours(job):
            return _known(job, jobs)
    return None


def _known(job: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> RayJob:
    """What Ray says of one job; without an id where it keeps no log of it."""
    submission, ray_id = str(job.get("submission_id") or ""), str(job.get("job_id") or "")
    alive = job.get("status") not in TERMINAL
    reason = f"job {ray_id} was not submitted through Ray, which keeps no log of it"
    return RayJob(
        submission,
        alive,
        reason="" if submission else f"{reason}: name its directory",
        start=_seconds(job, "start_time"),
        end=None if alive else _seconds(job, "end_time"),
        other_jobs=sum(other is not job for other in running_jobs(jobs)),
        ray_id=ray_id,
        status=str(job.get("status")),
    )


def beside(
    jobs: Sequence[Mapping[str, Any]], written: Optional[float], now: float
) -> tuple[RayJob, str]:
    """What Ray says of a job whose files are named, last written to at `written`; and a note.

    A job that began long after that is another one, and what nodes do now tells nothing of this.
    """
    now_running = running_jobs(jobs)
    starts = [_seconds(running_job, "start_time") for running_job in now_running]
    first = min(map(float, filter(None, starts)), default=0.0)
    if written is not None and all(starts) and first > written + _QUIET_S:
        note = (
            "the job that runs in this cluster began after this one's log was last written to, so "
            "it is another one"
        )
        return RayJob(end=min(written, now), other_jobs=len(now_running)), note
    if len(now_running) == 1:
        return RayJob(alive=True, start=_seconds(now_running[0], "start_time")), ""
    if now_running:
        return RayJob(other_jobs=len(now_running)), f"{len(now_running)} jobs run in this cluster"
    return RayJob(idle=True), ""


def running(jobs: Sequence[Mapping[str, Any]], now: float) -> RayJob:
    """The only job that runs, else the newest one that has ended within a day.

    Which of several is meant is not guessed.
    """
    now_running = running_jobs(jobs)
    if not now_running:
        return _without(jobs, now)
    if len(now_running) > 1:
        listed = ", ".join(_listed(now_running))
        reason = f"{len(now_running)} jobs run ({listed}): name one of them"
        return RayJob(alive=True, reason=reason, other_jobs=len(now_running))
    return _known(now_running[0], jobs)


def _without(jobs: Sequence[Mapping[str, Any]], now: float) -> RayJob:
    """Where none runs. One that waits, or that has ended just now, is not idleness."""
    user_jobs = [job for job in jobs if not is_ours(job)]
    waiting = [job for job in user_jobs if job.get("status") == "PENDING"]
    if waiting:
        reason = f"no job runs, and {', '.join(_listed(waiting))} waits to start (PENDING)"
        return RayJob(reason=f"{reason}: name it")
    ended = [job for job in user_jobs if (_seconds(job, "end_time") or 0) > now - _NEWS_S]
    last = max(ended, key=lambda job: float(job["end_time"]), default=None)
    if last is None:
        return RayJob(idle=True, reason="no job runs in this cluster")
    known = _known(last, jobs)
    (name,) = _listed([last])
    ended_s = now - (known.end or now)
    note = f"no job runs: judged is the last one, {name}, which ended {ended_s:.0f} s ago"
    if known.id:
        return replace(known, note=f"{note} ({known.status})")
    # Whether it failed, Ray does not know either.
    return replace(known, alive=None, note=note)


def _seconds(job: Mapping[str, Any], key: str) -> Optional[float]:
    """Ray gives milliseconds, and 0 or nothing where it has no time."""
    value = job.get(key)
    return float(value) / 1000 if isinstance(value, (int, float)) and value > 0 else None


def _listed(jobs: Iterable[Mapping[str, Any]]) -> list[str]:
    names = [str(job.get("submission_id") or job.get("job_id")) for job in jobs]
    return [*names[:_NAMED], "..."] if len(names) > _NAMED else names
