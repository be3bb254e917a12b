"""A job of ours on a cluster: from its submission until it is certainly over."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import raydiag
from raydiag.cluster import bundle
from raydiag.cluster.address import Address
from raydiag.cluster.jobs_api import SUBMISSION_PREFIX, TERMINAL, is_ours
from raydiag.errors import CannotRun

if TYPE_CHECKING:
    from raydiag.cluster.jobs_api import JobsApi
    from raydiag.cluster.local import LocalRay

POLL_S = 0.1
_STOP_LIMIT_S = 6.0
_CALL_LIMIT_S = 2.0  # for one call, when nothing but cleaning up is left
_JOBS_KEPT = 5


# What carries a job of ours: a dashboard, or a temporary Ray.
ClusterAccess = Union["JobsApi", "LocalRay"]


class SubmittedJob:
    """Our submission, from the POST until it is certainly over."""

    def __init__(self, api: ClusterAccess, command: str, kind: str) -> None:
        self.api = api
        self.id = f"{SUBMISSION_PREFIX}{kind}-{secrets.token_hex(6)}"
        metadata = {"raydiag": kind, "raydiag_version": raydiag.__version__}
        try:
            api.submit(command, self.id, metadata)
        except BaseException:
            with contextlib.suppress(CannotRun):
                api.stop(self.id)  # it may have arrived before we were interrupted
            raise

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
        """Let Ray forget our jobs of earlier times, all but the last few: each is a long text."""
        ended = [job for job in jobs if is_ours(job) and job.get("status") in TERMINAL]
        if len(ended) <= 2 * _JOBS_KEPT:  # not one in every run: each costs a request
            return
        ended.sort(key=lambda job: job.get("end_time") or 0)
        for job in ended[:-_JOBS_KEPT]:
            self.api.delete(str(job["submission_id"]))


def unpacked(payload: bytes) -> dict[str, Any]:
    """A message of a job of ours."""
    return dict(json.loads(zlib.decompress(payload)))


def why_no_answer(job: SubmittedJob) -> str:
    """What is known of a job that said nothing of use."""
    try:
        details = job.api.job(job.id)
    except CannotRun as error:
        return f"raydiag's job {job.id} gave no answer: {error}"
    log = job.api.logs(job.id)
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
