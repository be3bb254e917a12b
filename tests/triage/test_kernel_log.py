"""Lines of a kernel log inside a job's log: witnesses with host and time."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydiag.joblog.find import resolve
from raydiag.joblog.read import read
from raydiag.model import Finding, Severity
from raydiag.triage import judge
from raydiag.triage.signatures import Classifier, make_selector
from raydiag.triage.verdict import JobStatus, Moment, Verdict

STEP = (
    "[2026-03-01 12:00:{0:02d}] iteration {1:8d}/    1000 | consumed samples: {1} | elapsed time "
    "per iteration (ms): 5000.0 | lm loss: 3.1E+00 |"
)
STEPS = [STEP.format(number * 5, number) for number in range(1, 7)]  # the last one at 12:00:30
KILLED = ["srun: error: n7: task 3: Killed", "srun: Terminating StepId=41.0"]
AT = "[Sun Mar  1 12:00:{:02d} 2026] "
OOPS = [
    AT.format(31) + "BUG: kernel NULL pointer dereference, address: 0000000000000018",
    AT.format(31) + "RIP: 0010:amdgpu_cper_ring_write+0x1b/0x220 [amdgpu]",
    AT.format(31) + "Call Trace:",
]
NFS = AT.format(31) + "nfs: server 10.0.0.9 not responding, still trying"
LOST = "NVRM: Xid (PCI:0000:1b:00): 79, pid=4242, GPU has fallen off the bus."


def verdict(tmp_path: Path, *lines: str, alive: bool | None = None) -> Verdict:
    log = tmp_path / "41-demo.log"
    log.write_text("\n".join(lines) + "\n")
    facts = read(resolve(str(log)), make_selector, Classifier())
    return judge(facts, Moment(facts.last_time, log_end=True, alive=alive))


def of_class(told: Verdict, failure_class: str) -> Finding:
    """The only finding of that class."""
    (finding,) = [f for f in told.diagnosis.findings if f.failure_class == failure_class]
    return finding


def test_an_oops_stands_beside_a_rank_that_was_killed(tmp_path: Path) -> None:
    """A job's log has no word for it: what became of the job stays the primary failure."""
    told = verdict(tmp_path, *STEPS, *KILLED, *OOPS)
    assert (told.status, told.primary) == (JobStatus.FAILED, "signal-kill")
    fault = of_class(told, "gpu-driver-fault")
    assert (fault.severity, fault.onset) == (Severity.CRITICAL, 1772366431.0)


def test_the_kernels_word_for_what_ended_a_job_is_the_primary_failure(tmp_path: Path) -> None:
    lost = AT.format(29) + LOST
    told = verdict(tmp_path, *STEPS, "[rank3]: ncclSystemError: System call failed", lost)
    assert (told.status, told.primary) == (JobStatus.FAILED, "gpu-hardware-error")
    assert told.cascade == ("gpu-hardware-error", "nccl-error")


def test_a_boot_stamp_before_the_steps_is_history(tmp_path: Path) -> None:
    told = verdict(tmp_path, f"[  123.456789] {LOST}", *STEPS, *KILLED)
    assert told.primary == "signal-kill"
    assert of_class(told, "gpu-hardware-error").severity is Severity.INFO


def test_what_is_older_than_its_dump_is_history(tmp_path: Path) -> None:
    machine_check = "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 5: be00000000800400"
    new, old = f"[2599990.000001] {machine_check}", f"[1000.000001] {machine_check}"
    for line, severity in ((new, Severity.WARNING), (old, Severity.INFO)):
        dump = [line, "[2600000.000001] audit: type=1400"]
        told = verdict(tmp_path, *STEPS, *KILLED, *dump)
        assert told.primary == "signal-kill"
        assert of_class(told, "mce").severity is severity


def test_a_job_whose_own_lines_have_the_stamp_keeps_its_clock(tmp_path: Path) -> None:
    step = STEP.partition("] ")[2]
    lines = [AT.format(second) + step.format(0, second) for second in range(30)]
    told = verdict(tmp_path, *lines, "[Sun Mar  1 13:50:00 2026] the data loader is alive")
    assert told.status is JobStatus.HANGING


def test_a_logger_called_kernel_is_no_kernel(tmp_path: Path) -> None:
    for stamp in ("2026-03-01 12:00:31,123 ERROR", "2026-03-01 12:00:31 ERROR"):
        told = verdict(tmp_path, *STEPS, f"{stamp} kernel: {LOST}", *KILLED)
        assert {finding.host for finding in told.diagnosis.findings} <= {"n7", None}


@pytest.mark.parametrize(
    ("stamp", "host"),
    [
        (AT.format(31), None),
        ("[12345.678901] ", None),
        ("3: [12345.678901] ", None),
        ("kern  :warn  : [12345.678901] ", None),
        ("4,812,12345678901,-;", None),
        ("2026-03-01T12:00:31,123456+00:00 ", None),
        ("Mar  1 12:00:31 n7 kernel: ", "n7"),
        ("2026-03-01T12:00:31.123456+00:00 n7 kernel: ", "n7"),
        ("dmesg on n7: [12345.678901] ", None),
    ],
)
def test_the_forms_of_a_kernel_line(tmp_path: Path, stamp: str, host: str | None) -> None:
    text = "nfs: server 10.0.0.9 not responding, still trying"
    told = verdict(tmp_path, *STEPS, "[rank3]: ncclSystemError: System call failed", stamp + text)
    assert told.primary == "nccl-error"
    assert of_class(told, "nfs-timeout").severity is Severity.WARNING
    if host:
        assert of_class(told, "nfs-timeout").host == host


def test_a_job_that_went_on_was_not_ended_by_it(tmp_path: Path) -> None:
    later = [STEP.format(number * 5, number) for number in range(7, 11)]
    told = verdict(tmp_path, *STEPS, NFS, *later)
    assert (told.status, told.primary) == (JobStatus.RUNNING, None)
    assert [finding.severity for finding in told.diagnosis.findings] == [Severity.INFO]


def test_what_came_before_the_job_is_history(tmp_path: Path) -> None:
    old = NFS.replace("Mar  1", "Feb  1")
    told = verdict(tmp_path, *STEPS, *KILLED, old)
    assert told.primary == "signal-kill"


def test_a_server_that_answers_again_is_no_cause(tmp_path: Path) -> None:
    again = AT.format(33) + "nfs: server 10.0.0.9 OK"
    assert verdict(tmp_path, *STEPS, *KILLED, NFS, again).primary == "signal-kill"


def test_a_warning_ends_no_job(tmp_path: Path) -> None:
    assert verdict(tmp_path, *STEPS, NFS).status is JobStatus.RUNNING


def test_a_grave_fault_in_the_last_lines_is_an_end(tmp_path: Path) -> None:
    told = verdict(tmp_path, *STEPS, *OOPS)
    assert (told.status, told.primary) == (JobStatus.FAILED, "gpu-driver-fault")
    assert verdict(tmp_path, *STEPS, *OOPS, alive=True).status is JobStatus.RUNNING


def test_an_error_that_it_cannot_have_caused_stays(tmp_path: Path) -> None:
    error = "ModuleNotFoundError: No module named 'flash_attn'"
    assert verdict(tmp_path, "Traceback (most recent call last):", error, NFS).primary == (
        "import-error"
    )


def test_a_crash_is_not_the_file_servers(tmp_path: Path) -> None:
    crash = "srun: error: n7: task 3: Segmentation fault (core dumped)"
    assert verdict(tmp_path, *STEPS, crash, NFS).primary == "signal-kill"


def test_an_xid_names_the_host_of_its_journal(tmp_path: Path) -> None:
    told = verdict(tmp_path, *STEPS, *KILLED, "Mar  1 12:00:31 n7 kernel: " + LOST)
    assert told.primary == "gpu-hardware-error"
    assert told.diagnosis.findings[0].host == "n7"


def test_old_stamps_do_not_move_the_clock_of_the_log(tmp_path: Path) -> None:
    late = NFS.replace("12:00", "23:00")
    told = verdict(tmp_path, *STEPS, late)
    assert told.diagnosis.coverage.window is not None
    assert told.diagnosis.coverage.window.end == 1772366430.0
