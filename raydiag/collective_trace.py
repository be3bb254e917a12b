"""What PyTorch's flight recorder of one rank says of its collectives: which it entered, and when.

A dump is written when a collective times out, or when somebody asks for it: a pickle, or JSON, with
`entries` (a ring of the last some thousand calls), `pg_config` and `pg_status`. Within a process
group the ranks number their collectives alike, so the numbers of two ranks can be compared.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp; tools/flight_recorder in PyTorch
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from raydiag.plain_pickle import values
from raydiag.untrusted import parsed

LIMIT_BYTES = 16 << 20
_RECENT = 4
_MOST_GROUPS = 64
_NAME_LENGTH = 100
_COMPLETED = "completed"


@dataclass(frozen=True)
class Call:
    """One collective that a rank entered."""

    number: int  # within its group
    what: str  # "all_reduce [1024, 16] BFloat16"
    completed: bool
    time: float  # when it was entered, Unix seconds; 0 unknown


NO_CALL = Call(0, "", True, 0.0)


@dataclass(frozen=True)
class GroupTrace:
    """One rank in one process group."""

    group: str  # its name in PyTorch: "0", or a hash
    description: str  # "default_pg", "mesh_tp"; "" unknown
    members: tuple[int, ...]  # global ranks; empty: unknown
    last: int  # number of the last collective that it entered; 0: none
    last_call: Call  # NO_CALL: no longer in the ring
    waits: Call  # the first that it entered and that is not complete; NO_CALL: none


def parse(data: bytes) -> list[GroupTrace]:
    """The groups of one dump. Raises ValueError for what is no dump, cut short, or more than data.

    Nothing in it is run: see `plain_pickle`.
    """
    is_json = data[:64].lstrip()[:1] == b"{"
    document = parsed(data, LIMIT_BYTES) if is_json else values(data)
    if type(document) is not dict or type(document.get("entries", [])) is not list:
        raise ValueError("is no dump of a flight recorder: no entries")
    if "entries" not in document and "pg_config" not in document:
        raise ValueError("is no dump of a flight recorder: neither entries nor pg_config")
    calls: dict[str, list[Call]] = {}
    names: dict[str, str] = {}
    for entry in document.get("entries", []):
        if type(entry) is dict and not entry.get("is_p2p"):
            name, description = _group_of(entry)
            names.setdefault(name, description)
            calls.setdefault(name, []).append(_call(entry))
    configured = _mapping(document.get("pg_config"))
    known = list(dict.fromkeys([*calls, *map(str, configured)]))
    return [
        _trace(name, names.get(name, ""), calls.get(name, []), document)
        for name in known[:_MOST_GROUPS]
    ]


def _trace(
    name: str, description: str, calls: list[Call], document: Mapping[str, Any]
) -> GroupTrace:
    config = _mapping(_mapping(document.get("pg_config")).get(name))
    status = _mapping(_mapping(document.get("pg_status")).get(name))
    ordered = sorted(calls, key=attrgetter("number"))
    pending = [call for call in ordered if not call.completed]
    last = next(reversed(ordered), NO_CALL)
    told = _integer(status.get("last_enqueued_collective"))
    return GroupTrace(
        group=name,
        description=str(config.get("desc") or description)[:_NAME_LENGTH],
        members=tuple(_ranks(config.get("ranks"))),
        last=max(last.number, told * (last is NO_CALL), 0),
        last_call=last,
        waits=next(iter(pending), NO_CALL),
    )


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description, as newer dumps have them; of older ones the number."""
    group = entry.get("process_group")
    if type(group) in (list, tuple) and group:
        name, description = (*group, "")[:2]
        return str(name)[:_NAME_LENGTH], str(description)[:_NAME_LENGTH]
    return str(entry.get("pg_id", ""))[:_NAME_LENGTH], ""


def _call(entry: Mapping[str, Any]) -> Call:
    kind = str(entry.get("profiling_name", "")).rpartition(":")[2]
    parts = (kind, _first(entry.get("input_sizes")), _first(entry.get("input_dtypes")))
    created_ns = _integer(entry.get("time_created_ns"))
    return Call(
        number=_integer(entry.get("collective_seq_id", entry.get("seq_id"))),
        what=" ".join(part[:_NAME_LENGTH] for part in parts if part),
        completed=entry.get("state") == _COMPLETED,
        time=max(0, created_ns) / 1e9,
    )


def _first(values_of_call: Any) -> str:
    """The first of a list, as text; "" for anything else."""
    if type(values_of_call) is not list or not values_of_call:
        return ""
    return str(values_of_call[0])


def _ranks(text: Any) -> Iterator[int]:
    """The global ranks of a group, which stand in it as text: "[0, 1, 2, 3]"."""
    for rank in str(text or "").strip("[]()").split(","):
        number = _integer(rank)
        if number >= 0:
            yield number


def _mapping(value: Any) -> Mapping[str, Any]:
    if type(value) is dict:
        return value
    return {}


def _integer(value: Any) -> int:
    """A number, or digits; -1 for anything else."""
    if type(value) is int:
        return value if abs(value) < 1 << 63 else -1
    text = str(value).strip()[:20]
    return int(text) if text.isascii() and text.isdigit() else -1
