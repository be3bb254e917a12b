"""Host memory runs out: how it got there tells the pattern."""

from __future__ import annotations

import numpy as np

from tests.incidents.baseline import HOST_MEMORY_BYTES
from tests.incidents.job import Job, Override
from tests.incidents.kinds import Run, World, kind
from tests.incidents.kinds.hangs import accuse
from tests.incidents.timeline import IDLE
from tests.incidents.truth import Truth

_NEVER = ("rccl-hang", "heartbeat-false-positive", "checkpoint-effect", "node-death")


def _killed(job: Job, hosts: list[str], at: float, noticed_s: float) -> None:
    """The kernel ends the trainer there; the others wait until somebody notices."""
    job.hang(at, noticed_s)
    for host in hosts:
        job.overrides.append(Override(host, at, 1e12, None, phase=IDLE))
    tasks = [job.hosts.index(host) for host in hosts]
    lines = []
    for host, task in zip(hosts, tasks, strict=True):
        lines.append(f"slurmstepd: error: Detected 1 oom_kill event in StepId={job.job_id}.0.")
        lines.append(f"srun: error: {host}: task {task}: Out Of Memory")
    job.fail(137, "Training FAILED (exit=137)", *lines)


def _fill(world: World, host: str, at: float, kill: float) -> None:
    """Memory in use goes from where it is to all there is, and is free again after the kill."""
    series = world.one(host, "ray_node_mem_used")
    inside = series.within(at, kill)
    if inside.any():
        level = float(np.median(series.values[inside]))
        share = (series.times[inside] - at) / (kill - at)
        series.values[inside] += share * (HOST_MEMORY_BYTES * 0.985 - level)
    series.put(kill, 1e12, 6e10, 4e8)
    world.one(host, "hw_oom_kills_total").bump(kill, 1)
    world.one(host, "hw_gpu_user_processes").put(kill, 1e12, 0.0)


@kind("oom-host-leak")
def oom_host_leak(job: Job) -> Run:
    """Memory of one host grows from some moment on until there is no more."""
    host = job.host()
    kill = job.moment(0.75, 0.95, 20)
    at = kill - job.uniform(12, 20) * 60
    job.plan.save_first = job.plan.save_first and host not in job.writers
    if host in job.writers:
        job.plan.period = None  # a save of this host would hide the slope
    job.ray_refresh_s = 0.0
    _killed(job, [host], kill, job.uniform(30, 90))
    world = yield
    _fill(world, host, at, kill)
    return Truth("oom-host", (host,), onset=at, kill_time=kill, pattern="leak", never=_NEVER)


@kind("oom-host-spike")
def oom_host_spike(job: Job) -> Run:
    """Within a minute, and not while saving."""
    host = job.host()
    kill = job.moment(0.4, 0.8, 160)
    job.ray_refresh_s = 0.0
    _killed(job, [host], kill, job.uniform(30, 90))
    world = yield
    _fill(world, host, kill - 50, kill)
    return Truth(
        "oom-host", (host,), onset=kill - 50, kill_time=kill, pattern="spike", never=_NEVER
    )


@kind("oom-host-checkpoint")
def oom_host_checkpoint(job: Job) -> Run:
    """A save needs more than there is, on the hosts that write it."""
    job.plan.period = job.plan.period or 60
    job.plan.asynchronous = False
    job.ray_refresh_s = 0.0
    saves = [s for s in job.timeline().saves if s.step > job.plan.first_step]
    save = saves[min(1, len(saves) - 1)]
    kill = save.start + 45
    host = job.writers[0]
    _killed(job, [host], kill, job.uniform(30, 90))
    world = yield
    series = world.one(host, "ray_node_mem_used")
    inside = series.within(save.start - 5, kill)
    before = float(np.median(series.values[series.within(save.start - 120, save.start - 5)]))
    share = ((series.times[inside] - save.start + 5) / (kill - save.start + 5)).clip(0, 1)
    series.values[inside] = np.round(before + share * (HOST_MEMORY_BYTES * 0.985 - before))
    series.put(kill, 1e12, 6e10, 4e8)
    world.one(host, "hw_oom_kills_total").bump(kill, 1)
    world.one(host, "hw_gpu_user_processes").put(kill, 1e12, 0.0)
    for name, value in (("hw_io_pressure_full_pct", 55.0), ("hw_mem_dirty_bytes", 1.4e10)):
        world.one(host, name).put(save.start, kill, value, value / 10)
    world.one(host, "hw_tcp_retransmits_total").rate(save.start, kill, 1500)
    return Truth(
        "oom-host",
        (host,),
        onset=save.start - 5,
        kill_time=kill,
        pattern="checkpoint",
        never=_NEVER,
    )


@kind("oom-host-all-nodes")
def oom_host_all_nodes(job: Job) -> Run:
    """Every host at once: the input pipeline, or a recompilation."""
    kill = job.moment(0.5, 0.85, 20)
    at = kill - job.uniform(200, 400)
    job.plan.period = None
    job.ray_refresh_s = 0.0
    _killed(job, list(job.hosts), kill, job.uniform(30, 60))
    world = yield
    for host in job.hosts:
        _fill(world, host, at, kill)
    return Truth(
        "oom-host",
        tuple(job.hosts),
        onset=at,
        kill_time=kill,
        pattern="all-nodes",
        never=_NEVER,
    )


@kind("heartbeat-was-oom")
def heartbeat_was_oom(job: Job) -> Run:
    """The kernel ended the accused task; the log shows the heartbeat timeout only."""
    host = job.worker()
    kill = job.moment(0.55, 0.85, 20)
    at = kill - job.uniform(5, 9) * 60
    job.plan.period = None
    job.ray_refresh_s = 0.0
    job.heartbeat_s = 300
    job.hang(kill, 305)
    job.overrides.append(Override(host, kill, 1e12, None, phase=IDLE))
    accuse(job, [job.hosts.index(host)], kill + 305)
    world = yield
    _fill(world, host, at, kill)
    return Truth(
        "oom-host",
        (host,),
        onset=at,
        kill_time=kill,
        pattern=None,
        never=("heartbeat-false-positive", "rccl-hang"),
    )


@kind("memory-grows-unharmed")
def memory_grows_unharmed(job: Job) -> Run:
    """A cache fills to half of what there is: no fault."""
    at = job.moment(0.2, 0.4)
    world = yield
    for host in job.hosts:
        series = world.one(host, "ray_node_mem_used")
        series.shift(at, world.end, lambda s: 2e11 * (1 - np.exp(-s / 900.0)))
    return Truth("healthy", (), never=("oom-host",))
