"""The communicator that a single-replica restore leaves behind.

Signs: running tasks are up by the same number on every host, from the first steps on and for good;
throughput is down by about a percent; loss and learning rate are the same. Proof: the workers' logs
show one more wave of initialisations than a job that did not restore so, and the dump of XLA has
modules that create zeros.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from raydiag import catalog
from raydiag.explain.comparison.pair import LEAK, Pair, SlownessCause
from raydiag.explain.comparison.side import Side
from raydiag.model import Confidence, Evidence, Finding
from raydiag.playbooks.observations import RuledOut
from raydiag.timeline.queries import RUNNING
from raydiag.timeline.training_series import GRAD, LOSS, RATE

FLAG = "enable_single_replica_ckpt_restoring"
CLASS = "rccl-communicator-leak"
_LEAST_TASKS = 4.0  # on each host
_SPREAD, _SPREAD_TASKS = 0.4, 4.0  # of the extra tasks, between hosts
_BLOCKS = 6
_WAVES = 3  # start, restore, training; a fresh job has two
_STAYS = 0.5  # of the extra tasks, in every part of the run


@dataclass(frozen=True)
class Extra:
    """Running tasks that one job has more than the other."""

    tasks: float  # a host, mean
    least: float
    most: float
    hosts: int
    uniform: bool
    lasting: bool

    @property
    def text(self) -> str:
        """In words."""
        spread = f"{self.least:.0f} to {self.most:.0f}"
        return f"{self.tasks:.0f} more running tasks a host ({spread}) on {self.hosts} hosts"


def extra(pair: Pair, side: Side) -> Extra | None:
    """None where it cannot be told, or there are none."""
    average, mine = pair.values(RUNNING, side)
    usual, theirs = pair.values(RUNNING, pair.other(side))
    if average is None or usual is None:
        return None
    if set(mine) != set(theirs):
        theirs = dict.fromkeys(mine, usual)
    additional = [value - theirs[host] for host, value in mine.items()]
    tasks, least, highest = float(np.mean(additional)), min(additional), max(additional)
    if tasks < _LEAST_TASKS:
        return None
    uniform = highest - least <= max(_SPREAD * tasks, _SPREAD_TASKS) and least >= _STAYS * tasks
    return Extra(tasks, least, highest, len(additional), uniform, _lasts(pair, side, usual, tasks))


def _lasts(pair: Pair, side: Side, usual: float, tasks: float) -> bool:
    """Whether they are there in every part of the run."""
    looked = pair.looked(side)
    if looked is None:
        return False
    table = looked.scene.steady("tasks").pick(RUNNING)
    parts = np.array_split(table.values, min(_BLOCKS, max(1, table.times.size // 2)), axis=1)
    finite = [part[np.isfinite(part)] for part in parts]
    return all(float(values.mean()) >= usual + _STAYS * tasks for values in finite if values.size)


def look(pair: Pair) -> tuple[list[SlownessCause], list[RuledOut]]:
    """The leak in either job, or why it is none."""
    causes, ruled_out = [], []
    for side in (pair.a, pair.b):
        additional = extra(pair, side)
        reason = _refuted(pair, side, additional)
        if reason is None:
            causes.append(_cause(pair, side, additional))
        elif reason:
            ruled_out.append(RuledOut(CLASS, f"job {side.label}: {reason}", "comparison"))
    return causes, ruled_out


def _cause(pair: Pair, side: Side, additional: Extra | None) -> SlownessCause:
    finding = Finding(
        CLASS,
        onset=side.run.dated.first_at,
        confidence=_confidence(pair, side, additional),
        evidence=tuple(_evidence(pair, side, additional)),
        **catalog.variant(CLASS, "compared"),
    )
    text = f"{side.workers.waves} waves of initialisations"
    if additional is not None:
        text = additional.text
    return SlownessCause(LEAK, side.label, finding, f"{text} since a single-replica restore")


def _refuted(pair: Pair, side: Side, additional: Extra | None) -> str | None:
    """Why it is no leak: "" where nothing looks like one, None where it is one."""
    other_side = pair.other(side)
    uniform = additional is not None and additional.uniform
    if not side.settings.is_on(FLAG):
        if additional and uniform:
            return f"{additional.text}, but it runs without {FLAG}"
        return ""
    if side.restored is not True:
        return f"{FLAG} is on, but it started afresh: nothing was restored"
    if other_side.settings.is_on(FLAG) and other_side.restored:
        return "both jobs restored in the same way, so they cannot tell"
    running = pair.metric(RUNNING)
    if not uniform and running is not None and running.differs is not None:
        return "as many tasks run on every host as in the other job, or more on some only"
    waves, usual = side.workers.waves, other_side.workers.waves
    # More than the other job; where that has no logs, than a job that did not restore.
    most = _WAVES - 1 if usual is None else usual
    if not uniform and (waves is None or waves <= most):
        return ""
    if waves is not None and usual is not None and waves <= usual:
        return f"its workers' logs show {waves} waves of initialisations, the other's {usual}"
    return None


def _confidence(pair: Pair, side: Side, additional: Extra | None) -> Confidence:
    """Logs of both jobs prove the additional wave, which nothing has refuted."""
    if additional is None or not additional.lasting:
        return Confidence.POSSIBLE
    if None in (side.workers.waves, pair.other(side).workers.waves):
        return Confidence.LIKELY
    return Confidence.CONFIRMED


def _evidence(pair: Pair, side: Side, additional: Extra | None) -> Iterator[Evidence]:
    yield Evidence(side.asked, f"{FLAG} is on, and the job was {side.start}")
    if additional is not None:
        lasting = "in every part of the run" if additional.lasting else "not all the time"
        yield Evidence(RUNNING, f"{additional.text}, {lasting}", additional.tasks)
    mine, theirs = side.workers, pair.other(side).workers
    there = f"in job {pair.other(side).label}"
    if mine.waves is not None:
        usual = "unknown" if theirs.waves is None else str(theirs.waves)
        text = f"{mine.waves} waves of initialisations, {usual} {there}"
        yield Evidence(mine.file, text, float(mine.waves))
        yield from mine.wave_evidence()
    if mine.dumped_zeros is not None and theirs.dumped_zeros is not None:
        text = f"{mine.dumped_zeros} modules jit_create_zeros, {theirs.dumped_zeros} {there}"
        yield Evidence("xla_dump/", text, float(mine.dumped_zeros))
    training = ", ".join(_training(pair))  # which a leak does not change
    if training:
        yield Evidence("training", training)


def _training(pair: Pair) -> Iterator[str]:
    """Training's own numbers."""
    for gap in pair.gaps:
        if gap.metric in (LOSS, GRAD, RATE):
            change = "the same" if abs(gap.percent) < 1.0 else f"{gap.percent:+.1f} %"
            yield f"{gap.metric} {change}"
