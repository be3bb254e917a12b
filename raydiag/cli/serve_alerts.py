"""`raydiag serve-alerts`: answer Alertmanager's alerts with a diagnosis.

examples:
  raydiag serve-alerts                             on the head node: the job that runs there
  raydiag serve-alerts 7877 --directory answers    one job's directory; a file for each alert
  raydiag serve-alerts --job-label job_id --outputs /data/outputs     the job that an alert names
  raydiag serve-alerts --token-file ~/.raydiag-token --run ./page-me

in Alertmanager's configuration:
  receivers:
    - name: raydiag
      webhook_configs: [{url: "http://127.0.0.1:9099/alerts", send_resolved: false}]

An alert that fires is answered by one `raydiag diagnose`, however often it is repeated, and alerts
of one job that come together by one. The answer is a line on stdout, FINGERPRINT.json in
--directory, the text of GET /answers/FINGERPRINT, and goes to --run and --notify-file as those of
`watch`. It listens on 127.0.0.1 only and changes nothing.

exit codes:
  130 interrupted    2 usage    4 the port is taken, or the directory cannot be written
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raydiag.cli import mcp, options, values, watch
from raydiag.errors import CannotRun, UsageError

if TYPE_CHECKING:
    from raydiag.own_command import CommandAnswer

HELP = "answer alerts of Alertmanager with a diagnosis of their job"
_LAST_SINKS_S = 20.0
_LEAVES_S = 60.0  # a diagnosis that takes longer than its deadline by so much is ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "job directory, log or job id that alerts are about (default: the live cluster's)"
    parser.add_argument("job", nargs="?", metavar="JOB", help=words)
    words = "label whose value is the job id below --outputs, where an alert has it"
    parser.add_argument("--job-label", default="", metavar="LABEL", help=words)
    parser.add_argument("--outputs", metavar="DIR", help="where to look up job ids")
    words = "port on 127.0.0.1 (default %(default)s)"
    parser.add_argument("--port", type=values.port, default=9099, metavar="PORT", help=words)
    words = "file with the bearer token that Alertmanager sends, readable by you alone"
    parser.add_argument("--token-file", metavar="FILE", help=words)
    words = "where to put the files of the newest 500 answers"
    parser.add_argument("--directory", default="", metavar="DIR", help=words)
    words = "query this server (default: the job's own)"
    parser.add_argument("--prometheus", metavar="URL", help=words)
    words = "seconds for all metric queries of a diagnosis (default %(default)g)"
    values.add_seconds(parser, "--deadline", (1, 3600), 120.0, words)
    watch.add_sinks(parser.add_argument_group("notifications"))
    options.add_way_in(parser)
    parser.set_defaults(reaches_cluster=True)
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=("text", "jsonl"), default="text")
    group.add_argument("-q", "--quiet", action="store_true", help="no lines on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Serve until it is interrupted."""
    import threading

    from raydiag.alerts.desk import AlertDesk
    from raydiag.alerts.receiver import AlertServer
    from raydiag.own_command import answer_of

    directory = arguments.directory
    if directory and not (os.path.isdir(directory) and os.access(directory, os.W_OK)):
        raise CannotRun(f"--directory {directory}: cannot write there")
    token = mcp.token_of(arguments.token_file) if arguments.token_file else ""
    sinks = watch.event_sinks(arguments)

    def _ask(job: str) -> CommandAnswer:
        limit_s = arguments.deadline + _LEAVES_S
        return answer_of(["diagnose", *_words(arguments, job)], limit_s)

    def _tell(event: Mapping[str, Any]) -> None:
        sinks.send(event)
        if not arguments.quiet:
            print(_line(arguments, event), flush=True)

    desk = AlertDesk(_ask, directory, arguments.job_label)
    with AlertServer(arguments.port, desk, token) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            desk.work(_tell)
        finally:
            server.shutdown()
            sinks.finish(_LAST_SINKS_S)
    return 0


def _words(arguments: argparse.Namespace, job: str) -> list[str]:
    """Of `raydiag diagnose`: where to look, and at what."""
    names = [*options.WAY_IN, "prometheus", "outputs", "deadline"]
    words = []
    for name in names:
        value = getattr(arguments, name)
        if value is not None:
            words.append(f"--{name.replace('_', '-')}={value}")
    named = job or arguments.job
    if named and named.startswith("-"):
        raise UsageError(f"{named!r} is no job")
    return [*words, named] if named else words


def _line(arguments: argparse.Namespace, event: Mapping[str, Any]) -> str:
    from raydiag.render.escape import terminal
    from raydiag.render.formats import utc

    if arguments.format == "jsonl":
        return json.dumps(event)
    return f"{utc(event['time'])}  {terminal(event['text'])}"
