"""What raydiag has to do with one Ray, each seen to the end."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import schemas
from tools.ray_versions.environment import Broken, Combination, installed
from tools.ray_versions.running_ray import RunningRay, children, without_ray

REPOSITORY = Path(__file__).resolve().parents[2]
CHECKS = ("probe", "diagnose", "agent", "local")
WORKS, NOT_MEANT, NOT_TRIED = "works", "-", "not tried"
_COMMAND_S, _WORDS, _ATTEMPTS = 400.0, 160, 3


@dataclass
class Outcome:
    """What was seen of it: for each check `WORKS`, `NOT_MEANT`, or the reason."""

    combination: Combination
    python: str = ""  # the whole version, "3.12.1"
    checks: dict[str, str] = field(default_factory=dict)
    probe_s: float | None = None  # the whole command

    @property
    def was_tried(self) -> bool:
        """Whether that Ray came up, and was asked for anything."""
        return any(word != NOT_TRIED for word in self.checks.values())

    @property
    def is_well(self) -> bool:
        """Whether all of it works."""
        return all(word in (WORKS, NOT_MEANT) for word in self.checks.values())


class Trial:
    """One combination, tried in the directory `place`, of which nothing stays."""

    def __init__(
        self,
        combination: Combination,
        place: Path,
        say: Callable[[str], None],
        only: Collection[str] = CHECKS,
    ) -> None:
        self._combination, self._place, self._say, self._only = combination, place, say, only
        self.outcome = Outcome(combination, checks=dict.fromkeys(CHECKS, NOT_TRIED))

    def run(self, wheel: Path) -> Outcome:
        """Try everything; what fails is in the outcome. Without a Ray that starts, nothing is."""
        try:
            self._say("installing it")
            self.outcome.python = installed(self._combination, self._place, wheel)
            self._say("starting it")
            with contextlib.ExitStack() as stack:
                self._ask(self._started(stack))
            self._ask_local()
        except Broken as error:
            self._say(str(error))
        finally:
            shutil.rmtree(self._place, ignore_errors=True)
        return self.outcome

    def _started(self, stack: contextlib.ExitStack) -> RunningRay:
        """On a busy machine a Ray may end its own dashboard while it starts: it gets some tries."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return stack.enter_context(RunningRay(self._place))
            except Broken as error:
                if attempt == _ATTEMPTS:
                    raise
                self._say(f"{error}: once more")
        raise AssertionError("unreachable")

    def _ask(self, ray: RunningRay) -> None:
        self._check("probe", lambda: self._probe(ray))
        self._check("diagnose", lambda: _diagnose(ray))
        self._check("agent", lambda: _agent(ray))

    def _ask_local(self) -> None:
        if self._combination.runs_the_command:
            self._check("local", self._local)
        else:
            self.outcome.checks["local"] = NOT_MEANT

    def _check(self, name: str, check: Callable[[], None]) -> None:
        if name not in self._only:
            return
        self._say(name)
        try:
            check()
            self.outcome.checks[name] = WORKS
        except Broken as error:
            self.outcome.checks[name] = str(error)[:_WORDS]
            self._say(f"{name}: {error}")

    def _probe(self, ray: RunningRay) -> None:
        started = time.monotonic()
        code, document = _asked(ray, "probe")
        self.outcome.probe_s = time.monotonic() - started
        _seen_whole(code, document, self._combination)
        _nothing_left(ray)

    def _local(self) -> None:
        """The command on that Python, which starts that Ray by itself."""
        before = children()
        argv = [str(self._place / "bin" / "raydiag"), "probe", "--address", "local"]
        code, document = _document(argv, "probe", without_ray())
        _seen_whole(code, document, self._combination)
        if left := children() - before:
            raise Broken(f"left: {[process.name() for process in left]}")


def _asked(ray: RunningRay, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a command of this checkout, on this Python."""
    argv = [sys.executable, "-m", "raydiag", *words, "--address", ray.url]
    return _document(argv, words[0], {**ray.environment(), "PYTHONPATH": str(REPOSITORY)})


def _document(argv: list[str], name: str, env: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """What it prints fits the schema `name`. Raises Broken without a document."""
    try:
        done = subprocess.run(
            [*argv, "--format", "json"], capture_output=True, text=True,
            timeout=_COMMAND_S, check=False, env=dict(env), cwd="/",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Broken(f"raydiag {name}: no end within {_COMMAND_S:.0f} s") from None
    if not done.stdout:
        raise Broken(f"exit {done.returncode}: {' '.join(done.stderr.split())[-_WORDS:]}")
    document = json.loads(done.stdout)
    schemas.fits(document, name)
    return done.returncode, document


def _seen_whole(code: int, document: Mapping[str, Any], combination: Combination) -> None:
    """The one node answered, it is of that Ray, and every probe did its work."""
    if code not in (0, 1, 3):
        raise Broken(f"exit {code}")
    if document["cluster"]["ray_version"] != combination.ray:
        raise Broken(f"it says Ray {document['cluster']['ray_version']}")
    (node,) = document["nodes"]
    if node["status"] != "ok":
        probes = node["probes"].items()
        words = [f"{name} {probe['status']} {probe['reason']}" for name, probe in probes]
        raise Broken(f"the node is {node['status']}: {'; '.join(words)}")
    roles = {record["role"] for record in node["probes"]["processes"]["records"]}
    if "raylet" not in roles:
        raise Broken(f"it sees no raylet, only {sorted(roles)}")


def _nothing_left(ray: RunningRay) -> None:
    if left := ray.left_over():
        raise Broken(f"left: {left}")


def _diagnose(ray: RunningRay) -> None:
    """The training is found, its steps are read, and its node answers."""
    with ray.training():
        _, document = _asked(ray, "diagnose")
    triage = document["triage"]
    if triage is None:
        raise Broken(f"no log of the job: {document['no_log']}")
    if triage["status"] != "running" or not triage["progress"]["last_step"]:
        raise Broken(f"the job is {triage['status']} at step {triage['progress']['last_step']}")
    if document["coverage"]["nodes"]["answered"] != 1:
        raise Broken("the node did not answer")
    _nothing_left(ray)


def _agent(ray: RunningRay) -> None:
    """It comes up, answers a probe, and goes."""
    code, document = _asked(ray, "agent", "up")
    if code != 0:
        raise Broken(f"agent up: exit {code}")
    try:
        _, document = _asked(ray, "probe")
        if not document["cluster"].get("agent"):
            raise Broken("the probe did not go through it")
    finally:
        _asked(ray, "agent", "down")
    _nothing_left(ray)
