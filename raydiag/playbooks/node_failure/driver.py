"""Signs of a GPU driver fault in the series of each host: its kernel log's count, its exporter."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydiag.model import Window
from raydiag.timeline import known_values
from raydiag.timeline.answers import EXPORTER, ResultTable
from raydiag.timeline.queries import BLOCKED, DMESG, IO_FULL, POWER, SCRAPE, short_s
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import Floats

_TIMED_OUT_S, _GOOD_S = 11.5, 3.0  # duration of an exporter's cycle
_SWINGS = 3  # between good and timed-out cycles
_POWER_GAPS = 3
_LOST_S, _LOST_SAMPLES = 120.0, 5.0  # without a sample of any GPU
_BLOCKED, _WAITING_PERCENT = 3.0, 20.0  # tasks more than before; I/O pressure that explains them
TOGETHER_S = 600.0  # the driver's errors and the loss of its GPUs, where one made the other
_FEW_HOSTS = 8  # one of so many with old errors is worth a look


@dataclass(frozen=True)
class DriverSigns:
    """What the series of one host say of its GPU driver."""

    host: str
    step_s: float = 0.0  # between two samples: how well times are known
    errors: float | None = None  # newest count of GPU errors in its kernel log; None: no series
    most_errors: float = 0.0  # it may fall, as the kernel's buffer forgets
    first_at: float | None = None  # first sample above zero, Unix seconds
    from_start: bool = False  # that is the first sample at all: it began before
    grew_at: float | None = None  # first time that the count rose
    few: bool = False  # hardly any other host has errors
    others_clean: int = 0  # other hosts whose count is zero
    others_still: int = 0  # other hosts whose count did not rise
    few_rise: bool = False  # hardly any other host's count rose
    exporter: Mapping[str, str] = field(default_factory=dict)  # query -> what it shows
    lost_at: float | None = None  # all its GPUs stopped to be measured, for good; it lives
    blocked: float | None = None  # tasks that are blocked since, where they are more than before

    @property
    def has_lost_gpus(self) -> bool:
        """Its GPUs can no longer be read, and that is no fault of the exporter alone."""
        return self.lost_at is not None and (self.blocked is not None or self.grew_then)

    @property
    def grew_then(self) -> bool:
        """The kernel log told new errors about when the GPUs were lost."""
        if self.lost_at is None or self.grew_at is None:
            return False
        return abs(self.grew_at - self.lost_at) <= TOGETHER_S

    @property
    def is_only_here(self) -> bool:
        """Whether it has errors, or new ones, and the others, all but a few, have not."""
        is_alone = self.most_errors > 0 and self.few and self.others_clean > 0
        return is_alone or (self.grew_at is not None and self.few_rise)

    @property
    def onset(self) -> float | None:
        """The first sample above zero; of a count that the series begin with its first rise."""
        return self.grew_at or self.first_at if self.from_start else self.first_at

    @property
    def is_bound(self) -> bool:
        """Whether that only says "not later than"."""
        return self.from_start and self.grew_at is None


def driver_signs(timeline: RunTimeline) -> list[DriverSigns]:
    """One for each host of the job that has any of the series, in the job's order."""
    table = timeline.table("driver")
    kernel_logs = {subject.host: row for subject, row in table.pick(DMESG)}
    hosts_with_errors = [host for host, row in kernel_logs.items() if _highest(row) > 0]
    rises = {host: _first_rise(table, row) for host, row in kernel_logs.items()}
    rising, most = set(filter(rises.get, rises)), max(1, len(kernel_logs) // _FEW_HOSTS)
    signs = []
    for host in timeline.context.hosts:
        exporter = dict(_exporter_signs(timeline, host))
        lost_at = lost_gpus_at(timeline, host)
        blocked = _newly_blocked(timeline, host, lost_at)
        row = kernel_logs.get(host)
        is_measured = row is not None or table.row(host, SCRAPE) is not None
        if row is not None and known_values.known(row).size:
            signs.append(
                DriverSigns(
                    host,
                    table.step_s,
                    errors=float(known_values.known(row)[-1]),
                    most_errors=_highest(row),
                    grew_at=rises[host],
                    few=0 < len(hosts_with_errors) <= most,
                    others_clean=len(kernel_logs.keys() - {host, *hosts_with_errors}),
                    others_still=len(kernel_logs.keys() - {host, *rising}),
                    few_rise=len(rising) <= most,
                    exporter=exporter,
                    lost_at=lost_at,
                    blocked=blocked,
                    **_first_above_zero(table, row),
                )
            )
        elif is_measured or exporter or lost_at is not None:
            signs.append(
                DriverSigns(host, table.step_s, exporter=exporter, lost_at=lost_at, blocked=blocked)
            )
    return signs


def _first_above_zero(table: ResultTable, row: Floats) -> dict[str, Any]:
    answered = np.flatnonzero(~np.isnan(row))
    above = answered[row[answered] > 0]
    if not above.size:
        return {}
    return {"first_at": float(table.times[above[0]]), "from_start": bool(above[0] == answered[0])}


def _exporter_signs(timeline: RunTimeline, host: str) -> list[tuple[str, str]]:
    """Both are of the exporter, which a plugin may delay for other reasons: one witness."""
    signs = []
    if _alternates(timeline.table("driver").row(host, SCRAPE)):
        signs.append((SCRAPE, "its exporter's cycles swing between timed out and normal"))
    if has_power_gaps(timeline.table("gpu-count"), host):
        signs.append((POWER, "its power series has gaps"))
    return signs


def lost_gpus_at(timeline: RunTimeline, host: str) -> float | None:
    """When the GPUs of a host that lives stopped to be measured for good, and others' did not."""
    table = timeline.table("gpu-count")
    ends = {subject.host: _last_sample(table, row) for subject, row in table}
    last, newest = ends.get(host), max(filter(None, ends.values()), default=None)
    lived_to = timeline.answers.last_seen(host).get(EXPORTER)
    if last is None or newest is None or lived_to is None or host in timeline.dead_hosts:
        return None
    patience = max(_LOST_S, _LOST_SAMPLES * table.step_s)
    is_lost = min(newest, lived_to) - last > patience
    # The count looks back for a few scrapes, and so goes on for as long.
    return last + table.step_s - short_s(timeline.context) if is_lost else None


def _last_sample(table: ResultTable, row: Floats) -> float | None:
    place = known_values.last_true(~np.isnan(row))
    return float(table.times[place]) if place >= 0 else None


def _newly_blocked(timeline: RunTimeline, host: str, since: float | None) -> float | None:
    """How many tasks are blocked since then, where that is more than before, not for storage."""
    if since is None:
        return None
    blocked, window = timeline.table("tasks").pick(BLOCKED), timeline.window
    until, after = Window(window.start, since), Window(since, window.end)
    now = blocked.medians(after).get(host, 0.0)
    waits = timeline.table("storage").pick(IO_FULL).medians(after).get(host, 0.0)
    more = now - blocked.medians(until).get(host, 0.0)
    return now if more >= _BLOCKED and waits < _WAITING_PERCENT else None


def _highest(row: Floats) -> float:
    return known_values.highest(row) or 0.0


def _first_rise(table: ResultTable, row: Floats) -> float | None:
    """When the count of lines rose; it may fall, as the kernel's buffer forgets."""
    answered = np.flatnonzero(~np.isnan(row))
    rises = np.diff(row[answered]) > 0
    return next(map(float, table.times[answered[1:][rises]]), None)


def _alternates(row: Floats | None) -> bool:
    """Between cycles that timed out and normal ones, again and again."""
    if row is None:
        return False
    cycles = known_values.known(row)
    timed_out = cycles[(cycles >= _TIMED_OUT_S) | (cycles < _GOOD_S)] >= _TIMED_OUT_S
    return int(np.count_nonzero(_changes(timed_out))) >= _SWINGS


def has_power_gaps(counts: ResultTable, host: str) -> bool:
    """GPUs that come and go in the answers of a host that lives."""
    row = counts.row(host)
    if row is None:
        return False
    incomplete = np.nan_to_num(row) < _highest(row)
    return int(np.count_nonzero(_changes(incomplete) == 1)) >= _POWER_GAPS


def _changes(flags: NDArray[np.bool_]) -> Floats:
    """+1 where flags become true, -1 where they become false."""
    return np.diff(flags.astype(np.float64))
