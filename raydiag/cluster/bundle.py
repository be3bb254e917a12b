"""What travels: the modules that run on the cluster, and the shell lines that start them there.

Ray lists the command of a job, so it is short: what it runs goes ahead of it, as a package, into
the control store, which is in the head's memory. The job takes it out again.
"""

import functools
import hashlib
import json
import re
import secrets
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from raydiag.memory_import import PACKAGE_PREFIX, STORE


@dataclass(frozen=True)
class Package:
    """A job of ours on its way to the cluster."""

    command: str  # what Ray runs, and shows in its list of jobs: short
    name: str  # in Ray's control store, where the command finds the rest
    content: bytes


# What a probe needs on the head and on the nodes; whatever these import travels with them.
_PROBING = ["memory_import", "runner", "cluster.coordinator"]

_RESIDENT = [*_PROBING, "cluster.resident.driver"]

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
LAST_LINE = "# the end of raydiag's command\n"
_START = files(__package__).joinpath("start_job.sh").read_text("utf-8") + LAST_LINE
_ARRIVAL = files(__package__).joinpath("arrival.py").read_text("utf-8")

# What an entrypoint starts. It stands in the command, where `ps` shows it, and by which the probes
# know raydiag's own job.
_DRIVERS = {
    "probe_job": "raydiag.cluster.coordinator",
    "hotfix_job": "raydiag.cluster.hotfix_driver",
    "agent_job": "raydiag.cluster.coordinator, the resident agent",
}


def modules(probes: Iterable[str]) -> dict[str, str]:
    """Source of every module that runs on the cluster, by module name."""
    return closure([*_PROBING, *map("probes.{}".format, probes)])


def hotfix_modules() -> dict[str, str]:
    """Source of every module that a hotfix needs on the cluster, by module name."""
    return closure([*_HOTFIX_HEAD, *_HOTFIX_NODE, *_HOTFIX_PROBING])


def agent_modules(probes: Iterable[str]) -> dict[str, str]:
    """Source of every module that the resident agent needs on the cluster, by module name."""
    return closure([*_RESIDENT, *map("probes.{}".format, probes)])


def digest(sources: Mapping[str, str]) -> str:
    """Of modules that travel: what is equal there answers alike."""
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:16]


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


def entrypoint(name: str) -> str:
    """Text of an entrypoint: inside the package when installed, beside it in a checkout."""
    inside = files("raydiag").joinpath(f"entrypoints/{name}.py")
    if inside.is_file():
        return inside.read_text(encoding="utf-8")
    return files("raydiag").joinpath(f"../entrypoints/{name}.py").read_text(encoding="utf-8")


def probe_package(probes: Iterable[str], request: Mapping[str, Any]) -> Package:
    """The job that probes: everything that the cluster needs for it."""
    return _packed("probe_job", modules(probes), request)


def agent_package(sources: Mapping[str, str], request: Mapping[str, Any]) -> Package:
    """The resident agent; `request`: see `raydiag.cluster.resident.driver`."""
    node = {"entrypoint": entrypoint("node_runner")}
    return _packed("agent_job", sources, {**request, **node})


def hotfix_package(work: Mapping[str, Any], request: Mapping[str, Any]) -> Package:
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
    return _packed("hotfix_job", hotfix_modules(), job_request)


def _packed(program: str, sources: Mapping[str, str], request: Mapping[str, Any]) -> Package:
    carried = {"program": entrypoint(program), "modules": sources, "request": request}
    name = f"{PACKAGE_PREFIX}{time.time():.0f}-{secrets.token_hex(8)}.zip"
    content = zlib.compress(json.dumps(carried).encode())
    return Package(start_command(_ARRIVAL, f"{STORE}{name}", _DRIVERS[program]), name, content)


def start_command(program: str, argument: str, driver: str) -> str:
    """Shell lines that run a Python program on the cluster's Ray; `driver` is for who lists it."""
    assert "'" not in program + argument + driver  # they stand between single quotes
    return _START % (program, argument, driver)
