"""A shell exporter below its watchdog, beside a training-like tree, inside a simulated host.

Run as a program on the host: `on_host.py DIRECTORY RESTARTS INTERVAL_S [UTILS]`. Says "ready",
answers each line of stdin with a line of JSON (what happened to the training, and what the port
serves), and ends with its stdin. Process ids and ports are the host's own, so only there can
somebody look after them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.hotfix.watchdog import ShellNode

PORT = 9400


def main(directory: Path, restarts: int, interval_s: float, utils: Path | None) -> None:
    node = ShellNode(
        directory, port=PORT, restarts=restarts, interval_s=interval_s, utils=utils, pause_s=0.5
    )
    with node:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            answer = {"trouble": node.trouble(), "page": node.page().decode("utf-8", "replace")}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    shared = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), shared)
