"""Is what watches the job well itself? Whatever is not seen must not be taken for healthy, or dead.

One function for each symptom. Where a node's exporter stops and its Ray goes on, the exporter is
down; where both stop, that is for another playbook to judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from raydiag.model import (
    Blind,
    Coverage,
    Evidence,
    HostUnread,
    Severity,
    Status,
    Window,
)
from raydiag.playbooks.context import GHOST
from raydiag.playbooks.exporters import (
    exporter_down,
    ghost_data,
    plugin_skipped,
    plugin_timeout,
    restarting,
)
from raydiag.playbooks.masks import sampled_at
from raydiag.playbooks.monitoring_stack import ID, Stack, log_lines, newest_samples, observation
from raydiag.playbooks.observations import Observation, Report, ReportRow
from raydiag.playbooks.query_results import ALIVE

TITLE = "Is the observability stack itself well?"
SEEN_S = 60.0  # samples that reach so near to the end count as seen
_GAP_S = 60.0
_SILENT_S = 120.0  # one source of a host silent for so long while the other goes on
_BRIDGE_STEPS, _BRIDGE_S = 10, 300.0  # steps that are missing, over so long a time
_FLUSH_S = 600.0  # the bridge may lag behind so much: writer and poll take their time


def judge(stack: Stack) -> tuple[list[Observation], Report]:
    """Every symptom, with a row for each, hit or not."""
    found: list[Observation] = []
    rows = []
    for symptom, words in _SYMPTOMS:
        own = list(symptom(stack))
        found += own
        hosts = tuple(sorted({one.finding.host for one in own if one.finding.host}))
        holds = bool(own)
        text = own[0].finding.evidence[0].text if own and own[0].finding.evidence else words
        rows.append(ReportRow(ID, symptom.__name__.replace("_", "-"), holds, text, hosts))
    questions = tuple(one for one in (ALIVE, "up", "driver", "training") if one in stack.answers)
    word = "sick in part" if found else "well"
    verdict = f"The observability stack is {word}."
    return found, Report(
        ID, TITLE, "observability", stack.context.window, questions, tuple(rows), verdict
    )


def gap(stack: Stack) -> Iterator[Observation]:
    """No host gave any sample for a while: Prometheus itself stood still."""
    stamps = [
        values
        for source in ("hw", "ray")
        for _, values in sampled_at(stack.context, stack.answers, source).values()
    ]
    if not stamps:
        return
    answer = stack.answers.answer(ALIVE)
    step = answer.query.window.step if answer is not None else 0.0
    times = np.unique(np.concatenate(stamps))
    limit = max(_GAP_S, 3 * stack.resolution_s, 2.5 * step)
    logged = [*stack.logs.of("restart", ""), *stack.logs.of("damaged", "")]
    for low, high in pairwise(map(float, times)):
        if high - low > limit:
            text = f"no sample of any host for {high - low:.0f} s"
            seen = [Evidence(stack.answers.promql(ALIVE), text, high - low, low)]
            yield observation(
                "tsdb-gap",
                "gap",
                [*seen, *log_lines(logged)],
                onset=low,
                until=high,
                uncertainty_s=stack.resolution_s,
                recovered=True,
            )
    missing = stack.end - float(times[-1])
    if missing > limit:
        text = f"the last sample of any host is {missing:.0f} s older than the end of the window"
        seen = [Evidence(stack.answers.promql(ALIVE), text, missing, float(times[-1]))]
        yield observation(
            "tsdb-gap", "gap", [*seen, *log_lines(logged)], onset=float(times[-1]), until=stack.end
        )


def bridge_gap(stack: Stack) -> Iterator[Observation]:
    """Steps went on and are missing from the metrics."""
    usual, late = stack.steps.step_time_s, stack.logs.of("too-old", "")
    log = log_lines(late[:2])
    if not len(stack.steps):
        trained = stack.last_step is not None and stack.context.job.first_step is not None
        if trained and stack.end - stack.context.window.start > 2 * _FLUSH_S:
            text = f"no tb_* at all, although the log has steps up to {stack.last_step}"
            yield observation("tb-bridge-gap", "bridge-gap", [Evidence("tb_step", text), *log])
        return
    if usual is None:
        return
    numbers, times = stack.steps.numbers, stack.steps.ended_at
    for index in np.flatnonzero((np.diff(numbers) > _BRIDGE_STEPS) & (np.diff(times) > _BRIDGE_S)):
        low, high = int(numbers[index]), int(numbers[index + 1])
        text = f"steps {low + 1} to {high - 1} are missing"
        seen = [Evidence("tb_step", text, float(high - low - 1), float(times[index]))]
        yield observation(
            "tb-bridge-gap",
            "bridge-gap",
            [*seen, *log],
            onset=float(times[index]),
            severity=Severity.WARNING,
            until=float(times[index + 1]),
            recovered=True,
        )
    behind = 0 if stack.last_step is None else stack.last_step - int(numbers[-1])
    room = stack.end - float(times[-1])
    if behind * usual > _FLUSH_S and behind > _BRIDGE_STEPS and room > _FLUSH_S:
        text = f"ends at step {int(numbers[-1])}, the log at {stack.last_step}"
        seen = [Evidence("tb_step", text, float(behind), float(times[-1]))]
        yield observation(
            "tb-bridge-gap",
            "bridge-gap",
            [*seen, *log],
            onset=float(times[-1]),
            severity=Severity.WARNING,
            until=stack.end,
        )


def ray_metrics(stack: Stack) -> Iterator[Observation]:
    """Ray's own metrics are missing, or end before those of the same node's exporter."""
    if not stack.is_ray:
        return
    hw, ray = newest_samples(stack, "hw"), newest_samples(stack, "ray")
    if not ray:
        text = "there is no ray_node_* series at all"
        yield observation("ray-metrics-missing", "ray-metrics", [Evidence("ray_node_*", text)])
        return
    for host in stack.context.hosts:
        if host not in hw:
            continue
        if host not in ray:
            text = "no ray_node_* of this host, although its exporter has metrics"
            seen = [Evidence("ray_node_*", text)]
            yield observation("ray-metrics-missing", "ray-metrics", seen, host, until=stack.end)
        elif hw[host] - ray[host] > max(_SILENT_S, 2 * _refresh_s(stack)):
            text = f"ray_* ends {hw[host] - ray[host]:.0f} s before hw_* of the same host"
            seen = [Evidence(stack.answers.promql(ALIVE), text, ray[host], ray[host])]
            yield observation(
                "ray-metrics-missing", "ray-metrics", seen, host, ray[host], until=stack.end
            )


def _refresh_s(stack: Stack) -> float:
    family = stack.context.discovery.family("ray_node_")
    return (family.resolution_s or 0.0) if family is not None else 0.0


def hosts_missing(stack: Stack) -> Iterator[Observation]:
    """Nodes of the job's list without a single sample."""
    hw, ray = newest_samples(stack, "hw"), newest_samples(stack, "ray")
    if not hw and not ray:
        return
    for host in stack.context.hosts:
        if host in hw or host in ray:
            continue
        text = "in the job's node list, and never scraped with success"
        log = stack.logs.of("scrape-failed", host)
        seen = [Evidence("label values of host", text), *log_lines(log)]
        yield observation("host-missing", "hosts-missing", seen, host, until=stack.end)
    nnodes, hosts = stack.context.discovery.nnodes, stack.context.discovery.hosts
    if nnodes and not stack.context.discovery.expected and len(hosts) < nnodes:
        text = f"{len(hosts)} hosts have series, the job has {nnodes} nodes"
        seen = [Evidence("label values of host", text)]
        yield observation("host-missing", "hosts-missing", seen, until=stack.end)


_SYMPTOMS = (
    (gap, "samples come without a hole"),
    (exporter_down, "every exporter answered to the end"),
    (plugin_timeout, "cycles of the exporters are fast"),
    (plugin_skipped, "no exporter lacks a family"),
    (restarting, "no exporter that goes on was restarted"),
    (ghost_data, "no exporter repeats old values"),
    (bridge_gap, "the bridge has carried all steps"),
    (ray_metrics, "Ray's metrics are there"),
    (hosts_missing, "every node of the job has series"),
)


def empty(why: str, lines: Sequence[Evidence]) -> Observation:
    """The directory holds no samples."""
    seen = [Evidence("prometheus", why), *lines]
    return observation("tsdb-empty", "empty", seen)


def wrong_job(source: str, why: str) -> Observation:
    """What is served belongs to another job."""
    return observation("tsdb-wrong-job", "wrong-job", [Evidence(source, why)])


def coverage(stack: Stack, dead: Iterable[str] = ()) -> Coverage:
    """What the answer rests on: hosts that are seen to the end, by exporter and by Ray.

    `dead` are hosts whose silence is itself the finding.
    """
    hw, ray = newest_samples(stack, "hw"), newest_samples(stack, "ray")
    job, gone = stack.context.hosts, set(dead)
    blind = [
        Blind(host, "no series of this host") for host in job if host not in hw and host not in ray
    ]
    unread = []
    limit = stack.end - max(SEEN_S, 3 * stack.resolution_s)
    for host in job:
        if host in gone or (host not in hw and host not in ray):
            continue
        for name, ends in (("hw_*", hw), ("ray_*", ray)):
            if name == "ray_*" and not stack.is_ray:
                continue
            if host not in ends:
                reason = f"{host} has no {name} series"
                unread.append(HostUnread(host, name, Status.NO_DATA, reason))
            elif ends[host] < limit:
                reason = f"ends {stack.end - ends[host]:.0f} s before the window does"
                unread.append(HostUnread(host, name, Status.NO_DATA, reason))
    unread += _failed(stack)
    ghosts = [mask for mask in stack.context.masks if mask.kind == GHOST and mask.host]
    for mask in ghosts:
        reason = f"repeated samples for {min(mask.end, stack.end) - mask.start:.0f} s"
        unread.append(HostUnread(mask.host or "", "hw_*", Status.NO_DATA, reason))
    window = Window(stack.context.window.start, stack.end)
    return Coverage(len(job), len(job) - len(blind), tuple(blind), tuple(unread), window)


def _failed(stack: Stack) -> Iterator[HostUnread]:
    for answer in stack.answers:
        if not answer.ok:
            yield HostUnread("", answer.query.id, answer.status, answer.reason)
    for item in (*stack.context.discovery.unread, *stack.logs.unread):
        yield HostUnread("", item.source, item.status, item.reason)
