"""Operations of a hotfix on one node: a JSON object in, a JSON object out, each bounded in time.

Runs in a lean interpreter that the actor starts, single-threaded, Python 3.9 and standard library.
`answer({"operation": "inspect", ...})` returns the fields of `Inspection`, and so on: see
`raydiag.hotfix.messages`. A request that cannot be understood, or an operation that breaks, is
answered with `{"error": "one line"}`.

What only looks runs in a guarded reader, which the kernel keeps from writing and from signals. An
operation that finds any doubt does nothing and says why in `reason`, or in the refusals.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from raydiag import records, sandbox
from raydiag.errors import ParseError
from raydiag.file_writing import write_all
from raydiag.hotfix import discovery, dry_run, guarded_request, messages, node_rollback, replace
from raydiag.hotfix.inspection import inspect
from raydiag.hotfix.journal import Journal, JournalError, is_rollout, sha256
from raydiag.hotfix.log_tail import size
from raydiag.hotfix.messages import Applied, CheckedFile, NodeRequest
from raydiag.hotfix.process import Doubt
from raydiag.hotfix.replace import ReplaceRefused
from raydiag.hotfix.restart import restart
from raydiag.hotfix.target_directory import chosen, target
from raydiag.hotfix.verification import verify

_INSPECT_LIMIT_S = 8.0


class Wrong(Exception):
    """The request cannot be understood; the message says why."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Do what the request asks; never raises."""
    return _answer(request, in_reader=False)


def _serve(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the reader."""
    yield {"answer": _answer(request, in_reader=True)}


def _answer(request: Mapping[str, Any], in_reader: bool) -> dict[str, Any]:
    try:
        typed_request = decoded(request)
        operation = str(request["operation"])
        limit_s = _looking_limit_s(typed_request)
        if limit_s and not in_reader:
            fields = {"operation": operation, **_plain(typed_request)}
            looks_as = guarded_request.LOOKS_AS
            return dict(guarded_request.ask(_serve, fields, operation, looks_as, limit_s))
        return _plain(_OPERATIONS[operation](typed_request))
    except (Wrong, JournalError, ReplaceRefused, guarded_request.NoAnswer) as error:
        return {"error": str(error)}
    except Exception as error:
        # The node's answer is all that the head ever sees of it.
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def decoded(request: Mapping[str, Any]) -> NodeRequest:
    """The request as its dataclass. Raises Wrong."""
    if not isinstance(request, Mapping):
        raise Wrong("the request is not an object")
    values = dict(request)
    operation = str(values.pop("operation", None))
    kind = messages.OPERATIONS.get(operation)
    if kind is None:
        raise Wrong(f"unknown operation {operation[:40]!r}")
    unknown = values.keys() - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        raise Wrong(f"{operation}: unknown field {min(unknown)[:40]!r}")
    try:
        typed_request: NodeRequest = records.decode(kind, values)
    except ParseError as error:
        raise Wrong(str(error)) from None
    if typed_request.exporter not in (messages.SHELL, messages.RAYDIAG):
        raise Wrong(f"unknown exporter {typed_request.exporter[:40]!r}")
    if isinstance(typed_request, messages.SignedRequest) and not is_rollout(typed_request.rollout):
        raise Wrong(f"not the name of a rollout: {typed_request.rollout[:80]!r}")
    return typed_request


def _plain(result: Any) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(result)))
    return fields


def _looking_limit_s(request: NodeRequest) -> float:
    """How long an operation that only looks may take; 0 for the others."""
    if isinstance(request, messages.Verify):
        return max(request.limit_s, request.late_limit_s) + 5.0
    looks = (messages.Inspect, messages.StatusRequest)
    return _INSPECT_LIMIT_S * isinstance(request, looks)


# ---- operations


def check(request: messages.Check) -> CheckedFile:
    """See `Check`."""
    content = _content(request.content)
    exporters = discovery.look(request)
    try:
        directory = chosen(request, exporters)
        with _lock(request):
            fault = discovery.driver_fault(request)
            return dry_run.check(request, content, directory, fault, exporters.environment)
    except ReplaceRefused as error:
        return CheckedFile(False, str(error), "skipped", sha256(content))


def apply(request: messages.Apply) -> Applied:
    """See `Apply`."""
    content = _content(request.content)
    try:
        replace.require_writable(request.exporter, request.name, content)
        directory = chosen(request, discovery.look(request))
        with _lock(request):
            return _apply(request, content, directory)
    except (ReplaceRefused, JournalError) as error:
        return Applied("refused", str(error))


def _apply(request: messages.Apply, content: bytes, directory: str) -> Applied:
    """Raises ReplaceRefused or JournalError; the old file is there then."""
    journal, new = Journal(request.journal), sha256(content)
    for name in journal.unfinished(but=request.rollout):
        raise ReplaceRefused(f"rollout {name} has not ended here: roll it back, or close it")
    file = target(request, directory, request.name)
    if file.refused:
        raise ReplaceRefused(file.refused)
    old = replace.current(directory, request.name)
    if old.sha256 == new:
        return Applied("already", "", old.path, new, new, time.time())
    if old.sha256 != request.old_sha256:
        raise ReplaceRefused(f"{old.path} is not the planned one: it was changed meanwhile")
    replace.clean(directory)
    log_bytes = size(request.plugin_log)
    names = (request.rollout, request.who, request.name)
    replacement = replace.Replacement(journal, *names, old, content)
    replacement.run()
    changed = (old.sha256, new, replacement.at, log_bytes, file.restart)
    return Applied("replaced", "", old.path, *changed)


def rollback(request: messages.Rollback) -> messages.RolledBack:
    """See `Rollback`."""
    try:
        with _lock(request):
            directory = request.planned_directory or chosen(request, discovery.look(request))
            log_bytes = size(request.plugin_log)
            return node_rollback.rollback(Journal(request.journal), request, directory, log_bytes)
    except (ReplaceRefused, JournalError) as error:
        return messages.RolledBack((), False, str(error))


def close(request: messages.Close) -> messages.Closed:
    """See `Close`."""
    journal = Journal(request.journal)
    if not journal.history(request.rollout).records:
        return messages.Closed(False, "this node has no record of it")
    try:
        journal.append(request.rollout, request.who, "closed", outcome=request.outcome or "closed")
    except JournalError as error:
        return messages.Closed(False, str(error))
    return messages.Closed(True)


def _content(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Wrong("content: not base64") from None


def lock_name(request: NodeRequest) -> str:
    """Of the lock that whoever changes this node holds: one for each journal, so one for a node."""
    return sandbox.tag(f"hotfix:{Journal(request.journal).directory}")


def _lock(request: NodeRequest) -> socket.socket:
    """Holds the node until it is closed. Raises ReplaceRefused while another process holds it."""
    held = sandbox.lock(lock_name(request))
    if held is None:
        raise ReplaceRefused("another rollout is at work on this node")
    return held


def end_exporter(request: messages.Restart) -> messages.Restarted:
    """See `Restart`."""
    try:
        with _lock(request):
            return restart(request, Journal(request.journal))
    except (ReplaceRefused, JournalError, Doubt) as error:
        return messages.Restarted("refused", str(error))


def status(request: messages.StatusRequest) -> messages.Statuses:
    """See `StatusRequest`."""
    return node_rollback.statuses(Journal(request.journal), request.rollout)


_OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "inspect": inspect,
    "check": check,
    "apply": apply,
    "restart": end_exporter,
    "verify": verify,
    "rollback": rollback,
    "close": close,
    "status": status,
}


def main(request: Mapping[str, Any], budget_s: float, parent_pid: int) -> None:
    """Entry of the process on the node: lowest priority, do, answer, end.

    The answer goes to stdout as its length in decimal, a newline, and that many bytes of
    zlib-compressed JSON. Whoever asked has to wait longer than the operation takes: `budget_s`
    bounds the watching of `verify` only, since a change is not left half done.
    """
    os.nice(19)
    if os.getppid() != parent_pid:
        os._exit(1)  # nobody is left who would hear the answer
    fields = dict(request)
    if fields.get("operation") == "verify":
        for name in ("limit_s", "late_limit_s"):
            limit_s = fields.get(name, getattr(messages.Verify, name))
            if isinstance(limit_s, (int, float)):
                fields[name] = max(1.0, min(float(limit_s), budget_s - 2.0))
    frame = zlib.compress(json.dumps(answer(fields)).encode())
    write_all(1, b"%d\n" % len(frame) + frame)
    os._exit(0)
