"""A real sshd on loopback, with keys of its own and an ssh configuration that knows them.

Nothing of the user's ~/.ssh is read or written: everything goes through the configuration file.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PRIVSEP = Path("/run/sshd")  # where Debian's sshd wants an empty directory


def unavailable() -> str:
    """Why no sshd can run here; empty when it can."""
    for tool, package in (("sshd", "openssh-server"), ("ssh", "openssh-client")):
        if not _find(tool):
            return f"a loopback sshd needs the command {tool} (Debian: {package})"
    if os.geteuid() == 0:
        try:
            _PRIVSEP.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            return f"a loopback sshd needs {_PRIVSEP}: {error.strerror}"
    return ""


def _find(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def write_key(path: Path) -> str:
    """Make a key pair; returns the public half without its comment."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


class LoopbackSshd:
    """Context manager. `config` is for `ssh -F`: it calls the server `head`, `jump`, `localhost`.

    `settings` are lines for sshd_config. `launch` are the words before the command, as to enter a
    simulated host, where the server then listens on `address`.
    """

    def __init__(
        self,
        directory: Path,
        *settings: str,
        launch: Sequence[str] = (),
        address: str = "127.0.0.1",
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        self.directory = directory
        self.config = directory / "ssh_config"
        self.log = directory / "sshd.log"
        self._settings = settings
        self._launch = launch
        self._address = address
        self.port = free_port()

    def __enter__(self) -> LoopbackSshd:
        self.host_key = write_key(self.directory / "host_key")
        (self.directory / "authorized").write_text(write_key(self.directory / "user_key") + "\n")
        (self.directory / "known_hosts").write_text(f"the-server {self.host_key}\n")
        self.write_config()
        server = {
            "Port": self.port,
            "ListenAddress": self._address,
            "HostKey": self.directory / "host_key",
            "AuthorizedKeysFile": self.directory / "authorized",
            "PidFile": "none",
            "UsePAM": "no",
            "StrictModes": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
        }
        lines = [*self._settings, *(f"{name} {value}" for name, value in server.items())]
        (self.directory / "sshd_config").write_text("\n".join(lines) + "\n")
        sshd = [*self._launch, str(_find("sshd")), "-D", "-e", "-f"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*sshd, self.directory / "sshd_config"], stderr=log, stdin=subprocess.DEVNULL
            )
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (*self.sessions(), self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def write_config(self, *lines: str) -> None:
        """The configuration file of the client, with more lines in front, which win."""
        common = {
            "HostName": self._address,
            "HostKeyAlias": "the-server",
            "User": getpass.getuser(),
            "IdentityFile": self.directory / "user_key",
            "IdentityAgent": "none",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.directory / "known_hosts",
            "GlobalKnownHostsFile": "/dev/null",
        }
        hosts = ["Host head jump localhost", f"Port {self.port}"]
        text = [
            *lines,
            *hosts,
            "Host head jump localhost gone",
            *(f"{k} {v}" for k, v in common.items()),
        ]
        self.config.write_text("\n".join(text) + "\n")

    def sessions(self) -> list[int]:
        """Process ids below the server's own, the deepest first."""
        return _descendants(self.process.pid)

    def clients(self, patience_s: float = 3.0) -> list[str]:
        """Command lines of the ssh processes with our configuration that do not end in time."""
        end = time.monotonic() + patience_s
        while (left := self._clients()) and time.monotonic() < end:
            time.sleep(0.02)
        return left

    def _clients(self) -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if words[0].endswith("ssh") and str(self.config) in words:
                    found.append(" ".join(words))
        return found

    def _wait(self) -> None:
        end = time.monotonic() + 10
        while "Server listening" not in (said := self.log.read_text()):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"sshd does not come up: {said}")
            time.sleep(0.02)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [*_descendants(int(child)), int(child)]
    return found
