"""Documents that are nearly right: a good one, of which some parts were changed as bytes say.

Bytes that are made at random hardly ever are JSON with the keys that a reader wants, so that what
comes behind its first check would never be tried.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import functools
import json
import typing
import zlib
from array import array
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any

from raydiag import probes
from raydiag.joblog.state import Mark, PassState
from raydiag.model import StuckReader

MOST_CHANGES = 4
_DEEP: list[Any] = []
for _ in range(70):
    _DEEP = [_DEEP]
ODD: tuple[Any, ...] = (
    None, True, 0, 1, -1, 1.5, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, -0.0,
    float("nan"), float("inf"), float("-inf"), "", "x", "1", "nan", "1e999", "x" * 300, "\ud800",
    "\x00", "../../etc/passwd", "/etc/passwd", "::", "NaN", [], {}, [1], [1, 2, 3], ["a"], [[]],
    {"a": 1}, _DEEP, "2026-02-30", "\u202e", " ", "ok", "answered", "error",
)  # fmt: skip


def altered(document: Any, data: bytes) -> Any:
    """A copy with up to `MOST_CHANGES` parts replaced, dropped or repeated."""
    choices = chain(data[1:], repeat(0))
    document = copy.deepcopy(document)
    for _ in range(1 + (data[0] if data else 0) % MOST_CHANGES):
        document = _changed(document, choices)
    return document


def _changed(part: Any, choices: Iterator[int]) -> Any:
    if not isinstance(part, (dict, list)) or not part or next(choices) % 8 == 7:
        return copy.deepcopy(ODD[next(choices) % len(ODD)])
    keys = list(part) if isinstance(part, dict) else list(range(len(part)))
    key, how = keys[next(choices) % len(keys)], next(choices) % 8
    if how == 7:
        del part[key]
    elif how == 6 and isinstance(part, list):
        part.append(copy.deepcopy(part[key]))
    elif how == 5 and isinstance(part, dict):
        part[str(ODD[next(choices) % len(ODD)])] = copy.deepcopy(part[key])
    else:
        part[key] = _changed(part[key], choices)
    return part


def text_of(document: Any) -> bytes:
    return json.dumps(document).encode()


# ---- good ones


def example_of(kind: Any) -> Any:
    """A value of the type as JSON has it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return {field.name: example_of(hints[field.name]) for field in dataclasses.fields(kind)}
    if origin is array or kind is array:
        return [1.5]
    if origin is tuple:
        return [example_of(each) for each in inner if each is not Ellipsis]
    if origin is list:
        return [example_of(inner[0])]
    if origin in (dict, Mapping):
        return {("7" if inner[0] is int else "a"): example_of(inner[1])}
    if inner:  # a union
        return example_of(inner[0])
    return {int: 1, float: 1.5, str: "x", bool: True}.get(kind, "x")


@functools.cache
def probe_result(name: str) -> dict[str, Any]:
    """What a node says of one probe."""
    records = [example_of(probes.load(name).record) for _ in range(2)]
    unread = [["/proc/x", "denied", "why"]]
    head = {"status": "ok", "duration_s": 0.1, "reason": "", "interval_s": 1.0}
    return {**head, "records": records, "later": records[:1], "unread": unread}


def answer(names: list[str]) -> dict[str, Any]:
    """What a node runner says."""
    holds = {"no_new_privs": True, "seccomp": True, "landlock_abi": 4}
    head = {"hostname": "n1", "time": 1.8e9, "duration_s": 0.4, "cpu_s": 0.05, "pid": 42}
    stuck, results = [example_of(StuckReader)], {name: probe_result(name) for name in names}
    return {**head, "sandbox": {"files": holds}, "stuck": stuck, "probes": results}


MESSAGE = {"status": "answered", "duration_s": 0.5, "clock_offset_s": [-0.1, 0.1], "answer": ""}


def message(data: bytes, names: list[str]) -> Any:
    """What the coordinator says of a node, of which the inside or the outside is odd."""
    is_inside = bool(data[:1]) and data[0] % 2 == 0
    inside = altered(answer(names), data[1:]) if is_inside else answer(names)
    packed = base64.b64encode(zlib.compress(text_of(inside), 1)).decode()
    outside = {**MESSAGE, "answer": packed}
    return outside if is_inside else altered(outside, data[1:])


NODE = {"node_id": "a", "hostname": "n1", "address": "10.0.0.4", "alive": True, "death_reason": ""}
META = {
    "ulid": "0" * 26, "minTime": 1_700_000_000_000, "maxTime": 1_700_000_060_000, "version": 1,
    "stats": {"numSamples": 1, "numSeries": 1, "numChunks": 1},
    "compaction": {"level": 1, "sources": ["0" * 26], "parents": [{"ulid": "0" * 26}]},
}  # fmt: skip
_LABELS = {"__name__": "up", "job": "ray"}
_RESULTS = {
    "vector": [{"metric": _LABELS, "value": [1795309540, "1"]}],
    "matrix": [{"metric": _LABELS, "values": [[1795309540, "1"], [1795309550, "nan"]]}] * 2,
    "scalar": [1795309540, "1"],
}
ANSWERS = [
    {"status": "success", "data": {"resultType": kind, "result": result}, "warnings": ["w"]}
    for kind, result in _RESULTS.items()
]


def records_of_rollout(directory: str) -> list[dict[str, Any]]:
    """A journal's, of one plugin that was replaced."""
    name = "gpu_metrics_plugin.sh"
    change = {"name": name, "path": f"{directory}/{name}", "mode": 0o755}
    change.update(old_sha256="0" * 64, new_sha256="1" * 64)
    events = ("plan", "intent", "replaced", "restart intent", "restore intent", "closed")
    return [{"at": 1.8e9, "who": "me", "event": event, **change} for event in events]


@functools.cache
def state() -> dict[str, Any]:
    marks = {"7-fuzz.log": Mark(5, 1, 7, "0" * 64, "0" * 64, [{"a": 1}])}
    document: dict[str, Any] = json.loads(PassState("x", marks).dumps())
    return document
