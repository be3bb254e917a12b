"""What an actor starts on its node: the node runner, out of the bundle that comes on stdin.

Arguments: when the answer must be there, by CLOCK_MONOTONIC, the time for the whole run in seconds,
and the actor's process id.
"""

import marshal
import sys
import zlib

# Our own code, after Python's magic number.
carried = marshal.loads(zlib.decompress(sys.stdin.buffer.read()[4:]))  # nosec B302
scope = {"__name__": "raydiag.memory_import"}
exec(carried["modules"].pop("raydiag.memory_import"), scope)  # our own code  # nosec B102
scope["install"](carried.pop("modules"))  # type: ignore[operator]

from raydiag.runner import main  # noqa: E402

main(carried["request"], float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
