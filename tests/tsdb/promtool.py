"""Real Prometheus data for tests: OpenMetrics text through promtool into blocks.

    samples = [("hw_procs_running", {"host": "a"}, [(1700000000.0, 3.0), (1700000010.0, 4.0)])]
    promtool.write_blocks(samples, job_dir / "prometheus")

prometheus and promtool come from PATH or from where `make test` puts them; without them a test
skips and says so.
"""

from __future__ import annotations

import math
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

import pytest

from tests import prometheus_programs

Samples = Iterable[tuple[float, float]]  # Unix seconds, value
OneSeries = tuple[str, Mapping[str, str], Samples]


def program(name: str) -> str:
    """Path of "prometheus" or "promtool"; skips the test where there is none."""
    path = prometheus_programs.found(name)
    if path:
        return path
    pytest.skip(f"there is no {name}: apt-get install prometheus, or `make test` fetches it")


def provide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the code under test find prometheus, or skip."""
    monkeypatch.setenv("RAYDIAG_PROMETHEUS", program("prometheus"))
    program("promtool")


def write_blocks(series: Iterable[OneSeries], target: Path) -> Path:
    """Blocks in `target`, which is made if need be; returns it."""
    target.mkdir(parents=True, exist_ok=True)
    text = target.parent / f".{target.name}.om"
    with open(text, "w", encoding="utf-8") as stream:
        write_openmetrics(series, stream)
    try:
        blocks_of(text, target)
    finally:
        text.unlink()
    return target


def blocks_of(openmetrics: Path, target: Path) -> None:
    """The same from a file of OpenMetrics text."""
    command = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics"]
    done = subprocess.run(
        [*command, str(openmetrics), str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"promtool: {done.stdout}{done.stderr}")


def write_openmetrics(series: Iterable[OneSeries], stream: IO[str]) -> None:
    """OpenMetrics wants a metric's lines together; without a type, any name is allowed."""
    by_metric: dict[str, list[tuple[str, Samples]]] = defaultdict(list)
    for metric, labels, samples in series:
        text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        by_metric[metric].append((f"{metric}{{{text}}}", samples))
    for metric, rows in by_metric.items():
        stream.write(f"# TYPE {metric} unknown\n")
        for name, samples in rows:
            stream.writelines(f"{name} {_number(v)} {t:.3f}\n" for t, v in samples)
    stream.write("# EOF\n")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return f"{value!r}" if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")
