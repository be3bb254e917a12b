"""The metrics exporter of each node: gone, or answering with old values; its plugins.

That nothing answers is a fault only where something should: its loop runs, it was alive in this
job, or most other hosts have one. Values are called old only by the time of the file that is
served, or by a counter of the kernel that is far ahead of what is served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raydiag.model import Confidence, Evidence, Finding, NodeReport, Severity, Snapshot, Status
from raydiag.probes.exporter import FILE, LOG, Exporter
from raydiag.rules.growth import pairs
from raydiag.rules.nodes import by_host, distinct

_GHOST_S = 300.0
_GHOST_BY_COUNTER_S = 900.0  # an estimate: activity of a node varies
_SLOW_S, _TIMED_OUT_S = 8.0, 11.5  # of a cycle; a plugin is given 10 s
_RECENT_S = 3600.0
# Plugins whose absence is a fault, and what they serve. The bridge to TensorBoard ends on purpose
# on all nodes but one.
_NEEDED_PLUGINS = {
    "gpu_metrics_plugin": {"gpu"},
    "host_metrics_plugin": {"tcp", "mem", "procs", "net", "io"},
}


@dataclass(frozen=True)
class _State:
    """The exporter of one host as both samples show it."""

    host: str
    now: Exporter  # the later one
    first: Exporter
    interval_s: float  # 0.0 when there was one sample only
    read_at: float | None
    reports: list[NodeReport]

    @property
    def fails(self) -> bool:
        return self.now.answer != "ok" and self.first.answer != "ok"

    @property
    def stands_still(self) -> bool:
        """No value moved in between; False as well where that was not looked at."""
        both = self.now.answer == self.first.answer == "ok"
        return both and self.interval_s > 0 and self.now.checksum == self.first.checksum

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.now.port}/metrics"


def exporter_down(snapshot: Snapshot) -> Iterator[Finding]:
    """Exporters that do not answer, or serve nothing."""
    states = {state.host: state for state in _states(snapshot)}
    hosts = by_host(snapshot)
    serving = {host for host, state in states.items() if state.now.hw_samples}
    job_s = None if snapshot.job_start is None else snapshot.time - snapshot.job_start
    for host, reports in hosts.items():
        peers = [other for other in serving if _has_gpus(hosts[other]) <= _has_gpus(reports)]
        expected = f"{len(peers)} of {len(hosts)} hosts have one" if _most(peers, hosts) else ""
        state = states.get(host)
        if state is None:
            if expected and _was_looked_for(reports):
                text = f"nothing listens, and nothing is left of an exporter; {expected}"
                yield _finding("exporter-down", host, Evidence("exporter", text))
            continue
        why = _why_expected(state, job_s) or expected
        if state.fails and why:
            text = f"{state.now.reason}; {why}"
            yield _finding("exporter-down", host, Evidence(state.url, text, time=state.read_at))
        elif not state.fails and _serves_nothing(state):
            text = "answers without a single sample, though it has run for over a minute"
            yield _finding("exporter-down", host, Evidence(state.url, text, time=state.read_at))


def _most(peers: list[str], hosts: dict[str, list[NodeReport]]) -> bool:
    return len(peers) >= 2 and 2 * len(peers) > len(hosts)


def _why_expected(state: _State, job_s: float | None) -> str:
    """What shows that an exporter should answer here; empty when nothing does."""
    now = state.now
    loops = [text for text in now.processes if text.startswith(("loop ", "raydiag "))]
    if loops:
        return f"its process is there ({loops[0]})"
    if now.answer == "timeout":
        return "something listens on its port"
    ages = [age for age in (now.file_age_s, now.log_age_s) if age is not None]
    if ages and job_s is not None and min(ages) < job_s:
        return f"it left its last sign {min(ages):.0f} s ago, after the start of the job"
    return ""


def _serves_nothing(state: _State) -> bool:
    quiet = not state.now.samples and not state.first.samples
    return quiet and (state.now.process_age_s or 0) > 60


def ghost_data(snapshot: Snapshot) -> Iterator[Finding]:
    """Exporters that answer with values of the past."""
    for state in _states(snapshot):
        old = _old_values(state)
        if old is None:
            continue
        evidence, confidence = old
        now = state.now
        pieces = [evidence]
        if state.stands_still:
            text = f"none of {now.hw_samples} values moved within {state.interval_s:.1f} s"
            pieces.append(Evidence(state.url, text, time=state.read_at))
        if now.processes:
            text = "role, pid, state, age in s: " + "; ".join(now.processes[:8])
            pieces.append(Evidence("/proc/<pid>/stat", text, time=state.read_at))
        yield Finding(
            "ghost-data",
            host=state.host,
            severity=Severity.WARNING,
            onset=now.data_time_s,
            confidence=confidence,
            evidence=tuple(pieces),
        )


def _old_values(state: _State) -> tuple[Evidence, Confidence] | None:
    """What tells that the values are of the past; None where nothing does."""
    now = state.now
    if not now.hw_samples or now.checksum != state.first.checksum:
        return None
    if now.data_age_s is not None:
        text = f"what is served was written {now.data_age_s:.0f} s ago"
        evidence = Evidence(FILE, text, value=now.data_age_s, time=now.data_time_s)
        sure = Confidence.CONFIRMED if state.stands_still else Confidence.LIKELY
        return (evidence, sure) if now.data_age_s > _GHOST_S else None
    age_s = _age_by_counter(state)
    if age_s is None or age_s < _GHOST_BY_COUNTER_S or not state.stands_still:
        return None
    process_s = now.process_age_s
    if process_s is not None and age_s > process_s + 120:
        return None  # older than the exporter: its counter is another one
    text = (
        f"hw_context_switches_total is served as {now.switches_served}, the kernel is at "
        f"{now.switches_now}: at the node's present rate some {age_s / 60:.0f} minutes ahead"
    )
    sure = Confidence.POSSIBLE if process_s is None else Confidence.LIKELY
    return Evidence(state.url, text, value=age_s, time=state.read_at), sure


def _age_by_counter(state: _State) -> float | None:
    """At the node's mean rate or that between the samples, whichever makes the values younger."""
    now, first = state.now, state.first
    served, live, uptime_s = now.switches_served, now.switches_now, now.uptime_s
    if served is None or live is None or not uptime_s or served > live:
        return None
    rate = live / uptime_s
    if first.switches_now is not None and state.interval_s > 0:
        rate = max(rate, (live - first.switches_now) / state.interval_s)
    return (live - served) / rate if rate > 0 else None


def exporter_plugin_timeouts(snapshot: Snapshot) -> Iterator[Finding]:
    """Cycles that take as long as a plugin that is given up, or nearly so."""
    for state in _states(snapshot):
        now, pieces = state.now, []
        duration_s = now.scrape_duration_s or 0.0
        current = now.answer == "ok" and _old_values(state) is None
        if current and duration_s > _SLOW_S:
            what = "a plugin was given up" if duration_s >= _TIMED_OUT_S else "a plugin is slow"
            text = f"hw_scrape_duration_seconds {duration_s:.3f}: {what}"
            pieces.append(Evidence(state.url, text, value=duration_s, time=state.read_at))
        recent = now.log_age_s is not None and now.log_age_s < _GHOST_S
        if (recent and now.ends_in_timeout) or (pieces and now.timed_out):
            counts = ", ".join(f"{plugin} {count}" for plugin, count in now.timed_out.items())
            pieces.append(Evidence(LOG, f"timeouts at its end: {counts}"))
        if pieces:
            sure = Confidence.CONFIRMED if duration_s >= _TIMED_OUT_S else Confidence.LIKELY
            yield _finding("exporter-plugin-timeout", state.host, *pieces, confidence=sure)


def exporter_plugins_skipped(snapshot: Snapshot) -> Iterator[Finding]:
    """Plugins that said of themselves that they cannot work here, and whose metrics are absent."""
    for state in _states(snapshot):
        for plugin in state.now.skipped:
            serves = _NEEDED_PLUGINS.get(plugin)
            if serves is None or state.now.answer != "ok" or serves & set(state.now.groups):
                continue
            if plugin.startswith("gpu") and not _has_gpus(state.reports):
                continue
            evidence = Evidence(LOG, f"{plugin} exited 99 and is not run any more")
            yield _finding("exporter-plugin-skipped", state.host, evidence)


def exporter_restarts(snapshot: Snapshot) -> Iterator[Finding]:
    """Restarts by the watchdog since the start of the job, or within the last hour."""
    for state in _states(snapshot):
        since = snapshot.time - _RECENT_S if snapshot.job_start is None else snapshot.job_start
        restarts = [time for time in state.now.restarts if time >= since]
        recent = [time for time in restarts if time >= snapshot.time - _RECENT_S]
        if not restarts:
            continue
        yield Finding(
            "exporter-restarting",
            host=state.host,
            severity=Severity.WARNING if len(recent) > 1 else Severity.INFO,
            onset=min(restarts),
            evidence=tuple(Evidence(LOG, line) for line in state.now.log_lines),
        )


def _states(snapshot: Snapshot) -> Iterator[_State]:
    for host, reports in by_host(snapshot).items():
        both = {first.port: (first, *rest) for first, *rest in pairs(reports, "exporter", "port")}
        for record in distinct(reports, "exporter", "port"):
            first, later, interval_s = both.get(record.port, (record, record, 0.0))
            yield _State(host, later, first, interval_s, reports[0].collected_at or None, reports)


def _has_gpus(reports: list[NodeReport]) -> bool:
    return any(report.records("gpu_sensors") for report in reports)


def _was_looked_for(reports: list[NodeReport]) -> bool:
    results = [report.probes["exporter"] for report in reports if "exporter" in report.probes]
    return any(result.status is Status.NO_DATA for result in results)


def _finding(
    failure_class: str,
    host: str,
    *evidence: Evidence,
    confidence: Confidence = Confidence.CONFIRMED,
) -> Finding:
    return Finding(
        failure_class,
        host=host,
        severity=Severity.WARNING,
        confidence=confidence,
        evidence=evidence,
    )
