"""All logs of one job, read once each, as facts."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from raydiag.errors import CannotRun
from raydiag.joblog.facts import (
    TERMINATED,
    JobFacts,
    LoggedKernelLine,
    LoggedSteps,
    Match,
    Resolved,
    TaskExit,
    WorkerLogs,
)
from raydiag.joblog.lines import CHUNK_BYTES
from raydiag.joblog.log_line import Classify, MakeSelector, Selector
from raydiag.joblog.numbers import whole_number
from raydiag.joblog.passes import ANCHORS, Pass
from raydiag.joblog.state import PassState
from raydiag.model import Unread
from raydiag.nodeset import expand_in_order

__all__ = ["ANCHORS", "read"]

WORKER_FILES = 512
_CAUSES = ("root", "either")  # roles of a match
_KILLED = 128  # from this exit code on
_NEAR_LINES = 400  # an error ends its node before so many are printed
_NO_WORKERS = WorkerLogs()


def read(
    resolved: Resolved,
    make_selector: MakeSelector,
    classify: Classify,
    *,
    state: PassState | None = None,
    workers: bool = True,
    chunk: int = CHUNK_BYTES,
    directory: str = "",
) -> JobFacts:
    """Reads what `find.resolve` found; `state` is brought up to date on the way.

    `directory`: where relative names are looked up; the facts have them as they are.

    Raises CannotRun when the job has logs and none of them can be read.
    """
    reader = _JobLogReader(make_selector(ANCHORS), classify, state, chunk, directory)
    main = reader.log(resolved.logs, "main")
    if resolved.logs and not main.files:
        raise CannotRun("; ".join(f"{part.source} {part.reason}" for part in main.unread))
    ranks = [reader.log([path], "rank", rank=_rank(path)) for path in resolved.rank_logs]
    head = next(iter(expand_in_order(main.learnt.header.nodes, 1)), None)
    worker_logs = reader.workers(resolved, head) if workers else _NO_WORKERS
    attempts = tuple(_attempt(reader, resolved, logs) for logs in resolved.attempts)
    unread = (*_of_all([main, *ranks], "unread"), *reader.worker_unread)
    return _facts(resolved, main, ranks, unread, worker_logs, attempts)


@dataclass
class _JobLogReader:
    """What every pass of one call shares."""

    select: Selector
    classify: Classify
    state: PassState | None
    chunk: int
    directory: str
    worker_unread: list[Unread] = field(default_factory=list)

    def log(
        self, paths: Sequence[str], role: str, rank: int | None = None, host: str | None = None
    ) -> Pass:
        """One log in its pieces, perhaps of one rank or of one host.

        Only a log in one piece can be gone on with.
        """
        log = Pass(self.select, self.classify, rank, host, self.chunk, directory=self.directory)
        for path in paths[:-1]:
            log.read(path, "piece")
        for path in paths[-1:]:
            log.read(path, role, self.state if len(paths) == 1 else None)
        return log

    def workers(self, resolved: Resolved, head: str | None) -> WorkerLogs:
        """The workers' own logs, the head node's first; the one that came furthest is kept."""
        paths = sorted(resolved.worker_logs, key=lambda path: _host(path) != head)
        workers = WorkerLogs(files_found=len(paths))
        for path in paths[:WORKER_FILES]:
            log = self.log([path], "worker", host=_host(path))
            self.worker_unread += log.unread
            workers = _with_worker(workers, log)
        return workers


def _with_worker(workers: WorkerLogs, log: Pass) -> WorkerLogs:
    """With one worker's log; of the steps those that came furthest are kept."""
    saves, steps = log.learnt.saves, log.learnt.steps.logged()
    if steps is None or not steps.regular:
        steps = workers.steps
    elif workers.steps is not None:
        steps = max(workers.steps, steps, key=attrgetter("last_step"))
    return replace(
        workers,
        files=(*workers.files, *log.files),
        steps=steps,
        restores=(*workers.restores, *saves.restores),
        matches=(*workers.matches, *log.learnt.matches.in_order()),
        saves=(*workers.saves, *saves.saves),
    )


def _attempt(reader: _JobLogReader, resolved: Resolved, logs: tuple[str, ...]) -> JobFacts:
    log = reader.log(logs, "attempt")
    alone = replace(resolved, logs=logs, attempts=(), rank_logs=(), worker_logs=(), notes=())
    return _facts(alone, log, (), log.unread)


def _facts(
    resolved: Resolved,
    main: Pass,
    ranks: Sequence[Pass],
    unread: Sequence[Unread],
    workers: WorkerLogs = _NO_WORKERS,
    attempts: tuple[JobFacts, ...] = (),
) -> JobFacts:
    """`ranks`: the other ranks' logs of a Kubernetes job; their writers, matches, exits join in."""
    learnt, logs = main.learnt, [main, *ranks]
    steps = learnt.steps.logged()
    if resolved.batch_script:
        learnt.header.take_script(resolved.batch_script)
    header = learnt.header.header(bool(resolved.ray_log_hosts))
    if steps:
        header = replace(header, framework=steps.format)
        if header.steps is None and steps.regular and steps.total:
            header = replace(header, steps=steps.total)
    hosts = _hosts({**learnt.exits.hosts, **learnt.hosts}, header.nodelist, header.nnodes)
    steps = _placed(steps, hosts)
    for rank in ranks:
        steps = _joined(steps, rank.learnt.steps.logged())
    timeline = learnt.timeline
    names = {ip: hosts[task] for ip, task in learnt.exits.nodes.items() if task in hosts}
    matches = [*itertools.chain.from_iterable(log.learnt.matches.in_order() for log in logs)]
    names |= learnt.addresses
    since = int(min(steps.series.line[-2:])) if steps else 0
    unnamed = {task: host for task, host in hosts.items() if host not in names.values()}
    names = {**_address_of_failed(matches, learnt.exits.exits, unnamed, since), **names}
    return JobFacts(
        resolved=resolved,
        files=_of_all(logs, "files"),
        header=header,
        stages=tuple(learnt.stages.events),
        summary=learnt.stages.summary,
        steps=steps,
        saves=_of_all(logs, "learnt.saves.saves"),
        restores=tuple(learnt.saves.restores),
        loads=_of_all(logs, "learnt.saves.loads"),
        kernel_lines=tuple(_kernel_lines(logs, hosts, header.nodelist)),
        matches=tuple(_on_host(match, hosts, names) for match in matches),
        tracebacks=_of_all(logs, "learnt.matches.tracebacks"),
        exits=_of_all(logs, "learnt.exits.exits"),
        heartbeats=next(filter(None, (log.learnt.exits.heartbeats() for log in logs)), None),
        dashboards=learnt.starts.boards,
        phases=tuple(learnt.starts.phases.values()),
        barrier_writers=tuple(learnt.starts.barrier),
        barrier_line=min(learnt.starts.barrier.values(), default=None),
        worker_logs=workers,
        attempts=attempts,
        first_time=timeline.first,
        last_time=timeline.last,
        last_time_line=timeline.last_line or None,
        clock_jumps=timeline.jumps,
        head=tuple(learnt.head),
        tail=tuple(main.tail),
        tail_first_line=main.tail_first_line,
        last_line_complete=main.complete,
        hosts=hosts,
        unread=tuple(unread),
        done_markers=tuple(learnt.starts.done_markers),
        resumed_at=main.resumed_at,
    )


def _of_all(logs: Sequence[Pass], path: str) -> tuple[Any, ...]:
    """What the lists at this path of attributes hold, log by log."""
    return tuple(itertools.chain.from_iterable(map(attrgetter(path), logs)))


def _kernel_lines(
    logs: Sequence[Pass], hosts: Mapping[int, str], nodelist: Sequence[str]
) -> Iterator[LoggedKernelLine]:
    """With the host of the task that brought them, or the only one that the job has."""
    only_host = nodelist[0] if len(nodelist) == 1 else None
    for log in logs:
        for line in log.learnt.kernel.in_order():
            of_task = hosts.get(line.task) if line.task is not None else only_host
            yield replace(line, host=line.host or of_task)


def _joined(steps: LoggedSteps | None, of_rank: LoggedSteps | None) -> LoggedSteps | None:
    if steps is None or of_rank is None:
        return steps or of_rank
    further = max(steps, of_rank, key=attrgetter("last_step"))
    return replace(further, writers=(*steps.writers, *of_rank.writers))


def _hosts(
    hosts_on_lines: Mapping[int, str], nodelist: tuple[str, ...], nnodes: int | None
) -> dict[int, str]:
    """Task to host: lines that carry both, else the node list's order, one task a node."""
    in_order = dict(enumerate(nodelist))
    if not hosts_on_lines:
        return in_order if nnodes in (None, len(nodelist)) else {}
    agrees = hosts_on_lines.items() <= in_order.items()
    return {**in_order, **hosts_on_lines} if agrees else dict(hosts_on_lines)


def _address_of_failed(
    matches: Iterable[Match], exits: Iterable[TaskExit], hosts: Mapping[int, str], since: int
) -> dict[str, str]:
    """Address to host, of the only actor with an error and the only node that failed soon after.

    The driver's own node, that of task 0, has no address on its lines. A node that was killed, or
    that has an error of its own, did not fail by the actor's. Errors up to line `since` were
    survived.
    """
    ends = [ended for ended in exits if ended.kind == "node-exit"]
    failed = [ended for ended in ends if ended.code not in (None, 0, *TERMINATED)]
    if len(failed) != 1 or (failed[0].code or 0) >= _KILLED:
        return {}
    task, end = failed[0].task, failed[0].line
    near = range(max(since + 1, end - _NEAR_LINES), end)
    errors = [match for match in matches if match.role in _CAUSES and match.line in near]
    addresses = {match.ip for match in errors if match.ip}
    if len(addresses) != 1 or task in (0, *(match.task for match in errors if not match.ip)):
        return {}
    return {addresses.pop(): host for number, host in hosts.items() if number == task}


def _on_host(match: Match, hosts: Mapping[int, str], addresses: Mapping[str, str]) -> Match:
    """With the host that its task runs on; an actor has at least its node's address.

    The task before what Ray brought from another node is the driver's.
    """
    if match.ip is not None:
        host = match.host or addresses.get(match.ip, match.ip)
        tasks = [task for task, host_of_task in hosts.items() if host_of_task == host]
        return replace(match, host=host, task=next(iter(tasks), None))
    if match.host is not None or match.task is None:
        return match
    return replace(match, host=hosts.get(match.task))


def _placed(steps: LoggedSteps | None, hosts: Mapping[int, str]) -> LoggedSteps | None:
    """With the host of each writer."""
    if steps is None:
        return None
    writers = []
    for writer in steps.writers:
        host = writer.host if writer.task is None else writer.host or hosts.get(writer.task)
        writers.append(replace(writer, host=host))
    return replace(steps, writers=tuple(writers))


def _rank(path: str) -> int | None:
    return whole_number(Path(path).stem.partition("-")[2])


def _host(path: str) -> str:
    """`ray_logs/<host>/...`."""
    parts = Path(path).parts
    if "ray_logs" in parts:
        return parts[len(parts) - parts[::-1].index("ray_logs")]
    return ""
