"""Queries to one Prometheus: two in flight at most, each with a deadline, every one recorded.

A server that stalls, breaks off or answers nonsense costs the deadline and gives an answer that
says so: it never raises. What the caller may believe is in `Answer.status`.

Source: Prometheus documentation, "HTTP API".
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Optional
from urllib.parse import urlsplit

import requests
import urllib3
import yaml

from raydiag.errors import ParseError, ReadError, UsageError
from raydiag.model import Status
from raydiag.tsdb import response
from raydiag.tsdb.discovery_types import SpokenDialect
from raydiag.tsdb.series import AskedQuery, Query, QueryResult

IN_FLIGHT = 2
DEADLINE_S = 30.0
_MOST_BYTES = 512 * 1024 * 1024  # of one answer
_CHUNK = 1 << 16
_FOR_EVER_S = 1e9
_PATIENCE_S = 5.0
_STOP_AFTER = 3  # queries in a row that met their deadline: the server is given up
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_TOO_LATE = "no answer within the time that it was given"
_TABLE = resources.files(__package__).joinpath("http_errors.yaml")
_WORDS: Mapping[str, Mapping[Any, str]] = yaml.safe_load(_TABLE.read_text("utf-8"))


class TooLate(ReadError):
    """The deadline passed before the answer was complete."""

    status = Status.TIMEOUT


class Unreachable(ReadError):
    """Nobody answers at the address, or breaks off."""


@dataclass(frozen=True)
class Metadata:
    """What a call that is not a query gave."""

    status: Status
    reason: str
    data: Any = None

    @property
    def ok(self) -> bool:
        """Whether `data` may be used."""
        return self.status is Status.OK


class Client:
    """One Prometheus server. Its methods may be called from one thread at a time."""

    def __init__(self, url: str, deadline_s: float = DEADLINE_S) -> None:
        """`url` is what comes before /api/v1. Raises UsageError when it is not http or https."""
        self.url = base_url(url)
        self.deadline_s = deadline_s
        self.asked: list[AskedQuery] = []
        self.addresses: Mapping[str, str] = {}  # host names by IP address, as far as series tell
        self._misses = 0
        self._http = requests.Session()
        self._http.headers["user-agent"] = "raydiag"
        if urlsplit(self.url).hostname in _LOOPBACK:
            self._http.trust_env = False  # a proxy of the environment has another loopback
            self._http.headers["accept-encoding"] = "identity"  # packing costs more than sending

    def ask(self, query: Query) -> QueryResult:
        """One query, recorded in `asked`."""
        return self.ask_all([query])[query.id]

    def ask_all(
        self,
        queries: Iterable[Query],
        deadline_s: Optional[float] = None,
        progress: Callable[[int, int], None] = lambda answered, queries: None,
    ) -> dict[str, QueryResult]:
        """All queries, by id, within `deadline_s` together (each has its own limit besides).

        Raises UsageError when two queries share an id.
        """
        waiting = list(queries)
        ids = [query.id for query in waiting]
        if len(set(ids)) < len(ids):
            raise UsageError("two queries have one id")
        if self._misses >= _STOP_AFTER:
            self._misses = _STOP_AFTER - 1  # one more chance for each set of queries
        limit = time.monotonic() + (deadline_s if deadline_s is not None else _FOR_EVER_S)
        answers: dict[str, QueryResult] = {}
        for answer in self._side_by_side(waiting, limit):
            answers[answer.query.id] = answer
            progress(len(answers), len(waiting))
        in_order = {query_id: answers[query_id] for query_id in ids}
        self.asked += map(AskedQuery.of, in_order.values())
        return in_order

    def _side_by_side(self, waiting: list[Query], limit: float) -> Iterator[QueryResult]:
        """Answers as they come. Threads are daemons: a stalled server holds up no exit."""
        todo: queue.SimpleQueue[Query] = queue.SimpleQueue()
        answers: queue.SimpleQueue[QueryResult] = queue.SimpleQueue()
        stopped = threading.Event()
        missing: dict[str, Query] = {}
        for query in waiting:
            todo.put(query)
            missing[query.id] = query

        def work() -> None:
            while not stopped.is_set():
                try:
                    answers.put(self._answer(todo.get_nowait(), limit))
                except queue.Empty:
                    return

        try:
            for _ in range(min(IN_FLIGHT, len(waiting))):
                threading.Thread(target=work, daemon=True).start()
            while missing:
                # Longer than any answer may take: only a thread that is lost takes longer.
                remaining_s = min(max(limit - time.monotonic(), 0.0), self.deadline_s)
                answer = answers.get(timeout=remaining_s + _PATIENCE_S)
                del missing[answer.query.id]
                yield answer
        except queue.Empty:
            self._misses = _STOP_AFTER
            for query in missing.values():
                yield QueryResult(query, Status.TIMEOUT, _TOO_LATE)
        finally:
            stopped.set()

    def metadata(self, path: str, parameters: Mapping[str, Any] | None = None) -> Metadata:
        """A call below /api/v1 that is not a query: "labels", "status/tsdb", ..."""
        limit = time.monotonic() + self.deadline_s
        try:
            data, _ = response.data(*self._send("GET", path, parameters or {}, limit))
        except ReadError as error:
            return Metadata(error.status, str(error))
        return Metadata(Status.OK, "", data)

    def spoken(self) -> tuple[SpokenDialect, ...]:
        """Dialects of other exporters that are understood; a plain client understands none."""
        return ()

    def _answer(self, query: Query, limit: float) -> QueryResult:
        started = time.monotonic()
        limit = min(limit, started + self.deadline_s)
        if self._misses >= _STOP_AFTER:
            return QueryResult(query, Status.TIMEOUT, "not asked: the server had stopped answering")
        try:
            if limit <= started:
                raise TooLate("not asked: the time for all queries was used up")
            reply = self._send("POST", *_request(query, limit - started), limit)
            answer = _query_result(query, *reply)
            self._misses = 0
        except ReadError as error:
            self._misses += isinstance(error, (TooLate, Unreachable))
            bad_query = isinstance(error, response.BadQuery)
            answer = QueryResult(query, error.status, str(error), bad_query=bad_query)
        return replace(answer, duration_s=time.monotonic() - started)

    def _send(
        self, method: str, path: str, parameters: Mapping[str, Any], limit: float
    ) -> tuple[int, str, bytes]:
        """Status, content type and body of what came back."""
        url = f"{self.url}/api/v1/{path}"
        try:
            status, kind, body = self._fetch(method, url, parameters, limit)
            if method == "POST" and status in (404, 405):  # some gateways let GET through only
                status, kind, body = self._fetch("GET", url, parameters, limit)
        except requests.Timeout:
            raise TooLate(_TOO_LATE) from None
        except requests.RequestException as error:
            raise Unreachable(_reason(error)) from None
        if status >= 500 and not body.lstrip().startswith(b"{"):
            words = _WORDS["statuses"].get(status, "the server failed")
            raise Unreachable(f"HTTP {status}: {words}")
        return status, kind, body

    def _fetch(
        self, method: str, url: str, parameters: Mapping[str, Any], limit: float
    ) -> tuple[int, str, bytes]:
        """Status, content type and body. The limit holds for a body that trickles in as well."""
        remaining_s = limit - time.monotonic()
        if remaining_s <= 0:
            raise TooLate(_TOO_LATE)
        form, address = (parameters, None) if method == "POST" else (None, parameters)
        with self._http.request(
            method, url, data=form, params=address, timeout=remaining_s, stream=True
        ) as response:
            parts, size = [], 0
            for chunk in _as_it_comes(response):
                size += len(chunk)
                parts.append(chunk)
                if time.monotonic() > limit:
                    raise TooLate("the answer was not complete within the time that it was given")
                if size > _MOST_BYTES:
                    raise ParseError(f"an answer of more than {_MOST_BYTES >> 20} MiB")
            return response.status_code, response.headers.get("content-type", ""), b"".join(parts)


def _as_it_comes(response: requests.Response) -> Iterator[bytes]:
    """The body in pieces as they arrive: asked for more, urllib3 would wait without our limit."""
    read: Optional[Callable[[int], bytes]] = getattr(response.raw, "read1", None)
    if read is None or "content-encoding" in response.headers:
        yield from response.iter_content(_CHUNK)
        return
    try:
        while chunk := read(_CHUNK):
            yield chunk
    except urllib3.exceptions.TimeoutError as error:
        raise requests.Timeout(str(error)) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise requests.ConnectionError(str(error)) from None


def base_url(text: str) -> str:
    """The URL without what a browser's address line or Grafana adds. Raises UsageError."""
    try:
        parts = urlsplit(text if "//" in text else f"http://{text}")
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"{text!r} is not the URL of a Prometheus: http://HOST:PORT")
    path = parts.path.rstrip("/")
    for end in ("/graph", "/query", "/api/v1", "/-/ready"):
        path = path.removesuffix(end)
    return f"{parts.scheme}://{parts.netloc}{path}"


def _request(query: Query, remaining_s: float) -> tuple[str, dict[str, Any]]:
    window = query.window
    # The server gives up with us instead of working on for nobody.
    fields: dict[str, Any] = {"query": query.promql, "timeout": f"{max(1, round(remaining_s))}s"}
    if not query.is_range:
        return "query", fields | {"time": f"{window.end:.3f}"}
    span = {"start": f"{window.start:.3f}", "end": f"{window.end:.3f}", "step": f"{window.step:g}"}
    return "query_range", fields | span


def _query_result(query: Query, status: int, kind: str, body: bytes) -> QueryResult:
    matrix = response.matrix(body) if status == 200 else None
    if matrix is not None:
        return QueryResult(query, Status.OK, "", matrix)
    data, warnings = response.data(status, kind, body)
    return QueryResult(query, Status.OK, "", response.series(data), warnings)


def _reason(error: requests.RequestException) -> str:
    """What went wrong, in words that do not show Python's objects."""
    message = str(error)
    for sign, reason in _WORDS["exceptions"].items():
        if sign in message:
            return reason
    return f"{type(error).__name__}: no answer that can be read"
