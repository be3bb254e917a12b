"""Samples that never came: of all hosts for a while, of Ray, of single hosts, of training."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from raydiag.model import Evidence, Observation, Severity
from raydiag.playbooks.observability.stack import Stack, log_evidence, observation
from raydiag.timeline.answers import ALIVE, EXPORTER, RAY

_GAP_S = 60.0
_MOSTLY_UP = 0.5  # of its scrapes a host answered: others say what it lacks
_SILENT_S = 120.0  # one source of a host silent for so long while the other goes on
_BRIDGE_STEPS, _BRIDGE_S = 10, 300.0  # steps that are missing, over so long a time
_FLUSH_S = 600.0  # the bridge may lag behind so much: writer and poll take their time


def gap(stack: Stack) -> Iterator[Observation]:
    """No host gave any sample for a while: Prometheus itself stood still."""
    stamps = []
    for source in (EXPORTER, RAY):
        stamps += [newest for _, newest in stack.answers.sample_times(source).values()]
    if not stamps:
        return
    limit = max(_GAP_S, 3 * stack.resolution_s, 2.5 * stack.answers.step_s(ALIVE))
    times = np.unique(np.concatenate(stamps)).tolist()
    for before, after in pairwise(times):
        length = after - before
        if length > limit:
            text = f"no sample of any host for {length:.0f} s"
            yield _gap(stack, text, length, before, after)
    missing = stack.end - times[-1]
    if missing > limit:
        text = f"the last sample of any host is {missing:.0f} s older than the end of the window"
        yield _gap(stack, text, missing, times[-1])


def _gap(
    stack: Stack, text: str, length: float, start: float, end: float | None = None
) -> Observation:
    """`end` is None for a gap that lasts to the end of the window."""
    log = [*stack.logs.of("restart", ""), *stack.logs.of("damaged", "")]
    return observation(
        "gap",
        [stack.evidence_of_samples(text, length, start), *log_evidence(log)],
        onset=start,
        until=stack.end if end is None else end,
        uncertainty_s=0.0 if end is None else stack.resolution_s,
        recovered=end is not None,
    )


def bridge_gap(stack: Stack) -> Iterator[Observation]:
    """Steps went on and are missing from the metrics."""
    if not len(stack.steps):
        yield from _no_steps(stack)
        return
    usual = stack.steps.step_time_s
    if usual is None:
        return
    numbers, times = stack.steps.numbers, stack.steps.ended_at
    for index in np.flatnonzero((np.diff(numbers) > _BRIDGE_STEPS) & (np.diff(times) > _BRIDGE_S)):
        first, last = int(numbers[index]) + 1, int(numbers[index + 1]) - 1
        text, count = f"steps {first} to {last} are missing", last - first + 1
        yield _missing_steps(stack, text, count, float(times[index]), float(times[index + 1]))
    newest, newest_at = int(numbers[-1]), float(times[-1])
    behind = 0 if stack.last_step is None else stack.last_step - newest
    is_late = behind * usual > _FLUSH_S and behind > _BRIDGE_STEPS
    if is_late and stack.end - newest_at > _FLUSH_S:
        text = f"ends at step {newest}, the log at {stack.last_step}"
        yield _missing_steps(stack, text, behind, newest_at)


def _no_steps(stack: Stack) -> Iterator[Observation]:
    trained = stack.last_step is not None and stack.context.job.first_step is not None
    if trained and stack.end - stack.context.window.start > 2 * _FLUSH_S:
        text = f"no tb_* at all, although the log has steps up to {stack.last_step}"
        evidence = [Evidence("tb_step", text), *_rejected_samples(stack)]
        yield observation("bridge-gap", evidence)


def _missing_steps(
    stack: Stack, text: str, count: int, start: float, end: float | None = None
) -> Observation:
    """`end` is None for steps that are missing to the end of the window."""
    return observation(
        "bridge-gap",
        [Evidence("tb_step", text, float(count), start), *_rejected_samples(stack)],
        onset=start,
        severity=Severity.WARNING,
        until=stack.end if end is None else end,
        recovered=end is not None,
    )


def _rejected_samples(stack: Stack) -> list[Evidence]:
    """What Prometheus logs of samples that came too late."""
    return log_evidence(stack.logs.of("too-old", "")[:2])


def ray_metrics(stack: Stack) -> Iterator[Observation]:
    """Ray's own metrics are missing, or end before those of the same node's exporter."""
    if not stack.is_ray:
        return
    hw, ray = stack.newest_samples(EXPORTER), stack.newest_samples(RAY)
    if not ray:
        text = "there is no ray_node_* series at all"
        yield observation("ray-metrics", [Evidence("ray_node_*", text)])
        return
    limit = max(_SILENT_S, 2 * _refresh_s(stack))
    for host in stack.hosts:
        if host not in hw or host in stack.nameless:
            continue
        last = ray.get(host)
        if last is None:
            text = "no ray_node_* of this host, although its exporter has metrics"
            evidence = Evidence("ray_node_*", text)
        elif hw[host] - last > limit:
            text = f"ray_* ends {hw[host] - last:.0f} s before hw_* of the same host"
            evidence = stack.evidence_of_samples(text, last, last)
        else:
            continue
        yield observation("ray-metrics", [evidence], host, last, until=stack.end)


def _refresh_s(stack: Stack) -> float:
    family = stack.context.discovery.family("ray_node_")
    return (family.resolution_s or 0.0) if family is not None else 0.0


def hosts_missing(stack: Stack) -> Iterator[Observation]:
    """Nodes of the job's list without a single sample."""
    discovery = stack.context.discovery
    sampled = {*stack.newest_samples(EXPORTER), *stack.newest_samples(RAY)}
    if not sampled:
        return
    share_up = {target.host: target.share_up for target in discovery.targets}
    sampled |= {host for host, share in share_up.items() if share > _MOSTLY_UP}
    for host in stack.hosts:
        if host not in sampled:
            text = "in the job's node list, and never scraped successfully"
            if share_up.get(host):
                text = f"answered {100 * share_up[host]:.2g} % of its scrapes, and has no series"
            log = log_evidence(stack.logs.of("scrape-failed", host))
            evidence = [Evidence("label values of host", text), *log]
            yield observation("hosts-missing", evidence, host, until=stack.end)
    nodes, hosts = discovery.nnodes, len(discovery.hosts)
    if nodes and not discovery.expected and hosts < nodes:
        text = f"{hosts} hosts have series, the job has {nodes} nodes"
        evidence = [Evidence("label values of host", text)]
        yield observation("hosts-missing", evidence, until=stack.end)
