"""Training stands still: collectives that wait for ever, and who is to blame."""

from __future__ import annotations

from tests.incidents.job import Job, Override
from tests.incidents.jobdir import clock
from tests.incidents.kinds import Run, kind, slow, stuck
from tests.incidents.kinds.network import retransmits
from tests.incidents.signals import Signals
from tests.incidents.timeline import IDLE, SAVE, TRAIN
from tests.incidents.truth import Truth

_NOT_HUNG_BY = ("straggler", "node-death", "rdma-degraded", "heartbeat-false-positive")


@kind("rccl-hang")
def rccl_hang(job: Job) -> Run:
    """All ranks in one collective, every GPU busy at waiting power, network silent."""
    stuck(job, job.moment(0.35, 0.8))
    world = yield
    return Truth("rccl-hang", None, onset=world.last_step, never=_NOT_HUNG_BY)


@kind("rccl-hang-partial")
def rccl_hang_partial(job: Job) -> Run:
    """Only some GPUs of each node spin; the others wait in the driver at no utilisation."""
    at = job.moment(0.35, 0.8)
    stuck(job, at)
    world = yield
    spinning = {str(job.gpu()) for _ in range(2)}
    for series in world.signals.of(metric="ray_node_gpus_utilization"):
        if series.labels["GpuIndex"] not in spinning:
            series.put(at, world.end, 0.0)
    return Truth("rccl-hang", None, onset=world.last_step, never=_NOT_HUNG_BY)


@kind("hang-after-save")
def hang_after_save(job: Job) -> Run:
    """A hang shortly after a save: the save's retransmits are no trigger."""
    job.plan.period = job.plan.period or 60
    job.plan.asynchronous = False
    saves = [s for s in job.timeline().saves if s.step > job.plan.first_step]
    save = saves[min(1, len(saves) - 1)] if saves else None
    stuck(job, save.end + job.uniform(20, 45) if save else job.moment())
    world = yield
    return Truth("rccl-hang", None, onset=world.last_step, never=_NOT_HUNG_BY)


@kind("hang-before-first-step")
def hang_before_first_step(job: Job) -> Run:
    """The first collective never ends; on one node other GPUs are stuck than everywhere else."""
    job.plan.compile_s = 120
    at = job.plan.train_start + 100
    stuck(job, at)
    job.early_lines.append("0: Synchronizing hosts before training loop")
    odd = job.host()
    world = yield
    usual, here = {"1", "3"}, {"0", "3"}
    for series in world.signals.of(metric="ray_node_gpus_utilization"):
        if series.labels["GpuIndex"] not in (here if series.host == odd else usual):
            series.put(at, world.end, 0.0)
    # With no step there is no training power to compare with.
    return Truth("rccl-hang", None, also=("hang",), also_hosts=((odd,),), never=_NOT_HUNG_BY)


@kind("hang-after-rdma")
def hang_after_rdma(job: Job) -> Run:
    """One port resends for a minute, then everything waits: the port is the trigger."""
    at = job.moment(0.4, 0.75, 150)
    host, port = job.host(), job.port()
    stuck(job, at + 75)
    slow(job, at, at + 75, 1.4)
    world = yield
    retransmits(world, host, port, at, at + 90, job.uniform(1500, 6000))
    return Truth("rdma-degraded", (host,), devices=((host, port),), onset=at)


@kind("hang-after-port-down")
def hang_after_port_down(job: Job) -> Run:
    """A port goes down and the ring that ran over it never ends."""
    at = job.moment(0.4, 0.75)
    host, port = job.host(), job.port()
    stuck(job, at + 2)
    world = yield
    world.one(host, "hw_rdma_port_state", device=port).put(at, world.end + 60, 0.0)
    return Truth("rdma-port-down", (host,), devices=((host, port),), onset=at)


@kind("straggler-stall")
def straggler_stall(job: Job) -> Run:
    """Everybody waits for one node that goes on computing at full power."""
    at = job.moment(0.4, 0.75)
    host = job.host()
    stuck(job, at)
    job.overrides.append(Override(host, at, 1e12, None, phase=TRAIN, load=0.95))
    world = yield
    for series in world.signals.of(host, "hw_rdma_", source="node_hw"):
        if series.metric.endswith(("_bytes_total", "_tx_pkts_total", "_rx_pkts_total")):
            series.freeze(at, world.end + 60)
    return Truth("straggler", (host,), onset=world.last_step, also_onset=(at,))


@kind("host-side-stall")
def host_side_stall(job: Job) -> Run:
    """One node sits in its input pipeline: its GPUs idle while all others wait for them."""
    at = job.moment(0.4, 0.75)
    host = job.host()
    stuck(job, at)
    job.overrides.append(Override(host, at, 1e12, None, phase=SAVE))
    job.save_power = 0.01
    job.save_util = 1.0
    world = yield
    return Truth("straggler", (host,), onset=world.last_step, also_onset=(at,))


@kind("log-stops")
def log_stops(job: Job) -> Run:
    """Step lines stop, as of a buffered log, while GPUs draw full power and steps go on."""
    job.ending, job.total_steps = "live", 5000
    job.log_until = job.moment(0.4, 0.6)
    yield
    return Truth("healthy", (), also=("unknown",), never=("rccl-hang", "hang", "straggler"))


@kind("node-death")
def node_death(job: Job) -> Run:
    """One node is gone from one moment to the next; the others wait for it."""
    at = job.moment(0.35, 0.8)
    host = job.worker()
    stuck(job, at + 1, job.uniform(8, 30))
    if job.ending != "live" and job.chance(0.5):
        task = job.hosts.index(host)
        line = f"srun: error: {host}: task {task}: Exited with exit code 1"
        job.fail(1, "Training FAILED (exit=1)", line, f"NODE_EXIT host={host} exit=1")
    world = yield
    missed = _vanish(world.signals, host, at)
    return Truth("node-death", (host,), onset=missed, also_onset=(at,), never=("exporter-down",))


@kind("gpu-fell-off")
def gpu_fell_off(job: Job) -> Run:
    """A node dies after its driver has complained for a minute."""
    at = job.moment(0.35, 0.8)
    host = job.worker()
    stuck(job, at + 1, job.uniform(8, 30))
    world = yield
    world.one(host, "hw_dmesg_gpu_errors_total").bump(at - 70, 12)
    missed = _vanish(world.signals, host, at)
    onsets = (at, missed)
    return Truth(
        "node-death", (host,), onset=at - 70, also_onset=onsets, also=("gpu-driver-fault",)
    )


def _vanish(signals: Signals, host: str, at: float) -> float:
    """Nothing of this host is scraped any more; returns when it was first missed."""
    missed = []
    for series in signals.of(host):
        if series.source == "up":
            series.put(at, 1e12, 0.0)
            missed += [float(series.times[series.times >= at][0])]
        elif series.source != "tb":
            series.drop(at, 1e12)
    return min(missed)


# ---- ended by the coordination service


def accuse(job: Job, tasks: list[int], at: float) -> None:
    """The lines of a heartbeat timeout, on every task."""
    stamp = clock(at)
    job.lines.append(
        f"0: E{stamp} 4021 coordination_service.cc:1241] UNAVAILABLE: The following tasks are "
        "unhealthy (stopped sending heartbeats):"
    )
    job.lines += [f"0: /job:jax_worker/replica:0/task:{task}" for task in tasks]
    job.lines.append(
        "0: The tasks have crashed. Check the task logs for an earlier error to debug further."
    )
    for task in range(len(job.hosts)):
        job.lines.append(
            f"{task}: F{stamp} 4100 client.h:80] Terminating process because the JAX distributed "
            "service detected fatal errors. This most likely indicates that another task died"
        )
    job.fail(134, "Training FAILED (exit=134)")


def _heartbeat(job: Job, at: float) -> tuple[list[int], tuple[str, ...]]:
    tasks = [int(job.rng.integers(1, len(job.hosts)))]
    accuse(job, tasks, at)
    job.ended_at = at
    job.total_steps = 5000
    job.plan.train_end = at
    return tasks, tuple(job.hosts[task] for task in tasks)


@kind("heartbeat-false-positive")
def heartbeat_false_positive(job: Job) -> Run:
    """A task that trained to the end is declared dead; the killing is the failure."""
    job.heartbeat_s = min(job.heartbeat_s, 900)
    at = job.moment(0.6, 0.95)
    job.plan.stop_at = at
    _, accused = _heartbeat(job, at)
    yield
    return Truth(
        "heartbeat-false-positive",
        accused,
        also_hosts=((), (job.head,)),
        onset=None,
        never=("rccl-hang", "node-death"),
    )


@kind("heartbeat-during-save")
def heartbeat_during_save(job: Job) -> Run:
    """As above, while the accused wrote a checkpoint: heavy I/O, no death."""
    job.heartbeat_s = 300
    job.plan.period = job.plan.period or 60
    job.plan.asynchronous = False
    saves = [s for s in job.timeline().saves if s.start > job.plan.train_start + 1000]
    at = saves[0].start + 70 if saves else job.moment(0.6, 0.9)
    accuse(job, [0], at)
    job.ended_at, job.total_steps = at, 5000
    job.plan.train_end = at
    yield
    return Truth(
        "heartbeat-false-positive",
        (job.head,),
        also_hosts=((),),
        never=("rccl-hang", "storage-stall", "node-death"),
    )


@kind("heartbeat-was-hang")
def heartbeat_was_hang(job: Job) -> Run:
    """A deadlock, and half an hour later the heartbeats of a stuck task stop too."""
    at = job.moment(0.35, 0.7)
    job.hang(at, job.uniform(32, 45) * 60)
    task = int(job.rng.integers(1, len(job.hosts)))
    assert job.ended_at is not None
    accuse(job, [task], job.ended_at)
    world = yield
    return Truth("rccl-hang", None, onset=world.last_step, never=("heartbeat-false-positive",))


@kind("heartbeat-was-node-death")
def heartbeat_was_node_death(job: Job) -> Run:
    """The accused really died."""
    at = job.moment(0.4, 0.75)
    host = job.worker()
    job.heartbeat_s = 300
    job.hang(at + 1, 310)
    accuse(job, [job.hosts.index(host)], at + 311)
    world = yield
    missed = _vanish(world.signals, host, at)
    return Truth(
        "node-death",
        (host,),
        onset=missed,
        also_onset=(at,),
        never=("heartbeat-false-positive", "rccl-hang"),
    )


@kind("process-died")
def process_died(job: Job) -> Run:
    """The trainer of one node is gone, the node is well: its GPUs fall idle, the others wait."""
    at = job.moment(0.4, 0.75)
    host = job.worker()
    stuck(job, at + 1, job.uniform(10, 25))
    job.overrides.append(Override(host, at, 1e12, None, phase=IDLE))
    task = job.hosts.index(host)
    job.fail(
        1,
        "Training FAILED (exit=1)",
        f"{task}: [Node {task}] Actor failed: Training subprocess killed by SIGSEGV (signal 11)",
    )
    yield
    return Truth(
        "signal-kill",
        (host,),
        onset=None,
        also=("actor-fail",),
        also_hosts=((),),
        never=("rccl-hang", "node-death", "heartbeat-false-positive"),
    )


@kind("heartbeat-tcp-burst")
def heartbeat_tcp_burst(job: Job) -> Run:
    """A well task is declared dead after a burst of TCP retransmits on its host."""
    job.heartbeat_s = 300
    at = job.moment(0.65, 0.95)
    job.plan.stop_at = at
    _, accused = _heartbeat(job, at)
    world = yield
    world.one(accused[0], "hw_tcp_retransmits_total").rate(at - 330, at - 240, 900)
    return Truth(
        "heartbeat-false-positive",
        accused,
        also_hosts=((), (job.head,)),
        never=("rccl-hang", "node-death", "tcp-retransmits"),
    )


@kind("heartbeat-was-exit")
def heartbeat_was_exit(job: Job) -> Run:
    """The accused process was gone without a word; its machine is well."""
    at = job.moment(0.4, 0.75)
    host = job.worker()
    job.heartbeat_s = 300
    job.hang(at + 1, 305)
    job.overrides.append(Override(host, at, 1e12, None, phase=IDLE))
    accuse(job, [job.hosts.index(host)], at + 306)
    world = yield
    world.one(host, "hw_gpu_user_processes").put(at, 1e12, 0.0)
    return Truth(
        "heartbeat-timeout",
        (host,),
        onset=None,
        also=("unknown", "unknown-death", "actor-fail", "signal-kill"),
        also_hosts=((),),
        never=("heartbeat-false-positive", "rccl-hang", "node-death", "oom-host"),
    )


@kind("hang-without-gpu-series")
def hang_without_gpu_series(job: Job) -> Run:
    """Steps stop and nothing about GPUs was ever recorded: no busy-wait can be shown."""
    stuck(job, job.moment(0.35, 0.7))
    world = yield
    world.signals.remove(metric="hw_gpu_")
    world.signals.remove(metric="ray_node_gpus")
    return Truth(
        "hang",
        None,
        onset=world.last_step,
        also=("rccl-hang", "unknown"),
        never=("healthy", "straggler", "node-death"),
    )
