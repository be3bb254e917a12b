"""`raydiag`, and `python -m raydiag`: the first module, so that an early Ctrl-C ends quietly."""

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Nothing is there yet that would have to be cleaned up, and a traceback helps nobody.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from raydiag.cli import main

if __name__ == "__main__":
    sys.exit(main())
