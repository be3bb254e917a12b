"""In a guarded reader: run one plugin that is not ours, and hand back what it gave.

A program runs from its place, so that it finds what lies beside it; where its file is not (or no
more) the version that was asked for, from the copy in the request. A Python file is always run
from the copy, compiled once per reader.

The shell exporter's protocol: `bash <plugin> <short host>`, with the last line `# STATE <value>` of
the run before in `_PLUGIN_STATE`. STATE alone means that nothing is new, `# STATE __NONE__` that
what was kept is void, exit status 99 that the plugin has nothing to do on this node. The exporter
handles any other program the same way, with the host in `RAYDIAG_HOST` as well.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

from raydiag import exposition, masking
from raydiag.errors import NoData, ParseError, ReadError
from raydiag.exporter import plugin_files, program, reading
from raydiag.exporter.metrics import Metric, Sample, metric_of
from raydiag.exporter.plugins import Plugin
from raydiag.file_writing import memory_file
from raydiag.model import Status

OUTPUT_BYTES = 1 << 20
NOT_HERE = 99  # exit status: do not run me any more
_SYNTAX_S = 5.0
_SHORTEST_SECRET = 8  # characters
_SCAN = ("scan", "known", "settle", "allow_unsafe")

_collectors: dict[str, tuple[str, Any]] = {}  # path -> digest, function; of this reader


class WrongSyntax(ParseError):
    """The program cannot be read, so it was not run."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a request of `foreign`: plain JSON values.

    "scan": as `plugin_files.scan`, "look_at": as `plugin_files.entry`, "syntax_of": `bash -n`.
    Otherwise as `reading.run`, and besides: "declared" (name of a sample -> [metric, type, help]),
    "state" (str; None: none was printed), "not_here", "changed" (the file was written meanwhile:
    nothing of it counts), "syntax" (it is wrong, so it was not run), "left" (pids of children that
    hang in the kernel), "timed_out".
    """
    try:
        if "scan" in request:
            return plugin_files.scan(*(request[name] for name in _SCAN))
        if "look_at" in request:
            return plugin_files.entry(request["look_at"])
        if "syntax_of" in request:
            check_syntax(request["syntax_of"])
            return {"samples": [], "failed": None}
        if request["kind"] == plugin_files.PYTHON:
            return _collect(request)
        return _run(request)
    except WrongSyntax as error:
        return _failed(error, syntax=True)
    except program.StillThere as error:
        return _failed(error, timed_out=True, left=list(error.pids))
    except ReadError as error:
        return _failed(error, timed_out=isinstance(error, program.TooLong))
    except (Exception, SystemExit) as error:
        # A plugin that breaks costs its own series, and no reader.
        return _failed(ReadError(f"{type(error).__name__}: {error}"))


def _failed(error: ReadError, **details: Any) -> dict[str, Any]:
    return {"samples": [], "failed": [error.status.value, str(error)], **details}


def _collect(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a Python plugin: the answer of `reading.run`."""
    path, digest = request["path"], request["digest"]
    loaded_digest, function = _collectors.get(path, ("", None))
    if loaded_digest != digest:
        function = _compiled(base64.b64decode(request["content"]), path, digest)
        _collectors[path] = (digest, function)
    name = os.path.basename(path)[: -len(".py")]
    plugin = Plugin(name, function, request["timeout_s"], request["reader"])
    files = reading.NodeFiles(request["root"], request["left_alone"])
    try:
        result = reading.run(plugin, None, files, {})
    finally:
        files.close()
    if result["failed"] is not None:
        return result
    samples = [_checked(sample, request["host"]) for sample in result["samples"]]
    declared = _declared_in(function, {name for name, *_ in samples})
    return {**result, "samples": samples, "declared": declared, "state": None}


def _declared_in(function: Any, names: set[str]) -> dict[str, list[str]]:
    """From `METRICS = (Metric(...), ...)` in the plugin's file; what is nowhere said is untyped."""
    metrics_of_file = {metric.name: metric for metric in function.__globals__.get("METRICS", ())}
    declared = {}
    for name in names:
        metric = metrics_of_file.get(name) or metric_of(name)
        declared[name] = _told(metric) if metric else [name, "untyped", ""]
    return declared


def _told(metric: Metric) -> list[str]:
    """Raises ParseError for what would make the whole page one that nobody can read."""
    if metric.type not in exposition.TYPES:
        raise ParseError(f"METRICS: {metric.name}: no type of metric {metric.type!r}")
    try:
        metric.help.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ParseError(f"METRICS: {metric.name}: no text for HELP {metric.help!r:.80}") from None
    return [metric.name, metric.type, metric.help]


def _compiled(content: bytes, path: str, digest: str) -> Any:
    """The function `collect` of that content. Raises ReadError for whatever goes wrong in it."""
    # Plugins register by the last word of their module's name: no plugin of ours has this one.
    space: dict[str, Any] = {"__name__": f"raydiag_foreign.{digest}", "__file__": path}
    try:
        code: CodeType = compile(content, path, "exec")
        exec(code, space)  # a plugin, trusted like a program  # nosec B102
        return space["collect"]
    except (Exception, SystemExit) as error:
        raise ReadError(f"{path}: cannot be loaded: {type(error).__name__}: {error}") from None


def _checked(sample: Sample, host: str) -> list[Any]:
    """As a list that JSON holds. Raises ParseError for a sample that is none."""
    name, labels, value, timestamp_ms = sample
    text = repr(float(value)) if isinstance(value, (int, float)) else repr(value)
    written = "".join(f'{key}="{exposition.escaped(str(word))}",' for key, word in labels.items())
    time = "" if timestamp_ms is None else f" {timestamp_ms}"
    (line,) = exposition.parse(f"{name}{{{written}}} {text}{time}\n".encode()).lines
    number = int(value) if isinstance(value, int) else line.value  # True is 1
    return [line.name, _without_host(line, host), number, line.time_ms]


def _run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a program and take what it printed at its word, or not at all."""
    path, in_place = request["path"], request["in_place"]
    if in_place:
        ended = _ended(request, path) if _is_version(path, request["signature"]) else None
        if ended is None or not _is_version(path, request["signature"]):
            return {"samples": [], "failed": None, "changed": True}
    elif request["content"] is None:
        raise NoData(f"{path}: changed, and too large for a copy of what ran before")
    else:
        copy = memory_file("plugin", base64.b64decode(request["content"]))
        try:
            ended = _ended(request, f"/proc/self/fd/{copy}", copy)
        finally:
            os.close(copy)
    remaining_pids = list(ended.remaining_pids)
    if ended.status == NOT_HERE:
        return {"samples": [], "failed": None, "not_here": True, "left": remaining_pids}
    return {**_understood(ended, request), "left": remaining_pids}


def _ended(request: Mapping[str, Any], place: str, *copy: int) -> program.Ended:
    """Run it from that place, which may be a copy's. Raises WrongSyntax, and as `program.run`."""
    if request["check"] and request["is_script"]:
        check_syntax(place, *copy)
    arguments = [place]
    if request["kind"] == plugin_files.SHELL:
        # $0 stays the plugin's path: it may look for files beside it.
        options = ["-c", f". {place}"] if copy else []
        arguments = ["bash", *options, request["path"], request["host"]]
    environment = {"_PLUGIN_STATE": request["state"] or "", "RAYDIAG_HOST": request["host"]}
    return program.run(arguments, request["timeout_s"], OUTPUT_BYTES, environment, copy)


def check_syntax(place: str, *copy: int) -> None:
    """`bash -n`. Raises WrongSyntax with bash's first words, ReadError when it cannot be run."""
    ended = program.run(["bash", "-n", place], _SYNTAX_S, OUTPUT_BYTES, {}, copy)
    if ended.status:
        words = _first_words(ended).replace(f"{place}: ", "")
        raise WrongSyntax(f"bash -n: {words[:300] or f'exit status {ended.status}'}")


def _first_words(ended: program.Ended) -> str:
    return ended.stderr.decode("utf-8", "replace").strip().split("\n")[0]


def _is_version(path: str, signature: Sequence[int]) -> bool:
    try:
        return plugin_files.signature(os.stat(path)) == list(signature)
    except OSError:
        return False


def _understood(ended: program.Ended, request: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ReadError for a failure, ParseError for output that is not what it should be."""
    if ended.status:
        raise ReadError(f"exit status {ended.status}: {_first_words(ended)[:300]}".rstrip(": "))
    if not ended.stdout.strip():
        raise ReadError("printed nothing")
    printed = exposition.parse(ended.stdout, may_lack_end=request["kind"] == plugin_files.SHELL)
    if not printed.lines and printed.state is None:
        raise ReadError("printed no sample")
    samples, declared = [], {}
    for line in printed.lines:
        labels = _without_host(line, request["host"])
        samples.append([line.name, labels, line.value, line.time_ms])
        metric = printed.metric_of(line.name)
        kind, text = printed.types.get(metric, "untyped"), printed.helps.get(metric, "")
        declared[line.name] = [metric, kind, text]
    return {"samples": samples, "declared": declared, "state": printed.state, "failed": None}


def _without_host(line: exposition.ExpositionLine, host: str) -> dict[str, str]:
    """The page adds the host. Raises ParseError for a sample of another one."""
    labels = dict(line.labels)
    host_label = labels.pop("host", host)
    if host_label != host:
        raise ParseError(f"{line.name} is of host {host_label!r}, and this is {host!r}")
    return dict(zip(labels, map(_without_secret, labels, labels.values())))


def _without_secret(name: str, value: str) -> str:
    """The value of a label, which whoever reaches the port can read."""
    if masking.names_secret(name):
        return "***"
    return value if len(value) < _SHORTEST_SECRET else masking.masked_line(value)


def metrics(declared: Mapping[str, Sequence[str]], samples: Sequence[Any]) -> dict[str, Metric]:
    """What the page needs to know of the metrics in an answer, by name of the sample."""
    labels = {name: tuple(sorted({*own_labels, "host"})) for name, own_labels, _, _ in samples}
    return {
        name: Metric(metric, kind, "", labels[name], text, "a plugin")
        for name, (metric, kind, text) in declared.items()
    }


def status_of(answer: Mapping[str, Any]) -> Status:
    """What became of the run, as of any source."""
    if answer.get("timed_out"):
        return Status.TIMEOUT
    return Status(answer["failed"][0]) if answer["failed"] else Status.OK
