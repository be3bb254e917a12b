"""A plan carried out: tried on the canary, changed there, verified, and then batch by batch.

The first failure ends it, as does any doubt of a node, and everything it changed is rolled back.
Between two steps stands a record on the head's disk, and the nodes keep journals of their own: so
whenever this process is killed, what was done is known and can be undone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import NoReturn, TypeVar

from raydiag.hotfix import messages
from raydiag.hotfix.messages import Applied, CheckedFile, Fields, Restarted, Verified, Verify
from raydiag.hotfix.node_requests import Answers, NodeRequests
from raydiag.hotfix.plan import HostPlan, Plan
from raydiag.hotfix.process import SCRIPT
from raydiag.hotfix.progress import CHANGING, FAILED, VERIFIED, RolloutProgress
from raydiag.hotfix.trial import Stop, try_files

_APPLY_S, _RESTART_S = 10.0, 15.0
_AGREE_S = 65.0  # for the others of a shared directory to see its new content: NFS caches a minute
_AGREE_LOOK_S = 1.0
_REPLACED = ("replaced", "already")


_Answer = TypeVar("_Answer")


@dataclasses.dataclass
class Rollout:
    """One rollout over the nodes of its plan."""

    plan: Plan
    nodes: NodeRequests
    progress: RolloutProgress
    stop_asked: Callable[[], str]  # who wants it to stop, looked at between steps
    verify_limit_s: float

    def __post_init__(self) -> None:
        record = self.progress.record
        self.signed: Fields = {"rollout": record["rollout"], "who": record["who"]}
        self.checked: dict[str, CheckedFile] = {}  # by file, on the canary
        self.applied: dict[tuple[str, str], Applied] = {}  # by writer and file
        self.restarted: dict[str, Restarted] = {}  # by node
        self.since: dict[str, tuple[float, int]] = {}  # by node: time, size of the plugins' log

    def run(self) -> None:
        """Raises Stop, with the hosts in the states that they were left in."""
        exporter = str(self.progress.record["place"].get("exporter"))
        self.checked = try_files(self.plan, self.nodes, exporter, self.progress.event)
        for number, batch in enumerate(self.plan.batches, start=1):
            self._stop_if_asked()
            hosts = list(map(self.plan.host, batch))
            self.progress.set(batch, CHANGING)
            names = ", ".join(map(attrgetter("host"), hosts))
            self.progress.event(f"batch {number} of {len(self.plan.batches)}: {names}")
            self.progress.save()
            self._replace(hosts)
            self._agree(hosts)
            self._restart(list(filter(attrgetter("restart"), hosts)))
            self._verify(hosts)
            self.progress.set(batch, VERIFIED)
            self.progress.save()
        self._close(list(chain.from_iterable(self.plan.batches)))

    # ---- the steps

    def _replace(self, hosts: Sequence[HostPlan]) -> None:
        """Write every directory once, file by file."""
        writers = [host for host in hosts if host.writer == host.node_id]
        for name in _names(writers):
            self._stop_if_asked()
            requests = {}
            for host in writers:
                change = host.change_of(name)
                if change is not None:
                    file: Fields = {"name": name, "content": self.plan.content(name)}
                    file["old_sha256"] = change.old_sha256
                    requests[host.node_id] = messages.Apply(**self.signed, **file)
            answers = self.nodes.ask(requests, Applied, _APPLY_S)
            for node, applied in answers.given.items():
                self.applied[node, name] = applied
                self.since.setdefault(node, (applied.at, applied.plugin_log_bytes))
            self._require(answers, lambda applied: applied.outcome in _REPLACED, name)

    def _agree(self, hosts: Sequence[HostPlan]) -> None:
        """Wait until every host of a shared directory sees what one of them wrote there."""
        waiting = {host.node_id: host for host in hosts if host.writer != host.node_id}
        limit = time.monotonic() + _AGREE_S
        while waiting:
            answers = self.nodes.inspect(waiting, _names(waiting.values()))
            for node, missing in answers.missing.items():
                self._fail(node, missing.reason)
            for node, inspected in answers.given.items():
                if _sees(inspected, waiting[node]):
                    host = waiting.pop(node)
                    self.since[node] = (inspected.time, host.plugin_log_bytes)
            if waiting and time.monotonic() > limit:
                node = next(iter(waiting))
                self._fail(node, "does not see the new content of its shared directory")
            if waiting:
                time.sleep(_AGREE_LOOK_S)

    def _restart(self, hosts: Sequence[HostPlan]) -> None:
        requests = {}
        for host in hosts:
            if host.exporter is None:
                self._fail(host.node_id, "no exporter was planned to be restarted")
            process: Fields = {"pid": host.exporter.pid, "start_ticks": host.exporter.start_ticks}
            requests[host.node_id] = messages.Restart(**self.signed, **process)
        answers = self.nodes.ask(requests, Restarted, _RESTART_S)
        for node, restarted in answers.given.items():
            self.restarted[node] = restarted
            self.since[node] = (restarted.at, restarted.plugin_log_bytes)
        self._require(answers, lambda answer: answer.outcome == "ended", "restart of the exporter")
        if requests:
            names = ", ".join(map(attrgetter("host"), hosts))
            self.progress.event(f"{names}: exporter ended, for its watchdog to start it anew")

    def _verify(self, hosts: Sequence[HostPlan]) -> None:
        """Every host, also those for which another one wrote; what was restarted comes first."""
        for name in reversed(_names(hosts)):
            changing = [host for host in hosts if host.change_of(name)]
            requests = {host.node_id: self._verify_request(host, name) for host in changing}
            limit_s = messages.LATE_FACTOR * self.verify_limit_s
            answers = self.nodes.ask(requests, Verified, limit_s)
            for node, verified in answers.given.items():
                for note in verified.notes:
                    self.progress.note(node, f"{name}: {note}")
                facts = dataclasses.asdict(verified)
                self.progress.fact(node, "seen", {**facts, "metrics": len(verified.metrics)})
            self._require(answers, attrgetter("healthy"), f"{name} after the change")

    def _verify_request(self, host: HostPlan, name: str) -> Verify:
        since = self.since.get(host.node_id, (0.0, host.plugin_log_bytes))
        checked = self.checked.get(name)
        expected = checked.metrics if checked else {}
        restarted = self.restarted.get(host.node_id) if name == SCRIPT else None
        change: Fields = {"name": name, "before": host.metrics, "expected": expected}
        change["since"], change["plugin_log_bytes"] = since
        return Verify.after(change, restarted, self.verify_limit_s)

    def _close(self, nodes: Sequence[str]) -> None:
        request = messages.Close(**self.signed, outcome=VERIFIED)
        for node, reason in self.nodes.close(dict.fromkeys(nodes, request)):
            if self.plan.host(node).writer == node:
                self.progress.note(node, f"its end could not be recorded there: {reason}")

    # ---- ways to stop

    def _stop_if_asked(self) -> None:
        who = self.stop_asked()
        if who:
            raise Stop(f"stopped by {who}")

    def _require(
        self, answers: Answers[_Answer], is_good: Callable[[_Answer], bool], step: str
    ) -> None:
        """Raises Stop, with the state of every host whose answer is not good."""
        first = ""
        for node, failure in answers.failures(is_good):
            reason = f"{step}: {failure or 'no reason given'}"
            self.progress.set([node], FAILED, reason)
            first = first or f"{self.plan.host(node).host}: {reason}"
        if first:
            raise Stop(first)

    def _fail(self, node: str, reason: str) -> NoReturn:
        self.progress.set([node], FAILED, reason)
        raise Stop(f"{self.plan.host(node).host}: {reason}")


def _names(hosts: Iterable[HostPlan]) -> tuple[str, ...]:
    """Files that change on any of these hosts, the exporter itself last."""
    changes = chain.from_iterable(map(attrgetter("changes"), hosts))
    ordered = sorted(changes, key=attrgetter("restart"))
    return tuple(dict.fromkeys(map(attrgetter("name"), ordered)))


def _sees(inspected: messages.Inspection, host: HostPlan) -> bool:
    digests = {file.name: file.sha256 for file in inspected.files}
    return all(digests.get(change.name) == change.new_sha256 for change in host.changes)
