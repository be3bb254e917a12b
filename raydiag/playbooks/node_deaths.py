"""Nodes whose series ended: no sample is not 0 %, and neither is it health."""

from collections.abc import Iterator

from raydiag.model import Confidence
from raydiag.playbooks.report_writer import Period, ReportWriter
from raydiag.timeline.known_values import known
from raydiag.timeline.queries import DMESG
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.silent_hosts import SilentHost


def judge_node_deaths(timeline: RunTimeline, report: ReportWriter) -> None:
    """A finding for each host that went silent while others went on: dead, or only not watched."""
    if report.timeline.answers.missing("alive"):
        report.row("node-death", None, timeline.answers.missing("alive"))
        return
    step_s = timeline.context.resolution_s()
    for silent in timeline.silent_hosts:
        signs = [_silence(timeline, silent), *_gpu_errors_before(timeline, silent)]
        report.finding(
            "node-death",
            "; ".join(signs),
            value=silent.time,
            evidence=[report.evidence("alive", sign, time=silent.time) for sign in signs],
            host=silent.host,
            period=Period(silent.time, silent.back_at, uncertainty_s=step_s),
            confidence=Confidence.CONFIRMED if len(silent.sources) > 1 else Confidence.POSSIBLE,
        )
    for living in timeline.unwatched_hosts:
        report.finding(
            "unwatched",
            f"all its series ({', '.join(living.sources)}) end, and steps go on: the host lives",
            value=living.time,
            host=living.host,
            period=Period(living.time, timeline.window.end, uncertainty_s=step_s),
        )
    if not timeline.silent_hosts:
        report.row("node-death", False, "every host with series has them to the end", query="")
        if not timeline.unseen_hosts:
            report.rule_out("node-death", "every host has series to the end of the window")


def _silence(timeline: RunTimeline, silent: SilentHost) -> str:
    series = f"all its series ({', '.join(silent.sources)})"
    if silent.back_at is None:
        return f"{series} end there"
    text = f"{series} stop there and come back {silent.back_at - silent.time:.0f} s later"
    if silent.host in timeline.rebooted_hosts:
        text += ", its counters since boot from zero: it rebooted"
    return text


def _gpu_errors_before(timeline: RunTimeline, silent: SilentHost) -> Iterator[str]:
    """What its kernel log and counters said before it died."""
    table = timeline.table("driver")
    row = table.row(silent.host, DMESG)
    if row is not None:
        lines = known(row[table.times <= silent.time])
        if lines.size and lines[-1] > 0:
            yield f"{lines[-1]:.0f} GPU errors in its kernel log"
    for subject, values in timeline.of_host("gpu-errors", silent.host):
        counts = known(values)
        if counts.size:
            yield f"GPU {subject.gpu}: {subject.metric} {counts[-1]:.0f}"
