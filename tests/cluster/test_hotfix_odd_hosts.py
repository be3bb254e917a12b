"""Rollouts over simulated hosts that differ: one shows a driver fault, two share a directory."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import fake_node, namespaces
from tests.cluster.conftest import environment, wanted_or_skip
from tests.cluster.hotfix_hosts import (
    BETTER,
    NAME,
    Hosts,
    Wish,
    digests,
    hotfix_hosts,
    ids,
    new_file,
    record,
)
from tests.hotfix.watchdog import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The first shows the GPU driver fault; the others share one artefact directory."""
    wanted_or_skip(namespaces.unavailable())
    directory = tmp_path_factory.mktemp("odd")
    kmsg = directory / "kmsg-fault"
    fake_node.write_kmsg(kmsg, fake_node.cper_oops_records(time.time()))
    wishes = {
        "node001": Wish(kmsg=kmsg),
        "node002": Wish(shared=True),
        "node003": Wish(shared=True),
    }
    with hotfix_hosts(directory, wishes) as found:
        yield found


@pytest.fixture(autouse=True)
def the_training_got_no_signal(hosts: Hosts) -> Iterator[None]:
    yield
    assert hosts.trouble() == {}


def test_a_shared_directory_is_written_once(hosts: Hosts, tmp_path: Path) -> None:
    file = new_file(tmp_path, NAME, BETTER)
    named = hosts.hotfix("plan", "--node", "node002", file)
    assert (named.exit_code, named.document["canary"]) == (0, "node002")
    done = hosts.hotfix("apply", "--all-nodes", file)
    assert done.exit_code == 0, done.document["reason"]
    assert done.outcomes() == dict.fromkeys(hosts.wishes, "verified")
    (shared,) = done.document["directories"]
    assert (shared["hosts"], shared["writer"]) == (["node002", "node003"], "node002")
    # Not where the driver fault shows.
    assert done.document["canary"] in ("node002", "node003")
    assert "amdgpu_cper" in done.host("node001")["driver_fault"]
    status = hosts.hotfix("status", str(done.document["rollout"]))
    (told,) = status.document["rollouts"]
    assert set(status.contents().values()) == {"new"}
    assert [one["host"] for one in told["hosts"] if one["touched"]] == ["node001", "node002"]
    back = hosts.hotfix("rollback", str(done.document["rollout"]))
    assert back.exit_code == 0
    assert set(hosts.hotfix("status", str(done.document["rollout"])).contents().values()) == {"old"}


def test_only_the_host_with_the_driver_fault(hosts: Hosts, tmp_path: Path) -> None:
    file = new_file(tmp_path, NAME, BETTER)
    done = hosts.hotfix("apply", "--node", "node001", file)
    assert (done.exit_code, done.document["outcome"]) == (1, "refused")
    assert "no host to try it on" in done.document["reason"]


def test_a_node_that_vanishes_in_the_middle(hosts: Hosts, tmp_path: Path) -> None:
    """The last test here: Ray does not take a node back that it called dead."""
    known, old = ids(hosts), digests(hosts)
    argv = hosts.arguments(
        *("apply", "--all-nodes", "--format", "json"), new_file(tmp_path, NAME, BETTER)
    )
    command = hosts.cluster.popen_on(
        hosts.cluster.head, argv, env=environment(), stdout=subprocess.PIPE
    )
    wait_until(lambda: ids(hosts) - known, "a record", 60)
    (rollout,) = ids(hosts) - known

    def at_work() -> bool:
        states = {one["host"]: one["state"] for one in record(hosts, rollout)["hosts"].values()}
        return bool(states["node002"] != "waiting")

    wait_until(at_work, "the batch of node002", 60)
    hosts.cluster.cut_link("node003")
    out, _ = command.communicate(timeout=200)
    document = json.loads(out)
    hosts.cluster.restore_link("node003")
    outcomes = {one["host"]: one["outcome"] for one in document["hosts"]}
    assert (command.returncode, document["outcome"]) == (1, "incomplete")
    assert document["reason"].startswith("node003: ")
    assert (outcomes["node002"], outcomes["node003"]) == ("rolled back", "not rolled back")
    assert digests(hosts) == old
