"""Rollouts over simulated hosts, each with a shell exporter beside a training-like tree."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import namespaces
from tests.cluster.conftest import environment, job_states, wanted_or_skip
from tests.cluster.hotfix_hosts import (
    BETTER,
    NAME,
    Hosts,
    Wish,
    digests,
    hotfix_hosts,
    ids,
    new_file,
)
from tests.hotfix.watchdog import EXPORTER, wait_until

pytestmark = pytest.mark.cluster

SCRIPT = "metrics_exporter.sh"
# Well where it is tried, broken on one host only.
BREAKS = BETTER.replace("for gpu", '[ -e "${BASH_SOURCE[0]%/*}/cursed" ] && exit 0\nfor gpu')
KILLS = int(os.environ.get("RAYDIAG_SOAK", "4"))
_SCRIPT_EVERY = 5  # of these times the exporter itself is replaced, which costs restarts


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Four, each with an artefact directory of its own; the last has one restart left."""
    wanted_or_skip(namespaces.unavailable())
    wishes = {f"node{number:03}": Wish() for number in range(1, 4)}
    wishes["node004"] = Wish(restarts=49)
    with hotfix_hosts(tmp_path_factory.mktemp("hotfix"), wishes) as found:
        yield found


@pytest.fixture(autouse=True)
def the_training_got_no_signal(hosts: Hosts) -> Iterator[None]:
    yield
    assert hosts.trouble() == {}


def power(hosts: Hosts, host: str) -> list[str]:
    """Lines of the metric that the plugin makes, as port 9400 serves them."""
    page = str(hosts.look(host)["page"])
    return [line for line in page.splitlines() if line.startswith("hw_gpu_power_watts")]


def wait_for_fresh_values(hosts: Hosts, host: str) -> None:
    before = power(hosts, host)
    wait_until(lambda: power(hosts, host) != before, f"{host}: fresh values")


def test_a_good_plugin_is_live_and_verified_everywhere(hosts: Hosts, tmp_path: Path) -> None:
    old = digests(hosts)
    file = new_file(tmp_path, NAME, BETTER)
    planned = hosts.hotfix("plan", "--all-nodes", file)
    assert (planned.exit_code, planned.document["outcome"]) == (0, "planned")
    assert (digests(hosts), ids(hosts)) == (old, set())
    done = hosts.hotfix("apply", "--all-nodes", file)
    assert done.exit_code == 0, done.document["reason"]
    assert done.outcomes() == dict.fromkeys(hosts.wishes, "verified")
    assert digests(hosts) == {done.document["files"][0]["sha256"]} != old
    for host in hosts.wishes:
        assert all(line.split()[1].startswith("8") for line in power(hosts, host))
    status = hosts.hotfix("status", str(done.document["rollout"]))
    assert (status.exit_code, set(status.contents().values())) == (0, {"new"})
    back = hosts.hotfix("rollback", str(done.document["rollout"]))
    assert (back.exit_code, digests(hosts)) == (0, old)
    assert set(job_states(hosts.cluster).values()) <= {"SUCCEEDED", "STOPPED"}


def test_a_plugin_that_breaks_on_the_third_host_only(hosts: Hosts, tmp_path: Path) -> None:
    old = digests(hosts)
    cursed = hosts.utils("node003") / "cursed"
    cursed.touch()
    file = new_file(tmp_path, NAME, BREAKS)
    done = hosts.hotfix("apply", "--all-nodes", "--canary", "node001", file)
    cursed.unlink()
    assert (done.exit_code, done.document["outcome"]) == (1, "rolled back")
    assert done.document["reason"].startswith(f"node003: {NAME} after the change: hw_gpu_")
    assert done.outcomes() == {
        **dict.fromkeys(("node001", "node002", "node003"), "rolled back"),
        "node004": "untouched",
    }
    assert digests(hosts) == old
    assert set(hosts.hotfix("status", str(done.document["rollout"])).contents().values()) == {"old"}


def test_the_exporter_where_restarts_are_left(hosts: Hosts, tmp_path: Path) -> None:
    old = hosts.digest("node004", SCRIPT)
    file = new_file(tmp_path, SCRIPT, EXPORTER + "# better\n")
    done = hosts.hotfix("apply", "--all-nodes", file)
    assert (done.exit_code, done.document["outcome"]) == (1, "verified")
    assert done.outcomes()["node004"] == "refused"
    assert "1 of 50 restarts left" in "; ".join(done.host("node004")["reasons"])
    assert hosts.digest("node004", SCRIPT) == old
    for host in ("node001", "node002", "node003"):
        assert hosts.digest(host, SCRIPT) == done.document["files"][0]["sha256"]
        assert "exited with code 137, restart #1\n" in hosts.watchdog_log(host)
        assert "Address already in use" not in hosts.watchdog_log(host)
        assert done.host(host)["seen"]["restarts"] == 1
        wait_for_fresh_values(hosts, host)
    assert "restart #50" not in hosts.watchdog_log("node004")


def test_a_second_roll_out_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    old = digests(hosts)
    holds = (
        "import sys; from raydiag.hotfix.ledger import Ledger\n"
        "with Ledger().lock('20260101-000000-abcd'):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    other = hosts.cluster.popen_on(
        hosts.cluster.head,
        [sys.executable, "-c", holds],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    argv = hosts.arguments("apply", "--all-nodes", new_file(tmp_path, NAME, BETTER))
    done = hosts.cluster.run_on(hosts.cluster.head, argv, env=environment(), timeout=120)
    other.stdin.close()
    other.stdout.close()
    other.wait(20)
    assert done.returncode == 4
    assert "rollout 20260101-000000-abcd is at work on this cluster" in done.stderr
    assert digests(hosts) == old


def drivers(hosts: Hosts) -> list[int]:
    """Processes of the rollout on its head, apart from the command."""
    found = []
    for pid in hosts.cluster.processes(hosts.cluster.head):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"raydiag.cluster.hotfix_driver" in words and not words.startswith(b"sh\0"):
            found.append(pid)
    return found


@pytest.mark.parametrize("number", range(KILLS))
def test_a_driver_that_is_killed_at_a_random_moment(
    number: int, hosts: Hosts, tmp_path: Path
) -> None:
    chance = random.Random(number)
    known, head = ids(hosts), hosts.cluster.head
    texts = {NAME: f"{BETTER}# {number}\n"}
    if number % _SCRIPT_EVERY == 0:
        texts[SCRIPT] = f"{EXPORTER}# {number}\n"
    old = {name: {host: hosts.digest(host, name) for host in hosts.wishes} for name in texts}
    files = [new_file(tmp_path, name, text) for name, text in texts.items()]
    command = hosts.cluster.popen_on(
        head,
        hosts.arguments("apply", "--all-nodes", "--quiet", *files),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: ids(hosts) - known or command.poll() is not None, "a record", 60)
    time.sleep(chance.uniform(0.0, 7.0))
    hosts.cluster.signal(command, signal.SIGKILL)
    for pid in drivers(hosts):
        os.kill(pid, signal.SIGKILL)
    command.wait(20)
    wait_until(lambda: not drivers(hosts), "the driver's end")
    (rollout,) = ids(hosts) - known
    status = hosts.hotfix("status", rollout)
    (told,) = status.document["rollouts"]
    new = {one["name"]: one["sha256"] for one in told["files"]}
    for host in told["hosts"]:
        for file in host["files"]:
            name = file["name"]
            expected = {"old": old[name][host["host"]], "new": new[name]}
            assert hosts.digest(host["host"], name) == expected[file["content"]]
    if told["state"] != "verified":  # it may have been over
        assert (told["state"], status.exit_code) == ("its driver died", 1)
    back = hosts.hotfix("rollback", rollout)
    assert (back.exit_code, back.document["outcome"]) == (0, "rolled back"), back.document
    for name in texts:
        assert {host: hosts.digest(host, name) for host in hosts.wishes} == old[name]
    left = [path.name for host in hosts.wishes for path in hosts.utils(host).glob(".raydiag*")]
    assert left == []
