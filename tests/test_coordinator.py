"""Which nodes are asked. The rest of the coordinator is tried on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray", reason="the coordinator imports ray")

from raydiag.cluster import coordinator


def node(number: int, alive: bool = True, name: str = "") -> dict[str, Any]:
    return {
        "NodeID": f"{number:056x}",
        "NodeManagerHostname": name or f"node{number:03}.example.net",
        "NodeManagerAddress": f"10.0.0.{number}",
        "Alive": alive,
    }


NODES = [node(1), node(2), node(3, alive=False), node(4, name="10.0.0.4")]


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (None, [1, 2, 3, 4]),
        (["node002"], [2]),
        (["node002.example.net", "10.0.0.1"], [2, 1]),
        ([f"{1:056x}", "node001"], [1]),
        (["node003"], [3]),
        (["10.0.0.4"], [4]),
    ],
)
def test_nodes_by_any_of_their_names(names: list[str] | None, numbers: list[int]) -> None:
    chosen = coordinator.select(NODES, names)
    assert [int(item["NodeID"], 16) for item in chosen] == numbers


def test_a_name_that_came_back_means_the_living_node() -> None:
    again = {**node(5), "NodeManagerHostname": "node003.example.net"}
    assert coordinator.select([*NODES, again], ["node003"]) == [again]


@pytest.mark.parametrize("name", ["node9", "10", "example"])
def test_unknown_name_lists_what_there_is(name: str) -> None:
    with pytest.raises(coordinator.Selection) as caught:
        coordinator.select(NODES, [name])
    assert str(caught.value).endswith("it has: 10.0.0.4, node001, node002")


@pytest.mark.parametrize("nodes", [[], [node(1, alive=False)]])
def test_nobody_to_ask(nodes: list[dict[str, Any]]) -> None:
    with pytest.raises(coordinator.NoNodes):
        coordinator.select(nodes, None)


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        (2, "missed heartbeats", "UNEXPECTED_TERMINATION: missed heartbeats"),
        ("AUTOSCALER_DRAIN_IDLE", "", "AUTOSCALER_DRAIN_IDLE"),
        (99, None, "99"),
        (None, None, "no reason given"),
    ],
)
def test_death_reason(reason: Any, message: Any, words: str) -> None:
    row = {**node(1, alive=False), "DeathReason": reason, "DeathReasonMessage": message}
    assert coordinator.row(row)["death_reason"] == words
