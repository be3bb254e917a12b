"""What all playbooks ask of a run: when training ran and stood, who reported, what power means."""

from functools import cached_property
from itertools import filterfalse
from operator import attrgetter

from raydiag.catalog.hardware import Accelerator
from raydiag.timeline import rdma_events, step_stalls
from raydiag.timeline.answers import ResultTable
from raydiag.timeline.masked_tables import MaskedTables
from raydiag.timeline.power_levels import PowerLevels, gpu_model, power_levels
from raydiag.timeline.rdma_events import RdmaEvent
from raydiag.timeline.silent_hosts import SilentHost, returned_hosts, silent_hosts
from raydiag.timeline.slowdowns import Slowdown, slowdown
from raydiag.timeline.step_stalls import StepStall
from raydiag.timeline.threshold_spans import Span

_OVER_S = 120.0
_STEPS_APART = 3.0  # that the last step and the end of a host's series may be


class RunTimeline(MaskedTables):
    """The tables of a run, and what follows from them, worked out once."""

    @cached_property
    def last_step(self) -> tuple[int | None, float | None]:
        """The newest step and when it ended, from series and log together."""
        return step_stalls.last_step(self)

    @cached_property
    def stall(self) -> StepStall | None:
        """When steps stopped; None while they go on, or when the job had done all of them."""
        return step_stalls.step_stall(self, self.levels)

    @cached_property
    def slowdown(self) -> Slowdown | None:
        """When training got slower; None where it did not, or nothing says."""
        return slowdown(self)

    def is_felt(self, start: float, end: float) -> bool:
        """Whether training was slow at some time of a stretch; True where nothing says."""
        if self.slowdown is not None:
            return self.slowdown.overlaps(start, end)
        return self.training.throughput is None

    @property
    def next_step_s(self) -> float:
        """How long after the last step they may have stopped: a step, and a save where one came."""
        return step_stalls.next_step_s(self)

    @property
    def step_time_s(self) -> float:
        """Usual time of a step by the series; 0 where they do not say."""
        return self.training.step_time_s or 0.0

    @cached_property
    def silent_hosts(self) -> tuple[SilentHost, ...]:
        """Hosts that went silent well before the others did, the earliest first.

        Also those that came back, where they had rebooted or steps stopped with their silence.
        """
        gone = list(filterfalse(self._lived_on, self._silences))
        for silence in returned_hosts(self.context, self.answers):
            if silence.host in self.rebooted_hosts or self._stopped_with(silence):
                gone.append(silence)
        return tuple(sorted(gone, key=attrgetter("time")))

    @property
    def unwatched_hosts(self) -> list[SilentHost]:
        """Hosts without a sample to the end that live: the others would wait for them."""
        return list(filter(self._lived_on, self._silences))

    @cached_property
    def _silences(self) -> tuple[SilentHost, ...]:
        return tuple(silent_hosts(self.context, self.answers))

    def _lived_on(self, silence: SilentHost) -> bool:
        """Whether steps went on past its silence as before: in a collective all wait for each.

        A job that starts anew without the host rests first. Where no step has a time, all of them
        were done.
        """
        if silence.host in self.rebooted_hosts:
            return False
        times, resolution_s = self.training.times, self.context.resolution_s()
        if not times.size:
            return self.job.status == "completed"
        step_s = max(self.step_time_s, resolution_s)
        # The step that was under way may end without it.
        after = times[times > silence.time + 2 * step_s + resolution_s]
        if not after.size:
            return False
        rest_s = float(after[0]) - silence.time - (self.job.longest_save_s or 0.0)
        return rest_s <= 2 * _STEPS_APART * step_s

    def _stopped_with(self, silence: SilentHost) -> bool:
        last_at = self.training.last[1] if self.training.last else self.job.last_step_time
        step_s = max(self.step_time_s, self.context.resolution_s())
        return last_at is not None and abs(last_at - silence.time) <= _STEPS_APART * step_s

    @cached_property
    def rebooted_hosts(self) -> frozenset[str]:
        """Names of the hosts whose counters since boot began again."""
        return frozenset(self.table("reboots").hosts)

    @cached_property
    def dead_hosts(self) -> frozenset[str]:
        """Names of the hosts that went silent."""
        return frozenset(silent.host for silent in self.silent_hosts)

    @cached_property
    def unseen_hosts(self) -> tuple[str, ...]:
        """Hosts of the job without any power or utilisation in the answers."""
        measured = {*self.table("gpu-power").hosts, *self.table("gpu-utilisation").hosts}
        return tuple(host for host in self.context.hosts if host not in measured)

    @cached_property
    def gpu_model(self) -> Accelerator | None:
        """The model of the job's GPUs; None for one that is not listed."""
        return gpu_model(self)

    @cached_property
    def levels(self) -> PowerLevels | None:
        """What power means in this job; None where nothing says."""
        return power_levels(self, self.gpu_model)

    @cached_property
    def rdma_events(self) -> tuple[RdmaEvent, ...]:
        """RDMA retransmits and timeouts of all hosts, by time."""
        return tuple(rdma_events.events(self))

    @property
    def notable_rdma_events(self) -> list[RdmaEvent]:
        """Without those of a few packets, by time."""
        return [event for event in self.rdma_events if event.notable]

    def is_over(self, span: Span) -> bool:
        """It ended while the job went on."""
        return not span.open and span.end < self.window.end - _OVER_S

    def is_before_stall(self, span: Span) -> bool:
        """A burst just before steps stopped."""
        return self.stall is not None and rdma_events.is_burst_before(span, self.stall.start)

    def of_host(self, query_id: str, host: str, metric: str | None = None) -> ResultTable:
        """The rows of one host."""
        return self.table(query_id).pick(metric, [host])
