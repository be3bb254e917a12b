"""The rank that did not enter the collective in which the others wait.

Two witnesses that know nothing of each other: PyTorch's flight recorder, whose dumps have the
numbers of collectives by rank, and NCCL's own service (RAS). A rank that is behind in one group
because it waits in another is a victim, not the cause.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.flight_recorder import RankTrace
from raydiag.probes.nccl_ras import RasRank
from raydiag.rules.machines import Machine, Samples, each_record, each_sample, machines
from raydiag.rules.progress import paces
from raydiag.rules.ranks import RankProcess, rank_processes

_ONE_DUMP_S = 1800.0  # within which the ranks of one hang write their dumps
_MOST_EVIDENCE = 3
_WITH_STEPS = {True: Confidence.LIKELY, False: Confidence.POSSIBLE}  # whether steps are seen
_OF_A_DUMP = {True: Confidence.LIKELY, False: Confidence.POSSIBLE}


@dataclass(frozen=True)
class AbsentRank:
    """A rank for which others wait, by their flight recorders."""

    rank: int
    text: str  # what it did instead, and who waits
    path: str  # of its dump, or of one that names it
    since: float | None  # when the first of the others entered the collective, Unix seconds
    number: int  # of that collective
    has_dump: bool  # False: it left none, as one that is stopped or gone

    @property
    def confidence(self) -> Confidence:
        """A dump that is not there may lie where nobody looked."""
        return _OF_A_DUMP[self.has_dump]

    @property
    def evidence(self) -> Evidence:
        """As a finding has it."""
        return Evidence(self.path, self.text, float(self.number), self.since)


def absent_ranks(traces: Iterable[RankTrace]) -> list[AbsentRank]:
    """The ranks for which others wait, and that wait for nobody themselves, by number."""
    groups: dict[tuple[str, tuple[int, ...]], list[RankTrace]] = {}
    for trace in _of_one_hang(list(traces)):
        groups.setdefault((trace.group, trace.members), []).append(trace)
    found: dict[int, AbsentRank] = {}
    waiting: set[int] = set()
    for group in groups.values():
        absent = _absent_from(group)
        for missing in absent:
            found.setdefault(missing.rank, missing)
        accused = set(map(attrgetter("rank"), absent))
        waiting |= {trace.rank for trace in group if absent and trace.waits is not None} - accused
    return [found[rank] for rank in sorted(found.keys() - waiting)]


def _of_one_hang(traces: Sequence[RankTrace]) -> Iterator[RankTrace]:
    """Of each rank its newest dump, where that is of the same time as the newest of all."""
    newest = max(map(attrgetter("written_at"), traces), default=0.0)
    by_rank: dict[int, float] = {}
    for trace in traces:
        by_rank[trace.rank] = max(by_rank.get(trace.rank, 0.0), trace.written_at)
    seen = set()
    for trace in traces:
        is_newest = trace.written_at == by_rank[trace.rank] >= newest - _ONE_DUMP_S
        if is_newest and (trace.rank, trace.group) not in seen:
            seen.add((trace.rank, trace.group))  # hosts that share a directory show it twice
            yield trace


def _absent_from(group: Sequence[RankTrace]) -> list[AbsentRank]:
    """At most half of a group, which did not enter the first collective that others wait in."""
    waits = [trace for trace in group if trace.waits is not None]
    if not waits:
        return []
    # Of an earlier number some wait only until the slowest of their GPUs is through.
    (number, _), *_ = Counter(map(attrgetter("waits"), waits)).most_common(1)
    waiting = [trace for trace in waits if trace.waits == number]
    behind = [trace for trace in group if trace.last < number]
    without = sorted(set(group[0].members) - set(map(attrgetter("rank"), group)))
    if len(behind) > len(waiting):
        return []
    if behind:
        return [_described(trace, waiting) for trace in behind]
    if without and 2 * len(without) < len(group[0].members):
        return [_without_dump(rank, waiting) for rank in without]
    return [_described(trace, waiting) for trace in _unlike(waiting)]


def _unlike(waiting: Sequence[RankTrace]) -> list[RankTrace]:
    """Those, fewer than half, that entered another collective under the same number."""
    kinds = Counter(map(attrgetter("waits_what"), waiting))
    usual, count = kinds.most_common(1)[0]
    if 2 * count <= len(waiting):
        return []
    return [trace for trace in waiting if trace.waits_what != usual]


def _since(waiting: Sequence[RankTrace]) -> float | None:
    times = filter(None, map(attrgetter("waits_since"), waiting))
    return min(times, default=None)


def _awaited(waiting: Sequence[RankTrace], but: int) -> str:
    """`others that wait in collective 57 (all_reduce [1024]) of group default_pg: 3`."""
    others = [trace for trace in waiting if trace.rank != but]
    (what, _), *_ = Counter(map(attrgetter("waits_what"), others)).most_common(1)
    name = others[0].description or others[0].group
    number = f"collective {others[0].waits} ({what or 'of an unknown kind'}) of group {name}"
    return f"others that wait in {number}: {len(others)}"


def _described(trace: RankTrace, waiting: Sequence[RankTrace]) -> AbsentRank:
    number = waiting[0].waits or 0
    did = f"entered {trace.waits_what or 'another one'} as number {number}"
    if trace.last < number:
        did = f"entered last collective {trace.last} ({trace.last_what or 'of an unknown kind'})"
    text = f"rank {trace.rank} {did}; {_awaited(waiting, trace.rank)}"
    return AbsentRank(trace.rank, text, trace.path, _since(waiting), number, True)


def _without_dump(rank: int, waiting: Sequence[RankTrace]) -> AbsentRank:
    text = f"rank {rank} left no dump; {_awaited(waiting, rank)}"
    return AbsentRank(rank, text, waiting[0].path, _since(waiting), waiting[0].waits or 0, False)


def late_by_recorder(snapshot: Snapshot) -> Iterator[Finding]:
    """Ranks for which the others wait, as the dumps of a job that runs show it."""
    seen: dict[int, list[Machine]] = {}
    traces = []
    if snapshot.job_start is None or any(not pace.is_late for pace in paces(snapshot)):
        return  # dumps of an earlier job, or of a hang that this one got over
    for machine, trace in each_record(snapshot, RankTrace):
        if trace.written_at >= snapshot.job_start:
            seen.setdefault(trace.rank, []).append(machine)
            traces.append(trace)
    processes = rank_processes(snapshot)
    for absent in absent_ranks(traces):
        # Its own dump lies on its node, unless several nodes share the directory.
        names = set(map(attrgetter("name"), seen.get(absent.rank, ())))
        place = RankProcess(_only(names), None, f"rank {absent.rank}", frozenset())
        yield _finding(processes.get(absent.rank, place), absent)


def _only(names: set[str]) -> str | None:
    """The one name; None where there are several, or none."""
    return min(names) if len(names) == 1 else None


def _finding(process: RankProcess, absent: AbsentRank) -> Finding:
    return Finding(
        "straggler",
        host=process.host,
        pid=process.pid,
        task=process.task,
        severity=Severity.CRITICAL,
        onset=absent.since,
        confidence=absent.confidence,
        evidence=(absent.evidence,),
    )


def late_by_ras(snapshot: Snapshot) -> Iterator[Finding]:
    """Ranks that RAS calls behind in two looks that show the same counts, missing or dead.

    Counts differ for moments in any job, so who is behind is accused only where no step comes.
    """
    known_paces = paces(snapshot)
    goes_on = any(not pace.is_late for pace in known_paces)
    confidence = _WITH_STEPS[bool(known_paces)]
    by_process: dict[tuple[str, int], list[RasRank]] = {}
    for _, samples in each_sample(snapshot, RasRank):
        record = samples.later
        if not goes_on and (record.state != "behind" or _stands_still(samples)):
            by_process.setdefault((record.node, record.pid), []).append(record)
    hosts, known = _hosts_by_address(snapshot), rank_processes(snapshot).values()
    for (node, pid), records in by_process.items():
        host = hosts.get(node, node)
        place = RankProcess(host, pid, _rank_name(records), frozenset())
        process = next((process for process in known if process.holds(host, pid)), place)
        yield Finding(
            "straggler",
            host=host,
            pid=process.pid,
            task=process.task,
            severity=Severity.CRITICAL,
            confidence=confidence,
            evidence=tuple(map(_ras_evidence, records[:_MOST_EVIDENCE])),
        )


def _rank_name(records: Iterable[RasRank]) -> str | None:
    """`rank 5`, by the first record that tells one."""
    for record in records:
        if record.rank is not None:
            return f"rank {record.rank} of its communicator"
    return None


def _stands_still(samples: Samples[RasRank]) -> bool:
    """In a hang none of the counts moves."""
    counts = attrgetter("launched", "most")
    return bool(counts(samples.first) == counts(samples.later))


def _ras_evidence(record: RasRank) -> Evidence:
    if record.state == "behind":
        text = f"{record.line}; most others: {record.operation} operation {record.most}"
        return Evidence("RAS", text, float(record.launched or 0))
    return Evidence("RAS", f"{record.state}: {record.line}")


def _hosts_by_address(snapshot: Snapshot) -> dict[str, str]:
    """Names of machines by their address and by their name."""
    hosts = {}
    for machine in machines(snapshot):
        for report in machine.reports:
            hosts[report.node.address] = hosts[report.node.host] = machine.name
    return hosts
