"""The job of a cluster that is meant, and what it has printed, as Ray's Jobs API tells of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from raydiag.cluster.jobs_api import TERMINAL, is_ours

_NAMED = 5


@dataclass(frozen=True)
class RayJob:
    """What is known of the job; without an id, why none can be meant."""

    id: str = ""  # submission id
    alive: Optional[bool] = None  # that it runs, or any job where none is meant; None: unknown
    idle: bool = False  # no job runs at all
    why: str = ""  # set without an id


def named(jobs: Sequence[Mapping[str, Any]], asked: str) -> Optional[RayJob]:
    """The job of that submission id, ended or not; None without one."""
    for job in jobs:
        if job.get("submission_id") == asked and not is_ours(job):
            return RayJob(asked, job.get("status") not in TERMINAL)
    return None


def running(jobs: Sequence[Mapping[str, Any]]) -> RayJob:
    """The only job that runs. Which of several is meant is not guessed."""
    found = [job for job in jobs if job.get("status") == "RUNNING" and not is_ours(job)]
    if not found:
        return RayJob(idle=True, why="no job runs in this cluster")
    if len(found) > 1:
        listed = ", ".join(_listed(found))
        return RayJob(alive=True, why=f"{len(found)} jobs run ({listed}): name one of them")
    (only,) = found
    submission = str(only.get("submission_id") or "")
    if not submission:
        why = f"job {only.get('job_id')} was not submitted through Ray, which keeps no log of it"
        return RayJob(alive=True, why=f"{why}: name its directory")
    return RayJob(submission, True)


def _listed(jobs: Iterable[Mapping[str, Any]]) -> list[str]:
    names = [str(job.get("submission_id") or job.get("job_id")) for job in jobs]
    return [*names[:_NAMED], "..."] if len(names) > _NAMED else names
