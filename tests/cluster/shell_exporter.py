"""A stand-in for the shell exporter: serves /metrics on a port until its stdin ends.

Run as a program: `shell_exporter.py MODE PORT FILE`. It says "ready" when it listens. Modes:

    healthy   a loop writes FILE every 0.2 s with other values, and FILE is what is served
    frozen    FILE is served as it is: whoever starts this writes it, and gives it its age
    slow      as healthy, but a cycle is said to take 11.9 s
    hangs     takes connections and never answers
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def metrics(cycle: int, scrape_duration_s: float = 0.104, gpus: int = 8) -> str:
    """What a node with that many GPUs shows; values change with `cycle`."""
    lines = ["# TYPE hw_gpu_power_watts gauge"]
    lines += [f'hw_gpu_power_watts{{gpu="{n}",host="n1"}} {700 + n + cycle}.0' for n in range(gpus)]
    lines += [
        f'hw_procs_running{{host="n1"}} {3 + cycle % 5}',
        'hw_rdma_port_state{device="ionic_0",port="1",host="n1"} 1',
        "# TYPE hw_scrape_duration_seconds gauge",
        f'hw_scrape_duration_seconds{{host="n1"}} {scrape_duration_s + cycle % 7 / 1000:.3f}',
    ]
    return "".join(f"{line}\n" for line in lines)


@contextmanager
def shell_exporter(
    mode: str, port: int, file: Path, command: Sequence[str] = (sys.executable,)
) -> Iterator[int]:
    """Run it, below `command` (such as one that enters a simulated host); gives its pid."""
    process = subprocess.Popen(
        [*command, __file__, mode, str(port), str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the exporter did not start: {process.wait()}")
        yield process.pid
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


def _write(file: Path, text: str) -> None:
    temporary = file.with_name(f"{file.name}.new")
    temporary.write_text(text)
    temporary.replace(file)


def _serve(mode: str, port: int, file: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if mode == "hangs":
                time.sleep(3600)
            body = file.read_bytes() if file.exists() else b"# no data yet\n"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Be quiet."""

    def loop() -> None:
        cycle = 0
        while True:
            cycle += 1
            _write(file, metrics(cycle, 11.9 if mode == "slow" else 0.104))
            time.sleep(0.2)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if mode in ("healthy", "slow"):
        _write(file, metrics(0, 11.9 if mode == "slow" else 0.104))
        threading.Thread(target=loop, daemon=True).start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
