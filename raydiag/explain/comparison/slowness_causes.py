"""What may make one of two jobs slower: every source is looked at, also after a hit.

TCP retransmits never are a cause by themselves: TCP carries storage and coordination. Power, clock
and utilisation are symptoms. What both jobs have is no difference.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydiag import catalog
from raydiag.explain.comparison import leak
from raydiag.explain.comparison.checklist import CLOCK, CNP, HEAT, RETX, TCP, TIMEOUTS
from raydiag.explain.comparison.metrics import ComparedMetrics, odd_hosts
from raydiag.explain.comparison.pair import CPU, GPU, NETWORK, OWN, STORAGE, Pair, SlownessCause
from raydiag.explain.comparison.side import Side
from raydiag.model import Confidence, Evidence, Finding, Severity
from raydiag.playbooks.observations import RuledOut
from raydiag.timeline.queries import IO_FULL, PROCESSES, RETRY, RUNNING
from raydiag.timeline.rdma_events import RdmaEvent, is_slower

SLOWER = "tgs-degradation"
_HOT_C = 90.0
_STALL_PERCENT = 20.0
_BURST_PER_S = 1.0
_NAMED = 8


def look(pair: Pair) -> tuple[list[SlownessCause], list[RuledOut]]:
    """Causes in either job, the gravest kind first; and what the series speak against."""
    causes, ruled_out = leak.look(pair)
    per_side: list[SlownessCause] = []
    for side in (pair.b, pair.a):
        per_side += [*_network(pair, side), *_congestion(pair, side)]
        per_side += [*_storage(pair, side), *_heat(pair, side)]
        per_side += _cpu(pair, side, any(cause.label == side.label for cause in causes))
        listed = {
            (cause.finding.failure_class, cause.finding.host) for cause in (*causes, *per_side)
        }
        per_side += [
            cause
            for cause in _diagnosed(pair, side)
            if (cause.finding.failure_class, cause.finding.host) not in listed
        ]
    ruled_out += _clear(pair, per_side)
    is_network = any(cause.kind == NETWORK for cause in per_side)
    return ([*per_side, *causes] if is_network else [*causes, *per_side]), ruled_out


def _cause(
    kind: str,
    side: Side,
    failure_class: str,
    evidence: list[Evidence],
    text: str,
    host: str | None = None,
    confidence: Confidence = Confidence.LIKELY,
    device: str | None = None,
    onset: float | None = None,
) -> SlownessCause:
    finding = Finding(
        failure_class,
        host,
        device=device,
        onset=onset,
        confidence=confidence,
        evidence=tuple(evidence),
    )
    return SlownessCause(kind, side.label, finding, text)


def _beside(pair: Pair, compared: ComparedMetrics, side: Side, host: str) -> str:
    _, mine = pair.values(compared, side)
    usual, theirs = pair.values(compared, pair.other(side))
    elsewhere = f"{theirs[host]:.4g} there" if host in theirs else f"{usual or 0:.4g} on average"
    unit = compared.measure.unit
    other_label = pair.other(side).label
    return f"{mine[host]:.4g} {unit} in job {side.label}, {elsewhere} in job {other_label}"


# ---- RDMA


def _network(pair: Pair, side: Side) -> Iterator[SlownessCause]:
    """Hosts that repeat packets in one job and not in the other; phases prove the cause."""
    lost, looked = pair.metric(RETRY), pair.looked(side)
    hosts_given_up = odd_hosts(lost, side is pair.b) if lost is not None and lost.differs else []
    for host in hosts_given_up[:_NAMED]:
        assert lost is not None
        text = f"{host} gave up requests after all retries: {_beside(pair, lost, side, host)}"
        evidence = [Evidence(RETRY, text, pair.values(lost, side)[1][host])]
        yield _cause(
            NETWORK, side, "rdma-retry-exhausted", evidence, text, host, Confidence.CONFIRMED
        )
    if looked is None:
        return
    events: dict[str, RdmaEvent] = {}
    for event in looked.scene.rdma_events:
        if event.notable and event.host not in hosts_given_up:
            events.setdefault(event.host, event)
    for name in (RETX, TIMEOUTS):
        compared = pair.metric(name)
        hosts = (
            odd_hosts(compared, side is pair.b) if compared is not None and compared.differs else []
        )
        for host in [candidate for candidate in hosts if candidate in events][:_NAMED]:
            assert compared is not None
            event = events.pop(host)
            text = f"{host} repeats packets: {_beside(pair, compared, side, host)}"
            evidence = [Evidence(name, text, event.span.peak, event.span.start)]
            confidence = Confidence.LIKELY
            if is_slower(event.slower) and event.slower is not None:
                phases = f"throughput lacks {100 * event.slower:.0f} % meanwhile"
                phases += " and comes back with their end" if event.came_back else ""
                evidence.append(Evidence("phases", phases, 100 * event.slower, event.span.start))
                confidence = Confidence.CONFIRMED if event.came_back else confidence
            yield _cause(
                NETWORK,
                side,
                "rdma-degraded",
                evidence,
                text,
                host,
                confidence,
                event.device,
                event.span.start,
            )


def _congestion(pair: Pair, side: Side) -> Iterator[SlownessCause]:
    notifications = pair.metric(CNP)
    if notifications is None or not notifications.differs:
        return
    hosts = odd_hosts(notifications, side is pair.b)
    usual, _ = pair.values(notifications, pair.other(side))
    mine, _ = pair.values(notifications, side)
    if len(hosts) * 2 < len(side.hosts) or mine is None or mine <= 10 * (usual or 0.0):
        return
    text = f"{mine:.0f} congestion notifications a second, {usual or 0:.0f} in the other job"
    evidence = [Evidence(CNP, text, mine)]
    yield _cause(NETWORK, side, "network-congestion", evidence, text)


# ---- storage, heat, CPUs


def _storage(pair: Pair, side: Side) -> Iterator[SlownessCause]:
    waiting = pair.metric(IO_FULL)
    if waiting is None or not waiting.differs:
        return
    _, values = pair.values(waiting, side)
    for host in odd_hosts(waiting, side is pair.b)[:_NAMED]:
        if values[host] <= _STALL_PERCENT:
            continue
        text = f"{host} waits for storage outside saves: {_beside(pair, waiting, side, host)}"
        evidence = [Evidence(IO_FULL, text, values[host])]
        yield _cause(STORAGE, side, "storage-stall", evidence, text, host)


def _heat(pair: Pair, side: Side) -> Iterator[SlownessCause]:
    """Hotter and clocked lower; a lower clock alone shows that GPUs wait."""
    heat, clock = pair.metric(HEAT), pair.metric(CLOCK)
    if heat is None or clock is None or not (heat.differs and clock.differs):
        return
    _, celsius = pair.values(heat, side)
    slow = set(odd_hosts(clock, side is pair.b))
    for host in [candidate for candidate in odd_hosts(heat, side is pair.b) if candidate in slow][
        :_NAMED
    ]:
        if celsius[host] <= _HOT_C:
            continue
        text = f"{host} is hot and clocks down: {_beside(pair, heat, side, host)}"
        evidence = [
            Evidence(HEAT, text, celsius[host]),
            Evidence(CLOCK, _beside(pair, clock, side, host)),
        ]
        yield _cause(GPU, side, "thermal-throttling", evidence, text, host)


def _cpu(pair: Pair, side: Side, leaks: bool) -> Iterator[SlownessCause]:
    """More running tasks: everywhere alike is software, on some hosts it is somebody else."""
    running = pair.metric(RUNNING)
    if running is None or not running.differs or leaks:
        return
    additional = leak.extra(pair, side)
    if additional is not None and additional.uniform and len(side.hosts) > 1:
        text = f"{additional.text}: alike everywhere, so it is in the job's own software"
        evidence = [Evidence(RUNNING, text, additional.tasks)]
        yield _cause(
            CPU, side, "thread-oversubscription", evidence, text, None, Confidence.POSSIBLE
        )
        return
    processes = pair.metric(PROCESSES)
    foreign = (
        odd_hosts(processes, side is pair.b) if processes is not None and processes.differs else []
    )
    for host in odd_hosts(running, side is pair.b)[:_NAMED]:
        text = f"{host} alone runs more tasks: {_beside(pair, running, side, host)}"
        evidence = [Evidence(RUNNING, text)]
        if processes is not None and host in foreign:
            evidence.append(Evidence(PROCESSES, _beside(pair, processes, side, host)))
        name = "noisy-neighbour" if host in foreign else "cpu-contention"
        yield _cause(CPU, side, name, evidence, text, host, Confidence.POSSIBLE)


# ---- what the job's own diagnosis says of these steps


def _diagnosed(pair: Pair, side: Side) -> Iterator[SlownessCause]:
    """Findings of one job that slow a job down, were there in these steps, and not in the other."""
    looked = pair.looked(side)
    of_other_job = {
        (observation.finding.failure_class, observation.finding.host)
        for observation in pair.other(side).examined.explained.observations
    }
    classes = catalog.failures()
    for observation in side.examined.explained.observations:
        finding = observation.finding
        name = finding.failure_class
        entry = classes[name]
        if entry.symptom or entry.of_monitoring or SLOWER not in entry.can_cause:
            continue
        severity = finding.severity or entry.severity
        if severity is Severity.INFO or (name, finding.host) in of_other_job:
            continue
        if looked is not None:
            begun, over = finding.onset, observation.until
            if begun is not None and begun > looked.window.end:
                continue
            if over is not None and over < looked.window.start:
                continue
        place = f" on {finding.host}" if finding.host else ""
        yield SlownessCause(OWN, side.label, finding, f"{entry.title}{place}")


def _clear(pair: Pair, causes: list[SlownessCause]) -> Iterator[RuledOut]:
    """What was looked at and is the same in both."""
    tcp, retransmits = pair.metric(TCP), pair.metric(RETX)
    bad = {cause.finding.failure_class for cause in causes}
    clean = retransmits is not None and retransmits.differs is False
    if tcp is not None and tcp.differs and not bad & {"rdma-degraded", "rdma-retry-exhausted"}:
        reason = "TCP carries storage and coordination, not collectives"
        reason += ", and RDMA is the same in both" if clean else ""
        yield RuledOut(
            "tcp-retransmits", f"differ, and explain no throughput: {reason}", "comparison"
        )
    for name, metric in (
        ("rdma-degraded", RETX),
        ("storage-stall", IO_FULL),
        ("thermal-throttling", HEAT),
        ("cpu-contention", RUNNING),
    ):
        compared = pair.metric(metric)
        if compared is not None and compared.differs is False and name not in bad:
            yield RuledOut(name, f"{metric} is the same in both", "comparison")
