"""Who is late by the flight recorder and by RAS, alone and together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from raydiag.explain.diagnosis import judge_nodes
from raydiag.model import Confidence, Finding, NodeReport, ProbeResult, Status
from raydiag.probes.flight_recorder import RankTrace, traces
from raydiag.probes.nccl_ras import RasRank, parse_status
from raydiag.rules.absent_ranks import absent_ranks
from tests.flight_dumps import AT, document, entries, pickled
from tests.rules.snapshots import NOW, report, snapshot
from tests.rules.test_progress import log

BEHIND = """#0-0 (1f2e3d4c5b6a7988) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 57
  Rank {rank} has launched up to operation {at} -- GPU 0 managed by process {pid} on node {node}
"""


def trace(rank: int, last: int, **values: Any) -> RankTrace:
    (made,) = traces(pickled(document(entries(last, 56))), f"/tmp/d{rank}", rank, NOW)
    return RankTrace(**{**vars(made), **values})


def accused(*made: RankTrace) -> list[int]:
    return [absent.rank for absent in absent_ranks(made)]


def four(late: int, **values: Any) -> list[RankTrace]:
    return [trace(rank, 56 if rank == late else 57, **values) for rank in range(4)]


def test_the_one_that_did_not_enter() -> None:
    (absent,) = absent_ranks(four(late=2))
    assert absent.rank == 2
    assert absent.text == (
        "rank 2 entered last collective 56 (all_reduce [1024, 16] BFloat16); others that wait in "
        "collective 57 (all_reduce [1024, 16] BFloat16) of group default_pg: 3"
    )
    assert absent.since == AT + 1
    assert absent.confidence is Confidence.LIKELY


def test_of_two_the_one_that_is_behind() -> None:
    assert accused(trace(0, 57, members=(0, 1)), trace(1, 56, members=(0, 1))) == [1]


def test_nobody_where_all_are_in_the_same_collective() -> None:
    assert accused(*(trace(rank, 57) for rank in range(4))) == []


def test_nobody_where_none_waits() -> None:
    assert accused(*(trace(rank, 56) for rank in range(4))) == []


def test_nobody_where_most_are_behind() -> None:
    assert accused(trace(0, 57), *(trace(rank, 56) for rank in (1, 2, 3))) == []


@pytest.mark.parametrize(
    "what", ["all_gather [1024, 16] BFloat16", "all_reduce [512, 16] BFloat16"]
)
def test_the_one_that_entered_another_one(what: str) -> None:
    odd = trace(1, 57, waits_what=what)
    (absent,) = absent_ranks([trace(0, 57), odd, trace(2, 57), trace(3, 57)])
    assert absent.rank == 1
    assert f"rank 1 entered {what} as number 57" in absent.text


def test_the_one_without_a_dump_is_a_guess() -> None:
    (absent,) = absent_ranks([trace(rank, 57) for rank in (0, 1, 3)])
    assert (absent.rank, absent.confidence) == (2, Confidence.POSSIBLE)
    assert "rank 2 left no dump" in absent.text


def test_half_of_the_dumps_tell_nobody() -> None:
    assert accused(trace(0, 57), trace(1, 57)) == []


def test_a_dump_of_an_earlier_hang_is_not_compared() -> None:
    old = trace(2, 12, written_at=NOW - 7200)
    (absent,) = absent_ranks([trace(0, 57), trace(1, 57), old, trace(3, 57)])
    assert not absent.has_dump


def test_who_waits_in_another_group_is_a_victim() -> None:
    """Rank 1 is late in the pair of 0 and 1, because it waits for 3 in the pair of 1 and 3."""
    first = {"group": "a", "members": (0, 1)}
    second = {"group": "b", "members": (1, 3)}
    of_first = [trace(0, 57, **first), trace(1, 56, **first)]
    of_second = [trace(1, 57, **second), trace(3, 56, **second)]
    assert accused(*of_first, *of_second) == [3]
    assert accused(*of_first, trace(1, 56, **second), trace(3, 56, **second)) == [1]


def test_two_that_wait_for_each_other_are_not_told_apart() -> None:
    first = {"group": "a", "members": (0, 1)}
    second = {"group": "b", "members": (0, 1)}
    made = [trace(0, 57, **first), trace(1, 56, **first)]
    assert accused(*made, trace(0, 56, **second), trace(1, 57, **second)) == []


# ---- on nodes, with other witnesses


def ras(rank: int, node: str, pid: int, at: int = 56, later: int = 56) -> ProbeResult:
    def look(at: int) -> Sequence[RasRank]:
        return parse_status(BEHIND.format(rank=rank, at=at, pid=pid, node=node))

    return ProbeResult("nccl_ras", Status.OK, records=look(at), later=look(later), interval_s=2.0)


def cluster(late: int, *of_first: ProbeResult, age_s: float = 2000.0) -> list[NodeReport]:
    """Four hosts with a rank each; the dump of each lies on its own host."""
    reports = []
    for rank, dump in enumerate(four(late)):
        worker = log(120, pid=700 + rank, title=f"Trainer(rank={rank})", age_s=age_s)
        results = [ProbeResult("ray_logs", Status.OK, records=(worker,))]
        results += [ProbeResult("flight_recorder", Status.OK, records=(dump,))] * (late >= 0)
        reports.append(report("abcd"[rank], results=[*results, *(of_first if not rank else ())]))
    return reports


def stragglers(reports: Sequence[NodeReport]) -> list[Finding]:
    found = judge_nodes(snapshot(*reports, job_start=NOW - 3600))
    return [finding for finding in found if finding.failure_class == "straggler"]


def test_the_recorder_names_host_and_process() -> None:
    (finding,) = stragglers(cluster(2))
    assert (finding.host, finding.pid, finding.task) == ("c", 702, "Trainer(rank=2)")
    assert finding.confidence is Confidence.LIKELY
    assert finding.onset == AT + 1


def test_two_witnesses_confirm() -> None:
    (finding,) = stragglers(cluster(2, ras(2, "addr-c", 702)))
    assert (finding.host, finding.confidence) == ("c", Confidence.CONFIRMED)
    assert {"/tmp/d2", "RAS"} <= {evidence.source for evidence in finding.evidence}


def test_ras_alone_is_likely() -> None:
    (finding,) = stragglers(cluster(-1, ras(2, "addr-c", 702)))
    assert (finding.host, finding.pid, finding.confidence) == ("c", 702, Confidence.LIKELY)


def test_counts_that_move_are_no_hang() -> None:
    assert stragglers(cluster(-1, ras(2, "addr-c", 702, at=55, later=56))) == []


def test_while_steps_come_nobody_is_late_by_ras() -> None:
    assert stragglers(cluster(-1, ras(2, "addr-c", 702), age_s=0.3)) == []


def test_while_steps_come_or_without_a_job_no_dump_accuses() -> None:
    assert stragglers(cluster(2, age_s=0.3)) == []
    found = judge_nodes(snapshot(*cluster(2)))
    assert "straggler" not in {finding.failure_class for finding in found}


def test_where_no_step_is_seen_ras_alone_is_a_guess() -> None:
    (finding,) = stragglers([report("c", address="addr-c", results=[ras(2, "addr-c", 702)])])
    assert (finding.host, finding.confidence) == ("c", Confidence.POSSIBLE)


def test_witnesses_that_contradict_each_other_confirm_nothing() -> None:
    found = stragglers(cluster(2, ras(1, "addr-b", 701)))
    assert {finding.host for finding in found} == {"b", "c"}
    for finding in found:
        assert finding.confidence is Confidence.POSSIBLE
        assert any("contradicts: " in evidence.text for evidence in finding.evidence)


def test_a_dump_of_before_the_job_says_nothing_of_it() -> None:
    found = judge_nodes(snapshot(*cluster(2), job_start=NOW + 60))
    assert "straggler" not in {finding.failure_class for finding in found}
