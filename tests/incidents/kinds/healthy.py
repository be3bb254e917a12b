"""Well jobs, with all that tempts: noise, old counters, saves, restores, missing families."""

from __future__ import annotations

from tests.incidents.baseline import lose_scrapes
from tests.incidents.job import Job
from tests.incidents.kinds import Run, keep_open, kind, slow
from tests.incidents.truth import Truth

_WELL = Truth("healthy", ())


@kind("healthy")
def healthy(job: Job) -> Run:
    """Any settings; live or finished, fresh or restored."""
    if job.chance(0.4):
        keep_open(job)
    world = yield
    lose_scrapes(world.signals, 0.002)
    return _WELL


@kind("healthy-tcp-noise")
def healthy_tcp_noise(job: Job) -> Run:
    """Thousands of TCP retransmits a second outside of saves; the fabric is clean."""
    if job.chance(0.4):
        keep_open(job)
    noisy = [job.host() for _ in range(2)]
    at = job.moment(0.3, 0.7)
    world = yield
    for host in noisy:
        series = world.one(host, "hw_tcp_retransmits_total")
        series.rate(at, at + job.uniform(60, 900), job.uniform(20, 2500))
    return _WELL


@kind("healthy-old-counters")
def healthy_old_counters(job: Job) -> Run:
    """Counters of a machine that has been up for a year: 90 million and still."""
    host = job.host()
    world = yield
    for port in job.ports:
        world.one(host, "hw_rdma_tx_retx_pkts_total", device=port).values += 90_000_000
        world.one(host, "hw_rdma_tx_ack_timeout_total", device=port).values += 412_000
    world.one(host, "hw_oom_kills_total").values += 7
    world.one(host, "hw_dmesg_gpu_errors_total").values += 31
    world.one(host, "hw_tcp_abort_on_timeout_total").values += 5000
    world.gpu(host, 0, "hw_gpu_ras_umc_ce_total").values += 912
    world.gpu(host, 0, "hw_gpu_pcie_correctable_total").values += 40_000
    return _WELL


@kind("healthy-missing-families")
def healthy_missing_families(job: Job) -> Run:
    """Another NIC's driver has no counters of retransmits, and PSI is off."""
    job.nic = "mlx5_{}"
    world = yield
    for metric in ("hw_rdma_tx_retx", "hw_rdma_tx_ack", "hw_rdma_req_", "hw_rdma_ccl"):
        world.signals.remove(metric=metric)
    if job.chance(0.5):
        world.signals.remove(metric="hw_io_pressure")
    return _WELL


@kind("healthy-restored")
def healthy_restored(job: Job) -> Run:
    """Restored from a checkpoint; saves go on."""
    job.plan.period = job.plan.period or 60
    job.plan.first_step = job.plan.period * 7 + 1
    job.restored = True
    yield
    return _WELL


@kind("healthy-slow-ray")
def healthy_slow_ray(job: Job) -> Run:
    """Ray reports every five minutes, however often it is scraped."""
    job.ray_refresh_s = 300.0
    if job.chance(0.5):
        keep_open(job)
    yield
    return _WELL


@kind("healthy-step-hiccup")
def healthy_step_hiccup(job: Job) -> Run:
    """One step took three times as long and all others as always."""
    at = job.moment(0.3, 0.7)
    slow(job, at, at + job.plan.step_s * 2, 3.0)
    yield
    return _WELL


@kind("healthy-reloaded")
def healthy_reloaded(job: Job) -> Run:
    """Before the first step a driver was reloaded: its counters begin again."""
    host = job.host()
    at = job.plan.train_start - 60
    world = yield
    for series in world.signals.of(host, "hw_rdma_"):
        if series.metric.endswith("_total"):
            series.restart(at)
    return _WELL


@kind("healthy-young")
def healthy_young(job: Job) -> Run:
    """A young live job: a quarter of an hour of training, one save or none."""
    job.plan.train_end = job.plan.train_start + job.plan.compile_s + job.uniform(600, 900)
    keep_open(job)
    yield
    return _WELL
