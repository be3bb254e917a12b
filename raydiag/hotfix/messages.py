"""What a hotfix asks of a node, and what the node answers: plain values, JSON in and out.

Runs in a lean interpreter that the actor starts, single-threaded, Python 3.9 and standard library.
`answer({"operation": "inspect", ...})` returns the fields of `Inspection`, and so on: each request
below is the operation of its own lower-cased name, and says what it is answered with. A request
that cannot be understood, or an operation that breaks, is answered with `{"error": "one line"}`.

An operation that finds any doubt does nothing and says why in `reason` or `refusals`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, Optional

SHELL, RAYDIAG = "shell", "raydiag"

# The files of the shell exporter that may be replaced; of raydiag's own, any plugin in its
# directory.
SHELL_TARGETS = (
    "gpu_metrics_plugin.sh",
    "host_metrics_plugin.sh",
    "tb_metrics_plugin.sh",
    "metrics_exporter.sh",
)


@dataclass(frozen=True)
class NodeRequest:
    """What every request may say of the place; what is None is found, never guessed."""

    exporter: str = SHELL  # or RAYDIAG
    port: int = 9400
    directory: Optional[str] = None  # of the files; None: that of the running exporter
    pid_file: Optional[str] = None  # of raydiag's exporter; needed to find and to restart it
    journal: Optional[str] = None  # directory; None: ~/.raydiag/hotfix/<host>
    driver_fault: Optional[str] = None  # what probes saw of it here; None: they saw nothing
    driver_fault_symbols: tuple[str, ...] = ()  # looked for in wait channels besides
    metrics_file: str = "/tmp/node_hw_metrics.prom"  # which the shell exporter's server hands out
    plugin_log: str = "/tmp/metrics_exporter.log"  # where the shell plugins' errors go
    root: str = ""  # of /sys, for tests; the real one is looked at as well


@dataclass(frozen=True)
class SignedRequest(NodeRequest):
    """What a request says besides that changes something for a rollout."""

    rollout: str = ""  # id: letters, digits, "-", at most 64
    who: str = ""  # user@host of the driver


Fields = dict[str, Any]  # of a request

# How much longer than usual an exporter may take whose node is so loaded that its cycles come late.
LATE_FACTOR = 3.0


# ---- inspect


@dataclass(frozen=True)
class Inspect(NodeRequest):
    """-> Inspection. Changes nothing. Takes up to 8 s."""

    names: tuple[str, ...] = ()  # target files


@dataclass(frozen=True)
class ProcessInfo:
    """A process by its identity: a pid alone may be another one's a moment later."""

    pid: int
    start_ticks: int  # field 22 of /proc/<pid>/stat, since boot
    argv: tuple[str, ...]
    role: str  # "exporter", "server", "orphan" (a server whose exporter is gone), "watchdog"
    state: str = ""  # "S"
    started_at: float = 0.0  # Unix s

    def is_same(self, other: ProcessInfo) -> bool:
        """Whether both are one process."""
        return (self.pid, self.start_ticks) == (other.pid, other.start_ticks)


@dataclass(frozen=True)
class Directory:
    path: str  # as the exporter names it
    real_path: str
    device: int  # of this node's mount; says nothing on other nodes
    inode: int
    fs_type: str  # "nfs4", "ext4"
    source: str  # of the mount: "server:/export"
    network: bool  # other nodes may see the same files
    identity: str  # equal on two nodes: one directory, to be written once


@dataclass(frozen=True)
class TargetFile:
    name: str
    sha256: str = ""  # "" where there is no such file
    refused: str = ""  # why it cannot be replaced; "" when it can
    restart: bool = False  # its change needs the exporter's restart


@dataclass(frozen=True)
class Watchdog:
    log: str  # path: where its restart lines go
    log_bytes: int  # its size now
    restarts: int  # N of the last `restart #N`; 0: none yet
    left: int  # of 50
    last_restart_at: Optional[float] = None
    gave_up: bool = False


@dataclass(frozen=True)
class ServedPage:
    """What the port answers."""

    answer: str  # "ok", "refused", "timeout", "error"
    reason: str = ""
    metrics: Mapping[str, int] = field(default_factory=dict)  # name -> series
    scrape_duration_s: Optional[float] = None
    file_age_s: Optional[float] = None  # of the file that is served, since its last change


@dataclass(frozen=True)
class Inspection:
    host: str  # short name
    time: float  # of this node's clock
    exporter: Optional[ProcessInfo]
    ends_on_restart: tuple[ProcessInfo, ...]  # the exporter and its server, in this order
    directory: Optional[Directory]
    files: tuple[TargetFile, ...]
    watchdog: Optional[Watchdog]
    served: ServedPage
    plugin_log_bytes: int  # its size now: later lines are new
    driver_fault: str  # what shows it; "": nothing does
    unfinished: tuple[str, ...]  # rollouts whose last record on this node is not an end
    leftovers: tuple[str, ...]  # temporary files of rollouts that died
    refuse_replace: tuple[str, ...]  # why no file can be replaced here
    refuse_restart: tuple[str, ...]  # why the exporter cannot be restarted here

    def targets(self) -> dict[str, TargetFile]:
        """The target files by name."""
        return {file.name: file for file in self.files}


# ---- check


@dataclass(frozen=True)
class Check(NodeRequest):
    """-> Checked. Syntax, and for a plugin a dry run whose output stays in memory. Up to 15 s.

    The new content stands in the directory under a temporary name meanwhile, so that it finds what
    lies beside it. Never runs the exporter, nor the GPU plugin where the driver fault shows.
    """

    name: str = ""
    content: str = ""  # base64
    dry_run: bool = True
    limit_s: float = 10.0


@dataclass(frozen=True)
class CheckedFile:
    passed: bool
    reason: str  # why it did not pass; else why there was no dry run, or ""
    dry_run: str  # "passed", "failed", "skipped"
    sha256: str
    metrics: Mapping[str, int] = field(default_factory=dict)  # that it printed: name -> series
    exit_status: Optional[int] = None  # of the dry run; 99: it does not want to run on this node
    duration_s: float = 0.0
    output: str = ""  # its last words on stderr


# ---- apply


@dataclass(frozen=True)
class Apply(SignedRequest):
    """-> Applied. Replaces one file by rename; recorded before and after. Up to 10 s."""

    name: str = ""
    content: str = ""  # base64
    old_sha256: str = ""  # as planned; "" for a file that is new. Another content is refused.


@dataclass(frozen=True)
class Applied:
    outcome: str  # "replaced", "already" (has the new content), "refused", "failed" (old is there)
    reason: str = ""
    path: str = ""
    old_sha256: str = ""  # "" where there was no file
    new_sha256: str = ""
    at: float = 0.0  # this node's clock, after the rename
    plugin_log_bytes: int = 0  # just before the rename
    restart: bool = False  # the exporter has to be restarted for it


# ---- restart


@dataclass(frozen=True)
class Restart(SignedRequest):
    """-> Restarted. Ends the exporter and its server; its watchdog starts it anew. Up to 15 s."""

    pid: int = 0  # as planned: exactly this exporter
    start_ticks: int = 0
    least_left: int = 5  # restarts of the watchdog that must be left before; 2 at least


@dataclass(frozen=True)
class Restarted:
    outcome: str  # "ended", "refused" (nothing was ended), "failed" (some was: see reason)
    reason: str = ""
    ended: tuple[ProcessInfo, ...] = ()
    restarts: int = 0  # N of the last restart line before
    log: str = ""  # the watchdog's
    log_bytes: int = 0  # its size before
    plugin_log_bytes: int = 0
    at: float = 0.0  # just before the first was ended
    port_free: bool = False  # nothing listened any more afterwards


# ---- verify


@dataclass(frozen=True)
class Verify(NodeRequest):
    """-> Verified. Watches until the cycles after a change are seen, or a limit has passed.

    An exporter that is alive, and shows that its cycles come late, has until `late_limit_s`.
    """

    name: str = ""  # the file that was replaced
    since: float = 0.0  # `at` of Applied, or of Restarted
    plugin_log_bytes: int = 0  # of Applied or Restarted
    before: Mapping[str, int] = field(default_factory=dict)  # Inspection.served.metrics
    expected: Mapping[str, int] = field(default_factory=dict)  # Checked.metrics of the canary
    restarted: Optional[Restarted] = None  # after a restart
    limit_s: float = 60.0
    late_limit_s: float = 0.0  # less than `limit_s`: no longer than that

    @classmethod
    def after(cls, change: Fields, restarted: Optional[Restarted], limit_s: float) -> Verify:
        """After a change, of which the fields up to `expected` tell; late cycles have more time."""
        late_limit_s = LATE_FACTOR * limit_s
        return cls(**change, restarted=restarted, limit_s=limit_s, late_limit_s=late_limit_s)


@dataclass(frozen=True)
class Verified:
    healthy: bool
    reason: str = ""  # why it is not
    notes: tuple[str, ...] = ()  # what could not be judged, such as a plugin that does not run here
    cycles: int = 0  # seen since the change
    moved: int = 0  # series that changed between two of them
    metrics: Mapping[str, int] = field(default_factory=dict)
    exporter: Optional[ProcessInfo] = None  # after a restart: the new one
    restarts: Optional[int] = None  # after a restart: N of the new line
    duration_s: float = 0.0


# ---- rollback, close, status


@dataclass(frozen=True)
class Rollback(SignedRequest):
    """-> RolledBack. Undoes what the rollout did on this node, from its journal.

    A record is believed where its path is that of its name in the directory of the files.
    """

    name: str = ""  # "": every file of it
    planned_directory: str = ""  # of the plan; "": the one of the request, or of the exporter


@dataclass(frozen=True)
class RestoredFile:
    name: str
    path: str
    outcome: str  # "restored", "removed" (was new), "already" (old is there), "refused", "failed"
    reason: str = ""
    sha256: str = ""  # now; "" where there is no file
    at: float = 0.0
    plugin_log_bytes: int = 0
    restart: bool = False  # the exporter has to be restarted, if it ran with the new one


@dataclass(frozen=True)
class RolledBack:
    files: tuple[RestoredFile, ...]
    complete: bool  # every file has its old content
    reason: str = ""


@dataclass(frozen=True)
class Close(SignedRequest):
    """-> Closed. Records the rollout's end on this node, which frees it for the next one."""

    outcome: str = ""  # "verified", "rolled back", "failed: ..."


@dataclass(frozen=True)
class Closed:
    recorded: bool
    reason: str = ""


@dataclass(frozen=True)
class StatusRequest(NodeRequest):
    """-> Statuses. From the journal and the files as they are now. Changes nothing."""

    rollout: str = ""  # "": all


@dataclass(frozen=True)
class FileStatus:
    rollout: str
    name: str
    path: str
    content: str  # "old", "new", "neither" (changed by somebody else), "missing", "unreadable"
    old_sha256: str
    new_sha256: str
    sha256: str  # now
    event: str  # the last one recorded of it: "intent", "replaced", "restored", "failed"
    at: float  # of that event
    who: str = ""


@dataclass(frozen=True)
class RolloutStatus:
    rollout: str
    who: str
    began_at: float
    ended: str  # the outcome given to Close; "": it has not ended
    files: tuple[FileStatus, ...]
    restarts: int = 0  # of the exporter, begun by this rollout
    torn: bool = False  # the last record was not written whole


@dataclass(frozen=True)
class Statuses:
    rollouts: tuple[RolloutStatus, ...]  # oldest first
    leftovers: tuple[str, ...] = ()  # temporary files beside the files of these rollouts

    def contents(self) -> set[str]:
        """What the files of these rollouts are: see `FileStatus.content`."""
        files = chain.from_iterable(map(attrgetter("files"), self.rollouts))
        return set(map(attrgetter("content"), files))


_REQUESTS = (Inspect, Check, Apply, Restart, Verify, Rollback, Close, StatusRequest)
OPERATIONS: dict[str, type[NodeRequest]] = {
    request.__name__.removesuffix("Request").lower(): request for request in _REQUESTS
}
OPERATION_NAMES = {request: operation for operation, request in OPERATIONS.items()}
