"""The metrics exporter of each node: down, or serving stale values; its plugins.

That nothing answers is a fault only where something should: its loop runs, it was alive in this
job, or most other hosts have one. Values are called stale only by the time of the file that is
served, or by a counter of the kernel that is far ahead of what is served.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot, Status
from raydiag.probes.exporter import FILE, LOG, Exporter
from raydiag.rules.grades import confirmed_if, known, warning_if
from raydiag.rules.machines import Machine, Samples, machines

_STALE_S = 300.0
_STALE_BY_COUNTER_S = 900.0  # an estimate: activity of a node varies
_START_UP_S = 60.0
_OLDER_THAN_PROCESS_S = 120.0
_SLOW_S, _TIMED_OUT_S = 8.0, 11.5  # of a cycle; a plugin is given 10 s
_RECENT_S = 3600.0
_MOST_PROCESSES = 8  # in evidence
# Plugins whose absence is a fault, and what they serve. The bridge to TensorBoard ends on purpose
# on all nodes but one.
_NEEDED_PLUGINS = {
    "gpu_metrics_plugin": {"gpu"},
    "host_metrics_plugin": {"tcp", "mem", "procs", "net", "io"},
}


class _ExporterState(NamedTuple):
    """The exporter of one host as both samples show it."""

    machine: Machine
    samples: Samples[Exporter]  # of 0.0 s when there was one sample only

    @property
    def now(self) -> Exporter:
        """As the later sample shows it."""
        return self.samples.later

    @property
    def fails(self) -> bool:
        """Whether it answered in neither sample."""
        return self.now.answer != "ok" and self.samples.first.answer != "ok"

    @property
    def stands_still(self) -> bool:
        """No value moved in between; False as well where that was not looked at."""
        first, now = self.samples.first, self.now
        answered = now.answer == first.answer == "ok"
        return answered and self.samples.seconds > 0 and now.checksum == first.checksum

    @property
    def serves_nothing(self) -> bool:
        """It answers without a sample, though its start is over."""
        is_empty = not self.now.samples and not self.samples.first.samples
        return is_empty and (self.now.process_age_s or 0) > _START_UP_S

    @property
    def url(self) -> str:
        """Where it serves its page."""
        return f"http://127.0.0.1:{self.now.port}/metrics"

    def evidence(self, text: str, value: float | None = None) -> Evidence:
        """A piece of evidence from its answer."""
        return self.machine.evidence(self.url, text, value)


def exporter_down(snapshot: Snapshot) -> Iterator[Finding]:
    """Exporters that do not answer, or serve nothing."""
    states = {state.machine.name: state for state in _states(snapshot)}
    all_machines = machines(snapshot)
    serving = [state.machine for state in states.values() if state.now.hw_samples]
    for machine in all_machines:
        majority = _serving_majority(machine, serving, all_machines)
        state = states.get(machine.name)
        if state is None:
            statuses = map(attrgetter("status"), machine.results("exporter"))
            if majority and Status.NO_DATA in statuses:
                text = f"nothing listens, and nothing is left of an exporter; {majority}"
                yield _finding("exporter-down", machine, Evidence("exporter", text))
        elif state.fails:
            reason = _sign_of_life(state, snapshot) or majority
            if reason:
                evidence = state.evidence(f"{state.now.reason}; {reason}")
                yield _finding("exporter-down", machine, evidence)
        elif state.serves_nothing:
            text = "answers without a single sample, though it has run for over a minute"
            yield _finding("exporter-down", machine, state.evidence(text))


def _serving_majority(
    machine: Machine, serving: Sequence[Machine], all_machines: Sequence[Machine]
) -> str:
    """`7 of 8 hosts have one`; empty unless most comparable hosts have one."""
    peers = [peer for peer in serving if _has_gpus(machine) or not _has_gpus(peer)]
    if len(peers) < 2 or 2 * len(peers) <= len(all_machines):
        return ""
    return f"{len(peers)} of {len(all_machines)} hosts have one"


def _sign_of_life(state: _ExporterState, snapshot: Snapshot) -> str:
    """What shows that an exporter should answer here; empty when nothing does."""
    now = state.now
    for process in now.processes:
        if process.startswith(("loop ", "raydiag ")):
            return f"its process is there ({process})"
    if now.answer == "timeout":
        return "something listens on its port"
    ages = known((now.file_age_s, now.log_age_s))
    if not ages or snapshot.job_start is None or min(ages) >= snapshot.time - snapshot.job_start:
        return ""
    return f"it left its last sign {min(ages):.0f} s ago, after the start of the job"


def ghost_data(snapshot: Snapshot) -> Iterator[Finding]:
    """Exporters that answer with stale values."""
    for state in _states(snapshot):
        stale = _stale_values(state)
        if stale is None:
            continue
        evidence, confidence = stale
        fields = {"confidence": confidence, "onset": state.now.data_time_s}
        supporting = _supporting_evidence(state)
        yield _finding("ghost-data", state.machine, evidence, *supporting, **fields)


def _supporting_evidence(state: _ExporterState) -> Iterator[Evidence]:
    now = state.now
    if state.stands_still:
        seconds = state.samples.seconds
        yield state.evidence(f"none of {now.hw_samples} values moved within {seconds:.1f} s")
    if now.processes:
        text = "role, pid, state, age in s: " + "; ".join(now.processes[:_MOST_PROCESSES])
        yield state.machine.evidence("/proc/<pid>/stat", text)


def _stale_values(state: _ExporterState) -> tuple[Evidence, Confidence] | None:
    """What shows that the values are stale; None where nothing does."""
    now = state.now
    if not now.hw_samples or now.checksum != state.samples.first.checksum:
        return None
    if now.data_age_s is not None:
        if now.data_age_s <= _STALE_S:
            return None
        text = f"what is served was written {now.data_age_s:.0f} s ago"
        confidence = confirmed_if(state.stands_still)
        return Evidence(FILE, text, value=now.data_age_s, time=now.data_time_s), confidence
    return _stale_by_counter(state)


def _stale_by_counter(state: _ExporterState) -> tuple[Evidence, Confidence] | None:
    now, age_s = state.now, _age_by_counter(state)
    if age_s is None or age_s < _STALE_BY_COUNTER_S or not state.stands_still:
        return None
    process_s = now.process_age_s
    if process_s is not None and age_s > process_s + _OLDER_THAN_PROCESS_S:
        return None  # older than the exporter: its counter is another one
    text = (
        f"hw_context_switches_total is served as {now.switches_served}, the kernel is at "
        f"{now.switches_now}: at the node's present rate some {age_s / 60:.0f} minutes ahead"
    )
    confidence = Confidence.POSSIBLE if process_s is None else Confidence.LIKELY
    return state.evidence(text, age_s), confidence


def _age_by_counter(state: _ExporterState) -> float | None:
    """At the node's mean rate or that between the samples, whichever makes the values younger."""
    now, earlier_switches = state.now, state.samples.first.switches_now
    served, live = now.switches_served, now.switches_now
    if served is None or live is None or not now.uptime_s or served > live:
        return None
    rate = live / now.uptime_s
    if earlier_switches is not None and state.samples.seconds > 0:
        rate = max(rate, (live - earlier_switches) / state.samples.seconds)
    return (live - served) / rate if rate > 0 else None


def exporter_plugin_timeouts(snapshot: Snapshot) -> Iterator[Finding]:
    """Cycles that take as long as a plugin that is given up, or nearly so."""
    for state in _states(snapshot):
        duration_s = state.now.scrape_duration_s or 0.0
        evidence = list(_slow_cycle(state, duration_s))
        if _logs_timeouts(state.now, is_slow=bool(evidence)):
            counts = [f"{plugin} {count}" for plugin, count in state.now.timed_out.items()]
            evidence.append(Evidence(LOG, f"timeouts at its end: {', '.join(counts)}"))
        if evidence:
            weight = {"confidence": confirmed_if(duration_s >= _TIMED_OUT_S)}
            yield _finding("exporter-plugin-timeout", state.machine, *evidence, **weight)


def _slow_cycle(state: _ExporterState, duration_s: float) -> Iterator[Evidence]:
    if state.now.answer == "ok" and duration_s > _SLOW_S and _stale_values(state) is None:
        timed_out = duration_s >= _TIMED_OUT_S
        meaning = "a plugin timed out" if timed_out else "a plugin is slow"
        yield state.evidence(f"hw_scrape_duration_seconds {duration_s:.3f}: {meaning}", duration_s)


def _logs_timeouts(now: Exporter, is_slow: bool) -> bool:
    is_recent = now.log_age_s is not None and now.log_age_s < _STALE_S
    return (is_recent and now.ends_in_timeout) or (is_slow and bool(now.timed_out))


def exporter_plugins_skipped(snapshot: Snapshot) -> Iterator[Finding]:
    """Plugins that said of themselves that they cannot work here, and whose metrics are absent."""
    for state in _states(snapshot):
        for plugin in state.now.skipped if state.now.answer == "ok" else ():
            if _is_missed(state, plugin):
                evidence = Evidence(LOG, f"{plugin} exited 99 and is not run any more")
                yield _finding("exporter-plugin-skipped", state.machine, evidence)


def _is_missed(state: _ExporterState, plugin: str) -> bool:
    served_groups = _NEEDED_PLUGINS.get(plugin)
    if served_groups is None or served_groups & set(state.now.groups):
        return False
    return not plugin.startswith("gpu") or _has_gpus(state.machine)


def exporter_restarts(snapshot: Snapshot) -> Iterator[Finding]:
    """Restarts by the watchdog since the start of the job, or within the last hour."""
    an_hour_ago = snapshot.time - _RECENT_S
    since = an_hour_ago if snapshot.job_start is None else snapshot.job_start
    for state in _states(snapshot):
        restarts = [time for time in state.now.restarts if time >= since]
        if restarts:
            recent = sum(time >= an_hour_ago for time in restarts)
            severity, onset = warning_if(recent > 1), min(restarts)
            evidence = map(partial(Evidence, LOG), state.now.log_lines)
            yield state.machine.finding(
                "exporter-restarting", *evidence, severity=severity, onset=onset
            )


def _states(snapshot: Snapshot) -> Iterator[_ExporterState]:
    for machine in machines(snapshot):
        for samples in machine.newest(Exporter):
            yield _ExporterState(machine, samples)


def _has_gpus(machine: Machine) -> bool:
    return any(map(attrgetter("records"), machine.results("gpu_sensors")))


def _finding(failure_class: str, machine: Machine, *evidence: Evidence, **fields: Any) -> Finding:
    return machine.finding(failure_class, *evidence, severity=Severity.WARNING, **fields)
