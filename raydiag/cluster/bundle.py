"""What travels: the modules that run on the cluster, and the shell lines that start them there."""

import ast
import base64
import functools
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from raydiag.errors import CannotRun

# Ray runs `sh -c <entrypoint>`, and one argument may have 131,072 bytes (MAX_ARG_STRLEN); the rest
# is for what Ray may put around it.
_ENTRYPOINT_LIMIT_BYTES = 126_000
_ROOMY_BYTES = 114_000  # from here on docstrings and comments stay at home: of these modules first
_FIRST_WITHOUT_WORDS = 10
_PACKING_LEVEL = 6  # of memory: smaller blocks, so that code, words and names get each their own

# What a probe needs on the head and on the nodes; whatever these import travels with them.
_PROBING = ["memory_import", "runner", "cluster.coordinator"]

# What a hotfix needs on the head, and what its operations and the look at the driver fault need on
# the nodes.
_HOTFIX_HEAD = ["memory_import", "cluster.hotfix_driver", "cluster.node_actors", "hotfix.head"]
_HOTFIX_NODE = ["memory_import", "hotfix.node"]
_HOTFIX_PROBING = ["memory_import", "runner", "probes.kernel_log", "probes.d_state"]

_IMPORTS = re.compile(r"^\s*from (raydiag[\w.]*) import (\([^)]*\)|[^(\n]*)", re.MULTILINE)

# The driver must run on the Python that has Ray, which need not be the one on PATH. The shell's
# parent is Ray's own job supervisor: take its interpreter, and the place where its ray lies. The
# supervisor's parent is the raylet: it knows its cluster, while RAY_ADDRESS as Ray sets it for jobs
# is the newest cluster found on the machine, which may be another one.
#
# The bundle goes into the environment, where `ps` does not show it; a here-document would be
# written to a file by some shells.
LAST_LINE = "# the end of raydiag's command\n"
_START = files(__package__).joinpath("start_job.sh").read_text("utf-8") + LAST_LINE


def modules(probes: Iterable[str]) -> dict[str, str]:
    """Source of every module that runs on the cluster, by module name."""
    return closure([*_PROBING, *map("probes.{}".format, probes)])


def hotfix_modules() -> dict[str, str]:
    """Source of every module that a hotfix needs on the cluster, by module name."""
    return closure([*_HOTFIX_HEAD, *_HOTFIX_NODE, *_HOTFIX_PROBING])


def closure(names: Iterable[str]) -> dict[str, str]:
    """Source of these modules (without "raydiag.") and of all of ours that they import."""
    sources: dict[str, str] = {}
    waiting = [f"raydiag.{name}" for name in names]
    while waiting:
        full = waiting.pop()
        parent = full.rpartition(".")[0]
        waiting += [parent] if parent and parent not in sources else []
        text = None if full in sources else _source_of(full)
        if text is None:
            continue  # a name inside a module, which travels for its own sake
        sources[full] = text
        for module, names_ in _IMPORTS.findall(text):
            waiting += [module, *(f"{module}.{member}" for member in re.findall(r"\w+", names_))]
    return sources


@functools.cache
def _source_of(full: str) -> str | None:
    """Source of a module or package; None for what is neither."""
    name = "/".join(full.split(".")[1:])
    for path in (f"{name}/__init__.py", f"{name}.py"):
        file = files("raydiag").joinpath(path.lstrip("/"))
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return None


def without_words(text: str) -> str:
    """Python source without its docstrings and whole-line comments, a quarter of what would travel.

    Lines keep their numbers, so that a traceback still points to the source.
    """
    lines, tree = text.split("\n"), ast.parse(text)
    docstrings = {
        id(docstring): docstring for node in ast.walk(tree) if (docstring := _docstring(node))
    }
    inside: set[int] = set()  # numbers of lines that belong to other texts, where a # is no comment
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in docstrings:
            assert node.end_lineno is not None
            inside.update(range(node.lineno + 1, node.end_lineno + 1))
    for node in docstrings.values():
        assert node.end_lineno is not None
        lines[node.lineno - 1] = lines[node.lineno - 1][: node.col_offset] + '""'
        lines[node.lineno : node.end_lineno] = [""] * (node.end_lineno - node.lineno)
    return "\n".join(
        "" if line.lstrip().startswith("#") and number not in inside else line
        for number, line in enumerate(lines, start=1)
    )


def _docstring(node: ast.AST) -> ast.Constant | None:
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value if isinstance(first.value.value, str) else None
    return None


def entrypoint(name: str) -> str:
    """Text of an entrypoint: inside the package when installed, beside it in a checkout."""
    inside = files("raydiag").joinpath(f"entrypoints/{name}.py")
    if inside.is_file():
        return inside.read_text(encoding="utf-8")
    return files("raydiag").joinpath(f"../entrypoints/{name}.py").read_text(encoding="utf-8")


def job_command(probes: Iterable[str], request: Mapping[str, Any]) -> str:
    """The shell command that Ray runs as our job: everything that the cluster needs, in one text.

    Raises CannotRun when it would be too long for a command line.
    """
    hint = "ask for fewer nodes by name, or for --all-nodes"
    return _command("probe_job", modules(probes), request, hint)


def hotfix_command(work: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """The same for a hotfix: `work` is what its head is asked, see `raydiag.hotfix.head`.

    `request`: nonce, select, symbols and options of the probes that look for the driver fault.
    """
    job_request = {
        "nonce": request["nonce"],
        "select": request["select"],
        "entrypoint": entrypoint("hotfix_node"),
        "modules": sorted(closure(_HOTFIX_NODE)),
        "probing": {
            "entrypoint": entrypoint("node_runner"),
            "modules": sorted(closure(_HOTFIX_PROBING)),
            "symbols": request["symbols"],
            "options": request["options"],
        },
        "work": work,
    }
    hint = "deploy fewer files at once, or smaller ones"
    return _command("hotfix_job", hotfix_modules(), job_request, hint)


def _command(
    program: str, sources: Mapping[str, str], request: Mapping[str, Any], hint: str
) -> str:
    largest_first = sorted(sources, key=lambda name: len(sources[name]), reverse=True)
    texts = dict(sources)
    for without in ([], largest_first[:_FIRST_WITHOUT_WORDS], largest_first):
        # Taking the words out of all costs the caller a tenth of a second, so only where it has to.
        texts.update((name, without_words(sources[name])) for name in without)
        command = _packed(program, texts, request)
        if len(command) <= _ROOMY_BYTES:
            break
    if len(command) > _ENTRYPOINT_LIMIT_BYTES:
        raise CannotRun(
            f"the request has {len(command)} bytes, more than the {_ENTRYPOINT_LIMIT_BYTES} "
            f"that a command line takes: {hint}"
        )
    return command


def _packed(program: str, sources: Mapping[str, str], request: Mapping[str, Any]) -> str:
    carried = json.dumps({"modules": sources, "request": request})
    packing = zlib.compressobj(9, memLevel=_PACKING_LEVEL)
    packed = base64.b85encode(packing.compress(carried.encode()) + packing.flush()).decode()
    return start_command(entrypoint(program), packed)


def start_command(program: str, carried: str) -> str:
    """Shell lines that run a Python program on the cluster's Ray, with RAYDIAG_BUNDLE set."""
    assert "'" not in program + carried  # they stand between single quotes
    return _START % (carried, program)
