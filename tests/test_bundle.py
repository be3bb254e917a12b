"""What travels to the cluster, and the shell lines that start it there."""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raydiag import catalog, probes
from raydiag.cli import cluster_options
from raydiag.cluster import bundle
from raydiag.errors import CannotRun
from tests.fake_dashboard import carried

SHELLS = [shell for shell in ("sh", "dash", "bash") if shutil.which(shell)]
_CHECKOUT = Path(__file__).parent.parent

# Stands in for the coordinator: prints what the shell lines gave it.
_REPORT = """\
import json, os, sys
print(json.dumps({
    "bundle": os.environ["RAYDIAG_BUNDLE"],
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
    monkeypatch.setattr(bundle, "entrypoint", lambda name: _REPORT)


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


def request_of_everything() -> dict[str, Any]:
    """The largest request that --all-nodes makes."""
    return {
        "nonce": "0123456789abcdef",
        "deadline_s": 600.0,
        "select": None,
        "entrypoint": bundle.entrypoint("node_runner"),
        "node": {
            "probes": probes.names(),
            "options": cluster_options.probe_options(),
            "driver_fault_symbols": list(catalog.kernel_table().driver_fault_symbols),
            "force_ras": True,
        },
    }


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
    assert carried(bundle.job_command(["memory"], request)) == {
        "modules": bundle.modules(["memory"]),
        "request": request,
    }


def test_head_room_below_the_limit_of_a_command_line() -> None:
    everything = request_of_everything()
    command = bundle.job_command(probes.names(), everything)
    assert command.isascii()  # so that its length is its size
    assert len(command) < 0.97 * bundle._ENTRYPOINT_LIMIT_BYTES
    names = random.Random(1)
    # Without the words in the sources there is room for many names.
    many = {**everything, "select": [names.randbytes(16).hex() for _ in range(1000)]}
    command = bundle.job_command(probes.names(), many)
    assert '"""' not in carried(command)["modules"]["raydiag.runner"]
    assert len(command) <= bundle._ENTRYPOINT_LIMIT_BYTES


@pytest.mark.parametrize("name", sorted(bundle.modules(probes.names())))
def test_a_module_without_its_words_is_the_same_code(name: str) -> None:
    source = bundle.modules(probes.names())[name]
    bare = bundle.without_words(source)
    assert len(bare.split("\n")) == len(source.split("\n"))
    assert ast.dump(_undocumented(ast.parse(bare))) == ast.dump(_undocumented(ast.parse(source)))


def _undocumented(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if (docstring := bundle._docstring(node)) is not None:
            docstring.value = ""
    return tree


def test_too_long_a_request_says_what_to_do() -> None:
    names = [os.urandom(32).hex() for _ in range(5000)]
    with pytest.raises(CannotRun, match="ask for fewer nodes by name, or for --all-nodes"):
        bundle.job_command(["memory"], {"select": names})


def test_limit_is_one_that_the_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "entrypoint", lambda name: "print(7)\n")
    command = bundle.job_command([], {})
    command += "#" * (bundle._ENTRYPOINT_LIMIT_BYTES - len(command))
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
    assert done.stdout == b"7\n"


@pytest.mark.usefixtures("reporting")
@pytest.mark.parametrize("shell", SHELLS)
def test_shell_lines_below_ray(shell: str, tmp_path: Path) -> None:
    library = tmp_path / "two words" / "ray" / "_raylet.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"x" * 4096)
    command = bundle.job_command(["memory"], {"text": "it's $HOME `id`"})
    report = run_as_job(
        command,
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
    assert carried(command) == carried(f"RAYDIAG_BUNDLE='{report['bundle']}'")


@pytest.mark.usefixtures("reporting")
@pytest.mark.parametrize("shell", SHELLS)
def test_shell_lines_where_nothing_is_known(shell: str) -> None:
    command = bundle.job_command([], {})
    report = run_as_job(command, shell, RAY_ADDRESS="10.0.0.1:6379")
    assert report["PYTHONPATH"] is None
    assert report["RAY_ADDRESS"] == "10.0.0.1:6379"


def test_shell_makes_way_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that Ray's stop signal and its exit status are the coordinator's."""
    text = "import os\nprint(os.getpid(), flush=True)\nos._exit(7)\n"
    monkeypatch.setattr(bundle, "entrypoint", lambda name: text)
    process = subprocess.Popen(bundle.job_command([], {}), shell=True, stdout=subprocess.PIPE)
    printed, _ = process.communicate()
    assert (int(printed), process.returncode) == (process.pid, 7)
