"""The resident agent over its whole life, on real nodes: up, used, disturbed, down."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import schemas
from tests.cluster import fake_node, namespaces
from tests.cluster.conftest import (
    RAYDIAG,
    environment,
    own_processes,
    probe,
    wanted_or_skip,
)
from tests.cluster.simulated_hosts import Cluster, HostSpec

pytestmark = pytest.mark.cluster

_NOBODY = 65534


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head with a small /tmp, and two nodes with kernel logs of their own."""
    wanted_or_skip(namespaces.unavailable())
    directory = tmp_path_factory.mktemp("agent")
    specs = []
    for number in range(1, 4):
        kmsg = directory / f"kmsg-{number}"
        fake_node.write_kmsg(kmsg, fake_node.quiet_records())
        specs.append(HostSpec(f"node{number:03}", kmsg=kmsg))
    with Cluster(specs, auth="token") as running:
        yield running


def raydiag(cluster: Cluster, command: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a command on the head; the document fits its schema."""
    argv = [*RAYDIAG, command, *arguments, "--format", "json"]
    done = cluster.run_on(cluster.head, argv, env=environment(), timeout=90)
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    schemas.fits(document, command)
    return done.returncode, document


def wait_until(is_so: Callable[[], bool], limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.3)


@pytest.fixture
def agent(cluster: Cluster) -> Iterator[dict[str, Any]]:
    code, document = raydiag(cluster, "agent", "up", "--replace")
    assert code == 0, document
    yield document
    raydiag(cluster, "agent", "down")
    assert_nothing_left(cluster)


def assert_nothing_left(cluster: Cluster) -> None:
    assert own_processes(cluster) == []
    assert not memory_files()
    # Who has Ray forget an entry takes some seconds; what was killed waits for the next call.
    wait_until(lambda: "RUNNING" not in states(cluster).values())
    wait_until(lambda: "STOPPED" not in states(cluster).values())


def jobs(cluster: Cluster) -> list[dict[str, Any]]:
    """What the Jobs API lists of ours, for who has the token."""
    fetch = (
        "import json,os,urllib.request as web;"
        "token = open(os.environ['RAY_AUTH_TOKEN_PATH']).read().strip();"
        "asked = web.Request('http://127.0.0.1:8265/api/jobs/',"
        " headers={'Authorization': 'Bearer ' + token});"
        "print(web.build_opener(web.ProxyHandler({})).open(asked).read().decode())"
    )
    done = cluster.run_on(cluster.head, [sys.executable, "-I", "-c", fetch])
    listed = json.loads(done.stdout)
    return [job for job in listed if str(job.get("submission_id")).startswith("raydiag-")]


def states(cluster: Cluster) -> dict[str, str]:
    return {job["submission_id"]: job["status"] for job in jobs(cluster)}


def memory_files() -> list[Path]:
    return list(Path("/tmp").glob("raydiag-agent-*/*"))


def asked_by_agent(document: dict[str, Any]) -> bool:
    return "agent" in document["cluster"]


def test_it_answers_as_a_job_of_the_callers_own_does(
    cluster: Cluster, agent: dict[str, Any]
) -> None:
    warm, fresh = probe(cluster), probe(cluster, "--fresh")
    assert asked_by_agent(warm.document)
    assert not asked_by_agent(fresh.document)
    assert warm.exit_code == fresh.exit_code
    assert warm.faults() == fresh.faults()
    for node in warm.document["nodes"]:
        there = fresh.node(node["host"])
        assert node["status"] == there["status"] == "ok"
        assert node["probes"].keys() == there["probes"].keys()
    one = probe(cluster, "--node", "node002", "--only", "versions")
    assert [node["host"] for node in one.document["nodes"]] == ["node002"]
    assert list(one.document["nodes"][0]["probes"]) == ["versions"]
    done = cluster.run_on(cluster.head, [*RAYDIAG, "probe", "--node", "no"], env=environment())
    assert done.returncode == 2
    assert "node001, node002, node003" in done.stderr


def test_up_twice_is_up_once(cluster: Cluster, agent: dict[str, Any]) -> None:
    code, again = raydiag(cluster, "agent", "up")
    assert (code, again["outcome"]) == (0, "was up")
    assert again["job"]["id"] == agent["job"]["id"]
    ours = [state for state in states(cluster).values() if state == "RUNNING"]
    assert len(ours) == 1
    code, other = raydiag(cluster, "agent", "up", "--replace")
    assert (code, other["outcome"]) == (0, "replaced")
    assert other["job"]["id"] != agent["job"]["id"]
    assert asked_by_agent(probe(cluster).document)


def test_what_it_has_seen_is_the_history(cluster: Cluster, agent: dict[str, Any]) -> None:
    assert asked_by_agent(probe(cluster).document)
    code, everything = raydiag(cluster, "history")
    assert code == 0
    assert {node["host"] for node in everything["nodes"]} == set(cluster.hosts)
    code, of_node = raydiag(cluster, "history", "node002")
    assert (code, [node["host"] for node in of_node["nodes"]]) == (0, ["node002"])
    argv = [*RAYDIAG, "history", "node999"]
    done = cluster.run_on(cluster.head, argv, env=environment(), timeout=90)
    assert (done.returncode, done.stdout) == (4, "")
    assert "node999" in done.stderr and "node001" in done.stderr


_STRANGER = """
import encodings.idna, glob, http.client, json, os, socket, sys, urllib.request  # while readable
secret = sys.stdin.readline().strip()
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
told = {{"uid": os.getuid(), "leaks": [], "read": 0}}
try:
    urllib.request.urlopen("http://127.0.0.1:8265/api/jobs/", timeout=10)
    told["jobs"] = 200
except urllib.error.HTTPError as error:
    told["jobs"] = error.code
told["said"] = []
listening = [int(line.split()[1].split(":")[1], 16) for line in open("/proc/net/tcp")
             if " 0A " in line and "0100007F" in line.split()[1]]
for port in listening:
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.settimeout(1.0)
        try:
            begin = connection.recv(1000)
            if not begin.startswith(b"raydiag agent"):
                continue
            connection.settimeout(10)
            connection.sendall(os.urandom(64))
            rest = b""
            while chunk := connection.recv(1000):
                rest += chunk
            told["said"].append([len(begin), len(rest)])
        except OSError:
            continue
def look(path):
    try:
        if os.path.islink(path) or (os.path.isfile(path) and os.path.getsize(path) > 64 << 20):
            return
        with open(path, "rb") as file:
            content = file.read(64 << 20)
    except OSError:
        return
    told["read"] += 1
    if secret.encode() in content:
        told["leaks"].append(path)
for place in ("/tmp", "/dev/shm", "/var/tmp", "/run"):
    for folder, _, names in os.walk(place):
        for name in names:
            if os.path.isfile(os.path.join(folder, name)):
                look(os.path.join(folder, name))
for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
    look(path)
print(json.dumps(told))
"""


def secret_of(cluster: Cluster) -> str:
    (running,) = [job for job in jobs(cluster) if job["status"] == "RUNNING"]
    return str(running["metadata"]["raydiag_agent_secret"])


def test_another_user_of_the_head_gets_nothing(cluster: Cluster, agent: dict[str, Any]) -> None:
    """Everything but the token is his: the network, the file systems, what /proc shows."""
    assert asked_by_agent(probe(cluster).document)
    program = _STRANGER.format(nobody=_NOBODY)
    process = cluster.popen_on(
        cluster.head, [sys.executable, "-I", "-c", program], stdin=-1, stdout=-1, stderr=-1
    )
    out, err = process.communicate(secret_of(cluster) + "\n", timeout=90)
    told = json.loads(out or err)
    assert told["uid"] == _NOBODY
    assert told["jobs"] == 401
    assert told["said"] == [[48, 0]]  # the greeting of one agent, and then nothing
    assert told["read"] > 100  # he did read what there is: logs of Ray, other processes' arguments
    assert told["leaks"] == []


def driver_pids(cluster: Cluster) -> list[int]:
    """Of the agent's job: its Python alone."""
    pids = []
    for pid in cluster.processes(cluster.head):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"resident agent" in b" ".join(words[-3:]) and b"python" in words[0]:
            pids.append(pid)
    return pids


def test_a_coordinator_that_is_killed_is_cleanly_gone(
    cluster: Cluster, agent: dict[str, Any]
) -> None:
    assert asked_by_agent(probe(cluster).document)
    (pid,) = driver_pids(cluster)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "RUNNING" not in states(cluster).values())
    answer = probe(cluster)
    assert not asked_by_agent(answer.document)
    assert answer.exit_code == 0
    assert own_processes(cluster) == []  # actors end with the job that owns them
    code, document = raydiag(cluster, "agent", "status")
    assert (code, document["outcome"]) == (3, "none")
    code, document = raydiag(cluster, "agent", "up")
    assert (code, document["outcome"]) == (0, "started")


def test_a_coordinator_that_hangs_costs_a_moment(cluster: Cluster, agent: dict[str, Any]) -> None:
    (pid,) = driver_pids(cluster)
    os.kill(pid, signal.SIGSTOP)
    try:
        answer = probe(cluster)
        assert not asked_by_agent(answer.document)
        assert "does not answer" in answer.stderr
        assert [node["status"] for node in answer.document["nodes"]] == ["ok"] * 3
        code, document = raydiag(cluster, "agent", "status")
        assert (code, document["usable"]) == (1, False)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_an_actor_that_dies_is_placed_anew(cluster: Cluster, agent: dict[str, Any]) -> None:
    probe(cluster)
    killed = 0
    for pid in cluster.processes("node002"):
        if "RaydiagNodeActor" in Path(f"/proc/{pid}/cmdline").read_text(errors="replace"):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    assert killed == 1
    answer = probe(cluster)
    assert asked_by_agent(answer.document)
    assert answer.node("node002")["status"] == "ok"
    _, document = raydiag(cluster, "agent", "status")
    assert document["status"]["actor_restarts"] == 1


def test_a_node_that_hangs_costs_its_own_slot(cluster: Cluster, agent: dict[str, Any]) -> None:
    probe(cluster)
    for pid in cluster.processes("node003"):
        if "RaydiagNodeActor" in Path(f"/proc/{pid}/cmdline").read_text(errors="replace"):
            os.kill(pid, signal.SIGSTOP)
            stopped = pid
    try:
        first = probe(cluster, "--deadline", "6")
        assert first.node("node003")["status"] == "timeout"
        assert first.node("node002")["status"] == "ok"
        began = time.monotonic()
        second = probe(cluster, "--deadline", "60")
        assert second.node("node003")["status"] == "timeout"
        assert second.node("node001")["status"] == "ok"
        assert time.monotonic() - began < 50  # far from its deadline: who was silent stays so
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert probe(cluster).node("node003")["status"] == "ok"
