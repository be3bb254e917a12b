"""Nodes in memory that answer the questions of a rollout, and can be made to answer otherwise."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydiag.hotfix.messages import (
    Applied,
    CheckedFile,
    Closed,
    Directory,
    FileStatus,
    Inspection,
    ProcessInfo,
    RestoredFile,
    RolledBack,
    RolloutStatus,
    ServedPage,
    Statuses,
    TargetFile,
    Verified,
)

NAME = "gpu_metrics_plugin.sh"
OLD = "#!/bin/bash\necho old\n"
LOST = {"error": "no answer within 40 s", "lost": True}

Fault = Callable[[str, Mapping[str, Any]], "dict[str, Any] | None"]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Node:
    """One host: the content of its one file, and its journal by rollout."""

    content: str = OLD
    olds: dict[str, str] = field(default_factory=dict)
    news: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)

    def answer(self, name: str, request: Mapping[str, Any]) -> Any:
        return getattr(self, str(request["operation"]))(name, request)

    def inspect(self, name: str, request: Mapping[str, Any]) -> Inspection:
        return Inspection(
            host=name,
            time=1.0,
            exporter=ProcessInfo(7, 1, ("bash", "/a/metrics_exporter.sh"), "exporter"),
            ends_on_restart=(),
            directory=Directory("/a", "/a", 1, 2, "ext4", "/dev/sda", False, f"local:{name}"),
            files=tuple(TargetFile(one, digest(self.content)) for one in request["names"]),
            watchdog=None,
            served=ServedPage("ok", metrics={"hw_gpu_power_watts": 8}),
            plugin_log_bytes=0,
            driver_fault="",
            unfinished=tuple(one for one in self.olds if one not in self.ended),
            leftovers=(),
            refuse_replace=(),
            refuse_restart=(),
        )

    def check(self, name: str, request: Mapping[str, Any]) -> CheckedFile:
        content = base64.b64decode(request["content"]).decode()
        return CheckedFile(True, "", "passed", digest(content), {"hw_gpu_power_watts": 8})

    def apply(self, name: str, request: Mapping[str, Any]) -> Applied:
        rollout = request["rollout"]
        others = [one for one in self.olds if one not in self.ended and one != rollout]
        if others:
            return Applied("refused", f"rollout {others[0]} has not ended here")
        self.olds[rollout] = self.content
        self.content = self.news[rollout] = base64.b64decode(request["content"]).decode()
        old, new = digest(self.olds[rollout]), digest(self.content)
        return Applied("replaced", "", f"/a/{NAME}", old, new, 2.0)

    def verify(self, name: str, request: Mapping[str, Any]) -> Verified:
        return Verified(True, cycles=2, moved=1)

    def status(self, name: str, request: Mapping[str, Any]) -> Statuses:
        asked = request["rollout"]
        return Statuses(tuple(self._told(one) for one in self.olds if asked in ("", one)))

    def _told(self, rollout: str) -> RolloutStatus:
        old, new, now = digest(self.olds[rollout]), digest(self.news[rollout]), digest(self.content)
        content = {old: "old", new: "new"}.get(now, "neither")
        file = FileStatus(rollout, NAME, f"/a/{NAME}", content, old, new, now, "replaced", 2.0)
        return RolloutStatus(rollout, "me@here", 1.0, self.ended.get(rollout, ""), (file,))

    def rollback(self, name: str, request: Mapping[str, Any]) -> RolledBack:
        rollout = request["rollout"]
        if rollout not in self.olds:
            return RolledBack((), True, "this node has no record of it")
        self.content = self.olds[rollout]
        self.ended.pop(rollout, None)
        file = RestoredFile(NAME, f"/a/{NAME}", "restored", "", digest(self.content), 3.0)
        return RolledBack((file,), True)

    def close(self, name: str, request: Mapping[str, Any]) -> Closed:
        self.ended[request["rollout"]] = request["outcome"]
        return Closed(True)


@dataclass
class Cluster:
    """See `raydiag.hotfix.head.Cluster`."""

    nodes: dict[str, Node]
    fault: Fault = lambda node, request: None
    asked: list[tuple[str, str]] = field(default_factory=list)  # node, operation
    hostnames: Mapping[str, str] = field(default_factory=dict)  # where they are not the nodes'

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "node_id": f"id-{name}",
                "hostname": self.hostnames.get(name, name),
                "address": f"10.0.0.{number}",
                "alive": True,
                "death_reason": "",
                "asked": True,
            }
            for number, name in enumerate(self.nodes, start=1)
        ]

    def ask(
        self, requests: Mapping[str, Mapping[str, Any]], limit_s: float
    ) -> dict[str, dict[str, Any]]:
        answers = {}
        for node_id, request in requests.items():
            name = node_id[len("id-") :]
            self.asked.append((name, str(request["operation"])))
            if name not in self.nodes:
                answers[node_id] = {"error": "it is not a node of this cluster any more"}
                continue
            said = self.fault(name, request)
            if said is None:
                said = dataclasses.asdict(self.nodes[name].answer(name, request))
            answers[node_id] = json.loads(json.dumps(said))
        return answers

    def faults(self, nodes: Sequence[str]) -> dict[str, str]:
        return {}
