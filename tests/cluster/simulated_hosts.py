"""Several hosts on one machine, each with a real Ray node.

A host is a set of kernel namespaces (network, mount, host name, processes) with an address on a
bridge of its own, 10.77.0.1 for the first host, and its own /proc, /dev/shm, home, Ray directory
and, where asked, /sys and /dev/kmsg. Nothing of it has a name in the machine's own namespaces: the
bridge stands in a namespace too, so that test runs side by side cannot collide.

Each namespace lives as long as its first process, which waits for the end of a pipe that the test
holds. When the test run dies, even by SIGKILL, the pipe ends, and the kernel removes everything.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import namespaces

_NETWORK = "10.77.0"
GCS_PORT = 6379
DASHBOARD_PORT = 8265  # Ray's default; free, because it is looked up inside the head's namespace
_STOP_DEADLINE_S = 10.0
_OBJECT_STORE_BYTES = 80_000_000  # little more than Ray's minimum

# Ray finds a dead node within about ten seconds instead of half a minute, and starts no workers
# before somebody needs one.
_RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}
_POLL_S = 0.5  # each look costs an interpreter, while the nodes want the CPUs
_AT_ONCE = 4  # nodes that start side by side: more are slower than one after the other

# bash, because it is process 1 of the host and has to reap what loses its parent.
_HOLD = "echo ready; read -r _"
_HOST_START = f'echo "$1" > /proc/sys/kernel/hostname; ip link set lo up; {_HOLD}'
# Only a test run that was killed lets it come to the removal; `stop` does that itself.
_SWITCH_START = (
    f'ip link add switch type bridge; ip link set switch up; {_HOLD} || sleep 1; rm -rf -- "$1"'
)


@dataclass(frozen=True)
class HostSpec:
    """What one host shall look like. Paths on the left are of the machine, on the right its own."""

    name: str
    sys: Path | None = None  # directory to stand in for /sys; Ray needs nothing of it
    kmsg: Path | None = None  # file to stand in for /dev/kmsg
    binds: Sequence[tuple[Path, str]] = ()  # further files or directories; after /sys
    tmpfs: Mapping[str, int] = field(default_factory=dict)  # mount point -> size in bytes
    more_addresses: Sequence[str] = ()  # of its network card, with prefix lengths
    num_cpus: int = 1
    ray: bool = True  # False: a machine in the same network that is no node of the cluster
    ray_args: Sequence[str] = ()  # further arguments for `ray start`
    ray_env: Mapping[str, str] = field(default_factory=dict)  # its environment, besides
    ray_launch: Sequence[str] = ()  # words before it, as to take privileges away


@dataclass
class SimulatedHost:
    """A running host. Process ids are those of the machine, not the host's own."""

    spec: HostSpec
    address: str
    scratch: Path  # on the machine; holds the host's home, its Ray directory, ray-start.log
    holder: subprocess.Popen[str]
    pid: int  # the host's process 1
    network: str  # identity of its network namespace, as in /proc/<pid>/ns/net
    network_fd: int  # keeps the namespace, so that its identity is not given to another
    ray: subprocess.Popen[str] | None = None


class Cluster:
    """Context manager: hosts with a Ray cluster across them; the first node is the head.

    The dashboard and the Jobs API listen on 127.0.0.1 of the head: use `run_on(cluster.head, ...)`.
    `auth` is Ray's mode, "disabled" or "token" (then `token_path` holds the token).
    """

    def __init__(
        self,
        hosts: Sequence[HostSpec | str],
        auth: str = "disabled",
        env: Mapping[str, str] | None = None,
        start_deadline_s: float = 90.0,
    ) -> None:
        self.specs = [HostSpec(h) if isinstance(h, str) else h for h in hosts]
        number, head = next(
            ((n, spec) for n, spec in enumerate(self.specs, start=1) if spec.ray),
            (1, self.specs[0]),
        )
        self.head = head.name
        self.auth = auth
        self.hosts: dict[str, SimulatedHost] = {}
        self.gcs_address = f"{_NETWORK}.{number}:{GCS_PORT}"
        self.dashboard_url = f"http://127.0.0.1:{DASHBOARD_PORT}"
        self._extra_env = dict(env or {})
        self._start_deadline_s = start_deadline_s
        self._switch: subprocess.Popen[str] | None = None

    def __enter__(self) -> Cluster:
        """Raises RuntimeError with Ray's own output when the nodes do not come up in time.

        On a machine with other load a node of Ray may give up at its start: all once more, then.
        """
        try:
            self._start_whole()
        except RuntimeError:
            self._start_whole()
        return self

    def _start_whole(self) -> None:
        # Not TMPDIR: the paths of Ray's sockets must stay under 108 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="rdsim-", dir="/tmp"))
        try:
            self._start()
        except BaseException:
            with suppress(RuntimeError):
                self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- what a test does with it

    def run_on(
        self,
        host: str,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        cwd: str | os.PathLike[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host and collect its output; never raises for its exit status.

        Raises subprocess.TimeoutExpired; the command has then been killed.
        """
        pipe = subprocess.PIPE
        process = self.popen_on(host, argv, env=env, cwd=cwd, stdout=pipe, stderr=pipe)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            self.signal(process, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                # A grandchild may still hold the pipes, and a stuck child does not end at all.
                process.communicate(timeout=1)
            raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def popen_on(
        self,
        host: str,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a command on a host. `options` go to Popen; text mode unless said otherwise.

        The process returned is nsenter, which waits for the command and ends as it does. To signal
        the command, use `signal`.
        """
        return subprocess.Popen(
            self.command_on(host, argv, cwd),
            env={**self.environment(host), **(env or {})},
            **{"text": True, "start_new_session": True, "stdin": subprocess.DEVNULL, **options},
        )

    def command_on(
        self,
        host: str,
        argv: Sequence[str | os.PathLike[str]],
        cwd: str | os.PathLike[str] | None = None,
    ) -> list[str]:
        """The command line, for this machine, of a command on a host."""
        enter = ["nsenter", "-t", str(self.hosts[host].pid), "-n", "-m", "-u", "-i", "-p"]
        # Entering a mount namespace changes to /: env -C goes back.
        words = [os.fspath(word) for word in (cwd or os.getcwd(), *argv)]
        return [*enter, "env", "-C", *words]

    def signal(self, process: subprocess.Popen[str], number: int) -> None:
        """Send a signal to the command that `popen_on` started."""
        end = time.monotonic() + 5
        while process.poll() is None and time.monotonic() < end:
            if children := namespaces.children(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(children[0], number)
                return
            time.sleep(0.005)

    def environment(self, host: str) -> dict[str, str]:
        """What commands on that host get: ours without Ray's settings, and the cluster's."""
        # Proxies cannot be reached from there, and gRPC would obey them too.
        unwanted = [n for n in os.environ if n.startswith("RAY_") or n.lower().endswith("_proxy")]
        env = {name: value for name, value in os.environ.items() if name not in unwanted}
        env |= _RAY_SETTINGS | {"RAY_AUTH_MODE": self.auth}
        env["HOME"] = str(self.directory / host / "home")
        if self.auth == "token":
            env["RAY_AUTH_TOKEN_PATH"] = str(self.token_path)
        return env | self._extra_env

    @property
    def token_path(self) -> Path:
        return self.directory / "token"

    def processes(self, host: str) -> list[int]:
        """Every process in that host's network namespace, with process 1 and our nsenters."""
        return namespaces.processes_in(self.hosts[host].network)

    def node_states(self) -> dict[str, str]:
        """Host name -> "ALIVE" or "DEAD", as the dashboard says; hosts it does not know: absent."""
        names = {host.address: name for name, host in self.hosts.items()}
        for name, host in self.hosts.items():
            names.update((own.partition("/")[0], name) for own in host.spec.more_addresses)
        states: dict[str, str] = {}
        for node in self._dashboard_nodes():
            name = names.get(node["node_ip"], node["node_ip"])
            if states.get(name) != "ALIVE":  # a node that came back is listed twice
                states[name] = node["state"]
        return states

    def wait_for_state(self, host: str, state: str, deadline_s: float = 60.0) -> None:
        """Wait until Ray calls the host's node "ALIVE" or "DEAD". Raises TimeoutError."""
        end = time.monotonic() + deadline_s
        while (states := self.node_states()).get(host) != state:
            if time.monotonic() > end:
                raise TimeoutError(f"{host} is not {state} after {deadline_s} s: {states}")
            time.sleep(0.5)

    def cut_link(self, host: str) -> None:
        """The host's cable is pulled. Ray does not take a node back that it called dead."""
        self._set_link(host, "down")

    def restore_link(self, host: str) -> None:
        self._set_link(host, "up")

    def kill_raylet(self, host: str) -> None:
        """SIGKILL to the raylet of that host; what it had started goes down with it."""
        self.signal_raylet(host, signal.SIGKILL)

    def revive(self, host: str) -> None:
        """Start Ray again on a host whose raylet was killed; it joins as another node."""
        started = self.hosts[host].ray
        if started is not None:
            started.wait(_STOP_DEADLINE_S)
        self._start_ray(self.hosts[host])

    def signal_raylet(self, host: str, number: int) -> None:
        """SIGSTOP freezes the node: it is listed as alive and starts nothing."""
        raylets = [pid for pid in self.processes(host) if namespaces.comm(pid) == "raylet"]
        if not raylets:
            raise RuntimeError(f"no raylet on {host}")
        for pid in raylets:
            os.kill(pid, number)

    def bind(self, host: str, source: str | os.PathLike[str], target: str) -> None:
        """Put a file or directory of the machine over one of the host, while it runs."""
        self._inside(host, "-m", "mount", "--rbind", source, target)

    def unmount(self, host: str, target: str | os.PathLike[str]) -> None:
        """Take a mount away that the host has copied from the machine."""
        done = self.run_on(host, ["umount", "-l", target])
        if done.returncode:
            raise RuntimeError(done.stderr.strip())

    def ray_output(self, host: str) -> str:
        """What `ray start` printed on that host."""
        path = self.directory / host / "ray-start.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> None:
        """End every process of every host, and with them namespaces, mounts and links.

        Raises RuntimeError, after everything else is gone, when processes stay: those that hang in
        a file that was not released.
        """
        holders = [host.holder for host in self.hosts.values()]
        for holder in holders:
            with suppress(OSError):
                namespaces.pipe_of(holder.stdin).close()
        if self._switch:
            self._switch.kill()
            holders.append(self._switch)
        end = time.monotonic() + _STOP_DEADLINE_S
        started = [host.ray for host in self.hosts.values() if host.ray]
        for process in holders + started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
        while (left := self._all_processes()) and time.monotonic() < end:
            time.sleep(0.02)
        for host in self.hosts.values():
            os.close(host.network_fd)
        for holder in holders:
            namespaces.pipe_of(holder.stdin).close()
            namespaces.pipe_of(holder.stdout).close()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.hosts, self._switch = {}, None
        if left:
            raise RuntimeError(f"processes that cannot be ended: {left}; release what they read")

    def _all_processes(self) -> dict[str, list[int]]:
        return {name: pids for name in self.hosts if (pids := self.processes(name))}

    # ---- how it comes up

    def _start(self) -> None:
        if self.auth == "token":
            self.token_path.touch(mode=0o600)
            self.token_path.write_text(secrets.token_hex(32))
        self._switch = namespaces.hold(["unshare", "-n"], _SWITCH_START, str(self.directory))
        for number, spec in enumerate(self.specs, start=1):
            self._start_host(spec, number)
        end = time.monotonic() + self._start_deadline_s
        nodes = [host for host in self.hosts.values() if host.spec.ray]
        if not nodes:
            return
        self._start_ray(nodes[0])
        self._wait("the GCS of the head", end, lambda: namespaces.listens(nodes[0].pid, GCS_PORT))
        self._wait("the dashboard", end, lambda: namespaces.listens(nodes[0].pid, DASHBOARD_PORT))
        for first in range(0, len(nodes), _AT_ONCE):
            for host in nodes[max(1, first) : first + _AT_ONCE]:
                self._start_ray(host)
            expected = {host.spec.name: "ALIVE" for host in nodes[: first + _AT_ONCE]}
            self._wait("all nodes", end, lambda: self.node_states() == expected)  # noqa: B023

    def _start_host(self, spec: HostSpec, number: int) -> None:
        scratch = self.directory / spec.name
        for name in ("home", "ray"):
            (scratch / name).mkdir(parents=True)
        separate = ["unshare", "-n", "-m", "-u", "-i", "-p", "--propagation", "private"]
        holder = namespaces.hold(
            [*separate, "--mount-proc", "--fork", "--kill-child"], _HOST_START, spec.name
        )
        pid = namespaces.children(holder.pid)[0]
        network_fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        network = os.readlink(f"/proc/self/fd/{network_fd}")
        address = f"{_NETWORK}.{number}"
        self.hosts[spec.name] = SimulatedHost(
            spec, address, scratch, holder, pid, network, network_fd
        )
        port = f"to-{number}"
        self._ip_link("add", port, "type", "veth", "peer", "eth0", "netns", pid)
        self._ip_link("set", port, "master", "switch", "up")
        for own in (f"{address}/24", *spec.more_addresses):
            self._inside(spec.name, "-n", "ip", "address", "add", own, "dev", "eth0")
        self._inside(spec.name, "-n", "ip", "link", "set", "eth0", "up")
        self._mount(spec, scratch)

    def _mount(self, spec: HostSpec, scratch: Path) -> None:
        names = "".join(f"{_NETWORK}.{n} {s.name}\n" for n, s in enumerate(self.specs, start=1))
        (scratch / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        self._ray_directory.mkdir(exist_ok=True)
        for target, size_bytes in {"/dev/shm": 4 * _OBJECT_STORE_BYTES, **spec.tmpfs}.items():
            size = f"size={size_bytes}"
            self._inside(spec.name, "-m", "mount", "-t", "tmpfs", "-o", size, "tmpfs", target)
        # All nodes of a Ray cluster use one path; each host has a directory of its own behind it.
        self.bind(spec.name, scratch / "ray", str(self._ray_directory))
        self.bind(spec.name, scratch / "hosts", "/etc/hosts")
        own = [(spec.sys, "/sys"), (spec.kmsg, "/dev/kmsg"), *spec.binds]
        for source, target in own:
            if source is not None:
                self.bind(spec.name, source, target)

    @property
    def _ray_directory(self) -> Path:
        return self.directory / "ray"

    def _start_ray(self, host: SimulatedHost) -> None:
        ray = os.path.join(os.path.dirname(sys.executable), "ray")
        argv = [ray, "start", "--block", "--node-ip-address", host.address, "--num-cpus"]
        argv += [str(host.spec.num_cpus), "--object-store-memory", str(_OBJECT_STORE_BYTES)]
        if host.spec.name == self.head:
            # Hidden option of Ray: no autoscaler, which would be one more Python process.
            argv += ["--head", "--port", str(GCS_PORT), "--no-monitor"]
            argv += ["--dashboard-host", "127.0.0.1", "--dashboard-port", str(DASHBOARD_PORT)]
            argv += ["--temp-dir", str(self._ray_directory)]
        else:
            argv += ["--address", self.gcs_address]
        with (host.scratch / "ray-start.log").open("w") as log:
            host.ray = self.popen_on(
                host.spec.name,
                [*host.spec.ray_launch, *argv, *host.spec.ray_args],
                env=host.spec.ray_env,
                stdout=log,
                stderr=log,
                cwd="/",
            )

    def _wait(self, what: str, end: float, condition: Any) -> None:
        while not condition():
            ended = [h for h in self.hosts.values() if h.ray and h.ray.poll() is not None]
            if ended or time.monotonic() > end:
                seen = {name: self.ray_output(name)[-2000:] for name in self.hosts}
                output = "\n".join(f"--- {name}\n{text}" for name, text in seen.items())
                raise RuntimeError(f"{what} did not come up\n{output}")
            time.sleep(_POLL_S)

    def _dashboard_nodes(self) -> list[dict[str, Any]]:
        """Rows of the dashboard's node list; empty while it does not answer."""
        headers = {}
        if self.auth == "token":
            headers["Authorization"] = f"Bearer {self.token_path.read_text()}"
        done = self.run_on(
            self.head, [sys.executable, "-I", "-c", _FETCH, json.dumps(headers)], timeout=20
        )
        if done.returncode:
            return []
        nodes: list[dict[str, Any]] = json.loads(done.stdout)["data"]["result"]["result"]
        return nodes

    def _set_link(self, host: str, state: str) -> None:
        self._ip_link("set", f"to-{list(self.hosts).index(host) + 1}", state)

    def _ip_link(self, *arguments: object) -> None:
        """`ip link` where the bridge stands."""
        assert self._switch is not None
        namespaces.check(["nsenter", "-t", self._switch.pid, "-n", "ip", "link", *arguments])

    def _inside(self, host: str, namespace: str, *argv: object) -> None:
        namespaces.check(["nsenter", "-t", self.hosts[host].pid, namespace, *argv])


_FETCH = f"""
import json, sys, urllib.request as web
url = "http://127.0.0.1:{DASHBOARD_PORT}/api/v0/nodes"
request = web.Request(url, headers=json.loads(sys.argv[1]))
print(web.build_opener(web.ProxyHandler({{}})).open(request, timeout=15).read().decode())
"""
