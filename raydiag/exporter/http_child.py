"""The HTTP server: what the child process does with the pages that it is handed.

It reads nothing of the node, so nothing on the node can hold it up. Threads live here only, one
for each connection, because slow clients must not wait for each other; so it never forks.

A page that is older than two intervals is not served any more but for the exporter's own lines,
which say so: Prometheus would stamp old values as new.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
import zlib
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from raydiag import confinement
from raydiag.exporter.metrics import OWN_PREFIX, REGISTRY
from raydiag.exporter.page import header
from raydiag.exposition import escaped

if TYPE_CHECKING:
    import ssl

FRAME = struct.Struct("=ddQ")  # monotonic time of the page, interval in s, bytes of its own lines
_HEAD_BYTES = 8192
_MOST_CONNECTIONS = 32
_CONNECTION_S = 10.0  # from its start to its end, whatever the client does
_UNHURRIED_S = 0.5  # a connection younger than this is not cut for a newer one
_OLD_INTERVALS = 2.0
_NAME = "raydiag-http"
_AGE = REGISTRY[f"{OWN_PREFIX}page_age_seconds"]


class _Page(NamedTuple):
    """A page in the child."""

    own: bytes
    plugin_lines: bytes
    at_s: float  # monotonic
    interval_s: float

    def age_s(self) -> float:
        """Seconds since it was made."""
        return max(0.0, time.monotonic() - self.at_s)

    def is_old(self) -> bool:
        """Whether only the exporter's own lines may be served."""
        return self.age_s() > _OLD_INTERVALS * self.interval_s


class _Served:
    """What the threads share."""

    def __init__(self, host: str, context: Optional[ssl.SSLContext]) -> None:
        self.context = context
        self.page = _Page(b"", b"", time.monotonic(), 0.0)
        self._squeezed: Optional[tuple[_Page, bytes, Any]] = None
        self._age = f'{header(_AGE)}{_AGE.name}{{host="{escaped(host)}"}} '

    def metrics(self, squeeze: bool) -> bytes:
        """The text, gzipped or not."""
        page = self.page
        age = f"{self._age}{page.age_s():.3f}\n".encode()
        if page.is_old():
            page = page._replace(plugin_lines=b"")
        if not squeeze:
            return page.plugin_lines + page.own + age
        squeezed = self._squeezed
        if squeezed is None or squeezed[0] != page:
            first = zlib.compressobj(1, zlib.DEFLATED, 31)
            squeezed = page, first.compress(page.plugin_lines + page.own), first
            self._squeezed = squeezed
        # Compressed once a page; only the age is added for each scrape.
        last = squeezed[2].copy()
        return bytes(squeezed[1] + last.compress(age) + last.flush())

    def health(self) -> tuple[int, bytes]:
        """Status and text for /healthz."""
        if self.page.is_old():
            return 503, b"the last page is %.0f s old\n" % self.page.age_s()
        return 200, b"ok\n"


def serve(
    listener: socket.socket,
    pages: socket.socket,
    host: str,
    context: Optional[ssl.SSLContext],
    parent: int,
) -> None:
    """Body of the child: take pages until the collector is gone; never returns."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the collector, which ends us
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        confinement.set_name(_NAME)
        confinement.die_with_parent()
        if os.getppid() != parent:
            return
        confinement.keep_only(listener.fileno(), pages.fileno())
        served = _Served(host, context)
        threading.Thread(target=_accept, args=(listener, served), daemon=True).start()
        while True:
            frame, fds, _, _ = socket.recv_fds(pages, FRAME.size, 1)
            if not frame:
                return
            at_s, interval_s, length = FRAME.unpack(frame)
            with open(fds[0], "rb", buffering=0) as file:
                file.seek(0)  # the offset is the writer's too
                text = file.readall()
            served.page = _Page(text[:length], text[length:], at_s, interval_s)
            pages.send(b"\n")
    except OSError:
        pass  # the collector is gone
    finally:
        os._exit(1)


def _accept(listener: socket.socket, served: _Served) -> None:
    """Give each connection a thread; with too many of them the oldest is cut."""
    connections: dict[socket.socket, float] = {}
    lock = threading.Lock()

    def forget(connection: socket.socket) -> None:
        """It has ended."""
        with lock:
            del connections[connection]
        connection.close()

    def handle(connection: socket.socket, deadline: float) -> None:
        """Body of its thread."""
        try:
            with suppress(OSError):  # slow, gone, or no TLS: nobody to tell
                _converse(connection, served, deadline)
        finally:
            forget(connection)

    listener.setblocking(True)
    while True:
        try:
            connection, _ = listener.accept()
            if served.context is not None:
                connection = served.context.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
        except OSError:
            time.sleep(0.1)  # no descriptor left: wait until a connection ends
            continue
        now = time.monotonic()
        with lock:
            if len(connections) >= _MOST_CONNECTIONS:
                oldest = min(connections, key=connections.__getitem__)
                with suppress(OSError):
                    if now - connections[oldest] > _UNHURRIED_S:
                        oldest.shutdown(socket.SHUT_RDWR)
                    connection.close()
                continue
            connections[connection] = now
        try:
            arguments = (connection, now + _CONNECTION_S)
            threading.Thread(target=handle, args=arguments, daemon=True).start()
        except RuntimeError:  # no thread left
            forget(connection)


def _converse(connection: socket.socket, served: _Served, deadline: float) -> None:
    """One request, one answer. Raises OSError when the client does not keep up."""
    connection.settimeout(_CONNECTION_S)
    if served.context is not None:
        connection.do_handshake()  # type: ignore[attr-defined]  # it is an ssl.SSLSocket
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) <= _HEAD_BYTES:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = connection.recv(4096)
        if not chunk:
            return
        head += chunk
    answer = _answer(head, served)
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    connection.sendall(answer)
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(1.0)
    connection.recv(1 << 16)  # were something unread when it closes, the answer could be lost


def _answer(head: bytes, served: _Served) -> bytes:
    """The whole response to a request's head."""
    if len(head) > _HEAD_BYTES:
        return _response(431, b"too long a request\n")
    first, *fields = head.replace(b"\r\n", b"\n").split(b"\n")
    words = first.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return _response(400, b"not an HTTP/1 request\n")
    if words[0] not in (b"GET", b"HEAD"):
        return _response(405, b"GET or HEAD\n", "Allow: GET, HEAD\r\n")
    path, headers = words[1].partition(b"?")[0], ""
    code, body = 404, b"/metrics, /healthz\n"
    if path == b"/metrics":
        squeeze = _takes_gzip(fields)
        headers = "Content-Encoding: gzip\r\n" * squeeze + "Vary: Accept-Encoding\r\n"
        code, body = 200, served.metrics(squeeze)
    elif path == b"/healthz":
        code, body = served.health()
    elif path == b"/":
        code, body = 200, b"raydiag exporter: /metrics, /healthz\n"
    return _response(code, body, headers, only_head=words[0] == b"HEAD")


def _takes_gzip(fields: list[bytes]) -> bool:
    for field in fields:
        name, _, value = field.partition(b":")
        if name.strip().lower() == b"accept-encoding":
            for choice in value.lower().split(b","):
                coding, _, quality = choice.replace(b" ", b"").partition(b";q=")
                if coding == b"gzip":
                    return quality.strip(b"0.") != b"" or not quality
    return False


def _response(code: int, body: bytes, headers: str = "", only_head: bool = False) -> bytes:
    # version: what the text is in; the charset is part of the type that scrapers know.
    head = (
        f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\n"
        "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n{headers}Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if only_head else body)
