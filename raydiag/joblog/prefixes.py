"""What launchers put before a line: `srun -l`, Ray, torchrun, mpirun, pdsh, kubectl, docker.

Several may stand one after the other, `  3: [default0]:[rank24]:`. Each is taken off the text and
kept as the writer. Source: the launchers' own documentation and output.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import Optional

from raydiag.joblog.log_line import Prefix

_ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[()*+][0-9A-Za-z]|\x1b[@-Z\\^_]|\^\[\[[0-9;]{0,16}m"
)
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_REPEATED = re.compile(r"\[repeated (\d{1,9})x across cluster\](?:\s*\(Ray [^)]{0,200}\))?\s*$")
_SRUN = re.compile(r"^\s*(\d{1,6}):(?:\s|$)")
_STACKED = re.compile(
    r"\((?P<actor>[^()\n]{0,128}?(?:\([^()\n]{0,64}\))?) ?pid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<ip>[0-9A-Fa-f.:]+))?\) ?"
    r"|\((?P<system>raylet|autoscaler|gcs_server|dashboard)(?:, ip=(?P<at>[0-9A-Fa-f.:]+))?\) ?"
    r"|\[[Rr]ank ?(?P<rank>\d{1,6})\]:? ?"
    r"|[Rr]ank ?(?P<bare>\d{1,6}): ?"
    r"|\[(?:default|trainer|worker)(?P<local>\d{1,4})\]: ?"
    r"|\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:out|err)>: ?"
    r"|(?P<compose>[a-z0-9][a-z0-9_.-]{0,63} {2,24}\| )"
    r"|(?P<kubectl>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z )(?:std(?:out|err) [FP] )?"
)
_ACTOR_RANK = re.compile(r"\brank=(\d{1,6})\b")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,62}): ")
_NCCL = re.compile(r"([A-Za-z][\w.-]{0,62}):\d+:\d+ \[\d+\] ")
_NESTED = 6


def plain(text: str) -> str:
    """Without terminal escapes, NUL and other control characters."""
    if "\x1b" in text or "^[[" in text:
        text = _ANSI.sub("", text)
    if text.isprintable():
        return text
    return _NOT_TEXT.sub("", text)


def split(text: str, hosts: Collection[str] = ()) -> tuple[Prefix, str]:
    """Writer and text of a line that is plain already.

    `hosts` are names that may stand before a colon; without them no host is taken from there.
    """
    end = _extent(text, hosts)
    prefix = _writer(text[:end], _leading_host(text, end, hosts) if end and hosts else "")
    rest = text[end:]
    if rest.endswith((")", "]")):
        found = _REPEATED.search(rest, max(0, len(rest) - 256))
        if found:
            return replace(prefix, repeated=int(found[1])), rest[: found.start()].rstrip()
    if prefix.host is None and ":" in rest[:64]:
        found = _NCCL.match(rest)
        if found:
            prefix = on_host(prefix, found[1])
    return prefix, rest


def _extent(text: str, hosts: Collection[str]) -> int:
    found = _SRUN.match(text)
    end = found.end() if found else 0
    for _ in range(_NESTED):
        found = _STACKED.match(text, end)
        if not found and hosts:
            found = _HOST.match(text, end)
            if found and found[1] not in hosts:
                found = None
        if not found:
            break
        end = found.end()
    return end


def _leading_host(text: str, end: int, hosts: Collection[str]) -> str:
    """The host among the prefixes; "" where none is named."""
    for word in text[:end].split():
        if word.endswith(":") and word[:-1] in hosts:
            return word[:-1]
    return ""


_NOBODY = Prefix()


@lru_cache(maxsize=8192)
def _writer(prefixes: str, host: str) -> Prefix:
    """One object per writer: the same few prefixes stand before every line of a log."""
    if not prefixes:
        return _NOBODY
    found = _SRUN.match(prefixes)
    task: Optional[int] = int(found[1]) if found else None
    rank = local = pid = None
    actor = ip = None
    position = found.end() if found else 0
    while position < len(prefixes):
        found = _STACKED.match(prefixes, position)
        if not found:
            found = _HOST.match(prefixes, position)
            if not found:
                break
        else:
            part = found.groupdict()
            number = part["rank"] or part["bare"] or part["mpi"]
            rank = int(number) if number else rank
            local = int(part["local"]) if part["local"] else local
            if part["pid"]:
                actor, pid, ip = part["actor"].strip() or None, int(part["pid"]), part["ip"]
                named = _ACTOR_RANK.search(actor or "")
                rank = int(named[1]) if named else rank
            elif part["system"]:
                actor, ip = part["system"], part["at"]
        position = found.end()
    return Prefix(task, rank, local, host or None, actor, pid, ip)


@lru_cache(maxsize=8192)
def on_host(prefix: Prefix, host: str) -> Prefix:
    """The same writer, its host known."""
    return replace(prefix, host=host)


@lru_cache(maxsize=8192)
def of_rank(prefix: Prefix, rank: int) -> Prefix:
    """The same writer, its rank known."""
    return replace(prefix, rank=rank)
