"""What to do about a job, by its diagnosis, the policy and what was done before. Pure.

Rules are asked in order; the first that says something decides. Whatever is not known never costs
a node its place, and never starts anything beside an attempt that may still run.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from raydiag.recovery.policy import RecoveryPolicy, kinds

_CAUSELESS = ("unknown", "healthy")
_SURE = ("likely", "confirmed")


class RecoveryAction(str, Enum):
    """What can be decided."""

    NOOP = "NOOP"  # nothing is wrong
    DIAGNOSE = "DIAGNOSE"  # a person, or a fresh diagnosis, has to look first
    REATTEMPT = "REATTEMPT"
    EVICT = "EVICT"  # a new attempt without some hosts
    STOP = "STOP"  # for good


@dataclass(frozen=True)
class EndedAttempt:
    """An attempt at a job, as its diagnosis has it."""

    status: str  # completed, failed, cancelled, running, hanging, unknown, idle
    failure_class: str = "unknown"
    confidence: str = "possible"
    hosts: tuple[str, ...] = ()
    saved: bool = False  # it is known to have come to a save
    ended: float | None = None  # Unix s, of its last step; None: not known
    diagnosed: float = 0.0  # Unix s
    is_over: bool = False  # somebody knows that nothing of it runs; an error line is no proof

    @property
    def is_known(self) -> bool:
        """Whether there is a cause to go by."""
        return self.failure_class not in _CAUSELESS and self.confidence in _SURE


@dataclass(frozen=True)
class RecoveryHistory:
    """What was done about this job before."""

    attempts: tuple[EndedAttempt, ...] = ()  # those that were followed by another, oldest first
    restarted: tuple[float, ...] = ()  # Unix s
    evicted: tuple[str, ...] = ()  # hosts
    stopped: str = ""  # why nothing is to be done any more


@dataclass(frozen=True)
class RecoveryDecision:
    """With a reason for people."""

    action: RecoveryAction
    reason: str
    hosts: tuple[str, ...] = ()  # that are to be left out from now on
    not_before: float = 0.0  # Unix s, of a new attempt


@dataclass(frozen=True)
class _Case:
    attempt: EndedAttempt
    policy: RecoveryPolicy
    past: RecoveryHistory
    now: float

    @property
    def kind(self) -> str:
        """Of the cause; "" for one that no list has, or that is not known."""
        return kinds().get(self.attempt.failure_class, "") if self.attempt.is_known else ""

    @property
    def bad_in_row(self) -> int:
        """Attempts without a save up to this one."""
        count = 0
        for attempt in (self.attempt, *reversed(self.past.attempts)):
            if attempt.saved:
                break
            count += 1
        return count


def decide(
    attempt: EndedAttempt, policy: RecoveryPolicy, past: RecoveryHistory, now: float
) -> RecoveryDecision:
    """What to do at `now` about the newest attempt."""
    case = _Case(attempt, policy, past, now)
    for rule in _RULES:
        decision = rule(case)
        if decision is not None:
            return decision
    return _again(case, RecoveryAction.REATTEMPT, _reason_to_try(case))


def attempt_of(document: Mapping[str, Any], ended: float | None, diagnosed: float) -> EndedAttempt:
    """Out of a document of `diagnose`, as its schema has it; times are Unix s."""
    verdict = document["verdict"]
    progress = (document["triage"] or {}).get("progress") or {}
    return EndedAttempt(
        status=str(document["status"]),
        failure_class=str(verdict["class"]),
        confidence=str(verdict["confidence"]),
        hosts=tuple(map(str, verdict["hosts"])),
        saved=progress.get("last_checkpoint") is not None,
        ended=ended,
        diagnosed=diagnosed,
    )


# ---- rules, in the order in which they are asked


def _over(case: _Case) -> RecoveryDecision | None:
    if case.past.stopped:
        return _stop(f"given up before: {case.past.stopped}")
    if case.attempt.status != "cancelled":
        return None
    if case.attempt.failure_class in ("cancelled", *_CAUSELESS):
        return _stop("a person ended it")
    cause = case.attempt.failure_class
    return _look(f"it was ended from outside, with {cause} behind it: a person says what is next")


def _not_ended(case: _Case) -> RecoveryDecision | None:
    status = case.attempt.status
    if status in ("completed", "running", "idle"):
        return RecoveryDecision(RecoveryAction.NOOP, f"the job's status is {status}")
    if status == "hanging":
        return _look(
            "it hangs and still holds its nodes: end it first, nothing is started beside it"
        )
    if status != "failed":
        return _look("whether it has ended is not known")
    if not case.attempt.is_over:
        return _look(
            "it has failed by its log, which does not prove that nothing of it runs: make sure, "
            "then give --ended"
        )
    if case.attempt.ended is None:
        return _look("it came to no step whose time is known, by which to tell attempts apart")
    if case.attempt.diagnosed < case.attempt.ended:
        return _look("the diagnosis is older than the end of the attempt")
    return None


def _out_of_budget(case: _Case) -> RecoveryDecision | None:
    policy, restarted = case.policy, case.past.restarted
    if len(restarted) >= policy.most_restarts:
        return _stop(f"{len(restarted)} restarts: most_restarts of the policy")
    recent = [at for at in restarted if at > case.now - policy.window]
    if len(recent) >= policy.most_in_window:
        hours = policy.window / 3600
        return _stop(f"{len(recent)} restarts within {hours:g} h: most_in_window of the policy")
    if case.bad_in_row > policy.most_bad:
        return _stop(f"{case.bad_in_row} attempts in a row ended before their first save")
    return None


def _own_fault(case: _Case) -> RecoveryDecision | None:
    name = case.attempt.failure_class
    if case.kind == "never":
        return _stop(f"{name}: a new attempt would fail in the same way")
    if case.kind == "job" and _times_before(case, name):
        return _stop(f"{name} for the second time: it is the job's own, on whatever node")
    return None


def _unknown(case: _Case) -> RecoveryDecision | None:
    if not case.attempt.is_known and case.policy.unknown == "diagnose":
        return _look("the cause is not known, and the policy lets nobody try without one")
    return None


def _host_fault(case: _Case) -> RecoveryDecision | None:
    if case.kind not in ("broken", "host"):
        return None
    name, evicted = case.attempt.failure_class, case.past.evicted
    returned = sorted(set(case.attempt.hosts) & set(evicted))
    if returned:
        return _stop(f"{name} on {', '.join(returned)}, which was to be left out")
    guilty = _guilty(case)
    if not guilty:
        return None
    limit = min(case.policy.most_evicted_at_once, case.policy.most_evicted - len(evicted))
    if len(guilty) > limit:
        names = ", ".join(guilty)
        return _stop(f"{name} on {names}: more hosts than the policy lets be left out")
    return _again(case, RecoveryAction.EVICT, f"{name} on {', '.join(guilty)}", guilty)


_RULES: Sequence[Callable[[_Case], RecoveryDecision | None]] = (
    _over,
    _not_ended,
    _out_of_budget,
    _own_fault,
    _unknown,
    _host_fault,
)


# ---- what they share


def _stop(reason: str) -> RecoveryDecision:
    return RecoveryDecision(RecoveryAction.STOP, reason)


def _look(reason: str) -> RecoveryDecision:
    return RecoveryDecision(RecoveryAction.DIAGNOSE, reason)


def _again(
    case: _Case, action: RecoveryAction, reason: str, hosts: tuple[str, ...] = ()
) -> RecoveryDecision:
    policy = case.policy
    doubled = policy.wait * 2.0 ** min(case.bad_in_row, 32)
    wait_s = min(policy.longest_wait, doubled)
    return RecoveryDecision(action, reason, hosts, (case.attempt.ended or case.now) + wait_s)


def _reason_to_try(case: _Case) -> str:
    attempt = case.attempt
    if not attempt.is_known:
        return "the cause is not known: a new attempt on the same nodes"
    if not attempt.hosts:
        return f"{attempt.failure_class}, which no host is accused of"
    return f"{attempt.failure_class} on {', '.join(attempt.hosts)}, no reason yet to leave it out"


def _times_before(case: _Case, failure_class: str) -> int:
    """Earlier attempts that ended by it for sure."""
    return sum(seen.is_known and seen.failure_class == failure_class for seen in case.past.attempts)


def _guilty(case: _Case) -> tuple[str, ...]:
    """Hosts of the verdict that have shown its cause often enough."""
    attempt, policy = case.attempt, case.policy
    times = Counter(set(attempt.hosts))
    for earlier in case.past.attempts:
        if earlier.is_known and earlier.failure_class == attempt.failure_class:
            times.update(set(earlier.hosts))
    needed = policy.evict_after
    is_confirmed = case.kind == "broken" and attempt.confidence == "confirmed"
    if is_confirmed and policy.evict_broken_at_once:
        needed = 1
    return tuple(host for host in sorted(set(attempt.hosts)) if times[host] >= needed)
