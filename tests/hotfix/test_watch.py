"""Verifying a plugin of raydiag's own exporter, by what the exporter says of itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from raydiag.hotfix import verification
from raydiag.hotfix.messages import RAYDIAG, Verified, Verify

pytestmark = pytest.mark.slow

CYCLE_S = 0.1


@contextmanager
def serving(*lines: str, stops_after: float = 1e9) -> Iterator[int]:
    """A page with these lines whose cycles go on, `%d` being their number; gives the port."""
    began = time.time()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cycle = int(min(time.time() - began, stops_after) / CYCLE_S)
            text = "".join(f"{line}\n" for line in lines).replace("%d", str(cycle))
            stamp = (
                f'raydiag_exporter_cycle_timestamp_seconds{{host="n"}} {began + cycle * CYCLE_S}\n'
            )
            self.send_response(200)
            self.end_headers()
            self.wfile.write((text + stamp).encode())

        def log_message(self, format: str, *arguments: object) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def verified(port: int, **fields: object) -> Verified:
    given: dict[str, object] = {"name": "disks.py", "since": time.time(), "limit_s": 5.0, **fields}
    return verification.verify(Verify(exporter=RAYDIAG, port=port, **given))  # type: ignore[arg-type]


UP = 'raydiag_exporter_plugin_up{host="n",plugin="disks"} 1'
SUCCESS = 'raydiag_exporter_plugin_last_success_timestamp_seconds{plugin="disks"}'


def test_a_plugin_that_is_up_and_moves_is_well() -> None:
    with serving(UP, 'disk_used_bytes{host="n"} %d') as port:
        seen = verified(port, expected={"disk_used_bytes": 1})
    assert (seen.healthy, seen.reason) == (True, "")
    assert seen.moved > 0
    assert seen.cycles >= 2


def test_without_a_dry_run_being_up_is_enough_and_is_said() -> None:
    with serving(UP) as port:
        seen = verified(port)
    assert seen.healthy
    assert "need not" in seen.notes[0]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['raydiag_exporter_plugin_outdated{plugin="disks"} 1', UP], "was not loaded"),
        (['raydiag_exporter_plugin_up{plugin="disks"} 0'], "fails"),
        (
            ['raydiag_exporter_plugin_up{plugin="others"} 1'],
            "waited 5 s for a first run",
        ),
        ([UP, f"{SUCCESS} 5"], "waited 5 s for a run of disks.py after the change"),
        ([UP, "disk used 1"], "not valid"),
        ([UP, "other_metric %d"], "nothing is served of what disks.py makes"),
    ],
)
def test_a_plugin_that_is_not_well_is_noticed(lines: list[str], words: str) -> None:
    with serving(*lines) as port:
        seen = verified(port, expected={"disk_used_bytes": 1})
    assert not seen.healthy
    assert words in seen.reason


def test_constant_values_are_not_taken_for_a_living_plugin() -> None:
    with serving(UP, "disk_used_bytes 5") as port:
        seen = verified(port, expected={"disk_used_bytes": 1}, limit_s=1.0)
    assert seen.reason == "waited 1 s for values that move"


def test_an_exporter_that_stands_still_is_not_well() -> None:
    with serving(UP, "disk_used_bytes 5", stops_after=0.0) as port:
        seen = verified(port, limit_s=1.0)
    assert not seen.healthy
    assert "cycle" in seen.reason
