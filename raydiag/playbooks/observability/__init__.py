"""Is what watches the job healthy itself? What is not seen must not be taken for healthy, or dead.

One function for each symptom. Where a node's exporter stops and its Ray goes on, the exporter is
down; where both stop, that is for another playbook to judge.
"""

from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter

from raydiag.model import Blind, Coverage, Evidence, HostUnread, Observation, Status, Window
from raydiag.playbooks.observability.exporters import (
    clock_skew,
    exporter_down,
    ghost_data,
    plugin_skipped,
    plugin_timeout,
    restarting,
)
from raydiag.playbooks.observability.missing_samples import (
    bridge_gap,
    gap,
    hosts_missing,
    ray_metrics,
)
from raydiag.playbooks.observability.stack import ID, Stack, observation
from raydiag.playbooks.observations import Report, ReportRow
from raydiag.playbooks.tables import ROWS
from raydiag.timeline.answers import ALIVE, EXPORTER, RAY
from raydiag.timeline.context import GHOST
from raydiag.tsdb.discovery_types import is_address
from raydiag.tsdb.unread import unanswered

TITLE = "Health of the observability stack"
SEEN_S = 60.0  # samples that reach so near to the end count as seen
_QUERIES = (ALIVE, "up", "driver", "cycle-age", "training")
# fmt: off
_SYMPTOMS = (
    gap, exporter_down, plugin_timeout, plugin_skipped, clock_skew,
    restarting, ghost_data, bridge_gap, ray_metrics, hosts_missing,
)
# fmt: on


def judge(stack: Stack) -> tuple[list[Observation], Report]:
    """Every symptom, with a row for each, hit or not."""
    observations: list[Observation] = []
    rows = []
    for symptom in _SYMPTOMS:
        row = symptom.__name__.replace("_", "-")
        if row in stack.never_there:
            rows.append(ReportRow(row, None, stack.never_there[row]))
            continue
        symptoms = list(symptom(stack))
        observations += symptoms
        rows.append(_row(row, symptoms))
    queries = tuple(filter(stack.answers.__contains__, _QUERIES))
    state = "unhealthy in part" if observations else "healthy"
    verdict = f"The observability stack is {state}."
    window = stack.context.window
    return observations, Report(ID, TITLE, "observability", window, queries, tuple(rows), verdict)


def _row(row: str, symptoms: Sequence[Observation]) -> ReportRow:
    hosts, text = set(map(attrgetter("finding.host"), symptoms)), ROWS[row].healthy
    if symptoms and symptoms[0].finding.evidence:
        text = symptoms[0].finding.evidence[0].text
    return ReportRow(row, bool(symptoms), text, tuple(sorted(filter(None, hosts))))


def empty(reason: str, lines: Sequence[Evidence]) -> Observation:
    """The directory holds no samples."""
    return observation("empty", [Evidence("prometheus", reason), *lines])


def wrong_job(source: str, reason: str) -> Observation:
    """What is served belongs to another job."""
    return observation("wrong-job", [Evidence(source, reason)])


def coverage(stack: Stack, dead: Collection[str] = ()) -> Coverage:
    """What the answer rests on: hosts that are seen to the end, by exporter and by Ray.

    `dead` are hosts whose silence is itself the finding.
    """
    hw, ray = stack.newest_samples(EXPORTER), stack.newest_samples(RAY)
    unseen = [host for host in stack.hosts if host not in hw and host not in ray]
    unread: list[HostUnread] = []
    twice = _under_two_names(stack, hw)
    for host in stack.hosts:
        if host in dead or host in unseen:
            continue
        if host in hw or host not in twice:
            unread += _ends_early(stack, host, "hw_*", hw)
        is_with_ray = stack.is_ray and "ray-metrics" not in stack.never_there
        if is_with_ray and (host in ray or host not in twice):
            unread += _ends_early(stack, host, "ray_*", ray)
    unread += _failed(stack)
    unread += _repeated(stack)
    blind = tuple(Blind(host, "no series of this host") for host in unseen)
    window = Window(stack.context.window.start, stack.end)
    count = len(stack.hosts) - len([host for host in twice if is_address(host)])
    return Coverage(count, count - len(blind), blind, tuple(unread), window)


def _under_two_names(stack: Stack, hw: Collection[str]) -> tuple[str, ...]:
    """Names of hosts whose Ray has an address alone, with these addresses where they are listed."""
    addresses = [host for host in stack.hosts if is_address(host) and host not in hw]
    nnodes = stack.context.discovery.nnodes
    is_all = nnodes is None or len(stack.hosts) - len(addresses) == nnodes
    return (*addresses, *stack.nameless) if is_all else ()


def _ends_early(
    stack: Stack, host: str, family: str, newest: dict[str, float]
) -> Iterator[HostUnread]:
    if host not in newest:
        yield HostUnread(host, family, Status.NO_DATA, f"{host} has no {family} series")
    elif newest[host] < stack.end - max(SEEN_S, 3 * stack.resolution_s):
        reason = f"ends {stack.end - newest[host]:.0f} s before the window does"
        yield HostUnread(host, family, Status.NO_DATA, reason)


def _failed(stack: Stack) -> Iterator[HostUnread]:
    yield from unanswered(stack.answers)
    yield from map(HostUnread.without_host, stack.context.discovery.unread)
    yield from map(HostUnread.without_host, stack.logs.unread)


def _repeated(stack: Stack) -> Iterator[HostUnread]:
    for mask in stack.context.masks:
        if mask.kind == GHOST and mask.host:
            reason = f"repeated samples for {min(mask.end, stack.end) - mask.start:.0f} s"
            yield HostUnread(mask.host, "hw_*", Status.NO_DATA, reason)
