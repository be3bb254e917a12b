"""Who is the exporter, who is not, and that no one else is ever ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from raydiag.hotfix import discovery, process, watchdog_log
from raydiag.hotfix.messages import NodeRequest, ProcessInfo
from raydiag.hotfix.process import Aim, Doubt
from tests.hotfix.training_tree import start_ticks
from tests.hotfix.watchdog import ShellNode, free_port, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ShellNode]:
    with ShellNode(tmp_path) as one:
        yield one
        assert one.trouble() == []


def asked(node: ShellNode, **fields: object) -> NodeRequest:
    return NodeRequest(port=node.port, metrics_file=str(node.metrics_file), **fields)  # type: ignore[arg-type]


def identity(pid: int) -> ProcessInfo:
    seen = process.see(pid)
    return ProcessInfo(pid, seen.start_ticks, process.arguments(seen), "exporter")


def aim(node: ShellNode, pid: int, root: str = "") -> Aim:
    return Aim(identity(pid), str(node.metrics_file), node.port, root)


@contextmanager
def running(argv: Sequence[str], ready: Path, **options: object) -> Iterator[int]:
    """A process in a session of its own, once it has made the file `ready`; all of it ends."""
    one = subprocess.Popen(argv, start_new_session=True, **options)  # type: ignore[call-overload]
    try:
        wait_until(ready.exists, str(ready))
        yield one.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait(10)


def script(directory: Path, text: str) -> Path:
    path = directory / "elsewhere" / "metrics_exporter.sh"
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/bash\n" + textwrap.dedent(text))
    path.chmod(0o755)
    return path


# ---- who is who


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("bash", "/a/utils/metrics_exporter.sh", "--port", "9400"), True),
        (("/usr/bin/bash", "metrics_exporter.sh"), True),
        (("bash", "/a/utils/metrics_exporter.sh.old"), False),
        (("bash", "-c", "/a/utils/metrics_exporter.sh"), False),
        (("bash", "/a/_train_with_ray.sh", "/a/utils/metrics_exporter.sh"), False),
        (("python3", "/a/utils/metrics_exporter.sh"), False),
        (("vi", "metrics_exporter.sh"), False),
        (("bash",), False),
        ((), False),
    ],
)
def test_the_exporter_by_its_first_two_arguments(argv: tuple[str, ...], expected: bool) -> None:
    assert process.is_exporter(argv) is expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("python3", "-c", "code", "/tmp/f.prom", "9400"), True),
        (("python3", "-c", "code", "/tmp/f.prom", "9401"), False),
        (("python3", "-c", "code", "/tmp/other.prom", "9400"), False),
        (("python3", "-u", "train.py", "/tmp/f.prom", "9400"), False),
        (("python3", "-c", "code", "--x", "/tmp/f.prom", "9400"), False),
        (("bash", "-c", "code", "/tmp/f.prom", "9400"), False),
    ],
)
def test_its_server_by_all_of_them(argv: tuple[str, ...], expected: bool) -> None:
    assert process.is_server(argv, "/tmp/f.prom", 9400) is expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python3 -m raydiag exporter run --supervise", True),
        ("/v/bin/python3.11 -B /v/bin/raydiag exporter run", True),
        ("python3 -m raydiag exporter once", False),
        ("python3 -m raydiag diagnose exporter run", False),
        ("python3 train.py raydiag exporter run", False),
        ("bash -m raydiag exporter run", False),
        ("python3", False),
    ],
)
def test_our_own_exporter(words: str, expected: bool) -> None:
    assert process.is_own_exporter(tuple(words.split())) is expected


def test_the_exporter_its_server_and_its_watchdog_are_told_apart(node: ShellNode) -> None:
    found = discovery.find(asked(node))
    assert found.doubts == ()
    assert found.exporter is not None
    assert found.server is not None
    assert process.see(found.server.pid).parent == found.exporter.pid
    watchdog = process.see(found.exporter.pid).parent
    assert process.arguments(process.see(watchdog)) == process.arguments(process.see(node.pid))
    assert found.directory == str(node.utils)
    assert found.orphans == ()
    assert found.watchdog is not None
    assert (found.watchdog.log, found.watchdog.left) == (str(node.log), 50)


def test_an_exporter_that_the_kernel_named_after_its_script_is_found(tmp_path: Path) -> None:
    port, ready, page = free_port(), tmp_path / "ready", tmp_path / "page"
    page.touch()
    server = f"{sys.executable} -c 'import time; time.sleep(600)' {page} {port}"
    path = script(tmp_path, f"{server} & touch {ready}; while :; do sleep 600; done\n")
    with running([str(path), "--port", str(port)], ready) as pid:
        assert process.see(pid).name == "metrics_exporte"
        request = NodeRequest(port=port, metrics_file=str(page))
        wait_until(lambda: discovery.look(request).server, "the server")
        found = discovery.look(request)
        assert found.exporter is not None
        assert (found.exporter.pid, found.exporter.argv[0]) == (pid, "/bin/bash")
        Aim(identity(pid), str(page), port).close()


def test_an_exporter_of_another_port_is_another_one(node: ShellNode) -> None:
    request = NodeRequest(port=free_port(), metrics_file=str(node.metrics_file))
    assert discovery.find(request).exporter is None


def test_a_python_that_calls_itself_the_exporter_is_none(node: ShellNode, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    path = script(tmp_path, f"import time; open({str(ready)!r}, 'w').close(); time.sleep(600)")
    argv = ["bash", str(path), "--port", str(node.port)]
    with running(argv, ready, executable=sys.executable) as pid:
        assert process.is_exporter(identity(pid).argv)
        found = discovery.find(asked(node))
        assert found.exporter is not None
        assert found.exporter.pid != pid
        with pytest.raises(Doubt, match="runs python"):
            aim(node, pid)


# ---- doubts


def test_nobody_else_of_the_node_can_be_aimed_at(node: ShellNode) -> None:
    found = discovery.find(asked(node))
    assert found.exporter is not None
    watchdog = process.see(found.exporter.pid).parent
    trainers = [int(path.name) for path in (node.tree / "signals").iterdir()]
    for pid in [*trainers, watchdog, node.pid, os.getpid(), os.getppid(), 1]:
        with pytest.raises(Doubt):
            aim(node, pid)


def test_an_identity_that_is_off_by_anything_is_refused(node: ShellNode) -> None:
    found = discovery.find(asked(node))
    assert found.exporter is not None
    pid, ticks, argv = found.exporter.pid, found.exporter.start_ticks, found.exporter.argv
    for wrong, words in [
        (ProcessInfo(pid, ticks + 1, argv, "exporter"), "another process"),
        (ProcessInfo(pid, ticks, (*argv, "x"), "exporter"), "other arguments"),
        (ProcessInfo(pid, ticks, (), "exporter"), "other arguments"),
        (ProcessInfo(2**22 + 1, ticks, argv, "exporter"), "ended"),
    ]:
        with pytest.raises(Doubt, match=words):
            Aim(wrong, str(node.metrics_file), node.port)


def test_what_has_the_gpus_open_or_stands_above_it_is_left(node: ShellNode, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    ready = tmp_path / "ready"
    for text in (
        f"exec 9<{tmp_path}/dev/kfd; touch {ready}; while :; do read -t 60 <> <(:); done",
        f"(exec 9<{tmp_path}/dev/kfd; touch {ready}; exec sleep 600) & wait",
    ):
        with running(["bash", str(script(tmp_path, text))], ready) as pid:
            with pytest.raises(Doubt, match="kfd open"):
                aim(node, pid)
            assert start_ticks(pid) is not None
        ready.unlink()


def test_what_the_driver_lists_is_left(node: ShellNode, tmp_path: Path) -> None:
    found = discovery.find(asked(node))
    assert found.exporter is not None
    listed = tmp_path / "root" / "sys" / "class" / "kfd" / "kfd" / "proc"
    (listed / str(found.exporter.pid)).mkdir(parents=True)
    with pytest.raises(Doubt, match="kfd/proc"):
        aim(node, found.exporter.pid, str(tmp_path / "root"))
    (listed / str(found.exporter.pid)).rmdir()
    aim(node, found.exporter.pid, str(tmp_path / "root")).close()


def test_what_stands_above_us_is_left(tmp_path: Path) -> None:
    said = tmp_path / "said"
    program = f"""
        import os
        from raydiag.hotfix import process
        seen = process.see(os.getppid())
        one = process.ProcessInfo(seen.pid, seen.start_ticks, process.arguments(seen), "exporter")
        try:
            process.Aim(one, "f", 1)
        except process.Doubt as doubt:
            open({str(said)!r}, "w").write(str(doubt))
    """
    (tmp_path / "above.py").write_text(textwrap.dedent(program))
    path = script(tmp_path, f"{sys.executable} {tmp_path}/above.py\nexit 0\n")
    package = Path(process.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    subprocess.run(["bash", str(path)], env=environment, check=True, timeout=60)
    assert "stands above us" in said.read_text()


def test_a_watchdog_with_the_arguments_of_its_exporter_is_left(tmp_path: Path) -> None:
    """A script that supervises itself: its subshell is the exporter, and it is not."""
    port, ready, page = free_port(), tmp_path / "ready", tmp_path / "page"
    page.touch()
    server = f"{sys.executable} -c 'import time; time.sleep(600)' {page} {port}"
    path = script(tmp_path, f"( {server} & touch {ready}; while :; do sleep 600; done ) & wait\n")
    with running(["bash", str(path), "--port", str(port)], ready) as pid:
        request = NodeRequest(port=port, metrics_file=str(page))
        wait_until(lambda: discovery.find(request).server, "the server")
        found = discovery.find(request)
        assert found.exporter is not None
        assert found.exporter.argv == process.arguments(process.see(pid))
        assert process.see(found.exporter.pid).parent == pid
        with pytest.raises(Doubt, match="is the watchdog of"):
            Aim(identity(pid), str(page), port)
        Aim(identity(found.exporter.pid), str(page), port).close()


def test_two_that_could_be_it_are_both_left(tmp_path: Path) -> None:
    port, ready = free_port(), tmp_path / "ready"
    path = script(tmp_path, f"( touch {ready}; while :; do sleep 600; done ) & wait\n")
    with running(["bash", str(path), "--port", str(port)], ready) as pid:
        request = NodeRequest(port=port, metrics_file=str(tmp_path / "page"))
        found = discovery.find(request)
        assert found.exporter is None
        assert "several processes" in found.doubts[0]
        with pytest.raises(Doubt, match="cannot be told from its watchdog"):
            Aim(identity(pid), str(tmp_path / "page"), port)


def test_an_exporter_that_nobody_would_start_again_is_said(tmp_path: Path) -> None:
    ready, port = tmp_path / "ready", free_port()
    path = script(tmp_path, f"touch {ready}; while :; do sleep 600; done\n")
    argv = ["bash", str(path), "--port", str(port)]
    with (tmp_path / "log").open("w") as log, running(argv, ready, stdout=log):
        doubts = discovery.find(NodeRequest(port=port)).doubts
        assert doubts == ("no watchdog stands above the exporter: nothing would start it again",)
    ready.unlink()
    with running(argv, ready):
        doubts = discovery.find(NodeRequest(port=port)).doubts
        assert "restarts cannot be counted" in doubts[0]


# ---- the end


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_it_ends_exactly_this_process(
    node: ShellNode, has_pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    found = discovery.find(asked(node))
    assert found.exporter is not None
    assert found.server is not None
    one = aim(node, found.exporter.pid)
    assert (one.fd is not None) is (has_pidfd and hasattr(os, "pidfd_open"))
    process.end(one)
    wait_until(lambda: start_ticks(one.identity.pid) is None, "its end")
    assert start_ticks(found.server.pid) == found.server.start_ticks
    with pytest.raises(Doubt, match="has ended"):
        process.end(one)
    one.close()


def test_one_that_became_another_program_is_left(node: ShellNode, tmp_path: Path) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    path = script(
        tmp_path, f"touch {ready}; until [ -e {go} ]; do :; done; exec -a train sleep 600"
    )
    with running(["bash", str(path)], ready) as pid:
        one = aim(node, pid)
        go.touch()
        wait_until(lambda: process.program(pid) == "sleep", "the other program")
        with pytest.raises(Doubt, match="other arguments"):
            process.end(one)
        one.close()
        assert start_ticks(pid) is not None


# ---- the watchdog's log


def test_its_lines_are_read_as_they_are_written() -> None:
    text = (
        "[metrics_exporter] Starting on port 9400 (poll every 10s) on node001\n"
        "[2026-02-12T19:58:10Z] [Prometheus] Watchdog: exited with code 2, restart #9\n"
        "[2026-02-12T19:58:10Z] [Metrics Exporter] Watchdog: exited with code 137, restart #3\n"
        "[2026-02-31T19:58:10Z] [Metrics Exporter] Watchdog: exited with code 137, restart #4\n"
        "x [2026-02-12T19:58:10Z] [Metrics Exporter] Watchdog: exited with code 1, restart #5\n"
        "[2026-02-12T19:58:11Z] [Metrics Exporter] Watchdog: exited with code 137, rest"
    )
    assert list(watchdog_log.restarts_in(text)) == [watchdog_log.RestartLine(1770926290.0, 137, 3)]


def test_a_watchdog_that_gave_up_is_said(tmp_path: Path) -> None:
    with ShellNode(tmp_path, restarts=50) as node:
        found = discovery.find(asked(node))
        assert found.watchdog is not None
        assert (found.watchdog.restarts, found.watchdog.left) == (50, 0)
        line = (
            "[2026-02-12T19:58:10Z] [Metrics Exporter] Watchdog: too many restarts (50), giving up"
        )
        with node.log.open("a") as log:
            log.write(f"{line}\n")
        found = discovery.find(asked(node))
        assert found.watchdog is not None
        assert found.watchdog.gave_up
        assert node.trouble() == []
