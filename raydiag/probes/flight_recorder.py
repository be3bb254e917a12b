"""What PyTorch's flight recorder has left on the node: which collectives each rank entered.

Source: files `<prefix><rank>`, where the prefix is TORCH_FR_DUMP_TEMP_FILE or
TORCH_NCCL_DEBUG_INFO_TEMP_FILE of the processes that train, else PyTorch's default
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional, Union

from raydiag.collective_trace import LIMIT_BYTES, GroupTrace, parse
from raydiag.errors import NoData, ParseError, ReadError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes import PROCESSES, probe
from raydiag.probes.processes import RayProcess, processes

DEFAULT = "/tmp/nccl_trace_rank_"
PREFIX_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_NEWER_S = 86400.0  # an older dump is of another job
_MOST_FILES = 64  # one for each GPU of a node, or of some nodes that share the directory
_BUDGET_S = 3.0


@dataclass(frozen=True)
class RankTrace:
    path: str  # of the dump, on the node
    rank: int  # global, from the file's name
    written_at: float  # Unix seconds, the file's last change
    group: str  # its name in PyTorch: "0", or a hash
    description: str  # "default_pg", "mesh_tp"; "" unknown
    members: tuple[int, ...]  # global ranks; empty: unknown
    last: int  # number of the last collective that it entered; 0: none
    last_what: str  # kind, size and type of that; "" unknown
    waits: Optional[int]  # number of the first one that is not complete; None: waits in none
    waits_what: str  # kind, size and type of that; "" unknown, or none
    waits_since: Optional[float]  # Unix seconds, when it entered that


@probe(RankTrace, identity=("path", "group"), timeout_s=5, reader=PROCESSES)
def flight_recorder(host: Host) -> Iterator[Union[RankTrace, Unread]]:
    """One record for each process group of each dump of the last day.

    Raises NoData where there is no dump, which is the rule: one is written when a collective hangs.
    """
    dumps = list(_dumps(host, _prefixes(host)))
    if not dumps:
        raise NoData("no dump of a flight recorder of the last day")
    started = time.monotonic()
    for index, (path, rank, written_at) in enumerate(dumps):
        if index >= _MOST_FILES or time.monotonic() - started > _BUDGET_S:
            reason = f"{len(dumps) - index} dumps were not read: the limit is reached"
            yield Unread(path, Status.TIMEOUT, reason)
            return
        try:
            yield from traces(host.read_bytes(path, LIMIT_BYTES + 1), path, rank, written_at)
        except ReadError as error:
            yield Unread(path, error.status, str(error))


def traces(data: bytes, path: str, rank: int, written_at: float) -> list[RankTrace]:
    """The records of one dump. Raises ParseError."""
    try:
        groups = parse(data)
    except ValueError as error:
        raise ParseError(f"{path}: {error}"[:300]) from None
    return [_record(group, path, rank, written_at) for group in groups]


def _record(group: GroupTrace, path: str, rank: int, written_at: float) -> RankTrace:
    waits, last = group.waits, group.last_call
    return RankTrace(
        path=path,
        rank=rank,
        written_at=written_at,
        group=group.group,
        description=group.description,
        members=group.members,
        last=group.last,
        last_what=last.what,
        waits=waits.number or None,
        waits_what=waits.what,
        waits_since=waits.time or None,
    )


def _prefixes(host: Host) -> list[str]:
    """Where the processes that train were told to leave their dumps, and PyTorch's own place."""
    told = []
    try:
        for process in processes(host):
            if isinstance(process, RayProcess):
                told += [process.settings.get(name, "") for name in PREFIX_VARIABLES]
    except ReadError:
        pass  # without Ray the default place is what remains
    absolute = [prefix for prefix in told if prefix.startswith("/")]
    return list(dict.fromkeys([*absolute, DEFAULT]))


def _dumps(host: Host, prefixes: Sequence[str]) -> Iterator[tuple[str, int, float]]:
    """Path, rank and time of regular files that are not older than a day, by rank."""
    oldest = time.time() - _NEWER_S
    for prefix in prefixes:
        directory, _, start = prefix.rpartition("/")
        ranks = []
        for name in host.names_or_empty(directory or "/"):
            number = name[len(start) :]
            if name.startswith(start) and number.isascii() and number.isdigit():
                ranks.append(int(number[:9]))
        for rank in sorted(ranks):
            path = f"{prefix}{rank}"
            try:
                status = os.stat(host.path(path))
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and status.st_mtime >= oldest:
                yield path, rank, status.st_mtime
