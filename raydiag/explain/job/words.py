"""Words of raydiag's own that stand by themselves in what is told of a job."""

from __future__ import annotations

from functools import cache

from raydiag.explain import diagnosis, verdict
from raydiag.triage.verdict import JobStatus


@cache
def own_words() -> frozenset[str]:
    """Classes and statuses. A job or a host may be called so; then these stay what they are."""
    statuses = {status.value for status in JobStatus}
    return diagnosis.classes() | statuses | {verdict.HEALTHY, verdict.UNKNOWN, "idle"}
