"""The wheel: everything in it that a node or a user needs, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tsdb import promtool

_CHECKOUT = Path(__file__).parent.parent
_EXAMPLE = "examples/gpu-memory-error"
_MOST_BYTES = 2_000_000  # of the wheel
# Run with the unpacked wheel first on the path: does it find its own files?
_LOOK_AROUND = """
import json, raydiag
from importlib.resources import files
from raydiag import catalog, probes
from raydiag.cluster import bundle
print(json.dumps({
    "file": raydiag.__file__,
    "failures": len(catalog.failures()),
    "words": len(catalog.kernel_table().words),
    "schema": json.loads(files("raydiag").joinpath("schemas/probe.json").read_text())["$id"],
    "entrypoints": [bundle.entrypoint(name) for name in ("probe_job", "node_runner")],
    "command": len(bundle.probe_package(probes.names(), {}).command),
}))
"""


def build(checkout: Path, target: Path) -> Path:
    """The wheel of a checkout, in `target`; skips the test where nothing can be built."""
    # Without hatchling here, build fetches it.
    isolation = ["--no-isolation"] if find_spec("hatchling") else []
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", *isolation, "-o", str(target), "."],
        cwd=checkout,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1790000000"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "No matching distribution found for hatchling" in done.stdout + done.stderr:
        pytest.skip("hatchling is not installed, and no package index can be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(_CHECKOUT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    directory = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory


def files_below(directory: Path) -> set[str]:
    return {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_holds_the_package_and_the_entrypoints(unpacked: Path) -> None:
    entrypoints = {f"entrypoints/{name}" for name in files_below(_CHECKOUT / "entrypoints")}
    inside = files_below(unpacked / "raydiag")
    example = {f"{_EXAMPLE}/{name}" for name in files_below(_CHECKOUT / _EXAMPLE)}
    assert inside == files_below(_CHECKOUT / "raydiag") | entrypoints | example
    for name in (
        "catalog/failures.yaml",
        "catalog/nvidia_codes.yaml",
        "joblog/lines.yaml",
        "triage/tables.yaml",
        "schemas/probe.json",
        "schemas/kmsg.json",
        "entrypoints/node_runner.py",
    ):
        assert name in inside
    metadata = {name.partition("/")[0] for name in files_below(unpacked)} - {"raydiag"}
    assert [name.partition("-")[2].rpartition(".")[2] for name in metadata] == ["dist-info"]


def test_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < _MOST_BYTES


@pytest.mark.slow
def test_wheel_has_a_demo(unpacked: Path, tmp_path: Path) -> None:
    prometheus = promtool.program("prometheus")
    done = subprocess.run(
        [sys.executable, "-m", "raydiag", "demo"],
        env={**os.environ, "PYTHONPATH": str(unpacked), "RAYDIAG_PROMETHEUS": prometheus},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["VERDICT", "gpu-memory-error"])
    assert done.stderr.endswith(f"/raydiag/{_EXAMPLE}\n")


def test_wheel_names_its_command_and_carries_its_licence(unpacked: Path) -> None:
    (info,) = unpacked.glob("*.dist-info")
    assert "raydiag = raydiag.__main__:main" in (info / "entry_points.txt").read_text()
    assert (info / "licenses" / "LICENSE").is_file()
    metadata = (info / "METADATA").read_text()
    assert "\nRequires-Dist: ray[default]" in metadata
    assert "\nProvides-Extra: all\n" in metadata


def test_wheel_finds_its_own_files(unpacked: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOOK_AROUND],
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    seen = json.loads(done.stdout)
    assert seen["file"] == str(unpacked / "raydiag" / "__init__.py")
    assert min(seen["failures"], seen["words"], seen["command"]) > 0
    assert seen["schema"] == "urn:raydiag:schema:probe:1"
    assert seen["entrypoints"] == [
        (_CHECKOUT / "entrypoints" / f"{name}.py").read_text(encoding="utf-8")
        for name in ("probe_job", "node_runner")
    ]


@pytest.mark.cluster
def test_installed_with_what_it_needs(wheel: Path, tmp_path: Path) -> None:
    """Needs a package index and minutes: Ray itself is installed."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    binaries = tmp_path / "venv" / "bin"
    subprocess.run([binaries / "pip", "install", "--quiet", f"{wheel}[all]"], check=True)
    done = subprocess.run(
        [binaries / "raydiag", "probe", "--all-nodes", "--address", "http://127.0.0.1:1"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("raydiag: no Ray dashboard at http://127.0.0.1:1: ")
