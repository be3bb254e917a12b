"""What an actor starts on its node: one operation of a hotfix, out of the bundle on stdin.

Arguments: when the answer must be there, by CLOCK_MONOTONIC, the time for all of it in seconds, and
the actor's process id.
"""

import marshal
import sys
import time
import zlib

# Our own code, after Python's magic number.
carried = marshal.loads(zlib.decompress(sys.stdin.buffer.read()[4:]))  # nosec B302
scope = {"__name__": "raydiag.memory_import"}
exec(carried["modules"].pop("raydiag.memory_import"), scope)  # our own code  # nosec B102
scope["install"](carried.pop("modules"))  # type: ignore[operator]

from raydiag.hotfix.node import main  # noqa: E402

main(carried["request"], float(sys.argv[1]) - time.monotonic(), int(sys.argv[3]))
