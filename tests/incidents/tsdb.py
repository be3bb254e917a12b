"""Series into a real Prometheus directory: blocks by promtool, the newest by a real server's WAL.

Source: OpenMetrics text; Prometheus remote write 1.0 (protobuf in snappy's block format).
"""

from __future__ import annotations

import math
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests import prometheus_programs
from tests.incidents.signals import Series, Signals

_LITERAL = 60_000  # bytes of one snappy literal, whose length has 16 bits
_BATCH = 400  # series in one write


class NoPrometheus(Exception):
    """promtool or prometheus is not on PATH."""


def program(name: str) -> str:
    path = prometheus_programs.found(name)
    if not path:
        raise NoPrometheus(f"{name} is not on PATH (Debian: the package prometheus has it)")
    return path


def write(signals: Signals, directory: Path, wal_from: float = math.inf) -> None:
    """All samples before `wal_from` into blocks, later ones into the write-ahead log."""
    promtool = program("promtool")
    directory.mkdir(parents=True, exist_ok=True)
    text = directory / "openmetrics.txt"
    with text.open("w", encoding="ascii") as out:
        for series in signals.series.values():
            out.writelines(_lines(series, wal_from))
        out.write("# EOF\n")
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(directory)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"promtool: {done.stderr.strip()[-500:]}")
    finally:
        text.unlink()
    if wal_from < math.inf:
        _append(signals, directory, wal_from)


def name(series: Series) -> str:
    labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in series.labels.items())
    return f"{series.metric}{{{labels}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _lines(series: Series, before: float) -> Iterator[str]:
    head = name(series)
    for at, value in zip(series.times.tolist(), series.values.tolist(), strict=True):
        if at >= before:
            return
        # NaN is "no sample", but a training scalar may really be one.
        if value == value:
            told = repr(value) if math.isfinite(value) else f"{value:+}".replace("inf", "Inf")
            yield f"{head} {told} {at:.3f}\n"
        elif series.source == "tb":
            yield f"{head} NaN {at:.3f}\n"


# ---- the write-ahead log, by a server that takes remote writes


def _append(signals: Signals, directory: Path, since: float) -> None:
    port = _free_port()
    config = directory / "receive.yml"
    config.write_text("global: {scrape_interval: 999h}\nscrape_configs: []\n")
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory}",
        "--storage.tsdb.retention.time=10y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_ready(port, server)
        series = list(signals.series.values())
        for start in range(0, len(series), _BATCH):
            _send(port, _request(series[start : start + _BATCH], since))
    finally:
        server.terminate()
        server.wait(timeout=30)
        config.unlink()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if server.poll() is not None:
            raise RuntimeError(f"prometheus ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError("prometheus was not ready after 30 s")


def _send(port: int, body: bytes) -> None:
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    url = f"http://127.0.0.1:{port}/api/v1/write"
    request = urllib.request.Request(url, data=snappy(body), headers=headers)
    with urllib.request.urlopen(request, timeout=30):
        pass


def _request(series: list[Series], since: float) -> bytes:
    out = []
    for one in series:
        labels = {"__name__": one.metric, **one.labels}
        body = b"".join(
            _field(1, _field(1, key.encode()) + _field(2, labels[key].encode()))
            for key in sorted(labels)
        )
        samples = [
            _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(round(at * 1000)))
            for at, value in zip(one.times.tolist(), one.values.tolist(), strict=True)
            if at >= since and (value == value or one.source == "tb")
        ]
        if samples:
            out.append(_field(1, body + b"".join(samples)))
    return b"".join(out)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def snappy(content: bytes) -> bytes:
    """Snappy's block format with literals only: valid, and nothing is compressed."""
    out = [_varint(len(content))]
    for start in range(0, len(content), _LITERAL):
        piece = content[start : start + _LITERAL]
        out.append(b"\xf4" + struct.pack("<H", len(piece) - 1) + piece)
    return b"".join(out)
