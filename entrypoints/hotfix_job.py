"""What a Ray job runs on the head: a hotfix command, out of the bundle in RAYDIAG_BUNDLE."""

import base64
import json
import os
import zlib

carried = json.loads(zlib.decompress(base64.b85decode(os.environ.pop("RAYDIAG_BUNDLE"))))
scope = {"__name__": "raydiag.memory_import"}
exec(carried["modules"]["raydiag.memory_import"], scope)  # our own code  # nosec B102
scope["install"](carried["modules"])  # type: ignore[operator]

from raydiag.cluster.hotfix_driver import main  # noqa: E402
from raydiag.hotfix.head import run  # noqa: E402

main(carried["modules"], carried["request"], run)
