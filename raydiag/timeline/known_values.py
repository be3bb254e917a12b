"""Figures over values of which some are unknown (NaN); None where all of them are."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from raydiag.tsdb.series import Floats


def known(values: Sequence[float] | Floats) -> Floats:
    """The values that are numbers, in their order, in one dimension."""
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]


def median(values: Sequence[float] | Floats) -> float | None:
    """Median of what is known."""
    numbers = known(values)
    if not numbers.size:
        return None
    return float(np.median(numbers))


def highest(values: Sequence[float] | Floats) -> float | None:
    """Largest of what is known."""
    numbers = known(values)
    if not numbers.size:
        return None
    return float(np.max(numbers))


def last_true(flags: NDArray[np.bool_]) -> int:
    """Position of the last true flag; -1 without one."""
    return int(np.flatnonzero(flags).max(initial=-1))


def column_medians(values: Floats) -> Floats:
    """Median over the rows at each time; NaN where no row has a value."""
    medians = np.full(values.shape[1], np.nan)
    has_value = ~np.isnan(values).all(axis=0)
    medians[has_value] = np.nanmedian(values[:, has_value], axis=0)
    return medians


def robust_noise(values: Floats) -> float:
    """Standard deviation of the noise of a series that may begin to trend, from its bends."""
    return 0.605 * float(np.median(np.abs(np.diff(values, n=2))))
