"""Does a new file work, before it stands where the exporter finds it: syntax, and one guarded run.

It lies in the exporter's directory under a temporary name meanwhile, beside what it may need, and
runs with the exporter's environment. What it prints is read into memory and judged.
"""

from __future__ import annotations

import ast
import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from raydiag import sandbox
from raydiag.errors import ReadError
from raydiag.hotfix import guarded_request, replace
from raydiag.hotfix.journal import sha256, short_host
from raydiag.hotfix.messages import Check, CheckedFile
from raydiag.hotfix.process import SCRIPT
from raydiag.hotfix.replace import ReplaceRefused
from raydiag.hotfix.served_page import parse

_SKIP = 99  # exit status of a plugin that does not want to run on this node
_RUNS_EVERYWHERE = ("gpu_metrics_plugin.sh", "host_metrics_plugin.sh")
_SYNTAX_LIMIT_S = 3.0
_OUTPUT_BYTES = 1 << 20
_WORDS_BYTES = 2000


def check(
    request: Check, content: bytes, directory: str, fault: str, environment: Mapping[str, str]
) -> CheckedFile:
    """Check that content for `request.name` in that directory. `fault`: of the driver, here.

    Raises ReplaceRefused for what is not even run.
    """
    digest = sha256(content)
    replace.require_writable(request.exporter, request.name, content)
    try:
        if replace.current(directory, request.name).sha256 == digest:
            raise ReplaceRefused("the new file is the same as the deployed one")
        replace.clean(directory)
        staged = _stage(directory, request.name, content)
    except OSError as error:
        raise ReplaceRefused(f"{directory}: {error.strerror}") from None
    try:
        reason = _syntax(request.name, content, staged)
        if reason:
            raise ReplaceRefused(reason)
        reason = _no_run(request, fault)
        if reason:
            return CheckedFile(True, reason, "skipped", digest)
        return _run(request, staged, digest, environment)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(staged)


def _stage(directory: str, name: str, content: bytes) -> str:
    path = os.path.join(os.path.realpath(directory), replace.temporary_name(name))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
    with open(fd, "wb") as file:
        file.write(content)
    return path


def _syntax(name: str, content: bytes, staged: str) -> str:
    """Why it cannot be run at all; "" when it can be read."""
    if name.endswith(".py"):
        answer = _guarded({"python": content.decode()}, f"syntax of {staged}", _SYNTAX_LIMIT_S)
        return str(answer.get("wrong", answer.get("failed", "")))
    if not name.endswith(".sh") and b"sh" not in content.split(b"\n", 1)[0]:
        return ""
    bash = {"argv": ["bash", "-n", staged], "limit_s": _SYNTAX_LIMIT_S}
    answer = _guarded(bash, f"syntax of {staged}", _SYNTAX_LIMIT_S + 2.0)
    if answer.get("status") == 0 and not answer.get("stderr"):
        return ""
    output = str(answer.get("stderr") or answer.get("failed") or "").replace(staged, name)
    return f"syntax: {output.strip()[:300] or 'bash -n does not accept it'}"


def _no_run(request: Check, fault: str) -> str:
    """Why there is no dry run; "" when there is one."""
    if request.name == SCRIPT:
        return "no dry run: the exporter is never started twice"
    if request.name.endswith(".py"):
        return "no dry run: a Python plugin runs inside the exporter only"
    if fault and "gpu" in request.name:
        return f"no dry run: the GPU driver fault shows here ({fault})"
    return "" if request.dry_run else "no dry run was asked for"


def _run(request: Check, staged: str, digest: str, environment: Mapping[str, str]) -> CheckedFile:
    argv = [staged]
    if request.name.endswith(".sh"):
        argv = ["bash", staged, short_host()]
    run_request = {"argv": argv, "limit_s": request.limit_s, "environment": dict(environment)}
    began = time.monotonic()
    # Named after the directory: what hangs in the kernel now must not be started again beside it.
    source = f"dry run in {os.path.dirname(staged)}"
    answer = _guarded(run_request, source, request.limit_s + 1.0)
    duration_s = round(time.monotonic() - began, 3)
    status, stdout = answer.get("status"), str(answer.get("stdout", ""))
    page = parse(stdout.encode(), is_exporters_page=False)
    stderr = str(answer.get("stderr", "")).replace(staged, request.name)
    words = stderr[-_WORDS_BYTES:].strip()
    reason = ""
    if "failed" in answer:
        reason = f"dry run: {answer['failed']}".replace(argv[0], request.name)
    elif status == _SKIP and request.name in _RUNS_EVERYWHERE:
        reason = f"dry run: exit status {status}: the exporter would not run it again"
    elif status not in (0, _SKIP):
        reason = f"dry run: exit status {status}: {words[-200:]}"
    elif page.broken:
        reason = f"dry run: {page.broken}"
    elif status == 0 and not page.values and "# STATE " not in stdout:
        reason = f"dry run: it printed no metrics: {words[-200:]}"
    outcome, run = "failed" if reason else "passed", (status, duration_s, words)
    return CheckedFile(not reason, reason, outcome, digest, page.metrics, *run)


def _guarded(request: dict[str, Any], source: str, limit_s: float) -> dict[str, Any]:
    """What came of it; `failed` says why nothing did."""
    runs_as = guarded_request.RUNS_AS
    try:
        return dict(guarded_request.ask(_serve, request, source, runs_as, limit_s))
    except guarded_request.NoAnswer as error:
        return {"failed": str(error)}


def _serve(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the reader: compile Python, or run a program in a session of its own."""
    if "python" in request:
        yield {"answer": {"wrong": _python(request["python"])}}
        return
    os.setsid()
    yield {"session": os.getpid()}
    if "environment" in request:
        os.environ.clear()
        os.environ.update(request["environment"])
    try:
        status, out, err = sandbox.run_command(request["argv"], request["limit_s"], _OUTPUT_BYTES)
    except ReadError as error:
        yield {"answer": {"failed": str(error)}}
        return
    stdout, stderr = out.decode("utf-8", "replace"), err[-_WORDS_BYTES:].decode("utf-8", "replace")
    yield {"answer": {"status": status, "stdout": stdout, "stderr": stderr}}


def _python(text: str) -> str:
    try:
        tree = ast.parse(text)
        compile(tree, "plugin", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"syntax: {error}"
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return "" if "collect" in defined else "it defines no function `collect`"
