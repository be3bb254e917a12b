"""Jobs that can be compared: one drawn job run several times, with what differs planted.

`tests.incidents` makes each job from its seed alone; here a second run has the same machines and
settings as the first, another noise, and whatever the test changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests.incidents import baseline, jobdir, tsdb
from tests.incidents.job import Job, Options, draw
from tests.incidents.kinds import World
from tests.incidents.training import export, train

SMALL = Options(nodes=3, gpus=2, ports=2, minutes=25, interval_s=15)
STEP_S = 8.0
_APART_S = 20_000.0  # between the starts of two runs
_TAIL_S = 25.0
MSCCL = "{host}:4000:44{gpu} [{gpu}] init.cc:2095 NCCL WARN MSCCL++: Feature not enabled"


@dataclass(frozen=True)
class Made:
    """A job directory, and the job that it is of."""

    path: str
    job: Job
    world: World
    end: float

    @property
    def log(self) -> Path:
        return Path(f"{self.path}.log")

    def rewrite(self, old: str, new: str) -> None:
        """Change the job's log."""
        text = self.log.read_text(encoding="utf-8")
        assert old in text
        self.log.write_text(text.replace(old, new), encoding="utf-8")


def make(
    out: Path,
    number: int,
    edit: Callable[[Job], None] = lambda job: None,
    plant: Callable[[World], None] = lambda world: None,
    arguments: str = "",
    seed: int = 5,
    options: Options = SMALL,
) -> Made:
    """Run `number` of the job: its id is 700 and the number. `arguments` go to its command line."""
    job = plain(draw(seed, options), number)
    job.rng = np.random.default_rng([seed, number])
    edit(job)
    timeline = job.timeline()
    training = train(job, timeline)
    assert timeline.last is not None
    end = job.ended_at or timeline.last.end + 1.5
    until = end if job.ending == "live" else end + _TAIL_S
    signals = baseline.simulate(job, timeline, until)
    world = World(job, timeline, signals, training, end)
    plant(world)
    export(job, training, signals, until)
    directory = jobdir.write(job, timeline, training, out, end)
    made = Made(str(directory), job, world, end)
    if arguments:
        made.rewrite('PASSTHROUGH_ARGS="', f'PASSTHROUGH_ARGS="{arguments} ')
    return finished(made, directory)


def finished(made: Made, directory: Path) -> Made:
    if made.job.ray:
        tsdb.write(made.world.signals, directory / "prometheus", math.inf)
    return made


def plain(job: Job, number: int) -> Job:
    """The same settings whatever the seed says, at another time."""
    shift = number * _APART_S
    plan = replace(
        job.plan,
        train_start=job.plan.train_start + shift,
        train_end=job.plan.train_end + shift,
        first_step=0,
        step_s=STEP_S,
        period=60,
        asynchronous=False,
        save_s=60.0,
        save_first=False,
    )
    return replace(
        job,
        job_id=700 + number,
        start=job.start + shift,
        plan=plan,
        restored=False,
        full_families=True,
        ray_refresh_s=0.0,
        all_tasks=False,
        trained="llama2-70b",
    )


def restored(job: Job, step: int = 60) -> None:
    """It went on from the checkpoint of that step."""
    job.restored = True
    job.plan.first_step = step + 1


def slower(job: Job, factor: float) -> None:
    job.plan.step_s *= factor


def waves(job: Job, names: Sequence[str], per_wave: int = 4) -> None:
    """Initialisations of communicators in every worker's log, minutes apart."""
    for host in job.hosts:
        lines = []
        for index, name in enumerate(names):
            clock = jobdir.clock(job.start + 90.0 * index)
            lines.append(f"I{clock} 4000 trainer.py:10] {name}")
            lines += [MSCCL.format(host=host, gpu=gpu) for gpu in range(per_wave)]
        job.worker_lines[host] = [*lines, *job.worker_lines.get(host, [])]
