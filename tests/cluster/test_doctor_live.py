"""`raydiag doctor` on real set-ups: silent on a good one, and each planted weakness is found."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests import schemas
from tests.cluster import doctor_hosts, namespaces
from tests.cluster.conftest import RAYDIAG, environment, wanted_or_skip
from tests.cluster.doctor_hosts import BLIND, CROWDED, FAKETIME, HEAD, PUBLIC_HEAD
from tests.cluster.simulated_hosts import Cluster

pytestmark = pytest.mark.cluster

# What is planted -> (check, its status, host, words of its evidence).
_PLANTED: dict[str, tuple[str, str, str, str]] = {
    "dashboard on a public address": ("public-endpoints", "problem", HEAD, "dashboard and Jobs"),
    "GCS on a public address": ("public-endpoints", "problem", HEAD, "control store (GCS)"),
    "Prometheus on a public address": ("public-endpoints", "problem", HEAD, "Prometheus"),
    "TensorBoard on a public address": ("public-endpoints", "problem", HEAD, "TensorBoard"),
    "exporter on a public address": ("public-endpoints", "problem", HEAD, "exporter"),
    "node under a public address": ("node-addresses", "problem", CROWDED, "9.9.9.2"),
    "no token": ("token-authentication", "advice", "", "without a token"),
    "open Jobs API": ("ray-advisories", "advice", "", "CVE-2023-48022"),
    "clock 90 s off": ("clocks", "problem", CROWDED, "90.0 s ahead"),
    "two clusters": ("single-cluster", "problem", CROWDED, "session_"),
    "kernel log denied": ("reads-kernel-log", "problem", BLIND, "/dev/kmsg: Permission denied"),
    "RAS denied": ("reads-ras", "problem", BLIND, "aca_umc: Permission denied"),
    "target down": ("scrape-targets", "problem", "", "127.0.0.1:1/metrics: down"),
    "seldom scraped": ("scrape-interval", "problem", "", "every 60 s"),
    "nodes without exporter": ("exporters", "advice", BLIND, ""),
    "silent NCCL": ("job-nccl-debug", "advice", "", "NCCL_DEBUG=VERSION"),
    "no flight recorder": ("job-flight-recorder", "advice", "", "TRACE_BUFFER_SIZE=0"),
    "recorder without dump": ("job-flight-recorder", "advice", "", "DUMP_ON_TIMEOUT=0"),
    "watchdog off": ("job-heartbeat", "advice", "", "TORCH_NCCL_ENABLE_MONITORING is off"),
    "heartbeat of a day": ("job-heartbeat", "advice", "", "HEARTBEAT_TIMEOUT_SEC=86400"),
    "RAS of NCCL off": ("job-ras", "advice", "", "NCCL_RAS_ENABLE=0"),
    "output held back": ("job-log-buffered", "advice", BLIND, "worker-"),
}
_WITHOUT_PROMETHEUS = {
    "no Prometheus": ("prometheus-server", "problem", "", "loopback"),
    "no Prometheus program": ("prometheus-program", "problem", "", ""),
}
_NEEDED = {
    "a clock that is off needs Debian's faketime": FAKETIME.exists(),
    "prometheus is not installed": shutil.which("prometheus") is not None,
    "setpriv is not installed": shutil.which("setpriv") is not None,
}


def doctor(cluster: Cluster, *setting: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and checks by id. `setting`: words before the command."""
    argv = [*setting, *RAYDIAG, "doctor", "--all-nodes", "--format", "json"]
    done = cluster.run_on(cluster.head, argv, env=environment(), timeout=120)
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    schemas.fits(document, "doctor")
    return done.returncode, {check["id"]: check for check in document["checks"]}


def settled(cluster: Cluster, wanted: dict[str, tuple[str, str, str, str]]) -> dict[str, Any]:
    """The checks, as soon as all that was started beside Ray is up; else the last ones."""
    limit = time.monotonic() + 90
    while True:
        code, checks = doctor(cluster)
        if not missing(checks, wanted) or time.monotonic() > limit:
            assert code == 1, doctor_hosts.others_said(cluster)
            return checks


def missing(
    checks: dict[str, dict[str, Any]], wanted: dict[str, tuple[str, str, str, str]]
) -> list[str]:
    """Those of the planted ones that are not told as they are."""
    not_told = []
    for planted, (check_id, status, host, words) in wanted.items():
        check = checks.get(check_id, {"status": "", "hosts": [], "evidence": []})
        texts = "\n".join(check["evidence"])
        is_there = host in check["hosts"] or not host
        if check["status"] != status or words not in texts or not is_there:
            not_told.append(f"{planted}: {check}")
    return not_told


def test_a_good_set_up_is_all_well(tmp_path: Path) -> None:
    wanted_or_skip(namespaces.unavailable(), *(why for why, is_so in _NEEDED.items() if not is_so))
    with doctor_hosts.good(tmp_path) as cluster:
        limit = time.monotonic() + 60
        while True:  # exporters and Prometheus need some seconds
            code, checks = doctor(cluster)
            not_well = [check for check in checks.values() if check["status"] != "ok"]
            if not not_well or time.monotonic() > limit:
                break
    assert (code, not_well) == (0, [])
    assert len(checks) >= 20


def test_each_planted_weakness_is_found(tmp_path: Path) -> None:
    wanted_or_skip(namespaces.unavailable(), *(why for why, is_so in _NEEDED.items() if not is_so))
    with doctor_hosts.weak(tmp_path) as cluster:
        code, checks = doctor(cluster, "env", "PATH=/usr/sbin:/sbin")
        assert (code, missing(checks, _WITHOUT_PROMETHEUS)) == (1, [])

        doctor_hosts.start_exporter(cluster, HEAD, "0.0.0.0")
        doctor_hosts.start_tensorboard(cluster, tmp_path)
        targets = [f"{cluster.hosts[HEAD].address}:9400", "127.0.0.1:1"]
        doctor_hosts.start_prometheus(cluster, tmp_path, "0.0.0.0", "60s", targets)
        checks = settled(cluster, _PLANTED)
        assert not (told := missing(checks, _PLANTED)), "\n".join(
            (*told, doctor_hosts.others_said(cluster))
        )
        assert PUBLIC_HEAD in "\n".join(checks["public-endpoints"]["evidence"])
        assert {c["status"] for c in checks.values()} == {"ok", "advice", "problem"}
        assert all(check["fix"] for check in checks.values() if check["status"] == "problem")
