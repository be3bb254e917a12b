"""The way in through ssh: a real sshd on loopback, and a dashboard behind it that is none."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from raydiag.cli import main
from raydiag.cluster import address, ssh, ssh_errors
from raydiag.errors import CannotRun, UsageError
from tests import loopback_sshd
from tests.fake_dashboard import END, FakeDashboard, framed, node, packed, start_message
from tests.loopback_sshd import LoopbackSshd

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("RAY_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackSshd]:
    if reason := loopback_sshd.unavailable():
        pytest.skip(reason)
    with LoopbackSshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def sshd(server: LoopbackSshd) -> Iterator[LoopbackSshd]:
    """The server, with a fresh configuration; no test leaves an ssh behind."""
    server.write_config()
    yield server
    assert server.clients() == []


@pytest.fixture
def dashboard() -> Iterator[FakeDashboard]:
    """A cluster of one node, on which all is well."""
    fake = FakeDashboard()
    answer = packed(
        {
            "time": time.time(),
            "cpu_s": 0.1,
            "pid": 4242,
            "sandbox": {},
            "stuck": [],
            "probes": {"versions": {**RESULT}},
        }
    )
    messages = {0: start_message(node(1)), 1: answer, END: {"duration_s": 0.5}}
    fake.status = "SUCCEEDED"
    fake.log = lambda request: "".join(f"{line}\n" for line in framed(request["nonce"], messages))
    yield fake
    fake.close()


RESULT: Mapping[str, Any] = {
    "status": "ok",
    "duration_s": 0.1,
    "reason": "",
    "records": [{"component": "kernel", "version": "5.15.0", "source": "/proc/version"}],
    "unread": [],
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("probe", ...)`: exit code, stdout, stderr."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return invoke


def probing(sshd: LoopbackSshd, *more: str, head: str = "head") -> list[str]:
    options = ["--ssh", head, "--ssh-config", str(sshd.config)]
    return ["probe", "--all-nodes", "--only", "versions", *options, *more]


def refused(run: Run, arguments: Sequence[str], *words: str) -> None:
    """Exit 4 and one line with these words in it."""
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (4, "", 1), err
    assert err.startswith("raydiag: ssh ")
    for word in words:
        assert word in err


class TestWorks:
    @pytest.mark.parametrize("jump", [[], ["-J", "jump"], ["-J", "jump,jump"]])
    def test_report_and_nothing_left(
        self, jump: list[str], run: Run, sshd: LoopbackSshd, dashboard: FakeDashboard
    ) -> None:
        where = ["--address", dashboard.url, "--format", "json", *jump]
        code, out, err = run(*probing(sshd, *where))
        assert (code, err) == (0, "")
        cluster = json.loads(out)["cluster"]
        assert (cluster["address"], cluster["ssh"]) == (dashboard.url, "head")
        assert sshd.clients(0.0) == []  # already gone, not only soon

    def test_before_the_command(
        self, run: Run, sshd: LoopbackSshd, dashboard: FakeDashboard
    ) -> None:
        way = ["--ssh", "head", "-J", "jump", "--ssh-config", str(sshd.config)]
        chosen = ["probe", "--all-nodes", "--only", "versions", "--address", dashboard.url]
        code, out, err = run(*way, *chosen)
        assert (code, err) == (0, "")
        assert "through ssh head" in out

    def test_text_names_the_way(
        self, run: Run, sshd: LoopbackSshd, dashboard: FakeDashboard
    ) -> None:
        _, out, _ = run(*probing(sshd, "--address", dashboard.url))
        assert f"{dashboard.url} through ssh head" in " ".join(out.split())

    def test_token_of_the_user(
        self,
        run: Run,
        sshd: LoopbackSshd,
        dashboard: FakeDashboard,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        dashboard.token = "s3cret"
        code, _, err = run(*probing(sshd, "--address", dashboard.url))
        assert (code, "through ssh head requires a token" in err) == (4, True)
        monkeypatch.setenv("RAY_AUTH_TOKEN", "s3cret")
        assert run(*probing(sshd, "--address", dashboard.url))[0] == 0

    def test_environment_of_this_machine_is_not_asked(
        self,
        run: Run,
        sshd: LoopbackSshd,
        dashboard: FakeDashboard,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://10.1.2.3:8265")
        assert run(*probing(sshd, "--address", dashboard.url))[0] == 0

    def test_a_shared_connection_of_the_user_is_left_alone(
        self, run: Run, sshd: LoopbackSshd, dashboard: FakeDashboard, tmp_path: Path
    ) -> None:
        socket_path = tmp_path / "master"
        sshd.write_config("ControlMaster auto", f"ControlPath {socket_path}", "ControlPersist 60")
        assert run(*probing(sshd, "--address", dashboard.url))[0] == 0
        assert not socket_path.exists()

    def test_lost_race_for_the_port(
        self,
        run: Run,
        sshd: LoopbackSshd,
        dashboard: FakeDashboard,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        ports = [sshd.port, sshd.port, loopback_sshd.free_port()]
        monkeypatch.setattr(ssh, "_free_port", lambda: ports.pop(0))
        assert run(*probing(sshd, "--address", dashboard.url))[0] == 0
        assert ports == []


class TestFails:
    def test_nothing_listens_there(self, run: Run, sshd: LoopbackSshd) -> None:
        port = loopback_sshd.free_port()
        where = ["--address", f"http://localhost:{port}"]
        words = f"ssh head works, but nothing answers at 127.0.0.1:{port} there (connect failed:"
        refused(run, probing(sshd, *where), words, "--address")

    def test_no_ssh_server(self, run: Run, sshd: LoopbackSshd) -> None:
        sshd.write_config("Host head", f"Port {loopback_sshd.free_port()}")
        refused(run, probing(sshd), "Connection refused", "is it the right machine")

    def test_host_key_unknown(self, run: Run, sshd: LoopbackSshd) -> None:
        sshd.write_config("UserKnownHostsFile /dev/null")
        refused(run, probing(sshd), "Host key verification failed", "compare the fingerprint")

    def test_host_key_changed(self, run: Run, sshd: LoopbackSshd, tmp_path: Path) -> None:
        other = loopback_sshd.write_key(tmp_path / "other")
        (tmp_path / "known").write_text(f"the-server {other}\n")
        sshd.write_config(f"UserKnownHostsFile {tmp_path}/known")
        refused(run, probing(sshd), "IDENTIFICATION HAS CHANGED", "somebody intercepts")

    def test_no_login(self, run: Run, sshd: LoopbackSshd, tmp_path: Path) -> None:
        loopback_sshd.write_key(tmp_path / "other")
        sshd.write_config(f"IdentityFile {tmp_path}/other")
        (sshd.directory / "authorized").rename(sshd.directory / "aside")
        try:
            refused(run, probing(sshd), "Permission denied (publickey)", "ssh-add")
        finally:
            (sshd.directory / "aside").rename(sshd.directory / "authorized")

    def test_key_with_a_passphrase_asks_nobody(
        self, run: Run, sshd: LoopbackSshd, tmp_path: Path
    ) -> None:
        key = tmp_path / "locked"
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "words words", "-f", str(key)]
        subprocess.run(make, check=True)
        text = sshd.config.read_text().replace(str(sshd.directory / "user_key"), str(key))
        sshd.config.write_text(text)
        refused(run, probing(sshd), "Permission denied", "ssh-add")

    def test_no_such_name(self, run: Run, sshd: LoopbackSshd) -> None:
        refused(run, probing(sshd, head="no-such-host.invalid"), "no-such-host.invalid", "no such")

    def test_jump_host_gone(self, run: Run, sshd: LoopbackSshd) -> None:
        sshd.write_config("Host gone", f"Port {loopback_sshd.free_port()}")
        refused(run, probing(sshd, "-J", "gone"), "Connection refused", "is it up?")

    def test_jump_host_does_not_reach_the_head(self, run: Run, sshd: LoopbackSshd) -> None:
        sshd.write_config("Host head", f"Port {loopback_sshd.free_port()}")
        refused(run, probing(sshd, "-J", "jump"), "open failed: connect failed: Connection refused")

    def test_key_of_the_jump_host_is_unknown(self, run: Run, sshd: LoopbackSshd) -> None:
        sshd.write_config("Host jump", "UserKnownHostsFile /dev/null", "Host *")
        refused(run, probing(sshd, "-J", "jump"), "Host key verification failed")

    def test_forwarding_is_not_allowed(self, run: Run, sshd: LoopbackSshd, tmp_path: Path) -> None:
        with LoopbackSshd(tmp_path / "strict", "AllowTcpForwarding no") as strict:
            refused(run, probing(strict), "does not allow this user to forward")
            assert strict.clients() == []

    def test_every_port_is_taken(
        self, run: Run, sshd: LoopbackSshd, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ssh, "_free_port", lambda: sshd.port)
        refused(run, probing(sshd), "no free port")

    def test_a_forward_of_the_users_own_is_in_the_way(self, run: Run, sshd: LoopbackSshd) -> None:
        sshd.write_config("Host head", f"LocalForward 127.0.0.1:{sshd.port} localhost:1")
        refused(run, probing(sshd), "a LocalForward of the ssh configuration", "--ssh-config")

    def test_no_ssh_command(
        self, run: Run, sshd: LoopbackSshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        code, _, err = run(*probing(sshd))
        assert (code, "install openssh-client" in err) == (4, True)

    def test_no_configuration_file(self, run: Run, sshd: LoopbackSshd, tmp_path: Path) -> None:
        missing = str(tmp_path / "missing")
        where = ["probe", "--all-nodes", "--ssh", "head", "--ssh-config", missing]
        refused(run, where, "Can't open user config file", "--ssh-config FILE")

    def test_server_that_never_speaks(
        self, run: Run, sshd: LoopbackSshd, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ssh, "_EACH", ssh._EACH | {"ConnectTimeout": "1"})
        with socket.create_server(("127.0.0.1", 0)) as silent:
            sshd.write_config("Host head", f"Port {silent.getsockname()[1]}")
            refused(run, probing(sshd), "timed out")

    @pytest.mark.slow
    def test_connection_breaks_during_the_call(
        self, run: Run, sshd: LoopbackSshd, dashboard: FakeDashboard, tmp_path: Path
    ) -> None:
        with LoopbackSshd(tmp_path / "other") as other:

            def log(request: Mapping[str, Any]) -> str:
                for pid in other.sessions():
                    os.kill(pid, signal.SIGKILL)
                return ""

            dashboard.log = log
            dashboard.status = "RUNNING"
            code, out, err = run(*probing(other, "--address", dashboard.url))
            assert (code, out) == (4, "")
            may_run, lost = err.splitlines()
            assert "may still run, until its own deadline at most" in may_run
            assert "the connection was lost" in lost
            assert other.clients() == []


class TestEnds:
    """However raydiag ends, no ssh outlives it, neither its own nor that to a jump host."""

    @pytest.fixture
    def running(
        self, sshd: LoopbackSshd, dashboard: FakeDashboard
    ) -> Iterator[subprocess.Popen[str]]:
        """raydiag in the middle of a call, two ssh under it."""
        reading = threading.Event()

        def log(request: Mapping[str, Any]) -> str:
            reading.set()
            return ""

        dashboard.log = log
        dashboard.status = "RUNNING"
        arguments = probing(sshd, "-J", "jump", "--address", dashboard.url)
        process = subprocess.Popen(
            [sys.executable, "-m", "raydiag", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert reading.wait(30)
        assert len(sshd.clients(0.0)) == 2
        yield process
        process.kill()
        process.communicate()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted(
        self,
        number: int,
        running: subprocess.Popen[str],
        sshd: LoopbackSshd,
        dashboard: FakeDashboard,
    ) -> None:
        os.killpg(running.pid, number)  # as a terminal does: whoever is in the group gets it
        _, err = running.communicate(timeout=20)
        assert running.returncode == 130
        assert err == "raydiag: interrupted\n"
        assert len(dashboard.stopped) == 1  # through the forward, which has to stand till then
        assert sshd.clients(0.0) == []

    def test_killed(self, running: subprocess.Popen[str], sshd: LoopbackSshd) -> None:
        running.kill()
        running.wait()
        assert sshd.clients() == []

    def test_killed_before_the_forward_stands(self, sshd: LoopbackSshd) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            sshd.write_config("Host jump", f"Port {silent.getsockname()[1]}")
            arguments = [sys.executable, "-m", "raydiag", *probing(sshd, "-J", "jump")]
            process = subprocess.Popen(arguments)
            connection, _ = silent.accept()
            assert len(sshd.clients(0.0)) == 2
            process.kill()
            process.wait()
            assert sshd.clients() == []
            connection.close()

    def test_stubborn_ssh_is_killed(
        self, sshd: LoopbackSshd, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ssh, "_END_PATIENCE_S", 0.2)
        way = ssh.Way.parse("head", None, str(sshd.config))
        with ssh.forward(way, "http://127.0.0.1:1"):
            client = Path("/proc/self/task") / str(os.getpid()) / "children"
            for pid in map(int, client.read_text().split()):
                if b"ssh" in Path(f"/proc/{pid}/comm").read_bytes():
                    os.kill(pid, signal.SIGSTOP)
        assert sshd.clients(0.0) == []


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--ssh", ""], "--ssh: '' is not [USER@]HOST"),
            (["--ssh", "-oProxyCommand=x"], "expected one argument"),
            (["--ssh=-oProxyCommand=x"], "is not [USER@]HOST"),
            (["--ssh", "a b"], "is not [USER@]HOST"),
            (["--ssh", "a;b"], "is not [USER@]HOST"),
            (["--ssh", "a$(b)"], "is not [USER@]HOST"),
            (["--ssh", "-u@a"], "expected one argument"),
            (["--ssh=-u@a"], "is not [USER@]HOST"),
            (["--ssh", "@a"], "is not [USER@]HOST"),
            (["--ssh", "a:0"], "is not [USER@]HOST"),
            (["--ssh", "a:99999"], "is not [USER@]HOST"),
            (["--ssh", "a", "-J", "b,,c"], "-J: '' is not [USER@]HOST"),
            (["--ssh", "a", "-J", ""], "-J: '' is not [USER@]HOST"),
            (["-J", "b"], "give --ssh [USER@]HEAD too"),
            (["--ssh-config", "file"], "give --ssh [USER@]HEAD too"),
            (["--ssh", "a", "--address", "local"], "--address local is this machine"),
            (["--ssh", "a", "--address", "https://b:1"], "--ssh carries http only"),
            (["--ssh", "a", "--address", "ftp://b"], "is not an address"),
        ],
    )
    def test_is_one_line(self, arguments: list[str], words: str, run: Run) -> None:
        code, out, err = run("probe", "--all-nodes", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("head", ["--", "head"]),
            ("me@head:2222", ["-p", "2222", "--", "me@head"]),
            ("ssh://me@head.example.com:22/", ["-p", "22", "--", "me@head.example.com"]),
            ("me@[fe80::1%eth0]:22", ["-p", "22", "--", "me@fe80::1%eth0"]),
            ("corp\\me@corp.example.com@head", ["--", "corp\\me@corp.example.com@head"]),
        ],
    )
    def test_login(self, text: str, words: list[str]) -> None:
        assert ssh.Login.parse(text, "--ssh").words() == words

    @pytest.mark.parametrize(
        ("given", "url"),
        [
            (None, "http://127.0.0.1:8265"),
            ("auto", "http://127.0.0.1:8265"),
            ("http://localhost:9000", "http://127.0.0.1:9000"),
            ("head:9000", "http://127.0.0.1:9000"),
            ("http://10.1.2.3:9000/ray", "http://10.1.2.3:9000/ray"),
            ("http://[fd00::1]:9000", "http://[fd00::1]:9000"),
        ],
    )
    def test_address_is_as_the_head_sees_it(self, given: str | None, url: str) -> None:
        found = address.seen_from("me@head", "head", given)
        assert (found.url, found.login, found.gcs_address) == (url, "me@head", None)

    def test_local_and_ssh_exclude_each_other(self) -> None:
        with pytest.raises(UsageError):
            address.seen_from("head", "head", "local")


def test_options_of_every_ssh_on_the_way() -> None:
    way = ssh.Way.parse("me@head", "one,me@two:2222", "/tmp/100%/config")
    words = way.command(4000, "127.0.0.1:8265")
    outer = dict(word.split("=", 1) for word in words if "=" in word)
    inner = outer["ProxyCommand"]
    for text in (" ".join(words), inner):
        for option in ("BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=10"):
            assert option in text
        assert "StrictHostKeyChecking" not in text
        assert "KnownHosts" not in text
    assert "/tmp/100%%/config" in inner
    # As ssh and then the shell read it: the last hop's own hop is one word of it.
    hop = shlex.split(inner.replace("%%", "%"))
    assert hop[-4:] == ["-p", "2222", "--", "me@two"]
    first = next(word for word in hop if word.startswith("ProxyCommand="))
    assert first.endswith("-W '[%h]:%p' -- one")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "it ended without a message"),
        ("something new\nConnection closed by UNKNOWN port 65535\n", "something new"),
        ("client_loop: x" * 100, "..."),
    ],
)
def test_complaints_that_are_not_known(words: str, told: str) -> None:
    text = ssh_errors.not_opened("head", words)
    assert told in text
    assert "by hand" in text
    assert len(text) < 400


def test_not_ready_in_time(sshd: LoopbackSshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_LOGIN_S", 0.5)
    monkeypatch.setattr(ssh, "_CONNECT_S", 0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sshd.write_config("Host head", f"Port {silent.getsockname()[1]}")
        way = ssh.Way.parse("head", None, str(sshd.config))
        with (
            pytest.raises(CannotRun, match="no forward within"),
            ssh.forward(way, "http://127.0.0.1:1"),
        ):
            pytest.fail("there is no forward")
