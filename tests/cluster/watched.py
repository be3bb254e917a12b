"""A real Prometheus on the head of simulated hosts, over an exporter on each and Ray's own metrics.

Run as a program: `watched.py HOST PORT FILE` serves what a node exporter of that host would, with
values that move, and the lines of FILE besides: whoever plants a fault writes it there. It says
"ready" when it listens, and ends with its stdin.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster.simulated_hosts import Cluster

EXPORTER_PORT, RAY_PORT, PROMETHEUS_PORT = 9400, 55080, 9190
GPUS = 8
RAY_ARGS = ("--metrics-export-port", str(RAY_PORT))
_FETCH = """
import sys, urllib.request as web
opener = web.build_opener(web.ProxyHandler({}))
print(opener.open(sys.argv[1], timeout=5).read().decode())
"""


def metrics(host: str, cycle: int) -> str:
    """Of a node that is well."""
    named = f'host="{host}"'
    lines = [f"hw_scrape_duration_seconds{{{named}}} {0.1 + cycle % 7 / 1000:.3f}"]
    for gpu in range(GPUS):
        labels = f'{{gpu="{gpu}",{named}}}'
        lines += [
            f"hw_gpu_power_watts{labels} {600 + gpu + cycle % 5}",
            f"hw_gpu_temperature_celsius{labels} {60 + cycle % 3}",
            f"hw_gpu_ras_umc_ce_total{labels} 0",
            f"hw_gpu_pcie_fatal_total{labels} 0",
        ]
    lines += [
        f"hw_procs_running{{{named}}} {3 + cycle % 5}",
        f"hw_procs_blocked{{{named}}} 0",
        f"hw_tcp_retransmits_total{{{named}}} {cycle}",
        f"hw_oom_kills_total{{{named}}} 0",
        f'hw_rdma_port_state{{device="ionic_0",{named}}} 1',
        f'hw_rdma_tx_retx_pkts_total{{device="ionic_3",{named}}} 7',
    ]
    return "".join(f"{line}\n" for line in lines)


class Watched:
    """The exporters' faults, and the server."""

    def __init__(self, cluster: Cluster, directory: Path, prometheus: str) -> None:
        self.cluster, self._directory, self._program = cluster, directory, prometheus
        self.data = directory / "prometheus"
        self._stack = contextlib.ExitStack()
        self._exporters: dict[str, subprocess.Popen[str]] = {}
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Watched:
        with contextlib.ExitStack() as stack:
            for host in self._hosts():
                self.plant(host, "")
                argv = [sys.executable, __file__, host, str(EXPORTER_PORT), str(self._file(host))]
                stack.enter_context(self._started(host, argv))
            stack.enter_context(self._prometheus())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def plant(self, host: str, lines: str) -> None:
        """Lines that the host's exporter serves besides; they replace those of the same series."""
        self._file(host).write_text(lines)

    def freeze(self, host: str) -> None:
        """From now on the host's exporter serves the same old values."""
        self._file(host).with_suffix(".frozen").touch()

    def stop_exporter(self, host: str) -> None:
        """End the host's exporter; its port is closed then."""
        self.cluster.signal(self._exporters[host], signal.SIGKILL)

    def kill_server(self) -> None:
        """Let Prometheus die without a farewell."""
        assert self._server is not None
        self.cluster.signal(self._server, signal.SIGKILL)
        self._server.wait(20)

    def has(self, promql: str, deadline_s: float = 60.0) -> None:
        """Wait until the server answers that with something. Raises TimeoutError."""
        end = time.monotonic() + deadline_s
        url = f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/query?query={promql}"
        while time.monotonic() < end:
            done = self.cluster.run_on(self.cluster.head, [sys.executable, "-I", "-c", _FETCH, url])
            if done.returncode == 0 and json.loads(done.stdout)["data"]["result"]:
                return
            time.sleep(0.5)
        raise TimeoutError(f"{promql} has no answer: {done.stderr[-500:]}")

    def _hosts(self) -> list[str]:
        return [name for name, host in self.cluster.hosts.items() if host.spec.ray]

    def _file(self, host: str) -> Path:
        return self._directory / f"{host}.prom"

    @contextlib.contextmanager
    def _started(self, host: str, argv: list[str]) -> Iterator[None]:
        process = self.cluster.popen_on(
            host, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdin is not None and process.stdout is not None
        self._exporters[host] = process
        try:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"the exporter of {host} did not start: {process.wait()}")
            yield
        finally:
            process.stdin.close()
            process.stdout.close()
            process.wait(10)

    @contextlib.contextmanager
    def _prometheus(self) -> Iterator[None]:
        places = {name: self.cluster.hosts[name].address for name in self._hosts()}
        (self._directory / "scrape.json").write_text(json.dumps(_configuration(places)))
        with (self._directory / "prometheus.log").open("w") as log:
            process = self.cluster.popen_on(
                self.cluster.head,
                [
                    self._program,
                    f"--config.file={self._directory / 'scrape.json'}",
                    f"--storage.tsdb.path={self.data}",
                    f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",
                ],
                stdout=log,
                stderr=log,
            )
            self._server = process
            try:
                self.has("hw_scrape_duration_seconds")
                yield
            finally:
                self.cluster.signal(process, signal.SIGTERM)
                process.wait(20)


def _configuration(places: Mapping[str, str]) -> dict[str, object]:
    """JSON is YAML. Ray's series carry addresses, the exporters' the names of hosts."""
    addresses = list(places.values())
    jobs = {"node_hw": EXPORTER_PORT, "ray": RAY_PORT}
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [{"targets": [f"{one}:{port}" for one in addresses]}],
            }
            for job, port in jobs.items()
        ],
    }


def _merged(usual: str, planted: str) -> str:
    """What was planted counts where both have a series."""
    lines = {}
    for line in (usual + planted).splitlines():
        lines[line.rpartition(" ")[0]] = line
    return "".join(f"{line}\n" for line in lines.values())


def _serve(host: str, port: int, file: Path) -> None:
    began = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        cycle = 0

        def do_GET(self) -> None:
            if not file.with_suffix(".frozen").exists():
                Handler.cycle = int((time.monotonic() - began) * 2)
            body = _merged(metrics(host, Handler.cycle), file.read_text())
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *arguments: object) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("0.0.0.0", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
