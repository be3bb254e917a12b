"""Does a plugin file pass, before it is rolled out: what the exporter would do with it, once.

The same reader, the same limits, the same parser as in the exporter; a plugin that prints a state
is run a second time with it, since that is the run that all later ones are like.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from raydiag.errors import CannotRun
from raydiag.exporter import external_plugins, external_run, naming, plugin_files
from raydiag.exporter.metrics import REGISTRY, metric_of
from raydiag.exporter.plugin_files import PYTHON, SHELL
from raydiag.exporter.readers import ask_one
from raydiag.model import Status
from raydiag.probes import FILES

_SLOW_S = 5.0  # of the 10 s that a plugin has
_MOST_SHOWN = 8


@dataclass(frozen=True)
class CheckedMetric:
    name: str
    type: str
    labels: tuple[str, ...]  # names, "host" included
    series: int


@dataclass(frozen=True)
class CheckedPlugin:
    """One file. It passes when there are no problems."""

    path: str
    kind: str = ""  # "shell", "python", "program"; "" when it cannot be told
    digest: str = ""  # SHA-256 of the content
    size_bytes: int = 0
    was_run: bool = False
    duration_s: Optional[float] = None  # of the first run
    not_here: bool = False  # it asked not to be run on this node (exit status 99)
    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()
    metrics: Sequence[CheckedMetric] = ()

    @property
    def passes(self) -> bool:
        """Whether it has no problems."""
        return not self.problems


def check(
    paths: Sequence[str],
    host: str,
    may_run: bool = True,
    root: str = "/",
    allow_unsafe: bool = False,
) -> list[CheckedPlugin]:
    """Check each file, in that order. Raises CannotRun for one that is not there.

    Unless `allow_unsafe`, a file that others could change is not run, and does not pass.
    """
    for path in paths:
        if not os.path.lexists(path):
            raise CannotRun(f"{path}: no such file")
    options = (host, may_run, root, allow_unsafe)
    return list(_apart([_check(os.path.abspath(path), *options) for path in paths]))


def _check(path: str, host: str, may_run: bool, root: str, allow_unsafe: bool) -> CheckedPlugin:
    entry = _ask(external_plugins.Ask("", path, FILES, 5.0, {"look_at": path}))
    if "failed" in entry:
        return CheckedPlugin(path, problems=(entry["failed"][1],))
    checked = CheckedPlugin(path, entry["kind"], entry["digest"], entry["signature"][1])
    if entry["unsafe"] and not allow_unsafe:
        return replace(checked, problems=(f"{entry['unsafe']}{plugin_files.UNSAFE}",))
    warnings = list(_about_file(path, entry))
    if not may_run:
        return replace(_syntax_only(checked, path, entry), warnings=warnings)
    began = time.monotonic()
    request = external_plugins.request(path, entry, host, root, check=True)
    answer = _run(path, entry, request)
    duration_s = time.monotonic() - began
    if answer.get("state") and answer["failed"] is None:
        again = _run(path, entry, {**request, "check": False, "state": answer["state"]})
        if again["failed"] is not None:
            again["failed"][1] = f"run a second time, with its own state: {again['failed'][1]}"
            answer = {**answer, "failed": again["failed"]}
    problems = list(_problems(answer, entry))
    if duration_s > _SLOW_S and not problems:
        warnings.append(f"took {duration_s:.1f} s of the {entry['timeout_s']:g} s that it has")
    metrics = _metrics(answer)
    doubles, remarks = _of_ours(metrics, entry["kind"])
    run = (not answer.get("syntax"), round(duration_s, 3), bool(answer.get("not_here")))
    said = ((*problems, *doubles), (*warnings, *_advice(answer), *remarks))
    of_file = (checked.kind, checked.digest, checked.size_bytes)
    return CheckedPlugin(path, *of_file, *run, *said, metrics)


def _about_file(path: str, entry: Mapping[str, Any]) -> Iterator[str]:
    name = os.path.basename(path)
    if entry["unsafe"]:
        yield f"{entry['unsafe']}, and the exporter runs it"
    if name.endswith(".sh") and entry["kind"] != SHELL:
        yield f"runs as a plain program: the name does not end in {plugin_files.SHELL_SUFFIX}"
    if entry["content"] is None:
        yield "too large for a copy: while a new version is broken, nothing runs in its stead"
    if name.startswith(".") or name.endswith(plugin_files.COPIES):
        yield "under this name the exporter passes it over"


def _syntax_only(checked: CheckedPlugin, path: str, entry: Mapping[str, Any]) -> CheckedPlugin:
    """What can be said without running it; of Python that was said when it was looked at."""
    if not entry["is_script"]:
        return checked
    answer = _ask(external_plugins.Ask("", path, plugin_files.PLUGINS, 8.0, {"syntax_of": path}))
    return replace(checked, problems=(answer["failed"][1],) if answer["failed"] else ())


def _run(path: str, entry: Mapping[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    limit_s = entry["timeout_s"] + 3.0
    return _ask(external_plugins.Ask("", path, entry["reader"], limit_s, request))


def _ask(ask: external_plugins.Ask) -> dict[str, Any]:
    """Have a guarded reader of its own answer; one that does not is abandoned."""
    source = f"check {os.getpid()} {ask.source}"
    answer, status, reason = ask_one(_serve, ask.reader, ask.request, source, ask.timeout_s)
    return answer or {"samples": [], "timed_out": True, "failed": [status.value, reason]}


def _serve(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"answer": external_run.answer(request)}


def _problems(answer: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[str]:
    if answer["failed"] is not None:
        yield answer["failed"][1]
    elif answer.get("changed"):
        yield "the file was written while it was checked"
    if answer.get("left"):
        pids = ", ".join(map(str, answer["left"]))
        yield f"it left processes that hang in the kernel and cannot be ended: {pids}"
    for source, status, reason in answer.get("unread", ()):
        if entry["kind"] == PYTHON and status not in (Status.NO_DATA.value, Status.DENIED.value):
            yield f"could not read {source}: {reason}"


def _metrics(answer: Mapping[str, Any]) -> list[CheckedMetric]:
    declared = external_run.metrics(answer.get("declared", {}), answer["samples"])
    labels_of: dict[str, list[Any]] = {}
    for name, labels, _, _ in answer["samples"]:
        labels_of.setdefault(name, []).append(labels)
    return [
        CheckedMetric(name, _type(name, declared), tuple(sorted({*labels[0], "host"})), len(labels))
        for name, labels in labels_of.items()
    ]


def _type(name: str, declared: Mapping[str, Any]) -> str:
    metric = declared.get(name) or metric_of(name)
    return str(metric.type) if metric else "untyped"


def _advice(answer: Mapping[str, Any]) -> Iterator[str]:
    """On names that are not ours: those are as they are. Once for each metric."""
    advised = set()
    for name, (metric, kind, text) in answer.get("declared", {}).items():
        if metric_of(name) is None and metric not in advised:
            advised.add(metric)
            for line in naming.advice(metric, kind, text):
                yield f"{metric}: {line}"


def _of_ours(metrics: Iterable[CheckedMetric], kind: str) -> tuple[list[str], list[str]]:
    """Metrics that raydiag's exporter has itself: what is wrong, and what is to be known.

    For the shell exporter a plugin has to have them; in raydiag's own, series that it exports by
    itself are refused from anybody else.
    """
    names, wrong = [], []
    for metric in metrics:
        own = REGISTRY.get(metric.name)
        if own is not None:
            names.append(own.name)
            if metric.type not in ("untyped", own.type):
                types = f"is a {own.type} in raydiag's exporter, and here a {metric.type}"
                wrong.append(f"{own.name} {types}")
    if not names:
        return [], []
    text = "raydiag's exporter has these metrics itself and refuses them from a plugin: "
    text += ", ".join(names[:_MOST_SHOWN]) + " ..." * (len(names) > _MOST_SHOWN)
    if kind == SHELL:
        return wrong, [f"{text} (fine for the shell exporter)"]
    return [*wrong, text], []


def _apart(checked: Sequence[CheckedPlugin]) -> Iterator[CheckedPlugin]:
    """With metrics that two of the files have, and plugins of the same name."""
    owners: dict[str, str] = {}
    names: dict[str, str] = {}
    for plugin in checked:
        problems = list(plugin.problems)
        name = os.path.splitext(os.path.basename(plugin.path))[0]
        if names.setdefault(name, plugin.path) != plugin.path:
            problems.append(f"{names[name]} makes a plugin of the same name, {name}")
        for metric in plugin.metrics:
            if owners.setdefault(metric.name, plugin.path) != plugin.path:
                problems.append(f"{owners[metric.name]} has the metric {metric.name} as well")
        yield replace(plugin, problems=tuple(problems))
