"""What GPUs say about themselves: errors that they counted, pages that they retired, heat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raydiag.model import Evidence, Finding, NodeReport, Severity, Snapshot
from raydiag.probes.bad_pages import BadPages
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.nvidia import NvidiaGpu
from raydiag.probes.ras import RasCount
from raydiag.rules.nodes import by_host, distinct

# Bits of NVIDIA's clock event reasons (nvml.h). Left out: idle, limits that were set, power cap.
_SOFTWARE_HEAT, _HARDWARE_HEAT, _POWER_BRAKE = 0x20, 0x40, 0x80
_SLOWDOWN_REASONS = {
    _SOFTWARE_HEAT: "thermal slowdown by the driver",
    _HARDWARE_HEAT: "thermal slowdown by the hardware",
    _POWER_BRAKE: "power brake from outside",
}
_HEAT, _HARDWARE_SLOWDOWN = _SOFTWARE_HEAT | _HARDWARE_HEAT, _HARDWARE_HEAT | _POWER_BRAKE


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
            text = f"{count.block}: {count.ue} uncorrectable errors since the driver loaded"
            seen = Evidence(count.file, text, float(count.ue), reports[0].collected_at or None)
            yield _uncorrectable(_ras_class(count.block), host, count, seen, since_job)
        gpus: list[NvidiaGpu] = distinct(reports, "nvidia", "address")
        for gpu in gpus:
            if not gpu.ecc_uncorrected:
                continue
            text = f"{gpu.ecc_uncorrected} uncorrected memory errors since the driver loaded"
            seen = _said_by_smi(gpu, text, float(gpu.ecc_uncorrected), reports)
            yield _uncorrectable("gpu-memory-error", host, gpu, seen, since_job)


def _uncorrectable(
    failure_class: str, host: str, of: RasCount | NvidiaGpu, seen: Evidence, since_job: bool
) -> Finding:
    return Finding(
        failure_class,
        host=host,
        gpu=of.gpu,
        device=of.address,
        severity=Severity.WARNING if since_job else Severity.CRITICAL,
        evidence=(seen,),
        explanation=(
            "The counter runs since the driver was loaded; nothing shows that it grew "
            "since the job began."
            if since_job
            else ""
        ),
    )


def bad_pages(snapshot: Snapshot) -> Iterator[Finding]:
    """Memory pages that lost data: a warning while some are still in use, else a remark.

    Beside an uncorrectable count of the same memory they are evidence of that fault. That there
    are too many is for the kernel log to say.
    """
    for host, reports in by_host(snapshot).items():
        counts: list[RasCount] = distinct(reports, "ras", "address", "block", "file")
        broken = {count.address for count in counts if count.block == "umc" and count.ue}
        lists: list[BadPages] = distinct(reports, "bad_pages", "address")
        for pages in lists:
            in_use = pages.pending + pages.failed
            if not in_use and not pages.retired:
                continue
            text = f"{pages.retired} pages retired, {pages.pending} to be retired"
            if pages.failed:
                text += f", {pages.failed} could not be retired"
            time = reports[0].collected_at or None
            yield Finding(
                "gpu-memory-error" if pages.address in broken else "gpu-memory-degrading",
                host=host,
                gpu=pages.gpu,
                device=pages.address,
                severity=Severity.WARNING if in_use else Severity.INFO,
                title="GPU memory pages lost data" if pages.address not in broken else "",
                evidence=(Evidence(pages.file, text, float(in_use or pages.retired), time),),
                explanation=(
                    "Pages that lost data stay in use until the GPU is reset."
                    if in_use
                    else "Retired pages are out of use, some since long ago: they harm nothing."
                ),
            )


def thermal_throttling(snapshot: Snapshot) -> Iterator[Finding]:
    """GPUs that lower their clock for heat, or are as hot as their driver calls critical.

    What the driver does by itself to keep a GPU below its limits is a remark.
    """
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
        yield from _nvidia_slowdown(host, reports)


def _nvidia_slowdown(host: str, reports: Sequence[NodeReport]) -> Iterator[Finding]:
    gpus: list[NvidiaGpu] = distinct(reports, "nvidia", "address")
    for gpu in gpus:
        reasons = gpu.clock_reasons or 0
        told = [text for bit, text in _SLOWDOWN_REASONS.items() if reasons & bit]
        if not told:
            continue
        severity = Severity.WARNING if reasons & _HARDWARE_SLOWDOWN else Severity.INFO
        heat = "" if gpu.temperature_c is None else f", {gpu.temperature_c:g} degrees C"
        text = f"clocks are lowered: {', '.join(told)} ({reasons:#x}){heat}"
        yield Finding(
            "thermal-throttling",
            host=host,
            gpu=gpu.gpu,
            device=gpu.address,
            severity=severity,
            title="" if reasons & _HEAT else "A power brake lowers clocks",
            evidence=(_said_by_smi(gpu, text, float(reasons), reports),),
        )


def _said_by_smi(
    gpu: NvidiaGpu, text: str, value: float, reports: Sequence[NodeReport]
) -> Evidence:
    return Evidence(f"nvidia-smi, {gpu.address}", text, value, reports[0].collected_at or None)


def _ras_class(block: str) -> str:
    if block == "umc":
        return "gpu-memory-error"
    if block.startswith("xgmi"):  # some kernels name the block xgmi_wafl
        return "xgmi-error"
    return "gpu-ras-error"
