"""What the exporter costs, beside node_exporter over the same files in the same run.

    python benchmarks/exporter.py             all of it; or one by one: cycle scrape idle growth

The files are those of a node with 8 GPUs and 8 RDMA cards, below a temporary directory. CPU time is
the kernel's own count in nanoseconds, of all processes that take part.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from raydiag.exporter.main import Exporter, ExporterSettings
from tests.exporter import fake_sys

_ROUNDS, _CYCLES = 5, 40
_TARGET_MS = 10.0
_NODE_EXPORTER = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")

_PCI = "DRIVER=amdgpu\nPCI_CLASS=120000\nPCI_ID=1002:75A0"
_GPU = {
    **dict.fromkeys(("gpu_busy_percent", "mem_busy_percent"), "0"),
    **dict.fromkeys(("mem_info_gtt_total", "mem_info_gtt_used"), "4096"),
    **dict.fromkeys(("mem_info_vis_vram_total", "mem_info_vis_vram_used"), "4096"),
    "mem_info_vram_vendor": "samsung",
    "power_dpm_state": "performance",
    "power_dpm_force_performance_level": "auto",
    "uevent": _PCI,
}
_PORT = (
    *("VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery"),
    *("local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets"),
    *("port_rcv_constraint_errors", "port_rcv_data", "port_rcv_discards", "port_rcv_errors"),
    *("port_rcv_packets", "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors"),
    *("port_xmit_constraint_errors", "port_xmit_data", "port_xmit_discards", "port_xmit_packets"),
    *("port_xmit_wait", "symbol_error", "unicast_rcv_packets", "unicast_xmit_packets"),
)
# Its collectors of what we collect; hwmon and drm are the nearest to our GPU sensors.
_COLLECTORS = (
    *("infiniband", "netdev", "netstat", "stat", "meminfo", "vmstat", "pressure", "hwmon", "drm"),
)


def _show(what: str, value: str, target: str) -> None:
    print(f"  {what:<58} {value:>26}   target {target}")


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ms ({min(values):.2f}-{max(values):.2f})"


def plant(root: Path) -> None:
    """A node with 8 GPUs and 8 cards, complete for both.

    node_exporter gives up a collector at the first file that it misses, and would then be cheap.
    """
    fake_sys.plant(root)
    for device in (root / "sys/class/drm").glob("card*/device"):
        for name, text in _GPU.items():
            fake_sys.write(device / name, text)
    for card in (root / "sys/class/infiniband").iterdir():
        for name, text in (("board_id", "x"), ("fw_ver", "1.2"), ("hca_type", "x")):
            fake_sys.write(card / name, text)
        for name in _PORT:
            if not (card / "ports/1/counters" / name).exists():
                fake_sys.write(card / "ports/1/counters" / name, 12_345)
    pressure = (root / "proc/pressure/io").read_text()
    for name in ("cpu", "memory", "irq"):
        fake_sys.write(root / "proc/pressure" / name, pressure)


def cpu_ms(pids: Iterable[int]) -> float:
    """CPU time of processes since they began, with all threads that they have had.

    Source: clock_getcpuclockid(3), which is this number in the kernel's ABI
    """
    return 1e3 * sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def node_exporter(root: Path) -> Iterator[tuple[int, str]]:
    """Its pid and address, with the matching collectors only."""
    address = f"127.0.0.1:{free_port()}"
    argv = [str(_NODE_EXPORTER), "--collector.disable-defaults"]
    argv += [f"--collector.{name}" for name in _COLLECTORS]
    argv += [f"--path.sysfs={root}/sys", f"--path.procfs={root}/proc"]
    argv += [f"--web.listen-address={address}", "--web.disable-exporter-metrics"]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                get(address)
                break
            time.sleep(0.1)
        yield process.pid, address
    finally:
        process.terminate()
        process.wait()


def get(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def series(page: str, prefix: str = "") -> int:
    return sum(line.startswith(prefix) for line in page.split("\n") if line and line[0] != "#")


def cycle(root: Path) -> None:
    """CPU time of one cycle: read, parse, hand over, render."""
    print("cycle")
    exporter = Exporter(ExporterSettings(root=str(root), host="node001"), lambda line: None, False)

    def once() -> str:
        exporter.collector.begin()
        while not exporter.collector.is_idle:
            exporter.collector.work(1.0)
        return exporter.render().plugin_lines.decode()

    page = [once() for _ in range(3)][-1]
    pids = [os.getpid(), *children(os.getpid())]
    costs = []
    for _ in range(_ROUNDS):
        before = cpu_ms(pids)
        for _ in range(_CYCLES):
            once()
        costs.append((cpu_ms(pids) - before) / _CYCLES)
    exporter.collector.close()
    _show(f"raydiag, {series(page)} series", _spread(costs), f"<= {_TARGET_MS:.0f} ms CPU")
    if _NODE_EXPORTER is None:
        print("  node_exporter: left out: it is not installed")
        return
    with node_exporter(root) as (pid, address):
        page = [get(address) for _ in range(3)][-1]
        failed = [
            line for line in page.split("\n") if "collector_success" in line and "} 0" in line
        ]
        costs = []
        for _ in range(_ROUNDS):
            before = cpu_ms([pid])
            for _ in range(_CYCLES):
                get(address)
            costs.append((cpu_ms([pid]) - before) / _CYCLES)
    _show(f"node_exporter, {series(page, 'node_')} series, scrape", _spread(costs), "-")
    for line in failed:
        print(f"  node_exporter did less than it should: {line}")


@contextlib.contextmanager
def running(root: Path, interval_s: float) -> Iterator[tuple[int, str]]:
    """Our exporter's pid and address, once it has served a page of metrics."""
    address = f"127.0.0.1:{free_port()}"
    argv = [sys.executable, "-m", "raydiag", "exporter", "run", "--listen", address]
    argv += ["--root", str(root), "--interval", str(interval_s), "--state-dir", f"{root}/state"]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        page = ""
        while "hw_gpu_power_watts" not in page:
            time.sleep(0.2)
            with contextlib.suppress(OSError):
                page = get(address)
        yield process.pid, address
    finally:
        process.terminate()
        process.wait()


def pss_mib(pids: Iterable[int]) -> float:
    total_kib = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total_kib += int(line.split()[1])
    return total_kib / 1024


def scrape(root: Path) -> None:
    """CPU time of one scrape, gzipped as Prometheus asks for it; memory of all processes."""
    print("scrape")
    peer = node_exporter(root) if _NODE_EXPORTER is not None else contextlib.nullcontext()
    with running(root, 60) as (pid, address), peer as other:
        pids = [pid, *children(pid)]
        costs = _scrapes(pids, address)
        _show("raydiag", _spread(costs), "<= 2 ms CPU")
        held = f"{pss_mib(pids):.1f} MiB, {len(pids)} processes"
        _show("raydiag, PSS of all its processes", held, "< 45 MiB")
        if other is None:
            print("  node_exporter: left out: it is not installed")
            return
        # Its scrape is its collection as well; ours was done before.
        _show("node_exporter, collects as it serves", _spread(_scrapes([other[0]], other[1])), "-")
        _show("node_exporter, PSS", f"{pss_mib([other[0]]):.1f} MiB", "-")


def _scrapes(pids: Sequence[int], address: str) -> list[float]:
    request = urllib.request.Request(f"http://{address}/metrics")
    request.add_header("Accept-Encoding", "gzip")
    costs = []
    for _ in range(_ROUNDS):
        before = cpu_ms(pids)
        for _ in range(_CYCLES):
            with urllib.request.urlopen(request, timeout=10) as answer:
                answer.read()
        time.sleep(0.1)  # a thread ends after its client has the answer
        costs.append((cpu_ms(pids) - before) / _CYCLES)
    return costs


def idle(root: Path) -> None:
    """Share of a core at an interval of 15 s, with a scrape in each."""
    print("idle: three cycles of 15 s")
    with running(root, 15) as (pid, address):
        pids = [pid, *children(pid)]
        before, began = cpu_ms(pids), time.monotonic()
        for _ in range(3):
            time.sleep(15)
            get(address)
        spent_ms = cpu_ms(pids) - before
        share = spent_ms / 10 / (time.monotonic() - began)
        _show("raydiag", f"{share:.3f} % of a core", "< 0.1 %")


def growth(root: Path, cycles: int = 10_000) -> None:
    """Memory of all processes after a tenth of the cycles and after all, one upon the other."""
    print(f"growth: {cycles} cycles")
    settings = ExporterSettings(root=str(root), host="node001", state_directory=f"{root}/state")
    exporter = Exporter(settings, lambda line: None)
    pids = [os.getpid()]
    held = []
    for number in range(1, cycles + 1):
        exporter.collector.begin()
        while not exporter.collector.is_idle:
            exporter.collector.work(1.0)
        exporter.render()
        if number in (cycles // 10, cycles):
            pids = [os.getpid(), *children(os.getpid())]
            descriptors = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
            held.append((pss_mib(pids), len(pids), descriptors))
    exporter.collector.close()
    for part, (mib, processes, descriptors) in zip(("a tenth", "all"), held, strict=True):
        what = f"{mib:.1f} MiB, {processes} proc, {descriptors} fd"
        _show(f"after {part}", what, "the same")


BENCHMARKS: dict[str, Callable[[Path], None]] = {
    "cycle": cycle,
    "scrape": scrape,
    "idle": idle,
    "growth": growth,
}


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="raydiag-bench-") as directory:
        plant(Path(directory))
        for name in names or BENCHMARKS:
            BENCHMARKS[name](Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
