"""Writes one incident: `python -m tests.incidents.generate KIND --seed N --out DIR`.

DIR then holds the log, the job directory and `truth.json`. The same seed and options make the same
incident.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from pathlib import Path

from tests.incidents import baseline, exporters, jobdir, tsdb
from tests.incidents.job import Job, Options, draw
from tests.incidents.kinds import Run, World, load
from tests.incidents.noise import disturb
from tests.incidents.training import export, train
from tests.incidents.truth import Incident, Truth

_TAIL_S = 25.0  # Prometheus is there a little longer than training


def generate(
    kind: str,
    seed: int,
    out: Path,
    options: Options = Options(),  # noqa: B008 - frozen
) -> Incident:
    """One incident below `out`, which must be empty or not there.

    Raises: KeyError for an unknown kind; tsdb.NoPrometheus.
    """
    job = draw(seed, options)
    return play_out(kind, load()[kind](job), job, seed, out)


def play_out(kind: str, play: Run, job: Job, seed: int, out: Path) -> Incident:
    """The incident that `play` makes of a job that it was given; as `generate`."""
    options = job.options
    next(play)
    timeline = job.timeline()
    training = train(job, timeline)
    end = _end(job, timeline.last.end if timeline.last else job.plan.train_end)
    until = end if job.ending == "live" else end + _TAIL_S
    signals = baseline.simulate(job, timeline, until)
    world = World(job, timeline, signals, training, end)
    truth = _truth(play, world)
    if options.noise:
        disturb(job, signals)
    if not options.dialect:
        export(job, training, signals, until)
    for change in world.afterwards:
        change(signals)
    if options.dialect:
        exporters.translate(job, signals, options.dialect)
    directory = jobdir.write(job, timeline, training, out, end)
    if job.ray and signals.series:
        wal_from = until - options.wal_s if options.wal_s else math.inf
        tsdb.write(signals, directory / "prometheus", wal_from)
    incident = Incident(
        kind=kind,
        seed=seed,
        job_dir=str(directory),
        now=math.floor(until) if job.ending == "live" else math.ceil(end),
        job_state="running" if job.ending == "live" else "ended",
        interval_s=job.interval_s,
        hosts=tuple(job.hosts),
        truth=truth,
        options=dataclasses.asdict(options),
    )
    incident.save(out / "truth.json")
    return incident


def _end(job: Job, last: float) -> float:
    if job.ended_at is not None:
        return job.ended_at
    return job.plan.train_end if job.ending == "live" else last + 1.5


def _truth(play: Run, world: World) -> Truth:
    try:
        play.send(world)
    except StopIteration as done:
        truth = done.value
        assert isinstance(truth, Truth)
        return truth
    raise AssertionError("a kind yields once")


def main(argv: list[str] | None = None) -> int:
    kinds = load()
    parser = argparse.ArgumentParser(prog="python -m tests.incidents.generate", description=__doc__)
    parser.add_argument("kind", choices=[*kinds, "list"], metavar="KIND", help="or: list")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a directory that is empty or not there")
    parser.add_argument("--nodes", type=int, help="default: 3 to 8")
    parser.add_argument("--gpus", type=int, default=8, help="of a node")
    parser.add_argument("--ports", type=int, default=8, help="RDMA ports of a node")
    parser.add_argument("--minutes", type=float, help="of training; default: 35 to 65")
    parser.add_argument("--interval", type=float, help="seconds between scrapes; default: 10 or 15")
    parser.add_argument("--wal", type=float, default=0.0, help="newest seconds that go to a WAL")
    words = "other exporters' series instead of ours"
    parser.add_argument("--dialect", choices=["dcgm", "amd"], default="", help=words)
    parser.add_argument("--noise", action="store_true", help="what happens beside as well")
    asked = parser.parse_args(argv)
    if asked.kind == "list":
        for name, function in kinds.items():
            first = (function.__doc__ or "").strip().splitlines()[0]
            sys.stdout.write(f"{name:28} {first}\n")
        return 0
    if asked.out is None or (asked.out.exists() and any(asked.out.iterdir())):
        parser.error("--out must name a directory that is empty or not there")
    options = Options(
        nodes=asked.nodes,
        gpus=asked.gpus,
        ports=asked.ports,
        minutes=asked.minutes,
        interval_s=asked.interval,
        wal_s=asked.wal,
        noise=asked.noise,
        dialect=asked.dialect,
    )
    try:
        made = generate(asked.kind, asked.seed, asked.out, options)
    except tsdb.NoPrometheus as missing:
        sys.stderr.write(f"{missing}\n")
        return 4
    sys.stdout.write(" ".join(["raydiag diagnose", *made.arguments]) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
