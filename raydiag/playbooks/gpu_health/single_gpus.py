"""Which GPU of a host it is, where each of them was asked for."""

from collections.abc import Iterable, Iterator

import numpy as np

from raydiag.timeline import follow_up
from raydiag.timeline.context import BEFORE_JOB, GHOST, WARM_UP
from raydiag.timeline.known_values import known
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import Span
from raydiag.tsdb.series import Query

OUTSIDE_STEADY = (GHOST, WARM_UP, BEFORE_JOB)  # a save heats nothing, and hides nothing here
NAMED = 8  # hosts that get a finding of their own


def extreme_gpu(
    timeline: RunTimeline, query_id: str, host: str, span: Span, highest: bool = True
) -> int | None:
    """The GPU with the highest value in a span, or with the lowest median; None: not known."""
    table = timeline.of_host(query_id, host).between(span.start, span.end)
    gpu: int | None = None
    extreme = -np.inf
    for subject, row in table:
        values = known(row)
        if not values.size:
            continue
        value = float(np.max(values)) if highest else -float(np.median(values))
        if value > extreme:
            gpu, extreme = subject.gpu, value
    return gpu


def gpu_by_gpu(
    timeline: RunTimeline, query_id: str, selector: str, hosts: Iterable[str]
) -> Iterator[Query]:
    """A metric of each GPU of some hosts; `selector` has a `%s` for the matcher of hosts."""
    context, named = timeline.context, follow_up.first_hosts(hosts)
    if not named:
        return
    metric = selector % follow_up.host_matcher(context, named)
    # Coarse over all of the window is worth more here than fine at one moment.
    rows = len(named) * follow_up.PER_HOST
    step = follow_up.affordable_step_s(context, rows)
    window = follow_up.fine_window(context, rows, None, step)
    yield Query(query_id, f"max by (host, gpu) ({metric})", window)
