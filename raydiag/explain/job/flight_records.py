"""Dumps of PyTorch's flight recorder beside a job: they name the rank for which the others waited.

Source: <job directory>/**/*trace_rank_<rank>, pickle or JSON, and the place that the job's own
settings name (TORCH_FR_DUMP_TEMP_FILE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE)
"""

import glob
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raydiag.collective_trace import LIMIT_BYTES
from raydiag.errors import ParseError
from raydiag.joblog.facts import JobFacts
from raydiag.model import Finding, HostUnread, Observation, Severity, Status
from raydiag.probes.flight_recorder import PREFIX_VARIABLES, RankTrace, traces
from raydiag.rules.absent_ranks import AbsentRank, absent_ranks
from raydiag.untrusted import regular

FLIGHT_RECORDER = "flight-recorder"  # where such observations come from
_NAME = re.compile(r".{0,80}trace_rank_?(\d{1,7})(?:\.json|\.pkl|\.pickle)?\Z")
_DEEPEST, _MOST_ENTRIES, _MOST_FILES = 3, 20_000, 4096
_BUDGET_S = 20.0  # a dump of 2000 calls with stacks takes half a second
_ZONES_S = 14 * 3600.0  # a log may print local time


@dataclass(frozen=True)
class FlightRecords:
    """What the dumps of a job tell, and those that could not be read."""

    observations: tuple[Observation, ...] = ()
    unread: tuple[HostUnread, ...] = ()


def read(facts: JobFacts) -> FlightRecords:
    """Of this job's dumps; without any, nothing. Code that a dump holds is not run."""
    started, found, unread = time.monotonic(), [], []
    files = list(_files(facts))
    for index, (path, rank) in enumerate(files):
        if time.monotonic() - started > _BUDGET_S:
            reason = f"{len(files) - index} dumps of the flight recorder were not read in time"
            unread.append(HostUnread("", str(path), Status.TIMEOUT, reason))
            break
        try:
            found += _traces(path, rank, facts.first_time)
        except (OSError, ParseError) as error:
            unread.append(HostUnread("", str(path), Status.ERROR, str(error)))
    hosts = frozenset(facts.header.nodelist)
    observations = [_observation(absent, hosts) for absent in absent_ranks(found)]
    return FlightRecords(tuple(observations), tuple(unread))


def _traces(path: Path, rank: int, job_began: float | None) -> list[RankTrace]:
    """Of one file; none of a dump that is older than the job."""
    with open(path, "rb", opener=regular) as file:
        written_at = os.fstat(file.fileno()).st_mtime
        records = traces(file.read(LIMIT_BYTES + 1), str(path), rank, written_at)
    # Copying a directory changes the times of its files; a time in the dump itself stays.
    waits_since = [record.waits_since for record in records if record.waits_since]
    if job_began is not None and waits_since and min(waits_since) < job_began - _ZONES_S:
        return []
    return records


def _files(facts: JobFacts) -> Iterator[tuple[Path, int]]:
    """Dumps and their ranks, in the order of their paths."""
    seen: set[Path] = set()
    for path in _candidates(facts):
        name = _NAME.match(path.name)
        if name and path not in seen and len(seen) < _MOST_FILES:
            seen.add(path)
            yield path, int(name[1])


def _candidates(facts: JobFacts) -> Iterator[Path]:
    job_dir = facts.resolved.job_dir
    if job_dir is not None:
        yield from _below(Path(job_dir))
    settings = {**facts.header.config, **facts.header.passthrough}
    for key, value in settings.items():
        if key.removeprefix("_env_") in PREFIX_VARIABLES and os.path.isabs(value):
            prefix = Path(value)
            yield from sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}*"))


def _below(directory: Path) -> Iterator[Path]:
    """Files of a directory and of those in it, without its metrics; links are not followed."""
    depth, count = len(directory.parts), 0
    for place, directories, names in os.walk(directory):
        is_deepest = len(Path(place).parts) - depth >= _DEEPEST
        inner = sorted(set(directories) - {"prometheus", "tensorboard"})
        directories[:] = inner * (not is_deepest)
        count += len(names)
        if count > _MOST_ENTRIES:
            return
        yield from (Path(place) / name for name in sorted(names))


def _observation(absent: AbsentRank, hosts: frozenset[str]) -> Observation:
    """On the host whose directory the rank's own dump lies in, where it lies in one."""
    named = [part for part in Path(absent.path).parts[:-1] if part in hosts and absent.has_dump]
    finding = Finding(
        "straggler",
        host=next(reversed(named), None),
        task=f"rank {absent.rank}",
        severity=Severity.CRITICAL,
        onset=absent.since,
        confidence=absent.confidence,
        evidence=(absent.evidence,),
    )
    return Observation(finding, FLIGHT_RECORDER, "late_by_recorder")
