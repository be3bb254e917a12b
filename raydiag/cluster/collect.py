"""The caller's side: submit the coordinator, follow its log, decode what the nodes answered."""

import base64
import contextlib
import functools
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Optional, cast

from raydiag import probes, records
from raydiag.cluster import bundle, frames, submission
from raydiag.cluster.address import Address
from raydiag.cluster.interrupts import undisturbed
from raydiag.cluster.jobs_api import TERMINAL, running_jobs, training_start
from raydiag.cluster.resident import caller
from raydiag.cluster.resident.caller import NoAgent
from raydiag.cluster.submission import ClusterAccess, SubmittedJob
from raydiag.errors import AgentDead, CannotRun, ParseError, UsageError
from raydiag.model import (
    Finding,
    KnownFinding,
    LastWords,
    Node,
    NodeReport,
    NodeStatus,
    ProbeResult,
    Status,
    StuckReader,
    Unread,
)
from raydiag.untrusted import inflated

if TYPE_CHECKING:
    from raydiag.cluster.jobs_api import JobsApi

# From here on it is asked whether the head still lives, again after as long and so on: the reply
# lists all nodes, and a dashboard that is slow has enough to do.
_SLOW_START_S = 10.0
_AFTER_DEADLINE_S = 0.8  # of the second that the command may take longer than its deadline
_AFTER_END_S = 2.0  # for what is asked of the dashboard besides, once the nodes have answered
_LATEST = 2.5e11  # Unix seconds; also no number that a time cannot be
_MOST_FAILURES = 3  # looks at the job in a row, a second apart: the dashboard is gone
_END = 999_999  # number of the coordinator's last message
_NODE_ANSWER_LIMIT_BYTES = 64 << 20

Progress = Callable[[int, int], None]  # nodes answered, nodes asked
Remember = Callable[[Iterable[Finding]], None]


@dataclass(frozen=True)
class ProbeRequest:
    """What to collect."""

    probes: Sequence[str]
    select: Optional[Sequence[str]]  # host names, addresses or node ids; None: every node
    deadline_s: float  # from when the coordinator asks
    options: Mapping[str, Mapping[str, Any]]  # per probe
    driver_fault_symbols: Sequence[str] = ()
    force_ras: bool = False
    interval_s: Optional[float] = None  # between the two samples of counters; None: as needed
    fresh: bool = False  # by a job of its own, also where a resident agent is up


@dataclass(frozen=True)
class Collected:
    """What came back."""

    nodes: Sequence[NodeReport]
    asked_at: float
    job_start: Optional[float]  # earliest start of the jobs that run now, Unix s
    running: Sequence[str]  # submission ids of those jobs
    cluster: Mapping[str, Any]  # address, session_name, ray_version, gcs_address, the times
    known: Optional[Sequence[KnownFinding]] = None  # what the resident agent remembers, if any
    remember: Remember = lambda _: None  # hands in what was found, to be known from then on


@contextlib.contextmanager
def collect(
    api: ClusterAccess,
    address: Address,
    request: ProbeRequest,
    progress: Progress,
    warn: Callable[[str], None],
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[Collected]:
    """Run the request on the cluster; yields the answers, and ends the job on leaving.

    `meanwhile` is called once, while the job starts: for what the caller can do in that second.
    `warn` gets a line when the job could not be ended: that changes no verdict.
    Raises CannotRun without a working cluster, UsageError for nodes that do not exist.
    """
    api.limit = math.inf  # an earlier run on this dashboard has left its own
    version = api.version()
    session = str(version.get("session_name") or "")
    call = _AskedRound(api, address, version, request, _round_request(request, session))
    with contextlib.ExitStack() as stack:
        warm = None if request.fresh else _warm(call, stack, progress, warn, meanwhile)
        if warm is None:
            warm = stack.enter_context(_by_own_job(call, progress, warn, meanwhile))
        yield warm


@dataclass(frozen=True)
class _AskedRound:
    """What is asked of which cluster."""

    api: ClusterAccess
    address: Address
    version: Mapping[str, Any]
    request: ProbeRequest
    round: Mapping[str, Any]  # what a coordinator is asked, see `_round_request`

    def collected(
        self, messages: Mapping[int, dict[str, Any]], jobs: Sequence[Mapping[str, Any]]
    ) -> Collected:
        """What came back. Raises UsageError, CannotRun for what the coordinator refuses."""
        start, end = messages.get(0), messages.get(_END, {})
        if "usage" in end:
            raise UsageError(str(end["usage"]))
        if "failed" in end:
            raise CannotRun(str(end["failed"]))
        if start is None or not _is_start(start):
            raise CannotRun("what raydiag's coordinator says first is damaged: try again")
        submission.check_cluster(self.address, self.version, start)
        login = self.address.login
        return Collected(
            nodes=reports(start["nodes"], messages, self.request.probes, self._ends(start)),
            asked_at=start["time"],
            job_start=training_start(jobs),
            running=[str(job.get("submission_id") or "") for job in running_jobs(jobs)],
            cluster={
                "address": self.api.url,
                **({"ssh": login} if login else {}),
                "gcs_address": start["gcs_address"],
                "asked_at": start["time"],
                "deadline_s": self.request.deadline_s,
                "duration_s": end.get("duration_s"),
                **self.version,
            },
        )

    def _ends(self, start: Mapping[str, Any]) -> Mapping[str, float]:
        """When the dead ones ended: one that was lost weeks ago is no news."""
        is_whole = all(row["alive"] for row in start["nodes"])
        return {} if is_whole else self.api.node_ends()


def _warm(
    call: _AskedRound,
    stack: contextlib.ExitStack,
    progress: Progress,
    warn: Callable[[str], None],
    meanwhile: Callable[[], None],
) -> Optional[Collected]:
    """By the resident agent; None where none is up that is equal and answers."""
    if call.address.is_local:
        return None
    api = cast("JobsApi", call.api)
    jobs = api.jobs()
    agent = caller.listed(jobs)
    if agent is None:
        return None
    try:
        if not agent.is_equal:
            raise NoAgent(f"the resident agent {caller.difference(agent)}")
        conversation = stack.enter_context(caller.connected(api, agent))
        conversation.say("probe", request=call.round)
        meanwhile()
        messages = conversation.round(call.round, progress)
    except NoAgent as error:
        warn(f"{error}; the nodes are asked by a job of this call's own")
        return None
    api.limit = time.monotonic() + _AFTER_END_S
    collected = call.collected(messages, jobs)
    told = {"job": agent.id, "version": agent.version, "since": messages[0].get("agent_since")}
    return replace(
        collected,
        cluster={**collected.cluster, "agent": told},
        known=caller.known(messages[0].get("known")),
        remember=functools.partial(conversation.remember, jobs=collected.running),
    )


@contextlib.contextmanager
def _by_own_job(
    call: _AskedRound,
    progress: Progress,
    warn: Callable[[str], None],
    meanwhile: Callable[[], None],
) -> Iterator[Collected]:
    """By a job that is submitted for this call, and ended on leaving."""
    api, deadline_s = call.api, call.request.deadline_s
    nonce = secrets.token_hex(8)
    package = bundle.probe_package(call.request.probes, {**call.round, **_carried(nonce)})
    longest_s = submission.START_LIMIT_S + deadline_s + _AFTER_DEADLINE_S
    job = SubmittedJob(api, package, "probe", longest_s)
    patience_s = 0.0
    jobs: Sequence[Mapping[str, Any]] = ()
    try:
        jobs = api.jobs()  # ours is among them, which counts neither way
        meanwhile()
        messages = _follow(job, nonce, deadline_s, progress)
        if _END in messages:  # the dashboard answers: calls of now need not be over with the nodes
            patience_s = 1.5
            api.limit = max(api.limit, time.monotonic() + _AFTER_END_S)
        yield call.collected(messages, jobs)
    finally:
        try:
            with undisturbed():
                job.end(patience_s)
                job.tidy(jobs)
        except CannotRun as error:
            reason = str(error).partition(". ")[0]
            warn(f"raydiag's job {job.id} may still run, until its own deadline at most: {reason}")


def _carried(nonce: str) -> dict[str, str]:
    """What a coordinator of our own is told besides."""
    return {"nonce": nonce, "entrypoint": bundle.entrypoint("node_runner")}


def _round_request(request: ProbeRequest, session: str) -> dict[str, Any]:
    """What is asked of a coordinator, be it of our own job or the resident agent's."""
    options = dict(request.options)
    if "ray_logs" in request.probes:
        # A machine may run several clusters: the logs are those of the one that was asked.
        options["ray_logs"] = {**options.get("ray_logs", {}), "session_name": session}
    return {
        "deadline_s": request.deadline_s,
        "select": None if request.select is None else list(request.select),
        "node": {
            "probes": list(request.probes),
            "options": options,
            "driver_fault_symbols": list(request.driver_fault_symbols),
            "force_ras": request.force_ras,
            "interval_s": request.interval_s,
        },
    }


def _follow(
    job: SubmittedJob, nonce: str, deadline_s: float, progress: Progress
) -> dict[int, dict[str, Any]]:
    """Read the job's log until the coordinator's end message, or until time is up.

    Raises CannotRun when nothing useful came by then.
    """
    decoder = frames.Decoder(nonce)
    messages: dict[int, dict[str, Any]] = {}
    job.api.limit = time.monotonic() + submission.START_LIMIT_S
    submitted = time.monotonic()
    next_look, next_head_look = submitted + 1.0, submitted + _SLOW_START_S
    status, failures = "PENDING", 0
    silence: Optional[AgentDead] = None
    while time.monotonic() < job.api.limit:
        began = time.monotonic()
        # Looked at before the log is read: what an ended job has printed is then all there.
        if began > next_look:
            next_look = began + 1.0
            if 0 not in messages and began > next_head_look:
                next_head_look = began + (began - submitted)
                job.api.check_head()
            try:
                status = str(job.api.job(job.id).get("status"))
                failures = failures + 1 if silence is not None else 0
            except CannotRun:
                failures += 1
        silence = job.read_into(decoder)
        for number in [n for n in decoder.messages if n not in messages]:
            try:
                messages[number] = submission.unpacked(decoder.messages.pop(number))
            except ValueError:
                continue  # as lost as one that did not come
            if number == 0:
                job.api.limit = time.monotonic() + deadline_s + _AFTER_DEADLINE_S
            elif number > _END:
                said = messages[number]
                progress(_count(said.get("answered")), _count(said.get("asked")))
        if _END in messages or status in TERMINAL or failures == _MOST_FAILURES:
            break
        # A long log takes the dashboard a while: leave it most of its time, and leave us enough
        # for one more reading before the limit.
        took_s = time.monotonic() - began
        left_s = job.api.limit - time.monotonic() - took_s
        time.sleep(max(submission.POLL_S, min(3 * took_s, left_s)))
    if _END not in messages and not any(0 < number < _END for number in messages):
        if silence is not None:
            raise silence
        job.api.limit = time.monotonic() + 1.0
        raise CannotRun(submission.why_no_answer(job))
    if decoder.disputed & {0, _END}:
        raise CannotRun(f"{frames.DISPUTED.format(f'the log of job {job.id}')}: try again")
    for number in decoder.disputed:
        reason = frames.DISPUTED.format("its name")
        messages[number] = {"status": NodeStatus.UNREACHABLE.value, "reason": reason}
    return messages


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _is_start(message: Mapping[str, Any]) -> bool:
    """Whether it is what the coordinator says first."""
    rows, time_s = message.get("nodes"), message.get("time")
    if not isinstance(rows, list) or not isinstance(time_s, (int, float)):
        return False
    if not 0 < time_s < _LATEST:
        return False
    texts = [message.get("gcs_address"), message.get("session_name")]
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("alive"), bool):
            return False
        texts.append(row.get("node_id"))
    return all(isinstance(text, str) for text in texts)


def reports(
    listed: Sequence[Mapping[str, Any]],
    messages: Mapping[int, Mapping[str, Any]],
    names: Sequence[str],
    ends: Mapping[str, float],
) -> list[NodeReport]:
    """One report per node of the cluster's list; dead ones without an answer.

    `ends`: when nodes ended, Unix s by node id.
    """
    node_reports = []
    number = 0
    for row in listed:
        node = records.decode(Node, {**row, "ended_at": ends.get(row["node_id"])})
        if node.alive:
            number += 1
            node_reports.append(_report(node, messages.get(number), names))
        else:
            words = _last_words(row.get("last_words"))
            reason = node.death_reason
            dead = NodeReport(node, NodeStatus.DEAD, reason=reason, last_words=words)
            node_reports.append(dead)
    return sorted(node_reports, key=lambda report: (report.node.host, report.node.node_id))


@dataclass(frozen=True)
class _Holds:
    """How a kind of reader was confined; see `confinement.confine`."""

    no_new_privs: bool
    seccomp: bool
    landlock_abi: int


@dataclass(frozen=True)
class _Head:
    """What a node runner says of its run, see `runner.Runner.run`, and the coordinator of it."""

    time: float
    cpu_s: float
    pid: int
    sandbox: dict[str, _Holds]  # by kind of reader
    clock_offset_s: Optional[tuple[float, float]] = None  # see `NodeReport.clock_offset_s`


def _report(node: Node, message: Optional[Mapping[str, Any]], names: Sequence[str]) -> NodeReport:
    if message is None:
        reason = "its answer was lost: nothing of it came through the job's log in time"
        return NodeReport(node, NodeStatus.TIMEOUT, reason=reason)
    duration_s = 0.0
    try:
        duration_s = float(message.get("duration_s", 0.0))
        if message["status"] != "answered":
            status = NodeStatus(message["status"])
            words = _last_words(message.get("last_words"))
            reason = str(message["reason"])
            return NodeReport(node, status, duration_s, reason=reason, last_words=words)
        answer = inflated(base64.b64decode(message["answer"]), _NODE_ANSWER_LIMIT_BYTES)
        results = {name: _result(name, answer["probes"][name]) for name in names}
        stuck = [records.decode(StuckReader, item) for item in answer["stuck"]]
        clock_offset_s = message.get("clock_offset_s")  # never the node's own word
        head = records.decode(_Head, {**answer, "clock_offset_s": clock_offset_s})
    except Exception as error:
        # Whatever a node sends costs its own report and no other's.
        reason = f"its answer cannot be decoded: {type(error).__name__}: {error}"[:300]
        return NodeReport(node, NodeStatus.UNREACHABLE, duration_s, reason=reason)
    broken = []
    for name, result in results.items():
        if result.status in (Status.TIMEOUT, Status.ERROR):
            broken.append(f"{name} {result.status.value}: {result.reason}")
    return NodeReport(
        node=node,
        status=NodeStatus.PARTIAL if broken else NodeStatus.OK,
        duration_s=duration_s,
        reason="; ".join(broken),
        probes=results,
        stuck=stuck,
        sandbox={kind: asdict(holds) for kind, holds in head.sandbox.items()},
        collected_at=head.time,
        cpu_s=head.cpu_s,
        pid=head.pid,
        clock_offset_s=head.clock_offset_s,
    )


def _last_words(data: Any) -> Optional[LastWords]:
    """None where nothing is remembered, or what is makes no sense."""
    if data is None:
        return None
    with contextlib.suppress(ParseError, TypeError):
        return records.decode(LastWords, data)
    return None


def _decoded(record: type, items: Sequence[Any]) -> tuple[list[Any], list[ParseError]]:
    """The records, and what was wrong with others: one odd value costs its own record."""
    decoded: list[Any] = []
    errors: list[ParseError] = []
    for item in items:
        try:
            decoded.append(records.decode(record, item))
        except ParseError as error:
            errors.append(error)
    return decoded, errors


def _result(name: str, data: Mapping[str, Any]) -> ProbeResult:
    record = probes.load(name).record
    status, reason = Status(data["status"]), str(data["reason"])
    decoded, errors = _decoded(record, data["records"])
    later, later_errors = _decoded(record, data.get("later", []))
    if errors + later_errors:
        first = (errors + later_errors)[0]
        status, reason = Status.ERROR, f"records from the node are wrong: {first}"
    unread = [Unread(str(source), Status(s), str(cause)) for source, s, cause in data["unread"]]
    duration_s, interval_s = float(data["duration_s"]), float(data.get("interval_s", 0.0))
    return ProbeResult(name, status, duration_s, reason, decoded, unread, later, interval_s)
