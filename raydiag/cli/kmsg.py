"""`raydiag kmsg`: classify kernel log text.

examples:
  raydiag kmsg                                  this machine's /dev/kmsg
  raydiag kmsg dmesg.txt /var/log/kern.log      any form of dmesg, journalctl and syslog
  journalctl -k -b -1 | raydiag kmsg -
  zcat kern.log.2.gz | raydiag kmsg --format json -
  raydiag kmsg --format markdown --redact dmesg.txt     for a ticket

Times without a zone are UTC.

exit codes:
  0 nothing wrong and everything was read    1 a problem was found    2 usage
  3 nothing wrong found, but not everything could be read             4 nothing could be read
"""

import argparse
import time

from raydiag.cli import options
from raydiag.errors import CannotRun

HELP = "classify kernel log text: faults of GPUs, links, memory, disks, networks, the kernel"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "kernel log text; - is stdin (default: this machine's /dev/kmsg)"
    parser.add_argument("files", nargs="*", metavar="FILE", help=words)
    options.add_output(parser, redact=True)


def run(arguments: argparse.Namespace) -> int:
    """Read, judge, show; returns the exit code."""
    from raydiag.explain.diagnosis import exit_code
    from raydiag.kmsg import examine
    from raydiag.render.kmsg import kmsg_document, kmsg_report

    now_s = time.time()
    examined = examine(arguments.files, now_s)
    if examined.nothing_read:
        raise CannotRun("; ".join(f"{item.source}: {item.reason}" for item in examined.unread))
    if arguments.redact:
        from raydiag.render.redact import redacted_log

        examined = redacted_log(examined)
    options.show(
        arguments,
        lambda: kmsg_document(examined, now_s),
        lambda: kmsg_report(examined, arguments.verbose),
    )
    return exit_code(examined.diagnosis)
