"""What an incident really is: the answer that a diagnosis is measured against."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Truth:
    """The expected verdict. Times are Unix seconds UTC; `None` means that it is not judged."""

    verdict: str  # class id
    hosts: tuple[str, ...] | None = ()  # None: not judged
    gpus: tuple[tuple[str, int], ...] = ()  # host, index
    devices: tuple[tuple[str, str], ...] = ()  # host, device
    onset: float | None = None  # None: there is none, or it is not defined
    resolution_s: float = 0.0  # of the series that moves first; 0: the scrape interval
    also: tuple[str, ...] = ()  # classes that are as right, where the words overlap
    also_hosts: tuple[tuple[str, ...], ...] = ()  # other answers that are as right
    also_onset: tuple[float, ...] = ()
    never: tuple[str, ...] = ()  # wrong causes that this incident invites
    kill_time: float | None = None
    pattern: str | None = None  # of oom-host
    recovered: bool = False
    note: str = ""


@dataclass(frozen=True)
class Incident:
    """One generated job, where it lies and how it is to be asked about."""

    kind: str
    seed: int
    job_dir: str
    now: float
    job_state: str  # running, ended
    interval_s: float
    hosts: tuple[str, ...]
    truth: Truth
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """Of `raydiag diagnose`; the log prints no clock times, so it has to be told."""
        return [self.job_dir, "--now", f"{self.now:.0f}", "--job-state", self.job_state]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
