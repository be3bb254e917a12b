"""The fabric between nodes: RDMA ports, congestion, NICs, TCP."""

from __future__ import annotations

from tests.incidents.job import Job
from tests.incidents.kinds import Run, World, keep_open, kind, slow, stuck
from tests.incidents.truth import Truth

_NEVER = ("rccl-hang", "gpu-power-outlier", "gpu-clock-drop", "straggler", "tgs-degradation")


def retransmits(
    world: World, host: str, port: str, start: float, end: float, packets_s: float
) -> None:
    """A port loses packets: they are sent again, some after a timeout."""
    for metric, rate in (
        ("hw_rdma_tx_retx_pkts_total", packets_s),
        ("hw_rdma_tx_retx_bytes_total", packets_s * 4096),
        ("hw_rdma_tx_ack_timeout_total", packets_s / 150),
    ):
        world.one(host, metric, device=port).rate(start, end, rate)


@kind("rdma-degraded")
def rdma_degraded(job: Job) -> Run:
    """One port resends all the time from some moment on; every step takes longer by a constant."""
    host, port = job.host(), job.port()
    at = job.moment(0.35, 0.65)
    slow(job, at, 1e12, job.uniform(1.12, 1.35))
    if job.chance(0.4):
        keep_open(job)
    world = yield
    retransmits(world, host, port, at, 1e12, job.uniform(400, 5000))
    return Truth("rdma-degraded", (host,), devices=((host, port),), onset=at, never=_NEVER)


@kind("rdma-recovered")
def rdma_recovered(job: Job) -> Run:
    """It lasts ten minutes and is over; throughput is back at once."""
    host, port = job.host(), job.port()
    at = job.moment(0.3, 0.5)
    until = at + job.uniform(500, 800)
    slow(job, at, until, job.uniform(1.15, 1.4))
    keep_open(job)
    world = yield
    retransmits(world, host, port, at, until, job.uniform(800, 5000))
    return Truth(
        "rdma-degraded",
        (host,),
        devices=((host, port),),
        onset=at,
        recovered=True,
        never=_NEVER,
    )


@kind("rdma-phased")
def rdma_phased(job: Job) -> Run:
    """First one node, a recovery, then another: throughput follows both."""
    first = job.host()
    second = job.host(first)
    ports = job.port(), job.port()
    at = job.moment(0.2, 0.35)
    length = job.uniform(400, 550)
    then = at + length + job.uniform(300, 420)
    windows = [(first, ports[0], at, at + length), (second, ports[1], then, then + length)]
    for _, _, start, end in windows:
        slow(job, start, end, 1.25)
    world = yield
    for host, port, start, end in windows:
        retransmits(world, host, port, start, end, 2500)
    return Truth(
        "rdma-degraded",
        (first, second),
        devices=((first, ports[0]), (second, ports[1])),
        onset=at,
        never=_NEVER,
    )


@kind("rdma-from-start")
def rdma_from_start(job: Job) -> Run:
    """The port was bad before the first step, so the job has no better time to compare with."""
    host, port = job.host(), job.port()
    at = job.plan.train_start + job.plan.compile_s
    slow(job, at, 1e12, 1.2)
    world = yield
    retransmits(world, host, port, at, 1e12, job.uniform(1000, 4000))
    return Truth("rdma-degraded", (host,), devices=((host, port),), onset=at, never=_NEVER)


@kind("rdma-port-down")
def rdma_port_down(job: Job) -> Run:
    """A port goes down; its traffic moves to the others, which takes longer."""
    host, port = job.host(), job.port()
    at = job.moment(0.35, 0.7)
    slow(job, at, 1e12, 1.14)
    world = yield
    world.one(host, "hw_rdma_port_state", device=port).put(at, 1e12, 0.0)
    for series in world.signals.of(host, "hw_rdma_", device=port):
        if series.metric != "hw_rdma_port_state":
            series.freeze(at, 1e12)
    return Truth(
        "rdma-port-down", (host,), devices=((host, port),), onset=at, never=(*_NEVER, "ghost-data")
    )


@kind("rdma-retry-exhausted")
def rdma_retry_exhausted(job: Job) -> Run:
    """Packets are lost for good: the transport gives up and the collective fails."""
    host, port = job.host(), job.port()
    at = job.moment(0.4, 0.8, 130)
    slow(job, at, at + 60, 1.6)
    stuck(job, at + 60, 6)
    task = job.hosts.index(host)
    lines = [
        f"{task}: {host}:4021:4555 [3] NCCL WARN NET/IB : Got completion from peer with status=12 "
        "opcode=0 len=0 vendor err 129",
        f"{task}: jaxlib.xla_extension.XlaRuntimeError: INTERNAL: NCCL operation ncclGroupEnd() "
        "failed: remote process exited or there was a network error",
    ]
    job.fail(1, "Training FAILED (exit=1)", *lines)
    world = yield
    retransmits(world, host, port, at, at + 70, 4000)
    done = world.one(host, "hw_rdma_req_tx_retry_excd_err_total", device=port)
    done.bump(at + 50, float(job.rng.integers(4, 40)))
    world.one(host, "hw_rdma_req_rx_cqe_err_total", device=port).bump(at + 50, 16)
    return Truth(
        "rdma-retry-exhausted",
        (host,),
        devices=((host, port),),
        onset=at,
        also_onset=(at + 50,),
        never=_NEVER,
    )


@kind("network-congestion")
def network_congestion(job: Job) -> Run:
    """The switch marks packets: congestion notices on every port of most nodes."""
    at = job.moment(0.35, 0.65)
    slow(job, at, 1e12, job.uniform(1.12, 1.3))
    hosts = job.hosts if job.chance(0.5) else job.hosts[: max(2, len(job.hosts) * 2 // 3)]
    world = yield
    for host in hosts:
        for series in world.signals.of(host, "hw_rdma_rx_cnp_pkts_total"):
            series.rate(at, 1e12, job.uniform(900, 6000))
    also = (tuple(job.hosts), ())
    return Truth("network-congestion", tuple(hosts), onset=at, also_hosts=also, never=_NEVER)


@kind("nic-errors")
def nic_errors(job: Job) -> Run:
    """An Ethernet port counts broken frames."""
    host, at = job.host(), job.moment(0.35, 0.65)
    world = yield
    way = "rx" if job.chance(0.7) else "tx"
    world.one(host, f"hw_net_{way}_errors_total", device="ens9np0").rate(at, 1e12, 6.0)
    return Truth("nic-errors", (host,), devices=((host, "ens9np0"),), onset=at, never=_NEVER)


@kind("tcp-aborts")
def tcp_aborts(job: Job) -> Run:
    """Connections of one host die without an answer."""
    host, at = job.host(), job.moment(0.35, 0.65)
    world = yield
    world.one(host, "hw_tcp_abort_on_timeout_total").rate(at, 1e12, 0.5)
    world.one(host, "hw_tcp_retransmits_total").rate(at, 1e12, 40)
    return Truth("tcp-aborts", (host,), onset=at, never=_NEVER)


@kind("rdma-completion-errors")
def rdma_completion_errors(job: Job) -> Run:
    """Completions with errors on one port, and no retransmit with them."""
    host, port, at = job.host(), job.port(), job.moment(0.35, 0.65)
    world = yield
    world.one(host, "hw_rdma_req_rx_cqe_err_total", device=port).rate(at, 1e12, 1.5)
    return Truth("rdma-degraded", (host,), devices=((host, port),), onset=at, never=_NEVER)


@kind("worst-port-first")
def worst_port_first(job: Job) -> Run:
    """Retransmits on one host, lost packets on another, TCP noise on a third."""
    host = job.host()
    other = job.host(host)
    third = job.host(host, other)
    port, at = job.port(), job.moment(0.35, 0.6)
    slow(job, at, 1e12, 1.3)
    world = yield
    retransmits(world, host, port, at, 1e12, 3000)
    world.one(host, "hw_rdma_req_tx_retry_excd_err_total", device=port).rate(at, 1e12, 0.2)
    retransmits(world, other, job.ports[0], at + 400, 1e12, 300)
    world.one(third, "hw_tcp_retransmits_total").rate(at - 500, 1e12, 60)
    return Truth(
        "rdma-retry-exhausted",
        (host,),
        devices=((host, port),),
        onset=at,
        also_hosts=((host, other),),
        never=(*_NEVER, "tcp-retransmits"),
    )
