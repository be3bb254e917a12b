"""Training itself goes wrong, on machines that are well; or a program fails on its own."""

from __future__ import annotations

import numpy as np

from tests.incidents.job import MOE, Job
from tests.incidents.kinds import Run, World, keep_open, kind, slow
from tests.incidents.truth import Truth

_NEVER = ("rccl-hang", "straggler", "gpu-power-outlier", "rdma-degraded")


def _first(world: World, at: float) -> float:
    """Time of the first event since `at`."""
    times = world.training.times
    return float(times[times >= at][0])


def _clip(world: World) -> None:
    raw = world.training["learning_raw_grad_norm"]
    world.training.scalars["learning_grad_norm"] = np.minimum(raw, 1.0)


@kind("gradient-explosion")
def gradient_explosion(job: Job) -> Run:
    """The norm multiplies with every step, the loss follows and ends as NaN."""
    at = job.moment(0.5, 0.8)
    if job.chance(0.4):
        keep_open(job)
    world = yield
    since = world.training.after(at)
    factor = job.uniform(1.6, 2.2)
    raw = world.training["learning_raw_grad_norm"]
    raw *= factor ** np.minimum(since, 40)
    loss = world.training["learning_loss"]
    late = np.clip(since - 3, 0, None)
    loss += np.minimum(0.15 * late**1.5, 60)
    loss[since > 14] = np.nan
    raw[since > 14] = np.nan
    _clip(world)
    return Truth(
        "gradient-explosion",
        (),
        onset=_first(world, at),
        also_hosts=((job.head,),),
        resolution_s=job.plan.step_s,
        never=_NEVER,
    )


@kind("loss-divergence")
def loss_divergence(job: Job) -> Run:
    """The loss turns and climbs, while gradients stay as they were."""
    at = job.moment(0.4, 0.65)
    world = yield
    since = world.training.after(at)
    world.training["learning_loss"][:] += 0.12 * since
    return Truth(
        "loss-divergence",
        (),
        onset=_first(world, at),
        also_hosts=((job.head,),),
        resolution_s=job.plan.step_s,
        never=_NEVER,
    )


@kind("loss-nan")
def loss_nan(job: Job) -> Run:
    """From one step to the next the loss is NaN."""
    at = job.moment(0.4, 0.7)
    world = yield
    world.training["learning_loss"][world.training.after(at) > 0] = np.nan
    return Truth(
        "loss-divergence",
        (),
        onset=_first(world, at),
        also_hosts=((job.head,),),
        resolution_s=job.plan.step_s,
        never=_NEVER,
    )


@kind("moe-imbalance")
def moe_imbalance(job: Job) -> Run:
    """Routing collapses on few experts: their GPUs work, the others wait, throughput falls."""
    job.trained = sorted(MOE)[int(job.rng.integers(len(MOE)))]
    at = job.moment(0.35, 0.65)
    slow(job, at + job.plan.step_s, 1e12, job.uniform(1.2, 1.4))
    world = yield
    since = world.training.after(at)
    balance = world.training["learning_moe_lb_loss"]
    balance *= 1 + np.minimum(since, 6) * job.uniform(0.5, 1.0)
    for series in world.signals.of(metric="ray_node_gpus_utilization"):
        if int(series.labels["GpuIndex"]) % 3:
            busy = series.within(at + job.plan.step_s, world.end) & (series.values > 90)
            series.values[busy] = np.round(series.values[busy] * 0.8)
    return Truth(
        "moe-imbalance",
        (),
        onset=_first(world, at),
        also_hosts=((job.head,),),
        resolution_s=job.plan.step_s,
        never=(*_NEVER, "gpu-underutilised", "tgs-degradation"),
    )


@kind("lr-anomaly")
def lr_anomaly(job: Job) -> Run:
    """The learning rate jumps thirty-fold; loss and gradients follow some steps later."""
    at = job.moment(0.4, 0.65)
    world = yield
    since = world.training.after(at)
    world.training["learning_current_learning_rate"][since > 0] *= job.uniform(20, 60)
    late = np.clip(since - 5, 0, None)
    world.training["learning_loss"][:] += np.minimum(0.1 * late, 6)
    world.training["learning_raw_grad_norm"][:] *= 1 + np.minimum(0.1 * late, 4)
    _clip(world)
    return Truth(
        "lr-anomaly",
        (),
        onset=_first(world, at),
        also_hosts=((job.head,),),
        resolution_s=job.plan.step_s,
        never=_NEVER,
    )


@kind("tgs-degradation")
def tgs_degradation(job: Job) -> Run:
    """Throughput falls by a fifth and nothing that is measured says why."""
    at = job.moment(0.35, 0.6)
    slow(job, at, 1e12, job.uniform(1.2, 1.35))
    yield
    return Truth(
        "tgs-degradation",
        (),
        onset=at,
        also=("unknown",),
        resolution_s=job.plan.step_s * 1.4,
        never=(*_NEVER, "network-congestion", "thermal-throttling", "healthy"),
    )


@kind("software-crash")
def software_crash(job: Job) -> Run:
    """A Python exception, while every instrument is well."""
    at = job.moment(0.4, 0.9)
    job.plan.train_end = at
    job.ended_at = None
    job.total_steps = 5000
    lines = [
        "Traceback (most recent call last):",
        '  File "/workspace/maxtext/src/MaxText/train.py", line 611, in train_loop',
        "    batch = next(data_iterator)",
        "ValueError: could not broadcast input array from shape (8191,) into shape (8192,)",
    ]
    job.fail(1, "Training FAILED (exit=1)", *(f"0: {line}" for line in lines))
    yield
    return Truth(
        "python-exception",
        None,
        also=("data-error",),
        never=(*_NEVER, "healthy", "heartbeat-false-positive"),
    )


@kind("cancelled")
def cancelled(job: Job) -> Run:
    """A well job that its user stopped."""
    job.plan.train_end = job.moment(0.6, 0.9)
    job.total_steps = 5000
    job.cancel()
    yield
    return Truth("healthy", (), also=("cancelled",), never=_NEVER)


@kind("lr-zero")
def lr_zero(job: Job) -> Run:
    """The learning rate falls to nothing in mid-run, against its schedule."""
    at = job.moment(0.4, 0.65)
    world = yield
    since = world.training.after(at)
    world.training["learning_current_learning_rate"][since > 0] = 0.0
    return Truth(
        "lr-anomaly",
        (),
        onset=_first(world, at),
        also_hosts=((job.head,),),
        resolution_s=job.plan.step_s,
        never=_NEVER,
    )


@kind("tgs-gradual")
def tgs_gradual(job: Job) -> Run:
    """Steps get longer bit by bit; nothing that is measured says why."""
    at = job.moment(0.2, 0.35)
    for number in range(12):
        slow(job, at + number * 90, 1e12, 1.03)
    yield
    return Truth("tgs-degradation", (), onset=None, also=("unknown",), never=(*_NEVER, "healthy"))
