"""Clusters that several tests share, and the command under test run on their head."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import schemas
from tests.cluster import fake_node, fuse_hang, namespaces
from tests.cluster.fuse_hang import HangingFile
from tests.cluster.simulated_hosts import Cluster, HostSpec

RAYDIAG = [sys.executable, "-m", "raydiag"]


@dataclass
class Answer:
    """What `raydiag probe --format json` said."""

    exit_code: int
    document: dict[str, Any]
    stderr: str

    def node(self, host: str) -> dict[str, Any]:
        return next(dict(node) for node in self.document["nodes"] if node["host"] == host)

    def faults(self) -> set[tuple[str, str | None, Any]]:
        """(class, host, GPU index or device) of every finding, whatever its severity."""
        return {
            (f["class"], f["host"], f["device"] if f["gpu"] is None else f["gpu"])
            for f in self.document["findings"]
        }


def environment() -> dict[str, str]:
    """For commands on a host: the checkout under test, and no bytecode written into it."""
    return {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}


def probe(cluster: Cluster, *arguments: str, timeout: float = 90) -> Answer:
    """Run `raydiag probe` on the head and check its document against the schema."""
    argv = [*RAYDIAG, "probe", "--format", "json", *arguments]
    done = cluster.run_on(cluster.head, argv, env=environment(), timeout=timeout)
    return answer(done)


def answer(done: subprocess.CompletedProcess[str]) -> Answer:
    assert done.stdout, f"exit {done.returncode}: {done.stderr}"
    document = json.loads(done.stdout)
    schemas.fits(document, "probe")
    return Answer(done.returncode, document, done.stderr)


def wanted_or_skip(*reasons: str) -> None:
    for reason in reasons:
        if reason:
            pytest.skip(reason)


@dataclass
class FourHosts:
    cluster: Cluster
    hanging: HangingFile  # over one GPU's ras directory on node004
    hanging_file: str  # as node004 names it


@pytest.fixture(scope="session")
def four_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FourHosts]:
    """Four hosts with 8 fake GPUs each and a quiet kernel log; nothing is wrong with them."""
    wanted_or_skip(namespaces.unavailable(), fuse_hang.unavailable())
    directory = tmp_path_factory.mktemp("four")
    specs, trees = [], []
    for number in range(1, 5):
        tree = directory / f"sys-{number}"
        gpus = fake_node.write_amdgpu(tree)
        trees.append(gpus)
        kmsg = directory / f"kmsg-{number}"
        fake_node.write_kmsg(kmsg, fake_node.quiet_records())
        specs.append(HostSpec(f"node{number:03}", sys=tree, kmsg=kmsg, tmpfs={"/mnt": 4 << 20}))
    ras = trees[3][5] / "ras"
    # A raylet that is stopped for a while is not called dead, and need not answer within seconds.
    patient = {"RAY_health_check_failure_threshold": "20"}
    with HangingFile(ras) as hanging, Cluster(specs, env=patient) as cluster:
        name = fake_node.as_seen_on_host(directory / "sys-4", ras / "aca_umc")
        yield FourHosts(cluster, hanging, name)
        hanging.release()


# Not the bare word: the checkout may lie in a directory of that name.
_OURS = ("-m raydiag", "raydiag.cluster", "raydiag.runner", "RaydiagNodeActor")


def own_processes(cluster: Cluster) -> list[str]:
    """Command lines and names of whatever of raydiag's goes on running on any host.

    What has Ray forget an entry outlasts its command by some seconds.
    """
    limit = time.monotonic() + 20
    while True:
        left = _processes_now(cluster)
        if all(" rd-" in line for line in left) or time.monotonic() > limit:
            return left
        time.sleep(0.2)


def _processes_now(cluster: Cluster) -> list[str]:
    left = []
    for host in cluster.hosts:
        for pid in cluster.processes(host):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            if name.startswith("rd-") or any(mark in words for mark in _OURS):
                left.append(f"{host}: {pid} {name}: {words[:200]}")
    return left


def job_states(cluster: Cluster) -> dict[str, str]:
    """Submission id -> status of every job of the cluster."""
    fetch = (
        "import json,sys,urllib.request as web;"
        "opener = web.build_opener(web.ProxyHandler({}));"
        "print(opener.open('http://127.0.0.1:8265/api/jobs/').read().decode())"
    )
    done = cluster.run_on(cluster.head, [sys.executable, "-I", "-c", fetch])
    return {job["submission_id"]: job["status"] for job in json.loads(done.stdout)}
