"""From what was found to one verdict: causes first, symptoms last, blind is not healthy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag import catalog
from raydiag.explain import verdict
from raydiag.explain.verdict import Explained, JobCase, explain
from raydiag.model import (
    Blind,
    Confidence,
    Coverage,
    Evidence,
    Finding,
    HostUnread,
    Observation,
    Severity,
    Status,
)
from raydiag.playbooks.observations import RuledOut

T0 = 1_795_000_000.0
SEEN = Coverage(3, 3)


def seen(
    failure_class: str,
    host: str | None = None,
    onset: float | None = None,
    gpu: int | None = None,
    device: str | None = None,
    severity: Severity | None = None,
    confidence: Confidence = Confidence.CONFIRMED,
    **more: object,
) -> Observation:
    """`onset` in seconds from T0."""
    before_job = bool(more.pop("before_job", False))
    finding = Finding(
        failure_class,
        host,
        gpu,
        device,
        severity=severity,
        onset=None if onset is None else T0 + onset,
        confidence=confidence,
        evidence=(Evidence(f"{failure_class} {host}"),),
        before_job=before_job,
    )
    known = {"uncertainty_s": 10.0, **more}
    return Observation(finding, "test", "row", **known)  # type: ignore[arg-type]


def judged(*observations: Observation, **more: object) -> Explained:
    return explain(JobCase(observations, **{"coverage": SEEN, "status": "running", **more}))  # type: ignore[arg-type]


def hung(*observations: Observation, **more: object) -> Explained:
    """A job that hung 1000 s after T0, as triage and the first playbook saw it."""
    both = seen("hang", onset=1000), seen("rccl-hang", onset=1000)
    known = {"status": "hanging", "primary": "hang", "last_step_at": T0 + 1000, "step_time_s": 12.0}
    return judged(*both, *observations, **{**known, **more})


@pytest.mark.parametrize(
    ("facts", "confidence"),
    [({"first_in_log": 1.0}, Confidence.LIKELY), ({}, Confidence.CONFIRMED)],
)
def test_an_undated_kill_may_have_come_before_the_hang(
    facts: dict[str, float], confidence: Confidence
) -> None:
    told = hung(seen("signal-kill", "n1", facts=facts)).verdict
    assert (told.failure_class, told.confidence) == ("rccl-hang", confidence)


def classes(told: Explained) -> list[str]:
    return [one.failure_class for one in told.diagnosis.chains[0].findings]


# ---- the verdict's class


def test_nothing_found_and_all_seen_is_healthy() -> None:
    case = JobCase((), SEEN, "running")
    told = explain(case)
    assert told.verdict.failure_class == "healthy"
    assert (told.verdict.hosts, told.verdict.onset, told.verdict.recovered) == ((), None, False)
    assert verdict.exit_code(told) == 0


@pytest.mark.parametrize(
    "coverage",
    [
        Coverage(3, 2, (Blind("node3", "no series of this host"),)),
        Coverage(3, 3, (), (HostUnread("node3", "hw_*", Status.NO_DATA, "ends early"),)),
    ],
)
def test_blind_is_not_healthy(coverage: Coverage) -> None:
    case = JobCase((), coverage, "running")
    told = explain(case)
    assert told.verdict.failure_class == "unknown"
    assert verdict.exit_code(told) == 3


def test_a_job_of_which_nothing_is_known_is_not_healthy() -> None:
    case = JobCase((), SEEN, "unknown", told=False)
    assert explain(case).verdict.failure_class == "unknown"
    assert verdict.exit_code(explain(case)) == 3


def test_remarks_leave_a_job_healthy() -> None:
    case = JobCase(
        (seen("tcp-retransmits", "node1", 100), seen("checkpoint-effect", onset=9)), SEEN
    )
    told = explain(case)
    assert told.verdict.failure_class == "healthy"
    assert len(told.diagnosis.findings) == 2
    assert verdict.exit_code(told) == 0


def test_a_hang_without_trigger_dates_from_the_last_step() -> None:
    told = hung()
    assert told.verdict.failure_class == "rccl-hang"
    assert told.verdict.onset == T0 + 1000
    assert told.verdict.hosts == ()
    assert classes(told) == ["rccl-hang", "hang"]


def test_the_trigger_of_a_hang_is_the_verdict() -> None:
    told = hung(
        seen("rdma-degraded", "node2", 940, device="rdma3"),
        seen("gpu-power-outlier", "node1", 1015, symptom=True),
        seen("tcp-retransmits", "node3", 700),
    )
    answer = told.verdict
    assert answer.failure_class == "rdma-degraded"
    assert (answer.hosts, answer.devices) == (("node2",), (("node2", "rdma3"),))
    assert answer.onset == T0 + 940
    assert classes(told)[:3] == ["rdma-degraded", "rccl-hang", "hang"]


def test_a_cause_may_show_after_the_last_step_but_not_long_after() -> None:
    """The step that never ended began when the last one ended."""
    assert hung(seen("rdma-port-down", "node2", 1030)).verdict.failure_class == "rdma-port-down"
    late = hung(seen("rdma-port-down", "node2", 1600))
    assert late.verdict.failure_class == "rccl-hang"
    assert len(late.diagnosis.chains) == 2


def test_what_came_later_is_no_cause_by_way_of_something_without_a_date() -> None:
    told = judged(seen("actor-fail", onset=201), seen("unknown-death", onset=0), seen("node-fail"))
    for chain in told.diagnosis.chains:
        assert {"actor-fail", "unknown-death"} - {one.failure_class for one in chain.findings}


def test_what_was_over_long_before_did_not_cause_it() -> None:
    told = hung(seen("rdma-degraded", "node2", 0, until=T0 + 200, recovered=True))
    assert told.verdict.failure_class == "rccl-hang"
    told = hung(seen("rdma-degraded", "node2", 0, until=T0 + 950, recovered=True))
    assert told.verdict.failure_class == "rdma-degraded"


def test_what_was_so_before_the_job_did_not_end_it() -> None:
    told = hung(seen("gpu-memory-error", "node2", gpu=3, before_job=True))
    assert told.verdict.failure_class == "rccl-hang"
    told = judged(seen("gpu-memory-error", "node2", gpu=3, before_job=True))
    assert told.verdict.failure_class == "gpu-memory-error"
    assert told.verdict.gpus == (("node2", 3),)


def test_a_driver_fault_hangs_no_job() -> None:
    told = hung(seen("gpu-driver-fault", "node2", 900))
    assert told.verdict.failure_class == "rccl-hang"
    assert judged(seen("gpu-driver-fault", "node2", 9)).verdict.failure_class == "gpu-driver-fault"


@pytest.mark.parametrize(
    ("last_step", "verdict"), [(1060, "gpu-driver-fault"), (1000, "amdgpu-ring-timeout")]
)
def test_a_ring_timeout_that_the_job_got_over_is_not_what_is_wrong(
    last_step: float, verdict: str
) -> None:
    ring = seen("amdgpu-ring-timeout", "node2", 1000, gpu=6, severity=Severity.CRITICAL)
    fault = seen("gpu-driver-fault", "node2", 1001, confidence=Confidence.LIKELY)
    told = judged(ring, fault, last_step_at=T0 + last_step, step_time_s=2.0)
    assert told.verdict.failure_class == verdict


@pytest.mark.parametrize("ended", ["signal-kill", "subprocess-fail", "unknown-death", None])
def test_a_driver_fault_is_not_why_a_job_failed(ended: str | None) -> None:
    """Compute takes another path than the driver's reports of errors."""
    crash = [seen(ended, "node2")] if ended else []
    fault = seen("gpu-driver-fault", "node2", 900)
    told = judged(*crash, fault, status="failed", primary=ended)
    assert told.verdict.failure_class == (ended or "unknown")
    found = [one.failure_class for one in told.diagnosis.problems]
    assert "gpu-driver-fault" in found


def test_the_whole_chain_has_its_root_first() -> None:
    """A link that is down loses packets, so the collective stalls, so power and speed fall."""
    told = hung(
        seen("rdma-port-down", "node2", 900, device="rdma3"),
        seen("rdma-retry-exhausted", "node2", 920, device="rdma4"),
        seen("tgs-degradation", onset=1005, symptom=True),
        seen("gpu-underutilised", "node1", 1010, symptom=True),
    )
    assert told.verdict.failure_class == "rdma-port-down"
    assert classes(told) == [
        *("rdma-port-down", "rdma-retry-exhausted", "rccl-hang", "hang"),
        *("tgs-degradation", "gpu-underutilised"),
    ]


def test_one_fault_of_one_device_is_one_finding_of_the_most_specific_class() -> None:
    told = hung(
        seen("rdma-degraded", "node2", 900, device="rdma3"),
        seen("rdma-retry-exhausted", "node2", 960, device="rdma3"),
        seen("rdma-degraded", "node1", 100, device="rdma3", until=T0 + 200, recovered=True),
    )
    assert told.verdict.failure_class == "rdma-retry-exhausted"
    assert told.verdict.onset == T0 + 900  # of its first sign
    assert told.verdict.devices == (("node2", "rdma3"),)
    root = told.diagnosis.chains[0].findings[0]
    assert [item.source for item in root.evidence][-1] == "rdma-degraded node2"


def test_errors_of_one_gpu_come_from_no_other_gpu() -> None:
    told = judged(
        seen("gpu-memory-degrading", "node1", 100, gpu=1),
        seen("gpu-memory-error", "node1", 900, gpu=3),
    )
    assert told.verdict.gpus == (("node1", 3),)
    assert len(told.diagnosis.chains) == 2


def test_peers_resend_to_a_node_that_died() -> None:
    told = hung(
        seen("node-death", "node2", 1010, uncertainty_s=20.0),
        seen("rdma-degraded", "node1", 1015, device="rdma0"),
        seen("rdma-degraded", "node3", 1016, device="rdma0"),
    )
    assert told.verdict.failure_class == "node-death"
    assert told.verdict.hosts == ("node2",)
    assert len(told.diagnosis.chains) == 1


def test_a_straggler_is_its_own_even_when_another_host_is_sick() -> None:
    told = judged(seen("cpu-contention", "node1", 100), seen("straggler", "node2", 200))
    assert len(told.diagnosis.chains) == 2


def test_of_near_causes_the_graver_counts_of_others_the_nearer() -> None:
    near = hung(seen("thermal-throttling", "node1", 930), seen("pcie-fatal", "node2", 960, gpu=1))
    assert near.verdict.failure_class == "pcie-fatal"
    far = hung(seen("rdma-degraded", "node1", 950), seen("gpu-memory-error", "node2", 10, gpu=1))
    assert far.verdict.failure_class == "rdma-degraded"


def test_several_hosts_with_one_fault_are_one_verdict() -> None:
    told = judged(
        seen("rdma-degraded", "node2", 300, device="rdma1"),
        seen("rdma-degraded", "node1", 100, device="rdma0"),
        seen("tgs-degradation", onset=310, symptom=True),
    )
    assert told.verdict.hosts == ("node1", "node2")
    assert told.verdict.onset == T0 + 100


def test_what_has_recovered_is_still_the_verdict() -> None:
    told = judged(seen("rdma-degraded", "node1", 100, until=T0 + 700, recovered=True))
    assert told.verdict.failure_class == "rdma-degraded"
    assert told.verdict.recovered
    told = judged(
        seen("rdma-degraded", "node1", 100, until=T0 + 700, recovered=True),
        seen("storage-stall", "node2", 900),
    )
    assert (told.verdict.failure_class, told.verdict.recovered) == ("storage-stall", False)


def test_a_symptom_is_the_verdict_only_where_nothing_explains_it() -> None:
    slow, cool = seen("tgs-degradation", onset=50), seen("gpu-clock-drop", "node1", 40, gpu=2)
    told = judged(slow, cool)
    assert told.verdict.failure_class == "gpu-clock-drop"
    assert told.verdict.confidence is Confidence.LIKELY
    assert judged(slow).verdict.failure_class == "tgs-degradation"
    passing = seen("rdma-degraded", "node2", 500, until=T0 + 600, recovered=True)
    assert judged(slow, cool, passing).verdict.failure_class == "gpu-clock-drop"
    assert judged(cool, passing).verdict.failure_class == "rdma-degraded"
    hot = seen("thermal-throttling", "node1", 20, gpu=2)
    assert judged(slow, cool, hot).verdict.failure_class == "thermal-throttling"
    assert judged(slow, seen("ghost-data", "node3", 10)).verdict.failure_class == "tgs-degradation"


# ---- the job's log and what watches the job


def test_a_node_that_died_took_nobody_elses_metrics() -> None:
    told = hung(seen("node-death", "n1", 990), seen("ray-metrics-missing"))
    assert told.verdict.failure_class == "node-death"
    assert "ray-metrics-missing" not in classes(told)
    own = hung(seen("node-death", "n1", 990), seen("ray-metrics-missing", "n1", 990))
    assert "ray-metrics-missing" in classes(own)


@pytest.mark.parametrize(("known_to_s", "root"), [(10.0, "hang"), (480.0, "node-death")])
def test_a_hang_of_log_and_series_is_as_old_as_the_less_sure_says(
    known_to_s: float, root: str
) -> None:
    """It may have begun in the save after the last step: what came in it may be its cause."""
    told = judged(
        seen("hang", onset=1000),
        seen("hang", onset=1000, uncertainty_s=known_to_s),
        seen("node-death", "n1", 1200, confidence=Confidence.POSSIBLE),
        status="hanging",
        primary="hang",
        step_time_s=12.0,
    )
    assert told.verdict.failure_class == root


def test_a_well_job_with_a_sick_exporter_gets_its_class() -> None:
    told = judged(seen("ghost-data", "node3", 10), status="completed")
    assert told.verdict.failure_class == "ghost-data"
    both = hung(seen("ghost-data", "node3", 10))
    assert both.verdict.failure_class == "rccl-hang"


def test_what_the_log_says_stands_where_no_series_explains_it() -> None:
    crash = seen("python-exception", "node1")
    told = judged(crash, seen("ghost-data", "node3"), status="failed", primary="python-exception")
    assert told.verdict.failure_class == "python-exception"
    elsewhere = seen("gpu-driver-fault", "node2", 5)
    told = judged(crash, elsewhere, status="failed", primary="python-exception")
    assert told.verdict.failure_class == "python-exception"


def test_a_killed_process_is_explained_by_memory() -> None:
    told = judged(
        seen("signal-kill", "node1"),
        seen("oom-host", "node1", 100, facts={"pattern": "leak", "kill_time": T0 + 800}),
        status="failed",
        primary="signal-kill",
    )
    answer = told.verdict
    assert answer.failure_class == "oom-host"
    assert (answer.pattern, answer.kill_time, answer.onset) == ("leak", T0 + 800, T0 + 100)


def test_a_failure_that_nothing_says_anything_about_is_unknown() -> None:
    told = judged(status="failed")
    assert told.verdict.failure_class == "unknown"


def test_a_log_without_metrics_is_judged_as_such() -> None:
    why = "the job ran without Ray"
    told = judged(seen("hang"), status="hanging", primary="hang", no_metrics=why)
    assert told.verdict.failure_class == "hang"
    assert told.verdict.confidence is Confidence.LIKELY
    assert why in told.verdict.summary
    assert judged(no_metrics=why).verdict.confidence is Confidence.LIKELY


def test_log_and_series_that_say_the_same_are_one_finding() -> None:
    log = seen("loss-divergence", confidence=Confidence.LIKELY)
    told = judged(log, seen("loss-divergence", onset=70), status="failed")
    (one,) = told.diagnosis.findings
    assert one.onset == T0 + 70
    assert one.confidence is Confidence.CONFIRMED
    assert len(told.observations) == 1


def test_a_verdict_is_not_ruled_out() -> None:
    ruled = [RuledOut("rccl-hang", "steps go on", "p"), RuledOut("oom-host", "no kill", "p")]
    assert [one.failure_class for one in hung(ruled_out=ruled).ruled_out] == ["oom-host"]


def test_nothing_causes_what_was_before_it_by_way_of_something_undated() -> None:
    told = judged(seen("oom-gpu", onset=201), seen("python-exception"), seen("actor-fail", onset=0))
    chains = [[one.failure_class for one in chain.findings] for chain in told.diagnosis.chains]
    assert sorted(chains) == [["actor-fail"], ["oom-gpu", "python-exception"]]


# ---- whatever is found


_ABSORBED = {general for _, general in catalog.more_specific()}
_FOUND = st.builds(
    seen,
    st.sampled_from(sorted(set(catalog.failures()) - _ABSORBED)),
    st.sampled_from([None, "node1", "node2"]),
    st.one_of(st.none(), st.floats(0, 3000)),
    before_job=st.booleans(),
    recovered=st.booleans(),
    until=st.one_of(st.none(), st.floats(T0, T0 + 3000)),
)


@given(st.lists(_FOUND, max_size=10), st.sampled_from(["running", "failed", "hanging"]))
def test_each_finding_stands_in_one_chain_and_no_effect_comes_first(
    found: list[Observation], status: str
) -> None:
    told = judged(*found, status=status, primary="hang" if status == "hanging" else None)
    chained = [one for chain in told.diagnosis.chains for one in chain.findings]
    places = {(o.finding.failure_class, o.finding.host) for o in found}
    assert {(one.failure_class, one.host) for one in chained} == places
    assert len(chained) == len(places) == len(told.diagnosis.findings)
    for chain in told.diagnosis.chains:
        root, *effects = chain.findings
        for one in effects:
            assert one.failure_class != root.failure_class
            if root.onset is not None and one.onset is not None:
                assert root.onset <= one.onset + 200
    problem = any(one.severity is not Severity.INFO for one in chained)
    assert (told.verdict.failure_class == "healthy") == (not problem and status == "running")


@given(st.lists(_FOUND, max_size=6), st.randoms())
def test_the_order_in_which_things_are_found_does_not_matter(
    found: list[Observation], random: object
) -> None:
    unique = {(o.finding.failure_class, o.finding.host): o for o in found}
    first = judged(*unique.values()).verdict
    shuffled = list(unique.values())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    other = judged(*shuffled).verdict
    assert replace(first, summary="") == replace(other, summary="")


def test_a_sick_job_is_not_explained_by_what_watches_it() -> None:
    blind = [seen("exporter-plugin-skipped", f"node{number}") for number in range(3)]
    for status in ("failed", "hanging"):
        told = judged(*blind, status=status)
        assert told.verdict.failure_class == "unknown"
        assert "job failed" in told.verdict.summary
    told = judged(*blind, seen("hang", onset=10), status="hanging")
    assert told.verdict.failure_class == "hang"
    assert judged(*blind).verdict.failure_class == "exporter-plugin-skipped"


def test_what_the_recovery_test_cleared_is_no_cause_of_a_slow_job() -> None:
    slow, cool = seen("tgs-degradation", onset=200), seen("gpu-clock-drop", "node1", 190, gpu=2)
    facts = {"cleared": 1.0}
    cleared = seen("rdma-degraded", "node2", 195, confidence=Confidence.POSSIBLE, facts=facts)
    assert judged(slow, cool, cleared).verdict.failure_class == "gpu-clock-drop"
    guilty = replace(cleared, facts={"cleared": 0.0})
    assert judged(slow, guilty).verdict.failure_class == "rdma-degraded"


# ---- late is not healthy


def test_a_failed_job_is_never_healthy() -> None:
    told = judged(status="failed")
    assert told.verdict.failure_class == "unknown"
    assert verdict.exit_code(told) == 3


@pytest.mark.parametrize(
    ("silent_s", "step_time_s", "late"),
    [(29.0, 2.0, False), (31.0, 2.0, True), (31.0, None, True), (119.0, 12.0, False)],
)
def test_a_running_job_is_not_healthy_while_its_next_step_is_late(
    silent_s: float, step_time_s: float | None, late: bool
) -> None:
    told = judged(silent_s=silent_s, step_time_s=step_time_s)
    assert told.verdict.failure_class == ("unknown" if late else "healthy")
    assert verdict.exit_code(told) == (3 if late else 0)
    if late:
        assert f"last step was {silent_s:.0f} s ago" in told.verdict.summary
        assert ("usually 2 s" in told.verdict.summary) is (step_time_s is not None)


def test_what_is_found_explains_a_late_step() -> None:
    told = judged(seen("straggler", "node1", 10), silent_s=60.0, step_time_s=2.0)
    assert told.verdict.failure_class == "straggler"


def test_a_job_that_was_cancelled_while_it_stalled_is_not_healthy() -> None:
    stalled = judged(status="cancelled", silent_s=60.0, step_time_s=2.0)
    assert stalled.verdict.failure_class == "unknown"
    assert "60 s after its last step" in stalled.verdict.summary
    assert judged(status="cancelled", silent_s=5.0).verdict.failure_class == "healthy"
    undated = judged(status="cancelled")
    assert undated.verdict.failure_class == "unknown"
    assert "no dated step" in undated.verdict.summary
    within_minutes = judged(status="cancelled", last_step_at=100.0)
    assert within_minutes.verdict.failure_class == "healthy"
    assert within_minutes.verdict.confidence is Confidence.LIKELY
