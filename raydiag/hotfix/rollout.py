"""A plan carried out: tried on the canary, changed there, verified, and then batch by batch.

The first failure ends it, as does any doubt of a node, and everything it changed is rolled back.
Between two steps stands a record on the head's disk, and the nodes keep journals of their own: so
whenever this process is killed, what was done can be told and undone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, TypeVar, Union

from raydiag.hotfix.messages import (
    LATE_FACTOR,
    RAYDIAG,
    Applied,
    Apply,
    Check,
    CheckedFile,
    Close,
    Closed,
    Inspection,
    Restart,
    Restarted,
    Verified,
    Verify,
)
from raydiag.hotfix.node_requests import NoAnswerFromNode, NodeRequests
from raydiag.hotfix.plan import HostPlan, NewFile, Plan
from raydiag.hotfix.process import SCRIPT
from raydiag.hotfix.progress import CHANGING, FAILED, VERIFIED, RolloutProgress

_CHECK_S, _APPLY_S, _RESTART_S, _CLOSE_S = 15.0, 10.0, 15.0, 5.0
_AGREE_S = 65.0  # for the others of a shared directory to see its new content: NFS caches a minute
_AGREE_LOOK_S = 1.0


_Answer = TypeVar("_Answer", Applied, Restarted, Verified)


class Stop(Exception):
    """The rollout must not go on; the message says why."""


class Rollout:
    """One rollout over the nodes of its plan."""

    def __init__(
        self,
        plan: Plan,
        nodes: NodeRequests,
        progress: RolloutProgress,
        stop_asked: Callable[[], str] = lambda: "",
        verify_limit_s: float = 90.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`stop_asked`: who wants it to stop, looked at between steps."""
        self.plan, self.nodes, self.progress = plan, nodes, progress
        self.stop_asked = stop_asked
        self.verify_limit_s = verify_limit_s
        self.sleep = sleep
        self.name, self.who = str(progress.record["rollout"]), str(progress.record["who"])
        self.checked: dict[str, CheckedFile] = {}  # by file, on the canary
        self.applied: dict[tuple[str, str], Applied] = {}  # by writer and file
        self.restarted: dict[str, Restarted] = {}  # by node
        self.since: dict[str, tuple[float, int]] = {}  # by node: time, size of the plugins' log

    def run(self) -> None:
        """Raises Stop, with the hosts in the states that they were left in."""
        self._check()
        for number, batch in enumerate(self.plan.batches, start=1):
            self._stop_if_asked()
            hosts = [self.plan.host(node) for node in batch]
            self.progress.set(batch, CHANGING)
            names = ", ".join(host.host for host in hosts)
            self.progress.event(f"batch {number} of {len(self.plan.batches)}: {names}")
            self.progress.save()
            self._replace(hosts)
            self._agree(hosts)
            self._restart([host for host in hosts if host.restart])
            self._verify(hosts)
            self.progress.set(batch, VERIFIED)
            self.progress.save()
        self._close([node for batch in self.plan.batches for node in batch])

    # ---- the steps

    def _check(self) -> None:
        """Syntax and dry run on the canary; nothing has changed yet."""
        canary = self.plan.host(self.plan.canary)
        for change in canary.changes:
            request = Check(name=change.name, content=self._file(change.name).content)
            answers = self.nodes.ask({canary.node_id: request}, CheckedFile, _CHECK_S)
            checked = answers[canary.node_id]
            if isinstance(checked, NoAnswerFromNode):
                raise Stop(f"{canary.host}: check of {change.name}: {checked.reason}")
            if not checked.passed:
                said = f": {checked.output.strip()[-300:]}" if checked.output.strip() else ""
                reason = f"check of {change.name} on {canary.host}: {checked.reason}{said}"
                raise Stop(reason)
            if checked.sha256 != change.new_sha256:
                raise Stop(f"{canary.host}: {change.name} did not arrive whole")
            tried = checked.dry_run == "passed"
            if not tried and not self._runs_apart(change.name) and change.name != SCRIPT:
                reason = f"{change.name} could not be tried on {canary.host}: {checked.reason}"
                raise Stop(reason)
            self.checked[change.name] = checked
            words = "dry run passed" if tried else "syntax checked"
            if not tried and change.name != SCRIPT:
                words += ", to be tried by the exporter, which keeps the one before"
            self.progress.event(f"{change.name} on {canary.host}: {words}")

    def _runs_apart(self, name: str) -> bool:
        """Of such a plugin there is no dry run, and the exporter bears a broken one."""
        return self.progress.record["place"].get("exporter") == RAYDIAG and name.endswith(".py")

    def _replace(self, hosts: Sequence[HostPlan]) -> None:
        """Write every directory once, file by file."""
        writers = [host for host in hosts if host.writer == host.node_id]
        for name in _names(writers):
            self._stop_if_asked()
            requests = {
                host.node_id: Apply(
                    rollout=self.name,
                    who=self.who,
                    name=name,
                    content=self._file(name).content,
                    old_sha256=change.old_sha256,
                )
                for host in writers
                for change in host.changes
                if change.name == name
            }
            answers = self.nodes.ask(requests, Applied, _APPLY_S)
            for node, applied in answers.items():
                if not isinstance(applied, NoAnswerFromNode):
                    self.applied[node, name] = applied
                    self.since.setdefault(node, (applied.at, applied.plugin_log_bytes))
            self._require(answers, lambda one: one.outcome in ("replaced", "already"), name)

    def _agree(self, hosts: Sequence[HostPlan]) -> None:
        """Wait until every host of a shared directory sees what one of them wrote there."""
        waiting = {host.node_id: host for host in hosts if host.writer != host.node_id}
        limit = time.monotonic() + _AGREE_S
        while waiting:
            answers = self.nodes.inspect(waiting, _names(waiting.values()))
            for node, seen in answers.items():
                if isinstance(seen, NoAnswerFromNode):
                    self._fail(node, seen.reason)
                if _sees(seen, waiting[node]):
                    host = waiting.pop(node)
                    self.since[node] = (seen.time, host.plugin_log_bytes)
            if waiting and time.monotonic() > limit:
                node = next(iter(waiting))
                self._fail(node, "does not see the new content of its shared directory")
            if waiting:
                self.sleep(_AGREE_LOOK_S)

    def _restart(self, hosts: Sequence[HostPlan]) -> None:
        requests = {}
        for host in hosts:
            if host.exporter is None:
                self._fail(host.node_id, "no exporter was planned to be restarted")
            requests[host.node_id] = Restart(
                rollout=self.name,
                who=self.who,
                pid=host.exporter.pid,
                start_ticks=host.exporter.start_ticks,
            )
        answers = self.nodes.ask(requests, Restarted, _RESTART_S)
        for node, restarted in answers.items():
            if not isinstance(restarted, NoAnswerFromNode):
                self.restarted[node] = restarted
                self.since[node] = (restarted.at, restarted.plugin_log_bytes)
        self._require(answers, lambda one: one.outcome == "ended", "restart of the exporter")
        if requests:
            names = ", ".join(host.host for host in hosts)
            self.progress.event(f"{names}: exporter ended, for its watchdog to start it anew")

    def _verify(self, hosts: Sequence[HostPlan]) -> None:
        """Every host, also those for which another one wrote; what was restarted comes first."""
        for name in reversed(_names(hosts)):
            requests = {}
            for host in hosts:
                if any(change.name == name for change in host.changes):
                    requests[host.node_id] = self._question(host, name)
            answers = self.nodes.ask(requests, Verified, LATE_FACTOR * self.verify_limit_s)
            for node, verified in answers.items():
                if isinstance(verified, NoAnswerFromNode):
                    continue
                for note in verified.notes:
                    self.progress.note(node, f"{name}: {note}")
                seen = dataclasses.asdict(verified)
                self.progress.fact(node, "seen", {**seen, "metrics": len(verified.metrics)})
            self._require(answers, lambda one: one.healthy, f"{name} after the change")

    def _question(self, host: HostPlan, name: str) -> Verify:
        since, log_bytes = self.since.get(host.node_id, (0.0, host.plugin_log_bytes))
        checked, restarted = self.checked.get(name), self.restarted.get(host.node_id)
        mine = restarted if name == SCRIPT else None
        return Verify(
            name=name,
            since=since,
            plugin_log_bytes=log_bytes,
            before=host.metrics,
            expected=checked.metrics if checked else {},
            restarted=dataclasses.asdict(mine) if mine else None,
            limit_s=self.verify_limit_s,
            late_limit_s=LATE_FACTOR * self.verify_limit_s,
        )

    def _close(self, nodes: Sequence[str]) -> None:
        request = Close(rollout=self.name, who=self.who, outcome=VERIFIED)
        answers = self.nodes.ask(dict.fromkeys(nodes, request), Closed, _CLOSE_S)
        for node, closed in answers.items():
            host = self.plan.host(node)
            if host.writer == node and (
                isinstance(closed, NoAnswerFromNode) or not closed.recorded
            ):
                text = f"its end could not be recorded there: {closed.reason}"
                self.progress.note(node, text)

    # ---- ways to stop

    def _stop_if_asked(self) -> None:
        who = self.stop_asked()
        if who:
            raise Stop(f"stopped by {who}")

    def _require(
        self,
        answers: dict[str, Union[_Answer, NoAnswerFromNode]],
        is_good: Callable[[_Answer], bool],
        what: str,
    ) -> None:
        """Raises Stop, with the state of every host whose answer is not good."""
        first = ""
        for node, answer in answers.items():
            if isinstance(answer, NoAnswerFromNode) or not is_good(answer):
                reason = f"{what}: {answer.reason or 'no reason given'}"
                self.progress.set([node], FAILED, reason)
                first = first or f"{self.plan.host(node).host}: {reason}"
        if first:
            raise Stop(first)

    def _fail(self, node: str, reason: str) -> NoReturn:
        self.progress.set([node], FAILED, reason)
        raise Stop(f"{self.plan.host(node).host}: {reason}")

    def _file(self, name: str) -> NewFile:
        return next(file for file in self.plan.files if file.name == name)


def _names(hosts: Iterable[HostPlan]) -> tuple[str, ...]:
    """Files that change on any of these hosts, the exporter itself last."""
    changes = [change for host in hosts for change in host.changes]
    ordered = sorted(changes, key=lambda change: change.restart)
    return tuple(dict.fromkeys(change.name for change in ordered))


def _sees(seen: Inspection, host: HostPlan) -> bool:
    now = {target.name: target.sha256 for target in seen.files}
    return all(now.get(change.name) == change.new_sha256 for change in host.changes)
