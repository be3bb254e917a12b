"""Rollouts and their way back over real exporters and journals: three nodes of this machine."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from raydiag.errors import CannotRun, UsageError
from raydiag.hotfix import documents, head
from raydiag.hotfix import node as hotfix
from raydiag.hotfix.ledger import Ledger
from tests.hotfix.watchdog import EXPORTER, GPU, ShellNode

pytestmark = pytest.mark.slow

NAME, SCRIPT = "gpu_metrics_plugin.sh", "metrics_exporter.sh"
BETTER = GPU.replace("700", "800")
# Well where it is tried, broken on one node only.
BREAKS = BETTER.replace("for gpu", '[ -e "${BASH_SOURCE[0]%/*}/cursed" ] && exit 0\nfor gpu')

Fault = Callable[[str, Mapping[str, Any]], "dict[str, Any] | None"]


@dataclass
class Nodes:
    """Stands where Ray stands otherwise: hands each node its request, and may lose the answer."""

    nodes: dict[str, ShellNode]
    fault: Fault = lambda node, request: None
    asked: list[tuple[str, str]] = field(default_factory=list)  # node, operation
    sick: dict[str, str] = field(default_factory=dict)  # by node id
    prefix: str = "id-"

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "node_id": f"{self.prefix}{name}",
                "hostname": name,
                "address": f"10.0.0.{number}",
                "alive": True,
                "death_reason": "",
                "asked": True,
            }
            for number, name in enumerate(self.nodes, start=1)
        ]

    def ask(
        self, requests: Mapping[str, Mapping[str, Any]], limit_s: float
    ) -> dict[str, dict[str, Any]]:
        answers = {}
        for node_id, request in requests.items():
            name = node_id.removeprefix(self.prefix)
            if name not in self.nodes:
                answers[node_id] = {"error": "not a node of this cluster", "lost": True}
                continue
            self.asked.append((name, str(request["operation"])))
            own = self.nodes[name].request(str(request["operation"]))
            lost = self.fault(name, request)
            answers[node_id] = lost or hotfix.answer({**request, **own})
        return answers

    def faults(self, nodes: Sequence[str]) -> dict[str, str]:
        return self.sick

    def operations(self, *names: str) -> list[str]:
        """Which nodes were asked for these, in order."""
        return [node for node, operation in self.asked if operation in names]

    def digest(self, node: str, name: str = NAME) -> str:
        return hashlib.sha256((self.nodes[node].utils / name).read_bytes()).hexdigest()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        there = {}
        for name in ("alpha", "beta", "gamma"):
            (tmp_path / name).mkdir()
            there[name] = stack.enter_context(ShellNode(tmp_path / name))
        yield Nodes(there)
        assert {name: node.trouble() for name, node in there.items() if node.trouble()} == {}


@pytest.fixture
def run(nodes: Nodes, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`run("apply", {name: content}, ...)`: the document."""

    def command(word: str, files: Mapping[str, str] | None = None, **more: Any) -> dict[str, Any]:
        request = {
            "command": word,
            "rollout": "r1",
            "who": "me@here",
            "place": {},
            "verify_limit_s": 60.0,
            "ledger": str(tmp_path / "ledger"),
            "files": [{"name": n, "content": text} for n, text in (files or {}).items()],
            **more,
        }
        return head.run(request, nodes, lambda message: None)

    return command


def outcomes(document: Mapping[str, Any]) -> dict[str, str]:
    return {host["host"]: host["outcome"] for host in document["hosts"]}


def contents(document: Mapping[str, Any]) -> dict[str, str]:
    (rollout,) = document["rollouts"]
    return {host["host"]: host["content"] for host in rollout["hosts"]}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


Run = Callable[..., dict[str, Any]]


def test_a_plan_changes_nothing(nodes: Nodes, run: Run, tmp_path: Path) -> None:
    document = run("plan", {NAME: BETTER})
    assert (document["outcome"], documents.exit_code(document)) == ("planned", 0)
    assert {operation for _, operation in nodes.asked} == {"inspect", "check"}
    assert {nodes.digest(name) for name in nodes.nodes} == {sha256(GPU)}
    assert not (tmp_path / "ledger").exists()


def test_a_plan_says_that_another_rollout_is_at_work(run: Run, tmp_path: Path) -> None:
    with Ledger(str(tmp_path / "ledger")).lock("r0"):
        document = run("plan", {NAME: BETTER})
    assert document["outcome"] == "planned"
    assert "nothing was tried: rollout r0 is at work" in document["reason"]
    assert run("plan", {NAME: BETTER})["reason"] == ""


def test_a_good_plugin_is_live_and_verified_everywhere(nodes: Nodes, run: Run) -> None:
    document = run("apply", {NAME: BETTER})
    assert (document["outcome"], documents.exit_code(document)) == ("verified", 0)
    assert set(outcomes(document).values()) == {"verified"}
    assert {nodes.digest(name) for name in nodes.nodes} == {sha256(BETTER)}
    assert nodes.operations("check") == ["alpha"]
    order = nodes.operations("apply", "verify")
    assert order == ["alpha", "alpha", "beta", "beta", "gamma", "gamma"]
    assert nodes.operations("restart") == []
    status = run("status")
    assert contents(status) == dict.fromkeys(nodes.nodes, "new")
    assert documents.exit_code(status) == 0
    again = run("apply", {NAME: BETTER}, rollout="r2")
    assert (again["outcome"], documents.exit_code(again)) == ("nothing to do", 0)


def test_a_plugin_that_breaks_on_the_third_host_only(nodes: Nodes, run: Run) -> None:
    (nodes.nodes["gamma"].utils / "cursed").touch()
    document = run("apply", {NAME: BREAKS})
    assert (document["outcome"], documents.exit_code(document)) == ("rolled back", 1)
    assert document["reason"].startswith("gamma: ")
    assert "hw_gpu_power_watts" in document["reason"]
    assert set(outcomes(document).values()) == {"rolled back"}
    assert {nodes.digest(name) for name in nodes.nodes} == {sha256(GPU)}
    assert contents(run("status")) == dict.fromkeys(nodes.nodes, "old")
    # The nodes are free for the next one.
    assert run("apply", {NAME: BETTER}, rollout="r2")["outcome"] == "verified"


def test_a_plugin_that_fails_where_it_is_tried(nodes: Nodes, run: Run) -> None:
    document = run("apply", {NAME: "#!/bin/bash\nif true; then\n"})
    assert (document["outcome"], documents.exit_code(document)) == ("refused", 1)
    assert NAME in document["reason"]
    assert set(outcomes(document).values()) == {"untouched"}
    assert nodes.operations("apply", "rollback") == []


def test_the_exporter_itself(nodes: Nodes, run: Run) -> None:
    document = run("apply", {SCRIPT: EXPORTER + "# better\n", NAME: BETTER})
    assert document["outcome"] == "verified", document["reason"]
    for name, node in nodes.nodes.items():
        assert "code 137, restart #1" in node.log.read_text()
        assert node.serves()
        assert nodes.digest(name, SCRIPT) == sha256(EXPORTER + "# better\n")
    back = run("rollback")
    assert (back["outcome"], documents.exit_code(back)) == ("rolled back", 0)
    for name, node in nodes.nodes.items():
        assert "code 137, restart #2" in node.log.read_text()
        assert node.serves()
        assert nodes.digest(name, SCRIPT) == sha256(EXPORTER)
        assert nodes.digest(name) == sha256(GPU)
    assert contents(run("status")) == dict.fromkeys(nodes.nodes, "old")
    # Once more: there is nothing left to do, and no exporter is restarted again.
    assert run("rollback")["outcome"] == "rolled back"
    assert all("restart #3" not in node.log.read_text() for node in nodes.nodes.values())


def test_an_exporter_that_cannot_start_is_taken_back(nodes: Nodes, run: Run) -> None:
    broken = EXPORTER.replace("#!/usr/bin/env bash", "#!/usr/bin/env bash\nexit 3", 1)
    document = run("apply", {SCRIPT: broken}, verify_limit_s=6.0)
    assert document["outcome"] == "rolled back", document
    states = outcomes(document)
    assert states == {"alpha": "rolled back", "beta": "untouched", "gamma": "untouched"}
    assert nodes.digest("alpha", SCRIPT) == sha256(EXPORTER)
    assert nodes.nodes["alpha"].serves()


def lost(node: str, operation: str) -> Fault:
    """The node does what it is asked and is not heard of again from that operation on."""
    gone: list[str] = []

    def fault(name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        if name == node and (gone or request["operation"] == operation):
            gone.append(name)
            return {"error": "the node was lost", "lost": True}
        return None

    return fault


@pytest.mark.parametrize("operation", ["apply", "verify"])
def test_a_node_that_vanishes_in_the_middle(operation: str, nodes: Nodes, run: Run) -> None:
    nodes.fault = lost("beta", operation)
    document = run("apply", {NAME: BETTER})
    assert (document["outcome"], documents.exit_code(document)) == ("incomplete", 1)
    assert "beta" in document["reason"]
    assert outcomes(document) == {
        "alpha": "rolled back",
        "beta": "not rolled back",
        "gamma": "untouched",
    }
    beta = next(host for host in document["hosts"] if host["host"] == "beta")
    assert "what became of its files is not known" in beta["outcome_reason"]
    status = run("status", rollout="r1")
    assert contents(status)["beta"] == "unknown"
    assert documents.exit_code(status) == 1
    # It comes back: the same record brings it back to its old files.
    nodes.fault = lambda node, request: None
    assert run("rollback")["outcome"] == "rolled back"
    assert {nodes.digest(name) for name in nodes.nodes} == {sha256(GPU)}


def test_a_doubt_about_the_process_stops_everything(nodes: Nodes, run: Run) -> None:
    def doubt(name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        if name == "beta" and request["operation"] == "restart":
            return {"outcome": "refused", "reason": "pid 4242: is another process now"}
        return None

    nodes.fault = doubt
    document = run("apply", {SCRIPT: EXPORTER + "# better\n"})
    assert document["outcome"] == "rolled back"
    assert "beta: restart of the exporter: pid 4242" in document["reason"]
    assert {nodes.digest(name, SCRIPT) for name in nodes.nodes} == {sha256(EXPORTER)}
    assert "restart #2" in nodes.nodes["alpha"].log.read_text()
    assert "restart #1" not in nodes.nodes["beta"].log.read_text()


@pytest.mark.parametrize("operation", ["check", "apply", "restart", "verify", "close"])
def test_a_driver_that_is_killed(operation: str, nodes: Nodes, run: Run) -> None:
    """At its second question of each kind, so that something has been done before."""

    class Killed(BaseException):
        pass

    count = []

    def kill(name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        count.append(1) if request["operation"] == operation else None
        if len(count) == (1 if operation == "check" else 2):
            raise Killed
        return None

    nodes.fault = kill
    with pytest.raises(Killed):
        run("apply", {NAME: BETTER, SCRIPT: EXPORTER + "# better\n"})
    nodes.fault = lambda node, request: None
    status = run("status", rollout="r1")
    assert status["rollouts"][0]["state"] == documents.DIED
    assert documents.exit_code(status) == 1
    for host in status["rollouts"][0]["hosts"]:
        for file in host["files"]:
            now = nodes.digest(host["host"], file["name"])
            assert now == file["old_sha256" if file["content"] == "old" else "new_sha256"]
    assert run("rollback")["outcome"] == "rolled back"
    # A slow host is asked twice whether all is well: then the others were not reached.
    told = contents(run("status", rollout="r1"))
    assert "alpha" in told and set(told.values()) == {"old"}
    assert {nodes.digest(name) for name in nodes.nodes} == {sha256(GPU)}
    assert run("apply", {NAME: BETTER}, rollout="r2")["outcome"] == "verified"


def test_a_second_roll_out_is_refused(nodes: Nodes, run: Run, tmp_path: Path) -> None:
    with (
        Ledger(str(tmp_path / "ledger")).lock("r0"),
        pytest.raises(CannotRun, match="r0 is at work"),
    ):
        run("apply", {NAME: BETTER})
    assert nodes.asked == []


def test_another_driver_of_the_same_nodes_is_refused(nodes: Nodes, run: Run) -> None:
    """Another user's rollout has a record of his own; the nodes know of it."""
    nodes.fault = lost("alpha", "verify")
    run("apply", {NAME: BETTER}, canary="alpha")
    nodes.fault = lambda node, request: None
    document = run("apply", {NAME: BREAKS}, rollout="r2", canary="beta")
    assert outcomes(document)["beta"] == "verified"
    alpha = next(host for host in document["hosts"] if host["host"] == "alpha")
    assert "raydiag hotfix rollback r1" in "; ".join(alpha["reasons"])
    assert documents.exit_code(document) == 1


def test_a_roll_out_that_is_told_to_stop(nodes: Nodes, run: Run, tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))

    def stop(name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        if name == "beta" and request["operation"] == "verify":
            ledger.ask_to_stop("r1", "you@there")
        return None

    nodes.fault = stop
    document = run("apply", {NAME: BETTER})
    assert (document["outcome"], document["reason"]) == ("rolled back", "stopped by you@there")
    assert outcomes(document)["gamma"] == "untouched"


@pytest.mark.parametrize("operation", ["apply", "close"])
def test_a_head_whose_disk_fails(operation: str, nodes: Nodes, run: Run, tmp_path: Path) -> None:
    """No step without a record before it; but what is verified everywhere stays."""

    def fail(name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        if name == "beta" and request["operation"] == operation and not moved.exists():
            (tmp_path / "ledger").rename(moved)
            (tmp_path / "ledger").write_text("a file stands here")
        return None

    moved = tmp_path / "moved"
    nodes.fault = fail
    document = run("apply", {NAME: BETTER})
    there = {nodes.digest(name) for name in nodes.nodes}
    assert "cannot keep a record" in document["events"][-1]["text"]
    if operation == "close":
        assert (document["outcome"], there) == ("verified", {sha256(BETTER)})
    else:
        assert (document["outcome"], there) == ("rolled back", {sha256(GPU)})
        assert "cannot keep a record" in document["reason"]


def test_the_canary_is_not_where_the_driver_fault_shows(nodes: Nodes, run: Run) -> None:
    nodes.sick = {"id-alpha": "amdgpu_cper_ring_write in the kernel log"}
    document = run("plan", {NAME: BETTER})
    assert document["canary"] == "beta"
    alpha = next(host for host in document["hosts"] if host["host"] == "alpha")
    assert "amdgpu_cper_ring_write" in alpha["driver_fault"]


def test_a_record_that_is_not_there(nodes: Nodes, run: Run) -> None:
    for command in ("rollback", "status"):
        with pytest.raises(UsageError, match="no rollout 'r1' on record"):
            run(command)
    assert run("status", rollout="")["rollouts"] == []


def test_a_ray_that_was_started_anew(nodes: Nodes, run: Run) -> None:
    """Its nodes have other ids; the record still means the same hosts."""
    assert run("apply", {NAME: BETTER})["outcome"] == "verified"
    nodes.prefix = "new-"
    assert contents(run("status")) == dict.fromkeys(nodes.nodes, "new")
    assert run("rollback")["outcome"] == "rolled back"
    assert {nodes.digest(name) for name in nodes.nodes} == {sha256(GPU)}
