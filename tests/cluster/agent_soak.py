"""Probes through the resident agent while the cluster under it is disturbed, for some minutes.

    python -m tests.cluster.agent_soak [MINUTES]      as root; `make soak` runs it

Every answer has to be right, or to say which nodes it has not seen. Prints a line for each round,
the agent's memory at the end beside that of the beginning, and exits 1 for the first wrong answer.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import fake_node, fuse_hang, namespaces
from tests.cluster.conftest import Answer, own_processes, probe
from tests.cluster.fuse_hang import HangingFile
from tests.cluster.simulated_hosts import Cluster, HostSpec
from tests.cluster.test_agent import asked_by_agent, driver_pids, raydiag

_HOSTS = ("node001", "node002", "node003", "node004")
_HUNG = "node004"
_DISK = "/mnt"
_MOST_GROWTH = 1.3  # of the agent's memory, after the first rounds
_SETTLING_S = 60.0  # what still arises from a disturbance that is over


class Wrong(Exception):
    """An answer that is neither right nor explicitly partial."""


class Soak:
    """One cluster with its agent, and what is done to it."""

    def __init__(self, cluster: Cluster, hanging: HangingFile, dice: random.Random) -> None:
        self.cluster, self.hanging, self.dice = cluster, hanging, dice
        self.lost: set[str] = set()  # hosts whose raylet is dead
        self.counts = {"warm": 0, "cold": 0}

    def disturbances(self) -> dict[str, Callable[[], None]]:
        """What may happen next."""
        return {
            "nothing": lambda: None,
            "a raylet is killed": self.kill_raylet,
            "raylets come back": self.revive,
            "a link is cut for a moment": self.cut_link,
            "a source hangs": self.hang,
            "the source is released": self.hanging.release,
            "the coordinator is killed": self.kill_coordinator,
            "the head's disk is full": self.fill,
            "the head's disk has room": self.empty,
        }

    def kill_raylet(self) -> None:
        """Of one worker; one at a time is lost."""
        if not self.lost:
            victim = self.dice.choice(_HOSTS[1:3])
            self.cluster.kill_raylet(victim)
            self.cluster.wait_for_state(victim, "DEAD")
            self.lost.add(victim)

    def revive(self) -> None:
        """All of them."""
        for host in sorted(self.lost):
            self.cluster.revive(host)
            self.cluster.wait_for_state(host, "ALIVE")
        self.lost.clear()

    def cut_link(self) -> None:
        """For less than it takes Ray to call the node dead."""
        self.cluster.cut_link("node002")
        time.sleep(1.5)
        self.cluster.restore_link("node002")

    def hang(self) -> None:
        """A counter file of one GPU."""
        self.hanging.hang("aca_umc")

    def kill_coordinator(self) -> None:
        """By SIGKILL."""
        for pid in driver_pids(self.cluster):
            os.kill(pid, signal.SIGKILL)

    def fill(self) -> None:
        """Where the agent keeps its memory's copy."""
        self.cluster.run_on(self.cluster.head, ["sh", "-c", f"cat /dev/zero > {_DISK}/filler"])

    def empty(self) -> None:
        """The disk has room again."""
        self.cluster.run_on(self.cluster.head, ["rm", "-f", f"{_DISK}/filler"])

    def check(self) -> str:
        """One probe. Raises Wrong."""
        answer = probe(self.cluster, "--deadline", "20")
        is_warm = asked_by_agent(answer.document)
        self.counts["warm" if is_warm else "cold"] += 1
        seen = {node["host"]: node["status"] for node in answer.document["nodes"]}
        living = {node["host"] for node in answer.document["nodes"] if node["status"] == "ok"}
        if set(_HOSTS) - set(seen):
            raise Wrong(f"hosts are missing: {seen}")
        for host in _HOSTS:
            is_told = host in living or _is_told(answer, host)
            if not is_told or (host in self.lost and host in living):
                raise Wrong(f"{host}: {seen[host]}, lost: {self.lost}, {answer.stderr}")
        if answer.exit_code == 0 and (self.lost or len(living) < len(_HOSTS)):
            raise Wrong(f"all is well, it says: {seen}")
        if not is_warm:
            raydiag(self.cluster, "agent", "up", "--every", "10s", "--replace")
        return f"{'warm' if is_warm else 'cold'}, exit {answer.exit_code}, {seen}"

    def status(self) -> dict[str, Any]:
        """The agent's own."""
        _, document = raydiag(self.cluster, "agent", "status")
        return dict(document["status"] or {})


def _is_told(answer: Answer, host: str) -> bool:
    """Whether the answer says what of a host it has not seen."""
    coverage = answer.document["coverage"]
    silent = {row["host"] for row in (*coverage["nodes"]["blind"], *coverage["unread"])}
    return host in silent or host in {found["host"] for found in answer.document["findings"]}


@contextmanager
def _cluster() -> Iterator[tuple[Cluster, HangingFile]]:
    with tempfile.TemporaryDirectory() as name:
        directory, specs, trees = Path(name), [], []
        for host in _HOSTS:
            trees.append(fake_node.write_amdgpu(directory / host))
            kmsg = directory / f"{host}.kmsg"
            fake_node.write_kmsg(kmsg, fake_node.quiet_records())
            tmpfs = {_DISK: 4 << 20}
            sys_tree = directory / host
            specs.append(
                HostSpec(host, sys=sys_tree, kmsg=kmsg, tmpfs=tmpfs, ray_env={"TMPDIR": _DISK})
            )
        with HangingFile(trees[_HOSTS.index(_HUNG)][5] / "ras") as hanging, Cluster(specs) as ours:
            try:
                yield ours, hanging
            finally:
                hanging.release()


def main(minutes: float, seed: int) -> int:
    """Disturb and ask until the time is over; 0 where every answer was right."""
    reason = namespaces.unavailable() or fuse_hang.unavailable()
    if reason:
        print(f"SKIPPED: {reason}", file=sys.stderr)
        return 0
    print(f"soak of {minutes:g} minutes, seed {seed}")
    with _cluster() as (cluster, hanging):
        soak = Soak(cluster, hanging, random.Random(seed))
        raydiag(cluster, "agent", "up", "--every", "10s")
        began, sizes = time.monotonic(), []
        while time.monotonic() - began < minutes * 60:
            name, disturb = soak.dice.choice(list(soak.disturbances().items()))
            disturb()
            try:
                said = soak.check()
            except Wrong as wrong:
                print(f"WRONG after {time.monotonic() - began:.0f} s, {name}: {wrong}")
                return 1
            sizes.append(soak.status().get("rss_bytes", 0) / (1 << 20))
            print(f"{time.monotonic() - began:5.0f} s  {name}: {said}, {sizes[-1]:.0f} MiB")
        hanging.release()
        soak.empty()
        raydiag(cluster, "agent", "down")
        print(f"{len(sizes)} probes: {soak.counts}; memory {min(sizes):.0f}-{max(sizes):.0f} MiB")
        left = own_processes(cluster)
        if left or max(sizes) > _MOST_GROWTH * sizes[0]:
            print(f"WRONG: left behind: {left}; memory began with {sizes[0]:.0f} MiB")
            return 1
    return 0


if __name__ == "__main__":
    wanted = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    sys.exit(main(wanted, int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())))
