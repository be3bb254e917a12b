"""A way to ask: a server that runs somewhere, or a throw-away one over a job's directory."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from raydiag.errors import CannotRun
from raydiag.model import Status, Unread, Window
from raydiag.tsdb import directory, private_directory, server, view
from raydiag.tsdb.client import DEADLINE_S, Client
from raydiag.tsdb.directory import TsdbDirectory

_ATTEMPTS = 8  # each with one block fewer, or over the directory as it is by then
_NAMED_BLOCK = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b")


@dataclass(frozen=True)
class Connection:
    """A Prometheus that answers, and what is known of it before it is asked."""

    client: Client
    origin: str  # the directory or the URL, for people
    live: bool  # a server of the job's own: time passes, and samples come
    stored: Optional[Window] = None  # what the blocks hold; the newest samples may lie after it
    has_log: bool = False  # a write-ahead log was there and is served
    unread: Sequence[Unread] = ()


class EmptyTsdb(CannotRun):
    """The directory is there and holds no samples at all; the message says what it holds."""


def connect(url: str, deadline_s: float = DEADLINE_S) -> Connection:
    """To a server that runs. Raises CannotRun when nobody answers as Prometheus does."""
    client = Client(url, deadline_s)
    found = client.metadata("status/flags")
    if not found.ok:
        # Stores that speak Prometheus's language (Thanos, Mimir, VictoriaMetrics) have no flags.
        found = client.metadata("labels")
    if not found.ok:
        raise CannotRun(f"{client.url}: {found.reason}")
    return Connection(client, client.url, live=True)


@contextlib.contextmanager
def open_directory(
    path: str,
    deadline_s: float = DEADLINE_S,
    wait: Callable[[float], None] = lambda waited_s: None,
) -> Iterator[Connection]:
    """Serve a job's directory, or its `prometheus` directory, while the block runs.

    The directory itself is not touched. What could not be opened is in the connection's `unread`.
    `wait` is called now and then with the seconds waited. Raises EmptyTsdb, CannotRun.
    """
    where = directory.locate(path)
    server.program()  # before anything is copied
    with private_directory.directory() as place, contextlib.ExitStack() as stack:
        found, running, seen, lost = _served(where, place, stack, wait)
        troubles = [_trouble(where, text) for text in running.troubles()]
        unread = (*found.unread, *seen.unread, *lost, *troubles)
        window = replace(found, blocks=seen.blocks).window
        client = Client(running.url, deadline_s)
        yield Connection(client, str(where), False, window, seen.has_log, unread)


def _served(
    where: Path, place: Path, stack: contextlib.ExitStack, wait: Callable[[float], None]
) -> tuple[TsdbDirectory, server.PrometheusServer, view.TsdbView, list[Unread]]:
    """A server over as much of the directory as a server takes."""
    lost: list[Unread] = []
    without: list[str] = []
    with_log = True
    for attempt in range(_ATTEMPTS):
        found = directory.read(where)  # anew: a live server may have replaced blocks meanwhile
        if found.empty:
            raise EmptyTsdb(_nothing(found))
        try:
            seen = view.build(found, place / f"data{attempt}", without, with_log)
            return found, stack.enter_context(server.running(seen.data, place, wait)), seen, lost
        except view.Changed:
            shutil.rmtree(place / f"data{attempt}", ignore_errors=True)
        except server.StartFailed as error:
            words = str(error)
            bad = [one for one in _NAMED_BLOCK.findall(words) if one not in without]
            if not bad and not with_log:
                raise
            if bad:
                without.append(bad[0])
            else:
                with_log = False
            source = where / (bad[0] if bad else "wal")
            lost.append(Unread(str(source), Status.ERROR, f"left out: {words}"))
    raise CannotRun(f"{where}: prometheus opens no part of it, or it never stands still")


def _trouble(where: Path, text: str) -> Unread:
    if "WAL" not in text and "wal/" not in text:
        return Unread(str(where), Status.ERROR, f"prometheus says: {text}")
    reason = f"damaged; what follows the damage is missing; prometheus says: {text}"
    return Unread(str(where / "wal"), Status.ERROR, reason)


def _nothing(found: TsdbDirectory) -> str:
    broken = "; ".join(f"{Path(one.source).name}: {one.reason}" for one in found.unread)
    if broken:
        return f"{found.path}: nothing in it can be read ({broken})"
    there = ", ".join(found.files[:10]) or "nothing"
    return (
        f"{found.path}: holds no samples ({there}): Prometheus did not start or never scraped; the "
        "job's log has [Prometheus] lines"
    )
