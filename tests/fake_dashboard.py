"""A Ray dashboard on loopback, as far as raydiag talks to one, whose jobs run nothing.

What a job would have printed comes from a function over the request that was really submitted, so
the tests write frames with the very nonce that the caller waits for.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Optional

from raydiag.cluster import frames

SESSION = "session_2026-01-02_03-04-05_000006_7"
GCS = "10.1.0.1:6379"
END = 999_999


@dataclass
class Reply:
    """What the server says to one request, instead of what Ray would."""

    status: int = 200
    body: str = ""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """One request that arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class FakeDashboard:
    """`overrides` replaces replies, by route: "GET /api/version", "POST JOB/stop", "GET JOB/"."""

    def __init__(self) -> None:
        self.token: Optional[str] = None
        self.overrides: dict[str, Reply] = {}
        self.once: dict[str, Reply] = {}  # likewise, for the first request only
        self.jobs: list[dict[str, Any]] = []  # what GET /api/jobs/ lists
        self.log: Callable[[Mapping[str, Any]], str] = lambda request: ""
        self.status = "RUNNING"  # of our job once its log has been read
        self.message = ""
        self.asked: list[Asked] = []
        self.silent = threading.Event()  # set: take connections and answer nothing
        self.over = threading.Event()
        self.submitted: Optional[dict[str, Any]] = None
        self.packages: dict[str, bytes] = {}  # what was sent ahead, by name
        self.stopped: list[str] = []
        self.forgotten: list[str] = []
        self.start_time: Optional[int] = None  # of our job, in ms: then it is in the list too
        self._read = False
        dashboard = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                dashboard.handle(self)

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.002,))
        self._thread.start()

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handle(self, http: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = http.rfile.read(int(http.headers.get("Content-Length") or 0))
        self.asked.append(Asked(http.command, http.path, dict(http.headers), body))
        if self.silent.is_set():
            self.over.wait(10)
            return
        reply = self._reply(http.command, http.path, http.headers.get("Authorization"), body)
        http.send_response(reply.status)
        http.send_header("Content-Type", reply.content_type)
        for name, value in reply.headers.items():
            http.send_header(name, value)
        content = reply.body.encode()
        http.send_header("Content-Length", str(len(content)))
        with contextlib.suppress(ConnectionError):  # the caller may be gone
            http.end_headers()
            http.wfile.write(content)

    def _reply(self, method: str, path: str, authorization: Optional[str], body: bytes) -> Reply:
        if self.token and authorization != f"Bearer {self.token}":
            return Reply(401 if not authorization else 403, "no", "text/plain")
        path, submission_id = path.partition("?")[0], ""
        if path.startswith("/api/jobs/") and path != "/api/jobs/":
            submission_id, _, rest = path.removeprefix("/api/jobs/").partition("/")
            path = f"JOB/{rest}"
        route = f"{method} {path}"
        if route in self.once:
            return self.once.pop(route)
        if route in self.overrides:
            return self.overrides[route]
        answer = self._answer(route, submission_id, body)
        return Reply(404, "404: Not Found", "text/plain") if answer is None else answer

    def _answer(self, route: str, submission_id: str, body: bytes) -> Optional[Reply]:
        if route == "GET /api/version":
            return _json({"version": "4", "ray_version": "2.60.0", "session_name": SESSION})
        if route == "GET /api/jobs/":
            return _json([*self.jobs, *self._own_row()])
        if route == "POST /api/jobs/":
            self.submitted = json.loads(body)
            return _json({"job_id": self.submitted["submission_id"]})
        if route.startswith("PUT /api/packages/gcs/"):
            self.packages[route.rpartition("/")[2]] = body
            return Reply()
        if route == "DELETE JOB/":
            self.forgotten.append(submission_id)
            return _json({"deleted": True})
        if route == "POST JOB/stop":
            self.stopped.append(submission_id)
            self.status = "STOPPED"
            return _json({"stopped": True})
        if self.submitted is None or submission_id != self.submitted["submission_id"]:
            return None
        if route == "GET JOB/logs":
            self._read = True
            return _json({"logs": self.log(self.carried()["request"])})
        status = self.status if self._read else "PENDING"
        return _json({"submission_id": submission_id, "status": status, "message": self.message})

    def carried(self) -> dict[str, Any]:
        """What the job has been sent: {"program", "modules", "request"}."""
        assert self.submitted is not None
        (content,) = [
            c for name, c in self.packages.items() if name in self.submitted["entrypoint"]
        ]
        return carried(content)

    def _own_row(self) -> list[dict[str, Any]]:
        if self.submitted is None or self.start_time is None:
            return []
        return [{"submission_id": self.submitted["submission_id"], "start_time": self.start_time}]


def _json(value: Any) -> Reply:
    return Reply(body=json.dumps(value))


def carried(content: bytes) -> dict[str, Any]:
    """What travels in a package: {"program", "modules", "request"}."""
    return dict(json.loads(zlib.decompress(content)))


def node(number: int, alive: bool = True) -> dict[str, Any]:
    """A node as the coordinator lists it."""
    return {
        "node_id": f"{number:056x}",
        "alive": alive,
        "hostname": f"node{number:03d}.example.com",
        "address": f"10.1.0.{number}",
        "death_reason": "" if alive else "UNEXPECTED_TERMINATION: health check failed",
    }


def start_message(*nodes: Mapping[str, Any], **changed: Any) -> dict[str, Any]:
    """The coordinator's first message."""
    return {
        "time": 1_767_323_045.0,
        "gcs_address": GCS,
        "session_name": SESSION,
        "ray_version": "2.60.0",
        "nodes": list(nodes),
        **changed,
    }


def packed(answer: Any) -> dict[str, Any]:
    """A node's message with that answer."""
    data = base64.b64encode(zlib.compress(json.dumps(answer).encode())).decode()
    return {"status": "answered", "answer": data, "duration_s": 0.5}


def framed(nonce: str, messages: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a job's log that carry these messages."""
    for number, message in messages.items():
        yield from frames.encode(nonce, number, zlib.compress(json.dumps(message).encode()))
