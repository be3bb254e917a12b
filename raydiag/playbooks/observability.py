"""Is what watches the job well itself? Whatever is not seen must not be taken for healthy, or dead.

One function for each symptom. Where a node's exporter stops and its Ray goes on, the exporter is
down; where both stop, that is for another playbook to judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Optional

import numpy as np

from raydiag.model import (
    Blind,
    Confidence,
    Coverage,
    Evidence,
    Finding,
    HostUnread,
    Severity,
    Status,
    Window,
)
from raydiag.playbooks.answers import ALIVE, Answers
from raydiag.playbooks.context import GHOST, Context, Mask
from raydiag.playbooks.masks import Steps, sampled_at, scrape_durations
from raydiag.playbooks.observed import Observation, Report, Row
from raydiag.playbooks.questions import SCRAPE
from raydiag.tsdb.stack_logs import StackLine, StackLogs

ID, TITLE = "observability", "Is the observability stack itself well?"
SEEN_S = 60.0  # samples that reach so near to the end count as seen
_SLOW_S, _TIMED_OUT_S, _FAST_S = 8.0, 11.5, 3.0  # duration of an exporter's cycle
_SLOW_CYCLES = 3
_GAP_S = 60.0
_SILENT_S = 120.0  # one source of a host silent for so long while the other goes on
_RESTARTS = 2  # more than one is a habit
_BRIDGE_STEPS, _BRIDGE_S = 10, 300.0  # steps that are missing, over so long a time
_FLUSH_S = 600.0  # the bridge may lag behind so much: writer and poll take their time
_EVIDENCE = 4


@dataclass(frozen=True)
class Stack:
    """All that the symptoms are judged from."""

    context: Context
    answers: Answers
    logs: StackLogs
    steps: Steps
    last_step: Optional[int] = None  # by the job's log
    is_ray: bool = True  # the job started Ray, so its metrics should be there

    @property
    def end(self) -> float:
        return self.context.window.end

    @property
    def resolution_s(self) -> float:
        return self.context.resolution_s()


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
        rows.append(Row(ID, symptom.__name__.replace("_", "-"), holds, text, hosts))
    questions = tuple(one for one in (ALIVE, "up", "driver", "training") if one in stack.answers)
    word = "sick in part" if found else "well"
    verdict = f"The observability stack is {word}."
    return found, Report(
        ID, TITLE, "observability", stack.context.window, questions, tuple(rows), verdict
    )


def _observation(
    failure_class: str,
    row: str,
    evidence: Sequence[Evidence],
    host: Optional[str] = None,
    onset: Optional[float] = None,
    severity: Optional[Severity] = None,
    until: Optional[float] = None,
    uncertainty_s: float = 0.0,
    recovered: bool = False,
    confidence: Confidence = Confidence.CONFIRMED,
) -> Observation:
    finding = Finding(
        failure_class,
        host,
        severity=severity,
        onset=onset,
        confidence=confidence,
        evidence=tuple(evidence[:_EVIDENCE]),
    )
    return Observation(
        finding, ID, row, until=until, recovered=recovered, uncertainty_s=uncertainty_s
    )


def _lines(lines: Iterable[StackLine]) -> list[Evidence]:
    return [Evidence(f"{one.file}:{one.line}", one.text, time=one.time) for one in lines]


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
            yield _observation(
                "tsdb-gap",
                "gap",
                [*seen, *_lines(logged)],
                onset=low,
                until=high,
                uncertainty_s=stack.resolution_s,
                recovered=True,
            )
    missing = stack.end - float(times[-1])
    if missing > limit:
        text = f"the last sample of any host is {missing:.0f} s older than the end of the window"
        seen = [Evidence(stack.answers.promql(ALIVE), text, missing, float(times[-1]))]
        yield _observation(
            "tsdb-gap", "gap", [*seen, *_lines(logged)], onset=float(times[-1]), until=stack.end
        )


def _ends(stack: Stack, source: str) -> dict[str, float]:
    """Newest sample by host."""
    found = sampled_at(stack.context, stack.answers, source)
    return {host: float(values.max()) for host, (_, values) in found.items()}


def exporter_down(stack: Stack) -> Iterator[Observation]:
    """A node's hardware metrics stop, or never came, while its Ray goes on."""
    hw, ray = _ends(stack, "hw"), _ends(stack, "ray")
    if not hw and not ray:
        return
    for host in stack.context.hosts:
        newest = ray.get(host)
        if newest is None:
            continue
        if host in hw and newest - hw[host] > _SILENT_S:
            text = f"hw_* ends {newest - hw[host]:.0f} s before ray_* of the same host"
            seen = [Evidence(stack.answers.promql(ALIVE), text, hw[host], hw[host])]
            log = [*stack.logs.of("gave-up", host), *stack.logs.of("restart", host)[-1:]]
            yield _observation(
                "exporter-down",
                "exporter-down",
                [*seen, *_lines(log)],
                host,
                hw[host],
                until=stack.end,
                uncertainty_s=stack.resolution_s,
            )
        elif host not in hw and not _scraped(stack, host):
            text = "no hw_* of this host at all, although its Ray has metrics"
            log = stack.logs.of("port-taken", host)
            seen = [Evidence("hw_*", text), *_lines(log)]
            yield _observation("exporter-down", "exporter-down", seen, host, until=stack.end)


def _scraped(stack: Stack, host: str) -> bool:
    """Whether the host's exporter answered Prometheus, whatever it had to say."""
    targets = stack.context.discovery.targets
    return any(one.host == host and one.job == "node_hw" and one.share_up > 0 for one in targets)


def plugin_timeout(stack: Stack) -> Iterator[Observation]:
    """Cycles of an exporter that take as long as a plugin is allowed, again and again."""
    for host, duration in scrape_durations(stack.context, stack.answers).items():
        slow = np.flatnonzero(duration.values > _SLOW_S)
        if slow.size < _SLOW_CYCLES:
            continue
        ghosts = [mask for mask in stack.context.masks if mask.kind == GHOST and mask.host == host]
        slow = slow[[not _inside(duration.times[i], ghosts) for i in slow]]
        if slow.size < _SLOW_CYCLES:
            continue
        timed_out = int((duration.values[slow] >= _TIMED_OUT_S).sum())
        first, last = float(duration.times[slow[0]]), float(duration.times[slow[-1]])
        between = duration.values[slow[0] : slow[-1] + 1]
        alternates = bool((between < _FAST_S).any())
        text = (
            f"{slow.size} cycles above {_SLOW_S:g} s, {timed_out} of them a plugin's time limit"
            f"{', others fast' if alternates else ''}"
        )
        seen = [Evidence(SCRAPE, text, float(duration.values[slow].max()), first)]
        newest = float(duration.times[-1])
        yield _observation(
            "exporter-plugin-timeout",
            "plugin-timeout",
            [*seen, *_lines(stack.logs.of("plugin-timeout", host))],
            host,
            first,
            until=last,
            uncertainty_s=duration.spacing_s or 0.0,
            recovered=newest - last > 600.0,
        )


def _inside(time: float, masks: Iterable[Mask]) -> bool:
    return any(mask.start < time <= mask.end for mask in masks)


def plugin_skipped(stack: Stack) -> Iterator[Observation]:
    """An exporter answers and a whole family is missing from it."""
    found = stack.context.discovery
    gpu, other = found.family("hw_gpu_"), found.family("hw_procs_")
    with_gpu = set(gpu.hosts) if gpu is not None else set()
    with_other = set(other.hosts) if other is not None else set()
    known = with_gpu | with_other
    for host in stack.context.hosts:
        log = [one for one in stack.logs.of("plugin-skipped", host) if "tb_" not in one.plugin]
        lacks = "hw_gpu_*" if host not in with_gpu else "hw_procs_*"
        half = host in known and (host in with_gpu) != (host in with_other)
        silent = host not in known and _scraped(stack, host)
        if not (half or silent or log):
            continue
        what = "hw_*" if silent else lacks
        text = f"{what} is missing on this host, whose exporter answers"
        seen = [Evidence("label values of host", text)] if half or silent else []
        yield _observation(
            "exporter-plugin-skipped",
            "plugin-skipped",
            [*seen, *_lines(log)],
            host,
            log[0].time if log else None,
            until=stack.end,
        )


def restarting(stack: Stack) -> Iterator[Observation]:
    """The watchdog starts an exporter again and again."""
    for host in dict.fromkeys(one.host for one in stack.logs.lines if one.host):
        restarts = stack.logs.of("restart", host)
        gave_up = stack.logs.of("gave-up", host)
        if not restarts and not gave_up:
            continue
        count = max((one.number or 0 for one in restarts), default=0)
        often = max(count, len(restarts)) >= _RESTARTS or bool(gave_up)
        yield _observation(
            "exporter-restarting",
            "restarting",
            _lines([*gave_up, *restarts[:1], *restarts[-1:], *stack.logs.of("port-taken", host)]),
            host,
            restarts[0].time if restarts else gave_up[0].time,
            severity=None if often else Severity.INFO,
            until=restarts[-1].time if restarts else None,
        )


def ghost_data(stack: Stack) -> Iterator[Observation]:
    """A host's metrics are repeats of old ones."""
    for mask in stack.context.masks:
        if mask.kind != GHOST or mask.host is None:
            continue
        lasted = min(mask.end, stack.end) - mask.start
        text = f"{SCRAPE} did not change for {lasted:.0f} s, nor did power"
        yield _observation(
            "ghost-data",
            "ghost-data",
            [Evidence(SCRAPE, text, lasted, mask.start)],
            mask.host,
            mask.start,
            until=min(mask.end, stack.end),
            uncertainty_s=stack.resolution_s,
            recovered=mask.end < stack.end,
        )


def bridge_gap(stack: Stack) -> Iterator[Observation]:
    """Steps went on and are missing from the metrics."""
    usual, late = stack.steps.step_time_s, stack.logs.of("too-old", "")
    log = _lines(late[:2])
    if not len(stack.steps):
        trained = stack.last_step is not None and stack.context.job.first_step is not None
        if trained and stack.end - stack.context.window.start > 2 * _FLUSH_S:
            text = f"no tb_* at all, although the log has steps up to {stack.last_step}"
            yield _observation("tb-bridge-gap", "bridge-gap", [Evidence("tb_step", text), *log])
        return
    if usual is None:
        return
    numbers, times = stack.steps.numbers, stack.steps.ended_at
    for index in np.flatnonzero((np.diff(numbers) > _BRIDGE_STEPS) & (np.diff(times) > _BRIDGE_S)):
        low, high = int(numbers[index]), int(numbers[index + 1])
        text = f"steps {low + 1} to {high - 1} are missing"
        seen = [Evidence("tb_step", text, float(high - low - 1), float(times[index]))]
        yield _observation(
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
        yield _observation(
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
    hw, ray = _ends(stack, "hw"), _ends(stack, "ray")
    if not ray:
        text = "there is no ray_node_* series at all"
        yield _observation("ray-metrics-missing", "ray-metrics", [Evidence("ray_node_*", text)])
        return
    for host in stack.context.hosts:
        if host not in hw:
            continue
        if host not in ray:
            text = "no ray_node_* of this host, although its exporter has metrics"
            seen = [Evidence("ray_node_*", text)]
            yield _observation("ray-metrics-missing", "ray-metrics", seen, host, until=stack.end)
        elif hw[host] - ray[host] > max(_SILENT_S, 2 * _refresh_s(stack)):
            text = f"ray_* ends {hw[host] - ray[host]:.0f} s before hw_* of the same host"
            seen = [Evidence(stack.answers.promql(ALIVE), text, ray[host], ray[host])]
            yield _observation(
                "ray-metrics-missing", "ray-metrics", seen, host, ray[host], until=stack.end
            )


def _refresh_s(stack: Stack) -> float:
    family = stack.context.discovery.family("ray_node_")
    return (family.resolution_s or 0.0) if family is not None else 0.0


def hosts_missing(stack: Stack) -> Iterator[Observation]:
    """Nodes of the job's list without a single sample."""
    hw, ray = _ends(stack, "hw"), _ends(stack, "ray")
    if not hw and not ray:
        return
    for host in stack.context.hosts:
        if host in hw or host in ray:
            continue
        text = "in the job's node list, and never scraped with success"
        log = stack.logs.of("scrape-failed", host)
        seen = [Evidence("label values of host", text), *_lines(log)]
        yield _observation("host-missing", "hosts-missing", seen, host, until=stack.end)
    nnodes, hosts = stack.context.discovery.nnodes, stack.context.discovery.hosts
    if nnodes and not stack.context.discovery.expected and len(hosts) < nnodes:
        text = f"{len(hosts)} hosts have series, the job has {nnodes} nodes"
        seen = [Evidence("label values of host", text)]
        yield _observation("host-missing", "hosts-missing", seen, until=stack.end)


_SYMPTOMS = (
    (gap, "samples come without a hole"),
    (exporter_down, "every exporter answered to the end"),
    (plugin_timeout, "cycles of the exporters are fast"),
    (plugin_skipped, "no exporter lacks a family"),
    (restarting, "no exporter was restarted"),
    (ghost_data, "no exporter repeats old values"),
    (bridge_gap, "the bridge has carried all steps"),
    (ray_metrics, "Ray's metrics are there"),
    (hosts_missing, "every node of the job has series"),
)


def empty(why: str, lines: Sequence[Evidence]) -> Observation:
    """The directory holds no samples."""
    seen = [Evidence("prometheus", why), *lines]
    return _observation("tsdb-empty", "empty", seen)


def wrong_job(source: str, why: str) -> Observation:
    """What is served belongs to another job."""
    return _observation("tsdb-wrong-job", "wrong-job", [Evidence(source, why)])


def coverage(stack: Stack, dead: Iterable[str] = ()) -> Coverage:
    """What the answer rests on: hosts that are seen to the end, by exporter and by Ray.

    `dead` are hosts whose silence is itself the finding.
    """
    hw, ray = _ends(stack, "hw"), _ends(stack, "ray")
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
