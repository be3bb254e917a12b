"""`raydiag`, and `python -m raydiag`: the first module, so that an early Ctrl-C ends quietly."""

# Built in: to import `signal` takes longer than all that has run so far.
import _signal  # type: ignore[import-not-found]
import sys

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    # Nothing is there yet that would have to be cleaned up, and a traceback helps nobody.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from raydiag.cli import main

if __name__ == "__main__":
    sys.exit(main())
