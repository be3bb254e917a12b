"""All that a verdict on a job rests on."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from raydiag.model import Coverage, Finding, Observation
from raydiag.playbooks.observations import RuledOut

_BROKEN = ("failed", "hanging")
_LATE_STEPS, _LATE_S = 10.0, 30.0  # a step later than that is no sign of health
_STEPS_SINCE, _SINCE_S = 3, 10.0  # show that something did not stop a job


@dataclass(frozen=True)
class JobCase:
    """All that a verdict rests on."""

    observations: Sequence[Observation]  # of the log, the playbooks, the nodes, the monitoring
    coverage: Coverage
    status: str = "unknown"  # of the job, by triage
    primary: str | None = None  # class that triage names
    last_step_at: float | None = None
    step_time_s: float | None = None  # the usual one
    silent_s: float | None = None  # from the last step to now, or to the end of the job
    ruled_out: Sequence[RuledOut] = ()
    told: bool = True  # False: not even the status of the job is known
    no_log: str = ""  # why there is no log; "" where there is one
    no_metrics: str = ""  # why there are no series; "" where there are
    of_cluster: bool = False  # the nodes of a live cluster were probed
    shared_cluster: bool = False  # other jobs run there, and which nodes are this one's is unknown
    asides: Sequence[Observation] = ()  # true of the nodes, and no cause of what the job does

    @property
    def known_findings(self) -> list[Finding]:
        """What nodes show of which a resident agent knows whether it is new."""
        seen = map(attrgetter("finding"), (*self.observations, *self.asides))
        return [finding for finding in seen if finding.known is not None]

    @property
    def log_only(self) -> str:
        """Why the log is all there is; "" where it is not."""
        return "" if self.of_cluster else self.no_metrics

    @property
    def is_late(self) -> bool:
        """Whether the next step did not come when it should have."""
        limit_s = max(_LATE_STEPS * (self.step_time_s or 0.0), _LATE_S)
        return self.silent_s is not None and self.silent_s > limit_s

    def made_steps_since(self, onset: float | None) -> bool:
        """Whether the job runs, and several of its steps ended after that moment."""
        last_step_at, window = self.last_step_at, self.coverage.window
        if self.silent_s is not None and window is not None:
            last_step_at = max(last_step_at or 0.0, window.end - self.silent_s)
        if onset is None or last_step_at is None or self.status != "running" or self.is_late:
            return False
        return last_step_at - onset > max(_STEPS_SINCE * (self.step_time_s or _LATE_S), _SINCE_S)

    @property
    def is_cut_undated(self) -> bool:
        """Whether somebody ended it, and nothing tells when its last step was."""
        return self.status == "cancelled" and self.silent_s is None and self.last_step_at is None

    @property
    def ended_badly(self) -> bool:
        """Whether the job failed, hangs, or somebody ended it."""
        return self.status in (*_BROKEN, "cancelled")

    @property
    def is_broken(self) -> bool:
        """Whether the job failed or hangs."""
        return self.status in _BROKEN
