"""What every test may use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socketserver
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.default_signals import deliverable_signals

# How long an example takes tells how busy the machine is, and nothing of the code.
settings.register_profile("raydiag", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("raydiag")

__all__ = ["deliverable_signals"]  # for every test

# Where `make test` puts Debian's prometheus and promtool, when the machine has none.
_PROMETHEUS = Path(__file__).parents[1] / ".cache" / "prometheus" / "usr" / "bin"
if not shutil.which("promtool") and _PROMETHEUS.is_dir():
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), str(_PROMETHEUS)])


_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 0x40000


_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
_CPU_CONTROLLER = Path("/sys/fs/cgroup/cpu")
_CPU_SHARES = "16384"  # sixteen times those of one process


def pytest_configure(config: pytest.Config) -> None:
    """Neither other load nor other tests shall change what a test sees."""
    socketserver.BaseServer.handle_error = _handle_error  # type: ignore[method-assign, assignment]
    if os.geteuid() == 0:
        _take_cpu_group()
        if _WORKER:
            _leave_mount_namespace()


_tell_error = socketserver.BaseServer.handle_error


def _handle_error(server: socketserver.BaseServer, request: Any, client_address: Any) -> None:
    """That a client did not wait for a test's server is not written into another test's output."""
    if not isinstance(sys.exc_info()[1], ConnectionError):
        _tell_error(server, request, client_address)


def _take_cpu_group() -> None:
    """Probes have the least priority there is: other load of the machine would leave them nothing.

    In a CPU cgroup of its own, each xdist worker has its share of the cores, and priorities count
    inside of it. Only where cgroups of version 1 are mounted.
    """
    group = _cpu_group() / f"raydiag-tests{_WORKER}"
    with contextlib.suppress(OSError):
        group.mkdir(exist_ok=True)
        (group / "cpu.shares").write_text(_CPU_SHARES, encoding="ascii")
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


def _cpu_group() -> Path:
    """Of this process."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return _CPU_CONTROLLER / path.lstrip("/")
    return _CPU_CONTROLLER


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last process of a group takes it away, and is back where it came from."""
    group = _cpu_group()
    if os.geteuid() == 0 and group.name == f"raydiag-tests{_WORKER}":
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            group.rmdir()


def _leave_mount_namespace() -> None:
    """Mounts of one xdist worker, files that hang above all, are not seen by the tests of another.

    The calling thread, which runs the tests, leaves the machine's.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the golden files")


@pytest.fixture(autouse=True)
def _nothing_outlasts_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dashboard of a test is soon gone."""
    if "raydiag.cluster.jobs_api" in sys.modules:
        monkeypatch.setattr("raydiag.cluster.jobs_api.do_afterwards", lambda *_: None)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: text is that of golden/<name> beside the test; `--update` writes it."""

    def check(name: str, text: str) -> None:
        path = Path(request.path).parent / "golden" / name
        if request.config.getoption("--update"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
