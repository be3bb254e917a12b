"""`raydiag exporter`: the metrics of this node, served, once, looked after.

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

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from raydiag.cli import options, values
from raydiag.errors import UsageError

if TYPE_CHECKING:
    from raydiag.exporter.main import ExporterSettings

HELP = "serve this node's GPU, network and host metrics, and check the exporter's health"
_PORT = 9400
_LIMITS_S = (0.01, 3600)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    run_ = options.add_action(actions, "run", "collect and serve until stopped")
    _add_collection(run_)
    words = "where to serve (default: 127.0.0.1:9400, this machine only)"
    local, address = ("127.0.0.1", _PORT), values.listen_address
    run_.add_argument("--listen", type=address, default=local, metavar="ADDR:PORT", help=words)
    words = "write pid and start time there"
    run_.add_argument("--pid-file", type=os.path.abspath, metavar="FILE", help=words)
    words = "restart it when it exits unexpectedly"
    run_.add_argument("--supervise", action="store_true", help=words)
    for name, words in (
        ("--tls-cert", "serve HTTPS with this certificate chain (PEM)"),
        ("--tls-key", "its key, if not in the certificate's file"),
        ("--tls-client-ca", "serve only clients with a certificate signed by one of these"),
    ):
        run_.add_argument(name, metavar="FILE", help=words)
    _add_collection(options.add_action(actions, "once", "collect once and print the page"))
    words = "whether this node's exporter is alive, fresh, or keeps restarting"
    _add_status(options.add_action(actions, "status", words))
    _add_check(options.add_action(actions, "check", "validate a plugin file before a rollout"))


def _add_collection(parser: argparse.ArgumentParser) -> None:
    words = "seconds from one collection to the next (default: 10)"
    values.add_seconds(parser, "--interval", _LIMITS_S, 10.0, words)
    for name, words in (("--only", "run these plugins only"), ("--skip", "skip these plugins")):
        parser.add_argument(name, type=values.names, default=(), metavar="PLUGIN[,...]", help=words)
    words = "also run the plugins in these directories: *_metrics_plugin.sh, *.py, programs"
    _add_list(parser, "--plugins", "DIR", words)
    _add_allow_unsafe(parser)
    words = "pass these variables of the environment on to plugins as well"
    parser.add_argument(
        "--plugin-env", type=values.names, default=(), metavar="NAME[,...]", help=words
    )
    words = "where counters survive a restart; local, never on a network file system "
    words += "(default: /run/raydiag, or the user's own)"
    parser.add_argument("--state-dir", metavar="DIR", help=words)
    parser.add_argument("--host", default="", metavar="NAME", help="value of the label `host`")
    words = "read the node's files below this directory"
    parser.add_argument("--root", default="/", metavar="DIR", help=words)
    words = "serve the scalars of this job as tb_*"
    parser.add_argument("--tensorboard-dir", default="", metavar="DIR", help=words)


def _add_allow_unsafe(parser: argparse.ArgumentParser) -> None:
    words = "also run plugins that other users could change"
    parser.add_argument("--allow-unsafe-plugins", action="store_true", help=words)


def _add_list(parser: argparse.ArgumentParser, name: str, metavar: str, words: str) -> None:
    """An option with one or more values, which may be given more than once."""
    parser.add_argument(name, nargs="+", action="extend", default=[], metavar=metavar, help=words)


def _add_status(parser: argparse.ArgumentParser) -> None:
    words = "port that it serves on (default: 9400)"
    parser.add_argument("--port", type=values.port, default=_PORT, help=words)
    words = "longest wait for values to change (default: 25; certain from 22 on)"
    values.add_seconds(parser, "--wait", _LIMITS_S, 25.0, words)
    words = "more logs of its watchdog, besides those that the exporter writes"
    _add_list(parser, "--log", "FILE", words)
    options.add_output(parser)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="plugin file")
    parser.add_argument("--no-run", action="store_true", help="check the syntax only")
    _add_allow_unsafe(parser)
    parser.add_argument("--host", default="", metavar="NAME", help="value of the label `host`")
    parser.add_argument("--root", default="/", metavar="DIR", help="as for run")
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run, collect once, look at, or check; returns the exit code."""
    actions = {"run": _run, "once": _once, "status": _status, "check": _check}
    return actions[arguments.action](arguments)


def _run(arguments: argparse.Namespace) -> int:
    from raydiag import environment
    from raydiag.exporter import supervise

    settings = _settings(arguments)
    environment.forget()  # what is forked from here on has nothing else either
    with _written_lines() as write:
        if arguments.supervise and supervise.PARENT not in os.environ:
            return supervise.supervise(supervise.own_command(), write)
        from raydiag.exporter import main

        return main.run(settings, lambda line: write(_dated(line)))


def _once(arguments: argparse.Namespace) -> int:
    from raydiag.exporter import main

    with _written_lines() as write:
        main.be_nice()
        page = main.collect_once(_settings(arguments), lambda line: write(_dated(line)))
    options.write_report([page], None)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from raydiag.explain.diagnosis import exit_code
    from raydiag.exporter.status import examine
    from raydiag.render import exporter

    logs = [os.path.abspath(path) for path in arguments.log]
    examined = examine(arguments.port, _host(arguments), wait_s=arguments.wait, logs=logs)
    options.show(
        arguments,
        lambda: exporter.status_document(examined, time.time()),
        lambda: exporter.status_report(examined, arguments.verbose),
    )
    return exit_code(examined.diagnosis)


def _check(arguments: argparse.Namespace) -> int:
    from raydiag.exporter.check import check
    from raydiag.render import exporter

    allowed = arguments.allow_unsafe_plugins
    host, may_run = _host(arguments), not arguments.no_run
    checked = check(arguments.files, host, may_run, arguments.root, allowed)
    options.show(
        arguments,
        lambda: exporter.check_document(checked, time.time()),
        lambda: exporter.check_report(checked),
    )
    return 0 if all(plugin.passes for plugin in checked) else 1


def _settings(arguments: argparse.Namespace) -> ExporterSettings:
    """What the options say. Raises UsageError."""
    from raydiag import environment, ownership
    from raydiag.exporter import main
    from raydiag.exporter.state import default_directory

    main.chosen(arguments.only, arguments.skip)
    if not os.path.isdir(arguments.root):
        raise UsageError(f"--root {arguments.root}: there is no such directory")
    for directory in arguments.plugins:
        if not os.path.isdir(directory):
            raise UsageError(f"--plugins {directory}: there is no such directory")
        unsafe = ownership.changeable(directory)
        if unsafe and not arguments.allow_unsafe_plugins:
            words = "make that yours alone, or say --allow-unsafe-plugins"
            raise UsageError(f"--plugins {directory}: {unsafe}: {words}")
    environment.allow(arguments.plugin_env)
    settings = main.ExporterSettings(
        interval_s=arguments.interval,
        only=arguments.only,
        skip=arguments.skip,
        plugin_directories=arguments.plugins,
        allow_unsafe_plugins=arguments.allow_unsafe_plugins,
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


@contextlib.contextmanager
def _written_lines() -> Iterator[Callable[[str], None]]:
    """Writes lines on stderr; a slow reader of stderr does not hold up the exporter."""
    from raydiag.exporter.log import Log
    from raydiag.render.escape import terminal

    with contextlib.closing(Log()) as log:
        yield lambda line: log.write(f"{terminal(line)}\n".encode("utf-8", "backslashreplace"))


def _dated(line: str) -> str:
    """A line of the exporter; the watchdog dates its own."""
    return f"{time.strftime('[%Y-%m-%dT%H:%M:%SZ]', time.gmtime())} [Metrics Exporter] {line}"
