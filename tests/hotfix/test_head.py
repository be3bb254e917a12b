"""What the head decides when nodes are silent, busy, late or gone: over nodes in memory."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from raydiag.errors import CannotRun
from raydiag.hotfix import documents, head, own_exporter
from raydiag.hotfix.ledger import Ledger
from raydiag.hotfix.messages import Applied, CheckedFile, NodeRequest, RolledBack
from raydiag.render.hotfix import hotfix_report
from raydiag.render.text import text as written
from tests.hotfix.scripted import LOST, NAME, OLD, Cluster, Fault, Node

NEW = "#!/bin/bash\necho new\n"
NEWER = "#!/bin/bash\necho newer\n"
HOSTS = ("alpha", "beta", "gamma")

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster({name: Node() for name in HOSTS})


@pytest.fixture
def said() -> list[Mapping[str, Any]]:
    return []


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path, said: list[Mapping[str, Any]]) -> Run:
    def command(word: str, rollout: str = "r1", text: str = NEW, **more: Any) -> dict[str, Any]:
        request = {
            "command": word,
            "rollout": rollout,
            "who": "me@here",
            "place": {},
            "verify_limit_s": 20.0,
            "ledger": str(tmp_path / "ledger"),
            "files": [{"name": NAME, "content": text}],
            **more,
        }
        return head.run(request, cluster, said.append)

    return command


def silent(node: str, *operations: str) -> Fault:
    """That node is not heard of from the first of these operations on."""
    gone: list[str] = []

    def fault(name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        if name == node and (gone or request["operation"] in operations):
            gone.append(name)
            return LOST
        return None

    return fault


def answers(node: str, operation: str, answer: Any) -> Fault:
    def fault(name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        mine = name == node and request["operation"] == operation
        return dataclasses.asdict(answer) if mine else None

    return fault


def both(*faults: Fault) -> Fault:
    return lambda name, request: next((one for f in faults if (one := f(name, request))), None)


def outcomes(document: Mapping[str, Any]) -> dict[str, str]:
    return {host["host"]: host["outcome"] for host in document["hosts"]}


def contents(cluster: Cluster) -> dict[str, str]:
    return {name: node.content for name, node in cluster.nodes.items()}


def reason(document: Mapping[str, Any], host: str) -> str:
    row = next(one for one in document["hosts"] if one["host"] == host)
    return "; ".join([*row["reasons"], row["outcome_reason"]])


# ---- the way back


def test_a_node_that_refuses_to_roll_back_is_not_called_untouched(
    cluster: Cluster, run: Run
) -> None:
    """An operation of before, which came too late, still holds it."""
    assert run("apply")["outcome"] == "verified"
    busy = RolledBack((), False, "another rollout is at work on this node")
    cluster.fault = answers("beta", "rollback", busy)
    document = run("rollback")
    assert cluster.nodes["beta"].content == NEW
    assert (document["outcome"], documents.exit_code(document)) == ("incomplete", 1)
    assert outcomes(document)["beta"] == "not rolled back"
    assert "another rollout is at work on this node" in reason(document, "beta")
    cluster.fault = lambda node, request: None
    assert run("rollback")["outcome"] == "rolled back"
    assert set(contents(cluster).values()) == {OLD}


def test_a_late_operation_that_may_still_change_the_node(cluster: Cluster, run: Run) -> None:
    """No answer to `apply`, no record yet, and the node is busy: it may change in a moment."""

    def fault(name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        if name != "beta" or request["operation"] not in ("apply", "rollback"):
            return None
        busy = RolledBack((), False, "another rollout is at work on this node")
        return LOST if request["operation"] == "apply" else dataclasses.asdict(busy)

    cluster.fault = fault
    document = run("apply")
    assert document["outcome"] == "incomplete"
    assert outcomes(document) == {
        "alpha": "rolled back",
        "beta": "not rolled back",
        "gamma": "untouched",
    }
    cluster.nodes["beta"].apply("beta", {"rollout": "r1", "content": "IyEvYmluL3NoCg=="})
    cluster.fault = lambda node, request: None
    assert run("rollback")["outcome"] == "rolled back"
    assert set(contents(cluster).values()) == {OLD}


def test_a_silent_host_that_nothing_was_done_to(cluster: Cluster, run: Run) -> None:
    """It stands in the record that its turn had not come."""
    refused = Applied("refused", "the disk is full")
    cluster.fault = both(answers("beta", "apply", refused), silent("gamma", "status"))
    document = run("apply")
    assert (document["outcome"], documents.exit_code(document)) == ("rolled back", 1)
    assert outcomes(document)["gamma"] == "untouched"
    assert run("rollback")["outcome"] == "rolled back"


def test_a_host_that_is_lost_after_it_was_rolled_back(cluster: Cluster, run: Run) -> None:
    run("apply")
    assert run("rollback")["outcome"] == "rolled back"
    del cluster.nodes["gamma"]
    again = run("rollback")
    assert again["outcome"] == "rolled back"
    assert outcomes(again)["gamma"] == "rolled back"


# ---- what one rollout leaves to the next


@pytest.mark.parametrize("end", ["verified", "rolled back"])
def test_a_host_whose_end_could_not_be_recorded(end: str, cluster: Cluster, run: Run) -> None:
    """The head knows how it ended there: the next rollout records it first, and goes on."""
    if end == "rolled back":
        assert run("apply")["outcome"] == "verified"
    cluster.fault = silent("beta", "close")
    assert run("apply" if end == "verified" else "rollback")["outcome"] == end
    assert "r1" not in cluster.nodes["beta"].ended
    cluster.fault = lambda node, request: None
    planned = run("plan", "r2", NEWER)
    assert (planned["outcome"], documents.exit_code(planned)) == ("planned", 0)
    assert "r1" not in cluster.nodes["beta"].ended  # a plan changes nothing
    document = run("apply", "r2", NEWER)
    assert (document["outcome"], documents.exit_code(document)) == ("verified", 0)
    assert cluster.nodes["beta"].ended["r1"] == end
    assert set(contents(cluster).values()) == {NEWER}


def test_one_that_did_not_end_well_still_has_to_be_rolled_back(cluster: Cluster, run: Run) -> None:
    cluster.fault = silent("beta", "verify")
    assert run("apply")["outcome"] == "incomplete"
    cluster.fault = lambda node, request: None
    document = run("apply", "r2", NEWER)
    assert outcomes(document) == {"alpha": "verified", "beta": None, "gamma": "verified"}
    assert "raydiag hotfix rollback r1" in reason(document, "beta")


def test_a_head_that_has_lost_its_records(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    """Another head, or its disk is new: the nodes' journals are enough."""
    cluster.fault = silent("beta", "verify")
    run("apply")
    cluster.fault = lambda node, request: None
    shutil.rmtree(tmp_path / "ledger")
    assert contents(cluster)["beta"] == NEW
    document = run("rollback")
    assert (document["outcome"], documents.exit_code(document)) == ("rolled back", 0)
    assert outcomes(document) == {"alpha": "rolled back", "beta": "rolled back"}
    assert set(contents(cluster).values()) == {OLD}
    assert run("apply", "r2", NEWER)["outcome"] == "verified"


# ---- the head


def test_a_rollback_that_waits_is_heard(run: Run, tmp_path: Path, said: list[Any]) -> None:
    """Silence for two minutes is taken for death."""
    ledger = Ledger(str(tmp_path / "ledger"))
    looks: list[float] = []
    with (
        ledger.lock("r1"),
        pytest.raises(CannotRun),
        ledger.lock("r1", 1.0, lambda: looks.append(1)),
    ):
        pass
    assert len(looks) >= 2


def test_a_full_disk_keeps_nobody_from_rolling_back(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("apply")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("raydiag.hotfix.ledger.os.pwrite", full)
    monkeypatch.setattr("raydiag.hotfix.ledger.write_all", full)
    document = run("rollback")
    assert document["outcome"] == "rolled back"
    assert set(contents(cluster).values()) == {OLD}


def test_status_asks_a_node_once_for_all_roll_outs(cluster: Cluster, run: Run) -> None:
    for number in range(5):
        cluster.fault = answers("alpha", "check", CheckedFile(False, "syntax", "skipped", ""))
        assert run("apply", f"r{number}", f"{NEW}# {number}\n")["outcome"] == "refused"
    cluster.fault = lambda node, request: None
    cluster.asked.clear()
    assert len(run("status", "")["rollouts"]) == 5
    assert cluster.asked.count(("beta", "inspect")) == 1


def test_status_says_which_hosts_are_of_this_cluster_no_more(cluster: Cluster, run: Run) -> None:
    run("apply")
    del cluster.nodes["gamma"]
    (rollout,) = run("status")["rollouts"]
    gamma = next(host for host in rollout["hosts"] if host["host"] == "gamma")
    assert (gamma["content"], gamma["unseen"]) == ("unknown", "it is not a node of this cluster")


def test_a_python_plugin_is_tried_by_the_exporter_itself(cluster: Cluster, run: Run) -> None:
    """No dry run of it exists: raydiag's exporter runs it apart and keeps the one before."""
    words = "no dry run: a Python plugin runs inside the exporter only"

    def fault(name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        if request["operation"] != "check":
            return None
        checked = cluster.nodes[name].check(name, request)
        return dataclasses.asdict(
            dataclasses.replace(checked, dry_run="skipped", reason=words, metrics={})
        )

    cluster.fault = fault
    files = [{"name": "site.py", "content": "def collect(host):\n    return []\n"}]
    own = {"place": {"exporter": "raydiag"}, "files": files}
    document = run("apply", **own)
    assert document["outcome"] == "verified", document["reason"]
    assert any("tried by" in event["text"] for event in document["events"])
    # What should have been tried and was not still stops it.
    assert run("apply", "r2", NEWER)["outcome"] == "refused"


def test_a_rollback_whose_driver_is_killed(cluster: Cluster, run: Run) -> None:
    """What was verified is not any more, and must not be told or closed as such."""

    class Killed(BaseException):
        pass

    def kill(name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        if (name, request["operation"]) == ("beta", "rollback"):
            raise Killed
        return None

    run("apply")
    cluster.fault = kill
    with pytest.raises(Killed):
        run("rollback")
    cluster.fault = lambda node, request: None
    status = run("status")
    (rollout,) = status["rollouts"]
    assert (rollout["state"], documents.exit_code(status)) == (documents.DIED, 1)
    assert {one["host"]: one["content"] for one in rollout["hosts"]} == {
        "alpha": "old",
        "beta": "new",
        "gamma": "new",
    }
    document = run("apply", "r2", NEWER)
    assert "raydiag hotfix rollback r1" in reason(document, "alpha")
    assert run("rollback")["outcome"] == "rolled back"


@pytest.mark.slow
def test_a_thousand_hosts(run: Run, cluster: Cluster, tmp_path: Path) -> None:
    cluster.nodes = {f"node{number:04}": Node() for number in range(1000)}
    began = time.process_time()
    document = run("apply")
    assert document["outcome"] == "verified"
    assert [len(batch) for batch in document["batches"]][:3] == [1, 1, 100]
    assert run("status")["rollouts"][0]["state"] == "verified"
    assert run("rollback")["outcome"] == "rolled back"
    assert (tmp_path / "ledger" / "r1.json").stat().st_size < 4 << 20
    assert time.process_time() - began < 20


def test_hosts_of_one_short_name_are_told_apart(cluster: Cluster, run: Run) -> None:
    cluster.hostnames = {"alpha": "n1.rack1", "beta": "n1.rack2", "gamma": "n2.rack1"}
    document = run("plan", canary="n1.rack2")
    assert [host["host"] for host in document["hosts"]] == ["n1.rack1", "n1.rack2", "n2"]
    assert document["canary"] == "n1.rack2"
    cluster.hostnames = dict.fromkeys(cluster.nodes, "localhost")
    assert run("plan", canary="10.0.0.3")["canary"] == "10.0.0.3"


def test_a_refusal_is_told_once(cluster: Cluster, run: Run, said: list[Any]) -> None:
    assert run("apply")["outcome"] == "verified"
    said.clear()
    assert run("apply", "r2")["outcome"] == "nothing to do"
    assert said == []


def test_what_to_do_after_a_rollback_that_is_not_complete(cluster: Cluster, run: Run) -> None:
    run("apply")
    cluster.fault = silent("beta", "status")
    document = run("rollback")
    assert document["reason"] == "rollback asked for by me@here"
    text = written(hotfix_report(document, plan_shown=False), 100)
    assert "when these hosts answer again, or are repaired: raydiag hotfix rollback r1" in text
    cluster.fault = lambda node, request: None
    text = written(hotfix_report(run("status"), plan_shown=False), 100)
    assert "raydiag hotfix rollback r1" in text


def test_a_plan_tries_the_files_as_a_rollout_does(cluster: Cluster, run: Run) -> None:
    words = "dry run: line 1: neither a sample nor a comment: 'hello'"
    cluster.fault = answers("alpha", "check", CheckedFile(False, words, "failed", ""))
    before = contents(cluster)
    document = run("plan")
    assert (document["outcome"], documents.exit_code(document)) == ("refused", 1)
    assert words in document["reason"]
    assert contents(cluster) == before


def test_a_missing_pid_file_has_its_remedy_beside_it() -> None:
    (doubt,) = own_exporter.find(NodeRequest(exporter="raydiag")).doubts
    assert doubt.startswith("no pid file was named: ") and "--pid-file" in doubt
