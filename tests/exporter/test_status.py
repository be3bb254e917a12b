"""The exporter of this node: whose, alive, fresh, restarting; as a user sees it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from raydiag.explain import diagnosis
from raydiag.exporter.findings import ServedMetrics, Watched, judge_exporter, standstill
from raydiag.exporter.status import ExaminedExporter, examine
from raydiag.exposition import parse
from raydiag.model import Finding, Node, NodeReport, NodeStatus, ProbeResult, Snapshot, Status
from raydiag.probes.exporter import FILE, Exporter, Process
from raydiag.render.exporter import status_document, status_report
from raydiag.render.markdown import markdown_text
from raydiag.render.text import text as written
from tests import schemas
from tests.cluster.shell_exporter import metrics, shell_exporter

pytestmark = pytest.mark.slow


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node's /proc and /tmp; no process of it is an exporter."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_text("9000.0 9000.0\n")
    (tmp_path / "proc/stat").write_text("ctxt 5\nbtime 1\n")
    (tmp_path / "tmp").mkdir()
    return tmp_path


def add_process(root: Path, pid: int, arguments: str, parent: int = 1, state: str = "S") -> Path:
    """In the fake /proc. `arguments` are parted by blanks; the first is the name as well."""
    place = root / f"proc/{pid}"
    (place / "fd").mkdir(parents=True)
    words = arguments.split()
    numbers = " ".join(["0"] * 17 + ["100"] + ["0"] * 30)
    (place / "comm").write_text(f"{words[0]}\n")
    (place / "stat").write_text(f"{pid} ({words[0]}) {state} {parent} {numbers}\n")
    (place / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
    return place


def looked(port: int, root: Path, wait_s: float = 3.0, **more: Any) -> ExaminedExporter:
    """Examine, and see that every format holds together."""
    examined = examine(port, "n1", str(root), wait_s, again_s=0.25, **more)
    document = json.loads(json.dumps(status_document(examined, time.time())))
    schemas.fits(document, "exporter")
    text = written(status_report(examined, verbose=True), width=1000)
    in_markdown = markdown_text(status_report(examined, verbose=True))
    for finding in examined.diagnosis.findings:
        assert finding.title in text
        assert finding.failure_class in in_markdown
    return examined


def classes(examined: ExaminedExporter) -> list[str]:
    return sorted(finding.failure_class for finding in examined.diagnosis.findings)


# ---- the shell exporter


def test_a_healthy_shell_exporter(root: Path, port: int) -> None:
    with shell_exporter("healthy", port, root / FILE[1:]):
        examined = looked(port, root)
    assert (examined.kind, examined.answer, examined.fresh) == ("shell", "ok", True)
    assert examined.moved > 5
    assert classes(examined) == []
    assert diagnosis.exit_code(examined.diagnosis) == 0


def test_nothing_at_all(root: Path, port: int) -> None:
    examined = looked(port, root)
    assert (examined.kind, examined.answer, examined.fresh) == ("none", "refused", None)
    assert classes(examined) == ["exporter-down"]
    assert diagnosis.exit_code(examined.diagnosis) == 1


def test_one_that_repeats_an_old_file(root: Path, port: int) -> None:
    file = root / FILE[1:]
    file.write_text(metrics(0))
    os.utime(file, (time.time() - 900, time.time() - 900))
    with shell_exporter("frozen", port, file):
        examined = looked(port, root, wait_s=1.2)
    assert (examined.kind, examined.fresh) == ("shell", False)
    assert classes(examined) == ["ghost-data"]


def test_values_that_stand_still_for_less_than_a_cycle_decide_nothing(
    root: Path, port: int
) -> None:
    file = root / FILE[1:]
    file.write_text(metrics(0))
    with shell_exporter("frozen", port, file):
        examined = looked(port, root, wait_s=1.2)
    assert classes(examined) == []
    assert diagnosis.exit_code(examined.diagnosis) == 3
    (unread,) = examined.diagnosis.coverage.unread
    assert "may be less than a cycle" in unread.reason


def test_one_that_never_answers(root: Path, port: int) -> None:
    with shell_exporter("hangs", port, root / "none"):
        examined = looked(port, root, wait_s=0.1)
    assert (examined.kind, examined.answer) == ("other", "timeout")
    assert classes(examined) == ["exporter-down"]


def test_one_whose_plugins_time_out(root: Path, port: int) -> None:
    with shell_exporter("slow", port, root / FILE[1:]):
        examined = looked(port, root)
    assert classes(examined) == ["exporter-plugin-timeout"]
    assert examined.fresh is True


def watchdog_lines(count: int, first_s: float, code: int = 137) -> str:
    def line(number: int) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(first_s + 60 * number))
        told = f"Watchdog: exited with code {code}, restart #{number}"
        return f"[{stamp}] [Metrics Exporter] {told}\n"

    return "".join(map(line, range(1, count + 1)))


def test_its_restarts_are_counted_in_the_log_that_it_writes_to(root: Path, port: int) -> None:
    log = root / "n1.log"
    log.write_text(watchdog_lines(7, time.time() - 600))
    loop = add_process(root, 41, "bash /job/utils/metrics_exporter.sh --port 9400")
    (loop / "fd/1").symlink_to("/n1.log")
    with shell_exporter("healthy", port, root / FILE[1:]):
        examined = looked(port, root)
    watched = examined.now.watched
    assert (watched.number, watched.left, watched.log) == (7, 43, "/n1.log")
    assert classes(examined) == ["exporter-restarting"]
    text = written(status_report(examined, verbose=False), width=1000)
    assert "7 of 50 restarts used" in text


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (lambda now: watchdog_lines(7, now - 90_000), []),
        (lambda now: watchdog_lines(49, now - 90_000), ["exporter-restarting"]),
        (
            lambda now: (
                watchdog_lines(50, now - 90_000) + "[2026-02-12T19:58:10Z] [Metrics Exporter] "
                "Watchdog: too many restarts (50), giving up\n"
            ),
            ["exporter-down"],
        ),
        (lambda now: watchdog_lines(3, now - 600).replace("Metrics Exporter", "Prometheus"), []),
        (lambda now: "", []),
    ],
    ids=["long ago", "one is left", "gave up", "another service", "none"],
)
def test_what_the_watchdogs_log_means(log: Any, expected: list[str], root: Path, port: int) -> None:
    (root / "n1.log").write_text(log(time.time()))
    with shell_exporter("healthy", port, root / FILE[1:]):
        examined = looked(port, root, logs=["/n1.log"])
    assert classes(examined) == expected


def test_restarts_of_an_exporter_on_another_port_are_not_its_own(root: Path, port: int) -> None:
    for pid, count in ((500, 1), (700, 4)):
        (root / f"{pid}.log").write_text(watchdog_lines(count, time.time() - 90_000))
        loop = add_process(root, pid, "bash /job/utils/metrics_exporter.sh")
        (loop / "fd/1").symlink_to(f"/{pid}.log")
        server = add_process(root, pid + 1, f"python3 -c serve {FILE}", parent=pid)
        (server / "fd/3").symlink_to(f"socket:[{pid}]")
    (root / "proc/net").mkdir()
    row = "{}: 0100007F:{:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 {} 1\n"
    table = "  sl  local_address rem_address\n" + row.format(0, port, 500) + row.format(1, 1, 700)
    (root / "proc/net/tcp").write_text(table)
    with shell_exporter("healthy", port, root / FILE[1:]):
        watched = looked(port, root).now.watched
    assert (watched.number, watched.log) == (1, "/500.log")


def test_a_log_that_is_not_there_is_unread(root: Path, port: int) -> None:
    with shell_exporter("healthy", port, root / FILE[1:]):
        examined = looked(port, root, logs=["/none.log"])
    assert examined.now.watched.left is None
    assert [item.source for item in examined.now.unread] == ["/none.log"]


def test_an_orphaned_http_server_beside_a_loop_is_a_remark(root: Path, port: int) -> None:
    add_process(root, 41, "bash /job/utils/metrics_exporter.sh --port 9400")
    add_process(root, 42, f"python3 -c pass {FILE} 9400", parent=1)
    with shell_exporter("healthy", port, root / FILE[1:]):
        examined = looked(port, root)
    (finding,) = examined.diagnosis.findings
    assert finding.failure_class == "exporter-restarting"
    assert "pid 42, parent 1" in finding.evidence[0].text
    assert diagnosis.exit_code(examined.diagnosis) == 0


def test_an_http_server_without_any_loop_serves_the_past(root: Path, port: int) -> None:
    add_process(root, 42, f"python3 -c pass {FILE} 9400", parent=1)
    file = root / FILE[1:]
    file.write_text(metrics(0))
    with shell_exporter("frozen", port, file):
        examined = looked(port, root, wait_s=0.1)
    assert classes(examined) == ["ghost-data"]
    assert "no exporter writes the file any more" in examined.diagnosis.findings[0].evidence[0].text


def test_its_own_http_server_is_no_orphan(root: Path, port: int) -> None:
    add_process(root, 41, "bash /job/utils/metrics_exporter.sh --port 9400")
    add_process(root, 42, f"python3 -c pass {FILE} 9400", parent=41)
    with shell_exporter("healthy", port, root / FILE[1:]):
        assert classes(looked(port, root)) == []


# ---- raydiag's own

OWN = """\
# TYPE raydiag_exporter_build_info gauge
raydiag_exporter_build_info{{host="n1",python="3.9.18",version="1.2.3"}} 1
raydiag_exporter_interval_seconds{{host="n1"}} 10
raydiag_exporter_page_age_seconds{{host="n1"}} {age}
raydiag_exporter_plugin_up{{host="n1",plugin="gpu"}} {up}
raydiag_exporter_plugin_timeouts_total{{host="n1",plugin="gpu"}} {timeouts}
raydiag_exporter_plugin_failures_total{{host="n1",plugin="gpu"}} 2
raydiag_exporter_plugin_outdated{{host="n1",plugin="gpu"}} {outdated}
raydiag_exporter_plugin_series{{host="n1",plugin="gpu"}} 96
"""
STUCK = (
    'raydiag_exporter_stuck_source_seconds{host="n1",plugin="gpu_ras",source="/sys/ras"} 90\n'
    'raydiag_exporter_abandoned_readers{host="n1"} 1\n'
)


@contextmanager
def serving(port: int, page: str) -> Iterator[None]:
    """A page in which @ is another number each time."""
    times = iter(range(10_000))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page.replace("@", str(next(times))).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def own(age: float = 1, up: int = 1, timeouts: int = 0, outdated: int = 0, more: str = "") -> str:
    page = OWN.format(age=age, up=up, timeouts=timeouts, outdated=outdated) + more
    return f'{page}hw_procs_running{{host="n1"}} @\n'


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (own(), []),
        (own(up=0, timeouts=3), ["exporter-plugin-timeout"]),
        (own(timeouts=3), []),  # over
        (own(up=0), ["exporter-plugin-skipped"]),
        (own(outdated=1), ["exporter-plugin-skipped"]),
        (own(age=21), ["exporter-down"]),
        (own(more=STUCK), ["hung-read"]),
    ],
    ids=["healthy", "times out", "timed out once", "fails", "outdated", "stands still", "stuck"],
)
def test_raydiags_own_exporter(page: str, expected: list[str], root: Path, port: int) -> None:
    with serving(port, page):
        examined = looked(port, root)
    assert (examined.kind, examined.fresh) == ("raydiag", True)
    assert (examined.served.version, examined.served.interval_s) == ("1.2.3", 10)
    assert classes(examined) == expected


def test_a_stuck_source_is_named(root: Path, port: int) -> None:
    with serving(port, own(more=STUCK)):
        (finding,) = looked(port, root).diagnosis.findings
    assert (finding.device, finding.evidence[0].source) == ("/sys/ras", "/sys/ras")
    assert finding.onset is not None


DENIED = 'raydiag_exporter_plugin_denied_info{host="n1",plugin="gpu",reason="/dev/kmsg: No"} 1\n'


def test_a_plugin_that_may_not_read_says_what_and_how_to_do_without(root: Path, port: int) -> None:
    with serving(port, own(up=0, more=DENIED)):
        (finding,) = looked(port, root).diagnosis.findings
    assert finding.failure_class == "exporter-plugin-skipped"
    assert "/dev/kmsg: No" in finding.evidence[0].text
    assert "--skip" in " ".join(finding.next_steps)


PAGES = {
    "empty": ("", "other"),
    "not metrics": ("<html>what</html>\n", "other"),
    "binary": ("\x00\x01\ufffd\n", "other"),
    "a foreign exporter": ("node_load1 0.5\n", "other"),
    "a line that is none": ("node_load1 0.5\n!!\n", "other"),
}


@pytest.mark.parametrize("what", PAGES)
def test_pages_that_are_no_exporters_of_ours(what: str, root: Path, port: int) -> None:
    page, kind = PAGES[what]
    with serving(port, page):
        examined = looked(port, root, wait_s=0.1)
    assert (examined.kind, examined.fresh) == (kind, None)
    assert bool(examined.now.malformed) == (
        what in ("not metrics", "binary", "a line that is none")
    )


# ---- judgements


def snapshot(interval_s: float) -> Snapshot:
    result = ProbeResult("exporter", Status.NO_DATA, interval_s=interval_s)
    report = NodeReport(Node("", "n1", "127.0.0.1"), NodeStatus.OK, probes={"exporter": result})
    return Snapshot(nodes=(report,), time=1_800_000_000.0)


def record(**changed: Any) -> Exporter:
    fields: dict[str, Any] = {
        "port": 9400,
        "answer": "ok",
        "reason": "",
        "duration_s": 0.0,
        "body_bytes": 1,
        "samples": 20,
        "hw_samples": 20,
        "groups": (),
        "checksum": 1,
        "scrape_duration_s": 0.104,
        **dict.fromkeys(("data_time_s", "data_age_s", "switches_served", "switches_now")),
        **dict.fromkeys(("uptime_s", "file_age_s", "log_age_s", "process_age_s")),
        "log_lines": (),
        "timed_out": {},
        "ends_in_timeout": False,
        "skipped": (),
        "restarts": (),
        "processes": (),
    }
    return Exporter(**{**fields, **changed})


@pytest.mark.parametrize(
    ("now", "moved", "interval_s", "expected"),
    [
        (record(), 0, 25.0, 1),
        (record(), 1, 25.0, 0),
        (record(), 0, 12.0, 0),
        (record(scrape_duration_s=0.105), 0, 25.0, 0),
        (record(scrape_duration_s=None), 0, 25.0, 0),
    ],
    ids=["flat", "moves", "too short", "its duration moves", "no duration"],
)
def test_standing_still_is_told_by_the_duration_of_a_cycle(
    now: Exporter, moved: int, interval_s: float, expected: int
) -> None:
    found: list[Finding] = list(standstill(snapshot(interval_s), record(), now, moved, 20))
    assert [finding.failure_class for finding in found] == ["ghost-data"] * expected


def test_timeouts_between_the_looks_are_told_apart() -> None:
    up, timeouts = 'plugin_up{plugin="gpu"} 1', 'plugin_timeouts_total{plugin="gpu"}'
    text = f"raydiag_exporter_{up}\nraydiag_exporter_{timeouts}"
    now, before = (parse(f"{text} {count}\n".encode(), own=True).lines for count in (7, 5))
    (plugin,) = ServedMetrics.of(now, before).plugins
    assert (plugin.timeouts, plugin.new_timeouts) == (7, 2)
    assert ServedMetrics.of([], before) == ServedMetrics()


def test_the_loop_of_another_exporter_is_no_leftover() -> None:
    processes = [Process(7, 1, "raydiag", "S", 60.0)]
    found = judge_exporter(snapshot(3.0), record(), ServedMetrics(), Watched(), processes)
    assert list(found) == []


def test_a_look_leaves_nothing_behind(root: Path, port: int) -> None:
    """In a process of its own, so that its children can be counted."""
    program = (
        "import os, sys; from raydiag.exporter.status import examine\n"
        "examine(int(sys.argv[1]), 'n1', sys.argv[2], 0.1)\n"
        "print(open(f'/proc/self/task/{os.getpid()}/children').read())"
    )
    argv = [sys.executable, "-c", program, str(port), str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_command_takes_the_time_to_wait_and_further_logs(tmp_path: Path) -> None:
    log = tmp_path / "watchdog.log"
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    log.write_text(f"[{when}] [Metrics Exporter] Watchdog: exited with code 137, restart #3\n")
    words = ("status", "--port", "1", "--wait", "1", "--log", str(log))
    command = [sys.executable, "-m", "raydiag", "exporter", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "3 of 50 restarts used" in done.stdout
