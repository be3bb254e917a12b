"""Typed requests to nodes: a request in, an answer or a reason out, for many nodes at once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar, Union

from raydiag import records
from raydiag.errors import ParseError
from raydiag.hotfix import messages
from raydiag.hotfix.messages import Close, Inspection, NodeRequest, Statuses
from raydiag.hotfix.plan import HostState

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


@dataclass(frozen=True)
class Answers(Generic[Answer]):
    """What each node that was asked answered, by node id and in the order of the requests."""

    by_node: dict[str, Union[Answer, NoAnswerFromNode]]

    @property
    def given(self) -> dict[str, Answer]:
        """Those that can be used."""
        given = {}
        for node, answer in self.by_node.items():
            if not isinstance(answer, NoAnswerFromNode):
                given[node] = answer
        return given

    @property
    def missing(self) -> dict[str, NoAnswerFromNode]:
        """Nodes without one."""
        missing = {}
        for node, answer in self.by_node.items():
            if isinstance(answer, NoAnswerFromNode):
                missing[node] = answer
        return missing

    def without_silent(self, hosts: Iterable[HostState]) -> list[HostState]:
        """These hosts; those that gave no answer are marked as unseen."""
        marked = []
        for host in hosts:
            missing = self.missing.get(host.node_id)
            marked.append(dataclasses.replace(host, unseen=missing.reason) if missing else host)
        return marked

    def failures(self, is_good: Callable[[Answer], bool]) -> Iterator[tuple[str, str]]:
        """Node and reason, for nodes without an answer or with one that is not good."""
        for node, answer in self.by_node.items():
            if isinstance(answer, NoAnswerFromNode) or not is_good(answer):
                yield node, str(getattr(answer, "reason", ""))


class NodeRequests:
    """The nodes of one cluster, asked about one place on each of them."""

    def __init__(
        self, ask: Ask, place: Mapping[str, Any], faults: Mapping[str, str] | None = None
    ) -> None:
        """`place`: fields of `NodeRequest`; `faults`: the driver fault that probes saw, by node."""
        self._ask = ask
        self._place = dict(place)
        self.faults = dict(faults or {})

    def at(self, place: Mapping[str, Any]) -> NodeRequests:
        """The same nodes, about another place."""
        return NodeRequests(self._ask, {**self._place, **place}, self.faults)

    def ask(
        self, requests: Mapping[str, NodeRequest], kind: type[Answer], limit_s: float
    ) -> Answers[Answer]:
        """Send each node its request, by node id; every one of them has its entry."""
        if not requests:
            return Answers({})
        fields = {node: self._fields(node, request) for node, request in requests.items()}
        answers = self._ask(fields, limit_s + _SLOW_S)
        return Answers({node: _decoded(kind, answers.get(node)) for node in requests})

    def inspect(self, nodes: Iterable[str], names: tuple[str, ...]) -> Answers[Inspection]:
        """What these nodes look like now, and their target files of these names."""
        request = messages.Inspect(names=names)
        return self.ask(dict.fromkeys(nodes, request), Inspection, 8.0)

    def statuses(self, nodes: Iterable[str], rollout: str) -> Answers[Statuses]:
        """What that rollout, or for "" every one, has done to these nodes."""
        request = messages.StatusRequest(rollout=rollout)
        return self.ask(dict.fromkeys(nodes, request), Statuses, 8.0)

    def close(self, requests: Mapping[str, Close]) -> Iterator[tuple[str, str]]:
        """Have the nodes record the end of a rollout; those that have not, and why."""
        return self.ask(requests, messages.Closed, 5.0).failures(attrgetter("recorded"))

    def _fields(self, node: str, request: NodeRequest) -> dict[str, Any]:
        operation = messages.OPERATION_NAMES[type(request)]
        fields = {"operation": operation, **dataclasses.asdict(request), **self._place}
        if node in self.faults:
            fields["driver_fault"] = self.faults[node]
        plain: dict[str, Any] = json.loads(json.dumps(fields))
        return plain


def _decoded(
    kind: type[Answer], fields: Mapping[str, Any] | None
) -> Union[Answer, NoAnswerFromNode]:
    if fields is None:
        return NoAnswerFromNode("no answer", lost=True)
    if "error" in fields:
        return NoAnswerFromNode(str(fields["error"]), bool(fields.get("lost")))
    try:
        return records.decode(kind, fields)
    except ParseError as error:
        return NoAnswerFromNode(f"its answer cannot be understood: {error}")
