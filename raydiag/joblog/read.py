"""All logs of one job, read once each, as facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from raydiag.errors import CannotRun
from raydiag.joblog.facts import JobFacts, LogFile, LogGap, Resolved, WorkerLogs
from raydiag.joblog.failure_facts import Match, Traceback
from raydiag.joblog.log_line import Classify, MakeSelector
from raydiag.joblog.passes import ANCHORS, Pass
from raydiag.joblog.saves import SavePattern
from raydiag.joblog.script_facts import PhaseMark
from raydiag.joblog.state import PassState
from raydiag.joblog.step_facts import LoggedSave, LoggedSteps, Restore
from raydiag.model import Unread
from raydiag.nodeset import expand_in_order

__all__ = ["ANCHORS", "read"]

WORKER_FILES = 512


def read(
    resolved: Resolved,
    make_selector: MakeSelector,
    classify: Classify,
    *,
    state: Optional[PassState] = None,
    save_patterns: Sequence[SavePattern] = (),
    workers: bool = True,
    chunk: Optional[int] = None,
) -> JobFacts:
    """Reads what `find.resolve` found; `state` is brought up to date on the way.

    Raises CannotRun when the job has logs and none of them can be read.
    """
    anchors = (*ANCHORS, *(pattern.anchor.encode() for pattern in save_patterns))
    reader = _JobLogReader(make_selector, anchors, classify, state, tuple(save_patterns), chunk)
    main = reader.log(resolved.logs, "main")
    if resolved.logs and not main.files:
        reasons = "; ".join(f"{item.source} {item.reason}" for item in main.unread)
        raise CannotRun(reasons)
    ranks = [(path, reader.one(path, "rank", rank=_rank(path))) for path in resolved.rank_logs]
    head = next(iter(expand_in_order(main.learnt.header.nodes, 1)), None)
    told = reader.workers(resolved, head) if workers else WorkerLogs()
    unread = [item for one in (main, *(p for _, p in ranks)) for item in one.unread]
    attempts = tuple(_attempt(reader, resolved, logs) for logs in resolved.attempts)
    facts = _facts(resolved, main, told, attempts, (*unread, *reader.worker_unread))
    return _with_ranks(facts, [one for _, one in ranks])


class _JobLogReader:
    """What every pass of one call shares."""

    def __init__(
        self,
        make_selector: MakeSelector,
        anchors: Sequence[bytes],
        classify: Classify,
        state: Optional[PassState],
        patterns: Sequence[SavePattern],
        chunk: Optional[int],
    ) -> None:
        self._select = make_selector(anchors)
        self._classify = classify
        self._state = state
        self._patterns = patterns
        self._chunk = chunk
        self.worker_unread: list[Unread] = []

    def _pass(self, rank: Optional[int] = None, host: Optional[str] = None) -> Pass:
        one = Pass(self._select, self._classify, self._patterns, rank, host)
        if self._chunk:
            one.chunk = self._chunk
        return one

    def log(self, paths: Sequence[str], role: str) -> Pass:
        """One log in its pieces. Only a log in one piece can be gone on with."""
        one = self._pass()
        for path in paths:
            live = path == paths[-1]
            state = self._state if len(paths) == 1 else None
            one.read(path, role if live else "piece", state)
        return one

    def one(
        self, path: str, role: str, rank: Optional[int] = None, host: Optional[str] = None
    ) -> Pass:
        one = self._pass(rank, host)
        one.read(path, role, self._state)
        return one

    def workers(self, resolved: Resolved, head: Optional[str]) -> WorkerLogs:
        """The workers' own logs, the head node's first; the one that came furthest is kept."""
        paths = sorted(resolved.worker_logs, key=lambda path: _host(path) != head)
        files: list[LogFile] = []
        best: Optional[LoggedSteps] = None
        matches: list[Match] = []
        tracebacks: list[Traceback] = []
        saves: list[LoggedSave] = []
        phases: list[PhaseMark] = []
        restores: list[Restore] = []
        per_host: dict[str, int] = {}
        for path in paths[:WORKER_FILES]:
            host = _host(path)
            one = self.one(path, "worker", host=host)
            self.worker_unread += one.unread
            files += one.files
            learnt = one.learnt
            matches += learnt.matches.told()
            tracebacks += learnt.matches.tracebacks
            saves += learnt.saves.saves
            restores += learnt.saves.restores
            phases += learnt.starts.phases.values()
            steps = learnt.steps.told()
            if steps is None or not steps.regular:
                continue
            per_host[host] = max(per_host.get(host, steps.last_step), steps.last_step)
            if best is None or steps.last_step > best.last_step:
                best = steps
        return WorkerLogs(
            files=tuple(files),
            files_found=len(paths),
            last_step=best.last_step if best else None,
            last_step_file=best.file if best else None,
            last_step_line=best.last_line if best else None,
            last_step_time=best.last_time if best else None,
            head_file=files[0].path if files else None,
            seconds_sum=sum(run.seconds_sum for run in best.runs) if best else None,
            steps=best,
            restores=tuple(restores),
            per_host=per_host,
            matches=tuple(matches),
            tracebacks=tuple(tracebacks),
            saves=tuple(saves),
            phases=tuple(phases),
        )


def _attempt(reader: _JobLogReader, resolved: Resolved, logs: tuple[str, ...]) -> JobFacts:
    one = reader.log(logs, "attempt")
    alone = replace(resolved, logs=logs, attempts=(), rank_logs=(), worker_logs=(), notes=())
    return _facts(alone, one, WorkerLogs(), (), tuple(one.unread))


def _facts(
    resolved: Resolved,
    main: Pass,
    workers: WorkerLogs,
    attempts: tuple[JobFacts, ...],
    unread: tuple[Unread, ...],
) -> JobFacts:
    learnt = main.learnt
    steps = learnt.steps.told()
    framework = steps.framework or None if steps else None
    if resolved.batch_script:
        learnt.header.take_script(resolved.batch_script)
    header = learnt.header.header(bool(resolved.ray_log_hosts), framework)
    if header.steps is None and steps and steps.regular and steps.total:
        header = replace(header, steps=steps.total)
    seen = {**learnt.exits.hosts, **learnt.hosts}
    hosts, source = _hosts(seen, header.nodelist, header.nnodes)
    last = main.files[-1].path if main.files else ""
    timeline = learnt.timeline
    gap = timeline.gap
    return JobFacts(
        resolved=resolved,
        files=tuple(main.files),
        header=header,
        stages=tuple(learnt.stages.events),
        summary=learnt.stages.summary,
        steps=_placed(steps, hosts),
        saves=tuple(learnt.saves.saves),
        saves_total=learnt.saves.total,
        restores=tuple(learnt.saves.restores),
        matches=tuple(_on_hosts(learnt.matches.told(), hosts)),
        match_counts=learnt.matches.counts(),
        tracebacks=tuple(learnt.matches.tracebacks),
        tracebacks_total=learnt.matches.tracebacks_total,
        exits=tuple(learnt.exits.exits),
        exits_total=learnt.exits.total,
        heartbeats=learnt.exits.heartbeats(),
        dashboards=learnt.starts.boards,
        phases=tuple(learnt.starts.phases.values()),
        barrier_writers=tuple(learnt.starts.barrier),
        barrier_line=min(learnt.starts.barrier.values(), default=None),
        worker_logs=workers,
        attempts=attempts,
        first_time=timeline.first,
        last_time=timeline.last,
        last_time_line=timeline.last_line or None,
        gap=LogGap(gap.seconds, gap.start, gap.end, gap.line, last) if gap else None,
        clock_jumps=timeline.jumps,
        head=tuple(learnt.head),
        tail=tuple(main.tail),
        tail_first_line=main.tail_first_line,
        last_line_complete=main.complete,
        hosts=hosts,
        hosts_source=source,
        writers=tuple(learnt.writers),
        unread=unread,
        done_markers=tuple(learnt.starts.done),
        resumed_at=main.resumed_at,
    )


def _with_ranks(facts: JobFacts, ranks: Sequence[Pass]) -> JobFacts:
    """The other ranks' logs of a Kubernetes job: their writers, matches and exits join in."""
    if not ranks:
        return facts
    matches, counts = list(facts.matches), dict(facts.match_counts)
    tracebacks, exits, files = list(facts.tracebacks), list(facts.exits), list(facts.files)
    saves, writers, steps = list(facts.saves), list(facts.writers), facts.steps
    heartbeats, total = facts.heartbeats, facts.tracebacks_total
    for one in ranks:
        learnt = one.learnt
        files += one.files
        matches += _on_hosts(learnt.matches.told(), facts.hosts)
        for name, count in learnt.matches.counts().items():
            known = counts.get(name)
            more = count.writers + (known.writers if known else 0)
            lines = count.lines + (known.lines if known else 0)
            counts[name] = replace(known or count, lines=lines, writers=more)
        tracebacks += learnt.matches.tracebacks
        total += learnt.matches.tracebacks_total
        exits += learnt.exits.exits
        saves += learnt.saves.saves
        writers += learnt.writers
        heartbeats = heartbeats or learnt.exits.heartbeats()
        steps = _joined(steps, learnt.steps.told())
    return replace(
        facts,
        files=tuple(files),
        matches=tuple(matches),
        match_counts=counts,
        tracebacks=tuple(tracebacks),
        tracebacks_total=total,
        exits=tuple(exits),
        exits_total=len(exits),
        saves=tuple(saves),
        writers=tuple(dict.fromkeys(writers)),
        heartbeats=heartbeats,
        steps=steps,
    )


def _joined(steps: Optional[LoggedSteps], other: Optional[LoggedSteps]) -> Optional[LoggedSteps]:
    if steps is None or other is None:
        return steps or other
    writers = (*steps.writers, *other.writers)
    total = steps.writers_total + other.writers_total
    longer = other if other.last_step > steps.last_step else steps
    return replace(longer, writers=writers, writers_total=total, lines=steps.lines + other.lines)


def _hosts(
    seen: Mapping[int, str], nodelist: tuple[str, ...], nnodes: Optional[int]
) -> tuple[dict[int, str], str]:
    """Task to host: lines that carry both, else the node list's order, one task a node."""
    if seen:
        listed = dict(enumerate(nodelist)) if _agrees(seen, nodelist) else {}
        return {**listed, **seen}, "lines"
    if nodelist and nnodes in (None, len(nodelist)):
        return dict(enumerate(nodelist)), "nodelist"
    return {}, ""


def _agrees(seen: Mapping[int, str], nodelist: tuple[str, ...]) -> bool:
    return all(task < len(nodelist) and nodelist[task] == host for task, host in seen.items())


def _on_hosts(matches: Sequence[Match], hosts: Mapping[int, str]) -> list[Match]:
    """With the host that their task runs on; an actor has at least its node's address."""
    return [
        replace(m, host=(hosts.get(m.task) if m.task is not None else None) or m.ip)
        if m.host is None
        else m
        for m in matches
    ]


def _placed(steps: Optional[LoggedSteps], hosts: Mapping[int, str]) -> Optional[LoggedSteps]:
    if steps is None:
        return None
    writers = tuple(
        replace(w, host=hosts[w.task])
        if w.host is None and w.task is not None and w.task in hosts
        else w
        for w in steps.writers
    )
    return replace(steps, writers=writers)


def _rank(path: str) -> Optional[int]:
    digits = Path(path).stem.partition("-")[2]
    return int(digits) if digits.isdigit() else None


def _host(path: str) -> str:
    """`ray_logs/<host>/...`."""
    parts = Path(path).parts
    if "ray_logs" in parts:
        place = len(parts) - 1 - parts[::-1].index("ray_logs")
        return parts[place + 1]
    return ""
