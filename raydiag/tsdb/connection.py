"""A server to ask: one that runs somewhere, or a temporary one over a job's directory."""

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
from raydiag.tsdb.dialects import TranslatingClient
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
    client = TranslatingClient(url, deadline_s)
    answer = client.metadata("status/flags")
    if not answer.ok:
        # Stores that speak Prometheus's language (Thanos, Mimir, VictoriaMetrics) have no flags.
        answer = client.metadata("labels")
    if not answer.ok:
        raise CannotRun(f"{client.url}: {answer.reason}")
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
    source = directory.locate(path)
    server.program()  # before anything is copied
    with private_directory.directory() as private, contextlib.ExitStack() as stack:
        tsdb, running, tsdb_view, left_out = _serve(source, private, stack, wait)
        errors = [_server_error(source, text) for text in running.troubles()]
        yield Connection(
            client=TranslatingClient(running.url, deadline_s),
            origin=str(source),
            live=False,
            stored=replace(tsdb, blocks=tsdb_view.blocks).window,
            has_log=tsdb_view.has_log,
            unread=(*tsdb.unread, *tsdb_view.unread, *left_out, *errors),
        )


def _serve(
    source: Path, private: Path, stack: contextlib.ExitStack, wait: Callable[[float], None]
) -> tuple[TsdbDirectory, server.PrometheusServer, view.TsdbView, list[Unread]]:
    """A server over as much of the directory as a server takes."""
    left_out: list[Unread] = []
    without: list[str] = []
    with_log = True
    for attempt in range(_ATTEMPTS):
        tsdb = directory.read(source)  # anew: a live server may have replaced blocks meanwhile
        if tsdb.empty:
            raise EmptyTsdb(_reason_of_empty(tsdb))
        data = private / f"data{attempt}"
        try:
            tsdb_view = view.build(tsdb, data, without, with_log)
            return (
                tsdb,
                stack.enter_context(server.running(data, private, wait)),
                tsdb_view,
                left_out,
            )
        except view.Changed:
            shutil.rmtree(data, ignore_errors=True)
        except server.StartFailed as error:
            names = _NAMED_BLOCK.findall(str(error))
            name = next((name for name in names if name not in without), "")
            if name:
                without.append(name)
            elif with_log:
                name, with_log = "wal", False
            else:
                raise
            left_out.append(Unread(str(source / name), Status.ERROR, f"left out: {error}"))
    raise CannotRun(f"{source}: prometheus opens no part of it, or it keeps changing")


def _server_error(source: Path, text: str) -> Unread:
    if "WAL" not in text and "wal/" not in text:
        return Unread(str(source), Status.ERROR, f"prometheus says: {text}")
    reason = f"damaged; what follows the damage is missing; prometheus says: {text}"
    return Unread(str(source / "wal"), Status.ERROR, reason)


def _reason_of_empty(tsdb: TsdbDirectory) -> str:
    broken = "; ".join(f"{Path(part.source).name}: {part.reason}" for part in tsdb.unread)
    if broken:
        return f"{tsdb.path}: nothing in it can be read ({broken})"
    files = ", ".join(tsdb.files[:10]) or "nothing"
    return (
        f"{tsdb.path}: holds no samples ({files}): Prometheus did not start or never scraped; see "
        "the [Prometheus] lines of the job's log"
    )
