"""Which cause explains what happened to the job: the choice of the verdict, and why not another.

1. Findings of all sources are merged (`merge`) and put in chains of cause and effect (`chains`).
   Each effect goes to the cause that explains it best; `weighing` has the questions.
2. The symptom is what happened: the end that the log tells, a hang, a slow-down (`JobSymptom`).
3. The root of the chain that holds the symptom is the verdict. Only where nothing happened is it
   the gravest alarm. Notes never are the verdict, and what watches the job comes
   last.
4. The same fault on other hosts belongs to it where it explains the symptom as well; where another
   fault explains it nearly as well, the answer is likely and no more. The rest was seen, and is
   not the cause: `rejected` says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from raydiag import catalog
from raydiag.catalog.completion import completed, order, severity_of
from raydiag.catalog.failure_classes import FailureClass
from raydiag.explain.chains import chains
from raydiag.explain.job_case import JobCase
from raydiag.explain.merge import merge, with_most_specific
from raydiag.explain.weighing import Account, Reach, spares_the_job, weigh
from raydiag.model import Chain, Confidence, Finding, Observation, Severity
from raydiag.playbooks.observations import RuledOut
from raydiag.rules.grades import confirmed_if
from raydiag.tsdb.discovery_types import is_address

_EARLY_SHARE = 0.1  # of the run: what began so early and lasts is a level, not a change
_CLOSE_POINTS = 1  # so near to the best account, another cause may be the one
_CLEAR_POINTS = 5  # an account of less is no proof
_TOGETHER_S = 120.0  # one event on several hosts
_NAMED = 3


@dataclass(frozen=True)
class CauseChain:
    """Observations as cause and effects, the root first."""

    observations: Sequence[Observation]
    confidence: Confidence

    @property
    def root(self) -> Observation:
        """The cause."""
        return self.observations[0]

    @property
    def findings(self) -> list[Finding]:
        """The findings, the root first."""
        return findings_of(self.observations)

    @property
    def chain(self) -> Chain:
        """The same as a plain chain of findings."""
        return Chain(tuple(self.findings), self.confidence)

    @property
    def is_alone(self) -> bool:
        """A symptom that explains nothing else, or what ended and took nothing with it."""
        is_lone_symptom = is_symptom(self.root) and len(self.observations) == 1
        return is_lone_symptom or bool(self.root.facts.get("cleared"))


def findings_of(observations: Iterable[Observation]) -> list[Finding]:
    """Their findings."""
    return list(map(attrgetter("finding"), observations))


def observations_of(ordered: Iterable[CauseChain]) -> Iterator[Observation]:
    """All of some chains."""
    return itertools.chain.from_iterable(map(attrgetter("observations"), ordered))


# ---- chains


def cause_chains(case: JobCase) -> list[CauseChain]:
    """One finding for each fault, in chains; those with the most severe finding come first."""
    merged = list(map(_completed, with_most_specific(merge(case.observations))))
    merged.sort(key=lambda observation: order(observation.finding))
    by_finding = {id(observation.finding): observation for observation in merged}
    return [_in_time(chain, by_finding) for chain in chains(merged, _reach(case))]


def alone(aside: Observation) -> CauseChain:
    """A chain of one."""
    return CauseChain([_completed(aside)], aside.finding.confidence)


def _reach(case: JobCase) -> Reach:
    return Reach(of_job=True, step_time_s=case.step_time_s)


def _in_time(chain: Chain, by_finding: Mapping[int, Observation]) -> CauseChain:
    """Root first, then by onset; what has no date comes last."""
    root, *effects = chain.findings
    effects.sort(key=_time_order)
    return CauseChain([by_finding[id(finding)] for finding in (root, *effects)], chain.confidence)


def _time_order(finding: Finding) -> tuple[bool, float, int]:
    """Of one moment, what can have more effects is nearer to the root."""
    reach = len(catalog.failure(finding.failure_class).can_cause)
    return finding.onset is None, finding.onset or 0.0, -reach


def _completed(observation: Observation) -> Observation:
    return replace(observation, finding=completed(observation.finding))


# ---- what happened


@dataclass(frozen=True)
class JobSymptom:
    """What happened to the job, as the classes that say so; none where it goes well."""

    classes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, candidates: Iterable[CauseChain], case: JobCase) -> JobSymptom:
        """What triage says it died of; else a hang, where it ended badly; else a slow-down."""
        if case.primary is not None:
            return cls(frozenset({case.primary, *catalog.failure(case.primary).ends}))
        present = set()
        for observation in filter(is_problem, observations_of(candidates)):
            entry = _class_of(observation)
            if entry.hang if case.ended_badly else entry.slow:
                present.add(entry.id)
        return cls(frozenset(present))

    def seen_in(self, chain: CauseChain) -> Observation | None:
        """The first sign of it that the chain explains."""
        signs = (seen for seen in chain.observations if _class_of(seen).id in self.classes)
        return min(signs, key=dated_first, default=None)

    def distance(self, chain: CauseChain, case: JobCase) -> int:
        """0: it explains what happened; 1: a grave fault beside; 2: it is the symptom; 3: neither.

        A job that failed or hangs did so for one reason, however grave another fault is.
        """
        if not self.classes or self.seen_in(chain) is not None:
            if self.classes and chain.is_alone:
                return 2
            return 0
        is_grave = severity_of(chain.root.finding) is Severity.CRITICAL
        if is_grave and not case.is_broken:
            return 1
        return 3


# ---- the choice


@dataclass(frozen=True)
class Candidate:
    """A fault that can cause what happened: what speaks for it, and what against it."""

    failure_class: str
    host: str | None
    speaks_for: str
    speaks_against: str  # "" where nothing does


@dataclass(frozen=True)
class Choice:
    """The chain whose root is the verdict, among all."""

    case: JobCase
    chosen: CauseChain
    others: Sequence[CauseChain]
    symptom: Observation | None  # what its root explains; None where that is nothing
    is_beside: bool = False  # something happened to the job, and this does not explain it

    @cached_property
    def alike(self) -> list[Observation]:
        """The root, and the roots of other chains that are the same fault elsewhere."""
        root = self.chosen.root
        kind = (root.finding.failure_class, root.before_job)
        alike = [root]
        for candidate in map(attrgetter("root"), self.others):
            is_same = (candidate.finding.failure_class, candidate.before_job) == kind
            if is_same and is_problem(candidate) and self._takes_part(candidate):
                alike.append(candidate)
        # One machine may be told by its name and, where nothing says whose it is, by its address.
        named = list(itertools.filterfalse(_is_by_address, alike))
        return named + [other for other in alike if other not in named and _is_apart(other, named)]

    def _takes_part(self, candidate: Observation) -> bool:
        """Whether it explains the symptom too, came with the root, or while the symptom lasted."""
        symptom = self.symptom
        if symptom is None or not self._account(candidate).ruled_out:
            return True
        onset, began = candidate.finding.onset, self.chosen.root.finding.onset
        if onset is None or began is None:
            return False
        lasted_s = _TOGETHER_S
        if _class_of(symptom).slow and symptom.until is not None:
            lasted_s = max(lasted_s, symptom.until - began)
        return began - _TOGETHER_S <= onset <= began + lasted_s

    def _account(self, candidate: Observation) -> Account:
        assert self.symptom is not None
        return weigh(candidate, self.symptom, _reach(self.case))

    @property
    def limit(self) -> Confidence:
        """How certain the comparison with other causes allows to be."""
        if self.symptom is None or self.symptom is self.chosen.root:
            return confirmed_if(not self.is_beside)
        account = self._account(self.chosen.root)
        points = account.points
        rivals = (account.points for account in self._rivals)
        is_close = max(rivals, default=points - _CLOSE_POINTS - 1) >= points - _CLOSE_POINTS
        return confirmed_if(not is_close and points >= _CLEAR_POINTS and not account.doubts)

    def best_two(self) -> Iterator[Candidate]:
        """The verdict's root and its best rival; nothing where no symptom is explained by it."""
        if self.symptom is None or self.symptom is self.chosen.root:
            return
        rivals = sorted(self._accounts, key=_rivalry, reverse=True)
        for account in (self._account(self.chosen.root), *rivals[:1]):
            finding, against = account.cause.finding, account.ruled_out or account.doubts
            yield Candidate(finding.failure_class, finding.host, account.merits, against)

    @cached_property
    def _rivals(self) -> list[Account]:
        """Other faults that can explain the symptom."""
        return list(itertools.filterfalse(attrgetter("ruled_out"), self._accounts))

    @cached_property
    def _accounts(self) -> list[Account]:
        """Of other faults whose class can have such an effect."""
        if self.symptom is None:
            return []
        return list(map(self._account, filter(self._can_cause, self._other_roots)))

    @property
    def _other_roots(self) -> Iterator[Observation]:
        verdict = self.chosen.root.finding.failure_class
        for root in map(attrgetter("root"), self.others):
            if root.finding.failure_class != verdict and is_problem(root):
                yield root

    def _can_cause(self, root: Observation) -> bool:
        assert self.symptom is not None
        return self.symptom.finding.failure_class in _class_of(root).can_cause

    def rejected(self) -> Iterator[RuledOut]:
        """What was seen besides and is not the cause, each class once, with why."""
        if self.symptom is None:
            return
        reasons: dict[str, tuple[str, list[str]]] = {}
        for root in itertools.filterfalse(is_beside_the_job, self._other_roots):
            _, hosts = reasons.setdefault(root.finding.failure_class, (self._why_not(root), []))
            hosts.append(root.finding.host or "the job")
        for failure_class, (why, hosts) in reasons.items():
            yield RuledOut(failure_class, f"seen on {', '.join(hosts[:_NAMED])}: {why}", "explain")

    def _why_not(self, root: Observation) -> str:
        assert self.symptom is not None
        if not self._can_cause(root):
            return f"it does not cause {self.symptom.finding.failure_class}"
        account = self._account(root)
        return account.ruled_out or account.doubts or "more speaks for the verdict"


def _rivalry(account: Account) -> tuple[bool, int, int]:
    """Sorts rivals: what cannot be the cause comes after what can; of those, the most severe."""
    return (
        not account.ruled_out,
        account.points,
        severity_of(account.cause.finding).rank,
    )


def choose(candidates: Sequence[CauseChain], case: JobCase) -> Choice | None:
    """The choice; None when there is nothing that could be the verdict."""
    symptom = JobSymptom.of(candidates, case)

    def weight(chain: CauseChain) -> tuple[float, ...]:
        root = chain.root
        return (
            _is_doubtful(chain) and not symptom.classes,
            is_beside_the_job(root),
            symptom.distance(chain, case),
            chain.is_alone,
            _is_outlived(root, case),
            -severity_of(root.finding).rank,
            _is_background(root, case),
            root.recovered,
            -root.finding.confidence.rank,
            *dated_first(root),
        )

    able = [chain for chain in candidates if _may_be_verdict(chain, case)]
    chosen = min(able, key=weight, default=None)
    if chosen is None:
        return None
    others = [chain for chain in candidates if chain is not chosen]
    seen = symptom.seen_in(chosen)
    return Choice(case, chosen, others, seen, is_beside=bool(symptom.classes) and seen is None)


def _may_be_verdict(chain: CauseChain, case: JobCase) -> bool:
    """Not what explains only notes; nor has what is beside the job, or spares it, ended it."""
    is_worth_it = any(map(is_problem, chain.observations))
    is_spared = is_beside_the_job(chain.root) or spares_the_job(chain.root)
    return is_worth_it and not (case.is_broken and is_spared)


def _is_doubtful(chain: CauseChain) -> bool:
    """A symptom that is possible, and not more, of a job that goes well."""
    return chain.is_alone and chain.root.finding.confidence is Confidence.POSSIBLE


def _is_background(root: Observation, case: JobCase) -> bool:
    """It was so from the beginning to the end: nothing changed."""
    window = case.coverage.window
    if root.before_job:
        return True
    if window is None or root.until is None or root.finding.onset is None:
        return False
    early_s = _EARLY_SHARE * (window.end - window.start)
    return root.finding.onset - window.start < early_s and window.end - root.until < early_s


def _is_outlived(root: Observation, case: JobCase) -> bool:
    """It should have stopped a process of the job, and the job made steps since."""
    return _class_of(root).stops_its_process and case.made_steps_since(root.finding.onset)


def dated_first(observation: Observation) -> tuple[bool, float]:
    """Sorts by onset; what has none comes last."""
    return observation.finding.onset is None, observation.finding.onset or 0.0


def _is_apart(by_address: Observation, named: Sequence[Observation]) -> bool:
    """Whether it is another event than those of the machines that are told by name."""
    onset = by_address.finding.onset
    onsets = [observation.finding.onset for observation in named]
    if onset is None or None in onsets:
        return not named
    return all(abs(onset - moment) > _TOGETHER_S for moment in onsets if moment is not None)


def _is_by_address(observation: Observation) -> bool:
    return is_address(observation.finding.host or "")


def is_symptom(observation: Observation) -> bool:
    """Whether it follows from something else until that is ruled out."""
    return observation.symptom or _class_of(observation).symptom


def is_beside_the_job(observation: Observation) -> bool:
    """Whether it is about what watches the job, or true of a node whatever the job does."""
    return _class_of(observation).of_monitoring or _class_of(observation).of_node


def is_problem(observation: Observation) -> bool:
    """Whether it is more than a note."""
    return severity_of(observation.finding) is not Severity.INFO


def _class_of(observation: Observation) -> FailureClass:
    return catalog.failure(observation.finding.failure_class)
