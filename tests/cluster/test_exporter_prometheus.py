"""A real Prometheus that scrapes the exporter: what it stores, and what it sees of a stall."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raydiag.exporter.metrics import OWN_PREFIX
from tests.cluster import fake_node, fake_rdma
from tests.exporter.running import exporter, free_port, processes_below

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed"),
]
CONFIG = """
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs:
  - job_name: node_hw
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Prometheus:
    def __init__(self, port: int) -> None:
        self.port = port

    def query(self, promql: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.port}/api/v1/query?"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url + urllib.parse.urlencode({"query": promql}), timeout=20) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def wait_for(self, promql: str) -> list[dict[str, Any]]:
        """Wait until the query gives something."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if found := self.query(promql):
                    return found
            except OSError:
                pass
            time.sleep(0.1)
        raise TimeoutError(f"nothing for {promql}")


@contextmanager
def prometheus(directory: Path, target: int) -> Iterator[Prometheus]:
    port = free_port()
    (directory / "prometheus.yml").write_text(CONFIG.format(port=target))
    argv = ["prometheus", f"--config.file={directory}/prometheus.yml"]
    argv += [f"--storage.tsdb.path={directory}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with open(directory / "prometheus.log", "wb") as log:
        process = subprocess.Popen(argv, stderr=log, stdout=log)
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    root = tmp_path / "node"
    fake_node.write_amdgpu(root / "sys")
    fake_rdma.write_rdma(root / "sys", driver="ionic", devices=8)
    (root / "proc").symlink_to("/proc")
    (root / "dev").mkdir()
    fake_node.write_kmsg(root / "dev/kmsg", fake_node.quiet_records())
    return root


def test_prometheus_stores_all_of_it(node: Path, tmp_path: Path) -> None:
    options = ("--root", str(node), "--host", "n1", "--interval", "0.5")
    with exporter(tmp_path, *options) as running, prometheus(tmp_path, running.port) as server:
        server.wait_for('count_over_time(up{job="node_hw"}[1m]) >= 6')
        assert server.query("min_over_time(up[1m])")[0]["value"][1] == "1"
        gpus = server.query('count by (__name__) ({__name__=~"hw_gpu.*", gpu!=""})')
        counts = {one["metric"]["__name__"]: int(one["value"][1]) for one in gpus}
        assert counts.pop("hw_gpu_clock_mhz") == 16
        assert set(counts.values()) == {8}
        assert len(counts) == 17
        (ports,) = server.query("sum(hw_rdma_port_state)")
        assert ports["value"][1] == "8"
        assert server.query('{__name__=~"hw_.*", host!="n1"}') == []
        assert (
            server.query("scrape_samples_scraped - scrape_samples_post_metric_relabeling > 0") == []
        )
        assert server.query("rate(hw_context_switches_total[30s]) > 0")
        ours = server.query(f"{OWN_PREFIX}page_age_seconds")
        assert float(ours[0]["value"][1]) < 60


def test_a_collector_that_stands_still_leaves_no_ghosts(node: Path, tmp_path: Path) -> None:
    """The server goes on answering, which must not look like fresh values."""
    options = ("--root", str(node), "--interval", "0.5")
    with exporter(tmp_path, *options) as running, prometheus(tmp_path, running.port) as server:
        server.wait_for("hw_gpu_power_watts")
        os.kill(running.process.pid, signal.SIGSTOP)
        try:
            server.wait_for(f"{OWN_PREFIX}page_age_seconds > 2")
            server.wait_for("absent(hw_gpu_power_watts)")
            assert server.query("up")[0]["value"][1] == "1"
        finally:
            os.kill(running.process.pid, signal.SIGCONT)
        server.wait_for("hw_gpu_power_watts")


def test_a_restart_shows_as_one(node: Path, tmp_path: Path) -> None:
    options = ("--root", str(node), "--interval", "0.5", "--supervise")
    with exporter(tmp_path, *options) as running, prometheus(tmp_path, running.port) as server:
        server.wait_for(f"{OWN_PREFIX}cycles_total > 3")
        below = processes_below(running.process.pid)
        (http,) = [pid for pid, name in below.items() if name == "raydiag-http"]
        os.kill(http, signal.SIGKILL)
        server.wait_for("up == 0")
        server.wait_for(f"up == 1 and on() changes({OWN_PREFIX}start_time_seconds[2m]) == 1")
        server.wait_for(f"resets({OWN_PREFIX}cycles_total[2m]) == 1")
    assert "Watchdog: exited with code 1, restart #1" in running.said()
