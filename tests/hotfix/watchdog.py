"""A shell exporter below its watchdog, beside a training-like tree: a node of a job.

`ShellNode(directory, port)` runs `train_with_ray.sh`, which starts the watchdog in a subshell of
its own and the tree of `training_tree`. The scripts are written for the tests, after the behaviour
that is documented of the ones in the field: plugins `*_metrics_plugin.sh` in the exporter's own
directory each cycle, `# STATE`, exit 99, a Python server that hands out a file, restarts on any
exit but 0, 130 and 143, 50 of them. Cycles and pauses are short here.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.hotfix import training_tree

EXPORTER = r"""#!/usr/bin/env bash
port=9400 interval=10
while [ $# -gt 0 ]; do
    case $1 in
        --port) port=$2 ;;
        --interval) interval=$2 ;;
    esac
    shift 2
done
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
declare -A state cache skipped
trap 'exit 143' TERM

serve='
import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        with open(sys.argv[1], "rb") as file:
            self.wfile.write(file.read())
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Page).serve_forever()
'

cycle() {
    local began=$EPOCHREALTIME page="" file name out code last body
    for file in "$here"/*_metrics_plugin.sh; do
        name=$(basename "$file" .sh)
        [ "${skipped[$name]}" ] && continue
        export _PLUGIN_STATE=${state[$name]}
        out=$(timeout -s KILL "$PLUGIN_LIMIT" bash "$file" "$HOST_NAME" 2>>"$PLUGIN_LOG")
        code=$?
        if [ $code = 137 ]; then
            echo "[metrics_exporter] $name timed out after ${PLUGIN_LIMIT}s" >>"$PLUGIN_LOG"
        elif [ $code = 99 ]; then
            skipped[$name]=1
            echo "[metrics_exporter] $name exited 99 — permanently skipped" >>"$PLUGIN_LOG"
        fi
        last=${out##*$'\n'} body=$out
        if [ "${last#\# STATE }" != "$last" ]; then
            state[$name]=${last#\# STATE }
            body=${out%"$last"}
            [ "${body//[[:space:]]/}" ] || body=${cache[$name]}
        fi
        cache[$name]=$body
        page+=$body$'\n'
    done
    local micros=$((${EPOCHREALTIME/./} - ${began/./}))
    printf '%s\n# TYPE hw_scrape_duration_seconds gauge\n' "$page" >"$METRICS_FILE.new"
    printf 'hw_scrape_duration_seconds{host="%s"} %d.%06d\n' "$HOST_NAME" \
        $((micros / 1000000)) $((micros % 1000000)) >>"$METRICS_FILE.new"
    mv -f "$METRICS_FILE.new" "$METRICS_FILE"
}

echo "[metrics_exporter] Starting on port $port (poll every ${interval}s) on $HOST_NAME"
echo "# exporter initializing" >"$METRICS_FILE"
"$PYTHON" -c "$serve" "$METRICS_FILE" "$port" &
while true; do
    cycle
    sleep "$interval"
done
"""

TRAIN = r"""#!/usr/bin/env bash
# train_with_ray.sh PORT INTERVAL PAUSE RESTARTS
watch() {
    local log=$1
    shift
    (
        exec >/dev/null 2>&1
        restarts=$START_RESTARTS
        while true; do
            "$@" >>"$log" 2>&1 &
            wait $!
            code=$?
            case $code in 0 | 130 | 143) break ;; esac
            restarts=$((restarts + 1))
            if [ $restarts -gt 50 ]; then
                echo "[$(date -u +%FT%TZ)] [Metrics Exporter] Watchdog: too many restarts (50)," \
                    "giving up" >>"$log"
                break
            fi
            echo "[$(date -u +%FT%TZ)] [Metrics Exporter] Watchdog: exited with code $code," \
                "restart #$restarts" >>"$log"
            sleep "$PAUSE"
        done
    ) &
}
trap 'echo "the job is over" >>"$JOB_LOG"' EXIT
watch "$EXPORTER_LOG" "$EXPORTER" --port "$1" --interval "$2"
"$PYTHON" "$TREE" "$TREE_DIRECTORY" bash /opt/utils/metrics_exporter.sh --port 9400 &
wait $!
"""

GPU = """#!/usr/bin/env bash
for gpu in 0 1; do
    echo "hw_gpu_power_watts{gpu=\\"$gpu\\",host=\\"$1\\"} $((700 + RANDOM % 50)).5"
done
echo "hw_gpu_vram_total_bytes{gpu=\\"0\\",host=\\"$1\\"} 206141652992"
"""

HOST = """#!/usr/bin/env bash
while read -r name value rest; do
    [ "$name" = ctxt ] && echo "hw_context_switches_total{host=\\"$1\\"} $value"
done </proc/stat
"""

TENSORBOARD = """#!/usr/bin/env bash
[ "${NODE_RANK:-0}" = 0 ] || exit 99
if [ -z "$_PLUGIN_STATE" ]; then
    echo "tb_learning_loss{host=\\"$1\\"} 2.5"
fi
echo "# STATE 12"
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = 120.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {deadline_s:g} s")
        time.sleep(0.02)


class ShellNode:
    """Context manager. `utils` is the artefact directory, `log` the watchdog's."""

    def __init__(
        self,
        directory: Path,
        interval_s: float = 0.2,
        pause_s: float = 0.5,
        restarts: int = 0,
        rank: int = 0,
        utils: Path | None = None,
        command: Sequence[str] = (),
        port: int | None = None,
    ) -> None:
        self.directory, self.port = directory, port or free_port()
        self.utils = utils or directory / "artifact" / "utils"
        self.log = directory / "job" / "metrics_exporter" / "node001.log"
        self.job_log = directory / "job.log"
        self.metrics_file = directory / "node_hw_metrics.prom"
        self.plugin_log = directory / "metrics_exporter.log"
        self.journal = directory / "journal"
        self.tree = directory / "tree"
        self.interval_s, self.pause_s, self.restarts, self.rank = (
            interval_s,
            pause_s,
            restarts,
            rank,
        )
        self.command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._write_files()

    def _write_files(self) -> None:
        self.log.parent.mkdir(parents=True)
        self.journal.mkdir(mode=0o700)
        self.tree.mkdir()
        if not self.utils.exists():
            self.utils.mkdir(parents=True)
            files = {
                "metrics_exporter.sh": EXPORTER,
                "gpu_metrics_plugin.sh": GPU,
                "host_metrics_plugin.sh": HOST,
                "tb_metrics_plugin.sh": TENSORBOARD,
            }
            for name, text in files.items():
                (self.utils / name).write_text(text)
                (self.utils / name).chmod(0o755)
        script = self.directory / "train_with_ray.sh"
        script.write_text(TRAIN)
        script.chmod(0o755)
        line = "[2026-02-12T19:58:10Z] [Metrics Exporter] Watchdog: exited with code 1, restart #"
        self.log.write_text("".join(f"{line}{n}\n" for n in range(1, self.restarts + 1)))

    def __enter__(self) -> ShellNode:
        environment = {
            **os.environ,
            "EXPORTER": str(self.utils / "metrics_exporter.sh"),
            "EXPORTER_LOG": str(self.log),
            "HOST_NAME": "node001",
            "JOB_LOG": str(self.job_log),
            "METRICS_FILE": str(self.metrics_file),
            "NODE_RANK": str(self.rank),
            "PAUSE": str(self.pause_s),
            "PLUGIN_LIMIT": "1",
            "PLUGIN_LOG": str(self.plugin_log),
            "PYTHON": sys.executable,
            "START_RESTARTS": str(self.restarts),
            "TREE": training_tree.__file__,
            "TREE_DIRECTORY": str(self.tree),
        }
        argv = [*self.command, str(self.directory / "train_with_ray.sh")]
        self._process = subprocess.Popen(
            [*argv, str(self.port), str(self.interval_s)],
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: training_tree.is_ready(self.tree), "the training tree")
            wait_until(self.serves, "the exporter")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        """Everything that it started is in one session, of our own child."""
        process, self._process = self._process, None
        if process:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    @property
    def pid(self) -> int:
        """Of `train_with_ray.sh`."""
        assert self._process
        return self._process.pid

    def serves(self) -> bool:
        return b"hw_scrape_duration_seconds{" in self.page()

    def page(self) -> bytes:
        data = b""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 2) as one:
            one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            while chunk := one.recv(1 << 16):
                data += chunk
        return data

    def request(self, operation: str, **fields: object) -> dict[str, Any]:
        """A request to `raydiag.hotfix.node` about this node."""
        return {
            "operation": operation,
            "port": self.port,
            "metrics_file": str(self.metrics_file),
            "plugin_log": str(self.plugin_log),
            "journal": str(self.journal),
            **fields,
        }

    def trouble(self) -> list[str]:
        """What happened to the training: empty when nothing did."""
        found = training_tree.untouched(self.tree)
        if self.job_log.exists():
            found.append(self.job_log.read_text().strip())
        if self._process and self._process.poll() is not None:
            found.append("train_with_ray.sh has ended")
        return found
