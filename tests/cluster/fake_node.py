"""Files that a node with AMD GPUs shows: a tree to stand in for /sys, records for /dev/kmsg.

The layout is the kernel's: real directories below devices/, everything else symbolic links into
them; hwmon numbers in another order than the GPUs. A tree can be the root of `Host` (as root/sys)
or be bound over /sys of a simulated host.

Source: kernel documentation of amdgpu (thermal, RAS), PCI AER, hwmon, /dev/kmsg.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Sorted as text, which is the order of the GPU indices.
_BUSES = ("05", "15", "65", "75", "85", "95", "e5", "f5")
DEFAULT_ADDRESSES = tuple(f"0000:{bus}:00.0" for bus in _BUSES)
RAS_BLOCKS = ("umc", "xgmi_wafl", "gfx", "mmhub", "sdma")
VRAM_BYTES = 309_220_868_096

# fmt: off
_CORRECTABLE = (
    "RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF",
)
_UNCORRECTABLE = (
    "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF",
    "MalfTLP", "ECRC", "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked",
    "TLPBlockedErr", "PoisonTLPBlocked",
)
# fmt: on

Counts = tuple[int, int, int]  # uncorrectable, correctable, deferred


def write_amdgpu(
    root: Path,
    gpus: int = 8,
    addresses: Sequence[str] | None = None,
    driver_version: str = "6.14.14",
    ras: Mapping[int, Mapping[str, Counts]] | None = None,
    ras_names: str = "aca",
    temperatures_c: Mapping[int, float] | None = None,
    powers_w: Mapping[int, float] | None = None,
    kfd_users: Sequence[int] = (),
) -> list[Path]:
    """Write the tree of a node with that many GPUs; all are well unless said otherwise by index.

    `ras_names` is "aca" (aca_umc, three lines) or "err_count" (umc_err_count, two lines). An empty
    `driver_version` is the driver of the kernel itself, which states none. Returns the GPUs' real
    directories in the order of their indices.
    """
    if addresses is None and gpus > len(DEFAULT_ADDRESSES):
        raise ValueError(f"say the addresses of {gpus} GPUs")
    addresses = sorted(DEFAULT_ADDRESSES[:gpus] if addresses is None else addresses)
    _write_driver(root, driver_version)
    _write_hwmon(root, 0, root / "devices/pci0000:00/0000:00:18.3", {"name": "k10temp"})
    directories = []
    for gpu, address in enumerate(addresses):
        directory = _write_gpu(root, gpu, address)
        for block in RAS_BLOCKS:
            counts = (ras or {}).get(gpu, {}).get(block, (0, 0, 0))
            set_ras(directory, block, counts, ras_names)
        _write(directory / "ras/features", "feature mask: 0x3fffb")
        _write(directory / "ras/gpu_vram_bad_pages", "")
        hwmon = _sensors((temperatures_c or {}).get(gpu, 45.0), (powers_w or {}).get(gpu, 250.0))
        # 1 is left out, and the last GPU comes first: numbers say nothing about the order.
        _write_hwmon(root, len(addresses) + 1 - gpu, directory, hwmon)
        directories.append(directory)
    _write_kfd(root, len(addresses), kfd_users)
    return directories


def ras_file(gpu_directory: Path, block: str, ras_names: str = "aca") -> Path:
    """The counter file of one block: the file to let hang."""
    name = f"aca_{block}" if ras_names == "aca" else f"{block}_err_count"
    return gpu_directory / "ras" / name


def set_ras(gpu_directory: Path, block: str, counts: Counts, ras_names: str = "aca") -> None:
    """Set one block's counters, also later, to let them grow."""
    lines = [f"{name}: {count}" for name, count in zip(("ue", "ce", "de"), counts, strict=True)]
    shown = lines if ras_names == "aca" else lines[:2]
    _write(ras_file(gpu_directory, block, ras_names), "\n".join(shown))


def as_seen_on_host(root: Path, path: Path) -> str:
    """The name in a host's own /sys of a file in the tree `root`."""
    return f"/sys/{path.relative_to(root)}"


def _write_driver(root: Path, version: str) -> None:
    driver = root / "bus/pci/drivers/amdgpu"
    for name in ("bind", "unbind", "new_id", "remove_id", "uevent"):
        _write(driver / name, "", mode=0o200)
    if version:
        _write(root / "module/amdgpu/version", version)
    _write(root / "module/amdgpu/initstate", "live")
    _link(driver / "module", root / "module/amdgpu")


def _write_gpu(root: Path, gpu: int, address: str) -> Path:
    domain, bus, _ = address.split(":")
    root_port = root / f"devices/pci{domain}:{int(bus, 16) & 0xF0:02x}/{domain}:{bus[0]}0:01.1"
    directory = root_port / f"{domain}:{bus[0]}1:00.0" / address
    for device in (root_port, directory.parent, directory):
        write_link_state(device)
    for kind in ("cor", "nonfatal", "fatal"):
        _write(root_port / f"aer_rootport_total_err_{kind}", 0)
    files = {
        "vendor": "0x1002",
        "device": "0x75a0",
        "class": "0x120000",
        "unique_id": f"{0x3F1C9A0E5D7B2240 + gpu:016x}",
        "numa_node": "0" if gpu < 4 else "1",
        "mem_info_vram_total": VRAM_BYTES,
        "mem_info_vram_used": 301_452_361_728,
        "gpu_busy_percent": 0,
    }
    for name, value in files.items():
        _write(directory / name, value)
    _link(directory / "driver", root / "bus/pci/drivers/amdgpu")
    _link(root / "bus/pci/drivers/amdgpu" / address, directory)
    _link(root / "bus/pci/devices" / address, directory)
    for name in (f"card{gpu}", f"renderD{128 + gpu}"):
        _write(directory / "drm" / name / "dev", f"226:{gpu}")
        _link(directory / "drm" / name / "device", directory)
        _link(root / "class/drm" / name, directory / "drm" / name)
    return directory


def write_link_state(device: Path) -> None:
    """A PCI function, device or bridge, whose link runs at its best and never had an error."""
    for name in ("current_link_speed", "max_link_speed"):
        _write(device / name, "32.0 GT/s PCIe")
    for name in ("current_link_width", "max_link_width"):
        _write(device / name, 16)
    for kind in ("correctable", "nonfatal", "fatal"):
        set_aer(device, kind, 0)


def set_link(device: Path, width: int | None = None, speed_gts: float | None = None) -> None:
    """What the link of that function runs at now."""
    if width is not None:
        _write(device / "current_link_width", width)
    if speed_gts is not None:
        _write(device / "current_link_speed", f"{speed_gts:.1f} GT/s PCIe")


def set_aer(device: Path, kind: str, count: int) -> None:
    """Set one counter of that function: "correctable", "nonfatal" or "fatal"."""
    names = _CORRECTABLE if kind == "correctable" else _UNCORRECTABLE
    total = "TOTAL_ERR_COR" if kind == "correctable" else f"TOTAL_ERR_{kind.upper()}"
    lines = [f"{name} {count if name in ('BadTLP', 'TLP') else 0}" for name in names]
    _write(device / f"aer_dev_{kind}", "\n".join([*lines, f"{total} {count}"]))


def set_bad_pages(gpu_directory: Path, flags: str) -> None:
    """One bad page for each letter: R is retired, P waits to be, F could not be retired."""
    lines = [f"0x{0x27F5D43 + n:08x} : 0x00001000 : {flag}" for n, flag in enumerate(flags)]
    _write(gpu_directory / "ras/gpu_vram_bad_pages", "\n".join(lines))


def _sensors(temperature_c: float, power_w: float) -> dict[str, object]:
    return {
        "name": "amdgpu",
        "temp2_label": "junction",
        "temp2_input": round(temperature_c * 1000),
        "temp2_crit": 100_000,
        "temp2_emergency": 105_000,
        "temp3_label": "mem",
        "temp3_input": round((temperature_c - 5) * 1000),
        "power1_input": round(power_w * 1e6),
        "power1_cap": 1_400_000_000,
        "freq1_label": "sclk",
        "freq1_input": 2_400_000_000,
        "freq2_label": "mclk",
        "freq2_input": 1_900_000_000,
    }


def _write_hwmon(root: Path, number: int, device: Path, files: Mapping[str, object]) -> None:
    directory = device / "hwmon" / f"hwmon{number}"
    for name, value in files.items():
        _write(directory / name, value)
    _link(directory / "device", device)
    _link(root / "class/hwmon" / directory.name, directory)


def _write_kfd(root: Path, gpus: int, users: Iterable[int]) -> None:
    kfd = root / "devices/virtual/kfd/kfd"
    (kfd / "proc").mkdir(parents=True, exist_ok=True)
    for pid in users:
        _write(kfd / "proc" / str(pid) / "pasid", 32768 + pid % 1000)
    for node in range(gpus + 1):
        topology = kfd / "topology/nodes" / str(node)
        # Node 0 is the processor, which has no GPU id.
        _write(topology / "gpu_id", 0 if node == 0 else 20000 + node)
        _write(topology / "name", "cpu" if node == 0 else "ip discovery")
        _write(topology / "properties", f"cpu_cores_count {64 if node == 0 else 0}")
    _link(root / "class/kfd/kfd", kfd)


def _write(path: Path, value: object, mode: int = 0o444) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.chmod(0o644)  # for those who are not root
    path.write_text(f"{value}\n" if value != "" else "")
    path.chmod(mode)


def rewrite(path: Path, text: str) -> None:
    """Replace a file whole: no reader ever sees half of it, as with the kernel's own files."""
    new = path.with_name(f".{path.name}")
    new.write_text(text)
    new.chmod(0o444)
    new.replace(path)


def _link(link: Path, target: Path) -> None:
    """Relative, as in sysfs, so that the tree may be bound elsewhere."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


@dataclass(frozen=True)
class KernelRecord:
    """One record of the kernel log."""

    text: str
    time_s: float  # Unix seconds
    level: int = 6  # 0 emergency .. 7 debug
    facility: int = 0  # 0: the kernel wrote it
    device: str = ""  # PCI address for the DEVICE= continuation line; empty: none


def kmsg(records: Iterable[KernelRecord], boot_s: float | None = None, first_seq: int = 0) -> str:
    """The records as /dev/kmsg gives them, one after the other.

    `boot_s` is btime of /proc/stat, this machine's unless given. Raises ValueError for a record
    that would be older than the boot.
    """
    boot = boot_time_s() if boot_s is None else boot_s
    lines = []
    for seq, record in enumerate(records, start=first_seq):
        since_boot_us = round((record.time_s - boot) * 1e6)
        if since_boot_us < 0:
            raise ValueError(f"before the boot: {record}")
        priority = record.facility * 8 + record.level
        lines.append(f"{priority},{seq},{since_boot_us},-;{record.text}")
        if record.device:
            lines += [" SUBSYSTEM=pci", f" DEVICE=+pci:{record.device}"]
    return "".join(f"{line}\n" for line in lines)


def write_kmsg(path: Path, records: Iterable[KernelRecord], boot_s: float | None = None) -> None:
    """Write a file to stand in for /dev/kmsg: one read gives many records, and then it ends."""
    path.write_text(kmsg(records, boot_s))


def boot_time_s() -> float:
    """btime of this machine, which all simulated hosts share."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    raise RuntimeError("/proc/stat has no btime")


def quiet_records(time_s: float | None = None) -> list[KernelRecord]:
    """What a well node's log holds: nothing that is wrong, though some of it sounds like it."""
    now = time.time() if time_s is None else time_s
    texts = [
        (5, "Linux version 6.8.0-60-generic (buildd@builder) #63-Ubuntu SMP PREEMPT_DYNAMIC"),
        (6, "[drm] amdgpu kernel modesetting enabled."),
        (6, "ACPI: Core revision 20230628, error reporting initialised"),
        (6, "perf: interrupt took too long (2512 > 2500), lowering rate"),
    ]
    return [KernelRecord(text, now, level) for level, text in texts]


def cper_oops_records(
    time_s: float, address: str = DEFAULT_ADDRESSES[0], comm: str = "metrics_exporte"
) -> list[KernelRecord]:
    """The driver fault: a read of a RAS counter file crashes the kernel while it writes CPER."""
    frames = [
        "amdgpu_cper_ring_write+0x91/0x2a0 [amdgpu]",
        "amdgpu_cper_generate_ce_records+0x18c/0x230 [amdgpu]",
        "aca_log_aca_error+0xa1/0x160 [amdgpu]",
        "amdgpu_ras_aca_sysfs_read+0x62/0xd0 [amdgpu]",
        "aca_sysfs_read+0x1d/0x30 [amdgpu]",
        "dev_attr_show+0x19/0x50",
        "vfs_read+0x2a1/0x360",
    ]
    ring = f"amdgpu {address}: amdgpu: [drm] *ERROR* ring sdma0.1 timeout"
    texts = [
        (1, "BUG: unable to handle page fault for address: ffffa83ac0f3d008"),
        (1, "#PF: supervisor read access in kernel mode"),
        (4, "Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI"),
        (
            4,
            f"CPU: 37 UID: 0 PID: 20417 Comm: {comm} Tainted: G           OE      6.8.0-60-generic",
        ),
        (4, "RIP: 0010:amdgpu_cper_ring_get_ent_sz+0x3e/0xa0 [amdgpu]"),
        (4, "Call Trace:"),
        (4, " <TASK>"),
        *((4, f" {frame}") for frame in frames),
        (4, " </TASK>"),
        (4, "---[ end trace 0000000000000000 ]---"),
    ]
    oops = [KernelRecord(text, time_s + n * 2e-6, level) for n, (level, text) in enumerate(texts)]
    return [KernelRecord(ring, time_s - 0.5, 3, device=address), *oops]
