"""What a Ray job runs on the head: the coordinator, out of the bundle that comes on stdin."""

import base64
import json
import sys
import zlib

carried = json.loads(zlib.decompress(base64.b85decode(sys.stdin.read().strip())))
scope = {"__name__": "raydiag.carried"}
exec(carried["modules"]["raydiag.carried"], scope)
scope["install"](carried["modules"])  # type: ignore[operator]

from raydiag.cluster.coordinator import main  # noqa: E402

main(carried["modules"], carried["request"])
