"""What each further node costs: real raylets on this machine, probed alone, in part and together.

    python benchmarks/scale.py [NODES]

Simulated hosts with a raylet each, 32 unless said otherwise; all share this machine's cores. Parts
of the cluster are probed through the resident agent and the one-shot way; a line through the
medians gives what a node adds. Needs root.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.cluster import fake_node, namespaces
from tests.cluster.conftest import RAYDIAG, environment
from tests.cluster.simulated_hosts import Cluster, HostSpec

_TIMES = 5
_DEADLINE_S = 120.0


def main() -> None:
    """Measure, and print a table and the slopes."""
    most = int(sys.argv[1]) if sys.argv[1:] else 32
    if reason := namespaces.unavailable():
        sys.exit(f"scale: left out: {reason}")
    sizes = [size for size in (2, 4, 8, 16, 32, 64) if size < most] + [most]
    with tempfile.TemporaryDirectory() as directory:
        specs = _specs(Path(directory), most)
        with Cluster(specs, start_deadline_s=900) as cluster:
            _measure(cluster, sizes)


def _specs(directory: Path, count: int) -> list[HostSpec]:
    specs = []
    for number in range(1, count + 1):
        tree, kmsg = directory / f"sys-{number}", directory / f"kmsg-{number}"
        fake_node.write_amdgpu(tree)
        fake_node.write_kmsg(kmsg, fake_node.quiet_records())
        specs.append(HostSpec(f"node{number:03}", sys=tree, kmsg=kmsg))
    return specs


def _measure(cluster: Cluster, sizes: Sequence[int]) -> None:
    one_shot = {size: _probes(cluster, size, "--fresh") for size in sizes}
    _raydiag(cluster, "agent", "up")
    warm = {size: _probes(cluster, size) for size in sizes}
    _raydiag(cluster, "agent", "down")
    ways: dict[str, Callable[[dict[str, float]], float]] = {
        "wall, s": lambda row: row["wall_s"],
        "answers, bytes": lambda row: row["bytes"],
        "the agent's CPU, s": lambda row: row["agent_cpu_s"],
        "the nodes' CPU, s": lambda row: row["nodes_cpu_s"],
    }
    for way, rows in (("one-shot", one_shot), ("warm", warm)):
        print(f"{way}, {_TIMES} probes of each size, medians")
        for name, column in ways.items():
            values = [column(rows[size]) for size in sizes]
            slope, start = statistics.linear_regression(sizes, values)
            shown = "  ".join(f"{size}: {v:.3g}" for size, v in zip(sizes, values, strict=True))
            print(f"  {name:<20} {shown}   = {start:.3g} + {slope:.3g} a node")


def _probes(cluster: Cluster, size: int, *options: str) -> dict[str, float]:
    """Medians of several probes of the first nodes."""
    nodes = f"node[001-{size:03}]"
    runs = [_probe(cluster, "--node", nodes, *options) for _ in range(_TIMES)]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _probe(cluster: Cluster, *arguments: str) -> dict[str, float]:
    before = _agent_cpu_s(cluster)
    began = time.monotonic()
    text = _raydiag(cluster, "probe", "--deadline", str(_DEADLINE_S), *arguments)
    wall_s = time.monotonic() - began
    nodes = json.loads(text)["nodes"]
    not_ok = [node["host"] for node in nodes if node["status"] not in ("ok", "partial")]
    if not_ok:
        raise SystemExit(f"scale: no figure: {len(not_ok)} nodes did not answer: {not_ok[:4]}")
    return {
        "wall_s": wall_s,
        "bytes": len(text),
        "agent_cpu_s": _agent_cpu_s(cluster) - before,
        "nodes_cpu_s": sum(node["cpu_s"] for node in nodes),
    }


def _agent_cpu_s(cluster: Cluster) -> float:
    """Of the coordinator; 0 without one."""
    status = json.loads(_raydiag(cluster, "agent", "status")).get("status") or {}
    return float(status.get("cpu_s", 0.0))


def _raydiag(cluster: Cluster, *arguments: str) -> str:
    """What a command on the head prints as JSON."""
    argv = [*RAYDIAG, *arguments, "--format", "json"]
    done = cluster.run_on(cluster.head, argv, env=environment(), timeout=_DEADLINE_S + 60)
    if not done.stdout:
        raise SystemExit(f"scale: {arguments}: exit {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
