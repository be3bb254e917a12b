"""A small job's blocks, a job directory around them, and a Prometheus that really scrapes."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from tests.tsdb import promtool, samples


@pytest.fixture(autouse=True)
def prometheus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """For tests that ask for data: the code under test finds prometheus, or the test skips."""
    if {"blocks", "data", "live", "needs_prometheus"} & set(request.fixturenames):
        promtool.provide(monkeypatch)


@pytest.fixture
def needs_prometheus() -> None:
    """For tests that make their own data."""


@pytest.fixture(scope="session")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of `samples.job()`; not to be changed."""
    return promtool.write_blocks(samples.job(), tmp_path_factory.mktemp("job") / "prometheus")


@pytest.fixture
def data(blocks: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    target = tmp_path / "55-small" / "prometheus"
    shutil.copytree(blocks, target)
    return target


@dataclass(frozen=True)
class Live:
    """A Prometheus that scrapes, and the directory that it writes."""

    url: str
    data: Path
    pid: int


class _Exporter(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f'hw_scrape_duration_seconds{{host="mi10"}} {time.time() % 10:.3f}\n'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Its newest samples are in the write-ahead log only. It takes six seconds to have some."""
    tmp_path = tmp_path_factory.mktemp("live")
    data = tmp_path / "66-live" / "prometheus"
    data.mkdir(parents=True)
    exporter = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Exporter)
    threading.Thread(target=exporter.serve_forever, daemon=True).start()
    target = f"127.0.0.1:{exporter.server_port}"
    config = tmp_path / "scrape.yml"
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\nscrape_configs:\n"
        f"- {{job_name: node_hw, static_configs: [{{targets: ['{target}']}}]}}\n"
    )
    url = f"http://127.0.0.1:{free_port()}"
    command = [promtool.program("prometheus"), f"--config.file={config}"]
    command += [
        f"--storage.tsdb.path={data}",
        f"--web.listen-address={url.removeprefix('http://')}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for_samples(url)
        yield Live(url, data, process.pid)
    finally:
        process.kill()
        process.wait()
        exporter.shutdown()
        exporter.server_close()


def _wait_for_samples(url: str) -> None:
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        with contextlib.suppress(requests.RequestException):
            query = {"query": "count_over_time(hw_scrape_duration_seconds[1m])"}
            found = requests.get(f"{url}/api/v1/query", params=query, timeout=2).json()
            if found["data"]["result"] and int(found["data"]["result"][0]["value"][1]) >= 5:
                return
        time.sleep(0.1)
    raise AssertionError("the scraping prometheus has no samples after 20 s")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
