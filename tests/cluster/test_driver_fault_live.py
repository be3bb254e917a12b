"""`raydiag driver-fault` on simulated hosts: a crash, a hung RAS file, a hidden log."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import schemas
from tests.cluster import fake_node, fuse_hang, namespaces
from tests.cluster.conftest import RAYDIAG, environment, own_processes, wanted_or_skip
from tests.cluster.fuse_hang import HangingFile
from tests.cluster.simulated_hosts import Cluster, HostSpec
from tests.cluster.watched import RAY_ARGS, Watched

pytestmark = pytest.mark.cluster
_ERRORS = 'hw_dmesg_gpu_errors_total{{host="{host}"}} {count}\n'
_CYCLE = 'hw_scrape_duration_seconds{{host="{host}"}} {seconds}\n'


@dataclass
class Site:
    """node001 is well, node002's driver has crashed, node003 hides its log, node004 may hang."""

    cluster: Cluster
    directory: Path
    hanging: HangingFile  # over the `ras` directory of GPU 5 of node004
    began: float  # when the driver of node002 crashed


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    no_server = "" if shutil.which("prometheus") else "prometheus is not on PATH"
    wanted_or_skip(namespaces.unavailable(), fuse_hang.unavailable(), no_server)
    directory = tmp_path_factory.mktemp("driver")
    began = time.time() - 5
    specs, gpus = [], []
    for number in range(1, 5):
        tree, kmsg = directory / f"sys-{number}", directory / f"kmsg-{number}"
        gpus.append(fake_node.write_amdgpu(tree, driver_version="" if number == 2 else "6.14.14"))
        fake_node.write_kmsg(kmsg, fake_node.quiet_records(began - 5))
        specs.append(HostSpec(f"node{number:03}", sys=tree, kmsg=kmsg, ray_args=RAY_ARGS))
    # Without the ring timeout, which is a fault of its own.
    crash = fake_node.cper_oops_records(began)[1:]
    crash_log = [*fake_node.quiet_records(began - 5), *crash]
    fake_node.write_kmsg(directory / "kmsg-2", crash_log)
    (directory / "kmsg-3").write_text("")
    with HangingFile(gpus[3][5] / "ras") as hanging, Cluster(specs) as cluster:
        yield Site(cluster, directory, hanging, began)
        hanging.release()


def run(site: Site, *arguments: str, file_format: str = "json") -> subprocess.CompletedProcess[str]:
    argv = [*RAYDIAG, "driver-fault", *arguments, "--format", file_format]
    env = {**environment(), "PATH": os.environ["PATH"]}
    return site.cluster.run_on(site.cluster.head, argv, env=env, timeout=180)


def investigate(site: Site, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run(site, *arguments)
    assert done.stdout, f"exit {done.returncode}: {done.stderr}"
    document = json.loads(done.stdout)
    schemas.fits(document, "driver-fault")
    return done.returncode, document


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {node["host"]: node["verdict"] for node in document["nodes"]}


def node_of(document: dict[str, Any], host: str) -> dict[str, Any]:
    return next(node for node in document["nodes"] if node["host"] == host)


def test_one_sign_makes_a_suspect_and_a_hidden_log_is_not_clean(site: Site) -> None:
    code, document = investigate(site)
    assert (code, verdicts(document)) == (
        1,
        {
            "node001": "clean",
            "node002": "suspect",
            "node003": "not-checked",
            "node004": "clean",
        },
    )
    assert "holds no record" in node_of(document, "node003")["reason"]
    assert document["metrics"]["origin"] is None and "9190" in document["metrics"]["reason"]
    assert own_processes(site.cluster) == []


def test_the_report_has_the_crash_and_no_ras_file_was_read_there(site: Site) -> None:
    _, document = investigate(site)
    crashed = node_of(document, "node002")
    texts = [line["text"] for line in crashed["stacks"][0]["lines"]]
    assert texts == [record.text for record in fake_node.cper_oops_records(0.0)[1:]]
    assert crashed["onset"]["kernel"] == pytest.approx(site.began, abs=2)
    assert crashed["kernel"] == os.uname().release
    assert crashed["amdgpu"] == f"in-tree ({os.uname().release})"
    assert crashed["stuck_tasks"]["pid_max"] > 0
    assert any(text.startswith("ras: not read: amdgpu_cper") for text in crashed["unread"])
    (report,) = document["admin_reports"]
    assert report["host"] == "node002"
    assert "3 other nodes asked, 0 did not answer" in report["markdown"]
    well = node_of(document, "node001")
    assert {gpu["errors"]["umc"]["ue"] for gpu in well["gpus"]} == {0}


def test_a_named_node_is_looked_at_closely_and_the_others_for_comparison(site: Site) -> None:
    code, document = investigate(site, "--node", "node001")
    assert (code, set(verdicts(document))) == (1, {"node001", "node002", "node003", "node004"})
    assert len(node_of(document, "node001")["gpus"]) == 8
    assert node_of(document, "node004")["gpus"] == []  # no file of its driver was touched
    assert [one["host"] for one in document["admin_reports"]] == ["node002", "node001"]
    done = run(site, "--node", "node9")
    assert (done.returncode, done.stdout) == (2, "")
    assert "node9" in done.stderr


def test_a_ras_file_that_hangs_makes_a_suspect(site: Site) -> None:
    site.hanging.hang("aca_umc")
    try:
        code, document = investigate(site)
        again = investigate(site)[1]
    finally:
        site.hanging.release()
    for found in (document, again):
        hung = node_of(found, "node004")
        assert (code, hung["verdict"]) == (1, "suspect")
        assert [sign["kind"] for sign in hung["signs"]] == ["hung-ras-read"]
        assert "0000:95:00.0/ras" in hung["signs"][0]["source"]
        assert hung["classes"] == []  # what it is, one sign does not tell


def test_series_confirm_what_the_kernel_log_shows(site: Site) -> None:
    directory = site.directory / "77-live"
    directory.mkdir()
    program = str(shutil.which("prometheus"))
    with Watched(site.cluster, directory, program) as watched, _swinging(watched):
        watched.has('hw_dmesg_gpu_errors_total{host="node002"}>3')
        watched.has('changes(hw_scrape_duration_seconds{host="node002"}[1m])>8')
        code, document = investigate(site)
        markdown = run(site, file_format="markdown").stdout
        diagnosed = site.cluster.run_on(
            site.cluster.head,
            [*RAYDIAG, "diagnose", "--format", "json"],
            env={**environment(), "PATH": os.environ["PATH"]},
            timeout=180,
        )
    crashed = node_of(document, "node002")
    assert (code, crashed["verdict"]) == (1, "confirmed")
    assert {sign["kind"] for sign in crashed["signs"]} >= {"kernel-signature", "errors-counter"}
    assert crashed["dmesg_gpu_errors"]["value"] >= 3
    assert crashed["onset"]["metric"] is not None
    assert document["metrics"] == {"origin": "http://127.0.0.1:9190", "reason": None}
    assert verdicts(document)["node001"] == "clean"
    assert "| hw_dmesg_gpu_errors_total |" in markdown
    (fault,) = json.loads(diagnosed.stdout)["driver_faults"]
    assert (fault["host"], fault["verdict"]) == ("node002", "confirmed")
    faults = [
        finding
        for finding in json.loads(diagnosed.stdout)["findings"]
        if finding["class"] == "gpu-driver-fault"
    ]
    assert [(one["host"], one["confidence"]) for one in faults] == [("node002", "confirmed")]


@contextlib.contextmanager
def _swinging(watched: Watched) -> Iterator[None]:
    """The exporter of node002 takes its limit in every other cycle, and counts errors."""
    ended = threading.Event()

    def _swing() -> None:
        cycle = 0
        while not ended.wait(2.0):
            cycle += 1
            lines = _ERRORS.format(host="node002", count=cycle)
            seconds = 12.1 if cycle % 2 else 0.4
            watched.plant("node002", lines + _CYCLE.format(host="node002", seconds=seconds))

    for host in ("node001", "node003", "node004"):
        watched.plant(host, _ERRORS.format(host=host, count=0))
    thread = threading.Thread(target=_swing)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
