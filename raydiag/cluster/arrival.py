"""What our job starts with on the head: it joins the cluster and runs the package sent ahead of it.

Its argument is the name of the package in the control store, which it leaves without it. It travels
in the command line, between single quotes: it imports nothing of ours and holds no such quote.
"""

import json
import signal
import sys
import zlib

import ray
from ray.experimental import internal_kv

signal.alarm(120)  # a cluster that hangs must not keep us: whoever runs in here takes it back
ray.init(address="auto", namespace="raydiag", log_to_driver=False, logging_level="ERROR")
name = sys.argv[1]
package = internal_kv._internal_kv_get(name)
if package is None:
    sys.exit(f"the control store of this Ray has no {name}: another cluster was joined")
internal_kv._internal_kv_del(name)
carried = json.loads(zlib.decompress(package))
scope = {"__name__": "raydiag.memory_import"}
exec(carried["modules"]["raydiag.memory_import"], scope)  # our own code  # nosec B102
scope["install"](carried["modules"])  # type: ignore[operator]
exec(carried["program"])  # an entrypoint of ours  # nosec B102
