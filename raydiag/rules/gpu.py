"""What GPUs report about themselves: uncorrectable errors, retired pages, thermal throttling."""

from collections.abc import Iterator
from dataclasses import replace

from raydiag import catalog
from raydiag.model import Evidence, Finding, Severity, Snapshot
from raydiag.probes.bad_pages import BadPages
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.nvidia import NvidiaGpu
from raydiag.probes.ras import RasCount
from raydiag.rules.grades import critical_if, warning_if
from raydiag.rules.machines import Machine, each_record, machines

# Bits of NVIDIA's clock event reasons (nvml.h). Left out: idle, limits that were set, power cap.
_SOFTWARE_HEAT, _HARDWARE_HEAT, _POWER_BRAKE = 0x20, 0x40, 0x80
_SLOWDOWN_REASONS = {
    _SOFTWARE_HEAT: "thermal slowdown by the driver",
    _HARDWARE_HEAT: "thermal slowdown by the hardware",
    _POWER_BRAKE: "power brake from outside",
}
_CLASSES = {"umc": "gpu-memory-error", "xgmi": "xgmi-error"}  # others: gpu-ras-error
_Gpu = BadPages | GpuSensors | NvidiaGpu | RasCount  # records of one GPU
_HEAT, _HARDWARE_SLOWDOWN = _SOFTWARE_HEAT | _HARDWARE_HEAT, _HARDWARE_HEAT | _POWER_BRAKE


def uncorrectable_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """Uncorrectable RAS counts above zero.

    They count since the driver was loaded. While a job is known they are a warning only: that they
    grew since its start is for the kernel log to show. Correctable and deferred counts are judged
    by change alone, and one reading shows none.
    """
    severity, explanation = critical_if(snapshot.job_start is None), ""
    if snapshot.job_start is not None:
        explanation = catalog.variant("gpu-ras-error", "since-the-driver")["explanation"]
    for machine in machines(snapshot):
        for finding in _uncorrectable(machine):
            yield replace(finding, severity=severity, explanation=explanation)


def _uncorrectable(machine: Machine) -> Iterator[Finding]:
    for count in machine.records(RasCount):
        if count.ue is not None and count.ue > 0:
            text = f"{count.block}: {count.ue} uncorrectable errors since the driver loaded"
            evidence = machine.evidence(count.file, text, float(count.ue))
            # Some kernels name the block of XGMI xgmi_wafl.
            failure_class = _CLASSES.get(count.block.partition("_")[0], "gpu-ras-error")
            yield _finding(machine, count, failure_class, evidence)
    for gpu in machine.records(NvidiaGpu):
        if gpu.ecc_uncorrected:
            text = f"{gpu.ecc_uncorrected} uncorrected memory errors since the driver loaded"
            evidence = _smi_evidence(machine, gpu, text, gpu.ecc_uncorrected)
            yield _finding(machine, gpu, "gpu-memory-error", evidence)


def _finding(machine: Machine, gpu: _Gpu, failure_class: str, evidence: Evidence) -> Finding:
    return machine.finding(failure_class, evidence, gpu=gpu.gpu, device=gpu.address)


def bad_pages(snapshot: Snapshot) -> Iterator[Finding]:
    """Memory pages that lost data: a warning while some are still in use, else a note.

    Beside an uncorrectable count of the same memory they are evidence of that fault. That there
    are too many is for the kernel log to say.
    """
    for machine in machines(snapshot):
        counts = machine.records(RasCount)
        broken = {count.address for count in counts if count.block == "umc" and count.ue}
        for pages in machine.records(BadPages):
            if pages.pending or pages.failed or pages.retired:
                yield _bad_pages_finding(machine, pages, pages.address in broken)


def _bad_pages_finding(machine: Machine, pages: BadPages, is_broken: bool) -> Finding:
    in_use = pages.pending + pages.failed
    text = f"{pages.retired} pages retired, {pages.pending} to be retired"
    if pages.failed:
        text += f", {pages.failed} could not be retired"
    failure_class, title = "gpu-memory-degrading", "GPU memory pages lost data"
    if is_broken:
        failure_class, title = "gpu-memory-error", ""
    explanation = "Retired pages are out of use, some since long ago: they do no harm."
    if in_use:
        explanation = "Pages that lost data stay in use until the GPU is reset."
    evidence = machine.evidence(pages.file, text, float(in_use or pages.retired))
    finding = _finding(machine, pages, failure_class, evidence)
    return replace(finding, severity=warning_if(in_use), title=title, explanation=explanation)


def row_remapping(snapshot: Snapshot) -> Iterator[Finding]:
    """Rows of NVIDIA GPUs' memory that could not be remapped, or wait for a reset to be."""
    for machine, gpu in each_record(snapshot, NvidiaGpu):
        if not gpu.remap_failed and not gpu.remap_pending:
            continue
        failure_class, state = "gpu-memory-degrading", "a row remapping waits for a GPU reset"
        if gpu.remap_failed:
            failure_class, state = "gpu-memory-error", "a row remapping has failed"
        text = f"{state}, {gpu.rows_remapped or 0} rows are remapped"
        evidence = _smi_evidence(machine, gpu, text, gpu.rows_remapped or 0)
        finding = _finding(machine, gpu, failure_class, evidence)
        yield replace(finding, severity=Severity.WARNING)


def thermal_throttling(snapshot: Snapshot) -> Iterator[Finding]:
    """GPUs that lower their clock for heat, or are as hot as their driver calls critical.

    What the driver does by itself to keep a GPU below its limits is a note.
    """
    for machine, gpu in each_record(snapshot, GpuSensors):
        temperature, limit = gpu.temperature_c, gpu.temperature_crit_c
        if temperature is None or limit is None or temperature < limit:
            continue
        text = f"{temperature:g} degrees C, critical from {limit:g}"
        evidence = machine.evidence(f"hwmon of {gpu.address}", text, temperature)
        finding = _finding(machine, gpu, "thermal-throttling", evidence)
        yield replace(finding, severity=Severity.WARNING)
    yield from _nvidia_slowdown(snapshot)


def _nvidia_slowdown(snapshot: Snapshot) -> Iterator[Finding]:
    for machine, gpu in each_record(snapshot, NvidiaGpu):
        reasons = gpu.clock_reasons or 0
        names = [name for bit, name in _SLOWDOWN_REASONS.items() if reasons & bit]
        if not names:
            continue
        text = f"clocks are lowered: {', '.join(names)} ({reasons:#x})"
        if gpu.temperature_c is not None:
            text += f", {gpu.temperature_c:g} degrees C"
        evidence = _smi_evidence(machine, gpu, text, reasons)
        finding = _finding(machine, gpu, "thermal-throttling", evidence)
        if not reasons & _HEAT:
            finding = replace(finding, title="GPU clocks lowered by an external power brake")
        yield replace(finding, severity=warning_if(reasons & _HARDWARE_SLOWDOWN))


def _smi_evidence(machine: Machine, gpu: NvidiaGpu, text: str, value: int) -> Evidence:
    return machine.evidence(f"nvidia-smi, {gpu.address}", text, float(value))
