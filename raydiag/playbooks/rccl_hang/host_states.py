"""What each host does while steps stand still: compute, wait, or neither."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from raydiag.model import Window
from raydiag.timeline.power_levels import PowerLevels
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.step_stalls import BUSY_PERCENT

QUIET_PERCENT = 20.0
IDLE, ACTIVE, MIXED, UNKNOWN = "idle", "active", "mixed", "unknown"
AWAY = "away"  # idle in power and utilisation: it waits for nothing


@dataclass(frozen=True)
class HostState:
    """One host while steps stand still."""

    host: str
    power: str  # IDLE, ACTIVE, MIXED or UNKNOWN
    watts: float | None  # mean of its GPUs
    busiest: float | None  # % of its busiest GPU

    @property
    def is_busy(self) -> bool:
        """A kernel runs on one of its GPUs, whatever it does."""
        return self.busiest is not None and self.busiest > BUSY_PERCENT

    @property
    def role(self) -> str:
        """Its power, or AWAY."""
        if self.power == IDLE and self.busiest is not None and self.busiest < QUIET_PERCENT:
            return AWAY
        return self.power


def host_states(timeline: RunTimeline, window: Window) -> dict[str, HostState]:
    """Power and utilisation of every host that lives, as medians of a window."""
    power = timeline.table("gpu-power")
    means = power.pick("avg").medians(window)
    lows, highs = power.pick("min").medians(window), power.pick("max").medians(window)
    busiest = timeline.table("gpu-utilisation").pick("max").medians(window)
    states = {}
    for host in timeline.context.hosts:
        if host not in timeline.dead_hosts and (host in means or host in busiest):
            mean = means.get(host)
            level = _power(timeline.levels, lows.get(host), mean, highs.get(host))
            states[host] = HostState(host, level, mean, busiest.get(host))
    return states


def _power(
    levels: PowerLevels | None, low: float | None, mean: float | None, high: float | None
) -> str:
    if levels is None or low is None or mean is None or high is None:
        return UNKNOWN
    if high < levels.idle_watts:
        return IDLE
    if low >= levels.idle_watts and mean >= levels.active_watts:
        return ACTIVE
    return MIXED


def _measured(states: Sequence[HostState]) -> list[HostState]:
    return [state for state in states if state.power != UNKNOWN]


def lone_workers(states: Sequence[HostState]) -> list[HostState]:
    """By power alone: the few that compute while all others rest. One that is away looks alike."""
    measured = _measured(states)
    if set(map(attrgetter("power"), measured)) != {IDLE, ACTIVE}:
        return []
    active = [state for state in measured if state.power == ACTIVE]
    is_one_of_two = len(active) == 1 and len(measured) == 2
    return active if is_one_of_two or len(active) * 2 < len(measured) else []


def stragglers(states: Sequence[HostState]) -> list[HostState]:
    """The few that are not where the others are: they compute, or have not joined in."""
    measured = _measured(states)
    if len(measured) < 2:
        return []
    majority = _majority(measured)
    minority = [state for state in measured if state.role != majority[0].role]
    excess = 2 * len(minority) - len(measured)
    if not minority or excess > 0 or (excess == 0 and len(minority) > 1):
        return []
    waiting = sum(map(attrgetter("is_busy"), majority))
    return minority if waiting >= len(majority) / 2 else []


def absentees(timeline: RunTimeline, window: Window, start: float) -> list[str]:
    """The few hosts of which one GPU lies idle while every GPU of the others is in a kernel.

    Its rank is not in the collective. `start`: of the stall, before which that GPU was used.
    """
    table = timeline.table("gpu-utilisation").pick("min")
    idlest, before = table.medians(window), table.medians(Window(timeline.window.start, start))
    idle = []
    for host, percent in idlest.items():
        if percent < QUIET_PERCENT <= before.get(host, 0.0):
            idle.append(host)
    busy = sum(percent > BUSY_PERCENT for percent in idlest.values())
    is_clear = 0 < len(idle) < busy and busy + len(idle) == len(idlest)
    return idle if is_clear else []


def _majority(states: Sequence[HostState]) -> list[HostState]:
    groups: dict[str, list[HostState]] = {}
    for state in states:
        groups.setdefault(state.role, []).append(state)
    if set(groups) == {IDLE, ACTIVE} and len(groups[IDLE]) == len(groups[ACTIVE]):
        return groups[IDLE]  # as many of both: those that compute wait for nobody
    return max(groups.values(), key=len)
