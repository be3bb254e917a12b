"""What travels to the cluster, and the shell lines that start it there."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raydiag import probes
from raydiag.cluster import bundle
from raydiag.memory_import import PACKAGE_PREFIX, STORE
from tests.fake_dashboard import carried

SHELLS = [shell for shell in ("sh", "dash", "bash") if shutil.which(shell)]
_CHECKOUT = Path(__file__).parent.parent

# Stands in for the coordinator: prints what the shell lines gave it.
_REPORT = """\
import json, os, sys
print(json.dumps({
    "argument": sys.argv[1],
    "python": os.path.realpath(sys.executable),
    "no bytecode": sys.dont_write_bytecode,
    "RAY_ADDRESS": os.environ.get("RAY_ADDRESS"),
    "PYTHONPATH": os.environ.get("PYTHONPATH"),
    "dollar": "$HOME `id` \\\\",
}))
"""
# Stand in for the raylet, which has --gcs-address in its command line, and for Ray's job
# supervisor, which has ray's library mapped.
_RAYLET = """\
import subprocess, sys
supervisor, shell, library = sys.argv[1:4]
command = sys.stdin.read()
subprocess.run([sys.executable, "-c", supervisor, shell, library], input=command, text=True)
"""
_SUPERVISOR = """\
import mmap, subprocess, sys
shell, library = sys.argv[1:3]
command = sys.stdin.read()
if library:
    with open(library, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
subprocess.run([shell, "-c", command], check=True)
"""


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_ARRIVAL", _REPORT)


def run_as_job(
    command: str, shell: str, library: str = "", arguments: tuple[str, ...] = (), **env: str
) -> dict[str, Any]:
    """Run the command as Ray would, below a supervisor below a raylet; what `_REPORT` printed."""
    done = subprocess.run(
        [sys.executable, "-c", _RAYLET, _SUPERVISOR, shell, library, *arguments],
        input=command,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], **env},
    )
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", ["probe_job", "node_runner"])
def test_entrypoints_of_the_checkout(name: str) -> None:
    path = _CHECKOUT / "entrypoints" / f"{name}.py"
    assert bundle.entrypoint(name) == path.read_text(encoding="utf-8")


def test_every_module_that_a_carried_one_imports_travels_too() -> None:
    modules = bundle.modules(probes.names())
    for name, source in modules.items():
        # The cluster's Python may be as old as 3.9.
        tree = ast.parse(source, name, feature_version=(3, 9))
        for statement in ast.walk(tree):
            if isinstance(statement, ast.ImportFrom) and statement.module:
                wanted = [statement.module] + [
                    f"{statement.module}.{alias.name}"
                    for alias in statement.names
                    if statement.module in ("raydiag", "raydiag.cluster", "raydiag.probes")
                ]
            elif isinstance(statement, ast.Import):
                wanted = [alias.name for alias in statement.names]
            else:
                continue
            ours = {module for module in wanted if module.split(".")[0] == "raydiag"}
            known = {*modules, *(f"raydiag.probes.{value}" for value in vars(probes))}
            assert ours <= known, f"{name}: {sorted(ours - known)}"


def test_only_the_probes_asked_for_travel() -> None:
    modules = bundle.modules(["memory"])
    assert "raydiag.probes.memory" in modules
    assert "raydiag.probes.storage" not in modules


def test_what_goes_in_comes_out() -> None:
    request = {"words": ["it's", 'a "b"', "$HOME", "`id`", "\\n", "RAYDIAG\n", "\u2603"]}
    package = bundle.probe_package(["memory"], request)
    assert carried(package.content) == {
        "program": bundle.entrypoint("probe_job"),
        "modules": bundle.modules(["memory"]),
        "request": request,
    }


def test_the_command_in_rays_list_is_short() -> None:
    everything = {"select": [os.urandom(16).hex() for _ in range(5000)]}
    package = bundle.probe_package(probes.names(), everything)
    assert len(package.command) < 2500
    assert f"{STORE}{package.name}" in package.command
    assert package.name.startswith(PACKAGE_PREFIX)


def test_no_two_packages_have_one_name() -> None:
    assert len({bundle.probe_package([], {}).name for _ in range(3)}) == 3


@pytest.mark.usefixtures("reporting")
@pytest.mark.parametrize("shell", SHELLS)
def test_shell_lines_below_ray(shell: str, tmp_path: Path) -> None:
    library = tmp_path / "two words" / "ray" / "_raylet.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"x" * 4096)
    package = bundle.probe_package(["memory"], {"text": "it's $HOME `id`"})
    report = run_as_job(
        package.command,
        shell,
        str(library),
        ("--gcs-address=10.9.8.7:6379", "--other=1"),
        RAY_ADDRESS="10.0.0.1:1",
        PYTHONPATH="/already/there",
    )
    # The supervisor's Python, where its ray lies, and the cluster that its raylet belongs to.
    assert report["python"] == os.path.realpath(sys.executable)
    assert report["PYTHONPATH"] == f"{tmp_path}/two words:/already/there"
    assert report["RAY_ADDRESS"] == "10.9.8.7:6379"
    assert report["no bytecode"] is True
    assert report["dollar"] == "$HOME `id` \\"
    assert report["argument"] == f"{STORE}{package.name}"


@pytest.mark.usefixtures("reporting")
@pytest.mark.parametrize("shell", SHELLS)
def test_shell_lines_where_nothing_is_known(shell: str) -> None:
    report = run_as_job(bundle.probe_package([], {}).command, shell, RAY_ADDRESS="10.0.0.1:6379")
    assert report["PYTHONPATH"] is None
    assert report["RAY_ADDRESS"] == "10.0.0.1:6379"


def test_shell_makes_way_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that Ray's stop signal and its exit status are the coordinator's."""
    text = "import os\nprint(os.getpid(), flush=True)\nos._exit(7)\n"
    monkeypatch.setattr(bundle, "_ARRIVAL", text)
    command = bundle.probe_package([], {}).command
    process = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE)
    printed, _ = process.communicate()
    assert (int(printed), process.returncode) == (process.pid, 7)
