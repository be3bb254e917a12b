"""Playbook: are the GPUs healthy? Temperature, power, clock, memory, utilisation, error counters.

Power, clock and utilisation follow what the job does, so they are judged in steady training only,
against the other GPUs of the node or the job, and count as symptoms.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydiag.playbooks.gpu_health.clock import judge_clock, slow_hosts
from raydiag.playbooks.gpu_health.power_spread import judge_power_spread, spreads, uneven_hosts
from raydiag.playbooks.gpu_health.single_gpus import gpu_by_gpu
from raydiag.playbooks.gpu_health.summary import summary_lines
from raydiag.playbooks.gpu_health.temperature import judge_temperature, warm_hosts
from raydiag.playbooks.gpu_health.usage import full_hosts, judge_memory, judge_utilisation
from raydiag.playbooks.registry import playbook
from raydiag.playbooks.report_writer import ReportWriter
from raydiag.timeline.queries import POWER, TEMPERATURE, VRAM_USED
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.tsdb.series import Query

_WHOLE_HOST = -1  # in place of a GPU's number


def single_gpus(timeline: RunTimeline) -> Iterator[Query]:
    """GPU by GPU: temperature, clock, memory and power of the hosts with an odd one."""
    warm = warm_hosts(timeline)
    slow = [*warm, *slow_hosts(timeline)]
    full, uneven = full_hosts(timeline), uneven_hosts(timeline)
    yield from gpu_by_gpu(timeline, "gpu-temperature-fine", f"{TEMPERATURE}{{%s}}", warm)
    yield from gpu_by_gpu(timeline, "gpu-clock-fine", 'hw_gpu_clock_mhz{type="sclk", %s}', slow)
    yield from gpu_by_gpu(timeline, "gpu-vram-fine", f"{VRAM_USED}{{%s}}", full)
    yield from gpu_by_gpu(timeline, "gpu-power-fine", f"{POWER}{{%s}}", uneven)


@playbook("gpu-health", single_gpus)
def gpu_health(timeline: RunTimeline, report: ReportWriter) -> str:
    """Every threshold is exclusive: exactly 90 degrees is healthy."""
    slow_clocks = judge_clock(timeline, report)
    judge_temperature(timeline, report, slow_clocks)
    judge_power_spread(timeline, report)
    judge_memory(timeline, report)
    judge_utilisation(timeline, report)
    names = _anomalous(report)
    widest = spreads(timeline.steady("gpu-power"))
    report.summary = tuple(summary_lines(timeline, names, widest))
    return f"Anomalous: {', '.join(names)}." if names else "No GPU stands out."


def _anomalous(report: ReportWriter) -> list[str]:
    """Hosts and GPUs with a finding, as "host" or "host:gpu", in order."""
    places: set[tuple[str, int]] = set()
    for observation in report.observations:
        host, gpu = observation.finding.host, observation.finding.gpu
        if host:
            places.add((host, _WHOLE_HOST if gpu is None else gpu))
    names = []
    for host, gpu in sorted(places):
        names.append(host if gpu == _WHOLE_HOST else f"{host}:{gpu}")
    return names
