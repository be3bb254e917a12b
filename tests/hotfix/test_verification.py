"""Verifying a plugin of raydiag's own exporter, by what the exporter says of itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from raydiag.hotfix import verification
from raydiag.hotfix.messages import RAYDIAG, Verified, Verify

pytestmark = pytest.mark.slow

CYCLE_S = 0.1
LONG_S = 60.0

Lines = Callable[[int], Sequence[str]]  # of the cycle of that number


@contextmanager
def serving_cycles(lines: Lines, cycle_s: float = CYCLE_S) -> Iterator[int]:
    """A page of these lines, a new one every `cycle_s`; gives the port."""
    began = time.time()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cycle = int((time.time() - began) / cycle_s)
            text = "".join(f"{line}\n" for line in lines(cycle))
            ended_at = began + cycle * cycle_s
            text += f'raydiag_exporter_cycle_timestamp_seconds{{host="n"}} {ended_at}\n'
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: object) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(*lines: str) -> Iterator[int]:
    """A page with these lines, `%d` being the number of the cycle; gives the port."""
    with serving_cycles(lambda cycle: [line.replace("%d", str(cycle)) for line in lines]) as port:
        yield port


def verified(port: int, **fields: object) -> Verified:
    given: dict[str, object] = {"name": "disks.py", "since": time.time(), "limit_s": 5.0, **fields}
    return verification.verify(Verify(exporter=RAYDIAG, port=port, **given))  # type: ignore[arg-type]


UP = 'raydiag_exporter_plugin_up{host="n",plugin="disks"} 1'
DOWN = 'raydiag_exporter_plugin_up{plugin="disks"} 0'
OUTDATED = 'raydiag_exporter_plugin_outdated{plugin="disks"} 1'
SUCCESS = 'raydiag_exporter_plugin_last_success_timestamp_seconds{plugin="disks"}'
TIMEOUTS = 'raydiag_exporter_plugin_timeouts_total{plugin="disks"}'
LATE = 'raydiag_exporter_plugin_late{plugin="disks"}'
FAILURES = 'raydiag_exporter_plugin_failures_total{plugin="disks"}'
INTERVAL = 'raydiag_exporter_interval_seconds{host="n"}'
PAGE_AGE = 'raydiag_exporter_page_age_seconds{host="n"}'


def test_a_plugin_that_is_up_and_moves_is_healthy() -> None:
    with serving(UP, 'disk_used_bytes{host="n"} %d') as port:
        seen = verified(port, expected={"disk_used_bytes": 1})
    assert (seen.healthy, seen.reason) == (True, "")
    assert seen.moved > 0
    assert seen.cycles >= 2


def test_without_a_dry_run_being_up_is_enough_and_is_noted() -> None:
    with serving(UP) as port:
        seen = verified(port)
    assert seen.healthy
    assert "need not" in seen.notes[0]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([OUTDATED, UP], "was not loaded"),
        ([DOWN], "fails"),
        ([DOWN, f"{FAILURES} 3", f"{TIMEOUTS} 0"], "fails"),
        (
            ['raydiag_exporter_plugin_up{plugin="others"} 1'],
            "waited 5 s for a first run",
        ),
        ([UP, f"{SUCCESS} 5"], "waited 5 s for a run of disks.py after the change"),
        ([UP, "disk used 1"], "not valid"),
        ([UP, "other_metric %d"], "nothing is served of what disks.py makes"),
    ],
)
def test_a_plugin_that_is_not_healthy_is_noticed(lines: list[str], words: str) -> None:
    with serving(*lines) as port:
        seen = verified(port, expected={"disk_used_bytes": 1})
    assert not seen.healthy
    assert words in seen.reason


def test_constant_values_are_not_taken_for_a_living_plugin() -> None:
    with serving(UP, "disk_used_bytes 5") as port:
        seen = verified(port, expected={"disk_used_bytes": 1}, limit_s=6.0)
    assert seen.reason == "waited 6 s for values that move"


def test_an_exporter_that_stands_still_is_not_healthy() -> None:
    with serving_cycles(lambda _: [UP, "disk_used_bytes 5"], cycle_s=1e9) as port:
        seen = verified(port, limit_s=1.0)
    assert not seen.healthy
    assert "cycle" in seen.reason


# ---- on a loaded node


def test_values_that_expired_because_a_run_is_late_are_waited_for() -> None:
    last_run_at = time.time() + 0.01

    def lines(cycle: int) -> list[str]:
        if cycle < 10:  # the run of this version ended, and the next one has been late since
            return [UP, f"{INTERVAL} 0.1", f"{SUCCESS} {last_run_at}"]
        return [UP, f"{INTERVAL} 0.1", f"{SUCCESS} {time.time()}", f"disk_used_bytes {cycle}"]

    with serving_cycles(lines) as port:
        seen = verified(port, since=0.0, expected={"disk_used_bytes": 1}, limit_s=LONG_S)
    assert (seen.healthy, seen.reason) == (True, "")


def test_fresh_values_that_lack_a_metric_are_a_failure() -> None:
    with serving_cycles(lambda _: [UP, f"{INTERVAL} 10", f"{SUCCESS} {time.time()}"]) as port:
        seen = verified(port, since=0.0, expected={"disk_used_bytes": 1}, limit_s=LONG_S)
    assert "nothing is served of what disks.py makes" in seen.reason


def test_a_page_that_is_too_old_to_have_values_is_waited_for() -> None:
    def lines(cycle: int) -> list[str]:
        late = [f"{PAGE_AGE} 0.9"] if cycle < 10 else [f"{PAGE_AGE} 0", f"disk_used_bytes {cycle}"]
        return [UP, f"{INTERVAL} 0.1", *late]

    with serving_cycles(lines) as port:
        seen = verified(port, expected={"disk_used_bytes": 1}, limit_s=LONG_S)
    assert (seen.healthy, seen.reason) == (True, "")


@pytest.mark.parametrize("sign", [DOWN, OUTDATED])
def test_a_missed_deadline_is_no_failure(sign: str) -> None:
    def lines(cycle: int) -> list[str]:
        if cycle < 10:
            return [sign, f"{LATE} 1", f"{TIMEOUTS} {1 + cycle // 5}"]
        return [UP, f"{LATE} 0", f"{TIMEOUTS} 2", f"disk_used_bytes {cycle}"]

    with serving_cycles(lines) as port:
        seen = verified(port, expected={"disk_used_bytes": 1}, limit_s=LONG_S)
    assert (seen.healthy, seen.reason) == (True, "")


def test_a_plugin_that_misses_its_deadline_again_and_again_fails() -> None:
    with serving_cycles(lambda cycle: [DOWN, f"{LATE} 1", f"{TIMEOUTS} {cycle // 5}"]) as port:
        seen = verified(port, limit_s=LONG_S)
    assert not seen.healthy
    assert "disks.py missed its deadline in 3 runs" in seen.reason


def test_a_failure_after_a_missed_deadline_is_a_failure() -> None:
    def lines(cycle: int) -> list[str]:
        return [DOWN, f"{LATE} {int(cycle < 10)}", f"{TIMEOUTS} 1", f"{FAILURES} {cycle // 10}"]

    with serving_cycles(lines) as port:
        seen = verified(port, limit_s=LONG_S)
    assert "raydiag_exporter_plugin_up is 0" in seen.reason


def test_an_exporter_whose_cycles_come_late_has_more_time() -> None:
    def lines(cycle: int) -> list[str]:
        return [UP, f"{INTERVAL} 0.1", f"{SUCCESS} {time.time()}", f"disk_used_bytes {cycle}"]

    with serving_cycles(lines, cycle_s=0.8) as port:
        at_once = verified(port, expected={"disk_used_bytes": 1}, limit_s=1.0)
        seen = verified(port, expected={"disk_used_bytes": 1}, limit_s=1.0, late_limit_s=LONG_S)
    assert at_once.reason.startswith("waited 1 s for ")
    assert (seen.healthy, seen.reason) == (True, "")
    assert "its cycles come late" in seen.notes[-1]


def test_late_cycles_have_a_limit_too_and_the_reason_says_that_they_are_late() -> None:
    def lines(_: int) -> list[str]:
        return [UP, f"{INTERVAL} 0.1", "disk_used_bytes 5"]

    with serving_cycles(lines, cycle_s=0.5) as port:
        seen = verified(port, expected={"disk_used_bytes": 1}, limit_s=5.0, late_limit_s=8.0)
    assert "waited 8 s for values that move; its cycles come late" in seen.reason
