"""Simulated hosts that each run a shell exporter under its watchdog beside a training-like tree."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import schemas
from tests.cluster import fake_node
from tests.cluster.conftest import RAYDIAG, environment
from tests.cluster.simulated_hosts import Cluster, HostSpec
from tests.hotfix import on_host
from tests.hotfix.watchdog import GPU

NAME = "gpu_metrics_plugin.sh"
BETTER = GPU.replace("700", "800")
PLACE, SHARED = "/mnt", "/media"  # what each host has its own directory at, and one for all
_FILES = ("--metrics-file", f"{PLACE}/node/node_hw_metrics.prom")
_LOG = ("--plugin-log", f"{PLACE}/node/metrics_exporter.log")


@dataclass(frozen=True)
class Wish:
    """What a host shall be like."""

    restarts: int = 0  # of its watchdog so far
    shared: bool = False  # its artefact directory is that of the other hosts which are
    kmsg: Path | None = None


@dataclass
class Result:
    """What `raydiag hotfix --format json` said."""

    exit_code: int
    document: dict[str, Any]
    stderr: str

    def host(self, name: str) -> dict[str, Any]:
        return next(dict(one) for one in self.document["hosts"] if one["host"] == name)

    def outcomes(self) -> dict[str, str]:
        return {one["host"]: one["outcome"] or one["state"] for one in self.document["hosts"]}

    def contents(self) -> dict[str, str]:
        """Host -> content, of the only rollout of a `status`."""
        (rollout,) = self.document["rollouts"]
        return {one["host"]: one["content"] for one in rollout["hosts"]}


@dataclass
class Hosts:
    cluster: Cluster
    directory: Path
    wishes: Mapping[str, Wish]
    exporters: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def utils(self, host: str) -> Path:
        """The host's artefact directory, as the machine sees it."""
        if self.wishes[host].shared:
            return self.directory / "shared" / "utils"
        return self.directory / host / "node" / "artifact" / "utils"

    def digest(self, host: str, name: str) -> str:
        return hashlib.sha256((self.utils(host) / name).read_bytes()).hexdigest()

    def watchdog_log(self, host: str) -> str:
        path = self.directory / host / "node" / "job" / "metrics_exporter" / "node001.log"
        return path.read_text()

    def look(self, host: str) -> dict[str, Any]:
        """{"trouble": what happened to the training, "page": what port 9400 serves}."""
        process = self.exporters[host]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("look\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    def trouble(self) -> dict[str, list[str]]:
        """What happened to the training of each host: empty when nothing did anywhere."""
        looks = {host: self.look(host)["trouble"] for host in self.exporters}
        return {host: trouble for host, trouble in looks.items() if trouble}

    def arguments(self, *words: str) -> list[str]:
        return [*RAYDIAG, "hotfix", words[0], *_FILES, *_LOG, *words[1:]]

    def hotfix(self, *words: str, timeout: float = 240) -> Result:
        """Run `raydiag hotfix` on the head and check its document against the schema."""
        argv = [*self.arguments(*words), "--format", "json"]
        done = self.cluster.run_on(self.cluster.head, argv, env=environment(), timeout=timeout)
        assert done.stdout, f"exit {done.returncode}: {done.stderr}"
        document = json.loads(done.stdout)
        schemas.fits(document, "hotfix")
        return Result(done.returncode, document, done.stderr)

    def start_exporter(self, host: str) -> None:
        wish = self.wishes[host]
        argv = [sys.executable, "-m", on_host.__name__, f"{PLACE}/node", str(wish.restarts), "0.3"]
        process = self.cluster.popen_on(
            host,
            [*argv, *([f"{SHARED}/utils"] if wish.shared else [])],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        self.exporters[host] = process
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{host}: its exporter did not start: {process.wait()}")


@contextlib.contextmanager
def hotfix_hosts(directory: Path, wishes: Mapping[str, Wish]) -> Iterator[Hosts]:
    """The first host is the head."""
    quiet = directory / "kmsg"
    fake_node.write_kmsg(quiet, fake_node.quiet_records())
    (directory / "shared").mkdir()
    specs = []
    for name, wish in wishes.items():
        (directory / name / "node").mkdir(parents=True)
        binds = [(directory / name, PLACE), (directory / "shared", SHARED)]
        specs.append(HostSpec(name, kmsg=wish.kmsg or quiet, binds=binds))
    with Cluster(specs) as cluster:
        hosts = Hosts(cluster, directory, wishes)
        try:
            for name in wishes:
                hosts.start_exporter(name)
            yield hosts
        finally:
            for process in hosts.exporters.values():
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()
                process.wait(20)


def new_file(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def ids(hosts: Hosts) -> set[str]:
    """Of the rollouts that the head has on record."""
    return {path.stem for path in _ledger(hosts).glob("*.json")}


def record(hosts: Hosts, rollout: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_ledger(hosts) / f"{rollout}.json").read_text())
    return found


def _ledger(hosts: Hosts) -> Path:
    return hosts.cluster.directory / hosts.cluster.head / "home" / ".raydiag" / "rollouts"


def digests(hosts: Hosts, name: str = NAME) -> set[str]:
    return {hosts.digest(host, name) for host in hosts.wishes}
