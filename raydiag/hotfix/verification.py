"""Is an exporter healthy after a change: does a cycle of the new version serve values that move?

A page is judged when the cycle that made it began after the change: then the one before it ended
after the change as well. On a node whose CPUs training takes, cycles come late. So what is waited
for is evidence, and an exporter that is alive and late has more time than one that serves nothing.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Optional

from raydiag.hotfix import discovery, page_verdict, plugin_log, watchdog_log
from raydiag.hotfix.messages import RAYDIAG, ProcessInfo, Restarted, Verified, Verify
from raydiag.hotfix.page_verdict import DURATION, MAY_STAND_STILL, OwnReport, own_value
from raydiag.hotfix.served_page import ParsedPage, parse
from raydiag.probes.exporter import fetch

_POLL_S, _LATE_POLL_S = 0.2, 1.0
_FETCH_LIMIT_S = 2.0
_SHELL_INTERVAL_S = 12.0  # the longest cycle of the shell exporter on an idle node
_LATE_INTERVALS = 1.5
_MOST_MISSED_DEADLINES = 3  # runs in a row, after which a plugin hangs rather than is late


@dataclass(frozen=True)
class _Cycle:
    """The newest cycle of the exporter that has ended."""

    ended_at: float  # Unix s
    identity: object  # tells it from others
    page: ParsedPage  # served now


def verify(request: Verify) -> Verified:
    """Watch until the exporter is healthy, it is not, or the time has passed."""
    return _Verification(request).run()


class _Verification:
    """What has been seen so far, and what is still waited for."""

    def __init__(self, request: Verify) -> None:
        self.request = request
        self.restarted = request.restarted  # whose new exporter is waited for
        self.began = time.monotonic()
        self.waits_for = "a cycle of the exporter"
        self.newest: Optional[_Cycle] = None
        self.judged: Optional[ParsedPage] = None  # the last page that was
        self.cycles = 0  # judged
        self.durations: set[float] = set()
        self.moved = 0
        self.exporter: Optional[ProcessInfo] = None  # that is to make all these cycles
        self.restarts: Optional[int] = None
        self.notes: list[str] = []
        self.usual_interval_s = _SHELL_INTERVAL_S
        self.longest_interval_s = 0.0  # between the ends of two cycles
        self.first_missed: Optional[int] = None  # timeouts when a run was seen to be late

    def run(self) -> Verified:
        """See `verify`."""
        if self.restarted is None and self._can_be_found():
            self.exporter = discovery.find(self.request).exporter
        while True:
            failure = self._log_error() or self._look()
            if failure or not self.waits_for:
                return self._result(failure)
            elapsed_s = time.monotonic() - self.began
            if elapsed_s >= self.request.limit_s and not self._has_more_time(elapsed_s):
                return self._result(self._unseen())
            time.sleep(_POLL_S if elapsed_s < self.request.limit_s else _LATE_POLL_S)

    def _result(self, reason: str) -> Verified:
        if not reason and self._is_late():
            self.notes.append(self._lateness())
        metrics = self.judged.metrics if self.judged else {}
        exporter = self.exporter if self.restarted is not None else None
        seen = (self.cycles, self.moved, metrics, exporter, self.restarts)
        duration_s = round(time.monotonic() - self.began, 2)
        return Verified(not reason, reason, tuple(self.notes), *seen, duration_s)

    def _log_error(self) -> str:
        """What the logs say against the new version; "" when nothing does."""
        if self.request.exporter == RAYDIAG:
            return ""
        if self.restarted and watchdog_log.has_found_port_taken(self.restarted):
            return f"the new exporter's server found port {self.request.port} taken"
        return plugin_log.new_error(self.request, self.request.name in MAY_STAND_STILL)

    def _look(self) -> str:
        """Look once; what is wrong, or "". `waits_for` is empty when everything was seen."""
        if self.restarted is not None and self.exporter is None:
            self.waits_for = self._awaited_of_restart(self.restarted)
            if self.waits_for:
                return ""
            self.newest = None
        cycle = _newest_cycle(self.request)
        if cycle is None or (self.newest and cycle.identity == self.newest.identity):
            return ""
        previous, self.newest = self.newest, cycle
        if self.request.exporter == RAYDIAG:
            self.usual_interval_s = own_value(cycle.page, "interval_seconds") or float("inf")
        if previous is None or previous.ended_at < self._changed_at():
            self.waits_for = "a cycle that began after the change"
            return ""
        self.longest_interval_s = max(self.longest_interval_s, cycle.ended_at - previous.ended_at)
        if not cycle.page.values and not cycle.page.broken:
            return ""  # as a shell exporter serves just after its start
        failure = self._judge(cycle.page)
        return failure or ("" if self.waits_for else self._exporter_ended())

    def _changed_at(self) -> float:
        """Unix seconds, from when on the new version runs."""
        if self.restarted is not None and self.exporter is not None:
            return max(self.request.since, self.exporter.started_at)
        return self.request.since

    # ---- the exporter's processes

    def _can_be_found(self) -> bool:
        return self.request.exporter != RAYDIAG or bool(self.request.pid_file)

    def _exporter_ended(self) -> str:
        """Whether one exporter made all these cycles: good pages come from a crash loop as well."""
        if not self._can_be_found():
            return ""
        running, first = discovery.find(self.request).exporter, self.exporter
        if running is None or first is None:
            self.exporter = first or running
            self.waits_for = "cycles of an exporter whose process is known"
        elif not running.is_same(first):
            return f"the exporter ended again: pid {first.pid} is gone, and pid {running.pid} runs"
        return ""

    def _awaited_of_restart(self, restarted: Restarted) -> str:
        """What is still missing of the restart; "" when the new exporter runs and has its server.

        `exporter` and `restarts` are known then.
        """
        discovered = discovery.find(self.request)
        is_shell = self.request.exporter != RAYDIAG
        if is_shell or (discovered.watchdog and discovered.watchdog.log):
            line = watchdog_log.line_of_restart(restarted)
            if line is None:
                return f"the watchdog's line of restart #{restarted.restarts + 1}"
            self.restarts = line.number
        exporter = discovered.exporter
        if exporter is None or any(exporter.is_same(ended) for ended in restarted.ended):
            return "the new exporter's process"
        if is_shell and discovered.server is None:
            return "the new exporter's server"
        if fetch(self.request.port, _FETCH_LIMIT_S)[0] != "ok":
            return f"an answer of port {self.request.port}"
        self.exporter = exporter
        return ""

    # ---- late, or failed

    def _is_late(self) -> bool:
        """Whether cycles take longer than usual, or runs miss their deadlines."""
        if self.first_missed is not None:
            return True
        return self._interval_now_s() > _LATE_INTERVALS * self.usual_interval_s

    def _interval_now_s(self) -> float:
        """The longest interval between two cycles.

        Of raydiag's exporter with the one that has not ended: its collector never waits for a
        plugin, so only a want of CPU holds it up. The shell exporter may stand still.
        """
        if self.request.exporter != RAYDIAG or self.newest is None:
            return self.longest_interval_s
        return max(self.longest_interval_s, time.time() - self.newest.ended_at)

    def _has_more_time(self, elapsed_s: float) -> bool:
        """Whether the exporter is alive, late, and within its limit for that."""
        if elapsed_s >= self.request.late_limit_s or not self._is_late():
            return False
        if not self._can_be_found():
            return True
        return discovery.find(self.request).exporter is not None

    def _unseen(self) -> str:
        """The reason after the time has passed."""
        limit_s, lateness = self.request.limit_s, ""
        if self._is_late():
            limit_s, lateness = max(limit_s, self.request.late_limit_s), f"; {self._lateness()}"
        return f"waited {limit_s:g} s for {self.waits_for}{lateness}"

    def _lateness(self) -> str:
        took_s = self._interval_now_s()
        usual_s = self.usual_interval_s
        if took_s > _LATE_INTERVALS * usual_s:
            return f"its cycles come late: up to {took_s:.1f} s apart instead of {usual_s:g} s"
        return f"{self.request.name} missed its deadline at first"

    # ---- one page

    def _judge(self, page: ParsedPage) -> str:
        """What is wrong with the page of a cycle of the new version, or ""."""
        if page.broken:
            return f"what is served is not valid: {page.broken}"
        self.waits_for = ""
        report = None
        if self.request.exporter == RAYDIAG:
            report = OwnReport.of(page, self.request.name)
            failure = self._judge_report(report)
            if failure or self.waits_for:
                return failure
        failure = page_verdict.missing_metrics(self.request, page)
        if failure and report and report.values_have_expired():
            self.waits_for = f"fresh values of {self.request.name}"
            return ""
        if not failure:
            self._count(page)
        return failure

    def _judge_report(self, report: OwnReport) -> str:
        """What raydiag's exporter says of the plugin; `waits_for` when it is late."""
        failure = report.failure()
        if failure and report.late:
            return self._judge_missed_deadline(report, failure)
        self.waits_for = report.awaited_run(self.request.since)
        if not self.waits_for and report.page_has_expired():
            self.waits_for = "a page that is not too old to have values"
        return failure

    def _judge_missed_deadline(self, report: OwnReport, failure: str) -> str:
        if self.first_missed is None:
            self.first_missed = report.timeouts
        missed = 1 + report.timeouts - self.first_missed
        self.waits_for = f"a run of {report.file} within its time limit"
        if missed < _MOST_MISSED_DEADLINES:
            return ""
        return f"{report.file} missed its deadline in {missed} runs: {failure}"

    def _count(self, page: ParsedPage) -> None:
        """Take note of a good page, and say what has still to be seen."""
        self.cycles += 1
        self.durations.update(page.values_of(DURATION))
        if self.judged is not None:
            self.moved += self._moved_series(self.judged, page)
        self.judged = page
        self.waits_for = self._awaited_of_cycles()
        if self.waits_for:
            return
        if not self.moved:
            self.notes.append("its values were not seen to move, and need not")
        removed = sorted(set(self.request.before) - set(page.metrics))
        if removed:
            self.notes.append(f"not served any more: {', '.join(removed[:20])}")

    def _awaited_of_cycles(self) -> str:
        request = self.request
        is_own = request.exporter == RAYDIAG
        may_stand_still = request.name in MAY_STAND_STILL or (is_own and not request.expected)
        if self.cycles < 2:
            return "a second cycle"
        if not self.moved and not may_stand_still:
            return "values that move"
        if self.restarted is not None and not is_own and len(self.durations) < 2:
            return f"{DURATION} to change"
        return ""

    def _moved_series(self, before: ParsedPage, page: ParsedPage) -> int:
        """Series of the plugin whose value changed from one page to the next."""
        of_plugin = set(page_verdict.metrics_of_plugin(self.request, page.metrics))
        moved = 0
        for series, value in page.values.items():
            if series.partition("{")[0] in of_plugin:
                # By repr: NaN is not unlike itself.
                moved += repr(before.values.get(series, value)) != repr(value)
        return moved


def _newest_cycle(request: Verify) -> Optional[_Cycle]:
    """None while the exporter does not answer, or has not ended any."""
    status = None
    if request.exporter != RAYDIAG:
        try:
            status = os.stat(request.metrics_file)
        except OSError:
            return None
    answer, _, body = fetch(request.port, _FETCH_LIMIT_S)
    if answer != "ok":
        return None
    page = parse(body)
    if status is not None:
        return _Cycle(status.st_mtime, (status.st_ino, status.st_mtime_ns), page)
    if page.broken:  # tells no cycle: each look at it counts as one
        return _Cycle(time.time(), time.time(), page)
    ended_at = own_value(page, "cycle_timestamp_seconds")
    return None if ended_at is None else _Cycle(ended_at, ended_at, page)
