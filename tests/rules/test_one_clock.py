"""Nodes whose clock is off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raydiag.explain.diagnosis import judge_nodes
from raydiag.model import NodeReport, Severity
from raydiag.probes.kernel_log import KernelLine
from raydiag.probes.previous_boot import CrashDump
from raydiag.rules.clock import clock_offset_s, on_one_clock
from tests.rules.snapshots import NOW, report, snapshot

OFF_S = 7200.0


def node(time_s: float, offset_s: tuple[float, float] | None) -> NodeReport:
    text = "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1024kB"
    line = KernelLine(1, time_s, 1.0, 3, 0, text, True, 0)
    return replace(report("node1", kernel_log=[line]), clock_offset_s=offset_s)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (None, 0.0),
        ((-0.2, 0.3), 0.0),
        ((-5.0, 5.0), 0.0),  # a slow answer bounds nothing
        ((0.4, 0.9), 0.0),
        ((89.9, 90.1), 90.0),
        ((-7200.5, -7199.5), -7200.0),
    ],
)
def test_offset(bounds: tuple[float, float] | None, expected: float) -> None:
    assert clock_offset_s(node(NOW, bounds)) == pytest.approx(expected)


def test_times_of_a_node_are_told_by_the_clock_of_the_head() -> None:
    (moved,) = on_one_clock(snapshot(node(NOW + OFF_S - 60, (OFF_S, OFF_S)))).nodes
    assert moved.records("kernel_log")[0].time_s == NOW - 60
    assert moved.collected_at == NOW - OFF_S


def test_an_event_from_before_the_job_is_old_whatever_the_clock_says() -> None:
    before = NOW - 7000  # the job began an hour ago
    fast = node(before + OFF_S, (OFF_S - 0.1, OFF_S + 0.1))
    found = [
        f
        for f in judge_nodes(snapshot(fast, job_start=NOW - 3600))
        if f.failure_class != "clock-skew"
    ]
    assert [finding.severity for finding in found] == [Severity.INFO]
    right = node(before + OFF_S - 1, None)
    found = judge_nodes(snapshot(right, job_start=NOW - 3600))
    assert [finding.severity for finding in found] == [Severity.CRITICAL]


def test_dumps_and_exporters_are_told_by_the_clock_of_the_head_too() -> None:
    dump = CrashDump(
        file="/sys/fs/pstore/dmesg-efi-1",
        time_s=NOW + OFF_S,
        reason="Panic",
        lines=("Kernel panic - not syncing: Fatal exception",),
    )
    off = replace(report("node1", previous_boot=[dump]), clock_offset_s=(OFF_S, OFF_S))
    (moved,) = on_one_clock(snapshot(off)).nodes
    assert moved.records("previous_boot")[0].time_s == NOW
