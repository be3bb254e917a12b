"""Kernel log lines -> events -> findings, and whom of the job they hit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag import catalog
from raydiag.model import Actor, Confidence, Finding, Severity, Snapshot
from raydiag.probes.kernel_log import KernelLine
from raydiag.probes.processes import RayProcess
from raydiag.rules.kernel import kernel_findings
from raydiag.rules.kernel_events import KernelEventSeen, events
from tests.rules.snapshots import NOW, report, snapshot

GPU, OTHER = "0000:1b:00.0", "0000:3d:00.0"
UMC = f"amdgpu {GPU}: amdgpu: {{3}}socket: 0, die: 1, 2 new uncorrectable hardware errors detected"
OOPS = """BUG: kernel NULL pointer dereference, address: 0000000000000010
#PF: supervisor read access in kernel mode
Oops: 0000 [#1] PREEMPT SMP NOPTI
CPU: 9 PID: 5150 Comm: python3 Tainted: G           OE      6.8.0-45-generic #45-Ubuntu
RIP: 0010:xfs_buf_get_map+0x21/0x90 [xfs]
Call Trace:
 <TASK>
 ? __die+0x24/0x70
 xfs_read_agf+0x8f/0x180 [xfs]
 </TASK>
---[ end trace 0000000000000000 ]---""".splitlines()
FAULT = [
    line.replace("xfs_buf_get_map", "amdgpu_cper_ring_get_ent_sz")
    .replace("xfs_read_agf", "amdgpu_cper_ring_write")
    .replace("[xfs]", "[amdgpu]")
    for line in OOPS
]
OOM = [
    "raylet invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0",
    "CPU: 3 PID: 800 Comm: raylet Not tainted 6.8.0-45-generic #45-Ubuntu",
    "Call Trace:",
    " dump_stack_lvl+0x48/0x70",
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
    "task_memcg=/job7,task=ray::MaxTextTra,pid=4242,uid=0",
    "Out of memory: Killed process 4242 (ray::MaxTextTra) total-vm:912345kB, anon-rss:800000kB",
    "oom_reaper: reaped process 4242 (ray::MaxTextTra), now anon-rss:0kB, file-rss:0kB",
]


def log(*texts: str, start_s: float = NOW - 600, step_s: float = 0.001) -> list[KernelLine]:
    """Lines that the kernel wrote one after the other; the first is the first since boot."""
    return [
        KernelLine(number, start_s + number * step_s, 1.0, 3, 0, text, True, 0)
        for number, text in enumerate(texts)
    ]


def names(lines: Iterable[KernelLine]) -> list[str]:
    return [event.event for event in events(lines)]


def only(lines: Sequence[KernelLine]) -> KernelEventSeen:
    seen = events(lines)
    assert len(seen) == 1, [event.event for event in seen]
    return seen[0]


def judged(lines: Sequence[KernelLine], **more: object) -> list[Finding]:
    return list(kernel_findings(cluster(lines, **more)))  # type: ignore[arg-type]


def cluster(
    lines: Sequence[KernelLine],
    job_start: float | None = None,
    processes: Sequence[RayProcess] = (),
    actors: Sequence[Actor] = (),
) -> Snapshot:
    node = report("node1", kernel_log=lines, processes=processes)
    return replace(snapshot(node, job_start=job_start), actors=actors)


def worker(pid: int, comm: str = "ray::MaxTextTra", **more: object) -> RayProcess:
    fields = {"ppid": 800, "start_time_s": NOW - 3600, "command": comm, "role": "worker"}
    fields |= {"worker_pid": pid, "state": "R", "threads": 9, "rss_bytes": 1, "environment": {}}
    return RayProcess(pid=pid, comm=comm, **(fields | more))  # type: ignore[arg-type]


def actor(pid: int, rank: int = 3, alive: bool = False, **more: str) -> Actor:
    fields = {"class_name": "MaxTextTrainerActor", "name": f"maxtext_trainer_{rank}"} | more
    return Actor("id-node1", pid, fields["class_name"], fields["name"], alive)


# --- events --------------------------------------------------------------------------------------


def test_healthy_log_has_no_event() -> None:
    lines = log(
        "Linux version 6.8.0-45-generic",
        f"amdgpu {GPU}: amdgpu: no uncorrectable hardware errors detected in umc block",
        f"amdgpu {GPU}: amdgpu: SMU is initialized successfully!",
        " amdgpu_device_gpu_recover+0x81f/0xb20 [amdgpu]",
    )
    assert events(lines) == []
    assert judged(lines) == []
    assert events([]) == []
    assert judged([]) == []


def test_oops_is_one_event_with_its_whole_trace() -> None:
    event = only(log("eth0: up", *OOPS, "eth0: down"))
    assert (event.event, event.finding, event.severity) == ("kernel-oops",) * 2 + (
        Severity.CRITICAL,
    )
    assert [line.text for line in event.lines] == OOPS


@pytest.mark.parametrize(
    ("headline", "kind"),
    [
        (FAULT[0], "kernel-oops"),
        ("WARNING: CPU: 9 PID: 1 at drivers/gpu/drm/amd/x.c:3", "amdgpu-other-error"),
    ],
)
def test_crash_in_the_error_reporting_path_is_the_driver_fault(headline: str, kind: str) -> None:
    event = only(log(headline, *FAULT[1:]))
    assert (event.event, event.finding) == ("amdgpu-cper", "gpu-driver-fault")
    assert event.related == (kind,)
    assert event.symbol == "amdgpu_cper_ring_get_ent_sz"
    assert event.severity is Severity.WARNING
    assert len(event.lines) == len(FAULT)


def test_frame_that_was_not_called_does_not_count() -> None:
    guess = [" ? amdgpu_cper_ring_write+0x7e/0x250 [amdgpu]", *OOPS[-2:]]
    assert names(log(*OOPS[:8], *guess)) == ["kernel-oops"]


def test_trace_without_its_headline_still_shows_the_fault() -> None:
    assert only(log(*FAULT[4:])).event == "amdgpu-cper"


def test_trace_ends_with_its_mark_a_pause_or_lost_records() -> None:
    frame = " amdgpu_cper_ring_write+0x7e/0x250 [amdgpu]"
    assert names(log(*OOPS, frame)) == ["kernel-oops", "amdgpu-cper"]
    late = log(*OOPS[:6]) + log(frame, start_s=NOW - 590)
    assert names(late) == ["kernel-oops", "amdgpu-cper"]
    after_loss = log(*OOPS[:6], frame)
    after_loss[-1] = replace(after_loss[-1], lost_before=7)
    assert names(after_loss) == ["kernel-oops", "amdgpu-cper"]
    assert names(log(*OOPS[:6], "------------[ cut here ]------------", frame)) == [
        "kernel-oops",
        "amdgpu-cper",
    ]


def test_hung_task_keeps_its_stack_and_its_neighbours_apart() -> None:
    lines = log(
        "INFO: task python3:4242 blocked for more than 122 seconds.",
        "      Not tainted 6.8.0-45-generic #45-Ubuntu",
        '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
        "task:python3 state:D stack:0 pid:4242 tgid:4242 ppid:1 flags:0x00000002",
        "Call Trace:",
        " nfs_wait_bit_killable+0x11/0x80 [nfs]",
        "INFO: task python3:4243 blocked for more than 122 seconds.",
        " amdgpu_ras_aca_sysfs_read+0x1b/0x30 [amdgpu]",
    )
    first, second = events(lines)
    assert (first.pid, first.process, len(first.lines)) == (4242, "python3", 6)
    assert (first.event, first.finding) == ("hung-task", "hung-task")
    assert (second.event, second.finding, second.pid) == ("hung-task", "gpu-driver-fault", 4243)


def test_own_stuck_reader_is_no_hung_task_but_may_show_the_driver_fault() -> None:
    complaint = "INFO: task rd-0123456789ab:77 blocked for more than 122 seconds."
    assert judged(log(complaint, "Call Trace:", " request_wait_answer+0x11/0x80")) == []
    (found,) = judged(log(complaint, "Call Trace:", " amdgpu_cper_ring_write+0x1b/0x30 [amdgpu]"))
    assert found.failure_class == "gpu-driver-fault"
    (other,) = judged(log(complaint.replace("rd-0123456789ab", "rd-mapper")))
    assert other.failure_class == "hung-task"


def test_lines_of_one_page_fault_are_one_event() -> None:
    event = only(
        log(
            f"amdgpu {GPU}: amdgpu: [gfxhub0] page fault (src_id:0 ring:24 vmid:8 pasid:32770)",
            f"amdgpu {GPU}: amdgpu:  Process python3 pid 4242 thread python3 pid 4250",
            f"amdgpu {GPU}: amdgpu:   in page starting at address 0x00007f10c0a00000 from client 9",
            f"amdgpu {GPU}: amdgpu: GCVM_L2_PROTECTION_FAULT_STATUS:0x00801A31",
        )
    )
    assert (event.event, event.device) == ("amdgpu-page-fault", GPU)
    assert (event.pid, event.process, event.count) == (4242, "python3", 1)


def test_driver_that_knows_no_process_names_none() -> None:
    text = "[mmhub0] no-retry page fault (src_id:0 ring:0 vmid:1 pasid:0, for process  pid 0 thread"
    event = only(log(f"amdgpu {GPU}: amdgpu: {text}  pid 0)"))
    assert (event.pid, event.process) == (None, None)


def test_process_of_a_driver_that_knows_only_its_name() -> None:
    event = only(log(f"amdgpu {GPU}: amdgpu: Send SIGBUS to process python3(pasid:32772)"))
    assert (event.pid, event.process) == (None, "python3")


def test_number_that_may_be_a_pasid_is_no_pid() -> None:
    lines = (
        "Process 4242 failed to remap doorbell 0x7f",
        "Process 32772 failed to remap doorbell 0x7f",
    )
    pids = [only(log(f"amdgpu: {line}")).pid for line in lines]
    assert pids == [4242, None]


def test_reports_of_two_gpus_and_two_blocks_stay_apart() -> None:
    lines = log(
        f"{UMC} in umc block",
        f"{UMC} in gfx block",
        f"{UMC} in umc block".replace(GPU, OTHER),
        f"{UMC} in total in umc block",
    )
    seen = events(lines)
    assert [(event.device, event.block) for event in seen] == [
        (GPU, "umc"),
        (GPU, "gfx"),
        (OTHER, "umc"),
    ]
    assert [len(event.lines) for event in seen] == [2, 1, 1]
    assert [event.finding for event in seen] == [
        "gpu-memory-error",
        "gpu-ras-error",
        "gpu-memory-error",
    ]


def test_error_banks_take_the_kind_that_their_status_says() -> None:
    head = f"amdgpu {GPU}: {{7}}[Hardware Error]: "
    logged = f"{head}Accelerator Check Architecture events logged"
    assert names(log(logged, f"{head}ACA[01/01].STATUS=0x9c20400000000001")) == ["amdgpu-ras-ce"]
    assert names(log(logged, f"{head}ACA[01/01].STATUS=0xbea0000000000108")) == ["amdgpu-ras-ue"]
    named = only(log(f"{head}ACA[01/01].STATUS=0xbea0000000000108", f"{UMC} in umc block"))
    assert (named.finding, named.errors) == ("gpu-memory-error", 2)


def test_victim_of_an_oom_kill_is_the_killed_not_the_asking_process() -> None:
    event = only(log(*OOM))
    assert (event.event, event.pid, event.process) == ("oom-kill", 4242, "ray::MaxTextTra")
    assert len(event.lines) == len(OOM)


def test_oom_in_a_container_is_not_one_of_the_host() -> None:
    killed = "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:9kB"
    assert names(log(OOM[0], killed, OOM[-1])) == ["oom-kill-cgroup"]


def test_repeats_are_counted() -> None:
    event = only(log(*["INFO: task nfsd:77 blocked for more than 122 seconds."] * 5, step_s=120))
    assert event.count == 5
    assert event.last_s - event.first_s == 480


OLD_TIMEOUT = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* "


def test_ring_timeout_without_address_takes_process_and_gpu_from_beside() -> None:
    lines = log(
        f"{OLD_TIMEOUT}ring gfx timeout, signaled seq=8, emitted seq=9",
        f"{OLD_TIMEOUT}Process information: process x pid 7 thread x:cs0 pid 8",
    )
    event = only(lines)
    assert (event.ring, event.pid, event.process, event.device) == ("gfx", 7, "x", None)
    reset = log(f"amdgpu {GPU}: amdgpu: GPU reset begin!", start_s=NOW - 599)
    assert [(e.device, e.device_beside) for e in events(lines + reset)] == [
        (GPU, True),
        (GPU, False),
    ]
    assert "the GPU is that of the lines beside it" in judged(lines + reset)[0].explanation
    two = log(f"amdgpu {OTHER}: amdgpu: GPU reset begin!", start_s=NOW - 598)
    assert events(lines + reset + two)[0].device is None


# --- findings ------------------------------------------------------------------------------------


def test_uncorrectable_memory_error_names_gpu_time_and_count() -> None:
    (finding,) = judged(log(f"{UMC} in umc block", start_s=NOW - 60))
    assert (finding.failure_class, finding.host, finding.device) == (
        "gpu-memory-error",
        "node1",
        GPU,
    )
    assert finding.severity is Severity.CRITICAL
    assert finding.confidence is Confidence.CONFIRMED
    assert finding.onset == NOW - 60
    assert finding.evidence[0].source == "/dev/kmsg"
    assert finding.evidence[0].text == f"{UMC} in umc block"
    assert finding.evidence[0].time == NOW - 60
    assert "block umc; up to 2 in one line" in finding.explanation
    assert "± 1 s" in finding.explanation
    assert "not later than" not in finding.explanation


@pytest.mark.parametrize(
    ("block", "kind", "failure_class", "severity"),
    [
        ("umc", "uncorrectable", "gpu-memory-error", Severity.CRITICAL),
        ("umc", "correctable", "gpu-memory-degrading", Severity.WARNING),
        ("xgmi_wafl", "uncorrectable", "xgmi-error", Severity.CRITICAL),
        ("xgmi_wafl", "correctable", "xgmi-error", Severity.WARNING),
        ("sdma", "uncorrectable", "gpu-ras-error", Severity.CRITICAL),
        ("mmhub", "correctable", "gpu-ras-error", Severity.WARNING),
    ],
)
def test_hardware_block_decides_the_class(
    block: str, kind: str, failure_class: str, severity: Severity
) -> None:
    (finding,) = judged(
        log(f"amdgpu {GPU}: amdgpu: 1 {kind} hardware errors detected in {block} block")
    )
    assert (finding.failure_class, finding.severity) == (failure_class, severity)


def test_driver_fault_is_a_warning_with_the_whole_stack() -> None:
    (finding,) = judged(log(*FAULT))
    assert (finding.failure_class, finding.severity) == ("gpu-driver-fault", Severity.WARNING)
    assert [piece.text for piece in finding.evidence] == FAULT
    assert "amdgpu_cper_ring_get_ent_sz" in finding.explanation


def test_onset_is_a_bound_where_records_are_lost_before_it() -> None:
    lines = log(f"{UMC} in umc block")
    overwritten = [replace(lines[0], seq=9000)]
    (finding,) = judged(overwritten)
    assert "not later than" in finding.explanation
    gap = [*log("eth0: up"), replace(lines[0], lost_before=3)]
    (finding,) = judged(gap)
    assert "not later than" in finding.explanation
    long_after = [replace(log("eth0: up", start_s=NOW - 9000)[0], seq=9000), *lines]
    (finding,) = judged(long_after)
    assert "not later than" not in finding.explanation


def test_what_was_before_the_job_is_no_alarm_unless_it_lasts() -> None:
    start = NOW - 100
    lasting = judged(log(f"{UMC} in umc block"), job_start=start)
    passing = judged(log("Out of memory: Killed process 77 (dd) total-vm:1kB"), job_start=start)
    assert [finding.severity for finding in lasting] == [Severity.WARNING]
    assert [finding.severity for finding in passing] == [Severity.INFO]
    assert "before the present job started" in lasting[0].explanation
    (within,) = judged(log(f"{UMC} in umc block", start_s=start + 5), job_start=start)
    assert within.severity is Severity.CRITICAL
    assert "before the present job" not in within.explanation


DAY_S = 86_400.0
TRIFLE = "amdgpu 0000:1b:00.0: amdgpu: [drm] *ERROR* odd but harmless"
BROKEN = "amdgpu 0000:1b:00.0: amdgpu: Fatal error during GPU init"


@pytest.mark.parametrize("job_start", [NOW - 3600, None])
def test_what_is_new_decides_how_grave_it_is(job_start: float | None) -> None:
    lines = [*log(BROKEN, start_s=NOW - 20 * DAY_S), *log(TRIFLE, start_s=NOW - 600)]
    (found,) = judged(lines, job_start=job_start)
    assert found.severity is Severity.WARNING
    assert found.onset == pytest.approx(NOW - 600)
    assert found.evidence[0].text == TRIFLE
    assert "1 event in the kernel log" in found.explanation
    assert "; 1 more before that" in found.explanation


def test_the_line_that_made_it_grave_is_shown_however_many_are_older() -> None:
    text = "amdgpu 0000:1b:00.0: amdgpu: ring sdma0.0 timeout"
    old = [line for day in range(30, 10, -1) for line in log(text, start_s=NOW - day * DAY_S)]
    (found,) = judged([*old, *log(text, start_s=NOW - 60)], job_start=NOW - 3600)
    assert found.severity is Severity.CRITICAL
    assert found.evidence[0].time == pytest.approx(NOW - 60)
    assert found.onset == pytest.approx(NOW - 60)


def test_an_old_trifle_does_not_date_a_new_fault() -> None:
    error = "amdgpu 0000:1b:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block"
    lines = [
        *log(TRIFLE, start_s=NOW - 29 * DAY_S),
        *log(TRIFLE, error, start_s=NOW - 600),
    ]
    found = {finding.failure_class: finding for finding in judged(lines)}
    assert found["gpu-memory-error"].onset == pytest.approx(NOW - 600)
    assert found["amdgpu-other-error"].severity is Severity.INFO


def test_event_at_the_edge_of_the_job_start_counts_as_of_the_job() -> None:
    (finding,) = judged(log(f"{UMC} in umc block", start_s=NOW - 100.5), job_start=NOW - 100)
    assert finding.severity is Severity.CRITICAL


def test_reset_that_succeeded_is_told_and_stays_fatal_for_the_job() -> None:
    lines = log(
        f"amdgpu {GPU}: amdgpu: ring gfx_0.0.0 timeout, signaled seq=8, emitted seq=9",
        f"amdgpu {GPU}: amdgpu: GPU reset begin!",
        f"amdgpu {GPU}: amdgpu: MODE1 reset",
        f"amdgpu {GPU}: amdgpu: GPU reset(1) succeeded!",
    )
    found = {finding.failure_class: finding for finding in judged(lines)}
    assert found.keys() == {"amdgpu-ring-timeout", "amdgpu-reset"}
    for finding in found.values():
        assert finding.severity is Severity.CRITICAL
        assert "recovery" in finding.explanation
        assert "lost" in finding.explanation
    (again, *_) = judged([*lines, *log(lines[0].text, start_s=NOW - 60)])
    assert "recovery" not in again.explanation


def test_recovery_alone_is_information() -> None:
    found = judged(log(f"amdgpu {GPU}: amdgpu: ring comp_1.1.0 timeout, but soft recovered"))
    assert [(f.failure_class, f.severity) for f in found] == [
        ("amdgpu-ring-timeout", Severity.INFO)
    ]


def test_reset_of_another_gpu_is_no_recovery() -> None:
    lines = log(
        f"amdgpu {GPU}: amdgpu: ring gfx_0.0.0 timeout, signaled seq=8, emitted seq=9",
        f"amdgpu {OTHER}: amdgpu: GPU reset(1) succeeded!",
    )
    assert "recovery" not in judged(lines)[0].explanation


def test_driver_error_beside_a_specific_one_is_its_evidence() -> None:
    illegal = (
        "[drm:gfx_v9_4_3_priv_reg_irq [amdgpu]] *ERROR* Illegal register access in command stream"
    )
    timeout = f"amdgpu {GPU}: amdgpu: ring gfx_0.0.0 timeout, signaled seq=8, emitted seq=9"
    (finding,) = judged(log(illegal, timeout))
    assert finding.failure_class == "amdgpu-ring-timeout"
    assert {piece.text for piece in finding.evidence} == {illegal, timeout}
    assert [f.failure_class for f in judged(log(illegal))] == ["amdgpu-other-error"]


def test_line_that_a_program_wrote_proves_nothing() -> None:
    lines = [replace(line, facility=1) for line in log(f"{UMC} in umc block", *FAULT)]
    for finding in judged(lines):
        assert finding.severity is not Severity.CRITICAL
        assert finding.confidence is Confidence.POSSIBLE
        assert "user space" in finding.evidence[0].source
    kernel = log(f"{UMC} in umc block", start_s=NOW - 500)
    both = [f for f in judged([*lines, *kernel]) if f.failure_class == "gpu-memory-error"]
    assert [(f.confidence, f.onset) for f in both] == [(Confidence.CONFIRMED, NOW - 500)]


def test_program_cannot_make_a_mild_event_grave() -> None:
    begin = replace(log(f"amdgpu {GPU}: amdgpu: GPU reset begin!")[0], facility=3)
    mild = log(f"amdgpu {GPU}: amdgpu: MODE1 reset")
    (finding,) = judged([begin, *mild])
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CONFIRMED)


def test_two_ray_nodes_on_one_host_tell_of_one_fault() -> None:
    lines = log(f"{UMC} in umc block")
    nodes = [report("node1", node_id=name, kernel_log=lines) for name in ("a", "b")]
    assert len(list(kernel_findings(snapshot(*nodes)))) == 1


# --- whom it hit ---------------------------------------------------------------------------------


def test_killed_actor_is_named_with_its_rank() -> None:
    (finding,) = judged(log(*OOM), actors=[actor(4240 + rank, 1 + rank) for rank in range(5)])
    assert (finding.task, finding.pid) == ("maxtext_trainer_3", 4242)
    assert finding.confidence is Confidence.CONFIRMED
    assert (
        "Killed pid 4242 (ray::MaxTextTra) was Ray worker MaxTextTrainerActor "
        "(maxtext_trainer_3, rank 3)." in finding.explanation
    )


def test_killed_actor_is_found_by_name_where_pids_are_of_another_namespace() -> None:
    (finding,) = judged(log(*OOM), actors=[actor(91), actor(92, 4, alive=True)])
    assert finding.task == "maxtext_trainer_3"
    assert finding.confidence is Confidence.LIKELY
    assert "possibly Ray worker" in finding.explanation
    (open_question,) = judged(log(*OOM), actors=[actor(91), actor(92, 4)])
    assert open_question.task is None


def test_equal_pid_with_another_name_is_another_process() -> None:
    text = "Out of memory: Killed process 4242 (postgres) total-vm:9kB"
    (finding,) = judged(log(text), actors=[actor(4242)], processes=[worker(4242)])
    assert (finding.task, finding.pid) == (None, 4242)
    hung = "INFO: task postgres:4242 blocked for more than 122 seconds."
    (finding,) = judged(log(hung), actors=[actor(4242, alive=True)], processes=[worker(4242)])
    assert finding.task is None


def test_actor_of_another_node_with_the_same_pid_is_not_the_victim() -> None:
    elsewhere = replace(actor(4242), node_id="id-node2")
    (finding,) = judged(log(*OOM), actors=[elsewhere])
    assert finding.task is None


def test_living_worker_and_its_child_are_named() -> None:
    hung = "INFO: task {}:{} blocked for more than 122 seconds."
    child = worker(5150, "python3", role="child", worker_pid=4242)
    found = judged(
        log(hung.format("ray::MaxTextTra", 4242), hung.format("python3", 5150)),
        processes=[worker(4242), child],
        actors=[actor(4242, alive=True)],
    )
    assert [finding.task for finding in found] == ["maxtext_trainer_3"]
    assert "is Ray worker MaxTextTrainerActor" in found[0].explanation
    assert "is a child of Ray worker MaxTextTrainerActor" in found[0].explanation


def test_killed_raylet_and_worker_without_actor_have_no_task() -> None:
    hung = log("INFO: task raylet:800 blocked for more than 122 seconds.")
    (finding,) = judged(hung, processes=[worker(800, "raylet", role="raylet", worker_pid=None)])
    assert finding.task is None
    assert "the raylet" in finding.explanation
    idle = log("INFO: task ray::IDLE:4242 blocked for more than 122 seconds.")
    (finding,) = judged(idle, processes=[worker(4242, "ray::IDLE")])
    assert finding.task is None
    assert "Pid 4242 (ray::IDLE) is a Ray worker." in finding.explanation


def test_process_that_started_after_the_event_is_not_meant() -> None:
    young = worker(4242, start_time_s=NOW - 10)
    hung = log("INFO: task ray::MaxTextTra:4242 blocked for more than 122 seconds.")
    (finding,) = judged(hung, processes=[young], actors=[actor(4242, alive=True)])
    assert "Ray worker" not in finding.explanation
    (finding,) = judged(log(*OOM), processes=[young], actors=[actor(4242, alive=True)])
    assert finding.task is None


def test_actor_without_a_name_is_called_by_its_class() -> None:
    (finding,) = judged(log(*OOM), actors=[actor(4242, name="")])
    assert finding.task == "MaxTextTrainerActor"
    short = log("Out of memory: Killed process 9 (ray::Eval.step) total-vm:9kB")
    (finding,) = judged(
        short, actors=[actor(9, class_name="Eval"), actor(8, class_name="Evaluate")]
    )
    assert finding.task == "maxtext_trainer_3"


# --- anything ------------------------------------------------------------------------------------

EXAMPLES = [line for row in catalog.kernel_table().events for line in row.examples] + FAULT + OOM


@given(
    st.lists(
        st.builds(
            KernelLine,
            seq=st.integers(-1, 9),
            time_s=st.floats(NOW - 1e6, NOW) | st.just(float("nan")),
            uncertainty_s=st.just(1.0),
            level=st.integers(0, 7),
            facility=st.integers(0, 1),
            text=st.sampled_from(EXAMPLES) | st.text(max_size=60),
            matched=st.booleans(),
            lost_before=st.integers(0, 2),
        ),
        max_size=12,
    )
)
def test_any_log_is_judged(lines: list[KernelLine]) -> None:
    seen = events(lines)
    assert sum(len(event.lines) for event in seen) <= len(lines)
    found = judged(lines, actors=[actor(4242)], processes=[worker(4242)], job_start=NOW - 5e5)
    assert {finding.failure_class for finding in found} <= catalog.failures().keys()
    assert len({(f.failure_class, f.device) for f in found}) == len(found)
    assert all(finding.evidence for finding in found)
    assert bool(found) == bool(seen)


SEGFAULT = "python3[4242]: segfault at 10 ip 00007f10b1c2d3e4 sp 00007ffd10a0b0c0 error 4 in x.so"


@pytest.mark.parametrize(("age_s", "severity"), [(60, Severity.WARNING), (7200, Severity.INFO)])
def test_what_has_not_come_back_is_history(age_s: float, severity: Severity) -> None:
    lines = log("nfs: server storage7 not responding, still trying", start_s=NOW - age_s)
    (finding,) = judged(lines)
    assert finding.severity is severity


def test_what_hit_the_job_is_no_history() -> None:
    lines = log("nfs: server storage7 not responding, still trying", start_s=NOW - 7200)
    (finding,) = judged(lines, job_start=NOW - 9000)
    assert finding.severity is Severity.WARNING


def test_link_that_came_up_again_after_the_start_of_the_job_stays_a_warning() -> None:
    lines = log(
        "ionic 0000:1b:00.0 eth2: Link down",
        "ionic 0000:1b:00.0 eth2: Link up - 400 Gbps",
        start_s=NOW - 600,
    )
    lines = [replace(line, seq=line.seq + 9000) for line in lines]  # long after the boot
    assert [f.severity for f in judged(lines)] == [Severity.INFO]
    assert [f.severity for f in judged(lines, job_start=NOW - 900)] == [Severity.WARNING]


def test_crash_of_a_program_that_is_not_rays_is_a_remark() -> None:
    process = RayProcess(
        pid=77, ppid=1, start_time_s=NOW - 900, comm="ray::Trainer", command="ray::Trainer",
        role="worker", worker_pid=77, state="S", threads=9, rss_bytes=1, environment={},
    )  # fmt: skip
    assert [f.severity for f in judged(log(SEGFAULT))] == [Severity.WARNING]
    assert [f.severity for f in judged(log(SEGFAULT), processes=[process])] == [Severity.INFO]
    ours = replace(process, pid=4242, worker_pid=4242, comm="python3")
    assert [f.severity for f in judged(log(SEGFAULT), processes=[ours])] == [Severity.WARNING]


def test_number_of_nvidia_explains_itself() -> None:
    text = "NVRM: Xid (PCI:0000:1b:00): 48, pid=4242, name=python3, DBE"
    (finding,) = judged(log(text))
    assert (finding.failure_class, finding.device) == ("gpu-memory-error", "0000:1b:00.0")
    assert "Xid 48: uncorrectable memory error" in finding.explanation
