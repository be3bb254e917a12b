"""`raydiag kmsg`: text in, events and findings out; exit codes; bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydiag import kmsg
from raydiag.cli import main
from raydiag.errors import Denied
from raydiag.model import Confidence, Severity
from tests import schemas

XID = "NVRM: Xid (PCI:0000:1b:00): {}, pid=4242, name=python3, something"
Examine = Callable[..., kmsg.ExaminedKernelLog]


@pytest.fixture
def examine(tmp_path: Path) -> Examine:
    """`examine(line, ...)`: the lines as one file."""

    def run(*lines: str) -> kmsg.ExaminedKernelLog:
        log = tmp_path / "log"
        log.write_text("".join(f"{line}\n" for line in lines))
        return kmsg.examine([str(log)], 2e9)

    return run


def classes(examined: kmsg.ExaminedKernelLog) -> list[str]:
    return [event.event_class for event in examined.events]


def findings(examined: kmsg.ExaminedKernelLog) -> dict[str, Severity | None]:
    return {found.failure_class: found.severity for found in examined.diagnosis.findings}


def test_event_has_what_the_line_says(examine: Examine) -> None:
    examined = examine("[   12.345678] dull", f"<3>[   13.000000] {XID.format(79)}")
    (event,) = examined.events
    assert (event.event_class, event.severity) == ("nvidia-xid", Severity.CRITICAL)
    assert (event.line, event.count, event.level) == (2, 1, 3)
    assert (event.device, event.pid, event.process) == ("0000:1b:00.0", 4242, "python3")
    assert (event.code, event.time, event.since_boot_s) == (79, None, 13.0)
    assert event.text == XID.format(79)
    assert event.meaning.startswith("Xid 79: ")


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("<3>[ 4000.000001] mlx5_core 0000:3b:00.0: a thing that no row knows", "warning"),
        ("3,812,4000000001,-;mlx5_core 0000:3b:00.0: a thing that no row knows", "warning"),
        ("kern  :err   : [ 4000.000001] Lustre: a thing that no row knows", "warning"),
        ("<2>[   40.000001] nvme nvme3: a thing that no row knows", "info"),
        ("<6>[ 4000.000001] mlx5_core 0000:3b:00.0: a thing that no row knows", None),
        ("<11>[ 4000.000001] nvme: what a program wrote", None),
        ("<3>[ 4000.000001] sd 0:0:0:0: [sda] No Caching mode page found", None),
        ("[ 4000.000001] mlx5_core 0000:3b:00.0: a thing that no row knows", None),
        ("[ 4000.000001] mlx5_core 0000:3b:00.0: the thing did not return it all", "info"),
        ("ice 0000:75:00.0 irdma3: lost its temper", "info"),
        ("2026-01-13T05:54:05+00:00 n1 kernel: XFS (md5): Odd thing (-19)", "info"),
        ("<6>[ 4000.000001] mlx5_core 0000:3b:00.0: the thing did not return it all", None),
        ("Jan 13 05:54:05 n1 nvme[12]: nvme nvme3: did not return it all", None),
        ("[ 4000.000001] overlayfs: upper fs does not support it, falling back", None),
    ],
)
def test_a_failure_of_a_driver_that_no_row_knows_is_its_familys(
    examine: Examine, line: str, severity: str | None
) -> None:
    events = examine("<6>[    0.000001] Linux version 6.8.0", line).events
    assert [event.severity.value for event in events] == [severity] * (severity is not None)
    assert all(event.unclassified for event in events)


@pytest.mark.parametrize(
    ("message", "event_class", "meaning"),
    [
        ("amdgpu 0000:1b:00.0: amdgpu: the hive cannot be told", "amdgpu-xgmi", "XGMI"),
        (
            "amdgpu 0000:1b:00.0: amdgpu: no firmware for the odd engine",
            "amdgpu-other-error",
            "firm",
        ),
        ("NVRM: GPU3 gpuOdd_IMPL: a fabric that never answers", "nvlink", "NVLink"),
        ("kfd kfd: amdgpu: odd doorbell of the process", "kfd-error", "queues"),
        ("bnxt_en 0000:1b:00.0 ens1np0: an odd reply of hwrm", "rdma-error", "firmware"),
        ("pcieport 0000:d4:00.0: EDR: odd answer", "pcie-aer-nonfatal", "containment"),
        ("EXT4-fs (nvme0n1p2): odd journal", "fs-error", "journal"),
    ],
)
def test_words_of_a_drivers_error_say_what_failed(
    examine: Examine, message: str, event_class: str, meaning: str
) -> None:
    event = examine(f"<3>[ 4000.000001] {message}").events[0]
    assert (event.event_class, event.unclassified) == (event_class, False)
    assert meaning in event.meaning
    (finding,) = examine(f"<3>[ 4000.000001] {message}").diagnosis.findings
    assert finding.confidence is Confidence.POSSIBLE


def test_a_drivers_own_name_is_no_word_of_what_failed(examine: Examine) -> None:
    (event,) = examine("<3>[ 4000.000001] ionic_rdma ionic_rdma.0: odd").events
    assert event.unclassified


def test_an_error_that_no_row_knows_belongs_to_what_a_row_knows_beside_it(examine: Examine) -> None:
    device = "amdgpu 0000:1b:00.0: amdgpu:"
    (event,) = examine(
        f"<3>[ 4000.000001] {device} ring gfx_0.0.0 timeout, signaled seq=5, emitted seq=7",
        f"<3>[ 4000.100000] {device} a thing that no row knows",
    ).events
    assert (event.event_class, event.unclassified) == ("amdgpu-ring-timeout", False)


def test_repeats_are_one_event_and_codes_are_apart(examine: Examine) -> None:
    lines = [f"[{60 * n}.000000] {XID.format(code)}" for n, code in enumerate([13, 43, 13, 13])]
    examined = examine(*lines)
    assert [(event.code, event.count) for event in examined.events] == [(13, 3), (43, 1)]


@pytest.mark.parametrize(
    ("code", "finding", "severity"),
    [
        (48, "gpu-memory-error", Severity.CRITICAL),
        (63, "gpu-memory-degrading", Severity.WARNING),
        (64, "gpu-memory-error", Severity.CRITICAL),
        (79, "nvidia-xid", Severity.CRITICAL),
        (92, "gpu-memory-degrading", Severity.WARNING),
        (94, "gpu-memory-error", Severity.CRITICAL),
        (95, "gpu-memory-error", Severity.CRITICAL),
        (145, "nvlink", Severity.CRITICAL),
        (45, "nvidia-xid", Severity.INFO),
        (9999, "nvidia-xid", Severity.WARNING),
    ],
)
def test_number_decides_the_finding(
    examine: Examine, code: int, finding: str, severity: Severity
) -> None:
    examined = examine(f"[   13.000000] {XID.format(code)}")
    assert findings(examined) == {finding: severity}
    assert examined.events[0].code == code


def test_nvlink_number_is_listed_as_nvlink_too_and_is_one_finding(examine: Examine) -> None:
    examined = examine(f"[   13.000000] {XID.format(149)}")
    assert classes(examined) == ["nvidia-xid", "nvlink"]
    assert list(findings(examined)) == ["nvlink"]


def test_recovery_action_that_is_none_is_no_alarm(examine: Examine) -> None:
    text = "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    examined = examine(f"[   13.000000] NVRM: Xid (PCI:0000:1b:00): {text}")
    assert findings(examined) == {"nvidia-xid": Severity.INFO}


def test_driver_error_beside_a_number_is_part_of_it(examine: Examine) -> None:
    examined = examine(
        f"[   13.000000] {XID.format(79)}",
        "[   13.100000] NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.",
    )
    assert classes(examined) == ["nvidia-xid"]


def test_server_that_came_back_is_a_remark(examine: Examine) -> None:
    lost = "[   13.000000] nfs: server storage7 not responding, still trying"
    assert findings(examine(lost)) == {"nfs-timeout": Severity.WARNING}
    back = examine(lost, "[   43.000000] nfs: server storage7 OK")
    assert classes(back) == ["nfs-timeout", "nfs-ok"]
    assert findings(back) == {"nfs-timeout": Severity.INFO}
    other = examine(lost, "[   43.000000] nfs: server storage8 OK")
    assert findings(other)["nfs-timeout"] in (Severity.WARNING, Severity.INFO)
    assert {(f.device, f.severity) for f in other.diagnosis.findings} == {
        ("storage7", Severity.WARNING),
        ("storage8", Severity.INFO),
    }


def test_link_that_is_down_while_the_node_boots_is_a_remark(examine: Examine) -> None:
    text = "mlx5_core 0000:1b:00.0 ens1f0np0: Link down"
    assert findings(examine(f"[   13.000000] {text}")) == {"net-link-down": Severity.INFO}
    assert findings(examine(f"[ 9013.000000] {text}")) == {"net-link-down": Severity.WARNING}


@pytest.mark.parametrize(
    ("times", "severity"), [(1, Severity.INFO), (31, Severity.INFO), (32, Severity.WARNING)]
)
def test_many_corrected_errors_are_a_warning(
    examine: Examine, times: int, severity: Severity
) -> None:
    text = "pcieport 0000:1a:01.0: AER: Corrected error received: 0000:1a:01.0"
    examined = examine(*(f"[{60 * n}.000000] {text}" for n in range(times)))
    assert [(event.count, event.severity) for event in examined.events] == [(times, severity)]
    assert findings(examined) == {"pcie-degraded": severity}


@pytest.mark.parametrize(
    ("report_severity", "section_severity", "event"),
    [
        ("corrected", "corrected", "pcie-aer-correctable"),
        ("recoverable", "recoverable", "pcie-aer-nonfatal"),
        ("fatal", "fatal", "pcie-aer-fatal"),
        ("recoverable", "fatal", "pcie-aer-fatal"),
    ],
)
def test_severity_of_a_firmware_section_comes_before_its_kind(
    examine: Examine, report_severity: str, section_severity: str, event: str
) -> None:
    head = "[   13.000000] {4}[Hardware Error]: "
    examined = examine(
        f"{head}Hardware error from APEI Generic Hardware Error Source: 4",
        f"{head}event severity: {report_severity}",
        f"{head} Error 0, type: {section_severity}",
        f"{head}  section_type: PCIe error",
    )
    assert classes(examined) == [event]


def test_each_host_of_a_central_log_is_its_own(examine: Examine) -> None:
    examined = examine(
        "Sep 14 10:20:30 node1 kernel: nfs: server storage7 not responding, still trying",
        "Sep 14 10:20:31 node2 kernel: nfs: server storage7 not responding, still trying",
        "Sep 14 10:20:32 node2 kernel: nfs: server storage7 OK",
    )
    told = {found.host: found.severity for found in examined.diagnosis.findings}
    assert told == {"node1": Severity.WARNING, "node2": Severity.INFO}


def test_what_a_program_wrote_is_marked(examine: Examine) -> None:
    examined = examine(f"<14>[   13.000000] {XID.format(79)}")
    assert examined.events[0].userspace
    assert findings(examined) == {"nvidia-xid": Severity.WARNING}


def test_healthy_node_is_silent(examine: Examine) -> None:
    examined = examine(
        "[    1.000000] pcieport 0000:1a:01.0: AER: enabled with IRQ 34",
        "[    2.000000] EDAC MC0: Giving out device to module skx_edac controller x: DEV y",
        "[    3.000000] mlx5_core 0000:1b:00.0: firmware version: 28.39.1002",
        "[    4.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
        "[  900.000000] docker0: port 1(veth1a2b3c4) entered disabled state",
        "[  901.000000] veth1a2b3c4: Link down",
        "[  902.000000] IPv6: ADDRCONF(NETDEV_CHANGE): veth1a2b3c4: link becomes ready",
    )
    assert examined.events == []


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["kmsg", *arguments])
    return code, *capsys.readouterr()


def document(capsys: pytest.CaptureFixture[str], *paths: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = command(capsys, "--format", "json", *paths)
    parsed = json.loads(out)
    schemas.fits(parsed, "kmsg")
    return code, parsed


def test_json_keeps_its_schema_and_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, well = tmp_path / "log", tmp_path / "well"
    log.write_text(f"[   13.000000] {XID.format(149)}\n[Mon Sep 14 10:20:30 2026] mce: CPU3: x\n")
    well.write_text("[   13.000000] all is well\n")
    code, parsed = document(capsys, str(log), str(well))
    assert code == 1
    assert {event["file"] for event in parsed["events"]} == {str(log)}
    assert document(capsys, str(well))[0] == 0


def test_one_file_that_cannot_be_read_is_told_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    well = tmp_path / "well"
    well.write_text("[   13.000000] all is well\n")
    code, parsed = document(capsys, str(well), str(tmp_path / "none"))
    assert code == 3
    assert [item["status"] for item in parsed["coverage"]["unread"]] == ["no_data"]


@pytest.mark.parametrize("name", ["none", "."])
def test_nothing_to_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, out, err = command(capsys, str(tmp_path / name))
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert str(tmp_path) in err


def test_text_says_what_where_and_what_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(
        f"[   13.000000] {XID.format(79)}\x1b[31m\n[   14.000000] nfs: server storage7 OK\n"
    )
    code, out, _ = command(capsys, str(log))
    assert code == 1
    assert "CRITICAL nvidia-xid  13.000 s after boot  0000:1b:00.0  pid 4242 (python3)" in out
    assert "Xid 79: GPU has fallen off the PCIe bus" in out
    assert "Next: " in out
    assert "1 nfs-ok" in out
    assert "\x1b" not in out
    assert "INFO nfs-ok" in command(capsys, "-v", str(log))[1]


SYSLOG = (
    f"Sep 14 10:20:30 gpu17 kernel: [   13.000000] {XID.format(79)}\n"
    "Sep 14 10:20:31 gpu17 kernel: nfs: server storage7.corp.example.com not responding, "
    "still trying\n"
    "Sep 14 10:20:32 gpu18 kernel: nfs: server 10.3.4.5 OK\n"
    "Sep 14 10:20:33 gpu18 kernel: python3[77]: segfault at 0 ip 1 sp 2 error 4 in "
    "gpu17-lib.so[1+2]\n"
)


def test_markdown_says_what_text_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(SYSLOG + f"Sep 14 10:20:34 a kernel: {XID.format(48)}``` <b> |\x1b[31m\n")
    code, out, _ = command(capsys, "--format", "markdown", str(log), str(tmp_path / "none"))
    assert code == 1
    assert out.startswith("**5 events in 2 files: 2 critical, ")
    assert "\n## CRITICAL nvidia-xid\n\ngpu17 · " in out
    assert f"\n```text\n{log}:1: " in out
    assert "\nXid 79: GPU has fallen off the PCIe bus\n" in out
    assert "\n````text\n" in out
    assert "\x1b" not in out
    assert "INFO" not in out
    assert "To note (-v shows them): 1 nfs-ok\n" in out
    assert "\n## Not read\n\n- " in out
    verbose = command(capsys, "-v", "--format", "markdown", str(log))[1]
    assert "## INFO nfs-ok" in verbose
    assert "To note" not in verbose
    text = command(capsys, str(log))[1]
    assert out.count("Next: ") == text.count("Next: ")


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html"])
def test_redacted(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home/alice"
    home.mkdir(parents=True)
    (home / "gpu17.log").write_text(SYSLOG)
    arguments = ("-v", "--format", form, str(home / "gpu17.log"))
    plain = command(capsys, *arguments)[1]
    code, told, _ = command(capsys, "--redact", *arguments)
    assert code == 1
    for name in ("gpu17", "gpu18", "storage7", "corp.example", "10.3.4.5", "alice"):
        assert name in plain
        assert name not in told
    assert "home/user-1/host-1.log" in "".join(told.split())  # a long path is wrapped
    for word in ("host-1", "host-2", "host-3", "addr-1", "nvidia-xid", "0000:1b:00.0", "4242"):
        assert word in told
    if form == "json":
        parsed = json.loads(told)
        schemas.fits(parsed, "kmsg")
        assert [event["host"] for event in parsed["events"]] == [
            *("host-1", "host-1", "host-2", "host-2"),
        ]


def test_quiet_changes_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(SYSLOG)
    assert command(capsys, "-q", str(log)) == command(capsys, str(log))


def test_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.write(writing, f"[   13.000000] {XID.format(79)}\n".encode())
    os.close(writing)
    with open(reading) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        code, parsed = document(capsys, "-")
    assert code == 1
    assert parsed["events"][0]["file"] == "-"


def test_own_log_that_may_not_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise Denied("/dev/kmsg: permission denied")

    monkeypatch.setattr(kmsg, "kernel_log", refused)
    code, _, err = command(capsys)
    assert code == 4
    assert "/dev/kmsg" in err


def test_command_never_imports_ray(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"[   13.000000] {XID.format(79)}\n")
    code = (
        "import sys; from raydiag.cli import main; main(['kmsg', sys.argv[1]]); "
        "sys.exit('ray' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    "text",
    [
        "hello\n",
        "2026-09-14 10:20:30,123 INFO step 12, loss 2.5\nTriton kernel: matmul, error 0.1\n",
        "Sep 14 10:20:30 node7 sshd[812]: error: connection closed\n",
        "step,loss,error\n12,2,5\n",
    ],
)
def test_text_that_is_no_kernel_log_was_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    code, parsed = document(capsys, str(log))
    (unread,) = parsed["coverage"]["unread"]
    assert (code, parsed["events"], parsed["findings"]) == (3, [], [])
    assert (unread["source"], unread["status"]) == (str(log), "no_data")
    assert "no line of it is of a kernel log" in unread["reason"]
    code, out, _ = command(capsys, str(log))
    assert code == 3
    assert "no line of it is of a kernel log" in " ".join(out.split())


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:1b:00.0: amdgpu: SMU is resumed successfully!",
        "[drm] Initialized amdgpu 3.59.0 for 0000:1b:00.0 on minor 1",
        "kfd kfd: amdgpu: added device 1002:74a1",
    ],
)
def test_dmesg_without_times_is_known_by_its_drivers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    log = tmp_path / "log"
    log.write_text(f"some text\n{line}\n")
    code, parsed = document(capsys, str(log))
    assert (code, parsed["coverage"]["unread"]) == (0, [])


@pytest.mark.parametrize(
    "line",
    [
        "6,412,5140900,-;usb 1-1: new device",
        "6,412,5140900;usb 1-1: new device",
        "<6>[    5.140900] usb 1-1: new device",
        "kern  :info  : [    5.140900] usb 1-1: new device",
        "[    5.140900] usb 1-1: new device",
        "[Mon Sep 14 10:20:30 2026] usb 1-1: new device",
        "[  +0.000312] usb 1-1: new device",
        "[Sep14 10:20] usb 1-1: new device",
        "2026-09-14T10:20:30,500000+02:00 usb 1-1: new device",
        "2026-09-14T10:20:30+0000 node7 kernel: usb 1-1: new device",
        "Sep 14 10:20:30 node7 kernel: usb 1-1: new device",
        "[2026-09-14 10:20:30] [   12.345678] usb 1-1: new device",
        "kernel: usb 1-1: new device",
    ],
)
def test_one_line_of_a_kernel_log_is_enough(examine: Examine, line: str) -> None:
    assert examine("cut off in the middle", line).unread == []


def test_event_without_a_header_is_of_a_kernel_log(examine: Examine) -> None:
    examined = examine("hello", XID.format(79))
    assert (classes(examined), examined.unread) == (["nvidia-xid"], [])
