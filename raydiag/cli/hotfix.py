"""`raydiag hotfix`: replace plugins and exporter of a live job, node by node, with a way back.

examples:
  raydiag hotfix plan --all-nodes gpu_metrics_plugin.sh     show what would change
  raydiag hotfix apply --all-nodes gpu_metrics_plugin.sh    canary, batches; rolls back on failure
  raydiag hotfix apply --node 'node[001-016]' --canary node003 metrics_exporter.sh
  raydiag hotfix status                                     all rollouts on record
  raydiag hotfix rollback 20261121-051402-3fa9

A file is deployed under its own name, beside the exporter that runs on each node.

exit codes:
  0 done and verified, or the plan is sound    1 failed, rolled back, or some hosts are refused
  2 usage    3 some hosts could not be seen                  4 could not run
"""

import argparse
import os
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any

from raydiag.cli import cluster_options, options, values
from raydiag.errors import UsageError

HELP = (
    "roll out a fixed plugin or exporter to the nodes of a live job, with verification and rollback"
)
REMARK = " Training processes are never touched."
_LONGEST_VERIFY_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    for name, words in (
        ("plan", "try the files on one node, show what a rollout would do, change nothing"),
        ("apply", "roll out: canary, verify, then batches; roll back at the first failure"),
    ):
        _add_rollout(options.add_action(actions, name, words), name)
    words = "show what rollouts have done, checked against the files themselves"
    status = options.add_action(actions, "status", words)
    status.add_argument("rollout", nargs="?", default="", metavar="ROLLOUT")
    words = "restore every file that a rollout replaced"
    back = options.add_action(actions, "rollback", words)
    back.add_argument("rollout", metavar="ROLLOUT")
    _add_verify_limit(back)
    for action in (status, back):
        _add_places(action)
        options.add_way_in(action)
        options.add_output(action)
    parser.set_defaults(reaches_cluster=True)


def _add_rollout(parser: argparse.ArgumentParser, name: str) -> None:
    words = "file with the new content, under the name to replace"
    parser.add_argument("files", nargs="+", metavar="FILE", help=words)
    nodes = parser.add_mutually_exclusive_group(required=True)
    nodes.add_argument("--all-nodes", action="store_true", help="every node of the cluster")
    words = "a host name, address, node id, or a set such as 'node[001-016]'; repeatable"
    # One name each: several would take the files for names.
    nodes.add_argument("--node", nargs=1, action="extend", metavar="N", help=words)
    words = "host that gets the change first"
    parser.add_argument("--canary", default="", metavar="HOST", help=words)
    words = "hosts in each batch after the canary (default: one, then a tenth of all)"
    number = values.integer(1, 1_000_000)
    parser.add_argument("--batch", type=number, default=0, metavar="N", help=words)
    if name == "plan":
        parser.add_argument("--apply", action="store_true", help="do it: the same as `apply`")
    _add_verify_limit(parser)
    _add_places(parser)
    options.add_way_in(parser)
    options.add_output(parser)


def _add_verify_limit(parser: argparse.ArgumentParser) -> None:
    words = "longest time until a host serves correct metrics again, three times as long where "
    words += "its exporter is alive and late (default %(default)g)"
    values.add_seconds(parser, "--verify-limit", (5, _LONGEST_VERIFY_S), 90.0, words)


def _add_places(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("paths on the nodes")
    words, kinds = "which exporter's plugins (default %(default)s)", ("shell", "raydiag")
    group.add_argument("--exporter", choices=kinds, default="shell", help=words)
    words = "directory of the plugins (default: that of the running exporter)"
    group.add_argument("--artifact-dir", metavar="DIR", help=words)
    words = "port of the exporter (default %(default)s)"
    group.add_argument("--port", type=values.integer(1, 65535), default=9400, help=words)
    group.add_argument("--pid-file", metavar="FILE", help="pid file of raydiag's own exporter")
    for name, path, words in (
        ("--metrics-file", "/tmp/node_hw_metrics.prom", "file that the shell exporter serves"),
        ("--plugin-log", "/tmp/metrics_exporter.log", "where its plugins log errors"),
    ):
        words += " (default %(default)s)"
        group.add_argument(name, default=path, metavar="FILE", help=words)


def run(arguments: argparse.Namespace) -> int:
    """Let the head do it and show the result; returns the exit code."""
    from raydiag import catalog
    from raydiag.cluster.hotfix_submission import submit_hotfix
    from raydiag.hotfix import documents

    work = _work(arguments)
    select = cluster_options.selected_nodes(getattr(arguments, "node", None))
    progress = options.ProgressLine(arguments.quiet)
    output = _Output(arguments, progress)
    told = cluster_options.probe_options()
    symbols = list(catalog.kernel_table().driver_fault_symbols)
    with cluster_options.cluster(arguments, progress) as (api, address):
        progress.say("asking the cluster ...")
        document = submit_hotfix(
            api, address, work, select, symbols, told, output.hear, progress.warn
        )
        progress.clear()
        output.report(document)
    return documents.exit_code(document)


def _work(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the head is asked; see `raydiag.hotfix.head`."""
    command = arguments.action
    if command == "plan" and arguments.apply:
        command = "apply"
    names = ("exporter", "port", "pid_file", "metrics_file", "plugin_log")
    place = {name: getattr(arguments, name) for name in names}
    place["directory"] = arguments.artifact_dir
    work = {"command": command, "who": _who(), "place": place}
    if command in ("status", "rollback"):
        work["rollout"] = arguments.rollout
    if command != "status":
        work["verify_limit_s"] = arguments.verify_limit
    if command in ("plan", "apply"):
        work["rollout"] = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
        work["files"] = _files(arguments)
        work["canary"], work["batch"] = arguments.canary, arguments.batch
    return work


def _who() -> str:
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _files(arguments: argparse.Namespace) -> list[dict[str, str]]:
    """The new files by their names. Raises UsageError for what no node would take."""
    from raydiag.hotfix.replace import CONTENT_LIMIT_BYTES, content_refusal, name_refusal
    from raydiag.untrusted import regular

    content_of: dict[str, str] = {}
    for path in arguments.files:
        name = os.path.basename(path)
        try:
            with open(path, "rb", opener=regular) as file:  # another may have no end
                content = file.read(CONTENT_LIMIT_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{path}: cannot be read: {reason}") from None
        refused = name_refusal(arguments.exporter, name) or content_refusal(name, content)
        if name in content_of:
            refused = "its name is given twice"
        if refused:
            raise UsageError(f"{path}: {refused}")
        content_of[name] = content.decode()
    return [{"name": name, "content": content} for name, content in content_of.items()]


class _Output:
    """What the user gets to see: the plan as soon as it stands, what happens, the report."""

    def __init__(self, arguments: argparse.Namespace, progress: options.ProgressLine) -> None:
        self._arguments, self._progress = arguments, progress
        self._plan_shown = False

    def hear(self, message: Mapping[str, Any]) -> None:
        """A message of the driver."""
        if "plan" in message and self._arguments.format == "text" and not self._arguments.output:
            self._progress.clear()
            self.report(message["plan"])
            self._plan_shown = True
        elif "event" in message:
            self._progress.say(str(message["event"]["text"])[:120])

    def report(self, document: Mapping[str, Any]) -> None:
        """What was planned, or what came of it."""
        from raydiag.render.hotfix import hotfix_document, hotfix_report

        arguments = self._arguments
        if self._plan_shown and document["command"] == "apply":
            options.write_report(["\n"], None)
        options.show(
            arguments,
            lambda: hotfix_document(document, time.time()),
            lambda: hotfix_report(document, self._plan_shown),
        )
