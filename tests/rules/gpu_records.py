"""Records of GPUs for the rules to judge: well ones, unless a test says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.nvidia import NvidiaGpu

GIB = 1 << 30
ADDRESSES = [f"0000:{bus}:00.0" for bus in ("05", "15", "65", "75", "85", "95", "e5", "f5")]


def amd_gpus(count: int = 8, **values: Any) -> list[GpuSensors]:
    """The GPUs of a node that trains; `values` are those of the last one."""
    gpus = [
        GpuSensors(
            gpu=gpu,
            address=address,
            temperature_c=65.0 + gpu,
            temperature_crit_c=100.0,
            power_w=880.0 + 15 * gpu,
            power_averaged=False,
            power_cap_w=1400.0,
            sclk_mhz=2300.0 + 10 * gpu,
            mclk_mhz=1900.0,
            vram_used_bytes=268 * GIB,
            vram_total_bytes=288 * GIB,
            unique_id="",
        )
        for gpu, address in enumerate(ADDRESSES[:count])
    ]
    return [*gpus[:-1], replace(gpus[-1], **values)]


def nvidia_gpus(count: int = 8, **values: Any) -> list[NvidiaGpu]:
    """The same of NVIDIA."""
    gpus = [
        NvidiaGpu(
            gpu=gpu,
            address=address,
            name="NVIDIA H100 80GB HBM3",
            uuid=f"GPU-{gpu}",
            driver_version="550.54.15",
            temperature_c=60.0 + gpu,
            power_w=600.0 + 8 * gpu,
            power_cap_w=700.0,
            sm_clock_mhz=1700.0 + 5 * gpu,
            max_sm_clock_mhz=1980.0,
            vram_used_bytes=74 * GIB,
            vram_total_bytes=80 * GIB,
            utilisation_percent=100.0 - gpu,
            ecc_uncorrected=0,
            ecc_corrected=40,
            clock_reasons=0x4,
            pcie_generation=5,
            max_pcie_generation=5,
            pcie_width=16,
            max_pcie_width=16,
        )
        for gpu, address in enumerate(ADDRESSES[:count])
    ]
    return [*gpus[:-1], replace(gpus[-1], **values)]
