"""`raydiag diagnose` of a live cluster: nodes, a Prometheus that scrapes, and a job, together."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import loopback_sshd, schemas
from tests.cluster import fake_node, namespaces
from tests.cluster.conftest import RAYDIAG, environment, own_processes, wanted_or_skip
from tests.cluster.simulated_hosts import Cluster, HostSpec
from tests.cluster.watched import RAY_ARGS, Watched
from tests.loopback_sshd import LoopbackSshd

pytestmark = pytest.mark.cluster
UNCORRECTED = 'hw_gpu_ras_umc_ue_total{{gpu="{gpu}",host="{host}"}} 2\n'
_STEPS = """
import time
for step in range(10_000):
    print(f"completed step: {step}, seconds: 0.500, TFLOP/s/device: 310.125, "
          f"Tokens/s/device: 2210.500, total_weights: 65536, loss: 3.125", flush=True)
    time.sleep(0.5)
"""


@dataclass
class Site:
    """Two nodes and a laptop."""

    cluster: Cluster
    directory: Path
    gpus: list[list[Path]]  # of each node, their directories in its /sys


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    wanted_or_skip(namespaces.unavailable(), _no_prometheus())
    directory = tmp_path_factory.mktemp("site")
    specs, gpus = [], []
    for number in (1, 2):
        tree, kmsg = directory / f"sys-{number}", directory / f"kmsg-{number}"
        gpus.append(fake_node.write_amdgpu(tree))
        fake_node.write_kmsg(kmsg, fake_node.quiet_records())
        specs.append(HostSpec(f"node{number:03}", sys=tree, kmsg=kmsg, ray_args=RAY_ARGS))
    with Cluster([*specs, HostSpec("laptop", ray=False)]) as cluster:
        yield Site(cluster, directory, gpus)


@pytest.fixture(scope="module")
def watched(site: Site) -> Iterator[Watched]:
    directory = site.directory / "88-live"
    directory.mkdir()
    with Watched(site.cluster, directory, str(shutil.which("prometheus"))) as running:
        running.has("count(ray_node_mem_used)==2")
        yield running


def _no_prometheus() -> str:
    return "" if shutil.which("prometheus") else "prometheus is not on PATH"


def run(site: Site, *arguments: str, host: str = "") -> subprocess.CompletedProcess[str]:
    argv = [*RAYDIAG, *arguments]
    env = {**environment(), "PATH": os.environ["PATH"]}
    return site.cluster.run_on(host or site.cluster.head, argv, env=env, timeout=120)


def diagnose(site: Site, *arguments: str, host: str = "") -> tuple[int, dict[str, Any]]:
    done = run(site, "diagnose", *arguments, "--format", "json", host=host)
    assert done.stdout, f"exit {done.returncode}: {done.stderr}"
    document = json.loads(done.stdout)
    schemas.fits(document, "diagnose")
    return done.returncode, document


def problems(document: dict[str, Any]) -> list[tuple[str, str, int]]:
    found = [one for one in document["findings"] if one["severity"] != "info"]
    return [(one["class"], one["host"], one["gpu"]) for one in found]


def test_well_nodes_without_metrics_and_without_a_job(site: Site) -> None:
    code, document = diagnose(site)
    assert (code, document["verdict"]["class"], document["status"]) == (0, "healthy", "idle")
    assert document["coverage"]["nodes"] == {"asked": 2, "answered": 2, "blind": []}
    assert document["triage"] is None and "no job runs" in document["no_log"]
    assert document["metrics"] is None and "9190" in document["log_only"]
    assert "no job runs" in document["verdict"]["summary"]
    assert own_processes(site.cluster) == []


def test_a_kernel_log_alone_names_host_and_gpu(site: Site) -> None:
    address = fake_node.DEFAULT_ADDRESSES[5]
    text = f"amdgpu {address}: amdgpu: 3 uncorrectable hardware errors detected in umc block"
    began = time.time() - 5
    record = fake_node.KernelRecord(text, began, 6, device=address)
    kmsg = site.directory / "kmsg-2"
    quiet = fake_node.quiet_records(began - 5)
    # In place: the node has the file itself, and not its name.
    fake_node.write_kmsg(kmsg, [*quiet, record])
    try:
        code, document = diagnose(site)
    finally:
        fake_node.write_kmsg(kmsg, quiet)
    verdict = document["verdict"]
    assert (code, verdict["class"], verdict["hosts"]) == (1, "gpu-memory-error", ["node002"])
    assert verdict["devices"] == [{"host": "node002", "device": address}]
    assert verdict["onset"] == pytest.approx(began, abs=2)
    assert [one["text"] for one in document["chains"][0][0]["evidence"]].count(text) == 1


def test_well_nodes_with_metrics(site: Site, watched: Watched) -> None:
    code, document = diagnose(site)
    assert (code, document["verdict"]["class"]) == (0, "healthy")
    assert document["metrics"]["hosts"] == ["node001", "node002"]
    assert document["metrics"]["origin"] == "http://127.0.0.1:9190"
    assert "in the metrics" in document["verdict"]["summary"]


def test_from_a_laptop_through_ssh(site: Site, watched: Watched, tmp_path: Path) -> None:
    wanted_or_skip(loopback_sshd.unavailable())
    head = site.cluster.hosts[site.cluster.head]
    enter = ["nsenter", "-t", str(head.pid), "-n", "-m", "-u", "-i", "-p"]
    with LoopbackSshd(tmp_path / "sshd", launch=enter, address="0.0.0.0") as sshd:
        sshd.write_config(f"HostName {head.address}")
        way = ("--ssh", "head", "-J", "jump", "--ssh-config", str(sshd.config))
        code, document = diagnose(site, *way, host="laptop")
        assert sshd.clients(0.0) == []
    assert (code, document["verdict"]["class"]) == (0, "healthy")
    assert document["metrics"]["origin"] == "http://127.0.0.1:9190 of head"
    assert document["coverage"]["nodes"]["answered"] == 2
    assert own_processes(site.cluster) == []


def test_a_directory_and_its_live_cluster_are_one_diagnosis(site: Site, watched: Watched) -> None:
    log = site.directory / "88-live.log"
    steps = [f"0: completed step: {one}, seconds: 0.500, loss: 3.125" for one in range(40)]
    log.write_text(
        "\n".join(["NNODES=2", "JOB_NODELIST=node001,node002", "RAY_PORT=1", *steps, ""])
    )
    job = str(site.directory / "88-live")
    there = ("--address", "http://127.0.0.1:8265")
    code, document = diagnose(site, job, "--job-state", "running", *there)
    assert document["metrics"]["origin"] == "http://127.0.0.1:9190"
    assert document["triage"]["job_dir"] == job
    assert document["coverage"]["nodes"] == {"asked": 2, "answered": 2, "blind": []}
    assert (code, document["verdict"]["class"], document["status"]) == (0, "healthy", "running")
    _, unsure = diagnose(site, job, *there)
    assert unsure["verdict"]["class"] == "unknown"  # of this job nobody says that it lives
    log.write_text(log.read_text().replace("node001,node002", "far1,far2"))
    code, document = diagnose(site, job, "--job-state", "running", *there)
    assert document["cluster"] is None
    assert any("far1, far2" in one["reason"] for one in document["coverage"]["unread"])


def test_one_fault_of_series_and_files_is_one_finding(site: Site, watched: Watched) -> None:
    watched.plant("node001", UNCORRECTED.format(gpu=3, host="node001"))
    try:
        watched.has("hw_gpu_ras_umc_ue_total")
        alone, series = diagnose(site, "--prometheus", "http://127.0.0.1:9190")
        at_odds, odd = diagnose(site)
        fake_node.set_ras(site.gpus[0][3], "umc", (2, 0, 0))
        both, joined = diagnose(site)
    finally:
        watched.plant("node001", "")
        fake_node.set_ras(site.gpus[0][3], "umc", (0, 0, 0))
    assert (alone, at_odds, both) == (1, 1, 1)
    for document in (series, odd, joined):
        assert problems(document) == [("gpu-memory-error", "node001", 3)]
        assert document["verdict"]["gpus"] == [{"host": "node001", "gpu": 3}]
    assert series["cluster"] is None and series["no_log"] == "no job was named"
    unread = [(one["host"], one["source"]) for one in odd["coverage"]["unread"]]
    assert unread == [("node001", "ras")]
    assert joined["coverage"]["unread"] == []
    sources = {one["source"] for one in joined["chains"][0][0]["evidence"]}
    assert any("aca_umc" in one for one in sources) and any("hw_gpu" in one for one in sources)


def test_the_job_that_runs_is_read_from_ray(site: Site, watched: Watched) -> None:
    script = site.directory / "train.py"
    script.write_text(_STEPS)
    ray = str(Path(sys.executable).with_name("ray"))
    argv = [ray, "job", "submit", "--no-wait", "--submission-id", "llama-of-alice", "--"]
    env = environment()
    head = site.cluster.head
    site.cluster.run_on(head, [*argv, sys.executable, str(script)], env=env, timeout=60)
    time.sleep(8)
    try:
        code, document = diagnose(site)
        plain = run(site, "diagnose", "--redact", "-v").stdout
    finally:
        site.cluster.run_on(head, [ray, "job", "stop", "llama-of-alice"], env=env, timeout=60)
    assert (document["status"], document["cluster"]["job"]) == ("running", "llama-of-alice")
    assert document["triage"]["log"] == "llama-of-alice.log"
    assert document["triage"]["progress"]["last_step"] >= 5
    assert (code, document["verdict"]["class"]) == (0, "healthy")
    for name in ("llama-of-alice", "node00", "10.77.0"):
        assert name not in plain
    _, ended = diagnose(site, "llama-of-alice", "--address", "http://127.0.0.1:8265")
    assert ended["triage"]["log"] == "llama-of-alice.log"


def test_a_directory_is_read_by_itself_unless_a_cluster_is_named(site: Site) -> None:
    log = site.directory / "77-well" / "77-well.log"
    log.parent.mkdir()
    log.write_text("0: completed step: 3, seconds: 0.5, loss: 3.1\nJOB_NODELIST=far[1-2]\n")
    _, alone = diagnose(site, str(log), "--job-state", "running")
    assert alone["cluster"] is None and alone["coverage"]["nodes"]["asked"] == 0
    gone = ("--address", "http://127.0.0.1:1")
    code, document = diagnose(site, str(log), "--job-state", "running", *gone)
    assert code in (1, 3)
    assert [one["source"] for one in document["coverage"]["unread"]][:1] == ["http://127.0.0.1:1"]
    assert run(site, "diagnose", *gone).returncode == 4


def test_a_node_that_is_lost_is_one_finding_and_counted(site: Site) -> None:
    site.cluster.cut_link("node002")
    site.cluster.wait_for_state("node002", "DEAD")
    code, document = diagnose(site)
    assert code == 1
    lost = ("node-death", "node-unreachable", "ray-node-dead")
    found = [one for one in document["findings"] if one["class"] in lost]
    assert [one["host"] for one in found] == ["node002"]
    nodes = document["coverage"]["nodes"]
    assert (nodes["asked"], nodes["answered"]) == (2, 1)
    assert [one["host"] for one in nodes["blind"]] == ["node002"]
