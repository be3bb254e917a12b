"""Is an exporter well after a change: does the next cycle serve healthy values that move?

A page is judged when the cycle that made it began after the change: then the one before it ended
after the change as well.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from raydiag.hotfix import discovery
from raydiag.hotfix.messages import RAYDIAG, ProcessInfo, Verified, Verify
from raydiag.hotfix.process import SCRIPT
from raydiag.hotfix.served_page import ParsedPage, parse
from raydiag.probes.exporter import fetch

_POLL_S = 0.2
_FETCH_LIMIT_S = 2.0
_KILLED = 137  # exit status that the watchdog sees of a process ended by SIGKILL
_CLOCK_S = 2.0  # its lines have whole seconds
_OWN = "raydiag_exporter_"
_DURATION = "hw_scrape_duration_seconds"
_NUMBERS = re.compile(r"\d+")
# Where no dry run says which metrics a plugin makes. TensorBoard's move with training alone.
_PREFIXES = {
    "gpu_metrics_plugin.sh": ("hw_gpu_",),
    "host_metrics_plugin.sh": ("hw_",),
    "tb_metrics_plugin.sh": ("tb_",),
    SCRIPT: ("hw_",),
}
_AT_REST = ("tb_metrics_plugin.sh",)


@dataclass
class _Watch:
    """What has been seen so far."""

    request: Verify
    mark: Optional[tuple[float, object]] = None  # end of the last cycle, and what tells it apart
    cycles: int = 0
    last: Optional[ParsedPage] = None  # judged
    durations: set[float] = field(default_factory=set)
    moved: int = 0
    exporter: Optional[ProcessInfo] = None  # after a restart: the new one
    first: Optional[ProcessInfo] = None  # the exporter that was there when the watching began
    restarts: Optional[int] = None
    notes: list[str] = field(default_factory=list)
    waits_for: str = "a cycle of the exporter"

    def result(self, healthy: bool, reason: str, began: float) -> Verified:
        return Verified(
            healthy=healthy,
            reason=reason,
            notes=tuple(self.notes),
            cycles=self.cycles,
            moved=self.moved,
            metrics=self.last.metrics if self.last else {},
            exporter=self.exporter,
            restarts=self.restarts,
            duration_s=round(time.monotonic() - began, 2),
        )


def verify(request: Verify) -> Verified:
    """Watch until it is well, it is not, or the time has passed."""
    began, watch = time.monotonic(), _Watch(request)
    if request.restarted is None and _can_be_found(request):
        watch.first = discovery.find(request).exporter
    while time.monotonic() - began < request.limit_s:
        trouble = _trouble(watch) or _step(watch)
        if trouble:
            return watch.result(False, trouble, began)
        if not watch.waits_for:
            return watch.result(True, "", began)
        time.sleep(_POLL_S)
    return watch.result(False, f"waited {request.limit_s:g} s for {watch.waits_for}", began)


def _step(watch: _Watch) -> str:
    """Look once; what is wrong, or "". `waits_for` is empty when everything was seen."""
    if watch.request.restarted is not None and watch.exporter is None:
        watch.waits_for = _restarted(watch, watch.request.restarted)
        if watch.waits_for:
            return ""
        watch.mark = None
    cycle = _cycle(watch.request)
    if cycle is None or (watch.mark and cycle[:2] == watch.mark):
        return ""
    before, watch.mark = watch.mark, cycle[:2]
    if before is None or before[0] < _since(watch):
        watch.waits_for = "a cycle that began after the change"
        return ""
    page = cycle[2]
    if not page.values and not page.broken:
        return ""  # as a shell exporter serves just after its start
    return _judge(watch, page) or ("" if watch.waits_for else _lives_on(watch))


def _lives_on(watch: _Watch) -> str:
    """Whether one exporter made all these cycles: good pages come from a crash loop as well."""
    if not _can_be_found(watch.request):
        return ""
    now, first = discovery.find(watch.request).exporter, watch.exporter or watch.first
    if now is None or first is None:
        watch.first = first or now
        watch.waits_for = "cycles of an exporter whose process is known"
    elif (now.pid, now.start_ticks) != (first.pid, first.start_ticks):
        return f"the exporter ended again: pid {first.pid} is gone, and pid {now.pid} runs"
    return ""


def _can_be_found(request: Verify) -> bool:
    return request.exporter != RAYDIAG or bool(request.pid_file)


def _since(watch: _Watch) -> float:
    started_at = watch.exporter.started_at if watch.exporter else 0.0
    return max(watch.request.since, started_at)


def _cycle(request: Verify) -> Optional[tuple[float, object, ParsedPage]]:
    """When the newest cycle ended, what tells it from others, and what is served now."""
    mark: object = None
    at = 0.0
    if request.exporter != RAYDIAG:
        try:
            status = os.stat(request.metrics_file)
        except OSError:
            return None
        at, mark = status.st_mtime, (status.st_ino, status.st_mtime_ns)
    answer, _, body = fetch(request.port, _FETCH_LIMIT_S)
    if answer != "ok":
        return None
    page = parse(body)
    if request.exporter == RAYDIAG:
        # A page that cannot be read tells no cycle: each look at it counts as one.
        mark = time.time() if page.broken else _own(page, "cycle_timestamp_seconds")
        if mark is None:
            return None
        at = mark if isinstance(mark, float) else 0.0
    return at, mark, page


def _own(page: ParsedPage, name: str, plugin: str = "") -> Optional[float]:
    """A value that raydiag's exporter tells of itself; None when it does not."""
    for series, value in page.values.items():
        is_named = series.partition("{")[0] == _OWN + name
        if is_named and (not plugin or f'plugin="{plugin}"' in series):
            return value
    return None


def _judge(watch: _Watch, page: ParsedPage) -> str:
    request = watch.request
    if page.broken:
        return f"what is served is not valid: {page.broken}"
    watch.waits_for = _own_run(request, page)
    wrong = _own_trouble(request, page)
    if wrong or watch.waits_for:
        return wrong
    wrong = _missing(request, page)
    if wrong:
        return wrong
    watch.cycles += 1
    if _DURATION in page.metrics:
        watch.durations.add(next(v for s, v in page.values.items() if s.startswith(_DURATION)))
    if watch.last is not None:
        own = set(_of_plugin(request, page.metrics))
        watch.moved += sum(
            repr(watch.last.values.get(series, value)) != repr(value)  # NaN is not unlike itself
            for series, value in page.values.items()
            if series.partition("{")[0] in own
        )
    watch.last = page
    rests = request.name in _AT_REST or (request.exporter == RAYDIAG and not request.expected)
    if watch.cycles < 2:
        watch.waits_for = "a second cycle"
    elif not watch.moved and not rests:
        watch.waits_for = "values that move"
    elif request.restarted is not None and request.exporter != RAYDIAG and len(watch.durations) < 2:
        watch.waits_for = f"{_DURATION} to change"
    else:
        watch.waits_for = ""
        if rests and not watch.moved:
            watch.notes.append("its values were not seen to move, and need not")
        gone = sorted(set(request.before) - set(page.metrics))
        if gone:
            watch.notes.append(f"not served any more: {', '.join(gone[:20])}")
    return ""


def _of_plugin(request: Verify, metrics: Mapping[str, int]) -> Iterator[str]:
    """Names of the metrics that the replaced file makes, among these."""
    if request.expected:
        yield from (name for name in metrics if name in request.expected)
        return
    prefixes = _PREFIXES.get(request.name, ())
    others = ("hw_gpu_",) if request.name == "host_metrics_plugin.sh" else ()
    for name in metrics:
        if name.startswith(prefixes) and not name.startswith((*others, _DURATION)):
            yield name


def _missing(request: Verify, page: ParsedPage) -> str:
    """Which metrics of the plugin are gone, or fewer; "" when none is."""
    now = page.metrics
    for name in _of_plugin(request, request.before):
        fewer = name.startswith("hw_gpu_") and now.get(name, 0) < request.before[name]
        planned = (
            request.expected.get(name, 0) < request.before[name] if request.expected else False
        )
        if name not in now or (fewer and not planned):
            return f"{name} has {now.get(name, 0)} series, and had {request.before[name]}"
    knows = bool(request.expected) or request.name in _PREFIXES
    if request.name in _AT_REST and not any(_of_plugin(request, request.before)):
        return ""
    if knows and not any(_of_plugin(request, now)):
        return f"nothing is served of what {request.name} makes"
    return ""


def _own_trouble(request: Verify, page: ParsedPage) -> str:
    """What raydiag's exporter says of the plugin."""
    if request.exporter != RAYDIAG:
        return ""
    plugin = os.path.splitext(request.name)[0]
    if _own(page, "plugin_outdated", plugin):
        return f"{request.name} was not loaded: the exporter goes on with the one before"
    if _own(page, "plugin_up", plugin) == 0:
        return f"{request.name} fails: raydiag_exporter_plugin_up is 0"
    return ""


def _own_run(request: Verify, page: ParsedPage) -> str:
    """Which run of the plugin raydiag's exporter has still to make; "" when it made it."""
    plugin = os.path.splitext(request.name)[0]
    if request.exporter != RAYDIAG or _own(page, "plugin_disabled", plugin):
        return ""
    if _own(page, "plugin_up", plugin) is None:
        return f"a first run of {request.name}"
    succeeded_at = _own(page, "plugin_last_success_timestamp_seconds", plugin)
    if succeeded_at is not None and succeeded_at < request.since:
        return f"a run of {request.name} after the change"
    return ""


def _trouble(watch: _Watch) -> str:
    """New lines of the plugins' log that accuse the replaced file."""
    request = watch.request
    if request.exporter == RAYDIAG or not os.path.exists(request.plugin_log):
        return ""
    size = os.stat(request.plugin_log).st_size
    begin = request.plugin_log_bytes if size >= request.plugin_log_bytes else 0
    new = discovery.tail(request.plugin_log, begin)
    plugin = request.name.removesuffix(".sh") if request.name != SCRIPT else ""
    for line in new.split("\n"):
        if f"] {plugin}" in line and " timed out after " in line:
            return f"{request.plugin_log}: {line.strip()[:200]}"
        if f"] {plugin}" in line and " exited 99 " in line and request.name not in _AT_REST:
            return f"{request.plugin_log}: {line.strip()[:200]}"
    if request.restarted is not None and _found_port_taken(request.restarted):
        return f"the new exporter's server found port {request.port} taken"
    return _new_error(request, new, begin)


def _found_port_taken(restarted: Mapping[str, Any]) -> bool:
    """What the new server complains of goes where the exporter's own words go."""
    text = discovery.tail(str(restarted["log"]), int(restarted["log_bytes"]))
    # Before that line it is the complaint of a server that was ended, or ended by itself.
    _, line, after = text.partition(f", restart #{int(restarted['restarts']) + 1}\n")
    return bool(line) and "Address already in use" in after


def _new_error(request: Verify, new: str, begin: int) -> str:
    """A line of the shell about the file that it did not say before the change."""
    name = request.name
    lines = [line.strip() for line in new.split("\n") if f"{name}: line " in line]
    if not lines:
        return ""
    old = discovery.tail(request.plugin_log, max(0, begin - (1 << 20)))
    old = old[: len(old) - len(new)] if old.endswith(new) else ""
    known = {_NUMBERS.sub("#", line.strip()) for line in old.split("\n")}
    for line in lines:
        if _NUMBERS.sub("#", line) not in known:
            return f"{request.plugin_log}: {line[:200]}"
    return ""


def _restarted(watch: _Watch, restarted: Mapping[str, object]) -> str:
    """What is still missing of the restart; "" when the new exporter runs and has its server."""
    request = watch.request
    found = discovery.find(request)
    ended = restarted.get("ended") or ()
    old = {(one["pid"], one["start_ticks"]) for one in ended}  # type: ignore[attr-defined]
    if request.exporter != RAYDIAG or (found.watchdog and found.watchdog.log):
        line = _new_line(restarted)
        if line is None:
            return f"the watchdog's line of restart #{int(str(restarted['restarts'])) + 1}"
        watch.restarts = line.number
    exporter = found.exporter
    if exporter is None or (exporter.pid, exporter.start_ticks) in old:
        return "the new exporter's process"
    if request.exporter != RAYDIAG and found.server is None:
        return "the new exporter's server"
    if fetch(request.port, _FETCH_LIMIT_S)[0] != "ok":
        return f"an answer of port {request.port}"
    watch.exporter = exporter
    return ""


def _new_line(restarted: Mapping[str, object]) -> Optional[discovery.RestartCount]:
    """The restart line that our own signal has caused, by number, time and exit status."""
    text = discovery.tail(str(restarted["log"]), int(str(restarted["log_bytes"])))
    for line in discovery.restarts_in(text):
        late = line.at >= float(str(restarted["at"])) - _CLOCK_S
        if line.number == int(str(restarted["restarts"])) + 1 and late and line.code == _KILLED:
            return line
    return None
