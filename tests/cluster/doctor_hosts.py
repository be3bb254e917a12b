"""Set-ups for `raydiag doctor`: a cluster that is as it should be, and one with weaknesses."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import fake_node
from tests.cluster.conftest import RAYDIAG, environment
from tests.cluster.simulated_hosts import Cluster, HostSpec

HEAD, CROWDED, BLIND = HOSTS = ("node001", "node002", "node003")
PUBLIC_HEAD, PUBLIC_NODE = "9.9.9.1", "9.9.9.2"  # inside of the hosts' own network only
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
_NOBODY = 65534
# Root that may read what its own files allow, and no more.
_PLAIN_ROOT = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-sys_ptrace,-syslog")
_CONFIGURATION = """
global: {{scrape_interval: {interval}, scrape_timeout: 5s}}
scrape_configs:
  - job_name: node_hw
    static_configs: [{{targets: [{targets}]}}]
"""
Settings = Sequence[Mapping[str, str]]
GOOD_SETTINGS: Settings = ({"NCCL_DEBUG": "WARN", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "600"},)
# By each of these nothing is left of a hang: one kind for each actor.
WEAK_SETTINGS: Settings = (
    {"NCCL_DEBUG": "VERSION"},
    {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"},
    {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"},
    {"TORCH_NCCL_ENABLE_MONITORING": "0"},
    {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "86400"},
    {"NCCL_RAS_ENABLE": "0"},
)
# Actors that are at work as long as the job lives; output that does not end in a line is held back.
_JOB = """
import json, sys, time
import ray

@ray.remote(num_cpus=0)
class Rank:
    def work(self, held_back):
        print("completed step: 1, seconds: 1.0", flush=True)
        sys.stdout.write(held_back)
        time.sleep(3600)

ray.init(address="auto", log_to_driver=False)
nodes = sorted(ray.nodes(), key=lambda node: node["NodeManagerHostname"])
working = []
for number, settings in enumerate(json.loads(sys.argv[1])):
    address = nodes[number % len(nodes)]["NodeManagerAddress"]
    there = {f"node:{address}": 0.01}
    rank = Rank.options(runtime_env={"env_vars": settings}, resources=there).remote()
    working.append((rank, rank.work.remote(sys.argv[2])))
time.sleep(3600)
"""
HELD_BACK = "completed step: 2, sec" * 900
_LISTEN = "import http.server as h; h.HTTPServer(('0.0.0.0', {}), h.SimpleHTTPRequestHandler)"


@contextmanager
def good(directory: Path) -> Iterator[Cluster]:
    """Three hosts with private addresses, a token, exporters, and a Prometheus on loopback."""
    with Cluster([_spec(directory, host) for host in HOSTS], auth="token") as cluster:
        for host in HOSTS:
            start_exporter(cluster, host, cluster.hosts[host].address)
        targets = [f"{cluster.hosts[host].address}:9400" for host in HOSTS]
        start_prometheus(cluster, directory, "127.0.0.1", "5s", targets)
        start_job(cluster, GOOD_SETTINGS, "")
        yield cluster


@contextmanager
def weak(directory: Path) -> Iterator[Cluster]:
    """No token, Ray on all addresses of the head, one of them public.

    CROWDED is registered under a public address, its clock is off, and it has a second cluster.
    BLIND may not read kernel log and RAS counters.
    """
    clock = directory / "clock"
    clock.write_text("+90\n")
    other_clock = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
    }
    head = _spec(
        directory,
        HEAD,
        more_addresses=(f"{PUBLIC_HEAD}/24",),
        ray_args=("--dashboard-host", "0.0.0.0"),
    )
    crowded = _spec(
        directory,
        CROWDED,
        more_addresses=(f"{PUBLIC_NODE}/24",),
        ray_args=("--node-ip-address", PUBLIC_NODE),
        ray_env=other_clock,
    )
    blind = _spec(directory, BLIND, ray_launch=_PLAIN_ROOT, more_addresses=("9.9.9.3/24",))
    _take_away(directory / f"kmsg-{BLIND}")
    for file in (directory / f"sys-{BLIND}").rglob("aca_*"):
        _take_away(file)
    with Cluster([head, crowded, blind]) as cluster:
        start_job(cluster, WEAK_SETTINGS, HELD_BACK)
        _start_second_cluster(cluster)
        yield cluster


def _spec(directory: Path, host: str, **more: Any) -> HostSpec:
    tree, kmsg = directory / f"sys-{host}", directory / f"kmsg-{host}"
    fake_node.write_amdgpu(tree)
    fake_node.write_kmsg(kmsg, fake_node.quiet_records())
    return HostSpec(host, sys=tree, kmsg=kmsg, **more)


def _take_away(file: Path) -> None:
    """Root without its privileges may not read what is another one's."""
    os.chown(file, _NOBODY, _NOBODY)
    file.chmod(0o400)


def start_job(cluster: Cluster, settings: Settings, held_back: str) -> None:
    """A driver on the head. All that is started here ends with its host."""
    argv = [sys.executable, "-c", _JOB, json.dumps(settings), held_back]
    _start(cluster, HEAD, argv)


def _start_second_cluster(cluster: Cluster) -> None:
    ray = os.path.join(os.path.dirname(sys.executable), "ray")
    argv = [ray, "start", "--head", "--block", "--port", "6390", "--node-ip-address", "127.0.0.1"]
    argv += ["--temp-dir", str(cluster.directory / "second"), "--no-monitor"]
    argv += ["--include-dashboard", "false", "--num-cpus", "1"]
    _start(cluster, CROWDED, [*argv, "--object-store-memory", str(80 << 20)])


def start_exporter(cluster: Cluster, host: str, address: str) -> None:
    """Ours, on port 9400."""
    _start(cluster, host, [*RAYDIAG, "exporter", "run", "--listen", f"{address}:9400"])


def start_tensorboard(cluster: Cluster, directory: Path) -> None:
    """Something of that name on its usual port, on all addresses."""
    program = directory / "tensorboard"
    program.write_text(f"#!{sys.executable} -I\n{_LISTEN.format(6006)}.serve_forever()\n")
    program.chmod(0o755)
    _start(cluster, HEAD, [str(program), "--logdir", "/tmp"])


def start_prometheus(
    cluster: Cluster, directory: Path, address: str, interval: str, targets: Sequence[str]
) -> None:
    """A real one on the head, on the first port that a job's own may have."""
    quoted = ", ".join(map(json.dumps, targets))
    configuration = directory / "prometheus.yml"
    configuration.write_text(_CONFIGURATION.format(interval=interval, targets=quoted))
    argv = ["prometheus", f"--config.file={configuration}", "--log.level=error"]
    argv += [f"--storage.tsdb.path={directory}/tsdb", f"--web.listen-address={address}:9190"]
    _start(cluster, HEAD, argv)


def _start(cluster: Cluster, host: str, argv: Sequence[str]) -> None:
    with (cluster.directory / "others.log").open("ab") as log:
        cluster.popen_on(host, argv, env=environment(), stdout=log, stderr=log)


def others_said(cluster: Cluster) -> str:
    """What the programs beside Ray have printed last."""
    return (cluster.directory / "others.log").read_text(errors="replace")[-3000:]
