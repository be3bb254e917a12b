"""Typed questions to nodes: a request in, an answer or a silence out, for many nodes at once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, Union

from raydiag import records
from raydiag.errors import ParseError
from raydiag.hotfix.messages import OPERATION_NAMES, Inspect, Inspection, NodeRequest

Answer = TypeVar("Answer")

# By node id: the fields of a request, answered with those of an answer, or {"error": "one line"}
# and `lost: true` when the node did not answer. The limit, in seconds, is for each node.
Ask = Callable[[Mapping[str, Mapping[str, Any]], float], Mapping[str, Mapping[str, Any]]]

# Beyond what the operation itself may take: on a full node, ours is the last process to run.
_SLOW_S = 25.0


@dataclass(frozen=True)
class NoAnswerFromNode:
    """No answer that could be used."""

    reason: str
    lost: bool = False  # nobody knows whether the operation was done


class NodeRequests:
    """The nodes of one cluster, asked about one place on each of them."""

    def __init__(
        self, ask: Ask, place: Mapping[str, Any], faults: Mapping[str, str] | None = None
    ) -> None:
        """`place`: fields of `Request`; `faults`: what probes saw of the driver fault, by node."""
        self._ask = ask
        self._place = dict(place)
        self.faults = dict(faults or {})

    def at(self, place: Mapping[str, Any]) -> NodeRequests:
        """The same nodes, about another place."""
        return NodeRequests(self._ask, {**self._place, **place}, self.faults)

    def ask(
        self, requests: Mapping[str, NodeRequest], kind: type[Answer], limit_s: float
    ) -> dict[str, Union[Answer, NoAnswerFromNode]]:
        """By node id; every node that is asked has its entry."""
        if not requests:
            return {}
        sent = {node: self._fields(node, request) for node, request in requests.items()}
        heard = self._ask(sent, limit_s + _SLOW_S)
        return {node: _decoded(kind, heard.get(node)) for node in requests}

    def inspect(
        self, nodes: Iterable[str], names: tuple[str, ...]
    ) -> dict[str, Union[Inspection, NoAnswerFromNode]]:
        """What these nodes look like now."""
        return self.ask({node: Inspect(names=names) for node in nodes}, Inspection, 8.0)

    def _fields(self, node: str, request: NodeRequest) -> dict[str, Any]:
        fields = {"operation": OPERATION_NAMES[type(request)], **dataclasses.asdict(request)}
        fields.update(self._place)
        if node in self.faults:
            fields["driver_fault"] = self.faults[node]
        plain: dict[str, Any] = json.loads(json.dumps(fields))
        return plain


def _decoded(
    kind: type[Answer], heard: Mapping[str, Any] | None
) -> Union[Answer, NoAnswerFromNode]:
    if heard is None:
        return NoAnswerFromNode("no answer", lost=True)
    if "error" in heard:
        return NoAnswerFromNode(str(heard["error"]), bool(heard.get("lost")))
    try:
        return records.decode(kind, heard)
    except ParseError as error:
        return NoAnswerFromNode(f"its answer does not make sense: {error}")
