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
import contextlib
import dataclasses
import json
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Optional

from raydiag import sandbox
from raydiag.file_writing import write_all
from raydiag.hotfix import (
    discovery,
    dry_run,
    guarded_request,
    node_rollback,
    replace,
    restart,
    target_directory,
    verification,
)
from raydiag.hotfix.inspection import inspect
from raydiag.hotfix.journal import (
    Journal,
    JournalError,
    is_rollout,
    sha256,
)
from raydiag.hotfix.log_tail import size
from raydiag.hotfix.messages import (
    OPERATION_NAMES,
    OPERATIONS,
    RAYDIAG,
    SHELL,
    Applied,
    Apply,
    Check,
    CheckedFile,
    Close,
    Closed,
    Inspect,
    NodeRequest,
    Restart,
    Restarted,
    Rollback,
    RolledBack,
    StatusRequest,
    Verify,
)
from raydiag.hotfix.replace import ReplaceRefused

_INSPECT_LIMIT_S = 8.0


class Wrong(Exception):
    """The request cannot be understood; the message says why."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Do what the request asks; never raises."""
    try:
        typed_request = decoded(request)
        limit_s = _looking_limit_s(typed_request)
        return (
            _looking(typed_request, limit_s)
            if limit_s
            else _plain(_OPERATIONS[type(typed_request)](typed_request))
        )
    except (Wrong, JournalError, ReplaceRefused) as error:
        return {"error": str(error)}
    except Exception as error:
        # The node's answer is all that the head ever sees of it.
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def decoded(request: Mapping[str, Any]) -> NodeRequest:
    """The request as its dataclass. Raises Wrong."""
    if not isinstance(request, Mapping):
        raise Wrong("the request is not an object")
    kind = OPERATIONS.get(str(request.get("operation")))
    if kind is None:
        raise Wrong(f"unknown operation {str(request.get('operation'))[:40]!r}")
    fields_by_name = {one.name: one for one in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in request.items():
        if name == "operation":
            continue
        if name not in fields_by_name:
            raise Wrong(f"{request['operation']}: unknown field {name[:40]!r}")
        values[name] = _checked(name, value, str(fields_by_name[name].type))
    typed_request: NodeRequest = kind(**values)
    if typed_request.exporter not in (SHELL, RAYDIAG):
        raise Wrong(f"unknown exporter {typed_request.exporter[:40]!r}")
    if isinstance(typed_request, (Apply, Restart, Rollback, Close)) and not is_rollout(
        typed_request.rollout
    ):
        raise Wrong(f"not the name of a rollout: {typed_request.rollout[:80]!r}")
    return typed_request


def _checked(name: str, value: object, kind: str) -> object:
    """A field's value, of the type that its annotation says. Raises Wrong."""
    if kind.startswith("Optional["):
        if value is None:
            return None
        kind = kind[len("Optional[") : -1]
    types: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "float": (int, float),
        "bool": (bool,),
        "Mapping": (Mapping,),
        "tuple": (list, tuple),
    }
    types_of_kind = types[kind.partition("[")[0]]
    if not isinstance(value, types_of_kind) or (
        isinstance(value, bool) and bool not in types_of_kind
    ):
        raise Wrong(f"{name}: {kind} was expected")
    if isinstance(value, (list, tuple)):
        if not all(isinstance(text, str) for text in value):
            raise Wrong(f"{name}: texts were expected")
        return tuple(value)
    return value


def _plain(result: Any) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(result)))
    return fields


# ---- guarded looks


def _looking_limit_s(request: NodeRequest) -> float:
    """How long an operation that only looks may take; 0 for the others."""
    if isinstance(request, Verify):
        return max(request.limit_s, request.late_limit_s) + 5.0
    return _INSPECT_LIMIT_S if isinstance(request, (Inspect, StatusRequest)) else 0.0


def _looking(request: NodeRequest, limit_s: float) -> dict[str, Any]:
    """What a guarded reader answers to a request that only looks; `error` when it does not."""
    operation = OPERATION_NAMES[type(request)]
    fields = {"operation": operation, **_plain(request)}
    try:
        fields_found: dict[str, Any] = guarded_request.ask(
            _serve, fields, operation, guarded_request.LOOKS_AS, limit_s
        )
        return fields_found
    except guarded_request.NoAnswer as error:
        return {"error": str(error)}


def _serve(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the reader."""
    try:
        typed_request = decoded(request)
        yield {"answer": _plain(_OPERATIONS[type(typed_request)](typed_request))}
    except (Wrong, JournalError, ReplaceRefused) as error:
        yield {"answer": {"error": str(error)}}
    except Exception as error:
        yield {"answer": {"error": f"{type(error).__name__}: {error}"[:500]}}


# ---- operations


def check(request: Check) -> CheckedFile:
    """See `Check`."""
    content = _content(request.content)
    exporters = discovery.look(request)
    try:
        directory = target_directory.chosen(request, exporters)
    except ReplaceRefused as error:
        return CheckedFile(False, str(error), "skipped", sha256(content))
    with _lock(request) as reason:
        if reason:
            return CheckedFile(False, reason, "skipped", sha256(content))
        fault = discovery.driver_fault(request)
        return dry_run.check(request, content, directory, fault, exporters.environment)


def apply(request: Apply) -> Applied:
    """See `Apply`."""
    content = _content(request.content)
    reason = replace.name_refusal(request.exporter, request.name)
    reason = reason or replace.content_refusal(request.name, content)
    if reason:
        return Applied("refused", reason)
    exporters = discovery.look(request)
    try:
        directory = target_directory.chosen(request, exporters)
    except ReplaceRefused as error:
        return Applied("refused", str(error))
    with _lock(request) as reason:
        return Applied("refused", reason) if reason else _apply(request, content, directory)


def _apply(request: Apply, content: bytes, directory: str) -> Applied:
    journal, new = Journal(request.journal), sha256(content)
    try:
        unfinished = journal.unfinished(but=request.rollout)
        if unfinished:
            raise ReplaceRefused(
                f"rollout {unfinished[0]} has not ended here: roll it back, or close it"
            )
        target = target_directory.target(request, directory, request.name)
        if target.refused:
            raise ReplaceRefused(target.refused)
        old = replace.current(directory, request.name)
        if old.sha256 == new:
            return Applied("already", "", old.path, new, new, time.time())
        if old.sha256 != request.old_sha256:
            raise ReplaceRefused(f"{old.path} is not the planned one: it was changed meanwhile")
        replace.clean(directory)
        log_bytes = size(request.plugin_log)
        replacement = replace.Replacement(
            journal, request.rollout, request.who, request.name, old, content
        )
        replacement.run()
    except (ReplaceRefused, JournalError) as error:
        return Applied("refused", str(error))
    restart = target.restart
    return Applied("replaced", "", old.path, old.sha256, new, replacement.at, log_bytes, restart)


def rollback(request: Rollback) -> RolledBack:
    """See `Rollback`."""
    with _lock(request) as reason:
        if reason:
            return RolledBack((), False, reason)
        log_bytes = size(request.plugin_log)
        return node_rollback.rollback(Journal(request.journal), request, log_bytes)


def close(request: Close) -> Closed:
    """See `Close`."""
    journal = Journal(request.journal)
    if not journal.history(request.rollout).records:
        return Closed(False, "this node has no record of it")
    try:
        journal.append(request.rollout, request.who, "closed", outcome=request.outcome or "closed")
    except JournalError as error:
        return Closed(False, str(error))
    return Closed(True)


def _content(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Wrong("content: not base64") from None


def lock_name(request: NodeRequest) -> str:
    """Of the lock that whoever changes this node holds: one for each journal, so one for a node."""
    return sandbox.tag(f"hotfix:{Journal(request.journal).directory}")


@contextlib.contextmanager
def _lock(request: NodeRequest) -> Iterator[str]:
    """Holds the node as long as the process lives; the reason why not, when another one does."""
    held: Optional[socket.socket] = None
    try:
        held = sandbox.lock(lock_name(request))
        yield "" if held else "another rollout is at work on this node"
    finally:
        if held:
            held.close()


def end_exporter(request: Restart) -> Restarted:
    """See `Restart`."""
    with _lock(request) as reason:
        if reason:
            return Restarted("refused", reason)
        return restart.restart(request, Journal(request.journal))


_OPERATIONS: dict[type, Callable[[Any], Any]] = {
    Inspect: inspect,
    Check: check,
    Apply: apply,
    Restart: end_exporter,
    Verify: verification.verify,
    Rollback: rollback,
    Close: close,
    StatusRequest: lambda status_request: node_rollback.statuses(
        Journal(status_request.journal), status_request.rollout
    ),
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
            limit_s = fields.get(name, getattr(Verify, name))
            if isinstance(limit_s, (int, float)):
                fields[name] = max(1.0, min(float(limit_s), budget_s - 2.0))
    frame = zlib.compress(json.dumps(answer(fields)).encode())
    write_all(1, b"%d\n" % len(frame) + frame)
    os._exit(0)
