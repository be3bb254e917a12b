"""The caller's side of the resident agent's life: start it, look at it, stop it."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from raydiag import __version__, probes
from raydiag.cluster import bundle, frames, submission
from raydiag.cluster.address import Address
from raydiag.cluster.jobs_api import TERMINAL
from raydiag.cluster.resident import caller
from raydiag.cluster.resident.caller import AgentJob, NoAgent
from raydiag.cluster.submission import SubmittedJob
from raydiag.errors import CannotRun

if TYPE_CHECKING:
    from raydiag.cluster.jobs_api import JobsApi

_SECRET_BYTES = 32
_CALLS_S = 10.0
_ROUND_DEADLINE_S = 30.0
# What rounds that nobody asked for look at: nothing that a fault of a GPU driver hangs.
ROUND_PROBES = ("kernel_log", "d_state", "memory", "rdma")


@dataclass(frozen=True)
class AgentOptions:
    """How an agent is to be."""

    every_s: float = 0.0  # between rounds of its own; 0: none
    metrics_port: int = 0  # of loopback; 0: none


@dataclass(frozen=True)
class AgentState:
    """What there is: `job` None without an agent, `status` None where it does not answer."""

    outcome: str  # started, replaced, was up, up, none, stopped
    job: Optional[AgentJob] = None
    status: Optional[Mapping[str, Any]] = None
    reason: str = ""  # why it cannot be used
    log: Sequence[str] = ()

    @property
    def is_usable(self) -> bool:
        """Whether probes go through it."""
        return self.status is not None and self.job is not None and self.job.is_equal


def state(api: JobsApi, outcome: str = "up") -> AgentState:
    """Of the agent that is up, if one is."""
    agent = caller.listed(api.jobs())
    if agent is None:
        return AgentState("none", reason="no resident agent is up: `raydiag agent up` starts one")
    try:
        status = caller.asked(api, agent, "status")
    except NoAgent as error:
        return AgentState(outcome, agent, reason=str(error))
    reason = "" if agent.is_equal else f"it {caller.difference(agent)}"
    return AgentState(outcome, agent, status, reason)


def up(
    api: JobsApi,
    address: Address,
    options: AgentOptions,
    round_options: Mapping[str, Any],
    replace: bool,
) -> AgentState:
    """Have an agent of this version up. Raises CannotRun where another one is in the way.

    `round_options`: what probes are told in rounds of its own, by probe.
    """
    with api.reach(1):
        pass  # or it would never be reached from here
    before = caller.listed(api.jobs())
    if before is not None and not replace:
        if not before.is_equal:
            raise CannotRun(f"the resident agent {before.id} {caller.difference(before)}")
        there = state(api, "was up")
        if there.status is None:
            raise CannotRun(f"{there.reason}: `raydiag agent up --replace`")
        _check_options(there.status, options)
        return there
    if before is not None:
        _stop(api, before)
    _start(api, address, options, round_options)
    return state(api, "replaced" if before is not None else "started")


def _check_options(status: Mapping[str, Any], options: AgentOptions) -> None:
    wanted = {"--every": options.every_s, "--metrics-port": options.metrics_port}
    present = {"--every": status.get("every_s"), "--metrics-port": status.get("metrics_port")}
    for name, value in wanted.items():
        if value and value != present[name]:
            raise CannotRun(
                f"the resident agent is up with {name} {present[name]:g}, and {value:g} is asked "
                "for: `raydiag agent up --replace` with all options that it shall have"
            )


def _start(
    api: JobsApi, address: Address, options: AgentOptions, round_options: Mapping[str, Any]
) -> None:
    version = api.version()
    sources = bundle.agent_modules(probes.names())
    secret, nonce = secrets.token_hex(_SECRET_BYTES), secrets.token_hex(8)
    request = {
        "secret": secret,
        "nonce": nonce,
        "version": __version__,
        "every_s": options.every_s,
        "metrics_port": options.metrics_port,
        "round": {
            "deadline_s": _ROUND_DEADLINE_S,
            "select": None,
            "node": {"probes": ROUND_PROBES, "options": round_options, "interval_s": None},
        },
    }
    package = bundle.agent_package(sources, request)
    told = {caller.SECRET: secret, caller.NONCE: nonce, caller.CODE: bundle.digest(sources)}
    job = SubmittedJob(api, package, caller.KIND, more=told)
    try:
        submission.check_cluster(address, version, _first_words(job, nonce))
    except BaseException:
        with contextlib.suppress(CannotRun):
            job.end(0.0)
            job.tidy(api.jobs())
        raise


def _first_words(job: SubmittedJob, nonce: str) -> dict[str, Any]:
    """What the agent says once it listens. Raises CannotRun when it does not come to that."""
    decoder = frames.Decoder(nonce)
    limit = time.monotonic() + submission.START_LIMIT_S
    while time.monotonic() < limit:
        job.api.limit = limit
        # Looked at before the log is read: what an ended job has printed is then all there.
        has_ended = job.api.job(job.id).get("status") in TERMINAL
        job.read_into(decoder)
        if 0 in decoder.messages:
            return submission.unpacked(decoder.messages[0])
        if has_ended:
            break
        time.sleep(submission.POLL_S)
    job.api.limit = time.monotonic() + _CALLS_S
    raise CannotRun(submission.why_no_answer(job))


def down(api: JobsApi, keep_memory: bool) -> AgentState:
    """Stop the agent and leave nothing of it. Raises CannotRun when it does not stop."""
    agent = caller.listed(api.jobs())
    if agent is None:
        return AgentState("none")
    reason = ""
    if not keep_memory:
        try:
            caller.asked(api, agent, "leave")
        except NoAgent as error:
            reason = f"its memory's file, if it had one, is still there: {error}"
    _stop(api, agent)
    return AgentState("stopped", agent, reason=reason)


def _stop(api: JobsApi, agent: AgentJob) -> None:
    job = SubmittedJob.attached(api, agent.id)
    job.end(0.0)
    job.tidy(api.jobs())


def printed(api: JobsApi) -> AgentState:
    """What the agent's job has printed, without our own frames."""
    there = state(api)
    if there.job is None:
        return there
    text = api.logs(there.job.id).rpartition(bundle.LAST_LINE)[2]
    lines = [line for line in text.splitlines() if not line.startswith("@raydiag ")]
    return AgentState(there.outcome, there.job, there.status, there.reason, lines)
