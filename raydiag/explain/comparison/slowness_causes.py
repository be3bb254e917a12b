"""What may make one of two jobs slower: every source is looked at, also after a hit.

TCP retransmits never are a cause by themselves: TCP carries storage and coordination. Power, clock
and utilisation are symptoms. What both jobs have is no difference.
"""

from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import Any

from raydiag import catalog
from raydiag.catalog.completion import severity_of
from raydiag.explain.comparison import leak
from raydiag.explain.comparison.metrics import CLOCK, CNP, HEAT, RETX, TCP, TIMEOUTS, UNITS, Looked
from raydiag.explain.comparison.pair import CPU, GPU, NETWORK, OWN, STORAGE, Pair, SlownessCause
from raydiag.explain.comparison.side import Side
from raydiag.model import Confidence, Evidence, Finding, Observation, Severity
from raydiag.playbooks.observations import RuledOut
from raydiag.timeline.queries import IO_FULL, PROCESSES, RETRY, RUNNING
from raydiag.timeline.rdma_events import RdmaEvent, is_slower

SLOWER = "tgs-degradation"
_HOT_C = 90.0
_STALL_PERCENT = 20.0
_NAMED = 8
_CLASS_AND_HOST = attrgetter("finding.class_and_host")  # of a cause, or of an observation


def look(pair: Pair) -> tuple[list[SlownessCause], list[RuledOut]]:
    """Causes in either job, the gravest kind first; and what the series speak against."""
    causes, ruled_out = leak.look(pair)
    per_side: list[SlownessCause] = []
    for side in (pair.b, pair.a):
        per_side += [*_network(pair, side), *_congestion(pair, side)]
        per_side += [*_storage(pair, side), *_heat(pair, side)]
        per_side += _cpu(pair, side, any(cause.label == side.label for cause in causes))
        listed = set(map(_CLASS_AND_HOST, (*causes, *per_side)))
        for cause in _diagnosed(pair, side):
            if cause.finding.class_and_host not in listed:
                per_side.append(cause)
    ruled_out += _clear(pair, per_side)
    if any(cause.kind == NETWORK for cause in per_side):
        return [*per_side, *causes], ruled_out
    return [*causes, *per_side], ruled_out


def _cause(
    kind: str, side: Side, failure_class: str, evidence: Sequence[Evidence], text: str, **known: Any
) -> SlownessCause:
    """A likely cause, unless another confidence is among what is `known`: fields of the finding."""
    fields = {"confidence": Confidence.LIKELY, **known}
    finding = Finding(failure_class, evidence=tuple(evidence), **fields)
    return SlownessCause(kind, side.label, finding, text)


def _beside(pair: Pair, metric: str, side: Side, host: str) -> str:
    other_side = pair.other(side)
    _, mine = pair.values(metric, side)
    usual, theirs = pair.values(metric, other_side)
    elsewhere = f"{usual or 0:.4g} on average"
    if host in theirs:
        elsewhere = f"{theirs[host]:.4g} there"
    value = f"{mine[host]:.4g} {UNITS[metric]} in job {side.label}"
    return f"{value}, {elsewhere} in job {other_side.label}"


# ---- RDMA


def _network(pair: Pair, side: Side) -> Iterator[SlownessCause]:
    """Hosts that repeat packets in one job and not in the other; phases prove the cause."""
    hosts_given_up = pair.odd_hosts(RETRY, side)
    _, lost = pair.values(RETRY, side)
    for host in hosts_given_up[:_NAMED]:
        text = f"{host} gave up requests after all retries: {_beside(pair, RETRY, side, host)}"
        evidence = [Evidence(RETRY, text, lost[host])]
        known = {"host": host, "confidence": Confidence.CONFIRMED}
        yield _cause(NETWORK, side, "rdma-retry-exhausted", evidence, text, **known)
    events = _first_events(pair.looked(side), hosts_given_up)
    for name in (RETX, TIMEOUTS):
        hosts = list(filter(events.__contains__, pair.odd_hosts(name, side)))
        for host in hosts[:_NAMED]:
            text = f"{host} repeats packets: {_beside(pair, name, side, host)}"
            yield _degraded(side, name, events.pop(host), text)


def _first_events(looked: Looked | None, without: Collection[str]) -> dict[str, RdmaEvent]:
    """By host the first notable event."""
    events: dict[str, RdmaEvent] = {}
    for event in looked.scene.rdma_events if looked is not None else ():
        if event.notable and event.host not in without:
            events.setdefault(event.host, event)
    return events


def _degraded(side: Side, metric: str, event: RdmaEvent, text: str) -> SlownessCause:
    """Confirmed where throughput falls with the event and recovers with its end."""
    start, confidence = event.span.start, Confidence.LIKELY
    evidence = [Evidence(metric, text, event.span.peak, start)]
    if is_slower(event.slower) and event.slower is not None:
        phases = f"throughput lacks {100 * event.slower:.0f} % meanwhile"
        if event.came_back:
            phases += " and recovers with their end"
            confidence = Confidence.CONFIRMED
        evidence.append(Evidence("phases", phases, 100 * event.slower, start))
    known = {"host": event.host, "device": event.device, "onset": start, "confidence": confidence}
    return _cause(NETWORK, side, "rdma-degraded", evidence, text, **known)


def _congestion(pair: Pair, side: Side) -> Iterator[SlownessCause]:
    hosts = pair.odd_hosts(CNP, side)
    usual, _ = pair.values(CNP, pair.other(side))
    mine, _ = pair.values(CNP, side)
    many = len(hosts) * 2 >= len(side.hosts) and pair.differing(CNP) is not None
    if many and mine is not None and mine > 10 * (usual or 0.0):
        text = f"{mine:.0f} congestion notifications a second, {usual or 0:.0f} in the other job"
        yield _cause(NETWORK, side, "network-congestion", [Evidence(CNP, text, mine)], text)


# ---- storage, heat, CPUs


def _storage(pair: Pair, side: Side) -> Iterator[SlownessCause]:
    _, percent = pair.values(IO_FULL, side)
    for host in pair.odd_hosts(IO_FULL, side)[:_NAMED]:
        if percent[host] > _STALL_PERCENT:
            text = f"{host} waits for storage outside saves: {_beside(pair, IO_FULL, side, host)}"
            evidence = [Evidence(IO_FULL, text, percent[host])]
            yield _cause(STORAGE, side, "storage-stall", evidence, text, host=host)


def _heat(pair: Pair, side: Side) -> Iterator[SlownessCause]:
    """Hotter and clocked lower; a lower clock alone shows that GPUs wait."""
    _, celsius = pair.values(HEAT, side)
    slow = set(pair.odd_hosts(CLOCK, side))
    hot_and_slow = list(filter(slow.__contains__, pair.odd_hosts(HEAT, side)))
    for host in hot_and_slow[:_NAMED]:
        if celsius[host] > _HOT_C:
            text = f"{host} is hot and clocks down: {_beside(pair, HEAT, side, host)}"
            clock = Evidence(CLOCK, _beside(pair, CLOCK, side, host))
            evidence = [Evidence(HEAT, text, celsius[host]), clock]
            yield _cause(GPU, side, "thermal-throttling", evidence, text, host=host)


def _cpu(pair: Pair, side: Side, leaks: bool) -> Iterator[SlownessCause]:
    """More running tasks: everywhere alike is software, on some hosts it is somebody else."""
    if pair.differing(RUNNING) is None or leaks:
        return
    known: dict[str, Any] = {"confidence": Confidence.POSSIBLE}
    additional = leak.extra(pair, side)
    if additional is not None and additional.uniform and len(side.hosts) > 1:
        text = f"{additional.text}: alike everywhere, so it is in the job's own software"
        evidence = [Evidence(RUNNING, text, additional.tasks)]
        yield _cause(CPU, side, "thread-oversubscription", evidence, text, **known)
        return
    foreign = pair.odd_hosts(PROCESSES, side)
    for host in pair.odd_hosts(RUNNING, side)[:_NAMED]:
        text = f"{host} alone runs more tasks: {_beside(pair, RUNNING, side, host)}"
        evidence, name = [Evidence(RUNNING, text)], "cpu-contention"
        if host in foreign:
            evidence.append(Evidence(PROCESSES, _beside(pair, PROCESSES, side, host)))
            name = "noisy-neighbour"
        yield _cause(CPU, side, name, evidence, text, host=host, **known)


# ---- what the job's own diagnosis says of these steps


def _diagnosed(pair: Pair, side: Side) -> Iterator[SlownessCause]:
    """Findings of one job that slow a job down, were there in these steps, and not in the other."""
    of_other_job = set(map(_CLASS_AND_HOST, pair.other(side).examined.explained.observations))
    for observation in side.examined.explained.observations:
        finding = observation.finding
        entry = catalog.failure(finding.failure_class)
        if entry.symptom or entry.of_monitoring or SLOWER not in entry.can_cause:
            continue
        if severity_of(finding) is Severity.INFO or finding.class_and_host in of_other_job:
            continue
        if _is_of_steps(observation, pair.looked(side)):
            place = f" on {finding.host}" if finding.host else ""
            yield SlownessCause(OWN, side.label, finding, f"{entry.title}{place}")


def _is_of_steps(observation: Observation, looked: Looked | None) -> bool:
    """Whether it was there during the steps that are compared; also where nothing tells."""
    begun, over = observation.finding.onset, observation.until
    if looked is None:
        return True
    is_later = begun is not None and begun > looked.window.end
    return not is_later and (over is None or over >= looked.window.start)


def _clear(pair: Pair, causes: list[SlownessCause]) -> Iterator[RuledOut]:
    """What was looked at and is the same in both."""
    bad = set(map(attrgetter("finding.failure_class"), causes))
    if pair.differing(TCP) and bad.isdisjoint(("rdma-degraded", "rdma-retry-exhausted")):
        reason = "TCP carries storage and coordination, not collectives"
        if pair.is_same(RETX):
            reason += ", and RDMA is the same in both"
        reason = f"differ, and explain no throughput: {reason}"
        yield RuledOut("tcp-retransmits", reason, "comparison")
    for name, metric in (
        ("rdma-degraded", RETX),
        ("storage-stall", IO_FULL),
        ("thermal-throttling", HEAT),
        ("cpu-contention", RUNNING),
    ):
        if pair.is_same(metric) and name not in bad:
            yield RuledOut(name, f"{metric} is the same in both", "comparison")
