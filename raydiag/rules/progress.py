"""Progress of the workers of one job against each other, over all hosts.

A worker that is behind is accused only where it is the exception: the others, more than half of
them, are closer together than it is to them. Nodes are read at slightly different moments, so one
that still moves must be behind by more time than that explains. All workers at the same step,
moving or not, accuse nobody, unless all wait for one: in a hang that one is busy while the others
sleep, or sleeps while they spin in the collective.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Any

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.ray_logs import RayLog
from raydiag.rules.grades import confirmed_if, known, warning_if
from raydiag.rules.loads import loads_beside, odd_workers
from raydiag.rules.machines import Machine, Samples, machines

_LEAST_STEPS = 3  # fewer steps behind are the difference between two moments
_LEAST_LINES = 2  # likewise fewer lines, of a log that prints every so many steps
_PAUSE_S, _PAUSE_STEPS = 3.0, 10.0  # no step for so long, and for so many step times: it stopped
_UNTIMED_PAUSE_S = 30.0  # where the time of a step is unknown
_LONG_PAUSE_S = 300.0
_BEHIND_S, _BEHIND_LINES = 60.0, 10  # for a worker that still moves
_STILL_LINES = 3  # without a step between the samples, where these are so many lines apart
_NEWER_S = 60.0
_MOST_EVIDENCE = 4
_LATE_S, _LATE_STEPS = 30.0, 10.0  # no step for so long, and so many step times: it is not well
_STALLED_S = 300.0


@dataclass(frozen=True)
class _WorkerProgress:
    """How far one worker has come."""

    machine: Machine
    log: RayLog  # the later of two samples
    step: int
    advanced: int | None  # steps between the samples; None where that is not known
    interval_s: float  # between the samples

    def pause_s(self, unknown: float = 0.0) -> float:
        """Seconds since its last step; `unknown` where nothing dates that."""
        return unknown if self.log.step_age_s is None else self.log.step_age_s

    def is_moving(self, pause_s: float) -> bool:
        """Whether it made a step between the samples, or well within such a pause."""
        return bool(self.advanced) or self.pause_s(unknown=pause_s) < pause_s / 2

    @property
    def alike(self) -> tuple[str, ...]:
        """What workers have in common whose steps can be compared."""
        log = self.log
        return (log.session, log.job_id, log.actor, log.step_format, str(log.total_steps))


class _Group:
    """Workers whose steps can be compared."""

    def __init__(self, workers: Sequence[_WorkerProgress]) -> None:
        self.workers = workers
        durations = list(filter(None, map(attrgetter("log.step_duration_s"), workers)))
        strides = filter(None, map(attrgetter("log.step_stride"), workers))
        self.step_s = median(durations) if durations else None
        self.stride = max(strides, default=None)  # steps from one line to the next

    @property
    def line_s(self) -> float | None:
        """Time from one step line to the next; None: it is not known."""
        return self.step_s * self.stride if self.step_s and self.stride else None

    def behind(self) -> list[_WorkerProgress]:
        """Those that stopped, or are slow, while the others, being more, went on."""
        apart = self._apart()
        peers = self.without(apart)
        behind = []
        if self.stride and not self._is_held_back():
            for worker in apart:
                if not _is_newer(worker, peers) and self._fell_back(worker, peers):
                    behind.append(worker)
        for worker in self._stopped():
            if worker not in behind:
                behind.append(worker)
        return behind

    @property
    def silent_s(self) -> float | None:
        """At least so long since the last step of the one that has been silent longest.

        None: it is not known.
        """
        if self._is_held_back():
            return None
        return max(map(_least_pause_s, self.workers))

    @property
    def is_late(self) -> bool:
        """Whether none of them has made a step when it should have."""
        late_s = max(_LATE_S, _LATE_STEPS * (self.line_s or self.step_s or 0))
        return min(map(_WorkerProgress.pause_s, self.workers)) >= late_s

    def without(self, workers: Sequence[_WorkerProgress]) -> list[_WorkerProgress]:
        """All but these."""
        return [worker for worker in self.workers if worker not in workers]

    def _is_held_back(self) -> bool:
        """Whether output arrives in blocks, so that how far a log is says little of the worker.

        Half lines at the end show that.
        """
        held_back: int = sum(map(attrgetter("log.buffered"), self.workers))
        return 2 * held_back > len(self.workers)

    def _stopped(self) -> list[_WorkerProgress]:
        """Those without a step for long while most others move."""
        pause_s = max(_LONG_PAUSE_S, _PAUSE_STEPS * (self.step_s or 0) * (self.stride or 1))
        moving = [worker for worker in self.workers if worker.is_moving(pause_s)]
        is_pair = len(self.workers) == 2 and len(moving) == 1
        if 2 * len(moving) <= len(self.workers) and not is_pair:
            return []
        reached = median(map(_step, moving))
        stopped = []
        for worker in self.without(moving):
            if worker.pause_s() >= pause_s and worker.step <= reached - _LEAST_STEPS:
                stopped.append(worker)
        return stopped

    def _apart(self) -> list[_WorkerProgress]:
        """The lower ones, fewer than half, below a gap that is wider than what the others span.

        Of two workers the lower one, where the other goes on and it does not.
        """
        ordered = sorted(self.workers, key=_step)
        steps = list(map(_step, ordered))
        least = max(_LEAST_STEPS, _LEAST_LINES * (self.stride or 1))
        if len(ordered) == 2:
            lower, upper = ordered
            only_one_moves = bool(upper.advanced) and not lower.advanced
            if only_one_moves and upper.step - lower.step >= least:
                return [lower]
            return []
        minority = range(1, (len(steps) + 1) // 2)
        gap, count = max(
            ((steps[count] - steps[count - 1], count) for count in minority), default=(0, 0)
        )
        is_wide = count and gap >= max(least, steps[-1] - steps[count])
        return ordered[:count] if is_wide else []

    def _fell_back(self, worker: _WorkerProgress, peers: Sequence[_WorkerProgress]) -> bool:
        """Whether a worker that is behind has stopped, or is behind by too much time."""
        line_s = self.line_s
        pause_s = max(_PAUSE_S, _PAUSE_STEPS * line_s) if line_s else _UNTIMED_PAUSE_S
        if worker.pause_s() >= pause_s:
            return True
        if line_s is None:
            return False
        if _stood_still(worker, peers) and worker.interval_s >= _STILL_LINES * line_s:
            return True
        lines = (min(map(_step, peers)) - worker.step) / (worker.log.step_stride or 1)
        return lines * line_s >= max(_BEHIND_S, _BEHIND_LINES * line_s)


def stragglers(snapshot: Snapshot) -> Iterator[Finding]:
    """Workers whose last step is behind that of the other workers of the same job and actor class.

    One finding for a host: what slows or stops one worker of a host mostly does so with all.
    """
    for group in _groups(snapshot):
        behind = group.behind()
        if not behind and group.is_late:
            loads = loads_beside(snapshot, group.workers[0].log)
            yield from odd_workers(loads, _onset(group.workers))
        peers = group.without(behind)
        by_host: dict[str, list[_WorkerProgress]] = {}
        for worker in behind:
            by_host.setdefault(worker.machine.name, []).append(worker)
        for workers_of_host in by_host.values():
            yield _finding(workers_of_host, peers)


def silent_jobs(snapshot: Snapshot) -> Iterator[Finding]:
    """Jobs none of whose workers has made a step for long; a note until that is a stall."""
    for pace in paces(snapshot):
        if pace.is_late and snapshot.job_start is not None:
            evidence = Evidence(f"Ray job {pace.job_id}", pace.text, pace.silent_s, snapshot.time)
            known: dict[str, Any] = {"severity": pace.severity, "evidence": (evidence,)}
            onset = snapshot.time - pace.silent_s
            yield Finding("hang", onset=onset, confidence=Confidence.POSSIBLE, **known)


def waiting(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Ray job and actor class of the workers none of which makes a step any more."""
    for group in _groups(snapshot):
        if group.line_s and not any(map(attrgetter("advanced"), group.workers)):
            pauses = map(_WorkerProgress.pause_s, group.workers)
            if min(pauses) >= max(_PAUSE_S, _PAUSE_STEPS * group.line_s):
                yield group.workers[0].log.job_id, group.workers[0].log.actor


@dataclass(frozen=True)
class Pace:
    """How workers that train together go on, by their own files."""

    job_id: str  # Ray's
    ranks: int
    step: int  # the last one that all have made
    step_s: float | None  # the usual one
    silent_s: float  # since the last step of the one that has been silent longest

    @property
    def is_late(self) -> bool:
        """Whether the next step did not come when it should have."""
        return self.silent_s > max(_LATE_S, _LATE_STEPS * (self.step_s or 0))

    @property
    def severity(self) -> Severity:
        """A warning where it is later than any evaluation may last."""
        return warning_if(self.silent_s > max(_STALLED_S, _LATE_STEPS * (self.step_s or 0)))

    @property
    def text(self) -> str:
        """In words."""
        usual = f", usually {self.step_s:.3g} s a step" if self.step_s else ""
        at = f"{self.ranks} ranks at step {self.step}"
        return f"{at}, the last one {self.silent_s:.0f} s ago{usual}"


def paces(snapshot: Snapshot) -> list[Pace]:
    """Of all that train, the latest first."""
    found = []
    for group in _groups(snapshot):
        if group.silent_s is not None:
            job_id, ranks = group.workers[0].log.job_id, len(group.workers)
            step = min(map(_step, group.workers))
            found.append(Pace(job_id, ranks, step, group.line_s or group.step_s, group.silent_s))
    return sorted(found, key=attrgetter("silent_s"), reverse=True)


def _groups(snapshot: Snapshot) -> list[_Group]:
    by_kind: dict[tuple[str, ...], list[_WorkerProgress]] = {}
    for worker in _printing(snapshot, "worker"):
        by_kind.setdefault(worker.alike, []).append(worker)
    formats = {worker.log.step_format for group in by_kind.values() for worker in group}
    for driver in _printing(snapshot, "driver"):
        # Where workers print steps, their own files say more than what is forwarded of them.
        if driver.log.job_id in snapshot.running and driver.log.step_format not in formats:
            by_kind[driver.alike] = [driver]
    return list(map(_Group, by_kind.values()))


def _printing(snapshot: Snapshot, component: str) -> Iterator[_WorkerProgress]:
    """Workers, or drivers, that have printed steps."""
    for machine in machines(snapshot):
        for samples in machine.newest(RayLog):
            if samples.first.component == component:
                progress = _progress(machine, samples)
                if progress:
                    yield progress


def _progress(machine: Machine, samples: Samples[RayLog]) -> _WorkerProgress | None:
    """None for a worker that has printed no step."""
    first, later = samples.first, samples.later
    if first.step is None:
        return None
    if not samples.seconds or later.step is None:
        return _WorkerProgress(machine, first, first.step, None, 0.0)
    advanced = later.step - first.step
    return _WorkerProgress(machine, later, later.step, advanced, samples.seconds)


def _step(worker: _WorkerProgress) -> int:
    return worker.step


def _least_pause_s(worker: _WorkerProgress) -> float:
    """A step is no newer than the last change of the log."""
    return worker.pause_s(unknown=worker.log.log_changed_s)


def _is_newer(worker: _WorkerProgress, peers: Sequence[_WorkerProgress]) -> bool:
    """Whether a later start may explain why it is behind."""
    ages = known(map(attrgetter("log.process_age_s"), peers))
    age = worker.log.process_age_s
    return bool(ages) and age is not None and age < median(ages) - _NEWER_S


def _stood_still(worker: _WorkerProgress, peers: Sequence[_WorkerProgress]) -> bool:
    """Seen in the two samples: it made no step, and most of the others did."""
    advancing = sum(bool(peer.advanced) for peer in peers)
    return worker.advanced == 0 and 2 * advancing > len(peers)


def _finding(workers: Sequence[_WorkerProgress], peers: Sequence[_WorkerProgress]) -> Finding:
    """One finding for the workers of one host."""
    onset, logs = _onset(workers), list(map(attrgetter("log"), workers))
    stood_still = any(_stood_still(worker, peers) for worker in workers)
    evidence = [
        Evidence(log.path, log.step_line, float(log.step or 0), onset)
        for log in logs[:_MOST_EVIDENCE]
    ]
    pid, task = None, logs[0].actor
    if len(logs) == 1:
        pid, task = logs[0].pid, logs[0].title
    return Finding(
        "straggler",
        host=workers[0].machine.name,
        pid=pid,
        task=task or None,
        onset=onset,
        confidence=confirmed_if(stood_still),
        evidence=(*evidence, _evidence_of_peers(peers)),
    )


def _onset(workers: Sequence[_WorkerProgress]) -> float | None:
    """The time of the oldest last step."""
    ages = known(map(attrgetter("log.step_age_s"), workers))
    read_at = workers[0].machine.read_at
    return read_at - max(ages) if read_at and ages else None


def _evidence_of_peers(peers: Sequence[_WorkerProgress]) -> Evidence:
    steps = sorted(map(_step, peers))
    span = f"{steps[0]} to {steps[-1]}" if steps[0] < steps[-1] else f"{steps[0]}"
    hosts = set(map(attrgetter("machine.name"), peers))
    ahead = max(peers, key=_step)
    text = f"{len(peers)} other workers on {len(hosts)} hosts are at step {span}"
    source = f"{ahead.machine.name}:{ahead.log.path}"
    return Evidence(source, f"{text}: {ahead.log.step_line}", float(ahead.step))
