"""What `raydiag diagnose` costs, against the same bare queries to the same server.

    python benchmarks/diagnose.py                 1,000 nodes of 8 GPUs, one hour at 15 s
    python benchmarks/diagnose.py --nodes 100     a tenth of it; building takes 1.5 s for 10 nodes
    python benchmarks/diagnose.py --keep DIR      builds in DIR, and next time takes what is there

The job is an incident of tests/incidents with a port that degrades, cut to about 150 series a node.
Needs numpy, `prometheus` and `promtool`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.incidents import kinds
from tests.incidents.generate import generate
from tests.incidents.job import Job, Options
from tests.incidents.signals import Signals
from tests.incidents.truth import Incident

_ASKING = ("diagnose", "--all", "--prometheus")
_TURNS = 3
_SAMPLE_LIMIT = 50_000_000  # Prometheus' default of --query.max-samples
# Runs a command; its last line on stderr: wall and CPU seconds, peak memory in KiB, exit code.
_LAUNCHER = """
import json, resource, subprocess, sys, time
begun = time.monotonic()
code = subprocess.call(sys.argv[1:])
wall = time.monotonic() - begun
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
numbers = [wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, code]
print(json.dumps(numbers), file=sys.stderr)
"""
# What a node has of the series that the playbooks ask for, in about 150.
_LEFT_OUT = ("hw_gpu_ras_mmhub", "hw_gpu_ras_sdma", "hw_gpu_pcie_nonfatal")


@dataclass(frozen=True)
class Run:
    """One command: what it cost us and what it cost the server."""

    document: dict[str, Any]
    wall_s: float
    cpu_s: float
    peak_mib: float
    server_cpu_s: float


def _show(what: str, value: str, target: str) -> None:
    print(f"  {what:<58} {value:>22}   target {target}")


def build(nodes: int, minutes: float, out: Path) -> Incident:
    """A job directory; Prometheus data of `nodes` hosts in it."""
    thin = "rdma-degraded-thin"
    original = kinds.load()["rdma-degraded"]

    def thinned(job: Job) -> kinds.Run:
        job.full_families, job.all_tasks = False, False
        _into_one_block(job)
        play = original(job)
        next(play)
        world = yield
        try:
            play.send(world)
        except StopIteration as done:
            world.afterwards.append(_thin)
            return done.value  # type: ignore[no-any-return]
        raise AssertionError("a kind yields once")

    kinds.KINDS[thin] = thinned
    options = Options(nodes=nodes, gpus=8, ports=2, minutes=minutes, interval_s=15.0)
    return generate(thin, 7, out, options)


def _into_one_block(job: Job) -> None:
    """Blocks begin every two hours; promtool reads all its input once for each."""
    later = 7200 - job.start % 7200
    job.start += later
    job.plan.train_start += later
    job.plan.train_end += later


def _thin(signals: Signals) -> None:
    for metric in _LEFT_OUT:
        signals.remove(metric=metric)


@contextlib.contextmanager
def server(data: Path) -> Iterator[tuple[str, int]]:
    """Address and pid of a Prometheus over `data`, which it may write to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    config = data / "nothing.yml"
    config.write_text("global: {scrape_interval: 999h}\nscrape_configs: []\n")
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=10y",
        "--query.lookback-delta=15m",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/-/ready", timeout=1).close()
                break
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)


def _server_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def raydiag(incident: Incident, *more: str, pid: int | None = None) -> Run:
    """A command over the job as a process of its own: `diagnose` with all playbooks, `triage`."""
    command = [sys.executable, "-m", "raydiag", more[0], *incident.arguments]
    command += ["--format", "json", *more[1:]]
    before = _server_cpu_s(pid) if pid else 0.0
    with tempfile.TemporaryFile("w+") as out:
        # Through a small process: what a child needs at most is told as no less than its parent had
        # when it was started, and we have built a job of a thousand nodes.
        told = subprocess.run(
            [sys.executable, "-c", _LAUNCHER, *command],
            stdout=out,
            stderr=subprocess.PIPE,
            env=_as_installed(),
        )
        wall, cpu, peak_kib, code = json.loads(told.stderr.splitlines()[-1])
        out.seek(0)
        document = json.loads(out.read() or "{}")
    if code not in (0, 1, 3):
        raise SystemExit(f"raydiag {more[0]} ended with {code}")
    spent = (_server_cpu_s(pid) if pid else 0.0) - before
    return Run(document, wall, cpu, peak_kib / 1024, spent)


def _as_installed() -> dict[str, str]:
    """The environment, with bytecode kept as pip keeps it; the first run compiles."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return env | {"PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir(), "diagnose-bench-pyc"))}


def queries(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every query of every playbook, once."""
    found = {
        (one["promql"], one["start"], one["end"], one["step"]): one
        for playbook in document["playbooks"]
        for one in playbook["queries"]
    }
    return list(found.values())


def bare(url: str, asked: Sequence[dict[str, Any]]) -> int:
    """The same queries one after the other, answers thrown away; most samples at a time."""
    peak = 0
    for one in asked:
        told = {"query": one["promql"], "stats": "all"}
        if one["step"]:
            path = "query_range"
            told |= {key: str(one[key]) for key in ("start", "end", "step")}
        else:
            path, told["time"] = "query", str(one["end"])
        body = urllib.parse.urlencode(told).encode()
        with urllib.request.urlopen(f"{url}/api/v1/{path}", data=body, timeout=300) as answer:
            samples = json.load(answer)["data"]["stats"]["samples"]
        peak = max(peak, int(samples["peakSamples"]))
    return peak


def _incident(nodes: int, minutes: float, out: Path) -> Incident:
    """What an earlier run built in `out`, else built now."""
    kept = out / "incident.pickle"  # our own file, as we left it
    if kept.is_file():
        return pickle.loads(kept.read_bytes())  # type: ignore[no-any-return]
    incident = build(nodes, minutes, out)
    kept.write_bytes(pickle.dumps(incident))
    return incident


def run(nodes: int, minutes: float, keep: Path | None = None) -> None:
    print(f"diagnose: {nodes} nodes x 8 GPUs, {minutes:.0f} min of training, every 15 s")
    with tempfile.TemporaryDirectory(prefix="diagnose-bench-") as place:
        begun = time.monotonic()
        out = keep / f"{nodes}x{minutes:.0f}" if keep else Path(place, "outputs")
        incident = _incident(nodes, minutes, out)
        metas = Path(incident.job_dir, "prometheus").glob("*/meta.json")
        stats = [json.loads(path.read_text())["stats"] for path in metas]
        _show("built in", f"{time.monotonic() - begun:.0f} s", "-")
        _show("series a node", f"{max(s['numSeries'] for s in stats) / nodes:.0f}", "about 150")
        _show("samples", f"{sum(s['numSamples'] for s in stats) / 1e6:.2f} M", "-")
        data = Path(place, "data")
        shutil.copytree(Path(incident.job_dir, "prometheus"), data)
        with server(data) as (url, pid):
            warm = raydiag(incident, *_ASKING, url, pid=pid)
            asked = queries(warm.document)
            # In turns: a busy machine makes both dearer.
            floors, all_ours, peak = [], [], 0
            for _ in range(_TURNS):
                before = _server_cpu_s(pid)
                peak = bare(url, asked)
                floors.append(_server_cpu_s(pid) - before)
                all_ours.append(raydiag(incident, *_ASKING, url, pid=pid))
        floor_s = statistics.median(floors)
        ours_s = statistics.median(one.server_cpu_s for one in all_ours)
        cpu_s = statistics.median(one.cpu_s for one in all_ours)
        ours = max(all_ours, key=lambda one: one.peak_mib)
        _show("verdict", str(ours.document["verdict"]["class"]), "rdma-degraded")
        _show("queries of all playbooks", str(len(asked)), "<= 40")
        _show("queries in all", str(ours.document["metrics"]["queries"]), "-")
        _show("server, bare queries", f"{floor_s:.2f} s CPU", "-")
        ratio = ours_s / floor_s if floor_s else float("nan")
        _show("server, raydiag", f"{ours_s:.2f} s CPU", "-")
        _show("raydiag's share against bare", f"{ratio:.2f}", "<= 1.5")
        _show("raydiag itself", f"{cpu_s:.2f} s CPU", "<= 4 s CPU")
        _show("raydiag, peak memory", f"{ours.peak_mib:.0f} MiB", "<= 400 MiB")
        share = peak / _SAMPLE_LIMIT
        _show("largest query, of the server's sample limit", f"{share:.2%}", "<= 5 %")
        logs = raydiag(incident, "triage")
        _show("of it, reading the logs (raydiag triage)", f"{logs.cpu_s:.2f} s CPU", "-")
        alone = raydiag(incident, "diagnose", "--all")
        _show("wall, server start included", f"{alone.wall_s:.1f} s", "-")


def small() -> None:
    """Eight nodes, ninety minutes: how long somebody waits for a verdict."""
    print("diagnose: 8 nodes, 90 min")
    with tempfile.TemporaryDirectory(prefix="diagnose-bench-") as place:
        incident = build(8, 85, Path(place, "outputs"))
        times = sorted(raydiag(incident, "diagnose").wall_s for _ in range(3))
        _show(
            "wall, server start included",
            f"{times[1]:.1f} s ({times[0]:.1f}-{times[2]:.1f})",
            "< 5 s",
        )


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="what raydiag diagnose costs")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=55, help="of training, in about 5 more")
    parser.add_argument("--keep", type=Path, help="build here, or take what was built here before")
    asked = parser.parse_args(argv)
    missing = [name for name in ("prometheus", "promtool") if not shutil.which(name)]
    if missing:
        print(f"diagnose: left out: {missing[0]} is not on PATH")
        return 0
    run(asked.nodes, asked.minutes, asked.keep)
    small()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
