"""What launchers put before a line: `srun -l`, Ray, torchrun, mpirun, pdsh, kubectl, docker.

Several may stand one after the other, `  3: [default0]:[rank24]:`. Each is taken off the text and
kept as the writer. Source: the launchers' own documentation and output.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from raydiag.joblog.log_line import Prefix

_ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[()*+][0-9A-Za-z]|\x1b[@-Z\\^_]|\^\[\[[0-9;]{0,16}m"
)
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_REPEATED = re.compile(r"\[repeated \d{1,9}x across cluster\](?:\s*\(Ray [^)]{0,200}\))?\s*$")
_SRUN = re.compile(r"^\s*(\d{1,6}):(?:\s|$)")
_STACKED = re.compile(
    r"\((?P<actor>[^()\n]{0,128}?(?:\([^()\n]{0,64}\))?) ?pid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<ip>[0-9A-Fa-f.:]+))?\) ?"
    r"|\((?P<system>raylet|autoscaler|gcs_server|dashboard)(?:, ip=(?P<at>[0-9A-Fa-f.:]+))?\) ?"
    r"|\[[Rr]ank ?(?P<rank>\d{1,6})\]:? ?"
    r"|\[task ?(?P<task>\d{1,6})\]:? ?"
    r"|[Rr]ank ?(?P<bare>\d{1,6}): ?"
    r"|\[(?:default|trainer|worker)(?P<local>\d{1,4})\]: ?"
    r"|\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:out|err)>: ?"
    r"|(?P<compose>[a-z0-9][a-z0-9_.-]{0,63} {2,24}\| )"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{9}Z|\S{0,20} std(?:out|err) [FP]) "
    r"(?:std(?:out|err) [FP] )?"
    r"|\[pod/(?P<pod>[a-z0-9][a-z0-9.-]{0,252})/[a-z0-9.-]{1,63}\] "
)
# A time in front is the line's own text, unless more prefixes follow it.
_TIME = re.compile(
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
    r"(?:Z|[+-]\d\d:?\d\d)?\]?:? (?=[\[(A-Za-z0-9])"
)
_ACTOR_RANK = re.compile(r"\brank=(\d{1,6})\b")
_DIGITS = re.compile(r"\d+")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,62}): ")
_NCCL = re.compile(r"([A-Za-z][\w.-]{0,62}):\d+:\d+ \[\d+\] ")
_NESTED = 6
_LEAST_LINES = 5  # that begin with a host, and nearly all of the lines looked at
_NEARLY_ALL = 0.8


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
    message = text[end:]
    if message.endswith((")", "]")):
        repeated = _REPEATED.search(message, max(0, len(message) - 256))
        if repeated:
            return prefix, message[: repeated.start()].rstrip()
    if prefix.host is None and ":" in message[:64]:
        nccl = _NCCL.match(message)
        if nccl:
            prefix = on_host(prefix, nccl[1])
    return prefix, message


def _extent(text: str, hosts: Collection[str]) -> int:
    """Where the prefixes end."""
    match = _SRUN.match(text)
    end = match.end() if match else 0
    for _ in range(_NESTED):
        match = _next(text, end, hosts)
        if not match:
            time = _TIME.match(text, end)
            match = _next(text, time.end(), hosts) if time else None
        if not match:
            break
        end = match.end()
    return end


def _next(text: str, start: int, hosts: Collection[str]) -> re.Match[str] | None:
    match = _STACKED.match(text, start)
    if match or not hosts:
        return match
    named = _HOST.match(text, start)
    return named if named and named[1] in hosts else None


def leading_host(text: str) -> str:
    """The name before the first colon, if it may be a host's: there is a digit in it."""
    time = _TIME.match(text)
    named = _HOST.match(text, time.end() if time else 0)
    name = named[1] if named else ""
    return name if not name.isdigit() and any(map(str.isdigit, name)) else ""


def stem(host: str) -> str:
    """What the names of a cluster's hosts share: the name without its digits."""
    return _DIGITS.sub("", host)


def host_stems(lines: Sequence[str]) -> frozenset[str]:
    """Stems of the hosts that a launcher puts before nearly every line, if one does."""
    told = list(filter(str.strip, lines))
    stems = Counter(map(stem, filter(None, map(leading_host, told))))
    often = frozenset(name for name, count in stems.items() if count >= _LEAST_LINES)
    covered = sum(map(stems.__getitem__, often))
    return often if covered >= _NEARLY_ALL * len(told) else frozenset()


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
    fields: dict[str, Any] = {"host": host or None}
    match = _SRUN.match(prefixes)
    if match:
        fields["task"] = int(match[1])
    position = match.end() if match else 0
    while position < len(prefixes):
        match = _STACKED.match(prefixes, position)
        if match:
            fields.update(_fields_of(match.groupdict()))
        else:
            match = _TIME.match(prefixes, position) or _HOST.match(prefixes, position)
            if not match:
                break
        position = match.end()
    return Prefix(**fields)


def _fields_of(groups: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What one prefix says of the writer."""
    rank = groups["rank"] or groups["bare"] or groups["mpi"]
    if groups["task"]:
        yield "task", int(groups["task"])
    if groups["local"]:
        yield "local_rank", int(groups["local"])
    if groups["pid"]:
        actor = groups["actor"].strip()
        yield "actor", actor or None
        yield "pid", int(groups["pid"])
        yield "ip", groups["ip"]
        in_name = _ACTOR_RANK.search(actor)
        rank = in_name[1] if in_name else rank
    elif groups["system"]:
        yield "actor", groups["system"]
        yield "ip", groups["at"]
    if groups["pod"]:
        yield "host", groups["pod"]
    if rank:
        yield "rank", int(rank)


@lru_cache(maxsize=8192)
def on_host(prefix: Prefix, host: str) -> Prefix:
    """The same writer, its host known."""
    return replace(prefix, host=host)


@lru_cache(maxsize=8192)
def of_rank(prefix: Prefix, rank: int) -> Prefix:
    """The same writer, its rank known."""
    return replace(prefix, rank=rank)
