"""What raydiag costs, as ratios against a floor measured in the same run.

    make bench            or one by one:  python benchmarks/run.py startup judge node ...

`cluster` and `hung` need root: they run on simulated hosts. Times are medians; other load on the
machine shows in the spread, which is printed as well. Nothing here is a test.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from raydiag import memory_import, probes
from raydiag.cluster import bundle
from raydiag.cluster.local import throwaway_ray
from tests.cluster import fake_node, fake_rdma, namespaces
from tests.cluster.simulated_hosts import Cluster, HostSpec

_RAYDIAG = [sys.executable, "-m", "raydiag"]
_NODE_BUDGET_S = 20.0
_IDLE_S = 60.0  # without a question, for what the resident agent costs then
# Nodes, format, targets.
_JUDGED = (
    (1000, "text", "< 2 s", "< 300 MiB"),
    (1000, "json", "-", "-"),
    (10_000, "text", "< 10 s", "< 1024 MiB"),
)
_FLOOR_JOB = Path(__file__).with_name("floor_job.py")


def _show(what: str, value: str, target: str) -> None:
    print(f"  {what:<58} {value:>22}   target {target}")


def _spread(values: Sequence[float], unit: str) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.3f} {unit} ({low:.3f}-{high:.3f})"


def _child_cpu_s(argv: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def startup() -> None:
    """CPU time of `raydiag --help` against an empty interpreter."""
    print("startup")
    empty = [_child_cpu_s([sys.executable, "-c", "pass"]) for _ in range(10)]
    ours = [_child_cpu_s([*_RAYDIAG, "--help"]) for _ in range(10)]
    _show("python -c pass", _spread(empty, "s CPU"), "-")
    _show("raydiag --help", _spread(ours, "s CPU"), "< 0.15 s CPU")
    imported = subprocess.run(
        [sys.executable, "-X", "importtime", *_RAYDIAG[1:], "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    _show("it imports ray", str(" ray\n" in imported).lower(), "false")


def judge() -> None:
    """Synthetic nodes merged, judged and rendered, each time in a process of its own."""
    script = Path(__file__).with_name("synthetic_nodes.py")
    for nodes, shape, seconds, mib in _JUDGED:
        print(f"judge: {nodes:,} nodes, 8 GPUs each, as {shape}")
        argv = [sys.executable, str(script), shape, str(nodes)]
        runs = [json.loads(subprocess.check_output(argv)) for _ in range(3)]
        _show("decode, judge, render", _spread([run["seconds"] for run in runs], "s"), seconds)
        _show("peak memory", f"{max(run['peak_mib'] for run in runs):.0f} MiB", mib)


def kmsg() -> None:
    """`raydiag kmsg` on 100 MB of kernel log, against `grep -c` for one word."""
    print("kmsg: 100 MB of kernel log")
    script = Path(__file__).with_name("kernel_log_text.py")
    with tempfile.TemporaryDirectory() as directory:
        for share, target in ((0.01, "< 2 s CPU"), (0.5, "-")):
            log = str(Path(directory) / "log")
            subprocess.run([sys.executable, script, log, str(100_000_000), str(share)], check=True)
            # Into a pipe: with /dev/null as its output grep ends at the first match.
            floor = [_child_cpu_s(["sh", "-c", f"grep -c NVRM {log} | cat"]) for _ in range(3)]
            ours = [_cost("kmsg", log) for _ in range(3)]
            what = f"{share:.0%} of the lines faults"
            _show(f"grep -c, {what}", _spread(floor, "s CPU"), "-")
            _show(f"raydiag kmsg, {what}", _spread([cpu for cpu, _ in ours], "s CPU"), target)
            _show("peak memory", f"{max(peak for _, peak in ours):.0f} MiB", "< 150 MiB")


def triage() -> None:
    """Looking for the signatures in 1 GiB, and the whole of `raydiag triage` on 100 MB."""
    print("triage: the table's signatures in a job's log of 1 GiB")
    script = Path(__file__).with_name("triage_scan.py")
    speeds = json.loads(subprocess.check_output([sys.executable, str(script), "1024"]))
    for name in ("bare hyperscan", "ripgrep", "plain re"):
        speed = speeds[name]
        _show(name, "not installed" if speed is None else f"{speed:.4f} GB/s of CPU", "-")
    ours, slow = speeds["raydiag"], speeds["raydiag without hyperscan"]
    if speeds["bare hyperscan"] is not None:
        ratio = f"{ours:.3f} GB/s, {ours / speeds['bare hyperscan']:.2f} x"
        _show("raydiag, against bare hyperscan", ratio, ">= 0.8 x")
        if speeds["ripgrep"] is not None:
            _show("raydiag, against ripgrep", f"{ours / speeds['ripgrep']:.2f} x", ">= 1 x")
    ratio = f"{slow:.3f} GB/s, {slow / speeds['plain re']:.0f} x"
    _show("raydiag without hyperscan, against plain re", ratio, ">= 2 x")
    with tempfile.TemporaryDirectory() as directory:
        log = str(Path(directory) / "job.log")
        subprocess.run([sys.executable, str(script), log, "100"], check=True)
        costs = [_cost("triage", log) for _ in range(3)]
        _show("raydiag triage, 100 MB", _spread([cpu for cpu, _ in costs], "s CPU"), "< 1 s CPU")
        _show("peak memory", f"{max(peak for _, peak in costs):.0f} MiB", "< 150 MiB")
        with open(log, "wb") as stream:
            stream.writelines(b"x" * (1 << 20) for _ in range(1 << 10))
        _show("peak memory, one line of 1 GiB", f"{_cost('triage', log)[1]:.0f} MiB", "< 150 MiB")


def _cost(command: str, log: str) -> tuple[float, float]:
    """CPU seconds and peak MiB of one run."""
    script = (
        "import resource, sys; from raydiag.cli import main; "
        "main([sys.argv[1], '--format', 'json', '-o', '/dev/null', sys.argv[2]]); "
        "usage = resource.getrusage(resource.RUSAGE_SELF); "
        "print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)"
    )
    argv = [sys.executable, "-c", script, command, log]
    cpu, peak = subprocess.check_output(argv, text=True).split()
    return float(cpu), float(peak)


def node() -> None:
    """What one node pays over an empty actor: the runner and its readers, 8 GPUs and 8 NICs."""
    print("node: all probes, 8 GPUs, 8 NICs, no Ray")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "proc").symlink_to("/proc")
        (root / "dev").symlink_to("/dev")
        fake_node.write_amdgpu(root / "sys")
        fake_rdma.write_rdma(root / "sys", driver="ionic", devices=8)
        cpu, wall = [], []
        for _ in range(10):
            started = time.monotonic()
            cpu.append(_run_node(str(root))["cpu_s"])
            wall.append(time.monotonic() - started)
        _show("node runner and readers", _spread(cpu, "s CPU"), "<= 0.15 s CPU")
        _show("from start to answer", _spread(wall, "s"), "-")
        # Beside a live Ray, as on a real node: pages of the interpreter are shared with it.
        with throwaway_ray():
            held = f"{_held_pss_mib(str(root)):.1f} MiB PSS"
        _show("node runner and readers, beside Ray", held, "<= 12 MiB PSS")


def _node_bundle(root: str, extra: dict[str, str] | None = None) -> bytes:
    names = probes.defaults()
    modules = bundle.modules(names)
    modules |= {f"raydiag.probes.{name}": text for name, text in (extra or {}).items()}
    request = {
        "probes": [*names, *(extra or {})],
        "root": root,
        "options": {"kernel_log": {"words": ["amdgpu", "out of memory"]}},
    }
    return memory_import.packed(modules, request)


def _node_command() -> list[str]:
    return [
        sys.executable,
        "-I",
        "-S",
        "-B",
        "-c",
        bundle.entrypoint("node_runner"),
        *(str(time.monotonic() + _NODE_BUDGET_S), str(_NODE_BUDGET_S), str(os.getpid())),
    ]


def _run_node(root: str) -> dict[str, float]:
    done = subprocess.run(
        _node_command(), input=_node_bundle(root), capture_output=True, check=True
    )
    answer: dict[str, float] = json.loads(zlib.decompress(done.stdout.partition(b"\n")[2]))
    return answer


_HOLD = """
import time
from dataclasses import dataclass
from raydiag.probes import LAST, probe

@dataclass(frozen=True)
class Nothing:
    pass

@probe(Nothing, timeout_s=9, stage=LAST)
def hold(host):
    time.sleep(3)
    yield Nothing()
"""


def _held_pss_mib(root: str) -> float:
    """PSS of the runner and its readers after all probes: a last probe holds them still."""
    process = subprocess.Popen(_node_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(_node_bundle(root, {"hold": _HOLD}))
    process.stdin.close()
    time.sleep(1.5)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    total_kib = 0
    for pid in [str(process.pid), *children]:
        with contextlib.suppress(ProcessLookupError):  # a reader that has ended
            total_kib += _pss_kib(int(pid))
    assert process.stdout is not None
    process.stdout.read()
    process.wait()
    return total_kib / 1024


def _hosts(directory: Path, count: int) -> list[HostSpec]:
    specs = []
    for number in range(1, count + 1):
        tree = directory / f"sys-{number}"
        fake_node.write_amdgpu(tree)
        # Nothing has counted yet: else the node is watched for a second, which is no overhead.
        fake_rdma.write_rdma(tree, driver="ionic", devices=8, since_boot=0)
        specs.append(HostSpec(f"node{number:03}", sys=tree))
    return specs


def _timed(cluster: Cluster, argv: Sequence[str]) -> tuple[float, str]:
    started = time.monotonic()
    done = cluster.run_on(cluster.head, argv, timeout=120)
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(f"{argv}: exit {done.returncode}: {done.stderr[-2000:]}")
    return time.monotonic() - started, done.stdout


def exporter() -> None:
    """The exporter beside node_exporter; `benchmarks/exporter.py NAME` for one of its parts."""
    script = Path(__file__).with_name("exporter.py")
    subprocess.run([sys.executable, str(script)], check=True)


def cluster() -> None:
    """A one-shot probe against a no-op job with an empty pinned actor on each node, in turn."""
    hosts = 4
    print(f"cluster: {hosts} simulated hosts with 8 GPUs each")
    probe = [*_RAYDIAG, "probe", "--all-nodes", "--format", "json"]
    with (
        tempfile.TemporaryDirectory() as directory,
        Cluster(_hosts(Path(directory), hosts)) as running,
    ):
        floor, ours, cpu = [], [], []
        for number in range(9):
            floor_s, _ = _timed(running, [sys.executable, str(_FLOOR_JOB)])
            ours_s, text = _timed(running, probe)
            if number:  # the first of each warms caches up
                floor.append(floor_s)
                ours.append(ours_s)
                cpu += [item["cpu_s"] for item in json.loads(text)["nodes"]]
    pairs = [b / a for a, b in zip(floor, ours, strict=True)]
    _show("no-op job with an empty actor per node", _spread(floor, "s"), "-")
    _show("raydiag probe --all-nodes", _spread(ours, "s"), "-")
    _show("ratio, pair by pair", _spread(pairs, "x"), "<= 1.25 x")
    _show("a node's runner and readers", _spread(cpu, "s CPU"), "<= 0.15 s CPU")


def warm() -> None:
    """A probe through the resident agent against a no-op job of Ray's, in turn, on eight hosts."""
    hosts = 8
    print(f"warm: {hosts} simulated hosts with 8 GPUs each")
    probe = [*_RAYDIAG, "probe", "--all-nodes", "--format", "json"]
    no_op = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--", "true"]
    with (
        tempfile.TemporaryDirectory() as directory,
        Cluster(_hosts(Path(directory), hosts)) as running,
    ):
        up_s, _ = _timed(running, [*_RAYDIAG, "agent", "up"])
        floor, ours, rounds = [], [], []
        for number in range(9):
            ours_s, text = _timed(running, probe)
            document = json.loads(text)
            assert "agent" in document["cluster"], "the probe went the long way"
            if number:
                ours.append(ours_s)
                rounds.append(document["cluster"]["duration_s"])
                floor.append(_timed(running, no_op)[0])
        idle_percent, idle_mib = _idle_actors(running)
        _timed(running, [*_RAYDIAG, "agent", "down"])
    pairs = [a / b for a, b in zip(floor, ours, strict=True)]
    _show("raydiag agent up", f"{up_s:.2f} s", "-")
    _show("ray job submit -- true", _spread(floor, "s"), "-")
    _show("warm raydiag probe --all-nodes", _spread(ours, "s"), "< 0.6 s")
    _show("of that, the nodes", _spread(rounds, "s"), "-")
    _show("faster than the no-op job, pair by pair", _spread(pairs, "x"), ">= 15 x")
    _show("an idle node's actor", _spread(idle_percent, "% of a core"), "< 0.1 % of a core")
    _show("its memory", _spread(idle_mib, "MiB PSS"), "< 45 MiB PSS")


def _idle_actors(cluster: Cluster) -> tuple[list[float], list[float]]:
    """CPU in percent of a core, and MiB PSS, of each node's actor while nobody asks."""
    pids = []
    for host in cluster.hosts:
        for pid in cluster.processes(host):
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            if "RaydiagNodeActor" in words:
                pids.append(pid)
    before = list(map(_cpu_ticks, pids))
    time.sleep(_IDLE_S)
    percent = []
    for pid, ticks in zip(pids, before, strict=True):
        used_s = (_cpu_ticks(pid) - ticks) / os.sysconf("SC_CLK_TCK")
        percent.append(100 * used_s / _IDLE_S)
    return percent, [_pss_kib(pid) / 1024 for pid in pids]


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _pss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def hung() -> None:
    """Eight hosts, one of them frozen: how far past its deadline the command ends."""
    hosts, deadline_s = 8, 6.0
    print(f"hung: {hosts} simulated hosts, the raylet of one stopped, deadline {deadline_s:g} s")
    probe = [*_RAYDIAG, "probe", "--all-nodes", "--format", "json", "--deadline", str(deadline_s)]
    with (
        tempfile.TemporaryDirectory() as directory,
        Cluster(_hosts(Path(directory), hosts)) as running,
    ):
        _timed(running, probe)
        running.signal_raylet("node008", signal.SIGSTOP)
        started = time.time()
        elapsed, text = _timed(running, probe)
        ended = started + elapsed
        running.signal_raylet("node008", signal.SIGCONT)
    document = json.loads(text)
    states = [item["status"] for item in document["nodes"]]
    over_s = ended - document["cluster"]["asked_at"] - deadline_s
    _show("the command ended after its deadline", f"{over_s:+.2f} s", "<= 1 s")
    _show("nodes complete", f"{states.count('ok')} of {hosts}", "7 of 8")


def diagnose() -> None:
    """A job of 1,000 nodes against bare queries; `benchmarks/diagnose.py --nodes N` for fewer."""
    script = Path(__file__).with_name("diagnose.py")
    subprocess.run([sys.executable, str(script)], check=True)


_BENCHMARKS: dict[str, Callable[[], None]] = {
    "startup": startup,
    "judge": judge,
    "kmsg": kmsg,
    "triage": triage,
    "node": node,
    "diagnose": diagnose,
    "exporter": exporter,
    "cluster": cluster,
    "warm": warm,
    "hung": hung,
}


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in _BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(_BENCHMARKS)}", file=sys.stderr)
        return 2
    reason = namespaces.unavailable()
    for name in names or _BENCHMARKS:
        if name in ("cluster", "warm", "hung") and reason:
            print(f"{name}: left out: {reason}")
        else:
            _BENCHMARKS[name]()
    return 0


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.exit(main(sys.argv[1:]))
