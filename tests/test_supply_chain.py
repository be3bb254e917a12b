"""What raydiag is made of: few packages, pinned for development; a wheel without chance."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_packaging import build

_CHECKOUT = Path(__file__).parent.parent
_NEEDED = {"ray", "requests", "pyyaml", "psutil", "shtab", "numpy"}
# Module that the package imports -> what brings it.
_BROUGHT_BY = {
    "ray": "ray",
    "prometheus_client": "ray",
    "requests": "requests",
    "urllib3": "requests",
    "yaml": "pyyaml",
    "psutil": "psutil",
    "shtab": "shtab",
    "numpy": "numpy",
    "hyperscan": "hyperscan",
    "zstandard": "zstandard",
    "matplotlib": "matplotlib",
    "apprise": "apprise",
    **dict.fromkeys(("mcp", "mcp_types", "anyio", "starlette", "uvicorn"), "mcp"),
}
# Of the standard library from Python 3.14 on; for the type checker only.
_NOT_COUNTED = {"compression", "typing_extensions"}
_PINNED = re.compile(
    r"^([A-Za-z0-9._-]+)==([^ ;]+)([^\n]*\n(?:    --hash=\S+.*\n?)+)", re.MULTILINE
)


def declared(section: str) -> list[Requirement]:
    """The requirements of a list in pyproject.toml; Python 3.10 has no reader of TOML."""
    text = (_CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(rf"^{section} = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert listed
    lines = re.findall(r"""^  (["'])(.*?)\1,""", listed[1], re.MULTILINE)
    return [Requirement(line) for _, line in lines]


def names(section: str) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in declared(section)}


def imported() -> set[str]:
    """First names of what the package imports, but for ours and the standard library's."""
    found = set()
    for path in (_CHECKOUT / "raydiag").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - _NOT_COUNTED - {"raydiag"}


def test_six_packages_are_needed() -> None:
    assert names("dependencies") == _NEEDED


def test_what_is_imported_is_declared_and_the_reverse() -> None:
    extras = names("fast") | names("report") | names("mcp") | names("notify")
    assert imported() == set(_BROUGHT_BY)
    assert set(_BROUGHT_BY.values()) == _NEEDED | extras


def test_each_dependency_has_its_reason() -> None:
    text = (_CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    needed = text.partition("\ndependencies = [\n")[2].partition("\n]")[0]
    assert all(re.search(r'",\s+# \S', line) for line in needed.splitlines())


def test_every_package_of_development_is_pinned_with_hashes() -> None:
    """`make lock` writes it; the versions are those that pyproject.toml allows."""
    text = (_CHECKOUT / "requirements-dev.txt").read_text(encoding="utf-8")
    rows = _PINNED.findall(text)
    assert len(rows) == len(re.findall(r"^[A-Za-z0-9]", text, re.MULTILINE)) > 100
    pinned: dict[str, list[str]] = {}
    for name, version, _ in rows:
        pinned.setdefault(canonicalize_name(name), []).append(version)
    for section in ("dependencies", "fast", "report", "mcp", "notify", "docs", "dev"):
        for requirement in declared(section):
            if requirement.name == "raydiag":
                continue
            versions = pinned.get(canonicalize_name(requirement.name), [])
            assert versions, f"{requirement}: run `make lock`"
            assert all(map(requirement.specifier.contains, versions)), f"{requirement}: `make lock`"


@pytest.mark.slow
def test_the_wheel_is_the_same_file_wherever_it_is_built(tmp_path: Path) -> None:
    copies: list[Path] = []
    for place in ("a", "b/deeper"):
        checkout = tmp_path / place
        for name in ("raydiag", "entrypoints", "examples/gpu-memory-error"):
            ignored = shutil.ignore_patterns("__pycache__")
            # Times of files are those of the copy.
            shutil.copytree(
                _CHECKOUT / name, checkout / name, copy_function=shutil.copyfile, ignore=ignored
            )
        for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
            shutil.copyfile(_CHECKOUT / name, checkout / name)
        (tmp_path / f"out-{len(copies)}").mkdir()
        copies.append(build(checkout, tmp_path / f"out-{len(copies)}"))
    assert copies[0].name == copies[1].name
    assert copies[0].read_bytes() == copies[1].read_bytes()


def test_templates_and_hooks_are_read_as_what_they_are() -> None:
    for form in sorted((_CHECKOUT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")):
        document = yaml.safe_load(form.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= set(document)
        fields = [field for field in document["body"] if field["type"] != "markdown"]
        assert all(field["attributes"]["label"] and field["id"] for field in fields)
    hooks = yaml.safe_load((_CHECKOUT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    for hook in hooks["repos"][0]["hooks"]:
        program, *words = hook["entry"].split()
        assert program.startswith(".venv/bin/")
        assert all((_CHECKOUT / word).exists() for word in words if word.endswith(".py"))
