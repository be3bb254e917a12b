"""Machines around the accelerators: storage, processors, the coordinator."""

from __future__ import annotations

from tests.incidents.job import Job
from tests.incidents.kinds import Run, kind, slow
from tests.incidents.truth import Truth

_NEVER = ("rccl-hang", "straggler", "checkpoint-effect", "rdma-degraded")


@kind("storage-stall")
def storage_stall(job: Job) -> Run:
    """Storage of one host answers slowly, between two saves: everybody waits for its input."""
    host, at = job.host(), job.moment(0.35, 0.6, 200)
    until = at + job.uniform(300, 600)
    slow(job, at, until, job.uniform(1.5, 2.5))
    world = yield
    for metric, value, noise in (
        ("hw_io_pressure_full_pct", 72.0, 6.0),
        ("hw_io_pressure_some_pct", 80.0, 6.0),
        ("hw_procs_blocked", 26.0, 3.0),
        ("hw_mem_dirty_bytes", 1.2e10, 2e9),
        ("hw_mem_writeback_bytes", 3e9, 5e8),
    ):
        world.one(host, metric).put(at, until, value, noise)
    return Truth("storage-stall", (host,), onset=at, recovered=True, never=_NEVER)


@kind("cpu-contention")
def cpu_contention(job: Job) -> Run:
    """Somebody else computes on the host of a trainer."""
    host, at = job.host(), job.moment(0.35, 0.65)
    slow(job, at, 1e12, job.uniform(1.15, 1.35))
    world = yield
    world.one(host, "hw_procs_running").put(at, world.end, 310, 12)
    world.one(host, "hw_context_switches_total").rate(at, world.end, 2.2e6)
    world.one(host, "ray_node_cpu_utilization").put(at, world.end, 97.5, 0.6)
    return Truth("cpu-contention", (host,), onset=at, also=("noisy-neighbour",), never=_NEVER)


@kind("coordinator-overload")
def coordinator_overload(job: Job) -> Run:
    """The head cannot accept connections as fast as they come."""
    at = job.moment(0.35, 0.65)
    world = yield
    world.one(job.head, "hw_tcp_listen_overflows_total").rate(at, 1e12, 4)
    world.one(job.head, "hw_tcp_listen_drops_total").rate(at, 1e12, 4)
    return Truth("coordinator-overload", (job.head,), onset=at, never=_NEVER)


@kind("checkpoint-effect")
def checkpoint_effect(job: Job) -> Run:
    """One save takes ten times as long as the others; nothing is broken."""
    job.plan.period = job.plan.period or 60
    job.plan.asynchronous = False
    job.plan.save_s = 45
    saves = [s for s in job.timeline().saves if s.step > job.plan.first_step]
    long = saves[len(saves) // 2]
    job.plan.save_lengths_s[long.step] = 420.0
    yield
    return Truth(
        "checkpoint-effect",
        None,
        also=("healthy",),
        onset=None,
        never=("rccl-hang", "storage-stall", "tcp-retransmits", "straggler"),
    )
