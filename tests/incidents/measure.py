"""How often a diagnosis is right: `python -m tests.incidents.measure --incidents N --healthy N`.

Random kinds with random seeds, each diagnosed by the real command. Prints the figures and every
miss; `--seed` moves to other incidents. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.incidents.generate import generate
from tests.incidents.job import Options
from tests.incidents.kinds import load
from tests.incidents.truth import Incident, Truth

_LIMIT_S = 180.0


@dataclass(frozen=True)
class Score:
    """One diagnosis against its truth; None: not judged."""

    incident: Incident
    verdict: str
    class_right: bool
    hosts_right: bool | None
    onset_right: bool | None
    devices_right: bool | None
    told: str  # what the verdict says, for the list of misses
    pattern: str | None  # of oom-host
    seconds: float

    @property
    def missed(self) -> bool:
        found = (self.class_right, self.hosts_right, self.onset_right, self.devices_right)
        return False in found


def diagnose(incident: Incident) -> dict[str, Any]:
    """The document of `raydiag diagnose`; one with an empty verdict when it fails."""
    command = [sys.executable, "-m", "raydiag", "diagnose", *incident.arguments]
    command += ["--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return _failed(f"no answer in {_LIMIT_S:.0f} s")
    try:
        document = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines() or ["nothing on stdout or stderr"]
        return _failed(f"exit {done.returncode}: {lines[-1]}")
    return document if isinstance(document, dict) else _failed("not a document")


def _failed(reason: str) -> dict[str, Any]:
    return {"verdict": {"class": "no-answer", "summary": reason}}


def score(incident: Incident, document: dict[str, Any], seconds: float = 0.0) -> Score:
    """What of the verdict is right."""
    verdict, truth = document.get("verdict") or {}, incident.truth
    told = str(verdict.get("class"))
    hosts = set(verdict.get("hosts") or ())
    onset = verdict.get("onset")
    shown = {key: verdict.get(key) for key in ("hosts", "gpus", "devices", "onset", "summary")}
    return Score(
        incident,
        told,
        told == truth.verdict or told in truth.also,
        _hosts(truth, hosts),
        _onset(incident, onset) if told == truth.verdict else None,
        _devices(truth, verdict) if told == truth.verdict else None,
        json.dumps(shown),
        verdict.get("pattern"),
        seconds,
    )


def _hosts(truth: Truth, hosts: set[str]) -> bool | None:
    if truth.hosts is None:
        return None
    return any(hosts == set(one) for one in (truth.hosts, *truth.also_hosts))


def _onset(incident: Incident, onset: float | None) -> bool | None:
    """Two intervals of the series that moves first, and a second for rounding."""
    truth = incident.truth
    if truth.onset is None:
        return None
    if onset is None:
        return False
    reach = 2 * max(incident.interval_s, truth.resolution_s) + 1
    return any(abs(onset - one) <= reach for one in (truth.onset, *truth.also_onset))


def _devices(truth: Truth, verdict: dict[str, Any]) -> bool | None:
    if not truth.gpus and not truth.devices:
        return None
    gpus = {(one["host"], one["gpu"]) for one in verdict.get("gpus") or ()}
    devices = {(one["host"], one["device"]) for one in verdict.get("devices") or ()}
    return set(truth.gpus) <= gpus and set(truth.devices) <= devices


def plan(incidents: int, healthy: int, seed: int, only: list[str]) -> Iterator[tuple[str, int]]:
    """Kinds and seeds. Each kind comes about as often as any other, well ones apart."""
    rng = np.random.default_rng(seed)
    kinds = load()
    sick = only or [name for name in kinds if not name.startswith("healthy")]
    well = [name for name in kinds if name.startswith("healthy")]
    for count, names in ((incidents, sick), (healthy, well)):
        order = [name for _ in range(count // len(names) + 1) for name in rng.permutation(names)]
        for name in order[:count]:
            yield str(name), int(rng.integers(1, 2**31))


def run_one(kind: str, seed: int, options: Options, keep: Path | None) -> Score:
    with contextlib.ExitStack() as stack:
        place = keep / f"{kind}-{seed}" if keep else None
        if place is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="incident-")))
        incident = generate(kind, seed, place / "outputs", options)
        begun = time.monotonic()
        document = diagnose(incident)
        seconds = time.monotonic() - begun
        if keep:
            (place / "verdict.json").write_text(json.dumps(document, indent=1))
        return score(incident, document, seconds)


def _share(name: str, found: list[bool | None], target: float) -> tuple[str, bool]:
    judged = [one for one in found if one is not None]
    right = sum(judged)
    good = not judged or right >= target * len(judged)
    return f"{name:18} {right:4d} of {len(judged):4d}   target {target:.0%}", good


def report(scores: list[Score]) -> bool:
    """Prints figures and misses; true when all targets are met."""
    sick = [one for one in scores if not one.incident.kind.startswith("healthy")]
    well = [one for one in scores if one.incident.kind.startswith("healthy")]
    rows = [
        _share("class", [one.class_right for one in sick], 0.98),
        _share("hosts", [one.hosts_right for one in sick], 0.98),
        _share("onset", [one.onset_right for one in sick], 0.95),
        _share("GPUs and devices", [one.devices_right for one in sick], 0.98),
        _share("well jobs", [one.class_right for one in well], 1.0),
    ]
    lines = [text for text, _ in rows]
    times = sorted(one.seconds for one in scores)
    if times:
        lines.append(
            f"seconds a diagnosis  median {times[len(times) // 2]:.1f}, {times[-1]:.1f} at most"
        )
    forbidden = [one for one in scores if one.verdict in one.incident.truth.never]
    lines.append(f"a cause that the incident rules out was named {len(forbidden)} times")
    for one in scores:
        if one.missed:
            truth = one.incident.truth
            lines.append(f"MISS {one.incident.kind} seed {one.incident.seed}: {one.verdict}")
            lines.append(f"     told  {one.told[:400]}")
            what = truth.devices or truth.gpus
            lines.append(f"     truth {truth.verdict} {truth.hosts} {what} {truth.onset}")
    sys.stdout.write("\n".join(lines) + "\n")
    return all(good for _, good in rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.incidents.measure", description=__doc__)
    parser.add_argument("--incidents", type=int, default=100)
    parser.add_argument("--healthy", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", help="only these, separated by commas")
    parser.add_argument("--nodes", type=int, help="default: 3 to 8")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--ports", type=int, default=4)
    parser.add_argument("--minutes", type=float, help="default: 35 to 65")
    parser.add_argument("--workers", type=int, default=1, help="diagnoses at the same time")
    parser.add_argument("--keep", type=Path, help="leave incidents and verdicts in this directory")
    asked = parser.parse_args(argv)
    only = asked.kinds.split(",") if asked.kinds else []
    options = Options(asked.nodes, asked.gpus, asked.ports, asked.minutes, noise=True)
    planned = list(plan(asked.incidents, asked.healthy, asked.seed, only))
    scores: list[Score] = []
    with ThreadPoolExecutor(asked.workers) as pool:
        waiting = [pool.submit(run_one, *one, options, asked.keep) for one in planned]
        for done in waiting:
            scores.append(done.result())
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{len(scores)} of {len(planned)}")
    return 0 if report(scores) else 1


if __name__ == "__main__":
    raise SystemExit(main())
