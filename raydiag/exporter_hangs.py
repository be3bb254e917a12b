"""Whether the exporter's log shows a GPU plugin that hangs, as it does in a fault of the driver.

What counts as a sign of the fault also closes the files that the fault hangs, and where it is not
known whether it counts, they stay closed.
"""

from collections.abc import Mapping
from typing import Optional

_OFTEN, _RECENT_S = 3, 3600.0


def gpu_timeouts(timed_out: Mapping[str, int]) -> int:
    """Timeouts of the GPU plugin (`timed_out`: as of the exporter probe); 0 below a few."""
    times = sum(number for plugin, number in timed_out.items() if "gpu" in plugin)
    return times if times >= _OFTEN else 0


def is_recent(log_age_s: Optional[float]) -> Optional[bool]:
    """Whether the log changed so lately that its timeouts are of now; None: it is not known."""
    return None if log_age_s is None else log_age_s < _RECENT_S
