"""What a roll-out would do: which hosts change, in which order, and why others are left alone.

Pure: from what the nodes said of themselves to a `Plan`. Hosts that see one directory are one
`Unit`, which is written once and changes as a whole; so one host that must not change keeps all of
its unit from changing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from raydiag.hotfix.messages import Directory, Inspection, ProcessInfo, TargetFile

CHANGE, SAME, REFUSED, UNSEEN = "change", "same", "refused", "unseen"

_SHARE_OF_HOSTS = 0.1  # in every batch after the first
# What a plugin serves: where it serves nothing now, nothing could be verified of it.
_SERVES = {"gpu_metrics_plugin.sh": "hw_gpu_", "tb_metrics_plugin.sh": "tb_"}


@dataclass(frozen=True)
class NewFile:
    """What is to be deployed."""

    name: str
    sha256: str
    size_bytes: int
    content: str = ""  # base64; empty in a record


@dataclass(frozen=True)
class HostState:
    """A node of the cluster, as the coordinator lists it."""

    node_id: str
    name: str  # short host name
    address: str
    asked: bool = True  # False: only looked at, because it may share a directory with one that is
    unseen: str = ""  # why it could not be looked at


@dataclass(frozen=True)
class FileChange:
    name: str
    path: str
    old_sha256: str  # "" when the file is new
    new_sha256: str
    restart: bool  # the exporter has to be restarted for it


@dataclass(frozen=True)
class HostPlan:
    host: str
    node_id: str
    address: str
    state: str  # "change", "same" (has the new content already), "refused", "unseen"
    reasons: tuple[str, ...] = ()  # of refused and unseen
    changes: tuple[FileChange, ...] = ()
    writer: str = ""  # node id of the host that writes the directory for this one; "": none does
    exporter: Optional[ProcessInfo] = None
    ends: tuple[ProcessInfo, ...] = ()  # processes that a restart would end
    directory: Optional[Directory] = None
    restarts: Optional[int] = None  # of the watchdog so far
    restarts_left: Optional[int] = None
    driver_fault: str = ""
    metrics: Mapping[str, int] = field(default_factory=dict)  # served before: name -> series
    plugin_log_bytes: int = 0

    @property
    def restart(self) -> bool:
        return any(change.restart for change in self.changes)


@dataclass(frozen=True)
class Plan:
    files: tuple[NewFile, ...]
    hosts: tuple[HostPlan, ...]  # by name
    batches: tuple[tuple[str, ...], ...]  # node ids; the first holds the canary and its unit
    canary: str = ""  # node id; "" when nothing can be changed
    reason: str = ""  # why nothing can be, where hosts wait for a change

    def host(self, node_id: str) -> HostPlan:
        return next(host for host in self.hosts if host.node_id == node_id)


@dataclass(frozen=True)
class Wishes:
    """What the user said beside the files."""

    canary: str = ""  # host name, address or node id
    batch: int = 0  # hosts in a batch; 0: one, then a tenth of all


def make(
    hosts: Sequence[HostState],
    seen: Mapping[str, Inspection],
    files: Sequence[NewFile],
    wishes: Wishes,
) -> Plan:
    """The plan. `seen`: by node id, of every host that is not `unseen`."""
    units = _units(hosts, seen)
    plans: dict[str, HostPlan] = {}
    for unit in units:
        for plan in _unit_plans(unit, hosts, seen, files):
            plans[plan.node_id] = plan
    for host in hosts:
        if host.unseen and host.asked:
            plans[host.node_id] = HostPlan(
                host.name, host.node_id, host.address, UNSEEN, (host.unseen,)
            )
    changing = [unit for unit in units if any(_changes(plans.get(node)) for node in unit)]
    canary, why = _canary(changing, plans, files, wishes)
    return Plan(
        files=tuple(files),
        hosts=tuple(sorted(plans.values(), key=lambda plan: (plan.host, plan.node_id))),
        batches=_batches(changing, canary, wishes.batch) if canary else (),
        canary=canary,
        reason=why,
    )


def _changes(plan: Optional[HostPlan]) -> bool:
    return plan is not None and plan.state == CHANGE


def _units(hosts: Sequence[HostState], seen: Mapping[str, Inspection]) -> list[tuple[str, ...]]:
    """Node ids that change together, in the order of the hosts."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        if host.node_id in seen:
            directory = seen[host.node_id].directory
            shared = directory is not None and directory.identity
            found.setdefault(shared or host.node_id, []).append(host.node_id)
    return [tuple(unit) for unit in found.values()]


def _unit_plans(
    unit: tuple[str, ...],
    hosts: Sequence[HostState],
    seen: Mapping[str, Inspection],
    files: Sequence[NewFile],
) -> list[HostPlan]:
    """Plans of the hosts of one unit; none when nobody asked for any of them."""
    by_id = {host.node_id: host for host in hosts}
    members = [by_id[node_id] for node_id in unit]
    if not any(host.asked for host in members):
        return []
    changes = {node_id: _file_changes(seen[node_id], files) for node_id in unit}
    why = {node_id: _refusals(seen[node_id], changes[node_id], files) for node_id in unit}
    common = _refusals_of_unit(members, hosts, seen, changes, why)
    found = []
    for host in members:
        inspected, mine = seen[host.node_id], changes[host.node_id]
        reasons = (*why[host.node_id], *common.get(host.node_id, ()))
        state = REFUSED if reasons else CHANGE if mine else SAME
        found.append(
            HostPlan(
                host=host.name,
                node_id=host.node_id,
                address=host.address,
                state=state,
                reasons=reasons,
                changes=tuple(mine) if state == CHANGE else (),
                writer=unit[0] if state == CHANGE else "",
                exporter=inspected.exporter,
                ends=inspected.ends_on_restart
                if state == CHANGE and any(change.restart for change in mine)
                else (),
                directory=inspected.directory,
                restarts=inspected.watchdog.restarts if inspected.watchdog else None,
                restarts_left=inspected.watchdog.left if inspected.watchdog else None,
                driver_fault=inspected.driver_fault,
                metrics=inspected.served.metrics,
                plugin_log_bytes=inspected.plugin_log_bytes,
            )
        )
    return found


def _file_changes(inspected: Inspection, files: Sequence[NewFile]) -> list[FileChange]:
    """The exporter itself comes last: it starts with plugins that are new already."""
    there = {target.name: target for target in inspected.files}
    place = inspected.directory.path if inspected.directory else ""
    found = [
        FileChange(
            name=file.name,
            path=f"{place}/{file.name}",
            old_sha256=there[file.name].sha256,
            new_sha256=file.sha256,
            restart=there[file.name].restart,
        )
        for file in files
        if file.name in there and there[file.name].sha256 != file.sha256
    ]
    return sorted(found, key=lambda change: change.restart)


def _refusals(
    inspected: Inspection,
    changes: Sequence[FileChange],
    files: Sequence[NewFile],
) -> tuple[str, ...]:
    """Why this host, taken by itself, must not change; empty also when nothing would change."""
    there = {target.name: target for target in inspected.files}
    reasons = list(inspected.refuse_replace)
    if not reasons:
        unknown = [file.name for file in files if file.name not in there]
        reasons += [f"{name}: the node does not say what is there" for name in unknown]
    reasons += [_refused(there[change.name]) for change in changes if there[change.name].refused]
    if any(change.restart for change in changes):
        reasons += inspected.refuse_restart
        if inspected.exporter is None and not inspected.refuse_restart:
            reasons.append("no exporter was found that could be restarted")
    if not changes and not reasons:
        return ()
    reasons += [
        f"roll-out {rollout} has not ended here: raydiag hotfix rollback {rollout}"
        for rollout in inspected.unfinished
        if not any(rollout in reason for reason in reasons)
    ]
    return tuple(dict.fromkeys(reasons))


def _refused(target: TargetFile) -> str:
    named = target.refused.startswith(target.name)
    return target.refused if named else f"{target.name}: {target.refused}"


def _refusals_of_unit(
    members: Sequence[HostState],
    hosts: Sequence[HostState],
    seen: Mapping[str, Inspection],
    changes: Mapping[str, Sequence[FileChange]],
    why: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[str, ...]]:
    """Why hosts that could change by themselves must not, because others see the same files."""
    changing = [host for host in members if changes[host.node_id] and not why[host.node_id]]
    directory = seen[members[0].node_id].directory
    if not changing or directory is None:
        return {}
    reasons = []
    shared = f"its directory {directory.path} is shared"
    held = [host.name for host in members if why[host.node_id]]
    strangers = [host.name for host in members if not host.asked]
    olds = {tuple((c.name, c.old_sha256) for c in changes[host.node_id]) for host in members}
    if held:
        reasons.append(f"{shared} with {_some(held)}, which must not change")
    if strangers:
        reasons.append(f"{shared} with {_some(strangers)}, not named: name them too")
    if len(olds) > 1 and not held:
        names = [host.name for host in members]
        reasons.append(f"{shared}, and {_some(names)} do not see the same content in it")
    blind = [host.name for host in hosts if host.unseen and not host.unseen.startswith("dead")]
    if directory.network and blind:
        reasons.append(f"{shared}, and {_some(blind)}, which may see it too, did not answer")
    return {host.node_id: tuple(reasons) for host in changing if reasons}


def _canary(
    changing: Sequence[tuple[str, ...]],
    plans: Mapping[str, HostPlan],
    files: Sequence[NewFile],
    wishes: Wishes,
) -> tuple[str, str]:
    """Its node id, or why there is none."""
    candidates = [plans[node] for unit in changing for node in unit if _changes(plans[node])]
    if wishes.canary:
        names = wishes.canary
        named = [
            plan for plan in plans.values() if names in (plan.host, plan.address, plan.node_id)
        ]
        if not named:
            return "", f"--canary {names}: not one of the hosts asked for"
        if not candidates:
            return "", ""
        candidates = [plan for plan in candidates if plan in named]
        if not candidates:
            return "", f"--canary {names}: nothing is to be changed there: {_words(named[0])}"
    well = [plan for plan in candidates if not plan.driver_fault]
    if not well:
        if not candidates:
            return "", ""
        fault = f"{candidates[0].host}: {candidates[0].driver_fault}"
        return "", f"no host to try it on that does not show the GPU driver fault ({fault})"
    sizes = {node: len(unit) for unit in changing for node in unit}

    def preference(plan: HostPlan) -> tuple[object, ...]:
        return -_served(plan, files), sizes[plan.node_id], -(plan.restarts_left or 0), plan.host

    return min(well, key=preference).node_id, ""


def _words(plan: HostPlan) -> str:
    return "; ".join(plan.reasons) or f"it has the new content ({plan.state})"


def _served(plan: HostPlan, files: Iterable[NewFile]) -> int:
    """Of how many of the files the host serves metrics now."""
    prefixes = [_SERVES.get(file.name, "") for file in files]
    return sum(any(name.startswith(prefix) for name in plan.metrics) for prefix in prefixes)


def _batches(
    changing: Sequence[tuple[str, ...]], canary: str, size: int
) -> tuple[tuple[str, ...], ...]:
    """The canary's unit, then `size` hosts each; a unit is never divided."""
    first = next(unit for unit in changing if canary in unit)
    batches: list[tuple[str, ...]] = [first]
    hosts = sum(len(unit) for unit in changing)
    wanted = size or 1
    current: tuple[str, ...] = ()
    for unit in changing:
        if unit is first:
            continue
        current += unit
        if len(current) >= wanted:
            batches.append(current)
            current = ()
            wanted = size or max(1, math.ceil(_SHARE_OF_HOSTS * hosts))
    return (*batches, current) if current else tuple(batches)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown + (f" and {len(names) - 5} more" if names[5:] else "")
