"""A verdict is the cause that explains what happened, not the first or the loudest anomaly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raydiag.explain.verdict import Explained
from raydiag.explain.weighing import TRIAGE
from raydiag.model import Confidence, Coverage, Severity, Window
from tests.explain.test_verdict import T0, classes, hung, judged, seen

HOURS = Coverage(3, 3, window=Window(T0, T0 + 7200))


def slowed(*more: object, **known: object) -> Explained:
    """A job that is 23 % slower from 3600 s on, to its end."""
    slow = seen("tgs-degradation", onset=3600, until=T0 + 7100, facts={"change_percent": -23.0})
    return judged(slow, *more, **{"coverage": HOURS, **known})  # type: ignore[arg-type]


def why_not(told: Explained, failure_class: str) -> str:
    return next(out.why for out in told.ruled_out if out.failure_class == failure_class)


def test_a_level_that_was_there_for_an_hour_explains_no_slow_down() -> None:
    told = slowed(seen("storage-stall", "node2", 30, until=T0 + 7100))
    assert told.verdict.failure_class == "tgs-degradation"
    assert "for 60 min nothing came of it" in why_not(told, "storage-stall")


def test_what_changed_when_throughput_fell_beats_what_is_older_and_louder() -> None:
    told = slowed(
        seen("cpu-contention", "node1", 30, until=T0 + 7100),
        seen("gpu-memory-degrading", "node3", 900, gpu=1, facts={"grew_by": 11.0}),
        seen("gpu-clock-drop", "node2", 3590, gpu=4, until=T0 + 7100),
    )
    assert (told.verdict.failure_class, told.verdict.hosts) == ("gpu-clock-drop", ("node2",))
    assert "does not cause" in why_not(told, "gpu-memory-degrading")


def test_a_few_corrected_errors_slow_nothing_and_many_do() -> None:
    few = seen("pcie-degraded", "node2", 3580, gpu=1, facts={"grew_by": 11.0})
    assert slowed(few).verdict.failure_class == "tgs-degradation"
    many = seen("pcie-degraded", "node2", 3580, gpu=1, facts={"grew_by": 9000.0})
    assert slowed(many).verdict.failure_class == "pcie-degraded"


def test_corrected_errors_that_began_with_a_slow_down_explain_it_but_not_for_certain() -> None:
    errors = seen("xgmi-error", "node2", 3580, gpu=7, facts={"grew_by": 265.0})
    steady = seen("rdma-degraded", "node1", 2500, device="rdma0", until=T0 + 7100)
    told = slowed(errors, steady)
    assert (told.verdict.failure_class, told.verdict.confidence.value) == ("xgmi-error", "likely")
    early = replace(errors, finding=replace(errors.finding, onset=T0 + 1200))
    assert slowed(early).verdict.failure_class == "tgs-degradation"


def test_sources_that_are_each_a_little_late_may_be_late_together() -> None:
    """Both are scraped each minute: the cause came to light 90 s after its effect."""
    cause = seen("gpu-clock-drop", "node2", 3690, gpu=4, until=T0 + 7100)
    late = replace(cause, uncertainty_s=60.0)
    slow = replace(seen("tgs-degradation", onset=3600, until=T0 + 7100), uncertainty_s=60.0)
    assert judged(slow, late, coverage=HOURS).verdict.failure_class == "gpu-clock-drop"
    assert judged(slow, cause, coverage=HOURS).verdict.failure_class == "tgs-degradation"


def test_a_few_errors_beside_a_part_that_lost_speed_do_not_excuse_it() -> None:
    facts = {"grew_by": 3.0, "slower_part": 1.0}
    lost = seen("pcie-degraded", "node2", 3590, gpu=1, until=T0 + 7100, facts=facts)
    assert slowed(lost).verdict.failure_class == "pcie-degraded"


@pytest.mark.parametrize("fault", ["pcie-fatal", "gpu-memory-error", "gpu-ras-error"])
def test_a_gpu_that_failed_is_why_ray_lost_its_worker(fault: str) -> None:
    dead = replace(seen("ray-node-dead", "node1", 90, facts={"first_in_log": 1.0}), playbook=TRIAGE)
    failed = seen(fault, "node1", 70, gpu=3, severity=Severity.CRITICAL)
    told = judged(dead, failed, status="failed", primary="ray-node-dead")
    assert told.verdict.failure_class == fault


def test_a_grave_fault_counts_where_nothing_explains_a_slow_down() -> None:
    lost = seen("gpu-memory-error", "node2", 300, gpu=1, severity=Severity.CRITICAL)
    told = slowed(lost).verdict
    assert told.failure_class == "gpu-memory-error"
    assert told.confidence is Confidence.LIKELY  # it is there, and does not explain what happened
    assert judged(lost, coverage=HOURS).verdict.confidence is Confidence.CONFIRMED
    port = seen("rdma-degraded", "node1", 3590, device="rdma0", until=T0 + 7100)
    assert slowed(lost, port).verdict.failure_class == "rdma-degraded"


def test_the_cause_of_a_slow_down_ends_with_it() -> None:
    slow = seen("tgs-degradation", onset=3600, until=T0 + 4800, recovered=True)
    stays = seen("storage-stall", "node1", 3560, until=T0 + 7100)
    ends = seen("rdma-degraded", "node2", 3590, device="rdma0", until=T0 + 4810, recovered=True)
    told = judged(slow, stays, ends, coverage=HOURS)
    assert told.verdict.failure_class == "rdma-degraded"
    assert "its effect is over" in why_not(told, "storage-stall")


def test_the_same_fault_elsewhere_belongs_to_it_only_where_it_explains_the_same() -> None:
    guilty = seen("rdma-degraded", "node2", 3590, device="rdma0", until=T0 + 7100)
    early = seen("rdma-degraded", "node1", 200, device="rdma3", until=T0 + 500, recovered=True)
    assert slowed(guilty, early).verdict.hosts == ("node2",)
    later = seen("rdma-degraded", "node3", 5000, device="rdma3", until=T0 + 6000, recovered=True)
    assert slowed(guilty, later).verdict.hosts == ("node2", "node3")


@pytest.mark.parametrize("notice", ["nccl-error", "signal-kill", "actor-fail", "nccl-timeout"])
def test_a_confirmed_fault_on_another_host_beats_how_the_log_says_it_ended(notice: str) -> None:
    told = judged(
        seen(notice, "node1", 1010),
        seen("gpu-memory-error", "node2", 990, gpu=3, severity=Severity.CRITICAL),
        status="failed",
        primary=notice,
    )
    assert (told.verdict.failure_class, told.verdict.hosts) == ("gpu-memory-error", ("node2",))
    assert told.verdict.confidence is Confidence.CONFIRMED


@pytest.mark.parametrize("notice", ["nccl-error", "nccl-timeout", "actor-fail", "subprocess-fail"])
def test_the_watchdogs_end_of_a_hang_is_no_cause(notice: str) -> None:
    told = judged(
        seen("rccl-hang", onset=1000),
        seen(notice, "node1", 1610),
        status="failed",
        primary=notice,
        last_step_at=T0 + 1000,
    )
    assert (told.verdict.failure_class, told.verdict.onset) == ("rccl-hang", T0 + 1000)


def test_an_error_as_steps_stop_is_not_the_end_of_a_hang() -> None:
    told = judged(
        seen("rccl-hang", onset=1000),
        seen("nccl-error", "node1", 1004),
        status="failed",
        primary="nccl-error",
    )
    assert told.verdict.failure_class == "nccl-error"
    assert told.verdict.confidence is Confidence.LIKELY  # somebody noticed, and did not cause it


def test_two_that_explain_it_equally_well_are_a_close_call() -> None:
    told = hung(
        seen("rdma-port-down", "node1", 990, device="rdma0"),
        seen("pcie-fatal", "node2", 995, gpu=1),
    )
    assert told.verdict.confidence is Confidence.LIKELY
    assert hung(seen("pcie-fatal", "node2", 995, gpu=1)).verdict.confidence is Confidence.CONFIRMED


def test_what_kills_slowly_is_dated_by_the_kill() -> None:
    leak = seen("oom-host", "node1", 100, facts={"pattern": "leak", "kill_time": T0 + 5000})
    told = judged(leak, seen("signal-kill", "node1", 5003), status="failed", primary="signal-kill")
    assert classes(told) == ["oom-host", "signal-kill"]


def test_of_alarms_a_change_comes_before_what_was_always_so() -> None:
    always = seen("nic-errors", "node1", 20, until=T0 + 7190)
    new = seen("storage-stall", "node2", 4000, until=T0 + 7190)
    assert judged(always, new, coverage=HOURS).verdict.failure_class == "storage-stall"
    old = seen("gpu-memory-error", "node3", before_job=True, severity=Severity.WARNING)
    assert judged(old, new, coverage=HOURS).verdict.failure_class == "storage-stall"
    assert judged(old, coverage=HOURS).verdict.failure_class == "gpu-memory-error"


def test_an_exporter_that_stopped_is_not_one_that_skips_a_plugin() -> None:
    told = judged(
        seen("exporter-plugin-skipped", "node1", 900),
        seen("exporter-plugin-skipped", "node2"),
        seen("exporter-down", "node1", 900),
        seen("exporter-down", "node2", 900),
    )
    assert (told.verdict.failure_class, told.verdict.hosts) == ("exporter-down", ("node1", "node2"))


def test_a_skewed_clock_is_told_and_explains_no_end() -> None:
    skewed = seen("clock-skew", "node2")
    assert judged(skewed).verdict.failure_class == "clock-skew"
    assert judged(skewed, seen("nic-errors", "node1", 9)).verdict.failure_class == "nic-errors"
    assert judged(skewed, status="failed").verdict.failure_class == "unknown"


def test_a_note_may_explain_a_slow_down_and_no_end() -> None:
    hint = seen("cpu-contention", "node1", 3590, severity=Severity.INFO)
    assert slowed(hint).verdict.failure_class == "cpu-contention"
    few = seen("pcie-degraded", "node1", 980, gpu=1, severity=Severity.INFO)
    told = hung(few, seen("pcie-fatal", "node1", 990, gpu=1))
    assert told.verdict.failure_class == "pcie-fatal"


def test_what_the_log_tells_first_is_not_caused_by_what_it_tells_later() -> None:
    """Without times only triage knows the order of the log's lines."""
    first = replace(seen("rendezvous-fail", "node1", facts={"first_in_log": 1.0}), playbook=TRIAGE)
    later = replace(seen("subprocess-fail", onset=700), playbook=TRIAGE)
    told = judged(first, later, status="failed", primary="rendezvous-fail")
    assert told.verdict.failure_class == "rendezvous-fail"


def test_a_symptom_that_is_only_possible_hides_no_sick_exporter() -> None:
    cool = seen("gpu-power-outlier", "node1", 10, gpu=4, confidence=Confidence.POSSIBLE)
    told = judged(cool, seen("exporter-down", "node2"))
    assert told.verdict.failure_class == "exporter-down"
    assert judged(cool).verdict.failure_class == "gpu-power-outlier"


def test_slower_and_nobody_knows_why_is_possible_and_no_more() -> None:
    assert slowed().verdict.confidence is Confidence.POSSIBLE


def test_the_two_best_candidates_are_shown_with_what_speaks_for_and_against_them() -> None:
    cause = seen("rdma-degraded", "node2", 3590, device="rdma0", until=T0 + 7100)
    older = seen("gpu-clock-drop", "node3", 2600, gpu=1, until=T0 + 7100)
    told = slowed(cause, older)
    chosen, rival = told.candidates
    assert (chosen.failure_class, chosen.host) == ("rdma-degraded", "node2")
    assert "it changed just then" in chosen.speaks_for
    assert (rival.failure_class, rival.host) == ("gpu-clock-drop", "node3")
    assert "nothing came of it" in rival.speaks_against


def test_a_symptom_alone_has_no_candidates() -> None:
    assert slowed().candidates == ()


def test_of_two_ends_that_the_log_tells_the_first_one_counts() -> None:
    actor = replace(seen("actor-fail", "node1", facts={"first_in_log": 1.0}), playbook=TRIAGE)
    launcher = replace(seen("subprocess-fail"), playbook=TRIAGE)
    told = judged(actor, launcher, status="failed", primary="actor-fail")
    assert (told.verdict.failure_class, told.verdict.hosts) == ("actor-fail", ("node1",))
    cause = replace(seen("oom-host", "node1"), playbook=TRIAGE)
    killed = judged(actor, cause, status="failed", primary="actor-fail")
    assert killed.verdict.failure_class == "oom-host"


def test_what_a_process_wrote_keeps_its_order() -> None:
    """The launcher's own exception below a crash of the same task is no cause of it."""
    crash = replace(seen("signal-kill", "node1", 90, facts={"first_in_log": 1.0}), playbook=TRIAGE)
    raised = replace(seen("python-exception", "node1"), playbook=TRIAGE)
    told = judged(crash, raised, status="failed", primary="signal-kill")
    assert told.verdict.failure_class == "python-exception"  # nobody knows who wrote which
    of_task = [replace(each, finding=replace(each.finding, task="2")) for each in (crash, raised)]
    told = judged(*of_task, status="failed", primary="signal-kill")
    assert told.verdict.failure_class == "signal-kill"


def test_a_cause_may_be_dated_after_an_end_that_is_dated_by_the_last_step() -> None:
    end = replace(
        seen("signal-kill", "node1", 90, facts={"first_in_log": 1.0}),
        playbook=TRIAGE,
        uncertainty_s=60.0,
    )
    for onset, expected in ((92, "gpu-missing"), (400, "signal-kill")):
        lost = seen("gpu-missing", "node1", onset, gpu=3, severity=Severity.CRITICAL)
        told = judged(end, lost, status="failed", primary="signal-kill")
        assert told.verdict.failure_class == expected


def test_connections_that_were_aborted_break_a_rendezvous() -> None:
    aborts = seen("tcp-aborts", "node1", 85)
    end = replace(
        seen("rendezvous-fail", "node1", 90, facts={"first_in_log": 1.0}), playbook=TRIAGE
    )
    told = judged(aborts, end, status="failed", primary="rendezvous-fail")
    assert told.verdict.failure_class == "tcp-aborts"


def test_a_loss_that_diverged_ends_processes_and_a_bad_interface_slows() -> None:
    nan = seen("loss-divergence")
    exit_line = replace(
        seen("node-fail", "node1", 90, facts={"first_in_log": 1.0}), playbook=TRIAGE
    )
    told = judged(nan, exit_line, status="failed", primary="node-fail")
    assert told.verdict.failure_class == "loss-divergence"
    errors = seen("nic-errors", "node2", 3590, until=T0 + 7100)
    assert slowed(errors).verdict.failure_class == "nic-errors"


def test_a_machine_that_is_told_by_name_and_by_address_is_named_once() -> None:
    killed = seen("oom-host", "10.0.0.7", 3600)
    told = judged(killed, seen("oom-host", "node2", 3605), coverage=HOURS)
    assert told.verdict.hosts == ("node2",)
    assert judged(killed, coverage=HOURS).verdict.hosts == ("10.0.0.7",)


def test_an_address_may_be_any_named_host() -> None:
    link = seen("nvlink", "node2", 80, gpu=7, severity=Severity.CRITICAL)
    raised = replace(seen("python-exception", "10.0.0.9"), playbook=TRIAGE)
    told = judged(link, raised, status="failed", primary="python-exception")
    assert (told.verdict.failure_class, told.verdict.hosts) == ("nvlink", ("node2",))
    assert told.verdict.confidence is Confidence.LIKELY
    elsewhere = replace(seen("python-exception", "node9"), playbook=TRIAGE)
    told = judged(link, elsewhere, status="failed", primary="python-exception")
    assert told.verdict.failure_class == "python-exception"


def test_a_driver_that_loses_its_gpus_as_steps_stop_is_the_likely_cause_of_a_hang() -> None:
    lost = seen("gpu-driver-fault", "node2", 1010, facts={"reaches_the_job": 1.0})
    told = hung(replace(lost, finding=replace(lost.finding, severity=Severity.CRITICAL)))
    assert (told.verdict.failure_class, told.verdict.hosts) == ("gpu-driver-fault", ("node2",))
    assert told.verdict.confidence is Confidence.LIKELY
    spared = hung(seen("gpu-driver-fault", "node2", 1010))
    assert spared.verdict.failure_class == "rccl-hang"
