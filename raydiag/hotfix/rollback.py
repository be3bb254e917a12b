"""What a rollout did, undone on every node that it touched: from record and journals alone.

The same after a failure, where the driver that failed does it, and later on, where its driver may
have been killed anywhere: each node says from its own journal what the rollout did there.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Optional

from raydiag.hotfix.messages import (
    LATE_FACTOR,
    Close,
    Closed,
    FileStatus,
    Inspection,
    Restart,
    Restarted,
    RestoredFile,
    Rollback,
    RolledBack,
    RolloutStatus,
    Statuses,
    StatusRequest,
    Verified,
    Verify,
)
from raydiag.hotfix.node_requests import NoAnswerFromNode, NodeRequests
from raydiag.hotfix.process import SCRIPT
from raydiag.hotfix.progress import (
    NOT_ROLLED_BACK,
    ROLLED_BACK,
    UNTOUCHED,
    WAITING,
    RolloutProgress,
)

_STATUS_S, _ROLLBACK_S, _RESTART_S, _CLOSE_S = 8.0, 20.0, 15.0, 5.0
_RESTORED = ("restored", "removed", "already")
_LEAST_LEFT = 2  # the rollout itself has kept more
_WATCHDOG_S, _LOOK_S = 20.0, 1.0  # it waits 5 s before it starts an exporter
# How far a start and a file's change may be told apart, on one node and between two. In doubt the
# exporter is restarted once too often, which does no harm.
_CLOCK_S, _CLOCKS_S = 0.2, 2.0


@dataclass
class _Host:
    """One host of the rollout, while it is put back."""

    node: str
    writer: str
    before: Mapping[str, int]  # metrics that were served before the rollout
    settled: bool = False  # on record as never touched, or put back already
    status: Optional[RolloutStatus] = None
    now: Optional[Inspection] = None
    restored: list[RestoredFile] = field(default_factory=list)
    restarted: Optional[Restarted] = None
    trouble: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Retreat:
    """The way back of one rollout."""

    def __init__(
        self,
        nodes: NodeRequests,
        progress: RolloutProgress,
        who: str,
        verify_limit_s: float = 90.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.sleep = sleep
        self.nodes, self.progress, self.who = nodes, progress, who
        self.verify_limit_s = verify_limit_s
        self.name = str(progress.record["rollout"])
        self.hosts = {
            plan["node_id"]: _Host(
                plan["node_id"],
                plan["writer"],
                plan["metrics"],
                progress.state(plan["node_id"]) in (WAITING, UNTOUCHED, ROLLED_BACK),
            )
            for plan in progress.record["plan"]["hosts"]
            if plan["state"] == "change"
        }

    def run(self) -> bool:
        """Whether every host has its old files, and runs with them."""
        self.progress.event("rolling back")
        self._look()
        self._restore()
        self._restart()
        self._verify()
        self._close()
        for host in self.hosts.values():
            self._settle(host)
        return not any(host.trouble for host in self.hosts.values())

    def _look(self) -> None:
        """What the rollout has done to each host, and which exporter runs there now."""
        request = StatusRequest(rollout=self.name)
        said = self.nodes.ask(dict.fromkeys(self.hosts, request), Statuses, _STATUS_S)
        for node, answer in said.items():
            host = self.hosts[node]
            if isinstance(answer, NoAnswerFromNode):
                if not host.settled:
                    host.trouble.append(_silent(answer))
                continue
            host.status = next(iter(answer.rollouts), None)
            if host.status is not None and host.status.files:
                self.progress.fact(node, "files", [vars(one) for one in host.status.files])

    def _restore(self) -> None:
        request = Rollback(rollout=self.name, who=self.who)
        # Also where there is no record: an operation that got no answer may be about to begin one,
        # and the node says so.
        touched = [
            node
            for node, host in self.hosts.items()
            if not host.trouble
            and (host.status or (not host.settled and self._writer(host) is host))
        ]
        answers = self.nodes.ask(dict.fromkeys(touched, request), RolledBack, _ROLLBACK_S)
        for node, answer in answers.items():
            host = self.hosts[node]
            if isinstance(answer, NoAnswerFromNode):
                host.trouble.append(f"rolling back: {_silent(answer)}")
                continue
            host.restored = list(answer.files)
            host.trouble += [
                f"{one.name}: {one.reason or one.outcome}"
                for one in answer.files
                if one.outcome not in _RESTORED
            ]
            torn = host.status is not None and host.status.torn  # before its first change
            if not answer.files and not answer.complete and not torn:
                host.trouble.append(f"rolling back: {answer.reason}")
            if answer.files:
                files = ", ".join(f"{one.name} {one.outcome}" for one in answer.files)
                self.progress.event(f"{self._name(node)}: {files}")

    def _restart(self) -> None:
        """Exporters that run with the new script, for their watchdogs to start with the old one."""
        self._wait_for_exporters()
        requests: dict[str, Restart] = {}
        for node, host in self.hosts.items():
            exporter = host.now.exporter if host.now else None
            if exporter is not None and self._runs_new(host, exporter.started_at):
                requests[node] = Restart(
                    rollout=self.name,
                    who=self.who,
                    pid=exporter.pid,
                    start_ticks=exporter.start_ticks,
                    least_left=_LEAST_LEFT,
                )
        for node, answer in self.nodes.ask(requests, Restarted, _RESTART_S).items():
            host = self.hosts[node]
            if isinstance(answer, NoAnswerFromNode) or answer.outcome != "ended":
                host.trouble.append(
                    f"the script is the old one, but the exporter could not be restarted with it: "
                    f"{answer.reason}"
                )
            else:
                host.restarted = answer

    def _wait_for_exporters(self) -> None:
        """Look at hosts whose script was replaced, until the watchdog has started an exporter."""
        waiting = {
            node
            for node, host in self.hosts.items()
            if not host.trouble and _script(self._writer(host).status)
        }
        limit = time.monotonic() + _WATCHDOG_S
        while waiting:
            late = time.monotonic() > limit
            for node, seen in self.nodes.inspect(waiting, ()).items():
                if not isinstance(seen, NoAnswerFromNode) and seen.exporter is not None:
                    self.hosts[node].now = seen
                    waiting.discard(node)
                elif late:
                    why = (
                        seen.reason
                        if isinstance(seen, NoAnswerFromNode)
                        else "; ".join(seen.refuse_restart)
                    )
                    text = f"its script is the old one, but no exporter runs with it: {why}"
                    self.hosts[node].trouble.append(text)
                    waiting.discard(node)
            if waiting:
                self.sleep(_LOOK_S)

    def _runs_new(self, host: _Host, started_at: float) -> bool:
        """Whether an exporter that was started then was started with the new script."""
        writer = self._writer(host)
        script = _script(writer.status)
        if writer.status is None or script is None:
            return False
        done = next((one for one in writer.restored if one.name == SCRIPT), None)
        if done is not None and done.outcome == "restored":
            old_since = done.at
        elif script.event == "restored":
            old_since = script.at
        else:
            return False  # it was never replaced, or is not restored
        off_s = _CLOCK_S if writer is host else _CLOCKS_S
        return writer.status.began_at - off_s < started_at < old_since + off_s

    def _writer(self, host: _Host) -> _Host:
        return self.hosts.get(host.writer, host)

    def _verify(self) -> None:
        """Whether it serves well with its old files: told, and no reason to call them not old."""
        questions: dict[str, Verify] = {}
        for node, host in self.hosts.items():
            if host.restarted is not None:
                question = Verify(
                    name=SCRIPT,
                    since=host.restarted.at,
                    plugin_log_bytes=host.restarted.plugin_log_bytes,
                    before=host.before,
                    restarted=dataclasses.asdict(host.restarted),
                    limit_s=self.verify_limit_s,
                    late_limit_s=LATE_FACTOR * self.verify_limit_s,
                )
            else:
                done = [one for one in host.restored if one.outcome == "restored"]
                if not done or host.trouble:
                    continue
                question = Verify(
                    name=done[-1].name,
                    since=done[-1].at,
                    plugin_log_bytes=done[-1].plugin_log_bytes,
                    before=host.before,
                    limit_s=self.verify_limit_s,
                    late_limit_s=LATE_FACTOR * self.verify_limit_s,
                )
            questions[node] = question
        answers = self.nodes.ask(questions, Verified, LATE_FACTOR * self.verify_limit_s)
        for node, answer in answers.items():
            healthy = not isinstance(answer, NoAnswerFromNode) and answer.healthy
            text = "it serves as before" if healthy else f"it does not serve well: {answer.reason}"
            self.hosts[node].notes.append(f"after the way back {text}")

    def _close(self) -> None:
        requests = {}
        for node, host in self.hosts.items():
            if host.status is None or host.status.ended == ROLLED_BACK:
                continue
            undone = host.restored and all(one.outcome != "failed" for one in host.restored)
            if host.status.files and not undone:
                continue  # it stays open: the next try may do better
            outcome = f"failed: {'; '.join(host.trouble)}" if host.trouble else ROLLED_BACK
            requests[node] = Close(rollout=self.name, who=self.who, outcome=outcome[:500])
        for node, answer in self.nodes.ask(requests, Closed, _CLOSE_S).items():
            if isinstance(answer, NoAnswerFromNode) or not answer.recorded:
                text = f"its end could not be recorded there: {answer.reason}"
                self.hosts[node].notes.append(text)

    def _settle(self, host: _Host) -> None:
        for note in host.notes:
            self.progress.note(host.node, note)
        writer = self._writer(host)
        if host is not writer and writer.trouble and not host.trouble:
            text = f"{self._name(writer.node)} wrote its directory: {writer.trouble[0]}"
            host.trouble.append(text)
        before = str(self.progress.record["hosts"].get(host.node, {}).get("reason", ""))
        if host.trouble:
            self.progress.set([host.node], NOT_ROLLED_BACK, "; ".join(host.trouble))
        elif writer.restored or host.restarted:
            self.progress.set([host.node], ROLLED_BACK, before)
        elif host.settled and self.progress.state(host.node) == ROLLED_BACK:
            pass
        else:
            self.progress.set([host.node], UNTOUCHED, before)

    def _name(self, node: str) -> str:
        return str(self.progress.record["hosts"].get(node, {}).get("host", node))


def _script(status: Optional[RolloutStatus]) -> Optional[FileStatus]:
    files = status.files if status else ()
    return next((one for one in files if one.name == SCRIPT), None)


def _silent(answer: NoAnswerFromNode) -> str:
    known = "" if not answer.lost else ", so that what became of its files is not known"
    return f"{answer.reason}{known}"
