"""A node's answer to a second, closer question, joined to its first one: nothing known is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from raydiag.model import HostUnread, NodeReport, NodeStatus, ProbeResult, Status

_ANSWERED = (NodeStatus.OK, NodeStatus.PARTIAL)
_NOT_READ = (Status.TIMEOUT, Status.ERROR)
_LOOK = "a closer look"


def joined(first: NodeReport, closer: NodeReport) -> NodeReport:
    """The closer answer, with what only the first one has.

    A node that gave none keeps its first answer, unless Ray has declared it dead since.
    """
    if closer.status is NodeStatus.DEAD or first.status not in _ANSWERED:
        return closer
    if closer.status not in _ANSWERED:
        return replace(first, stuck=(*first.stuck, *closer.stuck))
    read = {name: result for name, result in closer.probes.items() if not _is_lost(first, result)}
    return replace(closer, probes={**first.probes, **read}, stuck=(*closer.stuck, *first.stuck))


def not_seen(first: NodeReport, closer: NodeReport) -> Iterator[HostUnread]:
    """What the closer look did not show, though the first answer stands."""
    if first.status not in _ANSWERED or closer.status is NodeStatus.DEAD:
        return
    host = first.node.host
    if closer.status not in _ANSWERED:
        reason = closer.reason or closer.status.value
        yield HostUnread(host, _LOOK, Status.TIMEOUT, f"{reason}; its first answer is shown")
        return
    for result in closer.probes.values():
        if _is_lost(first, result):
            yield HostUnread(host, f"{_LOOK}: {result.probe}", result.status, result.reason)


def _is_lost(first: NodeReport, result: ProbeResult) -> bool:
    """Whether a probe that answered before did not do so again."""
    known = first.probes.get(result.probe)
    return result.status in _NOT_READ and known is not None and known.status not in _NOT_READ
