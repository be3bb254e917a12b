"""A job of ours on a cluster: from its submission until it is certainly over."""

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import raydiag
from raydiag.cluster import bundle, frames
from raydiag.cluster.address import Address
from raydiag.cluster.bundle import Package
from raydiag.cluster.jobs_api import SUBMISSION_PREFIX, TERMINAL, is_ours
from raydiag.errors import AgentDead, CannotRun
from raydiag.untrusted import inflated

if TYPE_CHECKING:
    from raydiag.cluster.jobs_api import JobsApi
    from raydiag.cluster.local import LocalRay

POLL_S = 0.1
START_LIMIT_S = 120.0  # from the submission to the first word of the job
_STOP_LIMIT_S = 6.0
_MESSAGE_LIMIT_BYTES = 64 << 20
_CALL_LIMIT_S = 2.0  # for one call, when nothing but cleaning up is left
_MOST_FORGOTTEN = 20  # by one call: each costs a request
_READ_S = 60.0  # after its end another caller may still read what its job has printed, or forget it
_LONGEST = "raydiag_longest_s"  # in the metadata of a job


# What carries a job of ours: a dashboard, or a temporary Ray.
ClusterAccess = Union["JobsApi", "LocalRay"]


class SubmittedJob:
    """Our submission, from the POST until it is certainly over."""

    def __init__(
        self,
        api: ClusterAccess,
        package: Package,
        kind: str,
        longest_s: Optional[float] = None,
        more: Optional[Mapping[str, str]] = None,
    ) -> None:
        """`longest_s`: what lives longer is stopped by a later call; None: it may take its time.

        `more`: what its metadata says besides, to whoever may use the Jobs API.
        """
        self.api = api
        self.id = f"{SUBMISSION_PREFIX}{kind}-{secrets.token_hex(6)}"
        metadata = {"raydiag": kind, "raydiag_version": raydiag.__version__}
        metadata.update(more or {})
        if longest_s is not None:
            metadata[_LONGEST] = f"{longest_s:.0f}"
        try:
            api.upload(package.name, package.content)
            api.submit(_unless_late(api) + package.command, self.id, metadata)
        except BaseException:
            api.limit = time.monotonic() + _CALL_LIMIT_S
            with contextlib.suppress(CannotRun):
                api.stop(self.id)  # it may have arrived before we were interrupted
            raise

    @classmethod
    def attached(cls, api: ClusterAccess, submission_id: str) -> "SubmittedJob":
        """One of ours that another call has submitted."""
        job = cls.__new__(cls)
        job.api, job.id = api, submission_id
        return job

    def read_into(self, decoder: frames.Decoder) -> Optional[AgentDead]:
        """Take what its log has; returns why it is not to be had, where who reads it is dead."""
        try:
            decoder.feed(self.api.logs(self.id))
        except AgentDead as error:
            return error
        return None

    def end(self, patience_s: float) -> None:
        """Leave nothing running: give the job a moment to end by itself, then stop it.

        Raises CannotRun when that cannot be had, or seen, within some seconds.
        """
        stop_at = time.monotonic() + patience_s
        give_up_at = stop_at + _STOP_LIMIT_S
        while True:
            now = time.monotonic()
            self.api.limit = min(give_up_at, now + _CALL_LIMIT_S)
            if self.api.job(self.id).get("status") in TERMINAL:
                return
            if now > give_up_at:
                raise CannotRun(f"job {self.id} does not stop")
            if now > stop_at:
                self.api.stop(self.id)
                stop_at = give_up_at
            time.sleep(POLL_S)

    def tidy(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Let Ray forget this job, and what earlier calls have left in its list of jobs.

        Of those, what ended a moment ago is still somebody's. What should have ended long ago, as
        it waited for an agent, is stopped.
        """
        with contextlib.suppress(CannotRun):
            self._tidy_others(jobs)
            self.api.forget(self.id)

    def _tidy_others(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        ours = {str(job["submission_id"]): job for job in jobs if is_ours(job)}
        now_s = _start_s(ours.pop(self.id, {}))  # by the head's clock
        ended = [name for name, job in ours.items() if _is_left(job, now_s)]
        overdue = [name for name, job in ours.items() if _is_overdue(job, now_s)]
        self.api.limit = time.monotonic() + _CALL_LIMIT_S
        for submission_id in ended[:_MOST_FORGOTTEN]:
            self.api.delete(submission_id)
        for submission_id in overdue:
            self.api.stop(submission_id)


def _unless_late(api: ClusterAccess) -> str:
    """A line of shell: a job that Ray starts when nobody waits for it any more ends at once.

    An agent that was stuck takes what it was sent meanwhile, hours later too.
    """
    now_s = api.head_time()
    if now_s is None:
        return ""
    too_late = "{ echo 'raydiag: started too late, nobody waits for this'; exit 0; }"
    return (
        f'[ "$(date +%s 2>/dev/null || echo 0)" -le {now_s + START_LIMIT_S:.0f} ] || {too_late}\n'
    )


def _is_left(job: Mapping[str, Any], now_s: Optional[float]) -> bool:
    """Whether it has ended, and so long ago that nobody reads its log any more."""
    end = job.get("end_time")
    if job.get("status") not in TERMINAL or now_s is None:
        return False
    return not isinstance(end, (int, float)) or now_s - end / 1000 > _READ_S


def _start_s(job: Mapping[str, Any]) -> Optional[float]:
    start = job.get("start_time")
    return start / 1000 if isinstance(start, (int, float)) else None


def _is_overdue(job: Mapping[str, Any], now_s: Optional[float]) -> bool:
    """Whether it waits or runs for longer than it may."""
    longest = str((job.get("metadata") or {}).get(_LONGEST, ""))
    start_s = _start_s(job)
    if start_s is None or now_s is None or not longest.isdecimal():
        return False
    return job.get("status") not in TERMINAL and now_s - start_s > float(longest)


def unpacked(payload: bytes) -> dict[str, Any]:
    """A message of a job of ours. Raises ValueError for what is none."""
    message = inflated(payload, _MESSAGE_LIMIT_BYTES)
    if not isinstance(message, dict):
        raise ValueError("a message is not an object")
    return message


def why_no_answer(job: SubmittedJob) -> str:
    """What is known of a job that said nothing of use."""
    try:
        details, log = job.api.job(job.id), job.api.logs(job.id)
    except CannotRun as error:
        return f"raydiag's job {job.id} gave no answer: {error}"
    # Ray shows the command first, which is no news.
    printed = log.rpartition(bundle.LAST_LINE)[2]
    lines = [line for line in printed.splitlines() if line.strip() and "@raydiag" not in line]
    last = (lines or ["(it printed nothing)"])[-1].strip()[:300]
    # Ray's message ends with the end of the log, our bundle and frames included.
    message = str(details.get("message") or "").partition(", last available logs")[0]
    message = " ".join(message.split())[:300]
    return (
        f"raydiag's job {job.id} gave no answer: status {details.get('status')}: {message}; "
        f"last line of its log: {last}"
    )


def check_cluster(address: Address, version: Mapping[str, Any], start: Mapping[str, Any]) -> None:
    """The coordinator must have joined the cluster that was asked for, and no other one."""
    if address.gcs_address and address.gcs_address != start["gcs_address"]:
        raise CannotRun(
            f"{address.origin} names the cluster {address.gcs_address}, but the dashboard at "
            f"{address.url} belongs to {start['gcs_address']}: give the right one with --address"
        )
    names = {version["session_name"], start["session_name"]}
    if all(names) and len(names) > 1:
        raise CannotRun(
            f"the dashboard belongs to {version['session_name']}, but its job joined "
            f"{start['session_name']} at {start['gcs_address']}: several Ray clusters run on the "
            "head, and Ray mixed them up; what that one's nodes answered is not shown"
        )
