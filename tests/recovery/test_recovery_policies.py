"""The simulation that decided the policy's defaults: by hand where that can be done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from benchmarks import recovery_policies as simulation
from benchmarks.recovery_policies import Assumptions, NodeFault, ServerFault, SimulatedRun
from raydiag.recovery.policy import RecoveryPolicy

_HOUR = 3600.0
_ASSUMED = replace(Assumptions(), days=1.0, named=1.0)


def run_with(*faults: NodeFault) -> SimulatedRun:
    """A job on nodes 0 to 3, with two spare ones."""
    return SimulatedRun(4, 6, faults, _ASSUMED, Random("x"))


def broken(failure_class: str = "gpu-memory-error") -> NodeFault:
    """Node 1, from the third hour on."""
    return NodeFault(3 * _HOUR, 1e9, 1, failure_class)


def test_without_a_fault_all_policies_keep_the_same() -> None:
    kept = set()
    for policy in simulation.policies().values():
        run = run_with()
        policy(run)
        kept.add(run.kept)
    assert kept == {23.5 * _HOUR}  # ten minutes of start, and the last save


def test_what_is_kept_by_hand() -> None:
    run = run_with(broken())
    simulation.no_recovery(run)
    assert run.kept == 2.5 * _HOUR
    run = run_with(broken())
    simulation.oracle(run)
    assert run.kept == 2.5 * _HOUR + 20.5 * _HOUR
    run = run_with(broken())
    simulation.blind_requeue(run)
    assert run.kept == 2.5 * _HOUR


def test_a_host_that_is_named_is_left_out_without_a_person() -> None:
    run = run_with(broken())
    simulation.by_policy(RecoveryPolicy())(run)
    assert run.calls == 0 and 1 not in run.nodes
    assert run.kept == 2.5 * _HOUR + 20.5 * _HOUR


def test_what_nobody_can_name_calls_a_person_and_evicts_nobody_before() -> None:
    run = run_with(broken("unknown"))
    simulation.by_policy(RecoveryPolicy())(run)
    assert run.calls == 1 and 1 not in run.nodes


def test_the_same_seed_gives_the_same_table() -> None:
    faults = [ServerFault(5e5, 6e5, "nvidia-xid")], [ServerFault(2.5e6, 2.6e6, "unknown")]
    servers: list[list[ServerFault]] = [*faults, *([] for _ in range(40))]
    tables = []
    for seed in ("1", "1", "2"):
        tables.append(list(simulation.table(servers, simulation.policies(), Assumptions(), [seed])))
    assert tables[0] == tables[1] != tables[2]


def test_a_trace_is_read_with_servers_that_had_no_fault(tmp_path: Path) -> None:
    kind = {"Level": "Hardware Failure", "Class": "GPU", "Desc": "GPU Lost"}
    events = []
    for at, event in ((1.0, "fault_start"), (1.5, "fault_end")):
        events.append({"node_id": "a", "event_time": at, "event_type": event, "fault_type": kind})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    servers = simulation.read_trace(path)
    assert servers[0] == [ServerFault(86_400.0, 129_600.0, "gpu-missing")]
    assert len(servers) == 400 and not any(servers[1:])
    path.write_text(json.dumps(events[1:]))
    with pytest.raises(KeyError):
        simulation.read_trace(path)
