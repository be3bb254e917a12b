"""What a rollout would do: which hosts change, in which order, and why others are left alone.

Pure: from what the nodes said of themselves to a `Plan`. Hosts that see one directory are one unit,
which is written once and changes as a whole; so one host that must not change keeps all of its unit
from changing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Optional

from raydiag.hotfix.messages import Directory, Inspection, ProcessInfo

CHANGE, SAME, REFUSED, UNSEEN = "change", "same", "refused", "unseen"

_SHARE_OF_HOSTS = 0.1  # in every batch after the first
# What a plugin serves: where it serves nothing now, nothing could be verified of it.
_SERVES = {"gpu_metrics_plugin.sh": "hw_gpu_", "tb_metrics_plugin.sh": "tb_"}
_MOST_NAMES = 5  # of hosts in one reason


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

    @property
    def place(self) -> tuple[str, str, str]:
        """As a `HostPlan` begins: name, node id, address."""
        return self.name, self.node_id, self.address


def seen_hosts(hosts: Iterable[HostState]) -> dict[str, HostState]:
    """Those that could be looked at, by node id."""
    return {host.node_id: host for host in hosts if not host.unseen}


@dataclass(frozen=True)
class FileChange:
    """One file of one host, from what it is to what it is to become."""

    name: str
    path: str
    old_sha256: str  # "" when the file is new
    new_sha256: str
    restart: bool  # the exporter has to be restarted for it


@dataclass(frozen=True)
class HostPlan:
    """What happens to one host."""

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
        """Whether its exporter has to be restarted."""
        return any(map(attrgetter("restart"), self.changes))

    def change_of(self, name: str) -> Optional[FileChange]:
        """The change of that file; None: it does not change here."""
        return next((change for change in self.changes if change.name == name), None)


@dataclass(frozen=True)
class Plan:
    """What happens to every host, and in which order."""

    files: tuple[NewFile, ...]
    hosts: tuple[HostPlan, ...]  # by name
    batches: tuple[tuple[str, ...], ...]  # node ids; the first holds the canary and its unit
    canary: str = ""  # node id; "" when nothing can be changed
    reason: str = ""  # why nothing can be, where hosts wait for a change

    def host(self, node_id: str) -> HostPlan:
        """The host with that node id."""
        return next(host for host in self.hosts if host.node_id == node_id)

    def content(self, name: str) -> str:
        """What is to be deployed under that name, base64."""
        return next(file.content for file in self.files if file.name == name)


@dataclass(frozen=True)
class Wishes:
    """What the user said beside the files."""

    canary: str = ""  # host name, address or node id
    batch: int = 0  # hosts in a batch; 0: one, then a tenth of all


@dataclass(frozen=True)
class _Member:
    """One host of a unit, taken by itself."""

    host: HostState
    inspected: Inspection
    changes: tuple[FileChange, ...]
    refusals: tuple[str, ...]  # why it must not change

    @property
    def old_contents(self) -> tuple[tuple[str, str], ...]:
        """Name and hash of each file that would change."""
        return tuple((change.name, change.old_sha256) for change in self.changes)


_Unit = Sequence[HostPlan]


def make(
    hosts: Sequence[HostState],
    inspections: Mapping[str, Inspection],
    files: Sequence[NewFile],
    wishes: Wishes,
) -> Plan:
    """The plan. `seen`: by node id, of every host that is not `unseen`."""
    unseen = [host for host in hosts if host.unseen]
    plans = []
    for host in unseen:
        if host.asked:
            plans.append(HostPlan(*host.place, UNSEEN, (host.unseen,)))
    changing: list[_Unit] = []
    for members in _units(hosts, inspections, files):
        if any(map(attrgetter("host.asked"), members)):
            unit = _unit_plans(members, unseen)
            plans += unit
            if _changing(unit):
                changing.append(unit)
    canary, reason = _canary(changing, plans, files, wishes.canary)
    batches = _batches(changing, canary, wishes.batch) if canary else ()
    plans.sort(key=attrgetter("host", "node_id"))
    return Plan(tuple(files), tuple(plans), batches, canary, reason)


def _changing(unit: _Unit) -> list[HostPlan]:
    return [plan for plan in unit if plan.state == CHANGE]


def _units(
    hosts: Sequence[HostState], inspections: Mapping[str, Inspection], files: Sequence[NewFile]
) -> list[list[_Member]]:
    """Hosts that change together, in the order of the hosts."""
    units: dict[str, list[_Member]] = {}
    for host in hosts:
        inspected = inspections.get(host.node_id)
        if inspected is not None:
            changes = _file_changes(inspected, files)
            member = _Member(host, inspected, changes, _refusals(inspected, changes, files))
            shared = inspected.directory.identity if inspected.directory else ""
            units.setdefault(shared or host.node_id, []).append(member)
    return list(units.values())


def _unit_plans(members: Sequence[_Member], unseen: Sequence[HostState]) -> list[HostPlan]:
    """Plans of the hosts of one unit; the first of them writes for all."""
    shared_refusals = tuple(_unit_refusals(members, unseen))
    writer = members[0].host.node_id
    plans = []
    for member in members:
        reasons = member.refusals
        if member.changes and not reasons:
            reasons = shared_refusals
        plans.append(_host_plan(member, reasons, writer))
    return plans


def _host_plan(member: _Member, reasons: tuple[str, ...], writer: str) -> HostPlan:
    inspected = member.inspected
    plan = HostPlan(
        *member.host.place,
        REFUSED if reasons else SAME,
        reasons,
        exporter=inspected.exporter,
        directory=inspected.directory,
        driver_fault=inspected.driver_fault,
        metrics=inspected.served.metrics,
        plugin_log_bytes=inspected.plugin_log_bytes,
    )
    watchdog = inspected.watchdog
    if watchdog is not None:
        plan = replace(plan, restarts=watchdog.restarts, restarts_left=watchdog.left)
    if reasons or not member.changes:
        return plan
    plan = replace(plan, state=CHANGE, changes=member.changes, writer=writer)
    return replace(plan, ends=inspected.ends_on_restart) if plan.restart else plan


def _file_changes(inspected: Inspection, files: Sequence[NewFile]) -> tuple[FileChange, ...]:
    """The exporter itself comes last: it starts with plugins that are new already."""
    targets = inspected.targets()
    directory = inspected.directory.path if inspected.directory else ""
    changes = []
    for file in files:
        target = targets.get(file.name)
        if target is not None and target.sha256 != file.sha256:
            path = f"{directory}/{file.name}"
            changes.append(FileChange(file.name, path, target.sha256, file.sha256, target.restart))
    return tuple(sorted(changes, key=lambda change: change.restart))


# ---- refusals


def _refusals(
    inspected: Inspection, changes: Sequence[FileChange], files: Sequence[NewFile]
) -> tuple[str, ...]:
    """Why this host, taken by itself, must not change; empty also when nothing would change."""
    reasons = list(_file_refusals(inspected, changes, files))
    if any(map(attrgetter("restart"), changes)):
        reasons += inspected.refuse_restart
        if inspected.exporter is None and not inspected.refuse_restart:
            reasons.append("no exporter was found that could be restarted")
    if changes or reasons:
        for rollout in inspected.unfinished:
            if rollout not in "\n".join(reasons):
                text = f"rollout {rollout} has not ended here: raydiag hotfix rollback {rollout}"
                reasons.append(text)
    return tuple(dict.fromkeys(reasons))


def _file_refusals(
    inspected: Inspection, changes: Sequence[FileChange], files: Sequence[NewFile]
) -> Iterator[str]:
    targets = inspected.targets()
    yield from inspected.refuse_replace
    for file in () if inspected.refuse_replace else files:
        if file.name not in targets:
            yield f"{file.name}: the node does not say what is there"
    for change in changes:
        refused = targets[change.name].refused
        if refused:
            yield refused if refused.startswith(change.name) else f"{change.name}: {refused}"


def _unit_refusals(members: Sequence[_Member], unseen: Sequence[HostState]) -> Iterator[str]:
    """Why hosts that could change by themselves must not, because others see the same files."""
    directory = members[0].inspected.directory
    if directory is None:
        return
    shared = f"its directory {directory.path} is shared"
    hosts = list(map(attrgetter("host"), members))
    refused = [member.host for member in members if member.refusals]
    not_asked = [host for host in hosts if not host.asked]
    if refused:
        yield f"{shared} with {_some(refused)}, which must not change"
    if not_asked:
        yield f"{shared} with {_some(not_asked)}, not named: name them too"
    if not refused and len(set(map(attrgetter("old_contents"), members))) > 1:
        yield f"{shared}, and {_some(hosts)} do not see the same content in it"
    blind = [host for host in unseen if not host.unseen.startswith("dead")]
    if directory.network and blind:
        yield f"{shared}, and {_some(blind)}, which may see it too, did not answer"


def _some(hosts: Sequence[HostState]) -> str:
    text = ", ".join(map(attrgetter("name"), hosts[:_MOST_NAMES]))
    more = len(hosts) - _MOST_NAMES
    return f"{text} and {more} more" if more > 0 else text


# ---- canary and batches


def _canary(
    changing: Sequence[_Unit], plans: Sequence[HostPlan], files: Sequence[NewFile], wish: str
) -> tuple[str, str]:
    """Its node id; or "", and why there is none where hosts wait for a change."""
    candidates = _changing(plans)
    named = [plan for plan in plans if wish in (plan.host, plan.address, plan.node_id)]
    if wish and not named:
        return "", f"--canary {wish}: not one of the hosts asked for"
    if not candidates:
        return "", ""
    if wish:
        candidates = [plan for plan in candidates if plan in named]
        if not candidates:
            state = "; ".join(named[0].reasons) or f"it has the new content ({named[0].state})"
            return "", f"--canary {wish}: nothing is to be changed there: {state}"
    healthy = [plan for plan in candidates if not plan.driver_fault]
    if not healthy:
        fault = f"{candidates[0].host}: {candidates[0].driver_fault}"
        return "", f"no host to try it on that does not show the GPU driver fault ({fault})"
    unit_sizes: dict[str, int] = {}
    for unit in changing:
        unit_sizes.update(dict.fromkeys(map(attrgetter("node_id"), unit), len(unit)))

    def preference(plan: HostPlan) -> tuple[object, ...]:
        """Metrics to verify by, a small unit, many restarts left; the least is the best."""
        size = unit_sizes[plan.node_id]
        return -_served(plan, files), size, -(plan.restarts_left or 0), plan.host

    return min(healthy, key=preference).node_id, ""


def _served(plan: HostPlan, files: Iterable[NewFile]) -> int:
    """Of how many of the files the host serves metrics now."""
    count = 0
    for file in files:
        prefix = _SERVES.get(file.name, "")
        count += any(name.startswith(prefix) for name in plan.metrics)
    return count


def _batches(changing: Sequence[_Unit], canary: str, size: int) -> tuple[tuple[str, ...], ...]:
    """The canary's unit, then `size` hosts each; a unit is never divided."""
    units = [tuple(map(attrgetter("node_id"), unit)) for unit in changing]
    first = next(unit for unit in units if canary in unit)
    batches = [first]
    later_size = size or max(1, math.ceil(_SHARE_OF_HOSTS * sum(map(len, units))))
    batch_size = size or 1
    batch: tuple[str, ...] = ()
    for unit in units:
        if unit is not first:
            batch += unit
        if len(batch) >= batch_size:
            batches.append(batch)
            batch, batch_size = (), later_size
    return (*batches, batch) if batch else tuple(batches)
