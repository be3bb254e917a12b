"""In a guarded reader: which files of a directory are plugins, and what is in those that changed.

The directory may be on a file system that hangs, so the exporter itself never opens anything in it.
Content is read where the file's stat has changed since the last look, and travels once.

Which file is a plugin:

| file | is |
|---|---|
| `*_metrics_plugin.sh` | a plugin of the shell exporter's protocol, executable or not |
| `*.py` with `def collect` at its top level | a Python plugin |
| any other executable file | a program that prints exposition text |

A Python plugin's `collect(host)` yields `Sample(name, labels, value)`, which it imports from
`raydiag.exporter.metrics`:

    from raydiag.exporter.metrics import Sample

    def collect(host):
        yield Sample("site_queue_depth", {"queue": "a"}, 3)

In a directory with files of the first kind, those are the only plugins: the programs beside them
are the job's own, and what starts a training run must not be started by an exporter. Names that
begin with a dot, and copies that editors leave (`*~`, `*.bak`, ...), are never plugins.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raydiag import ownership
from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.host import as_read_error
from raydiag.probes import COMMANDS, FILES, PROCESSES, SOCKETS

SHELL, PYTHON, PROGRAM = "shell", "python", "program"
SHELL_SUFFIX = "_metrics_plugin.sh"
COPY_BYTES = 256 << 10  # larger programs run from their place only
PLUGINS = "plugins"  # the reader that runs programs
# What editors and package managers leave beside a file.
COPIES = ("~", ".bak", ".orig", ".rej", ".swp", ".tmp", ".new", ".old", ".rpmsave", ".dpkg-dist")
TIMEOUT_S = 10.0  # of a program; the shell exporter's own

UNSAFE = "; it is not run (--allow-unsafe-plugins runs it all the same)"

_MOST_FILES = 200
_MOST_CONTENT_BYTES = 2 << 20  # in one answer; what is left out comes with the next
_PROGRAM_BYTES = 256 << 20
_SETTLED_S = 1.0  # a file that changed less than that ago may be half written
_PROGRAM_BEGINS = (b"#!", b"\x7fELF")
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_REMEMBERED = 1000
_KINDS = {"FILES": FILES, "PROCESSES": PROCESSES, "SOCKETS": SOCKETS, "COMMANDS": COMMANDS}

Signature = list[int]  # inode, size, mtime and ctime in ns

# In a reader, by path: with this signature it is no plugin, and why. To read and to parse what lies
# beside the plugins in each cycle (data that grow, a library) would cost more than the plugins.
_no_plugins: dict[str, tuple[Signature, str]] = {}


def scan(
    directory: str,
    known_signatures: Mapping[str, Sequence[int]],
    settle: bool,
    allow_unsafe: bool = False,
) -> dict[str, Any]:
    """All plugins of a directory: {"files": {name: entry}, "passed_over": {name: reason}}.

    An entry has "signature"; unless that is the one in `known`, also "kind", "digest", "reader",
    "timeout_s", "content" (base64; None: too large for a copy) or "problem". With `settle`, an
    entry whose file has just changed in place is left as it was known, and "unsettled". Unless
    `allow_unsafe`, what others could change is refused, and a link that leads out of the directory.
    Raises NoData, Denied, ReadError.
    """
    try:
        reason = ownership.changeable(directory)
        if reason and not allow_unsafe:
            raise Denied(f"{directory}: {reason}{UNSAFE}")
        candidates = sorted(os.listdir(directory))
    except OSError as error:
        raise as_read_error(error, directory) from None
    names = [name for name in candidates if name[0] != "." and not name.endswith(COPIES)]
    shell = [name for name in names if name.endswith(SHELL_SUFFIX)]
    files: dict[str, Any] = {}
    passed_over = {}
    for name in set(names).difference(shell) if shell else ():
        if name.endswith((".py", ".sh")) or "." not in name:
            passed_over[name] = f"in a directory with *{SHELL_SUFFIX} only these are plugins"
    room = _MOST_CONTENT_BYTES
    for name in (shell or names)[:_MOST_FILES]:
        path = os.path.join(directory, name)
        try:
            file_entry = entry(path, known_signatures.get(name, ()), settle, room)
            if "digest" in file_entry and not allow_unsafe:
                _require_safe(path, file_entry["unsafe"])
        except NoData as error:
            passed_over[name] = str(error)
            continue
        except ReadError as error:
            file_entry = {"signature": _inode(path), "problem": [error.status.value, str(error)]}
        room -= len(file_entry.get("content") or "")
        files[name] = file_entry
    if len(shell or names) > _MOST_FILES:
        passed_over[directory] = f"more than {_MOST_FILES} files: the rest was not looked at"
    return {"files": files, "passed_over": passed_over}


def signature(status: os.stat_result) -> Signature:
    """What tells one content of a file from another without reading it."""
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _require_safe(path: str, reason: str) -> None:
    """Raises Denied for a plugin that others could change, or that lies elsewhere."""
    real, directory = os.path.realpath(path), os.path.realpath(os.path.dirname(path))
    if not real.startswith(f"{directory}/"):
        reason = f"a link that leads out of the directory, to {real}"
    if reason:
        raise Denied(f"{path}: {reason}{UNSAFE}")


def _inode(path: str) -> list[int]:
    """A signature that no file has, so that the next look reads it again."""
    try:
        return [os.stat(path).st_ino]
    except OSError:
        return []


def entry(
    path: str, known: Sequence[int] = (), settle: bool = False, room: int = _MOST_CONTENT_BYTES
) -> dict[str, Any]:
    """One file as in `scan`. Raises NoData for what is no plugin, ReadError for one to mend."""
    signature_known = list(known)
    try:
        status = os.stat(path)
    except OSError as error:
        raise as_read_error(error, path) from None
    _require_regular(path, status)
    if signature_known == signature(status):
        return {"signature": signature_known}
    if settle and _may_be_half(status, signature_known):
        return {"signature": signature_known, "unsettled": True}
    kind = _kind(os.path.basename(path))
    if kind == PROGRAM and not status.st_mode & 0o111 and not _begins_as_program(path):
        raise NoData(f"{path}: not executable")
    seen_signature, reason = _no_plugins.get(path, ([], ""))
    if seen_signature == signature(status):
        raise NoData(reason)
    try:
        return _content(path, kind, status, signature_known, room)
    except NoData as error:
        if len(_no_plugins) > _MOST_REMEMBERED:
            _no_plugins.clear()
        _no_plugins[path] = (signature(status), str(error))
        raise


def _require_regular(path: str, status: os.stat_result) -> None:
    """Raises ReadError for what is named as a plugin, NoData for others."""
    if stat.S_ISREG(status.st_mode):
        return
    kind_of_file = "a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
    if path.endswith((SHELL_SUFFIX, ".py")):
        raise ReadError(f"{path}: {kind_of_file}")
    raise NoData(f"{path}: {kind_of_file}")


def _content(
    path: str, kind: str, status: os.stat_result, signature_known: Signature, room: int
) -> dict[str, Any]:
    """The entry of a file whose content has changed. Raises as `entry`."""
    content, digest = _read(path, status.st_size)
    reader, timeout_s = PLUGINS, TIMEOUT_S
    if kind == PYTHON:
        reader, timeout_s = python_header(content, path)
    elif kind == PROGRAM:
        _check_executable(path, content)
    fields = {"signature": signature(status), "mode": status.st_mode, "digest": digest}
    fields.update(kind=kind, reader=reader, timeout_s=timeout_s)
    fields["unsafe"] = ownership.changeable(path)
    fields["is_script"] = kind == SHELL or _is_script(content)
    if len(content) > COPY_BYTES and kind == PROGRAM:
        return {**fields, "content": None}
    if len(content) > COPY_BYTES:
        raise ParseError(f"{path}: {status.st_size} bytes; a script may have {COPY_BYTES}")
    if len(content) > room:
        return {"signature": signature_known}  # the next look takes it
    return {**fields, "content": base64.b64encode(content).decode()}


def _begins_as_program(path: str) -> bool:
    try:
        with os.fdopen(os.open(path, _READ), "rb") as file:
            return file.read(4).startswith(_PROGRAM_BEGINS)
    except OSError as error:
        raise as_read_error(error, path) from None


def _may_be_half(status: os.stat_result, signature_known: Sequence[int]) -> bool:
    """Whether somebody may still write to it; another inode of a known name came by a rename."""
    was_replaced = signature_known and signature_known[0] != status.st_ino
    return not was_replaced and 0 <= time.time() - status.st_mtime < _SETTLED_S


def _kind(name: str) -> str:
    if name.endswith(SHELL_SUFFIX):
        return SHELL
    return PYTHON if name.endswith(".py") else PROGRAM


def _is_script(content: bytes) -> bool:
    """Whether its first line has a shell run it whose syntax bash knows."""
    words = content.partition(b"\n")[0].replace(b"/", b" ").split()
    return content.startswith(b"#!") and bool({b"bash", b"sh", b"dash"} & set(words))


def _check_executable(path: str, content: bytes) -> None:
    """Raises NoData for what is plainly no program, Denied for one that we may not run."""
    if os.access(path, os.X_OK):
        return
    if content.startswith(_PROGRAM_BEGINS):
        raise ReadError(f"{path}: a program, and not executable")
    raise NoData(f"{path}: not executable")


def _read(path: str, size: int) -> tuple[bytes, str]:
    """The content, of a long file its beginning, and the SHA-256 of all of it."""
    if size > _PROGRAM_BYTES:
        raise ParseError(f"{path}: {size} bytes are no plugin")
    digest, head = hashlib.sha256(), b""
    try:
        with os.fdopen(os.open(path, _READ), "rb") as file:
            while chunk := file.read(1 << 16):
                digest.update(chunk)
                head += chunk if len(head) <= COPY_BYTES else b""
    except OSError as error:
        raise as_read_error(error, path) from None
    return head, digest.hexdigest()


def python_header(content: bytes, path: str) -> tuple[str, float]:
    """Reader and time limit that the file's `@plugin(...)` asks for; nothing of it is run.

    Raises NoData for a file without `collect`, ParseError for one that is no Python.
    """
    try:
        tree = ast.parse(content, filename=path)
    except SyntaxError as error:
        raise ParseError(f"{path}: not Python: {error.msg} (line {error.lineno})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ParseError(f"{path}: not Python: {error}") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if "collect" not in functions:
        raise NoData(f"{path}: no function `collect` at its top level")
    options = dict(_options(functions["collect"]))
    reader = options.get("reader", FILES)
    timeout_s = options.get("timeout_s", 2.0)
    if reader not in _KINDS.values():
        raise ParseError(f"{path}: no kind of reader {reader!r}")
    if not isinstance(timeout_s, (int, float)) or not 0 < timeout_s <= 60:
        raise ParseError(f"{path}: no time limit of up to 60 s: {timeout_s!r}")
    return str(reader), float(timeout_s)


def _options(function: ast.FunctionDef) -> Iterator[tuple[str, Any]]:
    for call in function.decorator_list:
        for keyword in call.keywords if isinstance(call, ast.Call) else ():
            if keyword.arg in ("reader", "timeout_s"):
                try:
                    yield keyword.arg, ast.literal_eval(keyword.value)
                except ValueError:
                    yield keyword.arg, _KINDS.get(ast.unparse(keyword.value).rpartition(".")[2], "")
