"""`raydiag explain`: what a failure class, an Xid or an SXid means.

examples:
  raydiag explain rccl-hang            a class, as reports name it
  raydiag explain xid 79               an error number of NVIDIA's driver; also: 79, Xid79
  raydiag explain sxid 12028           one of its switches
  raydiag explain -v --format markdown oom-host    every line that shows it

exit codes:
  0 explained    2 there is no such class or number; the nearest is named
"""

import argparse
import time

from raydiag.cli import options

HELP = "say what a failure class, an Xid or an SXid means, what causes it and what to do"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "class, kernel event, or error number of NVIDIA's driver"
    parser.add_argument("id", nargs="+", metavar="CLASS|XID|SXID", help=words)
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Look it up, show it."""
    from raydiag.catalog.entries import entry_of
    from raydiag.render.explain import explain_document, explain_report

    entry = entry_of(" ".join(arguments.id))
    options.show(
        arguments,
        lambda: explain_document(entry, time.time()),
        lambda: explain_report(entry, arguments.verbose),
    )
    return 0
