"""Which nodes have a GPU driver fault, how sure that is, and what of it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from raydiag.explain.driver_fault import Investigation, NodeVerdict
from raydiag.explain.driver_fault.signs import with_series
from raydiag.explain.driver_fault.types import InvestigatedNode, Onset, SignKind, StuckTasks
from raydiag.model import (
    Confidence,
    Evidence,
    Finding,
    Observation,
    ProbeResult,
    Status,
    StuckReader,
)
from raydiag.playbooks.node_failure.driver import DriverSigns
from raydiag.probes.exporter import Exporter
from tests.explain import driver_fault_samples as samples
from tests.explain.driver_fault_samples import NOW, investigated, lines, node, oops
from tests.rules.test_exporter import state as exporter_record

CLEAN, SUSPECT, CONFIRMED = NodeVerdict.CLEAN, NodeVerdict.SUSPECT, NodeVerdict.CONFIRMED
HUNG_TASK = (
    "INFO: task amd-smi:48213 blocked for more than 122 seconds.",
    "      Tainted: G           OE      6.8.0-60-generic #63-Ubuntu",
    "task:amd-smi  state:D stack:0 pid:48213 tgid:48213 ppid:1 flags:0x00004006",
    "Call Trace:",
    " <TASK>",
    " __schedule+0x2cb/0x760",
    " amdgpu_cper_ring_write+0x6a/0x2f0 [amdgpu]",
    " vfs_read+0x2a1/0x360",
    " </TASK>",
)


def only(investigation: Investigation, number: int = 2) -> InvestigatedNode:
    return next(n for n in investigation.nodes if n.host == f"node{number:03}")


def kinds(found: InvestigatedNode) -> set[SignKind]:
    return {sign.kind for sign in found.signs}


# ---- the verdict on a node


def test_every_node_has_a_verdict() -> None:
    found = samples.whole_cluster()
    assert {n.host: n.verdict.value for n in found.nodes} == {
        "node001": "clean",
        "node002": "confirmed",
        "node003": "not-checked",
        "node004": "unreachable",
        "node005": "suspect",
        "node006": "confirmed",
        "node007": "confirmed",
    }
    assert found.exit_code == 1


@pytest.mark.parametrize(
    ("log", "tasks", "all_series", "verdict"),
    [
        ((), 0, [], CLEAN),
        (oops(), 0, [], SUSPECT),
        ((), 12, [], SUSPECT),
        (oops(), 12, [], CONFIRMED),
        (lines(*HUNG_TASK), 0, [], SUSPECT),
        (lines(*HUNG_TASK), 1, [], CONFIRMED),
        (oops(), 0, [samples.series(exporter={})], CONFIRMED),
        (oops(), 0, [samples.series(most_errors=0.0, few=False, grew_at=None)], CONFIRMED),
        ((), 0, [samples.series()], CONFIRMED),
        ((), 0, [samples.series(exporter={})], SUSPECT),
        ((), 0, [samples.series(errors=0.0, most_errors=0.0, few=False, grew_at=None)], SUSPECT),
        # Errors that all nodes have, or where there is no other node, are no sign.
        ((), 0, [samples.series(exporter={}, few=False, few_rise=False)], CLEAN),
        ((), 0, [samples.series(exporter={}, others_clean=0, grew_at=None)], CLEAN),
        # Old errors everywhere, new ones here alone.
        ((), 0, [samples.series(exporter={}, few=False)], SUSPECT),
        # Cycles and power gaps are both the exporter's: one witness.
        ((), 0, [samples.series(errors=0.0, most_errors=0.0, few=False, grew_at=None,
                                exporter={"a": "swings", "b": "gaps"})], SUSPECT),
    ],
)  # fmt: skip
def test_confirmed_takes_two_kinds_of_signs(
    log: Sequence[object], tasks: int, all_series: Sequence[DriverSigns], verdict: NodeVerdict
) -> None:
    reported = node(2, log, samples.blocked(tasks))  # type: ignore[arg-type]
    found = only(investigated(node(1), reported, all_series=all_series))
    assert found.verdict is verdict, found.reason


def test_tasks_that_wait_elsewhere_are_no_sign() -> None:
    tasks = samples.blocked(200, wchan="rpc_wait_bit_killable")
    found = only(investigated(node(2, tasks=tasks)))
    assert (found.verdict, found.stuck.count) == (CLEAN, 0)


def test_lines_of_a_program_prove_nothing() -> None:
    log = [replace(line, facility=1) for line in oops()]
    assert only(investigated(node(2, log))).verdict is CLEAN


@pytest.mark.parametrize("probe", ["kernel_log", "d_state"])
def test_what_could_not_be_read_is_not_checked(probe: str) -> None:
    unread = [samples.denied(probe, "permission denied; the kernel log was not checked")]
    found = investigated(node(2, unread=unread))
    assert (only(found).verdict, found.exit_code) == (NodeVerdict.NOT_CHECKED, 3)
    assert "permission denied" in only(found).reason


def test_other_signs_count_where_the_kernel_log_is_hidden() -> None:
    unread = [samples.denied("kernel_log", "permission denied")]
    reported = node(2, tasks=samples.blocked(9), unread=unread)
    assert only(investigated(reported)).verdict is SUSPECT
    assert only(investigated(reported, all_series=[samples.series()])).verdict is CONFIRMED


def test_a_node_without_gpus_is_clean() -> None:
    no_gpu = [ProbeResult(name, Status.NO_DATA, reason="no amdgpu device on this node")
              for name in ("gpu_sensors", "ras", "bad_pages", "nvidia")]  # fmt: skip
    found = investigated(node(2, unread=no_gpu))
    assert (only(found).verdict, only(found).unread, found.exit_code) == (CLEAN, (), 0)


def test_a_ras_file_that_hangs_is_a_sign() -> None:
    path = "/sys/bus/pci/drivers/amdgpu/0000:05:00.0/ras"
    hung = StuckReader(path, "ras", 77, 9.0, "request_wait_answer")
    found = only(investigated(node(2, stuck=[hung])))
    assert (found.verdict, kinds(found)) == (SUSPECT, {SignKind.RAS_READ})
    assert only(investigated(node(2, stuck=[replace(hung, source="/mnt/nfs")]))).verdict is CLEAN


def test_the_exporters_own_log_stands_in_for_series() -> None:
    hung: Exporter = exporter_record(timed_out={"gpu_metrics_plugin": 40}, log_age_s=20.0)
    found = only(investigated(node(2, oops(), exporter=[hung])))
    assert (found.verdict, SignKind.EXPORTER in kinds(found)) == (CONFIRMED, True)
    for age_s in (90_000.0, None):
        old = replace(hung, log_age_s=age_s)
        assert only(investigated(node(2, oops(), exporter=[old]))).verdict is SUSPECT


def test_a_node_that_only_series_know() -> None:
    found = investigated(all_series=[samples.series(), *samples.well_series(1)])
    verdicts = {n.host: n.verdict for n in found.nodes}
    assert verdicts == {"node002": CONFIRMED, "node001": NodeVerdict.NOT_CHECKED}


def test_nothing_asked_is_not_clean() -> None:
    assert investigated().exit_code == 3


# ---- what is known of it


def test_the_stack_is_verbatim_from_headline_to_end() -> None:
    (stack,) = only(samples.whole_cluster()).stacks
    texts = [line.text for line in stack.lines]
    assert texts == [line.text for line in oops()[1:]]
    assert (texts[0][:4], texts[-1]) == ("BUG:", "---[ end trace 0000000000000000 ]---")
    assert stack.symbol == "amdgpu_cper_ring_get_ent_sz"
    assert stack.lines[0].time_s == pytest.approx(NOW - 5 * samples.HOUR)


def test_like_stacks_are_shown_once_and_counted() -> None:
    log = lines(*HUNG_TASK)
    first = log[1:]
    for number in range(1, 4):
        later = [replace(line, time_s=line.time_s + 123 * number) for line in first]
        log += [replace(line, text=line.text.replace("48213", f"4821{number}")) for line in later]
    (stack,) = only(investigated(node(2, log))).stacks
    assert (stack.count, stack.symbol) == (4, "amdgpu_cper_ring_write")
    assert [line.text for line in stack.lines] == list(HUNG_TASK)


def test_two_reports_in_a_row_are_two() -> None:
    soft = "watchdog: BUG: soft lockup - CPU#7 stuck for 26s! [kworker/7:1:90]"
    log = lines(*HUNG_TASK, soft, "RIP: 0010:amdgpu_cper_ring_get_ent_sz+0x3e/0xa0 [amdgpu]")
    first, second = only(investigated(node(2, log))).stacks
    assert (first.headline, second.headline) == (HUNG_TASK[0], soft)


def test_stacks_of_others_are_left_out() -> None:
    log = lines("BUG: unable to handle page fault", "RIP: 0010:nfs_file_read+0x1/0x2 [nfs]")
    assert only(investigated(node(2, log))).stacks == ()


def test_stuck_tasks_by_function_with_their_rate_against_the_number_of_ids() -> None:
    stuck = only(samples.whole_cluster()).stuck
    assert stuck == StuckTasks(
        30, {"amdgpu_cper_ring_write": 30}, 0, NOW - 5 * samples.HOUR,
        NOW - 5 * samples.HOUR + 29 * 600, 4_194_304, 2104,
    )  # fmt: skip
    assert stuck.per_hour == pytest.approx(6.0)
    assert stuck.hours_left == pytest.approx((4_194_304 - 2104) / 6.0)


@pytest.mark.parametrize("stuck", [StuckTasks(), StuckTasks(1, {}, 0, 5.0, 5.0, 9, 3)])
def test_a_rate_takes_two_tasks(stuck: StuckTasks) -> None:
    assert (stuck.per_hour, stuck.hours_left) == (None, None)


def test_onset_is_the_earlier_of_kernel_log_and_metric() -> None:
    onset = only(samples.whole_cluster()).onset
    assert onset.first == onset.kernel == pytest.approx(NOW - 5 * samples.HOUR)
    assert onset.metric == NOW - 5 * samples.HOUR + 15
    assert not onset.is_bound
    early = samples.series(first_at=NOW - 20_000)
    assert only(investigated(node(2, oops()), all_series=[early])).onset.first == NOW - 20_000


def test_an_onset_among_lost_records_is_a_bound() -> None:
    log = oops()
    log[1] = replace(log[1], lost_before=512)
    found = only(investigated(node(2, log)))
    assert found.onset.kernel_not_later_than and found.onset.is_bound
    # The series begin with it: it may have begun long before.
    late = samples.series(first_at=samples.SERIES_START, from_start=True, grew_at=None)
    assert only(investigated(node(2), all_series=[late])).onset == Onset(
        metric=samples.SERIES_START, metric_not_later_than=True
    )


def test_a_gpu_by_all_its_names_with_its_rank_and_its_step() -> None:
    gpu = only(samples.whole_cluster(), 6).gpus[5]
    assert (gpu.gpu, gpu.address, gpu.uuid) == (5, "0000:95:00.0", "GPU-3f1c9a0e5d7b2245")
    assert gpu.rank == "rank 11 (trainer_11, pid 4242), last step 118 (2026-11-20 03:12:00 UTC)"
    assert (gpu.errors["umc"], gpu.bad_pages, gpu.resets) == ((2, 14, 0), (130, 4, 0), 1)


def test_numbers_of_nvidia_have_their_meaning_and_what_to_do() -> None:
    found = only(samples.whole_cluster(), 7)
    meanings = {event.meaning.partition(":")[0]: event for event in found.events}
    assert meanings.keys() == {"Xid 79", "Xid 64", "SXid 12028"}
    assert (meanings["Xid 79"].gpu, "power-cycle" in meanings["Xid 79"].next_step) == (5, True)
    assert (found.versions["nvidia"], found.signs) == ("550.54.15", ())


def test_corrected_errors_alone_leave_a_node_clean() -> None:
    counts = [replace(count, ue=0) for count in samples.memory_error().records("ras")]
    assert only(investigated(node(2, ras=counts))).verdict is CLEAN


# ---- inside of a diagnosis


def observed(confidence: Confidence) -> Observation:
    seen = (Evidence("/dev/kmsg", "RIP: amdgpu_cper_ring_write"),)
    fault = Finding("gpu-driver-fault", "node002", confidence=confidence, evidence=seen)
    return Observation(fault, "nodes", "gpu-driver-fault")


@pytest.mark.parametrize(
    ("before", "all_series", "after"),
    [
        (Confidence.LIKELY, [samples.series()], Confidence.CONFIRMED),
        (Confidence.LIKELY, [samples.series("node001")], Confidence.LIKELY),
        (Confidence.LIKELY, samples.well_series(2), Confidence.LIKELY),
        (Confidence.POSSIBLE, [samples.series()], Confidence.POSSIBLE),
    ],
)
def test_a_sign_in_the_series_confirms_what_a_node_shows(
    before: Confidence, all_series: Sequence[DriverSigns], after: Confidence
) -> None:
    (weighed,) = with_series([observed(before)], all_series)
    assert weighed.finding.confidence is after
    assert len(weighed.finding.evidence) == 1 + 2 * (after is Confidence.CONFIRMED)
