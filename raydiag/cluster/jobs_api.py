"""Ray's dashboard over HTTP: the Jobs API and the state API, without Ray's own SDK.

The SDK would tie the caller to the cluster's Ray version and cost a second of imports.
Source: Ray's `dashboard/modules/job` and `dashboard/modules/state`; checked on Ray 2.60.
"""

import contextlib
import ipaddress
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.resources import files
from typing import Any, Optional, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import requests

from raydiag.cluster.address import Forward
from raydiag.cluster.afterwards import do_afterwards
from raydiag.errors import AgentDead, AuthenticationFailed, CannotRun
from raydiag.model import Actor
from raydiag.untrusted import parsed, regular

_TOKEN_LIMIT_BYTES = 1 << 16
_T = TypeVar("_T")

TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")
SUBMISSION_PREFIX = "raydiag-"
_AGENT_START_S = 20.0
_TIMEOUT_S = (5.0, 20.0)  # connect, read
# Ray's monitor looks once a second for the end of a job, and may need two looks. What is deleted
# before comes back as FAILED.
_MONITORED_S = 2.2
_FORGETTING_S = 5.0
_FORGETTING = files(__package__).joinpath("forgetting.py").read_text("utf-8")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_UNREACHED = re.compile(r"Cannot connect to host (\S+:\d+)")  # aiohttp's, of an agent
_LOG_LINES = 100_000
_LOG_BYTES = 64 << 20
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOG_S = 30.0


@dataclass(frozen=True)
class PrintedLog:
    """What a job has printed; `reason` says why that is not all, where it is not."""

    text: str = ""
    reason: str = ""


class _NoReplyInTime(CannotRun):
    """It takes the connection, and does not answer."""


class JobsApi:
    """One dashboard. Every method raises CannotRun, with what to do next, when it does not work."""

    def __init__(
        self, url: str, token: Optional[str] = None, through: Optional[Forward] = None
    ) -> None:
        """`url` is for people; with `through`, the connections go to the forward's own port."""
        self.url, self._through = url.rstrip("/"), through
        self.limit = math.inf  # time.monotonic() at which calls have to be over
        self._place = self.url if through is None else f"{self.url} through ssh {through.login}"
        self._base = self.url if through is None else through.url.rstrip("/")
        self._token = token
        self._ahead_s: Optional[float] = None  # the head's clock, of ours
        self._session = requests.Session()
        # A proxy of the environment cannot reach them.
        self._session.trust_env = not _is_private(self._base)

    def version(self) -> dict[str, Any]:
        """{"ray_version", "session_name", ...}; proves that the URL is a Ray dashboard."""
        reply = self._call("GET", "/api/version")
        if "ray_version" not in reply:
            raise CannotRun(self._not_ray("/api/version"))
        return {"ray_version": reply["ray_version"], "session_name": reply.get("session_name")}

    def token_is_needed(self) -> bool:
        """Whether the dashboard refuses who has no token."""
        token, self._token = self._token, None
        try:
            return self._send("GET", "/api/version").status_code in (401, 403)
        finally:
            self._token = token

    def upload(self, name: str, content: bytes) -> None:
        """Put a package of ours into the control store, where our job takes it from."""
        path = f"/api/packages/gcs/{name}"
        self._accepted(path, self._send("PUT", path, data=content))

    def head_time(self) -> Optional[float]:
        """Unix s by the head's clock, to a second or two; None while no reply has told it."""
        return None if self._ahead_s is None else time.time() + self._ahead_s

    def submit(self, entrypoint: str, submission_id: str, metadata: Mapping[str, str]) -> None:
        """Submit a job of ours with 0 CPU and 0 GPU and no runtime environment."""
        body = {
            "entrypoint": entrypoint,
            "submission_id": submission_id,
            "runtime_env": {},
            "metadata": dict(metadata),
            "entrypoint_num_cpus": 0,
            "entrypoint_num_gpus": 0,
        }
        limit = time.monotonic() + _AGENT_START_S
        while True:
            try:
                self._call("POST", "/api/jobs/", json=body)
                return
            except _NoReplyInTime:
                if self._ahead_s is None:
                    raise
                raise CannotRun(
                    f"{self._place} answers, but Ray's dashboard agent on the head node, which "
                    "starts jobs, does not: is it stopped or stuck? Look there for the process "
                    "ray::DashboardAgent and into dashboard_agent.log; training goes on without it"
                ) from None
            except CannotRun as error:
                # The dashboard answers some seconds before the agent that starts jobs does.
                if "No available agent" not in str(error) or time.monotonic() > limit:
                    raise
            time.sleep(0.3)

    def job(self, submission_id: str) -> dict[str, Any]:
        """Status and details of one job."""
        details: dict[str, Any] = self._call("GET", f"/api/jobs/{submission_id}")
        return details

    def logs(self, submission_id: str) -> str:
        """Everything the job has printed so far; empty while it has no log. Raises AgentDead."""
        try:
            return str(self._call("GET", f"/api/jobs/{submission_id}/logs").get("logs") or "")
        except AgentDead:
            raise
        except CannotRun:
            return ""

    def printed(self, submission_id: str) -> PrintedLog:
        """What somebody's job has printed: all of a log that is not too long, else its end.

        Its end is asked for first: for all of it the cluster itself reads the file as a whole.
        """
        limit = time.monotonic() + _LOG_S
        try:
            node = str(self.job(submission_id).get("driver_node_id") or "")
            name = f"job-driver-{submission_id}.log"
            query = {"node_id": node, "filename": name, "lines": _LOG_LINES, "format": "text"}
            path = f"/api/v0/logs/file?{urlencode(query)}"
            status, body, complete = self._streamed(path, limit) if node else (0, b"", True)
            if status == 200:
                return _end_of(body, complete)
        except CannotRun as error:
            is_stuck = isinstance(error, _NoReplyInTime)  # both ways lead to the same agent
            if is_stuck or time.monotonic() > limit:
                return PrintedLog(reason=f"Ray does not give its log: {error}")
        path = f"/api/jobs/{quote(submission_id, safe='')}/logs"
        try:
            status, body, complete = self._streamed(path, limit)
            if not complete:
                limits = f"{_LOG_BYTES >> 20} MiB, or did not come within {_LOG_S:.0f} s"
                return PrintedLog(reason=f"its log is longer than {limits}: name its directory")
            if status == 200:
                return PrintedLog(str(parsed(body, _LOG_BYTES).get("logs") or ""))
            return PrintedLog(reason=f"Ray does not give its log: HTTP {status}")
        except (CannotRun, ValueError, AttributeError) as error:
            return PrintedLog(reason=f"Ray does not give its log: {error}")

    def _streamed(self, path: str, limit: float) -> tuple[int, bytes, bool]:
        """Status, body, and whether that is all of it: no more than `_LOG_BYTES`, and in time."""
        parts, size = [], 0
        try:
            with self._send("GET", path, stream=True) as reply:
                for chunk in reply.iter_content(1 << 16):
                    parts.append(chunk)
                    size += len(chunk)
                    if size > _LOG_BYTES or time.monotonic() > limit:
                        return reply.status_code, b"".join(parts), False
                return reply.status_code, b"".join(parts), True
        except requests.exceptions.RequestException as error:
            raise CannotRun(f"{self._place}: broken off: {_cause(error)}") from None

    def stop(self, submission_id: str) -> None:
        """Stop a job of ours; any other is refused."""
        if not submission_id.startswith(SUBMISSION_PREFIX):
            raise CannotRun(f"{submission_id} is not raydiag's job: it is not stopped")
        self._call("POST", f"/api/jobs/{submission_id}/stop")

    @contextlib.contextmanager
    def reach(self, port: int) -> Iterator[tuple[str, int]]:
        """Where a port of the head's loopback is to be had from here, while the block runs."""
        if self._through is None:
            if urlsplit(self.url).hostname not in _LOOPBACK:
                raise CannotRun("it listens on the head's loopback: use --ssh, or run this there")
            yield ("127.0.0.1", port)
            return
        with self._through.to(f"http://127.0.0.1:{port}") as forward:
            yield ("127.0.0.1", urlsplit(forward.url).port or 0)

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs that Ray remembers, also those that were not submitted."""
        return [job for job in self._call("GET", "/api/jobs/", list) if isinstance(job, dict)]

    def delete(self, submission_id: str) -> None:
        """Let Ray forget a job of ours that has ended; any other is refused."""
        if not submission_id.startswith(SUBMISSION_PREFIX):
            raise CannotRun(f"{submission_id} is not raydiag's job: it is not deleted")
        self._send("DELETE", f"/api/jobs/{submission_id}")

    def forget(self, submission_id: str) -> None:
        """Let Ray forget a job of ours that has ended a moment ago, as soon as that lasts.

        Without a forward nobody waits for that: a process of its own does it, within some seconds.
        """
        if self._through is None:
            told: dict[str, Any] = {
                "url": f"{self._base}/api/jobs/{submission_id}",
                "token": self._token,
            }
            told |= {"monitored_s": _MONITORED_S, "is_near": not self._session.trust_env}
            do_afterwards(_FORGETTING, told, _PROXIES)
            return
        time.sleep(_MONITORED_S)
        self.limit = time.monotonic() + _FORGETTING_S
        self.delete(submission_id)

    def check_head(self) -> None:
        """Raises AgentDead where Ray has declared the node of the head dead."""
        heads = self._state("nodes?detail=1&limit=10000", _head)
        if heads and not any(alive for alive, _ in heads):
            reason = f": {heads[-1][1]}" if heads[-1][1] else ""
            raise self._agent_dead(f"the raylet of the head node is dead{reason}")

    def node_ends(self) -> dict[str, float]:
        """When nodes ended, Unix s by node id; those that live, or are not told of, are absent."""
        return dict(self._state("nodes?detail=1&limit=10000", _node_end))

    def actors(self) -> list[Actor]:
        """Actors of all jobs, dead ones too (as far as Ray remembers); empty when not to be had."""
        return self._state("actors?limit=10000", _actor)

    def _state(self, path: str, read: Callable[[Any], Optional[_T]]) -> list[_T]:
        """What the state API lists, without rows that are nothing; empty when not to be had."""
        try:
            reply = self._call("GET", f"/api/v0/{path}")
            rows = map(read, reply["data"]["result"]["result"])
            return [row for row in rows if row is not None]
        except (CannotRun, ValueError, KeyError, TypeError, AttributeError):
            return []

    def _call(self, method: str, path: str, kind: type = dict, **options: Any) -> Any:
        """The reply's JSON, a `kind`."""
        reply = self._send(method, path, **options)
        self._accepted(path, reply)
        try:
            content = reply.json()
        except ValueError:
            content = None
        if not isinstance(content, kind):
            raise CannotRun(self._not_ray(path))
        return content

    def _accepted(self, path: str, reply: requests.Response) -> None:
        """Raises CannotRun for an error of HTTP."""
        if reply.status_code in (401, 403):
            demand = "refuses the token" if self._token else "requires a token"
            raise AuthenticationFailed(
                f"{self._place} {demand}: give this cluster's own in RAY_AUTH_TOKEN, in the file "
                "that RAY_AUTH_TOKEN_PATH names, or in ~/.ray/auth_token"
            )
        agent = _UNREACHED.search(reply.text) if reply.status_code >= 500 else None
        if agent:
            raise self._agent_dead(f"the Ray agent at {agent[1]} is dead, or the raylet above it")
        if reply.status_code >= 400:
            raise CannotRun(f"{self._place}{path}: {_http_error(reply)}")

    def _agent_dead(self, words: str) -> AgentDead:
        return AgentDead(
            f"{words}, says {self._place} (ray-node-dead). Without it no job starts and no log is "
            "read: look at raylet.out and dashboard_agent.log in its session, and restart Ray there"
        )

    def _send(self, method: str, path: str, **options: Any) -> requests.Response:
        left_s = max(0.1, self.limit - time.monotonic())
        options["timeout"] = tuple(min(left_s, usual_s) for usual_s in _TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            reply = self._session.request(method, self._base + path, headers=headers, **options)
        except requests.exceptions.ConnectionError as error:
            raise CannotRun(
                f"no Ray dashboard at {self._place}: {_cause(error)}. Is the cluster up (a job "
                "that has ended takes its dashboard along), and is this its head node? Give "
                "--address http://HEAD:PORT, or --address local to look at this machine"
            ) from None
        except requests.exceptions.Timeout:
            raise _NoReplyInTime(
                f"{self._place} takes connections and does not answer: is the head node "
                "overloaded, or is this another port than the dashboard's? Give --address http://HEAD:PORT"
            ) from None
        except (requests.exceptions.RequestException, ValueError) as error:
            hint = "give the dashboard's URL with --address"
            raise CannotRun(f"{self._place}: {error}: {hint}") from None
        with contextlib.suppress(KeyError, TypeError, ValueError):  # no date, or no date's form
            self._ahead_s = parsedate_to_datetime(reply.headers["Date"]).timestamp() - time.time()
        return reply

    def _not_ray(self, path: str) -> str:
        return (
            f"{self._place} answers, but {path} is not that of a Ray dashboard: "
            "give the dashboard's URL with --address"
        )


def _node_end(row: Any) -> Optional[tuple[str, float]]:
    ended_ms = row.get("end_time_ms")
    return (str(row["node_id"]), float(ended_ms) / 1000) if ended_ms else None


def _head(row: Any) -> Optional[tuple[bool, str]]:
    """Whether it lives, and what Ray says of it; None for a node that is not the head."""
    if not row.get("is_head_node"):
        return None
    return row.get("state") != "DEAD", str(row.get("state_message") or "")


def _actor(row: Any) -> Optional[Actor]:
    names = ("node_id", "name", "job_id")
    texts = {name: str(row.get(name) or "") for name in names}
    # Of a class inside a function Ray's list has the whole path, its workers not.
    class_name = str(row.get("class_name") or "").rpartition(".")[2]
    if row.get("class_name") == "RaydiagNodeActor":
        return None
    pid, alive = int(row.get("pid") or 0), row.get("state") == "ALIVE"
    return Actor(**texts, class_name=class_name, pid=pid, alive=alive)


def _end_of(body: bytes, complete: bool) -> PrintedLog:
    """The last lines of a log; where they may not be all, that is said."""
    if not complete:
        reason = f"its log did not come within {_LOG_S:.0f} s and {_LOG_BYTES >> 20} MiB"
        return PrintedLog(reason=f"{reason}: name its directory")
    lines = body.count(b"\n")
    text = body.decode("utf-8", "replace")
    if lines < _LOG_LINES - 1:
        return PrintedLog(text)
    reason = f"of a long log the last {_LOG_LINES} lines were read, without its start"
    return PrintedLog(text, reason)


def _cause(error: BaseException) -> str:
    """What the system said, without the layers that requests puts around it."""
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or str(error)


def _http_error(reply: requests.Response) -> str:
    page = "html" in reply.headers.get("Content-Type", "")
    words = str(reply.reason) if page else " ".join(reply.text.split())[-300:]
    if reply.status_code >= 500:
        hint = "Ray's side of it is in dashboard.log on the head node"
    else:
        hint = "if this is no Ray dashboard, give the dashboard's URL with --address"
    return f"HTTP {reply.status_code}: {words}; {hint}"


def is_ours(job: Mapping[str, Any]) -> bool:
    """Whether a row of `jobs` is a job of raydiag's."""
    return str(job.get("submission_id") or "").startswith(SUBMISSION_PREFIX)


def running_jobs(jobs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of `jobs` that run now, ours left out."""
    return [job for job in jobs if job.get("status") == "RUNNING" and not is_ours(job)]


def training_start(jobs: Iterable[Mapping[str, Any]]) -> Optional[float]:
    """Earliest start (Unix s) of the jobs that run now, ours left out; None without any."""
    starts = [job.get("start_time") for job in running_jobs(jobs)]
    return min((float(start) / 1000 for start in starts if start), default=None)


def token() -> Optional[str]:
    """The cluster's token, looked up where Ray itself looks it up; None without one."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return None
    origin, text = "RAY_AUTH_TOKEN", os.environ.get("RAY_AUTH_TOKEN", "")
    if not text:
        named = os.environ.get("RAY_AUTH_TOKEN_PATH")
        origin = named or os.path.expanduser("~/.ray/auth_token")
        try:
            with open(origin, "rb", opener=regular) as file:
                text = file.read(_TOKEN_LIMIT_BYTES).decode("utf-8", "replace")
        except OSError as error:
            if named:
                reason = f"RAY_AUTH_TOKEN_PATH: {named}: {error.strerror}"
                raise AuthenticationFailed(reason) from None
            return None
    text = text.strip()
    if not all("!" <= char <= "~" for char in text):
        # As a header it would be refused by a message that shows it.
        raise AuthenticationFailed(f"{origin} does not hold a token, which has no blanks inside")
    return text or None


def _is_private(url: str) -> bool:
    """An address that is not routed, or a name without a domain: both mean this site only."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host
