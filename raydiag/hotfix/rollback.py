"""What a rollout did, undone on every node that it touched: from record and journals alone.

The same after a failure, where the driver that failed does it, and later on, where its driver may
have been killed anywhere: each node says from its own journal what the rollout did there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Optional, Union

from raydiag.hotfix import messages
from raydiag.hotfix.messages import LATE_FACTOR, Fields, Restarted, RestoredFile, RolloutStatus
from raydiag.hotfix.node_requests import NoAnswerFromNode, NodeRequests
from raydiag.hotfix.process import SCRIPT
from raydiag.hotfix.progress import NOT_ROLLED_BACK, ROLLED_BACK, UNTOUCHED, RolloutProgress

_ROLLBACK_S, _RESTART_S = 20.0, 15.0
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
    directory: str  # of the files, as planned; "": the plan is lost
    settled: bool = False  # on record as never touched, or put back already
    status: Optional[RolloutStatus] = None
    now: Optional[messages.Inspection] = None
    restored: list[RestoredFile] = field(default_factory=list)
    restarted: Optional[Restarted] = None
    failures: list[str] = field(default_factory=list)  # why it is not as before
    notes: list[str] = field(default_factory=list)

    def take(self, answer: messages.RolledBack) -> None:
        """Take note of what was restored there, and of what could not be."""
        self.restored = list(answer.files)
        for file in answer.files:
            if file.outcome not in _RESTORED:
                self.failures.append(f"{file.name}: {file.reason or file.outcome}")
        is_torn = self.status is not None and self.status.torn  # before its first change
        if not answer.files and not answer.complete and not is_torn:
            self.failures.append(f"rolling back: {answer.reason}")

    def is_undone(self) -> bool:
        """Whether nothing failed of what was to be restored there."""
        outcomes = set(map(attrgetter("outcome"), self.restored))
        return bool(outcomes) and "failed" not in outcomes

    def script_restored_at(self) -> Optional[float]:
        """From when on the exporter's script is the old one again; None: it never changed back."""
        script = _script(self.status)
        if script is None:
            return None
        for file in self.restored:
            if file.name == SCRIPT and file.outcome == "restored":
                return file.at
        return script.at if script.event == "restored" else None


@dataclass
class Retreat:
    """The rollback of one rollout."""

    nodes: NodeRequests
    progress: RolloutProgress
    who: str
    verify_limit_s: float

    def __post_init__(self) -> None:
        self.name = str(self.progress.record["rollout"])
        self.signed: Fields = {"rollout": self.name, "who": self.who}  # of every request
        self.hosts: dict[str, _Host] = {}
        for plan in self.progress.record["plan"]["hosts"]:
            if plan["state"] == "change":
                node, settled = plan["node_id"], self.progress.is_settled(plan["node_id"])
                planned = (
                    plan["writer"],
                    plan["metrics"],
                    (plan["directory"] or {}).get("path", ""),
                )
                self.hosts[node] = _Host(node, *planned, settled)

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
        return not any(map(attrgetter("failures"), self.hosts.values()))

    def _look(self) -> None:
        """What the rollout has done to each host, and which exporter runs there now."""
        answers = self.nodes.statuses(self.hosts, self.name)
        for node, missing in answers.missing.items():
            if not self.hosts[node].settled:
                self.hosts[node].failures.append(_silence(missing))
        for node, statuses in answers.given.items():
            status = next(iter(statuses.rollouts), None)
            self.hosts[node].status = status
            if status is not None and status.files:
                self.progress.fact(node, "files", list(map(vars, status.files)))

    def _restore(self) -> None:
        # Also where there is no record: an operation that got no answer may be about to begin one,
        # and the node says so.
        touched = [host.node for host in self.hosts.values() if self._may_be_changed(host)]
        requests = {}
        for node in touched:
            directory = self.hosts[node].directory
            requests[node] = messages.Rollback(**self.signed, planned_directory=directory)
        answers = self.nodes.ask(requests, messages.RolledBack, _ROLLBACK_S)
        for node, missing in answers.missing.items():
            self.hosts[node].failures.append(f"rolling back: {_silence(missing)}")
        for node, answer in answers.given.items():
            self.hosts[node].take(answer)
            if answer.files:
                files = ", ".join(f"{file.name} {file.outcome}" for file in answer.files)
                self.progress.event(f"{self._name(node)}: {files}")

    def _may_be_changed(self, host: _Host) -> bool:
        if host.failures:
            return False
        return host.status is not None or (not host.settled and self._writer(host) is host)

    def _restart(self) -> None:
        """Exporters that run with the new script, for their watchdogs to start with the old one."""
        self._wait_for_exporters()
        requests: dict[str, messages.Restart] = {}
        for node, host in self.hosts.items():
            exporter = host.now.exporter if host.now else None
            if exporter is not None and self._runs_new(host, exporter.started_at):
                process: Fields = {"pid": exporter.pid, "start_ticks": exporter.start_ticks}
                request = messages.Restart(**self.signed, **process, least_left=_LEAST_LEFT)
                requests[node] = request
        answers = self.nodes.ask(requests, Restarted, _RESTART_S)
        for node, reason in answers.failures(_is_ended):
            text = "the script is the old one, but the exporter could not be restarted with it"
            self.hosts[node].failures.append(f"{text}: {reason}")
        for node, restarted in answers.given.items():
            if _is_ended(restarted):
                self.hosts[node].restarted = restarted

    def _wait_for_exporters(self) -> None:
        """Look at hosts whose script was replaced, until the watchdog has started an exporter."""
        waiting = set()
        for node, host in self.hosts.items():
            if not host.failures and _script(self._writer(host).status):
                waiting.add(node)
        limit = time.monotonic() + _WATCHDOG_S
        while waiting:
            is_last_look = time.monotonic() > limit
            answers = self.nodes.inspect(waiting, ())
            reasons = {node: missing.reason for node, missing in answers.missing.items()}
            for node, inspected in answers.given.items():
                if inspected.exporter is not None:
                    self.hosts[node].now = inspected
                    waiting.discard(node)
                else:
                    reasons[node] = "; ".join(inspected.refuse_restart)
            if is_last_look:
                for node, reason in reasons.items():
                    text = f"its script is the old one, but no exporter runs with it: {reason}"
                    self.hosts[node].failures.append(text)
                return
            if waiting:
                time.sleep(_LOOK_S)

    def _runs_new(self, host: _Host, started_at: float) -> bool:
        """Whether an exporter that was started then was started with the new script."""
        writer = self._writer(host)
        restored_at = writer.script_restored_at()
        if writer.status is None or restored_at is None:
            return False  # it was never replaced, or is not restored
        clock_s = _CLOCK_S if writer is host else _CLOCKS_S
        return writer.status.began_at - clock_s < started_at < restored_at + clock_s

    def _writer(self, host: _Host) -> _Host:
        return self.hosts.get(host.writer, host)

    def _verify(self) -> None:
        """Whether it is healthy with its old files: a note, which does not change the outcome."""
        requests = {}
        for node, host in self.hosts.items():
            request = self._verify_request(host)
            if request is not None:
                requests[node] = request
        limit_s = LATE_FACTOR * self.verify_limit_s
        answers = self.nodes.ask(requests, messages.Verified, limit_s)
        outcomes = dict.fromkeys(requests, "it serves as before")
        for node, reason in answers.failures(attrgetter("healthy")):
            outcomes[node] = f"it is not healthy: {reason}"
        for node, outcome in outcomes.items():
            self.hosts[node].notes.append(f"after the rollback {outcome}")

    def _verify_request(self, host: _Host) -> Optional[messages.Verify]:
        """About its exporter or the last file that was restored; None where nothing changed."""
        restored = [file for file in host.restored if file.outcome == "restored"]
        change: Union[Restarted, RestoredFile]
        if host.restarted is not None:
            name, change = SCRIPT, host.restarted
        elif restored and not host.failures:
            name, change = restored[-1].name, restored[-1]
        else:
            return None
        fields: Fields = {"name": name, "before": host.before, "since": change.at}
        fields["plugin_log_bytes"] = change.plugin_log_bytes
        return messages.Verify.after(fields, host.restarted, self.verify_limit_s)

    def _close(self) -> None:
        requests = {}
        for node, host in self.hosts.items():
            if host.status is None or host.status.ended == ROLLED_BACK:
                continue
            if host.status.files and not host.is_undone():
                continue  # it stays open: the next try may do better
            outcome = f"failed: {'; '.join(host.failures)}" if host.failures else ROLLED_BACK
            requests[node] = messages.Close(**self.signed, outcome=outcome[:500])
        for node, reason in self.nodes.close(requests):
            self.hosts[node].notes.append(f"its end could not be recorded there: {reason}")

    def _settle(self, host: _Host) -> None:
        for note in host.notes:
            self.progress.note(host.node, note)
        writer = self._writer(host)
        if host is not writer and writer.failures and not host.failures:
            text = f"{self._name(writer.node)} wrote its directory: {writer.failures[0]}"
            host.failures.append(text)
        before = str(self.progress.record["hosts"].get(host.node, {}).get("reason", ""))
        was_rolled_back = host.settled and self.progress.state(host.node) == ROLLED_BACK
        if host.failures:
            self.progress.set([host.node], NOT_ROLLED_BACK, "; ".join(host.failures))
        elif writer.restored or host.restarted:
            self.progress.set([host.node], ROLLED_BACK, before)
        elif not was_rolled_back:
            self.progress.set([host.node], UNTOUCHED, before)

    def _name(self, node: str) -> str:
        return str(self.progress.record["hosts"].get(node, {}).get("host", node))


def _script(status: Optional[RolloutStatus]) -> Optional[messages.FileStatus]:
    files = status.files if status else ()
    return next((file for file in files if file.name == SCRIPT), None)


def _is_ended(restarted: Restarted) -> bool:
    return restarted.outcome == "ended"


def _silence(missing: NoAnswerFromNode) -> str:
    unknown = ", so that what became of its files is not known" if missing.lost else ""
    return f"{missing.reason}{unknown}"
