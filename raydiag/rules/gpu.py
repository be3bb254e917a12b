"""What AMD GPUs say about themselves: uncorrectable errors that they counted, and heat."""

from __future__ import annotations

from collections.abc import Iterator

from raydiag.model import Evidence, Finding, Severity, Snapshot
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.ras import RasCount
from raydiag.rules.nodes import by_host, distinct


def uncorrectable_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """Uncorrectable RAS counts above zero.

    They count since the driver was loaded. While a job is known they are a warning only: that they
    grew since its start is for the kernel log to show. Correctable and deferred counts are judged
    by change alone, and one reading shows none.
    """
    since_job = snapshot.job_start is not None
    for host, reports in by_host(snapshot).items():
        counts: list[RasCount] = distinct(reports, "ras", "address", "block", "file")
        for count in counts:
            if count.ue is None or count.ue <= 0:
                continue
            yield Finding(
                _ras_class(count.block),
                host=host,
                gpu=count.gpu,
                device=count.address,
                severity=Severity.WARNING if since_job else Severity.CRITICAL,
                evidence=(
                    Evidence(
                        count.file,
                        f"{count.block}: {count.ue} uncorrectable errors since the driver loaded",
                        value=float(count.ue),
                        time=reports[0].collected_at or None,
                    ),
                ),
                explanation=(
                    "The counter runs since the driver was loaded; nothing shows that it grew "
                    "since the job began."
                    if since_job
                    else ""
                ),
            )


def thermal_throttling(snapshot: Snapshot) -> Iterator[Finding]:
    """GPUs at or above the temperature that the driver itself calls critical."""
    for host, reports in by_host(snapshot).items():
        sensors: list[GpuSensors] = distinct(reports, "gpu_sensors", "address")
        for gpu in sensors:
            now, limit = gpu.temperature_c, gpu.temperature_crit_c
            if now is None or limit is None or now < limit:
                continue
            yield Finding(
                "thermal-throttling",
                host=host,
                gpu=gpu.gpu,
                device=gpu.address,
                severity=Severity.WARNING,
                evidence=(
                    Evidence(
                        f"hwmon of {gpu.address}",
                        f"{now:g} degrees C, critical from {limit:g}",
                        value=now,
                        time=reports[0].collected_at or None,
                    ),
                ),
            )


def _ras_class(block: str) -> str:
    if block == "umc":
        return "gpu-memory-error"
    if block.startswith("xgmi"):  # some kernels name the block xgmi_wafl
        return "xgmi-error"
    return "gpu-ras-error"
