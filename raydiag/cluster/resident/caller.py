"""The caller's side of the resident agent: is one up, is it equal, and its answers.

No ray here. On anything odd the caller goes the long way, by a job of his own, and says why.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from raydiag import __version__, probes, records
from raydiag.cluster import bundle, frames, submission
from raydiag.cluster.jobs_api import TERMINAL
from raydiag.cluster.resident import wire
from raydiag.errors import CannotRun, ParseError, RaydiagError
from raydiag.model import Finding, KnownFinding

if TYPE_CHECKING:
    from raydiag.cluster.jobs_api import JobsApi

KIND = "agent"
SECRET, NONCE, CODE = "raydiag_agent_secret", "raydiag_agent_nonce", "raydiag_agent_code"
_CONNECT_S = 2.0
_THROUGH_SSH_S = 10.0
_STATUS_S = 5.0
HISTORY_S = 20.0
_ROUND_MARGIN_S = 0.8
_SILENCE_S = 8.0  # it says twice a second that a round goes on, unless its machine is short of CPU
END, PROGRESS = 999_999, 1_000_000  # numbers of messages, as in `coordinator`

Progress = Callable[[int, int], None]  # nodes answered, nodes asked


class NoAgent(RaydiagError):
    """It is not up, is another version, or does not answer; the message says which."""


@dataclass(frozen=True)
class AgentJob:
    """The resident agent as Ray lists it."""

    id: str
    secret: str
    nonce: str  # marks the frames in its log
    version: str
    code: str  # digest of what it runs
    started_at: Optional[float]  # Unix s, by Ray

    @property
    def is_equal(self) -> bool:
        """Whether it runs what we would send."""
        return self.version == __version__ and self.code == our_code()


def known(rows: Any) -> list[KnownFinding]:
    """What an agent remembers; what makes no sense is left out."""
    findings = []
    for row in rows if isinstance(rows, list) else ():
        with contextlib.suppress(ParseError, TypeError, AttributeError):
            fields = {**row, "failure_class": row.pop("class", "")}
            findings.append(records.decode(KnownFinding, fields))
    return findings


def difference(agent: AgentJob) -> str:
    """Why an agent is not used, for people."""
    if agent.version != __version__:
        versions = f"is version {agent.version}, this is {__version__}"
    else:
        versions = f"has other code than this {__version__}"
    return f"{versions}: `raydiag agent up --replace`"


def our_code() -> str:
    """Digest of what an agent of ours runs."""
    return bundle.digest(bundle.agent_modules(probes.names()))


def listed(jobs: Sequence[Mapping[str, Any]]) -> Optional[AgentJob]:
    """The agent among Ray's jobs that has not ended; the newest, should there be two."""
    rows = [job for job in jobs if _is_agent(job) and job.get("status") not in TERMINAL]
    if not rows:
        return None
    row = max(rows, key=_started_ms)
    metadata = row["metadata"]
    started_ms = _started_ms(row)
    return AgentJob(
        id=str(row["submission_id"]),
        secret=str(metadata.get(SECRET, "")),
        nonce=str(metadata.get(NONCE, "")),
        version=str(metadata.get("raydiag_version", "")),
        code=str(metadata.get(CODE, "")),
        started_at=started_ms / 1000 if started_ms else None,
    )


def _is_agent(job: Mapping[str, Any]) -> bool:
    metadata = job.get("metadata")
    is_one = isinstance(metadata, dict) and metadata.get("raydiag") == KIND
    return is_one and bool(job.get("submission_id"))


def _started_ms(job: Mapping[str, Any]) -> float:
    start = job.get("start_time")
    return float(start) if isinstance(start, (int, float)) else 0.0


@contextlib.contextmanager
def connected(api: JobsApi, agent: AgentJob) -> Iterator[Conversation]:
    """Talk to the agent while the block runs. Raises NoAgent where it cannot be reached."""
    port = _port(api, agent)
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(api.reach(port))
        except CannotRun as error:
            raise NoAgent(f"the resident agent is not reached: {error}") from None
        limit_s = _CONNECT_S if place[1] == port else _THROUGH_SSH_S
        try:
            connection = stack.enter_context(socket.create_connection(place, limit_s))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            channel = wire.introduced(connection, agent.secret, limit_s)
        except (OSError, wire.NotTrusted) as error:
            raise NoAgent(f"the resident agent {agent.id} is not reached: {error}") from None
        yield Conversation(agent, channel)


class Conversation:
    """A connection to the agent that both sides have proved; each method raises NoAgent."""

    def __init__(self, agent: AgentJob, channel: wire.Channel) -> None:
        self.agent = agent
        self._channel = channel

    def say(self, wanted: str, **values: Any) -> None:
        """Send what is wanted; see `driver`."""
        try:
            self._channel.send({"do": wanted, **values})
        except OSError as error:
            raise self._broken(error) from None

    def hear(self, limit_s: float) -> dict[str, Any]:
        """The next message."""
        try:
            return self._channel.receive(limit_s)
        except (OSError, EOFError, ValueError) as error:
            raise self._broken(error) from None

    def round(self, request: Mapping[str, Any], progress: Progress) -> dict[int, dict[str, Any]]:
        """The messages of a round that was asked for, by number, until its end message."""
        messages: dict[int, dict[str, Any]] = {}
        until = time.monotonic() + float(request["deadline_s"]) + _ROUND_MARGIN_S
        while END not in messages:
            message = self.hear(max(min(until - time.monotonic(), _SILENCE_S), 0.01))
            number = message.get("number")
            if not isinstance(number, int):
                raise self._broken("a message has no number")
            if number < PROGRESS:
                messages[number] = message
            else:
                progress(_count(message.get("answered")), _count(message.get("asked")))
        if messages[END].get("busy"):
            raise NoAgent(f"the resident agent {self.agent.id} is at another caller's round")
        return messages

    def remember(self, findings: Iterable[Finding], jobs: Sequence[str]) -> None:
        """Hand in what a probe has found, and the jobs that ran; nobody waits for it."""
        found = []
        for finding in findings:
            names = dict(zip(("class", "host", "gpu", "device"), finding.key))
            severity = finding.severity.value if finding.severity else ""
            found.append({**names, "severity": severity})
        with contextlib.suppress(NoAgent):
            self.say("remember", found=found, jobs=list(jobs))

    def _broken(self, reason: object) -> NoAgent:
        return NoAgent(f"the resident agent {self.agent.id} broke off: {reason}")


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _port(api: JobsApi, agent: AgentJob) -> int:
    """What it has printed; it is there some seconds after the start."""
    decoder = frames.Decoder(agent.nonce)
    decoder.feed(api.logs(agent.id))
    try:
        port = submission.unpacked(decoder.messages[0])["port"]
    except (KeyError, ValueError):
        raise NoAgent(f"the resident agent {agent.id} has not said yet where it listens") from None
    if not isinstance(port, int) or not 0 < port < 1 << 16:
        raise NoAgent(f"the resident agent {agent.id} names no port")
    return port


def asked(api: JobsApi, agent: AgentJob, wanted: str, limit_s: float = _STATUS_S) -> dict[str, Any]:
    """The answer to `status`, `history` or `leave`. Raises NoAgent."""
    with connected(api, agent) as conversation:
        conversation.say(wanted)
        return conversation.hear(limit_s)
