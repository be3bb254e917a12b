"""A real node_exporter on one half of the hosts, `raydiag exporter` on the other: one verdict.

A host is a name and an address of loopback's of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from raydiag.exporter.metrics import OWN_PREFIX
from tests.cluster import fake_node
from tests.exporter.running import RAYDIAG, free_port
from tests.tsdb import promtool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="a host name of its own needs root"),
]
OURS, THEIRS = ("node1", "node2"), ("node3", "node4")
STEP = "{at} completed step: {step}, seconds: 1.000, TFLOP/s/device: 310.1, loss: 3.1\n"
LONG_S = 240.0  # nothing waits for that long unless it never comes


@dataclass
class Site:
    """A job on four hosts whose exporters are scraped."""

    directory: Path  # outputs/88-mixed, its log beside it
    url: str  # of Prometheus
    exporters: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def has(self, promql: str) -> None:
        """Wait until the server answers that with something. Raises TimeoutError."""
        end = time.monotonic() + LONG_S
        while time.monotonic() < end:
            with contextlib.suppress(requests.RequestException):
                answer = requests.get(f"{self.url}/api/v1/query", {"query": promql}, timeout=5)
                if answer.json()["data"]["result"]:
                    return
            time.sleep(0.3)
        raise TimeoutError(f"no answer to {promql}")

    def skip_if_late(self) -> None:
        """A machine on which an exporter's cycles come late is another case than these."""
        promql = f"max_over_time(max({OWN_PREFIX}page_age_seconds)[5m:1s]) > 3"
        answer = requests.get(f"{self.url}/api/v1/query", {"query": promql}, timeout=20).json()
        if answer["data"]["result"]:
            pytest.skip("the machine is too busy: cycles of an exporter came seconds late")

    def diagnose(self) -> dict[str, Any]:
        """Of the directory, with a log of steps up to now."""
        now, began = time.time(), self.directory.stat().st_ctime
        lines = ["NNODES=4\n", f"JOB_NODELIST={','.join((*OURS, *THEIRS))}\n"]
        for step in range(int(now - began)):
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began + step))
            lines.append(STEP.format(at=at, step=step))
        self.directory.with_suffix(".log").write_text("".join(lines))
        argv = [*RAYDIAG, "diagnose", str(self.directory), "--now", str(now)]
        argv += ["--job-state", "running", "--prometheus", self.url, "--format", "json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.stdout, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    directory = tmp_path / "outputs" / "88-mixed"
    directory.mkdir(parents=True)
    root = tmp_path / "node"
    fake_node.write_amdgpu(root / "sys")
    (root / "proc").symlink_to("/proc")
    (root / "dev").mkdir()
    fake_node.write_kmsg(root / "dev/kmsg", fake_node.quiet_records())
    node_exporter = promtool.program("prometheus-node-exporter")
    with contextlib.ExitStack() as stack:
        made = Site(directory, f"http://127.0.0.1:{free_port()}")
        addresses = {}
        for number, host in enumerate((*OURS, *THEIRS), start=1):
            addresses[host] = address = f"127.0.1.{number}:{free_port()}"
            argv = [node_exporter, f"--web.listen-address={address}"]
            if host in OURS:
                argv = [*RAYDIAG, "exporter", "run", "--listen", address]
                argv += ["--root", str(root), "--interval", "1", "--host", host]
                argv += ["--state-dir", str(tmp_path / f"state-{host}")]
            made.exporters[host] = stack.enter_context(_running(_named(host, argv)))
        stack.enter_context(_running(_server(made, addresses, tmp_path)))
        made.has(f"count(up == 1) == {len(addresses)}")
        yield made


def _named(host: str, argv: list[str]) -> list[str]:
    shown = 'echo "$1" > /proc/sys/kernel/hostname; shift; exec "$@"'
    return ["unshare", "--uts", "sh", "-c", shown, "sh", host, *argv]


def _server(site: Site, addresses: dict[str, str], directory: Path) -> list[str]:
    jobs = {"node_hw": OURS, "node": THEIRS}
    scraped = []
    for job, hosts in jobs.items():
        targets = [addresses[host] for host in hosts]
        scraped.append({"job_name": job, "static_configs": [{"targets": targets}]})
    pace = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config = directory / "scrape.json"
    config.write_text(json.dumps({"global": pace, "scrape_configs": scraped}))
    return [
        promtool.program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={site.directory / 'prometheus'}",
        f"--web.listen-address={site.url.removeprefix('http://')}",
    ]


@contextlib.contextmanager
def _running(argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, **quiet)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def told(document: dict[str, Any]) -> str:
    """The verdict and every finding, for the message of an assertion."""
    return json.dumps([document["verdict"], *document["findings"]], indent=1)


def test_nothing_is_wrong_where_each_half_has_another_exporter(site: Site) -> None:
    site.has("count(count_over_time(up[1m]) > 25) == 4")
    document = site.diagnose()
    site.skip_if_late()
    assert document["verdict"]["class"] == "healthy", told(document)


def test_the_exporters_that_end_are_named_whichever_they_are(site: Site) -> None:
    site.has("count(count_over_time(up[1m]) > 10) == 4")
    ended = [OURS[1], THEIRS[1]]
    for host in ended:
        site.exporters[host].kill()
    site.has("count(count_over_time((up == 0)[4m:1s]) > 25) == 2")
    early = site.diagnose()
    site.skip_if_late()
    # Half a minute after the end it may look as missing, or as nothing: nobody else is accused.
    assert set(early["verdict"]["hosts"]) <= set(ended), told(early)
    site.has("count(count_over_time((up == 0)[4m:1s]) > 130) == 2")
    document = site.diagnose()
    verdict = document["verdict"]
    site.skip_if_late()
    # A host has no other series here, so that its own death would look the same.
    assert verdict["class"] in ("exporter-down", "node-death", "host-missing"), told(document)
    assert verdict["hosts"] and set(verdict["hosts"]) <= set(ended), told(document)
