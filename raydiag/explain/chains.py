"""What caused what, by class, place and time: chains of findings, the root first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from raydiag import catalog
from raydiag.explain.weighing import CLUSTER, Account, Reach, is_later, weigh
from raydiag.model import Chain, Confidence, Finding, Observation


@dataclass(frozen=True)
class _Causes:
    """Which of the observations may have caused which."""

    observations: Sequence[Observation]
    reach: Reach

    def all(self) -> list[int | None]:
        """For each observation the position of its most likely cause; None for a root."""
        candidates = self._candidates()
        nearest: list[int | None] = []
        for observation in self.observations:
            able = candidates[observation.finding.failure_class]
            nearest.append(self._best(observation, able))
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

    def _best(self, effect: Observation, candidates: Iterable[int]) -> int | None:
        """The cause that explains it best; None where none does."""
        best: tuple[Account, int] | None = None
        for position in sorted(candidates):
            account = weigh(self.observations[position], effect, self.reach)
            if not account.ruled_out and (best is None or account.rank > best[0].rank):
                best = account, position
        return best[1] if best is not None else None

    def _came_first(self, effect: int, nearest: Sequence[int | None]) -> bool:
        """Whether it came before what caused its cause, which has no date to show that."""
        if not self.reach.of_job:
            return False
        above, passed = nearest[effect], {effect}
        while above is not None and above not in passed and self._onset(above) is None:
            passed.add(above)
            above = nearest[above]
        if above is None or above in passed or above == nearest[effect]:
            return False
        return is_later(self.observations[above], self.observations[effect], self.reach)

    def _onset(self, position: int) -> float | None:
        return self.observations[position].finding.onset


def chains(observations: Sequence[Observation], reach: Reach = CLUSTER) -> list[Chain]:
    """Ordered findings as causes and effects: each in exactly one chain, root first.

    A root is what no other present finding could have caused. The chains stand in the order of
    their first finding, the most severe one, which need not be the root.
    """
    effects: dict[int | None, list[int]] = {}
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
