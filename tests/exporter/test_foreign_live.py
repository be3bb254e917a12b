"""External plugins in the exporter itself, as a process: what its page and `status` say of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from raydiag.exporter.status import examine
from tests.exporter.foreign_cycle import PATIENCE_S, write

pytestmark = pytest.mark.slow

COUNTING = """\
n=$(( ${_PLUGIN_STATE:-0} + 1 ))
echo "# TYPE my_runs gauge"
echo "my_runs{host=\\"$1\\"} $n"
echo "# STATE $n"
"""


class Live:
    """An exporter with a directory of plugins."""

    def __init__(self, directory: Path, state: Path, port: int) -> None:
        self.port = port
        argv = [sys.executable, "-m", "raydiag", "exporter", "run", "--interval", "0.3"]
        argv += ["--listen", f"127.0.0.1:{port}", "--state-dir", str(state), "--host", "n1"]
        argv += ["--only", "oom", "--plugins", str(directory)]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)

    def page(self) -> dict[str, float]:
        """`name` or `name of plugin` -> value; empty while nothing answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/metrics", timeout=30
            ) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                plugin = sample.labels.get("plugin")
                found[f"{sample.name} of {plugin}" if plugin else sample.name] = sample.value
        return found

    def until(self, condition: Callable[[dict[str, float]], object]) -> dict[str, float]:
        end = time.monotonic() + PATIENCE_S
        while True:
            page = self.page()
            if page and condition(page):
                return page
            assert time.monotonic() < end, page
            time.sleep(0.05)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "plugins"
    place.mkdir()
    return place


@pytest.fixture
def live(directory: Path, tmp_path: Path) -> Iterator[Live]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    running = Live(directory, tmp_path / "state", port)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


OWN = "raydiag_exporter_plugin"


def test_a_broken_roll_out_is_seen_and_the_last_good_version_goes_on(
    directory: Path, live: Live
) -> None:
    plugin = write(directory / "a_metrics_plugin.sh", COUNTING)
    first = live.until(lambda page: page.get("my_runs", 0) > 1)
    assert first[f"{OWN}_up of a_metrics_plugin"] == 1
    write(plugin, "if\n")
    live.until(lambda page: page.get(f"{OWN}_outdated of a_metrics_plugin") == 1)
    broken = live.until(lambda page: "my_runs" in page)  # on a busy node a cycle may come late
    later = live.until(lambda page: page.get("my_runs", 0) > broken["my_runs"])
    assert later[f"{OWN}_up of a_metrics_plugin"] == 1
    assert later[f"{OWN}_reload_errors_total of a_metrics_plugin"] == 1
    examined = examine(live.port, "n1", wait_s=5.0)
    assert examined.kind == "raydiag"
    found = {finding.title for finding in examined.diagnosis.findings}
    assert found == {"The new version of a plugin is broken"}
    write(plugin, COUNTING)
    live.until(lambda page: page.get(f"{OWN}_outdated of a_metrics_plugin") == 0)


def test_a_plugin_that_never_ends_holds_up_no_other(directory: Path, live: Live) -> None:
    mark = f"600.{os.getpid()}6"
    write(directory / "a_metrics_plugin.sh", COUNTING)
    write(directory / "hang_metrics_plugin.sh", f"sleep {mark} & sleep {mark}\n")
    first = live.until(lambda page: page.get("my_runs", 0) > 1)
    live.until(lambda page: page.get("my_runs", 0) > first["my_runs"] + 3)
    assert "hw_oom_kills_total" in live.page()
    os.kill(live.process.pid, signal.SIGKILL)
    end = time.monotonic() + PATIENCE_S
    while subprocess.run(["pgrep", "-f", mark], stdout=subprocess.DEVNULL).returncode == 0:
        assert time.monotonic() < end, "the plugin has outlived its exporter"
        time.sleep(0.05)


def test_a_plugin_that_is_deleted_takes_its_series_along(directory: Path, live: Live) -> None:
    plugin = write(directory / "a_metrics_plugin.sh", COUNTING)
    live.until(lambda page: "my_runs" in page)
    plugin.unlink()
    page = live.until(lambda page: "my_runs" not in page)
    assert not [name for name in page if "a_metrics_plugin" in name]


def test_a_series_that_changed_hands_in_a_late_run_comes_back(directory: Path, live: Live) -> None:
    late = directory / ".late"
    text = f"while [ -e {late} ]; do sleep 0.05; done\necho 'my_depth 1'\n"
    write(directory / "a_metrics_plugin.sh", text)
    live.until(lambda page: page.get("my_depth") == 1)
    write(directory / "b_metrics_plugin.sh", "echo 'my_depth 2'\n")
    rejected = "raydiag_exporter_rejected_samples_total of b_metrics_plugin"
    live.until(lambda page: page.get(rejected, 0) >= 1)
    late.touch()
    live.until(lambda page: page.get("my_depth") == 2)
    late.unlink()
    page = live.until(lambda page: page.get("my_depth") == 1)
    assert page[f"{OWN}_up of a_metrics_plugin"] == 1


def test_series_of_ours_and_of_another_plugin_are_refused(directory: Path, live: Live) -> None:
    write(directory / "a_metrics_plugin.sh", "echo 'my_depth 1'\n")
    live.until(lambda page: "my_depth" in page)
    text = "echo 'my_depth 2'\necho 'hw_oom_kills_total -1'\necho 'my_own 3'\n"
    write(directory / "b_metrics_plugin.sh", text)
    page = live.until(lambda page: "my_own" in page)
    assert page["my_depth"] == 1
    assert page["hw_oom_kills_total"] >= 0
    assert page["raydiag_exporter_rejected_samples_total of b_metrics_plugin"] >= 2


def test_a_python_plugin_cannot_spoil_the_readers_of_ours(directory: Path, live: Live) -> None:
    text = (
        "import raydiag.exporter.plugins.oom as oom\n"
        "from raydiag.exporter.metrics import Sample\n"
        "oom.parse_numbers = lambda text: {'oom_kill': 4711}\n"
        "def collect(host):\n"
        "    yield Sample('my_one', {}, 1)\n"
    )
    write(directory / "spoils.py", text)
    live.until(lambda page: "my_one" in page)
    before = live.page()["raydiag_exporter_cycles_total"]
    page = live.until(lambda page: page["raydiag_exporter_cycles_total"] > before + 3)
    assert page["hw_oom_kills_total"] != 4711
