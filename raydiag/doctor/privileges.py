"""What probes may not read, and the one line that would let them; how readers are confined."""

from collections.abc import Iterator, Mapping

from raydiag.doctor.set_up import CheckResult, CheckStatus, SetUp
from raydiag.model import NodeReport, Status

_AREA = "privileges"
_UNSEEN = (Status.DENIED, Status.TIMEOUT, Status.ERROR)
# Probe -> what it is called, and what would let it read.
_NEEDS: Mapping[str, tuple[str, str]] = {
    "kernel_log": (
        "the kernel log",
        "give the container CAP_SYSLOG and /dev/kmsg (or privileged: true), or the host "
        "`sysctl kernel.dmesg_restrict=0`",
    ),
    "d_state": (
        "wait channels of blocked tasks",
        "run Ray as root or give the container CAP_SYS_PTRACE; mount /proc without hidepid",
    ),
    "processes": (
        "Ray's processes",
        "run raydiag in Ray's own container and as Ray's user; mount /proc without hidepid",
    ),
    "ras": (
        "RAS counters of AMD GPUs",
        "mount the host's /sys read-only, and run Ray as root or in the group of these files",
    ),
}


def privilege_checks(set_up: SetUp) -> Iterator[CheckResult]:
    """One for each probe that often lacks rights, and one for the confinement of readers."""
    for probe in _NEEDS:
        if probe in set_up.probes_asked:
            yield _readable(set_up, probe)
    yield _confinement(set_up)


def _readable(set_up: SetUp, probe: str) -> CheckResult:
    words, fix = _NEEDS[probe]
    name = f"reads-{probe.replace('_', '-')}"
    refused: dict[str, str] = {}
    for report in set_up.answered:
        if reason := _reason(report, probe):
            refused[report.node.host] = reason
    if not refused:
        return CheckResult(name, _AREA, CheckStatus.OK, f"Probes can read {words}")
    evidence = tuple(f"{host}: {reason}" for host, reason in refused.items())
    title = f"Probes cannot read {words}"
    return CheckResult(name, _AREA, CheckStatus.PROBLEM, title, tuple(refused), evidence[:4], fix)


def _reason(report: NodeReport, probe: str) -> str:
    """Why the probe could not read something; "" when it could."""
    result = report.probes.get(probe)
    if result is None:
        return ""
    if result.status in _UNSEEN:
        return result.reason or result.status.value
    for source in result.unread:
        if source.status is Status.DENIED:
            return f"{source.source}: {source.reason or source.status.value}"
    return ""


def _confinement(set_up: SetUp) -> CheckResult:
    """Readers are confined by seccomp everywhere, and by Landlock where the kernel has it."""
    without: dict[str, str] = {}
    for report in set_up.answered:
        for held in report.sandbox.values():
            if not held.get("seccomp", True):
                without[report.node.host] = "seccomp"
        if report.sandbox.get("files", {}).get("landlock_abi") == 0:
            without.setdefault(report.node.host, "Landlock")
    if not without:
        title = "The kernel keeps readers from writing (seccomp and Landlock)"
        return CheckResult("confinement", _AREA, CheckStatus.OK, title)
    evidence = tuple(f"{host}: no {mechanism}" for host, mechanism in without.items())
    return CheckResult(
        "confinement", _AREA, CheckStatus.ADVICE, "Readers are confined by less than they could be",
        tuple(without), evidence[:4], "Linux 5.13 and newer have Landlock: add it to lsm= at boot",
    )  # fmt: skip
