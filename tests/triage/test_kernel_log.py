"""Lines of a kernel log inside a job's log: witnesses with host and time."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydiag.joblog.find import resolve
from raydiag.joblog.read import read
from raydiag.model import Severity
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


def test_an_oops_explains_a_rank_that_was_killed(tmp_path: Path) -> None:
    told = verdict(tmp_path, *STEPS, *KILLED, *OOPS)
    assert (told.status, told.primary) == (JobStatus.FAILED, "gpu-driver-fault")
    assert told.cascade == ("gpu-driver-fault", "signal-kill")
    assert told.diagnosis.findings[0].onset == 1772366431.0


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
    assert told.primary == "nfs-timeout"
    if host:
        assert told.diagnosis.findings[0].host == host


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
