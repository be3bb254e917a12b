"""`raydiag exporter`: the metrics of this node, served, once, looked after."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from typing import TYPE_CHECKING

from raydiag.cli import options, values
from raydiag.errors import UsageError

if TYPE_CHECKING:
    from raydiag.exporter.main import ExporterSettings

NAME = "exporter"
HELP = "serve this node's GPU, network and host metrics, and check the exporter's health"
DESCRIPTION = f"S{HELP[1:]}."
EPILOG = """\
examples:
  raydiag exporter run                                       http://127.0.0.1:9400/metrics
  raydiag exporter run --listen 10.0.0.7:9400 --plugins /opt/site/metrics --supervise
  raydiag exporter once --only gpu_sensors,gpu_ras           one collection, to stdout
  raydiag exporter status                                    alive, fresh, restarting?
  raydiag exporter check new/gpu_metrics_plugin.sh           before a rollout

a Python plugin (*.py) defines collect(host) and yields its values:
  from raydiag.exporter.metrics import Sample
  def collect(host):
      yield Sample("site_queue_depth", {"queue": "a"}, 3)      name, labels, value

exit codes:
  run: 143 ended by SIGTERM, 130 by Ctrl-C   1 its HTTP server ended   4 cannot serve there
  status, check: 0 healthy   1 a problem was found   3 not everything could be seen   4 no such file
  all: 2 usage
"""
_PORT = 9400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)

    def add_action(name: str, words: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")

    run_ = add_action("run", "collect and serve until stopped")
    _add_collection(run_)
    run_.add_argument(
        "--listen",
        type=values.listen_address,
        default=("127.0.0.1", _PORT),
        metavar="ADDR:PORT",
        help="where to serve (default: 127.0.0.1:9400, this machine only)",
    )
    run_.add_argument(
        "--pid-file", type=os.path.abspath, metavar="FILE", help="write pid and start time there"
    )
    run_.add_argument(
        "--supervise", action="store_true", help="restart it when it exits unexpectedly"
    )
    for name, words in (
        ("--tls-cert", "serve HTTPS with this certificate chain (PEM)"),
        ("--tls-key", "its key, if not in the certificate's file"),
        ("--tls-client-ca", "serve only clients with a certificate signed by one of these"),
    ):
        run_.add_argument(name, metavar="FILE", help=words)
    _add_collection(add_action("once", "collect once and print the page"))
    _add_status(
        add_action("status", "whether this node's exporter is alive, fresh, or keeps restarting")
    )
    _add_check(add_action("check", "validate a plugin file before a rollout"))


def _add_collection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=values.seconds(0.01, 3600),
        default=10.0,
        metavar="S",
        help="seconds from one collection to the next (default: 10)",
    )
    for name, words in (("--only", "run these plugins only"), ("--skip", "skip these plugins")):
        parser.add_argument(name, type=values.names, default=(), metavar="PLUGIN[,...]", help=words)
    parser.add_argument(
        "--plugins",
        nargs="+",
        action="extend",
        default=[],
        metavar="DIR",
        help="also run the plugins in these directories: *_metrics_plugin.sh, *.py, programs",
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="where counters survive a restart; local, never on a network file system "
        "(default: /run/raydiag, or the user's own)",
    )
    parser.add_argument("--host", default="", metavar="NAME", help="value of the label `host`")
    parser.add_argument(
        "--root", default="/", metavar="DIR", help="read the node's files below this directory"
    )
    parser.add_argument(
        "--tensorboard-dir", default="", metavar="DIR", help="serve the scalars of this job as tb_*"
    )


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=values.port, default=_PORT, help="port that it serves on (default: 9400)"
    )
    parser.add_argument(
        "--wait",
        type=values.seconds(0.01, 3600),
        default=25.0,
        metavar="S",
        help="longest wait for values to change (default: 25; certain from 22 on)",
    )
    parser.add_argument(
        "--log",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="more logs of its watchdog, besides those that the exporter writes",
    )
    options.add_output(parser)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="plugin file")
    parser.add_argument("--no-run", action="store_true", help="check the syntax only")
    parser.add_argument("--host", default="", metavar="NAME", help="value of the label `host`")
    parser.add_argument("--root", default="/", metavar="DIR", help="as for run")
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run, collect once, look at, or check; returns the exit code."""
    actions = {"run": _run, "once": _once, "status": _status, "check": _check}
    return actions[arguments.action](arguments)


def _run(arguments: argparse.Namespace) -> int:
    from raydiag.exporter import supervise

    settings = _settings(arguments)
    if arguments.supervise and supervise.PARENT not in os.environ:
        with _LogLines() as log_lines:
            return supervise.supervise(supervise.own_command(), log_lines.whole)
    from raydiag.exporter import main

    with _LogLines() as log_lines:
        return main.run(settings, log_lines.dated)


def _once(arguments: argparse.Namespace) -> int:
    from raydiag.exporter import main

    with _LogLines() as log_lines:
        main.be_nice()
        page = main.collect_once(_settings(arguments), log_lines.dated)
    options.write_report([page], None)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from raydiag.explain.diagnosis import exit_code
    from raydiag.exporter.status import examine
    from raydiag.render.exporter import status_report
    from raydiag.render.exporter_document import status_document

    logs = [os.path.abspath(path) for path in arguments.log]
    examined = examine(arguments.port, _host(arguments), wait_s=arguments.wait, logs=logs)
    options.show(
        arguments,
        lambda: status_document(examined, time.time()),
        lambda: status_report(examined, arguments.verbose),
    )
    return exit_code(examined.diagnosis)


def _check(arguments: argparse.Namespace) -> int:
    from raydiag.exporter.check import check
    from raydiag.render.exporter import check_report
    from raydiag.render.exporter_document import check_document

    checked = check(arguments.files, _host(arguments), not arguments.no_run, arguments.root)
    options.show(
        arguments, lambda: check_document(checked, time.time()), lambda: check_report(checked)
    )
    return 0 if all(plugin.passes for plugin in checked) else 1


def _settings(arguments: argparse.Namespace) -> ExporterSettings:
    """What the options say. Raises UsageError."""
    from raydiag.exporter import main
    from raydiag.exporter.state import default_directory

    main.chosen(arguments.only, arguments.skip)
    if not os.path.isdir(arguments.root):
        raise UsageError(f"--root {arguments.root}: there is no such directory")
    for directory in arguments.plugins:
        if not os.path.isdir(directory):
            raise UsageError(f"--plugins {directory}: there is no such directory")
    settings = main.ExporterSettings(
        interval_s=arguments.interval,
        only=arguments.only,
        skip=arguments.skip,
        plugin_directories=arguments.plugins,
        state_directory=arguments.state_dir or default_directory(),
        host=_host(arguments),
        root=arguments.root,
        tensorboard_directory=arguments.tensorboard_dir
        and os.path.abspath(arguments.tensorboard_dir),
    )
    if arguments.action == "once":
        return settings
    if (arguments.tls_key or arguments.tls_client_ca) and not arguments.tls_cert:
        raise UsageError("--tls-key and --tls-client-ca need --tls-cert FILE")
    address, port = arguments.listen
    tls = None
    if arguments.tls_cert:
        tls = main.Tls(arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca)
    return dataclasses.replace(
        settings, address=address, port=port, tls=tls, pid_file=arguments.pid_file
    )


def _host(arguments: argparse.Namespace) -> str:
    """The node's short name, unless another one is given."""
    return getattr(arguments, "host", "") or os.uname().nodename.partition(".")[0]


class _LogLines:
    """Lines on stderr; a slow reader of stderr does not hold up the exporter."""

    def __init__(self) -> None:
        from raydiag.exporter.log import Log

        self._log = Log()

    def __enter__(self) -> _LogLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def dated(self, line: str) -> None:
        """A line of the exporter."""
        now = time.strftime("[%Y-%m-%dT%H:%M:%SZ]", time.gmtime())
        self.whole(f"{now} [Metrics Exporter] {line}")

    def whole(self, line: str) -> None:
        """A line of the watchdog, which dates its own."""
        from raydiag.render.escape import terminal

        self._log.write(f"{terminal(line)}\n".encode("utf-8", "backslashreplace"))
