"""What caused what, by class, place and time: chains of findings, the root first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Optional

from raydiag import catalog
from raydiag.catalog.failure_classes import FailureClass
from raydiag.model import Chain, Confidence, Finding, Observation

_OVER_S = 600.0  # what ended so long before an effect did not cause it
_NEAR_S = 120.0  # causes that are all so near to an effect are told apart by severity
_SLACK_S = 60.0  # times of one event differ by so much between sources


@dataclass(frozen=True)
class Reach:
    """How far a cause reaches."""

    of_job: bool = False  # hosts of one job wait for each other, and several sources tell of them
    step_time_s: Optional[float] = None  # of the job


@dataclass(frozen=True)
class _Causes:
    """Which of the observations may have caused which."""

    observations: Sequence[Observation]
    reach: Reach

    def all(self) -> list[Optional[int]]:
        """For each observation the position of its most likely cause; None for a root."""
        candidates = self._candidates()
        nearest: list[Optional[int]] = []
        for observation in self.observations:
            able = candidates[observation.finding.failure_class]
            nearest.append(self._nearest(observation, able))
        causes = list(nearest)
        for effect in range(len(nearest)):
            if self._came_first(effect, nearest):
                causes[effect] = None
        return causes

    def _candidates(self) -> dict[str, list[int]]:
        """By class of an effect: a fault of a thousand hosts is not compared with itself on all."""
        positions: dict[str, list[int]] = {}
        for position, observation in enumerate(self.observations):
            positions.setdefault(observation.finding.failure_class, []).append(position)
        causes: dict[str, list[int]] = {effect: [] for effect in positions}
        for cause, numbers in positions.items():
            for effect in positions.keys() & set(catalog.failure(cause).can_cause):
                causes[effect] += numbers
        return causes

    def _nearest(self, observation: Observation, candidates: Iterable[int]) -> Optional[int]:
        able = [cause for cause in sorted(candidates) if self._can_cause(cause, observation)]
        return min(able, key=lambda cause: self._distance(cause, observation), default=None)

    def _can_cause(self, position: int, effect: Observation) -> bool:
        """Whether place and time allow it; the classes do."""
        cause = self.observations[position]
        if cause.facts.get("cleared") and _class_of(effect).symptom:
            return False  # it ended, and what it should explain went on
        if cause.before_job and not effect.before_job:
            return False  # the job went well with it
        if not self._reaches(cause.finding, effect.finding) or self.is_later(cause, effect):
            return False
        began = effect.finding.onset
        if began is None or cause.finding.onset is None or not cause.recovered:
            return True
        return cause.until is None or cause.until >= began - _OVER_S

    def _reaches(self, cause: Finding, effect: Finding) -> bool:
        """Whether what happens at the one place is felt at the other."""
        entry = catalog.failure(effect.failure_class)
        if entry.cluster_wide and effect.host is None and cause.host is not None:
            return False  # of one host's fault the others would still have theirs
        if cause.host is not None and effect.host is not None and not _same_host(cause, effect):
            return self.reach.of_job and entry.felt_by_peers
        if not self.reach.of_job:
            return True
        apart = cause.gpu is not None and effect.gpu is not None and cause.gpu != effect.gpu
        return not apart or entry.symptom

    def is_later(self, cause: Observation, effect: Observation) -> bool:
        """It began after what it should explain, by more than the times are known to."""
        began, felt = cause.finding.onset, effect.finding.onset
        if began is None or felt is None:
            return False
        if not self.reach.of_job:
            return began > felt
        slack = max(cause.uncertainty_s, effect.uncertainty_s, _SLACK_S)
        if _class_of(effect).hang:
            # A hang dates from the last step, its cause from the next.
            slack += self.reach.step_time_s or 0.0
        return began > felt + slack

    def _came_first(self, effect: int, nearest: Sequence[Optional[int]]) -> bool:
        """Whether it came before what caused its cause, which has no date to show that."""
        if not self.reach.of_job:
            return False
        above, passed = nearest[effect], {effect}
        while above is not None and above not in passed and self._onset(above) is None:
            passed.add(above)
            above = nearest[above]
        if above is None or above in passed or above == nearest[effect]:
            return False
        return self.is_later(self.observations[above], self.observations[effect])

    def _onset(self, position: int) -> Optional[float]:
        return self.observations[position].finding.onset

    def _distance(self, position: int, effect: Observation) -> tuple[bool, bool, float, int, float]:
        """Sorts causes: of the same device, dated, near, severe, then the earlier one."""
        cause = self.observations[position]
        elsewhere = not _same_device(cause.finding, effect.finding)
        rank = -cause.finding.severity.rank if cause.finding.severity else 0
        began, felt = cause.finding.onset, effect.finding.onset
        if began is None or felt is None:
            return elsewhere, began is None, 0.0, rank, began or 0.0
        moments = (began, float(cause.facts.get("kill_time", began)))
        apart = min(abs(felt - moment) for moment in moments)
        return elsewhere, False, apart if apart > _NEAR_S else 0.0, rank, began


def chains(observations: Sequence[Observation], reach: Reach = Reach()) -> list[Chain]:
    """Ordered findings as causes and effects: each in exactly one chain, root first.

    A root is what no other present finding could have caused. The chains stand in the order of
    their first finding, the most severe one, which need not be the root.
    """
    effects: dict[Optional[int], list[int]] = {}
    for effect, cause in enumerate(_Causes(observations, reach).all()):
        effects.setdefault(cause, []).append(effect)
    built: dict[int, Chain] = {}
    for root in effects.get(None, ()):
        members = [root]
        for member in members:  # grows as it is walked: what is nearest to the root comes first
            members.extend(effects.get(member, ()))
        built[min(members)] = _chain([observations[member].finding for member in members])
    return [built[first] for first in sorted(built)]


def _chain(members: Sequence[Finding]) -> Chain:
    """Without a time for each member, the order is a guess and the chain only possible."""
    confidence = min(map(attrgetter("confidence"), members), key=attrgetter("rank"))
    if len(members) > 1 and None in map(attrgetter("onset"), members):
        confidence = Confidence.POSSIBLE
    return Chain(tuple(members), confidence)


def _class_of(observation: Observation) -> FailureClass:
    return catalog.failure(observation.finding.failure_class)


def _same_host(cause: Finding, effect: Finding) -> bool:
    same_address = (
        cause.address == effect.address or cause.address is None or effect.address is None
    )
    return cause.host == effect.host and same_address


def _same_device(cause: Finding, effect: Finding) -> bool:
    same_gpu = cause.gpu is not None and cause.gpu == effect.gpu
    return same_gpu or (cause.device is not None and cause.device == effect.device)
