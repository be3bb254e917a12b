"""Nodes and GPUs at a glance: who is the cause, who is ill besides, who was not seen."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from raydiag.model import Diagnosis, Finding, Snapshot
from raydiag.nodeset import fold
from raydiag.render.document import severity_of
from raydiag.render.formats import count, grouped
from raydiag.render.report import TONES, HostGrid, HostTile, Tone, Toned

if TYPE_CHECKING:  # numpy, which a probe does without
    from raydiag.explain.job import ExaminedJob

_MOST_TILES = 128
_WORST_FIRST = (Tone.BAD, Tone.DOUBTFUL, Tone.PLAIN, Tone.GOOD)


def grid_of_job(examined: ExaminedJob) -> HostGrid:
    """Of a job's hosts, as far as anybody knows them."""
    gpus = dict.fromkeys(examined.picture.hosts, 0)
    if examined.nodes is not None:
        gpus.update(_probed_gpus(examined.nodes.snapshot))
    gpus.update(examined.picture.gpus)
    return _grid(gpus, examined.explained.diagnosis, examined.explained.verdict.hosts)


def grid_of_nodes(snapshot: Snapshot, diagnosis: Diagnosis) -> HostGrid:
    """Of the nodes of a cluster."""
    return _grid(_probed_gpus(snapshot), diagnosis, ())


def _probed_gpus(snapshot: Snapshot) -> dict[str, int]:
    """Number of GPUs of each node; 0 for not known."""
    return {report.node.host: len(report.records("gpu_sensors")) for report in snapshot.nodes}


def _grid(gpus: Mapping[str, int], diagnosis: Diagnosis, accused: Collection[str]) -> HostGrid:
    findings = grouped(diagnosis.problems, attrgetter("host"))
    coverage = diagnosis.coverage
    blind = set(map(attrgetter("host"), coverage.blind))
    partly = set(map(attrgetter("host"), coverage.unread)) - blind
    tiles = []
    for host, number in gpus.items():
        of_host = findings.get(host, ())
        unseen = "not seen" * (host in blind) or "seen in part" * (host in partly)
        tiles.append(
            HostTile(host, _state(of_host, host in accused, unseen), _gpus(number, of_host))
        )
    return HostGrid(_folded(tiles))


def _state(findings: Sequence[Finding], is_accused: bool, unseen: str) -> Toned:
    if is_accused:
        return Toned("root cause", Tone.BAD)
    if findings:
        worst = max(map(severity_of, findings), key=lambda severity: severity.rank)
        return Toned(findings[0].failure_class, TONES[worst])
    if unseen:
        return Toned(unseen, Tone.DOUBTFUL)
    return Toned("nothing found", Tone.GOOD)


def _gpus(number: int, findings: Iterable[Finding]) -> list[Toned]:
    """Each GPU, with what was found there."""
    by_gpu = grouped(findings, attrgetter("gpu"))
    named = [gpu for gpu in by_gpu if gpu is not None]
    gpus = []
    for gpu in range(max([number, *(gpu + 1 for gpu in named)])):
        worst = max(by_gpu.get(gpu, ()), key=lambda found: severity_of(found).rank, default=None)
        if worst is None:
            gpus.append(Toned(f"GPU {gpu}", Tone.GOOD))
        else:
            gpus.append(Toned(f"GPU {gpu}: {worst.failure_class}", TONES[severity_of(worst)]))
    return gpus


def _folded(tiles: Sequence[HostTile]) -> list[HostTile]:
    """All of them; of very many the worst, and the others as one."""
    if len(tiles) <= _MOST_TILES:
        return list(tiles)
    ordered = sorted(tiles, key=lambda tile: _WORST_FIRST.index(tile.state.tone))
    shown, rest = ordered[:_MOST_TILES], ordered[_MOST_TILES:]
    words = f"{count(len(rest), 'more node')}, none worse than the last one here"
    return [*shown, HostTile(fold(tile.name for tile in rest), Toned(words, rest[0].state.tone))]
