"""The webhook: POST /alerts takes notifications, GET /answers/FINGERPRINT has an annotation's text.

Loopback only. A connection has a few seconds and there are few of them: who sends slowly holds
little and not for long, and gives way to whoever comes, the longest of them first. So a sender that
is as quick as Alertmanager is served while others connect and wait. A request under a name that is
not loopback's, or without a JSON content type, is refused: a page in a browser here can neither
read answers nor send alerts. The port may be that of a tunnel.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import queue
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from raydiag.alerts.desk import AlertDesk
from raydiag.alerts.payload import MOST_BYTES, TooManyAlerts, alerts_of
from raydiag.errors import CannotRun

_ADDRESS = "127.0.0.1"
# Of this machine, and no other, which a browser may have been misled by; at any port.
_LOOPBACK_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_LIMIT_S = 5.0  # of a connection, from its beginning
_MOST_CONNECTIONS = 16
_MOST_THREADS = 64  # those of connections that were cut a moment ago among them
_RETRY_S = "30"


class AlertServer(ThreadingHTTPServer):
    """Listens from the start. Raises CannotRun where the port is taken."""

    daemon_threads = True
    request_queue_size = 128  # that the kernel holds for us until they are accepted

    def __init__(self, port: int, desk: AlertDesk, token: str = "", limit_s: float = _LIMIT_S):
        self.desk, self.token, self.limit_s = desk, token, limit_s
        self._room = threading.Semaphore(_MOST_THREADS)
        self._open: OrderedDict[socket.socket, None] = OrderedDict()  # the longest first
        self._changing = threading.Lock()
        try:
            super().__init__((_ADDRESS, port), _Webhook)
        except OSError as error:
            raise CannotRun(f"--port {port}: {error.strerror}; choose another port") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for it; who has waited longest for his own words gives way."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._changing:
            if len(self._open) >= _MOST_CONNECTIONS:
                _cut(self._open.popitem(last=False)[0])
            self._open[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer it within the limit: then the connection is cut."""
        end = threading.Timer(self.limit_s, _cut, [request])
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self.has_spoken(request)
            self._room.release()

    def has_spoken(self, request: socket.socket) -> None:
        """Its request is here as a whole: it is answered, whoever else comes."""
        with self._changing:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is nobody's news."""


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Webhook(BaseHTTPRequestHandler):
    server: AlertServer
    server_version, sys_version = "raydiag", ""

    def do_POST(self) -> None:
        """A notification."""
        status = self._refusal()
        if status is not None:
            self._answer(*status)
            return
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            self._answer(400, {"error": "the body ended early"})
            return
        self.server.has_spoken(self.connection)
        try:
            new = self.server.desk.take(alerts_of(body))
        except TooManyAlerts as error:
            self._answer(413, {"error": str(error)})
        except ValueError as error:  # also of bytes that are no text
            self._answer(400, {"error": str(error)[:200]})
        except queue.Full:
            self._answer(
                503, {"error": "too many jobs or alerts wait for a diagnosis: send it again later"}
            )
        else:
            self._answer(202, {"accepted": new})

    def do_GET(self) -> None:
        """The text of an answer."""
        place, _, fingerprint = self.path.rpartition("/")
        stranger = self._stranger()
        if stranger is not None:
            self._answer(*stranger)
        elif place == "/answers" and (text := self.server.desk.annotation(fingerprint)):
            self._answer(200, {"text": text})
        else:
            self._answer(404, {"error": "POST /alerts, GET /answers/FINGERPRINT"})

    def _refusal(self) -> tuple[int, Mapping[str, Any]] | None:
        """Why a notification is refused unread."""
        length = self.headers.get("Content-Length", "")
        stranger = self._stranger()
        if stranger is not None:
            return stranger
        if self.path != "/alerts":
            return 404, {"error": "POST /alerts"}
        if self.headers.get_content_type() != "application/json":
            return 415, {"error": "Content-Type has to be application/json"}
        if not length.isascii() or not length.isdigit() or len(length) > 12:
            return 411, {"error": "Content-Length is needed"}
        if int(length) > MOST_BYTES:
            return 413, {"error": f"more than {MOST_BYTES} bytes"}
        return None

    def _stranger(self) -> tuple[int, Mapping[str, Any]] | None:
        """Why whoever asks gets nothing at all."""
        if not _LOOPBACK_HOST.fullmatch(self.headers.get("Host", "")):
            return 403, {"error": f"the URL has to be http://{_ADDRESS}:{self.server.server_port}/"}
        if not self._is_allowed():
            return 401, {"error": "a bearer token is needed"}
        return None

    def _is_allowed(self) -> bool:
        expected = f"Bearer {self.server.token}".encode()
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        return not self.server.token or hmac.compare_digest(given, expected)

    def _answer(self, status: int, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 503:
            self.send_header("Retry-After", _RETRY_S)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not logged: what they hold is told when it is diagnosed."""
