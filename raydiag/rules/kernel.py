"""Kernel log: events -> findings, with whom of the training job they hit."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain, filterfalse
from operator import attrgetter, methodcaller

from raydiag import catalog
from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.kernel_log import KernelLine
from raydiag.rules.grades import confirmed_if, warning_if
from raydiag.rules.kernel_events import TRACE_LINES, KernelEventSeen, events
from raydiag.rules.machines import machines
from raydiag.rules.victims import RayProcesses, Victim

_SOURCE = "/dev/kmsg"
_FOLD_S = 60.0  # an unspecific driver error this near to a specific one belongs to it
_REPORT_LINES = 8  # evidence from an event without stack trace
_EVIDENCE = 96  # in one finding
_DETAILS = 6  # of a kind, in one explanation

_OWN_READER = re.compile(r"rd-[0-9a-f]{12}")  # the name that `sandbox` gives to readers at work
_KILLS = frozenset({"oom-kill", "oom-kill-cgroup"})
_GPU_EVENTS = ("amdgpu-", "kfd-", "nvidia-")
# Events that say little -> what the events begin with that say more of the same.
_UNSPECIFIC = {"amdgpu-other-error": ("amdgpu-", "kfd-"), "nvidia-nvrm-other": ("nvidia-xid",)}


def kernel_findings(snapshot: Snapshot) -> Iterator[Finding]:
    """One finding per host, failure class and device that kernel logs give evidence of."""
    for machine in machines(snapshot):
        # Several Ray nodes on one machine read the same log.
        lines = next(filter(None, map(methodcaller("records", "kernel_log"), machine.reports)), ())
        # What is older decides nothing beside what is newer.
        border_s = snapshot.news_since
        seen = list(filterfalse(_is_own_reader, events(lines, border_s)))
        ray = RayProcesses.of(snapshot, machine)
        log = KernelLog(seen, snapshot.time, ray, snapshot.job_start, border_s=border_s)
        yield from log.findings(machine.name)


@dataclass(frozen=True)
class KernelLog:
    """The events of one kernel log, and what they are judged by."""

    events: Sequence[KernelEventSeen]
    now_s: float | None  # None: the log may be of any time, so that nothing in it is too old
    ray: RayProcesses
    job_start: float | None = None
    source: Callable[[KernelLine], str] = lambda line: _SOURCE  # where a line stands
    dated: bool = True  # False: times are seconds since an unknown boot
    border_s: float = -math.inf  # what comes after it decides how severe it is and since when

    def findings(self, host: str | None) -> Iterator[Finding]:
        """One per failure class and device that the events give evidence of."""
        for (failure_class, device), members in _by_fault(self.events).items():
            members.sort(key=lambda event: event.last_s < self.border_s)  # stable: the new first
            yield _Fault(failure_class, device, members, self).finding(host)


def _is_own_reader(event: KernelEventSeen) -> bool:
    """A stuck reader of raydiag that the kernel complains about: reported as hung-read already.

    One that waits in the driver's error path is evidence of the driver fault all the same.
    """
    return event.finding == "hung-task" and bool(_OWN_READER.fullmatch(event.process or ""))


def _by_fault(
    seen: Sequence[KernelEventSeen],
) -> dict[tuple[str, str | None], list[KernelEventSeen]]:
    """Events by failure class and device; an unspecific driver error goes with a specific one."""
    faults: dict[tuple[str, str | None], list[KernelEventSeen]] = {}
    for event in seen:
        place = event if event.event not in _UNSPECIFIC else _specific(event, seen) or event
        faults.setdefault((place.finding, place.device), []).append(event)
    return faults


def _specific(event: KernelEventSeen, seen: Sequence[KernelEventSeen]) -> KernelEventSeen | None:
    for candidate in seen:
        kind = candidate.event
        says_more = kind.startswith(_UNSPECIFIC[event.event]) and kind not in _UNSPECIFIC
        is_alike = not candidate.row.recovers and candidate.userspace is event.userspace
        before_s, after_s = event.first_s - candidate.last_s, candidate.first_s - event.last_s
        is_near = before_s <= _FOLD_S and after_s <= _FOLD_S
        if says_more and is_alike and is_near and event.device in (None, candidate.device):
            return candidate
    return None


@dataclass(frozen=True)
class _Fault:
    """The events that make one finding, among all events of their log."""

    failure_class: str
    device: str | None
    members: Sequence[KernelEventSeen]
    log: KernelLog

    @property
    def _trusted(self) -> Sequence[KernelEventSeen]:
        """What the kernel itself wrote; where there is none, what programs wrote into its log."""
        is_of_programs = attrgetter("userspace")
        return list(filterfalse(is_of_programs, self.members)) or self.members

    @property
    def _telling(self) -> Sequence[KernelEventSeen]:
        """Of those, what happened after the border; where nothing did, all."""
        return list(filterfalse(self._is_old, self._trusted)) or self._trusted

    def finding(self, host: str | None) -> Finding:
        victims = [(event, self._victim(event)) for event in self._telling]
        known = [(event, victim) for event, victim in victims if victim]
        event, victim = (known or victims)[0]
        times = filter(math.isfinite, map(attrgetter("first_s"), self._telling))
        onset = min(times, default=None)
        return Finding(
            self.failure_class,
            host=host,
            device=self.device,
            pid=event.pid,
            task=victim.task if victim else None,
            severity=self._severity(bool(known)),
            onset=onset if self.log.dated else None,
            confidence=self._confidence(victim),
            evidence=tuple(self._evidence()),
            explanation=" ".join(self._sentences(onset, known)),
            before_job=self._is_before_job,
        )

    def _victim(self, event: KernelEventSeen) -> Victim | None:
        if event.pid is None:
            return None
        killed = event.event in _KILLS
        return self.log.ray.victim(event.pid, event.process, event.first_s, killed)

    def _severity(self, hit_ray: bool) -> Severity:
        """By what came after the border; of what came before, what still holds: a warning."""
        is_over = self.log.job_start is None and (self._is_over() or self._is_history())
        is_other_program = self.failure_class == "segfault" and self.log.ray.processes
        if is_over or (is_other_program and not hit_ray):
            return Severity.INFO
        limit = Severity.CRITICAL
        if self._all_old:
            holds = any(map(attrgetter("row.lasting"), self._trusted)) and self._recovery() is None
            limit = warning_if(holds)
        elif self._only_user_space:
            limit = Severity.WARNING
        severities = [event.severity for event in self._telling]
        return min(max(severities, key=attrgetter("rank")), limit, key=attrgetter("rank"))

    def _confidence(self, victim: Victim | None) -> Confidence:
        if self._only_user_space or all(map(attrgetter("row.by_words"), self.members)):
            return Confidence.POSSIBLE
        return confirmed_if(not victim or victim.certain)

    @property
    def _only_user_space(self) -> bool:
        return all(map(attrgetter("userspace"), self.members))

    def _is_old(self, event: KernelEventSeen) -> bool:
        """Whether it surely ended before the border."""
        return event.last_s + event.lines[0].uncertainty_s < self.log.border_s

    @property
    def _all_old(self) -> bool:
        return all(map(self._is_old, self._trusted))

    @property
    def _is_before_job(self) -> bool:
        return self.log.job_start is not None and self._all_old

    def _is_over(self) -> bool:
        """Whether the log says that it is over and nothing is left of it."""
        return any(map(attrgetter("row.clears"), self.members)) and self._recovery() is not None

    def _is_history(self) -> bool:
        """Whether it happened so long ago that its not coming back means that it is over."""
        return self.log.now_s is not None and all(
            event.row.expires_s is not None and self.log.now_s - event.last_s > event.row.expires_s
            for event in self._trusted
        )

    def _recovery(self) -> float | None:
        """When the log last says that what happened here is over; None while it is not."""
        troubles = list(filterfalse(attrgetter("row.recovers"), self.members))
        names = set(map(attrgetter("event"), troubles))
        last_s = max(map(attrgetter("last_s"), troubles), default=math.inf)
        recoveries = []
        for event in self.log.events:
            is_here = self.device in (None, event.device) or event.device is None
            ends_it = not names.isdisjoint(event.row.recovers) and event.last_s >= last_s
            if is_here and ends_it and not event.userspace:
                recoveries.append(event.last_s)
        return max(recoveries, default=None)

    def _sentences(
        self, onset: float | None, known: Sequence[tuple[KernelEventSeen, Victim]]
    ) -> Iterator[str]:
        yield catalog.failures()[self.failure_class].explanation
        yield self._when(onset)
        for meaning in filter(None, dict.fromkeys(map(attrgetter("meaning"), self.members))):
            yield f"{meaning.name}: {meaning.title}. {meaning.next_step}"
        details = list(dict.fromkeys(chain.from_iterable(map(_details, self.members))))
        if details:
            yield f"Stated: {'; '.join(details[:_DETAILS])}."
        for event, victim in known[:_DETAILS]:
            yield _victim_sentence(event, victim)
        recovery = self._recovery()
        if recovery is not None:
            yield self._recovery_sentence(recovery)
        if self._is_before_job:
            yield "All of this was before the present job started."
        if any(map(attrgetter("userspace"), self.members)):
            yield "Lines that programs write into the kernel log prove nothing by themselves."

    def _recovery_sentence(self, recovery: float) -> str:
        sentence = f"The log reports a recovery ({self._clock(recovery)})"
        if any(event.event.startswith(_GPU_EVENTS) for event in self.members):
            sentence += ": the GPU can be used again, but the work that was on it is lost"
        return f"{sentence}."

    def _evidence(self) -> Iterator[Evidence]:
        room = _EVIDENCE
        for event in self.members:
            limit = TRACE_LINES if event.trace else _REPORT_LINES
            aside = " (written by user space)" if event.userspace else ""
            for line in event.lines[: min(limit, room)]:
                time_s = line.time_s if self.log.dated and math.isfinite(line.time_s) else None
                yield Evidence(f"{self.log.source(line)}{aside}", line.text, time=time_s)
            room -= min(limit, room, len(event.lines))

    def _clock(self, time_s: float) -> str:
        if not self.log.dated:
            return f"{time_s:.3f} s after boot"
        return datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")

    def _when(self, onset: float | None) -> str:
        telling = self._telling
        count = sum(map(attrgetter("count"), telling))
        times = f"{count} event{'s' if count > 1 else ''} in the kernel log"
        if onset is None:
            return f"{times}, without a time."
        first = min(telling, key=lambda event: event.first_s != onset)
        bound = "not later than " if first.not_later_than else ""
        sentence = f"{times}, first {bound}{self._clock(onset)}"
        if self.log.dated:
            sentence += f" (± {first.lines[0].uncertainty_s:.0f} s)"
        if count > 1:
            ends = chain.from_iterable(map(attrgetter("first_s", "last_s"), telling))
            sentence += f", last {self._clock(max(filter(math.isfinite, ends)))}"
        earlier = sum(map(attrgetter("count"), self._trusted)) - count
        if earlier:
            sentence += f"; {earlier} more before that"
        if first.not_later_than:
            sentence += "; earlier records are lost"
        return f"{sentence}."


def _details(event: KernelEventSeen) -> Iterator[str]:
    if event.device_beside:
        yield f"{event.event} without an address, the GPU is that of the lines beside it"
    if event.symbol:
        yield f"{event.event} in {event.symbol}"
    for kind, name in (("ring", event.ring), ("block", event.block)):
        if name:
            yield f"{kind} {name}"
    if event.code is not None and not event.meaning:
        yield f"{event.event} number {event.code}, which is in no table"
    if event.errors is not None:
        yield f"up to {event.errors} in one line"
    if event.pid is not None:
        yield f"pid {event.pid}" + (f" ({event.process})" if event.process else "")


def _victim_sentence(event: KernelEventSeen, victim: Victim) -> str:
    subject, verb = f"Pid {event.pid}", "is"
    if event.event in _KILLS:
        subject, verb = f"Killed pid {event.pid}", "was"
    reason = "the log does not name it"
    if event.process:
        subject += f" ({event.process})"
        reason = "only its name fits, not its pid"
    if victim.certain:
        return f"{subject} {verb} {victim.description}."
    return f"{subject} {verb} possibly {victim.description}: {reason}."
