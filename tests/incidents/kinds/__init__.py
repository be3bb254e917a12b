"""Kinds of incidents: what goes wrong, and what is then true.

A kind is a generator function. Until its `yield` it edits the job that is going to run; it is then
given the world that follows from that, plants what instruments show beyond it, and returns the
truth. What a fault does to steps, power and traffic follows from the timeline by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from tests.incidents.job import Job
from tests.incidents.signals import Series, Signals
from tests.incidents.timeline import Slow, Timeline
from tests.incidents.training import Training
from tests.incidents.truth import Truth


@dataclass
class World:
    """A job as it ran, before it is written down."""

    job: Job
    timeline: Timeline
    signals: Signals
    training: Training
    end: float  # of the job, or "now" of a live one
    afterwards: list[Callable[[Signals], None]] = field(default_factory=list)  # also to tb_*

    @property
    def last_step(self) -> float:
        """When the last step was completed."""
        assert self.timeline.last is not None
        return self.timeline.last.end

    def one(self, host: str, metric: str, **labels: str) -> Series:
        return self.signals.one(host, metric, **labels)

    def gpu(self, host: str, gpu: int, metric: str) -> Series:
        labels = {"type": "sclk"} if metric == "hw_gpu_clock_mhz" else {}
        return self.signals.one(host, metric, gpu=str(gpu), **labels)


Run = Generator[None, World, Truth]
Kind = Callable[[Job], Run]

KINDS: dict[str, Kind] = {}


def kind(name: str) -> Callable[[Kind], Kind]:
    def register(function: Kind) -> Kind:
        assert name not in KINDS, name
        KINDS[name] = function
        return function

    return register


def load() -> dict[str, Kind]:
    """All kinds by name."""
    from tests.incidents.kinds import (  # noqa: F401
        gpus,
        hangs,
        healthy,
        hosts,
        learning,
        memory,
        network,
        observability,
    )

    return dict(sorted(KINDS.items()))


def slow(job: Job, start: float, end: float, factor: float) -> None:
    job.plan.slows.append(Slow(start, end, factor))


def stuck(job: Job, at: float, minutes: float | None = None) -> None:
    """Training stands still; nobody notices for a while, or nobody has noticed yet."""
    waited = (minutes or job.uniform(25, 50)) * 60
    job.hang(at, waited)
    if job.chance(0.35):
        job.ending = "live"
    else:
        job.cancel()


def keep_open(job: Job) -> None:
    """A live job is looked at while it trains."""
    job.ending = "live"
    job.total_steps = 5000
