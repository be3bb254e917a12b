"""`raydiag exporter`: the metrics of this node, served, once, looked after."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from typing import TYPE_CHECKING

from raydiag.cli import options
from raydiag.errors import UsageError

if TYPE_CHECKING:
    from raydiag.exporter.main import ExporterSettings

NAME = "exporter"
HELP = "serve this node's GPU, network and host metrics, and look after who does"
DESCRIPTION = f"S{HELP[1:]}."
EPILOG = """\
examples:
  raydiag exporter run                                       http://127.0.0.1:9400/metrics
  raydiag exporter run --listen 10.0.0.7:9400 --plugins /opt/site/metrics --supervise
  raydiag exporter once --only gpu_sensors,gpu_ras           one collection, to stdout
  raydiag exporter status                                    alive, fresh, restarting?
  raydiag exporter check new/gpu_metrics_plugin.sh           before it is rolled out

a Python plugin (*.py) defines collect(host) and yields its values:
  from raydiag.exporter.metrics import Sample
  def collect(host):
      yield Sample("site_queue_depth", {"queue": "a"}, 3)      name, labels, value

exit codes:
  run: 143 ended by SIGTERM, 130 by Ctrl-C   1 its HTTP server ended   4 cannot serve there
  status, check: 0 fine   1 a problem was found   3 not all could be seen   4 no such file
  all: 2 usage
"""
_PORT = 9400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)

    def action(name: str, words: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")

    run_ = action("run", "collect and serve until told to end")
    _add_collection(run_)
    run_.add_argument(
        "--listen",
        type=_address,
        default=("127.0.0.1", _PORT),
        metavar="ADDR:PORT",
        help="where to serve (default: 127.0.0.1:9400, this machine only)",
    )
    run_.add_argument("--pid-file", type=os.path.abspath, metavar="FILE", help="pid and start time")
    run_.add_argument(
        "--supervise", action="store_true", help="start it again when it ends by itself"
    )
    for name, words in (
        ("--tls-cert", "serve HTTPS with this certificate chain (PEM)"),
        ("--tls-key", "its key, where the certificate's file does not hold it"),
        ("--tls-client-ca", "serve only clients whose certificate one of these has signed"),
    ):
        run_.add_argument(name, metavar="FILE", help=words)
    _add_collection(action("once", "collect once and print the page"))
    _add_status(action("status", "whether this node's exporter lives, is fresh, keeps restarting"))
    _add_check(action("check", "whether a plugin file passes, before it is rolled out"))


def _add_collection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=_interval,
        default=10.0,
        metavar="S",
        help="seconds from one collection to the next (default: 10)",
    )
    for name, words in (("--only", "run these plugins only"), ("--skip", "leave these out")):
        parser.add_argument(name, type=_names, default=(), metavar="PLUGIN[,...]", help=words)
    parser.add_argument(
        "--plugins",
        nargs="+",
        action="extend",
        default=[],
        metavar="DIR",
        help="run the plugins in these directories too: *_metrics_plugin.sh, *.py, programs",
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="where counts outlive a restart; on this machine, never a network file system "
        "(default: /run/raydiag, or the user's own)",
    )
    parser.add_argument("--host", default="", metavar="NAME", help="value of the label host")
    parser.add_argument("--root", default="/", metavar="DIR", help="read the node's files below it")
    parser.add_argument(
        "--tensorboard-dir", default="", metavar="DIR", help="serve the scalars of this job as tb_*"
    )


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=_port, default=_PORT, help="where it serves (default: 9400)")
    parser.add_argument(
        "--wait",
        type=_interval,
        default=25.0,
        metavar="S",
        help="how long to wait at most for values to move (default: 25; from 22 on it is certain)",
    )
    parser.add_argument(
        "--log",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="logs of its watchdog, besides those that the exporter prints to",
    )
    options.add_output(parser)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="plugin file")
    parser.add_argument("--no-run", action="store_true", help="check the syntax only")
    parser.add_argument("--host", default="", metavar="NAME", help="value of the label host")
    parser.add_argument("--root", default="/", metavar="DIR", help="as of run")
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Do one of the four; returns the exit code."""
    actions = {"run": _run, "once": _once, "status": _status, "check": _check}
    return actions[arguments.action](arguments)


def _run(arguments: argparse.Namespace) -> int:
    from raydiag.exporter import supervise

    settings = _settings(arguments)
    if arguments.supervise and supervise.PARENT not in os.environ:
        with _Spoken() as spoken:
            return supervise.supervise(supervise.own_command(), spoken.whole)
    from raydiag.exporter import main

    with _Spoken() as spoken:
        return main.run(settings, spoken.dated)


def _once(arguments: argparse.Namespace) -> int:
    from raydiag.exporter import main

    with _Spoken() as spoken:
        main.be_nice()
        page = main.collect_once(_settings(arguments), spoken.dated)
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
        arguments,
        lambda: check_document(checked, time.time()),
        lambda: check_report(checked),
    )
    return 0 if all(one.passes for one in checked) else 1


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


class _Spoken:
    """Lines on stderr, each with its time, that nobody who takes them can hold up."""

    def __init__(self) -> None:
        from raydiag.exporter.log import Log

        self._log = Log()

    def __enter__(self) -> _Spoken:
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


def _address(text: str) -> tuple[str, int]:
    """ADDR:PORT, [IPV6]:PORT or :PORT, which is every address."""
    address, colon, port = text.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address:
        raise argparse.ArgumentTypeError(f"{text!r}: write an IPv6 address as [ADDR]:PORT")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not ADDR:PORT")
    return address or "0.0.0.0", _port(port)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.01 to 3600")
    return seconds


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (one.strip() for one in text.split(",")) if name)
