"""What recurs regularly, as the steps that save do."""

from dataclasses import dataclass

import numpy as np

from raydiag.tsdb.series import Floats

_LEAST_TIMES = 3
_REGULAR = 0.75  # of the distances


@dataclass(frozen=True)
class Rhythm:
    """Steps that recur regularly: every `period`-th one, `offset` steps after its multiples."""

    period: int
    offset: int = 0

    def has(self, number: int) -> bool:
        """Whether a step is one of them."""
        return (number - self.offset) % self.period == 0

    def is_near(self, moment: float, tolerance: float) -> bool:
        """Whether it recurs within so much of a moment."""
        late = (moment - self.offset) % self.period
        return min(late, self.period - late) <= tolerance


def rhythm_of(numbers: Floats, least: float, tolerance: float = 1.0) -> Rhythm | None:
    """Of what comes at distances that are alike, or multiples of what most are.

    None where they are not, or are less than `least`.
    """
    if numbers.size < _LEAST_TIMES:
        return None
    distances = np.diff(numbers)
    period = int(np.median(distances))
    turns = np.round(distances / max(period, 1))
    regular = (np.abs(distances - turns * period) <= tolerance) & (turns > 0)
    if period < least or regular.mean() < _REGULAR or turns.sum() > numbers.size / _REGULAR:
        return None
    since_first = numbers - numbers[0]
    late = float(np.median(since_first - np.round(since_first / period) * period))
    return Rhythm(period, int(numbers[0] + late) % period)
