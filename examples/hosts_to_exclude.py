"""Print the hosts that a job should avoid, from a report of `raydiag probe --format json`.

    raydiag probe --all-nodes --format json -o report.json
    python examples/hosts_to_exclude.py report.json      # node007,node137

Hosts with a critical finding, and hosts of which nothing could be seen.
"""

from __future__ import annotations

import json
import sys


def hosts_to_exclude(report: dict) -> list[str]:  # type: ignore[type-arg]
    sick = {f["host"] for f in report["findings"] if f["severity"] == "critical" and f["host"]}
    blind = {item["host"] for item in report["coverage"]["nodes"]["blind"]}
    return sorted(sick | blind)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(",".join(hosts_to_exclude(json.load(file))))
