"""Does this explain that? Everything that a cause is asked, and what each answer is worth.

`weigh` asks the questions below, in their order, of one finding as the cause of another. An answer
rules the cause out, or speaks for it or against it with some points; the cause with the most points
is the one that explains. What is true of a class (what it can cause, how soon, how many errors are
harmless) stands in `failures.yaml`: no question names a class.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from raydiag import catalog
from raydiag.catalog.completion import severity_of
from raydiag.catalog.failure_classes import FailureClass
from raydiag.model import Finding, Observation, Severity
from raydiag.tsdb.discovery_types import is_address

TRIAGE = "triage"  # where observations come from that the job's log tells
_OVER_S = 600.0  # what ended so long before an effect did not cause it
_NEAR_S = 120.0  # what changed so shortly before an effect speaks for itself
_SLACK_S = 60.0  # times of one event differ by so much between sources
_PATIENCE_S = 1800.0  # until those who wait in vain give up
_FEW = 0.2  # of what is harmless: fewer are no reason, whenever they came


@dataclass(frozen=True)
class Reach:
    """How far a cause reaches."""

    of_job: bool = False  # hosts of one job wait for each other, and several sources tell of them
    step_time_s: float | None = None  # of the job


CLUSTER = Reach()


@dataclass(frozen=True)
class Reply:
    """The answer to one question. Without points it rules the cause out."""

    text: str
    points: int | None = None


@dataclass(frozen=True)
class Account:
    """What speaks for one cause of one effect, and what against it."""

    cause: Observation
    replies: tuple[Reply, ...]

    @property
    def ruled_out(self) -> str:
        """Why it cannot be the cause; "" where it can."""
        return next((reply.text for reply in self.replies if reply.points is None), "")

    @property
    def points(self) -> int:
        """How well it explains the effect."""
        return sum(reply.points or 0 for reply in self.replies)

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts causes: the best one is the greatest; of equals the one that came first."""
        return self.points, -(self.cause.finding.onset or 0.0)

    @property
    def merits(self) -> str:
        """What speaks for it."""
        return "; ".join(reply.text for reply in self.replies if (reply.points or 0) > 0)

    @property
    def doubts(self) -> str:
        """What speaks against it."""
        return "; ".join(reply.text for reply in self.replies if (reply.points or 0) < 0)


@dataclass(frozen=True)
class _Pair:
    """A cause and an effect, as far as questions look at both."""

    cause: Observation
    effect: Observation
    reach: Reach

    @property
    def felt(self) -> FailureClass:
        """The class of the effect."""
        return catalog.failure(self.effect.finding.failure_class)

    @property
    def causing(self) -> FailureClass:
        """The class of the cause."""
        return catalog.failure(self.cause.finding.failure_class)

    @property
    def slack_s(self) -> float:
        """By how much the order of the two may be wrong."""
        if not self.reach.of_job:
            return 0.0
        more, less = sorted((self.cause.uncertainty_s, self.effect.uncertainty_s), reverse=True)
        slack = max(more + min(less, _SLACK_S), _SLACK_S)
        # A hang dates from the last step, its cause from the next.
        return slack + (self.reach.step_time_s or 0.0) if self.felt.hang else slack


def weigh(cause: Observation, effect: Observation, reach: Reach) -> Account:
    """The account of a cause whose class can have such an effect."""
    pair, replies = _Pair(cause, effect, reach), []
    for question in _QUESTIONS:
        reply = question(pair)
        if reply is not None:
            replies.append(reply)
            if reply.points is None:
                break
    return Account(cause, tuple(replies))


def is_later(cause: Observation, effect: Observation, reach: Reach) -> bool:
    """It began after what it should explain, by more than the times are known to."""
    began, noticed = cause.finding.onset, effect.finding.onset
    if began is None or noticed is None:
        return False
    return began > noticed + _Pair(cause, effect, reach).slack_s


def spares_the_job(cause: Observation) -> bool:
    """Whether no job fails or hangs for it; a rule may have seen that this one does reach it."""
    is_spared = catalog.failure(cause.finding.failure_class).spares_the_job
    return is_spared and not cause.facts.get("reaches_the_job")


# ---- the questions


def _does_it_reach_the_job(pair: _Pair) -> Reply | None:
    """Of what usually spares the job: that it stopped then may still be chance."""
    if not pair.causing.spares_the_job or not (pair.felt.hang or pair.felt.late_notice):
        return None
    if spares_the_job(pair.cause):
        return Reply("no job stops for it")
    return Reply("most jobs go on with it", -1)


def _did_the_job_go_well_with_it(pair: _Pair) -> Reply | None:
    if pair.cause.finding.before_job and not pair.effect.finding.before_job:
        return Reply("it was so before the job, which went well with it")
    return None


def _is_it_felt_there(pair: _Pair) -> Reply | None:
    """Whether what happens at the one place is felt at the other."""
    cause, effect = pair.cause.finding, pair.effect.finding
    if pair.felt.cluster_wide and effect.host is None and cause.host is not None:
        return Reply("of one host's fault the others would still have theirs")
    if cause.host is None or effect.host is None:
        return None
    if is_address(cause.host) != is_address(effect.host) and not (cause.address or effect.address):
        return Reply("an address, and nothing says whose", -2)
    if not _same_host(cause, effect):
        is_felt = pair.felt.felt_by_peers or pair.felt.late_notice
        if pair.reach.of_job and is_felt:
            return Reply("another host", 0)
        return Reply("another host")
    if _same_device(cause, effect):
        return Reply("the same device", 4)
    apart = cause.gpu is not None and effect.gpu is not None and cause.gpu != effect.gpu
    if pair.reach.of_job and apart and not pair.felt.symptom:
        return Reply("another GPU")
    return Reply("the same host", 1)


def _did_it_come_first(pair: _Pair) -> Reply | None:
    is_told_later = pair.effect.facts.get("first_in_log") and pair.cause.playbook == TRIAGE
    # How a process ended, and not why, is told before its cause at times; not by the process.
    task = pair.effect.finding.task
    told_by_one = task is not None and task == pair.cause.finding.task
    if is_told_later and (told_by_one or not pair.felt.mechanism or pair.causing.mechanism):
        return Reply("the log tells of it later")
    if is_later(pair.cause, pair.effect, pair.reach):
        return Reply("it began later")
    return None


def _did_it_change_then(pair: _Pair) -> Reply | None:
    """A mechanism takes its time; a level that was the same for long before explains nothing."""
    noticed = pair.effect.finding.onset
    if noticed is None or pair.cause.finding.onset is None:
        return Reply("nothing tells which came first", 0)
    if pair.cause.facts.get("steady"):
        return Reply("it was the same before")
    changes = _changes(pair.cause)
    since_s = min(abs(noticed - moment) for moment in changes if moment <= noticed + pair.slack_s)
    entry = pair.causing
    if pair.felt.late_notice and noticed - min(changes) < (entry.acts_after_s or -pair.slack_s):
        return Reply("too short before")
    if since_s <= _NEAR_S:
        return Reply("it changed just then", 5)
    if not entry.acts_within_s:
        return Reply("it changed before", 3)
    limit = entry.acts_within_s + (_PATIENCE_S if pair.felt.late_notice else 0.0)
    if since_s <= limit:
        return Reply(f"it changed {since_s:.0f} s before", 3)
    return Reply(f"for {since_s / 60:.0f} min nothing came of it")


def _did_it_last_as_long(pair: _Pair) -> Reply | None:
    """What ended long before is no cause; what ends when its effect does is one."""
    cause, effect = pair.cause, pair.effect
    if cause.facts.get("cleared") and pair.felt.symptom:
        return Reply("it ended, and what it should explain went on")
    if cause.finding.onset is None or cause.until is None or effect.finding.onset is None:
        return None
    if cause.recovered and cause.until < effect.finding.onset - _OVER_S:
        return Reply("it was over long before")
    if not (pair.felt.symptom and effect.recovered and effect.until is not None):
        return None
    if abs(cause.until - effect.until) <= max(pair.slack_s, _NEAR_S):
        return Reply("both ended together", 2)
    if cause.until > effect.until:
        return Reply("it goes on, and its effect is over", -2)
    return None


def _is_it_enough(pair: _Pair) -> Reply | None:
    """A few errors that were corrected cost nothing; more of them may, where all began together."""
    count, noticed = pair.cause.facts.get("grew_by"), pair.effect.finding.onset
    least = pair.causing.harmless_below or 0
    if _severity(pair.cause) is Severity.CRITICAL or not isinstance(count, (int, float)):
        return None
    if pair.cause.facts.get("slower_part"):  # errors that were counted beside are not all of it
        return None
    if count >= least:
        return None
    began, points = pair.cause.finding.onset, None
    if began is not None and noticed is not None and count > _FEW * least:
        points = -3 if abs(began - noticed) <= _NEAR_S else None
    return Reply(f"{count:.0f} of them are harmless", points)


def _is_it_more_than_a_note(pair: _Pair) -> Reply | None:
    """A note may tell why a job is slow; it ends none."""
    if not pair.reach.of_job or pair.felt.slow or _severity(pair.effect) is Severity.INFO:
        return None
    if _severity(pair.cause) is Severity.INFO:
        return Reply("it is no more than a note")
    return None


def _how_certain_is_it(pair: _Pair) -> Reply | None:
    confidence = pair.cause.finding.confidence
    return Reply(f"its finding is {confidence.value}", _severity(pair.cause).rank + confidence.rank)


def _who_else_saw_it(pair: _Pair) -> Reply | None:
    sources = {evidence.source.partition(":")[0] for evidence in pair.cause.finding.evidence}
    return Reply("several sources show it", 1) if len(sources) > 1 else None


_QUESTIONS: tuple[Callable[[_Pair], Reply | None], ...] = (
    _does_it_reach_the_job,
    _is_it_felt_there,
    _did_the_job_go_well_with_it,
    _did_it_come_first,
    _did_it_change_then,
    _did_it_last_as_long,
    _is_it_enough,
    _is_it_more_than_a_note,
    _how_certain_is_it,
    _who_else_saw_it,
)


def _changes(cause: Observation) -> list[float]:
    """When it began, was strongest, killed, and ended."""
    moments = [cause.finding.onset, cause.facts.get("kill_time"), cause.facts.get("peak_time")]
    if cause.recovered:
        moments.append(cause.until)
    moments += map(attrgetter("time"), cause.finding.evidence)
    return [float(moment) for moment in moments if moment is not None]


def _severity(observation: Observation) -> Severity:
    return severity_of(observation.finding)


def _same_host(cause: Finding, effect: Finding) -> bool:
    same_address = (
        cause.address == effect.address or cause.address is None or effect.address is None
    )
    return cause.host == effect.host and same_address


def _same_device(cause: Finding, effect: Finding) -> bool:
    same_gpu = cause.gpu is not None and cause.gpu == effect.gpu
    return same_gpu or (cause.device is not None and cause.device == effect.device)
