"""What is wrong with the exporter of this node: rules over what `status` saw, pure functions.

The rules that hold for every node come first (`rules.exporter`). What a look at the node itself
adds: what raydiag's exporter says of its plugins, the watchdog's log, and leftovers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Optional

from raydiag import catalog
from raydiag.explain.diagnosis import judge_nodes
from raydiag.exporter.metrics import OWN_PREFIX
from raydiag.exporter.supervise import MOST_RESTARTS as MOST_RESTARTS  # the shell exporter's too
from raydiag.exposition import ExpositionLine
from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.exporter import FILE, Exporter, Process

TWO_CYCLES_S = 22.0  # of the shell exporter; up to 12 s each
_RECENT_S = 3600.0
_OLD_INTERVALS = 2


@dataclass(frozen=True)
class PluginHealth:
    """What raydiag's exporter says of one plugin."""

    name: str
    up: Optional[bool]  # None: it does not say
    last_success: Optional[float]  # Unix seconds
    failures: int  # since the exporter started
    timeouts: int
    new_timeouts: int  # between the looks
    series: int
    disabled: bool
    outdated: bool
    reload_errors: int
    replay_age_s: Optional[float]


@dataclass(frozen=True)
class ServedMetrics:
    """What raydiag's exporter says of itself; all empty for another one."""

    is_there: bool = False
    version: str = ""
    interval_s: Optional[float] = None
    page_age_s: Optional[float] = None
    cycle_time: Optional[float] = None  # Unix seconds, end of the last cycle
    abandoned_readers: int = 0  # that hang now
    plugins: Sequence[PluginHealth] = ()
    stuck: Sequence[tuple[str, str, float]] = ()  # plugin, source, seconds
    denied: Mapping[str, str] = field(default_factory=dict)  # plugin -> what it may not read

    @classmethod
    def of(cls, lines: Sequence[ExpositionLine], before: Sequence[ExpositionLine]) -> ServedMetrics:
        """`before` are the lines of the first look."""
        if not lines:
            return cls()
        now, first = _Own(lines), _Own(before)
        names = sorted(now.labels("plugin", "plugin_up", "plugin_disabled"))
        stuck = [(*_words(line), line.value) for line in now.of("stuck_source_seconds")]
        return cls(
            is_there=True,
            version=next(iter(now.labels("version", "build_info")), ""),
            interval_s=now.value("interval_seconds"),
            page_age_s=now.value("page_age_seconds"),
            cycle_time=now.value("cycle_timestamp_seconds"),
            abandoned_readers=int(now.value("abandoned_readers") or 0),
            plugins=[_plugin(name, now, first) for name in names],
            stuck=stuck,
            denied=dict(map(_words, now.of("plugin_denied_info"))),
        )


def _words(line: ExpositionLine) -> tuple[str, str]:
    """The plugin that a line is about, and its source, or the reason."""
    labels = dict(line.labels)
    return labels.get("plugin", ""), labels.get("source", labels.get("reason", ""))


class _Own:
    """The exporter's lines about itself, by name."""

    def __init__(self, lines: Sequence[ExpositionLine]) -> None:
        self._lines: dict[str, list[ExpositionLine]] = {}
        for line in lines:
            self._lines.setdefault(line.name[len(OWN_PREFIX) :], []).append(line)

    def of(self, name: str) -> Sequence[ExpositionLine]:
        """Lines of the metric of that name, without its prefix."""
        return self._lines.get(name, ())

    def labels(self, label: str, *names: str) -> set[str]:
        """Values of that label, on any of these metrics."""
        return {dict(line.labels).get(label, "") for line in chain(*map(self.of, names))}

    def value(self, name: str, plugin: Optional[str] = None) -> Optional[float]:
        """Of a metric, or of one plugin's; None where there is none."""
        for line in self.of(name):
            if plugin is None or dict(line.labels).get("plugin") == plugin:
                return line.value if abs(line.value) < 1e15 else None
        return None


def _plugin(name: str, now: _Own, first: _Own) -> PluginHealth:
    def count(fact: str, lines: _Own = now) -> int:
        """A whole number, 0 where there is none."""
        return int(lines.value(fact, name) or 0)

    up = now.value("plugin_up", name)
    timeouts = count("plugin_timeouts_total")
    new_timeouts = max(0, timeouts - count("plugin_timeouts_total", first))
    last_success = now.value("plugin_last_success_timestamp_seconds", name)
    runs = (last_success, count("plugin_failures_total"), timeouts, new_timeouts)
    file = (bool(count("plugin_disabled")), bool(count("plugin_outdated")))
    reloads = (count("plugin_reload_errors_total"), now.value("plugin_replay_age_seconds", name))
    is_up = None if up is None else bool(up)
    return PluginHealth(name, is_up, *runs, count("plugin_series"), *file, *reloads)


@dataclass(frozen=True)
class Watched:
    """What the watchdog's log says, of what is left of it."""

    restarts: Sequence[Sequence[float]] = ()  # Unix seconds, exit code, number; oldest first
    gave_up: bool = False
    log: str = ""  # path; "" where none was found
    lines: Sequence[str] = field(default=())  # the last ones

    @property
    def number(self) -> int:
        """Of the last restart; 0 where the log has none."""
        return int(self.restarts[-1][2]) if self.restarts else 0

    @property
    def left(self) -> Optional[int]:
        """Restarts that are left; None where no log was found."""
        return max(0, MOST_RESTARTS - self.number) if self.log else None


def judge_exporter(
    snapshot: Snapshot,
    exporter: Optional[Exporter],
    served: ServedMetrics,
    watched: Watched,
    processes: Sequence[Process],
) -> Iterator[Finding]:
    """All that is wrong, in no order. `snapshot` has the looks as samples of the probe."""
    host = snapshot.nodes[0].node.host
    known_classes = set()
    for finding in judge_nodes(snapshot):
        if finding.failure_class != "exporter-restarting":
            known_classes.add(finding.failure_class)
            yield finding
    if (exporter is None or exporter.answer != "ok") and "exporter-down" not in known_classes:
        reason = "nothing listens on the port" if exporter is None else exporter.reason
        yield _finding("exporter-down", host, Evidence("exporter", reason))
    yield from _own(host, served, snapshot.time)
    yield from _restarts(host, watched, snapshot.time)
    yield from _leftovers(host, exporter, processes, "ghost-data" in known_classes)


def standstill(
    snapshot: Snapshot,
    first: Optional[Exporter],
    now: Optional[Exporter],
    moved: int,
    compared: int,
) -> Iterator[Finding]:
    """Nothing moved in two cycles, not even the duration of a cycle, which always does."""
    (report,) = snapshot.nodes
    waited_s = report.probes["exporter"].interval_s
    if moved or not compared or first is None or now is None or waited_s < TWO_CYCLES_S:
        return
    if now.scrape_duration_s is None or first.scrape_duration_s != now.scrape_duration_s:
        return
    text = f"none of {compared} hardware series moved within {waited_s:.0f} s"
    evidence = Evidence(f"http://127.0.0.1:{now.port}/metrics", text, time=snapshot.time)
    yield _finding("ghost-data", report.node.host, evidence, confidence=Confidence.LIKELY)


def _own(host: str, served: ServedMetrics, now_s: float) -> Iterator[Finding]:
    limit_s = _OLD_INTERVALS * (served.interval_s or 0.0)
    if served.page_age_s is not None and limit_s and served.page_age_s > limit_s:
        text = f"no cycle has ended for {served.page_age_s:.0f} s: only its own lines are served"
        yield _finding("exporter-down", host, Evidence("page_age_seconds", text))
    for plugin, source, seconds in served.stuck:
        text = f"a reader of plugin {plugin} has hung in it for {seconds:.0f} s"
        onset = now_s - seconds
        yield _finding("hung-read", host, Evidence(source, text), device=source, onset=onset)
    stuck = {plugin for plugin, _, _ in served.stuck}
    for health in served.plugins:
        if health.up is False and health.name not in stuck:
            yield _failed_run(host, health, served.denied.get(health.name, ""))
        if health.outdated:
            text = f"plugin {health.name}: {health.reload_errors} new versions were refused"
            evidence = Evidence("plugin_outdated", text)
            yield _finding("exporter-plugin-skipped", host, evidence, variant="outdated")


def _failed_run(host: str, health: PluginHealth, denied: str) -> Finding:
    failed = f"the last run of plugin {health.name} failed"
    if health.timeouts:
        text = f"{failed}; missed deadlines so far: {health.timeouts}"
        evidence = Evidence("plugin_timeouts_total", text)
        return _finding("exporter-plugin-timeout", host, evidence, variant="apart")
    variant, text = "fails", f"{failed}; failures so far: {health.failures}"
    if denied:
        variant, text = "denied", f"plugin {health.name} may not read {denied}"
    evidence = Evidence("plugin_up", text)
    return _finding("exporter-plugin-skipped", host, evidence, variant=variant)


def _restarts(host: str, watched: Watched, now_s: float) -> Iterator[Finding]:
    recent = [restart for restart in watched.restarts if restart[0] >= now_s - _RECENT_S]
    evidence = [Evidence(watched.log, line) for line in watched.lines]
    if watched.gave_up:
        yield _finding("exporter-down", host, Evidence(watched.log, "the watchdog has given up"))
    elif recent:
        severity = Severity.WARNING if len(recent) > 1 else Severity.INFO
        yield _finding(
            "exporter-restarting", host, *evidence, severity=severity, onset=recent[0][0]
        )
    if watched.left is not None and watched.left <= 1 and not watched.gave_up:
        text = f"{watched.number} of {MOST_RESTARTS} restarts are used up"
        yield _finding("exporter-restarting", host, Evidence(watched.log, text))


def _leftovers(
    host: str, exporter: Optional[Exporter], processes: Sequence[Process], is_ghost: bool
) -> Iterator[Finding]:
    """An HTTP server whose exporter is gone: it outlives a SIGKILL, and goes on serving a file."""
    loops = {process.pid for process in processes if process.role == "loop"}
    orphans = []
    for process in processes:
        if process.role == "server" and process.parent not in loops:
            age = f"{process.age_s:.0f} s old"
            orphans.append(f"pid {process.pid}, parent {process.parent}, {age}")
    if not orphans or exporter is None or exporter.answer != "ok":
        return
    text = f"its HTTP server is a leftover of an earlier exporter: {'; '.join(orphans)}"
    if not loops and not is_ghost:
        text += "; no exporter writes the file any more"
        yield _finding("ghost-data", host, Evidence(FILE, text), confidence=Confidence.LIKELY)
    elif loops:
        yield _finding("exporter-restarting", host, Evidence(FILE, text), variant="leftover")


def _finding(
    failure_class: str, host: str, *evidence: Evidence, variant: str = "", **fields: Any
) -> Finding:
    """A warning, unless the fields or the catalog's words for that circumstance say otherwise."""
    known = catalog.variant(failure_class, variant) if variant else {}
    fields = {"severity": Severity.WARNING, **known, **fields}
    return Finding(failure_class, host, evidence=evidence, **fields)
