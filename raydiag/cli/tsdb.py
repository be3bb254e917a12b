"""`raydiag tsdb`: look into a job's Prometheus data, ask it, serve it, check whose it is.

examples:
  raydiag tsdb info outputs/7877-llama                      families, hosts, times, resolution
  raydiag tsdb query 7877 'max by (host) (hw_gpu_temperature_celsius)'
  raydiag tsdb query 7877 'rate(hw_tcp_retransmits_total[5m])' --start 2026-11-20T03:00Z
  raydiag tsdb query http://127.0.0.1:9190 up               a running server
  raydiag tsdb info --ssh me@head http://127.0.0.1:9190     the same, on another machine
  raydiag tsdb view 7877 7879                               servers for a browser, until Ctrl-C
  raydiag tsdb verify 7877 --prometheus http://127.0.0.1:9190

A directory is served by a temporary prometheus on 127.0.0.1 (from PATH, or RAYDIAG_PROMETHEUS).
Times are Unix seconds or ISO 8601, in UTC unless they have a zone.

exit codes:
  0 healthy   1 the series are another job's   2 usage, or PromQL that the server rejects
  3 not everything could be seen or decided    4 no such job, no data, no Prometheus
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from raydiag.cli import cluster_options, options, values
from raydiag.errors import CannotRun, RaydiagError, UsageError

if TYPE_CHECKING:
    from raydiag.joblog.facts import JobFacts
    from raydiag.model import Window
    from raydiag.tsdb.connection import Connection
    from raydiag.tsdb.discovery_types import Discovery
    from raydiag.tsdb.identity import Logged
    from raydiag.tsdb.series import Query

_USUAL_PORT = 9190
_ALIVE = "status/buildinfo"  # what a server that lives always answers
_show = partial(options.show, columns=1_000_000)  # a series stays on its line, for grep

HELP = "inspect, query, browse and verify a job's Prometheus data"
REMARK = " The job's directory is not modified."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)

    def add_action(name: str, words: str, jobs: str = "") -> argparse.ArgumentParser:
        action = options.add_action(actions, name, words)
        place = "job directory, log, job id, Prometheus data directory, or URL"
        if jobs:
            action.add_argument("jobs", nargs=jobs, metavar="JOB", help=place)
        else:
            action.add_argument("job", metavar="JOB|URL", help=place)
        words = "where to look up job ids"
        action.add_argument("--outputs", default="outputs", metavar="DIR", help=words)
        options.add_way_in(action)
        options.add_output(action)
        return action

    add_action("info", "list families, hosts, times, resolution, scrape targets")
    query = add_action("query", "run a PromQL query")
    query.add_argument("promql", metavar="PROMQL")
    for name, words in (
        ("--time", "evaluate at this time (default: end)"),
        ("--start", "start of a range"),
        ("--end", "end of the range (default: end of the data)"),
    ):
        query.add_argument(name, type=values.moment, metavar="T", help=words)
    query.add_argument("--step", type=_step, metavar="S", help="seconds between two points")
    add_action("view", "serve the data of finished jobs for a browser, until Ctrl-C", jobs="+")
    words = "check that the series are this job's, against the steps of its log"
    verify = add_action("verify", words)
    words = "check this server instead of the job's directory"
    verify.add_argument("--prometheus", metavar="URL", help=words)
    parser.set_defaults(reaches_cluster=True)


def run(arguments: argparse.Namespace) -> int:
    """Reach a Prometheus, query it, show the answer; returns the exit code."""
    if arguments.address is not None:
        raise UsageError("--address names a dashboard: tsdb takes a Prometheus URL as its argument")
    if arguments.ssh is None and (arguments.jump or arguments.ssh_config):
        raise UsageError("-J and --ssh-config say how --ssh connects: give --ssh [USER@]HEAD too")
    actions = {"info": _info, "query": _query, "view": _view, "verify": _verify}
    return actions[arguments.action](arguments)


def _info(arguments: argparse.Namespace) -> int:
    from raydiag.render.tsdb import info_document, info_report

    with _reached(arguments, arguments.job) as connection:
        discovery = _discovered(connection, _facts_if_any(arguments, arguments.job))
    live = connection.live
    _show(arguments, lambda: info_document(discovery, live), lambda: info_report(discovery))
    return 0 if discovery.coverage.complete and discovery.window is not None else 3


def _query(arguments: argparse.Namespace) -> int:
    from raydiag.render.tsdb import query_document, query_report
    from raydiag.tsdb.time_bounds import bounds

    with _reached(arguments, arguments.job) as connection:
        window = bounds(connection, time.time(), [])
        answer = connection.client.ask(_asked_query(arguments, window))
    if not answer.ok:
        raise (UsageError if answer.bad_query else CannotRun)(answer.reason)
    origin, unread = connection.origin, connection.unread
    _show(
        arguments,
        lambda: query_document(origin, answer, window, unread),
        lambda: query_report(answer, window, unread),
    )
    return 3 if connection.unread else 0


def _asked_query(arguments: argparse.Namespace, data: Window | None) -> Query:
    """At one time, else over a range, which is that of the data where the options leave it open."""
    from raydiag.model import Window
    from raydiag.tsdb.series import Query

    now = time.time()
    data_start, data_end = (data.start, data.end) if data is not None else (None, now)
    end = _first_known(arguments.end, data_end)
    if arguments.start is arguments.end is arguments.step is None:
        return Query.at("query", arguments.promql, _first_known(arguments.time, end))
    if arguments.time is not None:
        raise UsageError("--time is for a single time: leave out --start, --end and --step")
    start = _first_known(arguments.start, data_start, end)
    window = Window(start, end)
    return Query.over("query", arguments.promql, window, arguments.step or 0.0)


def _first_known(*times: float | None) -> float:
    return next(time_s for time_s in times if time_s is not None)


def _verify(arguments: argparse.Namespace) -> int:
    from raydiag.catalog.completion import complete
    from raydiag.explain.diagnosis import exit_code
    from raydiag.model import Diagnosis
    from raydiag.render.tsdb import verify_document, verify_report
    from raydiag.tsdb import identity

    facts = _facts(arguments, arguments.job)
    with _reached(arguments, arguments.prometheus or arguments.job) as connection:
        discovery = _discovered(connection, facts)
        checked = identity.check(connection.client, discovery, _logged(facts))
    findings = complete(checked.findings(discovery.origin))
    diagnosis = Diagnosis(findings, (), discovery.coverage)
    _show(
        arguments,
        lambda: verify_document(discovery, checked, diagnosis),
        lambda: verify_report(discovery, checked),
    )
    code = exit_code(diagnosis)
    return 3 if code == 0 and checked.belief is identity.Belief.UNVERIFIED else code


def _view(arguments: argparse.Namespace) -> int:
    from raydiag.render.tsdb import view_document, view_report

    with contextlib.ExitStack() as stack:
        servers = []
        for job in arguments.jobs:
            if _is_url(job):
                raise UsageError(f"{job}: a running server needs no view: open it in a browser")
            servers.append((job, stack.enter_context(_opened(arguments, job))))
        with contextlib.suppress(KeyboardInterrupt):  # the normal end
            _show(arguments, lambda: view_document(servers), lambda: view_report(servers))
            while all(connection.client.metadata(_ALIVE).ok for _, connection in servers):
                time.sleep(1)
            raise CannotRun("a server exited unexpectedly")
    return 3 if any(connection.unread for _, connection in servers) else 0


@contextlib.contextmanager
def _reached(arguments: argparse.Namespace, job: str) -> Iterator[Connection]:
    """The server that is named, or the job's own while it lives, or one of ours over its data."""
    from raydiag.tsdb import connection, live

    if arguments.ssh is not None:
        from raydiag.cluster import ssh

        with ssh.forward(cluster_options.way(arguments), _url(arguments, job)) as forward:
            yield connection.connect(forward.url)
    elif _is_url(job):
        yield connection.connect(job)
    elif (url := live.find(_data(arguments, job))) is not None:
        yield connection.connect(url)
    else:
        with _opened(arguments, job) as opened:
            yield opened


@contextlib.contextmanager
def _opened(arguments: argparse.Namespace, job: str) -> Iterator[Connection]:
    """A temporary server over the job's directory."""
    from raydiag.tsdb import connection

    progress = options.ProgressLine(arguments.quiet)

    def say_waiting(waited_s: float) -> None:
        progress.say(f"prometheus reads the data of {job} ({waited_s:.0f} s)")

    with connection.open_directory(str(_data(arguments, job)), wait=say_waiting) as opened:
        progress.clear()
        yield opened


def _data(arguments: argparse.Namespace, job: str) -> Path:
    """The data directory of a job. Raises CannotRun when it has none."""
    from raydiag.joblog import find
    from raydiag.tsdb import directory

    if directory.looks_like_data(Path(job)):
        return Path(job)
    resolved = find.resolve(job, arguments.outputs)
    if resolved.job_dir is None:
        raise CannotRun(f"{job}: has a log and no directory, so no Prometheus data")
    return directory.locate(resolved.job_dir)


def _url(arguments: argparse.Namespace, job: str) -> str:
    """What the other machine calls the server."""
    if _is_url(job):
        return job if "//" in job else f"http://{job}"
    return f"http://127.0.0.1:{_facts(arguments, job).dashboards.prometheus_port or _USUAL_PORT}"


def _is_url(text: str) -> bool:
    return re.match(r"https?://|[\w.-]+:\d+$", text) is not None and not os.path.exists(text)


def _facts(arguments: argparse.Namespace, job: str) -> JobFacts:
    from raydiag.joblog import find, read
    from raydiag.triage.signatures import Classifier, make_selector

    return read.read(find.resolve(job, arguments.outputs), make_selector, Classifier())


def _facts_if_any(arguments: argparse.Namespace, job: str) -> JobFacts | None:
    """A URL or a bare data directory has no log, which costs the comparison of hosts only."""
    from raydiag.tsdb import directory

    if _is_url(job) or directory.looks_like_data(Path(job)):
        return None
    with contextlib.suppress(RaydiagError):
        return _facts(arguments, job)
    return None


def _discovered(connection: Connection, facts: JobFacts | None) -> Discovery:
    from raydiag.tsdb.discovery import discover

    if facts is None:
        return discover(connection, time.time(), (), None)
    return discover(connection, time.time(), facts.header.nodelist, facts.header.nnodes)


def _logged(facts: JobFacts) -> Logged:
    from raydiag.model import Window
    from raydiag.tsdb.identity import Logged

    window, hosts = None, facts.header.nodelist
    if facts.first_time is not None and facts.last_time is not None:
        window = Window(facts.first_time, facts.last_time)
    if facts.steps is None:
        return Logged((), (), hosts, window)
    series = facts.steps.series
    return Logged(list(map(int, series.step)), list(series.loss), hosts, window)


def _step(text: str) -> float:
    """Seconds between two points, as PromQL writes them too."""
    return values.seconds(1e-6, 1e9)(text.removesuffix("s"))
