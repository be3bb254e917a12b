"""`--ssh`: a port of this machine forwarded to the head's dashboard, for one call.

The system's ssh does it, with the user's own configuration, keys, agent and known hosts. Nothing of
its checks is weakened, and it asks nothing: what needs a passphrase or a password needs an agent.

The ssh is a child of ours in a session of its own: Ctrl-C at the terminal reaches only us, who
still need the forward to stop the job. It ends with us in any case, even by SIGKILL, because the
kernel is asked to end it with its parent (and the ssh to a jump host with that ssh).

Source: ssh(1), ssh_config(5), prctl(2) PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import NoReturn, Optional
from urllib.parse import urlsplit

import yaml

from raydiag import environment, parent_death
from raydiag.cluster import ssh_errors
from raydiag.cluster.address import Forward
from raydiag.cluster.interrupts import undisturbed
from raydiag.errors import CannotRun, UsageError

# What ssh, and the programs that its configuration names, are told; RAYDIAG_SSH_ENV has more names.
_VARIABLES = """
TERM SSH_TTY SSH_AUTH_SOCK SSH_AGENT_PID SSH_ASKPASS SSH_ASKPASS_REQUIRE SSH_SK_PROVIDER GPG_TTY
DISPLAY WAYLAND_DISPLAY XAUTHORITY DBUS_SESSION_BUS_ADDRESS KRB5CCNAME KRB5_CONFIG KUBECONFIG
AWS_PROFILE AWS_REGION AWS_DEFAULT_REGION AWS_CONFIG_FILE CLOUDSDK_CONFIG
"""
_MORE = "RAYDIAG_SSH_ENV"
_LOGIN_S = 20.0  # beyond what connecting may take, for each machine on the way
_TRIES = 5  # each with another port
_END_PATIENCE_S = 3.0

_TABLE = resources.files(__package__).joinpath("ssh_options.yaml")
_OPTIONS: Mapping[str, dict[str, str]] = yaml.safe_load(_TABLE.read_text("utf-8"))
_EACH, _OUTER = _OPTIONS["each"], _OPTIONS["outer"]
_CONNECT_S = int(_EACH["ConnectTimeout"])
_READY = _OUTER["LocalCommand"].removeprefix("echo ")

# Nothing that a shell or ssh's own command line could take for something else.
_LOGIN = re.compile(
    r"(?:ssh://)?(?P<user>[\w.+][\w.+@\\-]*@)?"
    r"(?:(?P<host>[\w.][\w.%-]*)|\[(?P<v6>[\da-fA-F:.]+(?:%\w+)?)\])(?::(?P<port>\d{1,5}))?/?"
)


@dataclass(frozen=True)
class Login:
    """A machine to log in to: [USER@]HOST[:PORT] or ssh://[USER@]HOST[:PORT]."""

    destination: str  # [USER@]HOST, as ssh takes it
    port: Optional[int] = None

    @property
    def host(self) -> str:
        """Without the user."""
        return self.destination.rpartition("@")[2]

    @classmethod
    def parse(cls, text: str, option: str) -> Login:
        """Raises UsageError for what is no machine, or would be an option or shell code."""
        match = _LOGIN.fullmatch(text)
        if match is None or int(match["port"] or 1) not in range(1, 1 << 16):
            raise UsageError(f"{option}: {text!r} is not [USER@]HOST or [USER@]HOST:PORT")
        destination = (match["user"] or "") + (match["host"] or match["v6"])
        return cls(destination, int(match["port"]) if match["port"] else None)

    def words(self) -> list[str]:
        """The words of ssh's command line."""
        return [*(["-p", str(self.port)] if self.port else []), "--", self.destination]


@dataclass(frozen=True)
class Way:
    """How to get to the head: through which machines, with which configuration file."""

    head: Login
    jumps: Sequence[Login] = ()
    config: Optional[str] = None  # instead of the user's and the system's

    @classmethod
    def parse(cls, head: str, jump: Optional[str], config: Optional[str]) -> Way:
        """From the texts of --ssh, -J (several with commas) and --ssh-config. Raises UsageError."""
        jumps = [Login.parse(text, "-J") for text in jump.split(",")] if jump is not None else []
        return cls(Login.parse(head, "--ssh"), jumps, config)

    def command(self, port: int, target: str) -> list[str]:
        """The ssh that forwards this machine's loopback `port` to `target` (HOST:PORT)."""
        words = [*self._ssh(_EACH | _OUTER, self.jumps), "-N", "-T"]
        return [*words, "-L", f"127.0.0.1:{port}:{target}", *self.head.words()]

    def _ssh(self, options: dict[str, str], jumps: Sequence[Login]) -> list[str]:
        program = shutil.which("ssh")
        if program is None:
            raise CannotRun("there is no command ssh on this machine: install openssh-client")
        words = [program, *(["-F", self.config] if self.config else [])]
        if jumps:
            options = options | {"ProxyCommand": self._proxy(jumps)}
        for name, value in options.items():
            words += ["-o", f"{name}={value}"]
        return words

    def _proxy(self, jumps: Sequence[Login]) -> str:
        """What ssh's own -J would run, which does not hand our options on to the jump host."""
        words = [*parent_death.ending_with(0, signal.SIGTERM), *self._ssh(_EACH, jumps[:-1])]
        fixed = shlex.join(words).replace("%", "%%")
        return f"{fixed} -W '[%h]:%p' {shlex.join(jumps[-1].words()).replace('%', '%%')}"


@contextlib.contextmanager
def forward(way: Way, url: str) -> Iterator[Forward]:
    """Forward a port of this machine to `url`, as the head sees it, while the block runs.

    Raises CannotRun when there is no way to the head, and when the block raises it because of ssh.
    """
    parts = urlsplit(url)
    with _opened(way, parts.netloc) as ssh:
        try:
            url_here = f"http://127.0.0.1:{ssh.port}{parts.path}"
            yield Forward(url_here, way.head.destination, functools.partial(forward, way))
        except CannotRun:
            trouble = ssh.trouble()
            if trouble:
                raise CannotRun(trouble) from None
            raise


@contextlib.contextmanager
def _opened(way: Way, target: str) -> Iterator[_Ssh]:
    for _ in range(_TRIES - 1):
        ssh = _Ssh(way, target)
        try:
            ssh.wait_until_ready()
        except _ForwardPortTaken:
            ssh.end()
            continue
        except BaseException:
            ssh.end()
            raise
        break
    else:
        raise CannotRun(f"ssh {way.head.destination}: no free port on this machine: try again")
    try:
        yield ssh
    finally:
        ssh.end()


def _environment() -> dict[str, str]:
    more = os.environ.get(_MORE, "").replace(",", " ")
    return environment.named([*_VARIABLES.split(), *more.split()])


class _ForwardPortTaken(CannotRun):
    """Somebody bound our port between our choice and ssh's use of it."""


class _Ssh:
    """One ssh, our own child, from its start until it is certainly over."""

    def __init__(self, way: Way, target: str) -> None:
        self._way = way
        self._target = target
        self.port = _free_port()
        # A file, because ssh would stand still before a pipe that nobody reads.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        ending_with_us = parent_death.ending_with(os.getpid(), signal.SIGTERM)
        self._process = subprocess.Popen(
            [*ending_with_us, *way.command(self.port, target)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._said,
            # ssh gives its commands to this shell, and ours are quoted for it.
            env={**_environment(), "SHELL": "/bin/sh"},
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        """Until the forward stands. Raises CannotRun."""
        machines = 1 + len(self._way.jumps)
        limit = time.monotonic() + machines * (_CONNECT_S + _LOGIN_S)
        stdout = self._process.stdout
        assert stdout is not None
        output = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while _READY.encode() not in output:
                if not selector.select(max(0.0, limit - time.monotonic())):
                    raise CannotRun(
                        f"ssh {self._way.head.destination}: no forward within "
                        f"{machines * (_CONNECT_S + _LOGIN_S):.0f} s: does the same by hand work?"
                    )
                chunk = os.read(stdout.fileno(), 4096)
                output += chunk
                if not chunk:
                    self._failed()

    def _failed(self) -> NoReturn:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_PATIENCE_S)  # then it has said all
        words = self._words()
        if f"[127.0.0.1]:{self.port}: Address already in use" in words:
            raise _ForwardPortTaken(words)
        raise CannotRun(ssh_errors.not_opened(self._way.head.destination, words))

    def trouble(self) -> str:
        """Why what went through the forward failed; empty when that was not ssh's doing."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        ended = self._process.poll() is not None
        return ssh_errors.broken(self._way.head.destination, self._target, self._words(), ended)

    def _words(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    def end(self) -> None:
        """Leave nothing running, whatever happens meanwhile."""
        with undisturbed():
            for number in (signal.SIGTERM, signal.SIGKILL):
                if self._process.poll() is not None:
                    break
                # With the ssh to a jump host. The group is ours as long as its leader is not
                # waited for, so the number cannot have become another's.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_PATIENCE_S)
            self._wait_for_group()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._said.close()

    def _wait_for_group(self) -> None:
        """Until the ssh to a jump host is gone too: it was told to end, and so it does."""
        limit = time.monotonic() + _END_PATIENCE_S
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < limit:
                os.killpg(self._process.pid, 0)  # no signal: is anybody left?
                time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
