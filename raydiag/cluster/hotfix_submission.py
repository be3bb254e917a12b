"""The caller's side of a hotfix: submit its driver, follow what it says, return its document."""

import functools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from raydiag.cluster import bundle, frames, submission
from raydiag.cluster.address import Address
from raydiag.cluster.jobs_api import TERMINAL
from raydiag.cluster.submission import ClusterAccess, SubmittedJob
from raydiag.errors import CannotRun, UsageError

_STARTUP_LIMIT_S = 120.0
_SILENCE_LIMIT_S = 120.0  # it sends a sign of life every few seconds
_POLL_S = 0.25
_MOST_FAILURES = 5  # looks at the job in a row, at least a second apart
_END = 999_999

Hear = Callable[[Mapping[str, Any]], None]


class DriverLost(CannotRun):
    """A driver that may have changed something ended early, or is not heard any more."""

    exit_code = 1


def submit_hotfix(
    api: ClusterAccess,
    address: Address,
    work: Mapping[str, Any],
    select: Optional[Sequence[str]],
    symbols: Sequence[str],
    options: Mapping[str, Any],
    hear: Hear,
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Have the head do `work` (see `raydiag.hotfix.head`); returns its document.

    `hear` gets each message as it comes. What changes nodes is not stopped when we are: it ends by
    itself, verified or rolled back. Raises UsageError, CannotRun, DriverLost.
    """
    nonce, version = secrets.token_hex(8), api.version()
    request = {"nonce": nonce, "select": select, "symbols": symbols, "options": options}
    job = SubmittedJob(api, bundle.hotfix_package(work, request), "hotfix")
    changes = work["command"] in ("apply", "rollback")
    check = functools.partial(submission.check_cluster, address, version)
    follower = _Follower(job, nonce, hear, check)
    try:
        end = follower.run()
    except _NotHeard as error:
        if not changes or not follower.started:
            raise CannotRun(str(error)) from None
        hint = f"what it left is told by: raydiag hotfix status {work['rollout']}"
        raise DriverLost(f"{error}; {hint}") from None
    except BaseException:
        if changes and follower.started and not follower.ended and not address.is_local:
            action = f"{work['command']} {work['rollout']} goes on by itself on the head"
            hint = f"raydiag hotfix status {work['rollout']}"
            warn(f"{action} (job {job.id}): look at it with: {hint}")
        else:
            _end(job, 0.0, warn)
        raise
    _end(job, 3.0, warn)
    if "usage" in end:
        raise UsageError(end["usage"])
    if "failed" in end:
        raise CannotRun(end["failed"])
    document: dict[str, Any] = end["document"]
    return document


class _NotHeard(Exception):
    """The end message did not come."""


class _Follower:
    """Reads the job's log until its end message."""

    def __init__(
        self, job: SubmittedJob, nonce: str, hear: Hear, check: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._job, self._hear, self._check = job, hear, check
        self._decoder = frames.Decoder(nonce)
        self._taken: set[int] = set()
        self.started = False  # it has joined its cluster
        self.ended = False  # it does nothing any more
        self._failures = 0

    def run(self) -> dict[str, Any]:
        """The end message. Raises CannotRun, _NotHeard."""
        api, silence = self._job.api, None
        limit = time.monotonic() + _STARTUP_LIMIT_S
        while time.monotonic() < limit:
            api.limit = limit
            # Looked at before the log is read: what an ended job has printed is then all there.
            self.ended = self._has_ended()
            silence = self._job.read_into(self._decoder)
            new = sorted(self._decoder.messages.keys() - self._taken)
            for number in new:
                self._taken.add(number)
                try:
                    message = submission.unpacked(self._decoder.messages[number])
                except ValueError:
                    continue  # as lost as one that did not come
                if number == 0:
                    self.started = True
                    self._check(message)
                elif number == _END:
                    self.ended = True
                    return message
                elif number < _END:
                    self._hear(message)
            if new:
                limit = time.monotonic() + _SILENCE_LIMIT_S
            if self.ended:
                break
            time.sleep(_POLL_S)
        api.limit = time.monotonic() + 5.0
        raise _NotHeard(str(silence or submission.why_no_answer(self._job)))

    def _has_ended(self) -> bool:
        """A dashboard that does not answer now and then ends nothing."""
        try:
            status, self._failures = str(self._job.api.job(self._job.id).get("status")), 0
        except CannotRun:
            self._failures += 1
            if self._failures == _MOST_FAILURES:
                raise
            time.sleep(1.0)
            return False
        return status in TERMINAL


def _end(job: SubmittedJob, patience_s: float, warn: Callable[[str], None]) -> None:
    try:
        job.end(patience_s)
        job.tidy(job.api.jobs())
    except CannotRun as error:
        warn(f"raydiag's job {job.id} may still run: {str(error).partition('. ')[0]}")
