"""The floor for a one-shot probe: a no-op job through the Jobs API, an empty actor on each node.

The job is started in the same way as raydiag's, so that the difference is what raydiag adds.
"""

from __future__ import annotations

import secrets
import sys
import time

from raydiag.cluster import address, bundle, jobs_api

_DRIVER = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

class Empty:
    def answer(self):
        return b""

ray.init(address="auto", namespace="floor", log_to_driver=False, logging_level="ERROR")
actors = [
    ray.remote(Empty).options(num_cpus=0, scheduling_strategy=On(n["NodeID"], soft=False)).remote()
    for n in ray.nodes() if n["Alive"]
]
ray.get([actor.answer.remote() for actor in actors])
print("all " + "answered", flush=True)
ray.shutdown()
"""


def main() -> int:
    found = address.resolve(None)
    api = jobs_api.JobsApi(found.url, jobs_api.token())
    api.version()
    submission_id = f"floor-{secrets.token_hex(6)}"
    api.submit(bundle.start_command(_DRIVER, ""), submission_id, {})
    while "all answered" not in api.logs(submission_id):
        if api.job(submission_id)["status"] in ("FAILED", "STOPPED"):
            print(api.logs(submission_id), file=sys.stderr)
            return 1
        time.sleep(0.1)
    while api.job(submission_id)["status"] not in jobs_api.TERMINAL:
        time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
