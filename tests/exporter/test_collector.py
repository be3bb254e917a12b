"""The collector with plugins that fail in every way, through real guarded readers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from raydiag import sandbox
from raydiag.exporter import plugins
from raydiag.exporter.collector import Collector
from raydiag.exporter.page import OWN, MetricsPage
from raydiag.exporter.state import SavedState

pytestmark = pytest.mark.slow

HEADER = """
import os, time
from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.exporter.metrics import Sample
from raydiag.exporter.plugins import State, plugin
"""
GOOD = """
@plugin(timeout_s=5)
def collect(host):
    yield Sample("hw_procs_running", {}, 4)
"""
INTERVAL_S = 60.0


class Node:
    """A collector of some plugins, driven by hand."""

    def __init__(
        self, tmp_path: Path, sources: dict[str, str], state: SavedState | None = None
    ) -> None:
        for name, text in sources.items():
            self.write(name, text)
        self.said: list[str] = []
        self.page = MetricsPage("n1", INTERVAL_S)
        self.state = state or SavedState(None, "n1", "b1")
        own = [plugins.load(name) for name in sources]
        self.collector = Collector(own, self.page, self.state, str(tmp_path), log=self.said.append)

    @staticmethod
    def write(name: str, text: str) -> None:
        full = f"raydiag.exporter.plugins.{name}"
        module = types.ModuleType(full)
        exec(compile(HEADER + text, f"{name}.py", "exec"), module.__dict__)
        sys.modules[full] = module

    def cycle(self) -> None:
        self.collector.begin()
        until = time.monotonic() + 60
        while not self.collector.is_idle:
            self.collector.work(1.0)
            assert time.monotonic() < until, "the cycle does not end"

    def series(self, later_s: float = 0.0) -> dict[str, float]:
        """Name and labels but the host of each series, with its value."""
        now_s = time.monotonic()
        self.page.put(OWN, "", self.collector.samples(time.time()), now_s)
        text = self.page.render(now_s + later_s)
        found = {}
        for family in text_string_to_metric_families((text.plugin_lines + text.own).decode()):
            for sample in family.samples:
                labels = {k: v for k, v in sample.labels.items() if k != "host"}
                inside = ",".join(f"{k}={v}" for k, v in sorted(labels.items()))
                name = sample.name.replace("raydiag_exporter_", "")
                found[f"{name}{{{inside}}}" if inside else name] = sample.value
        return found


Make = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """`make({"name": "text of the plugin"})`"""
    nodes: list[Node] = []

    def build(sources: dict[str, str], **more: Any) -> Node:
        nodes.append(Node(tmp_path, sources, **more))
        return nodes[-1]

    yield build
    for node in nodes:
        node.collector.close()
    for name in [name for name in sys.modules if name.startswith("raydiag.exporter.plugins.x_")]:
        del sys.modules[name]
        plugins._registered.pop(name.rpartition(".")[2])


def test_a_plugin_that_goes_well(make: Make) -> None:
    node = make({"x_good": GOOD})
    node.cycle()
    node.cycle()
    series = node.series()
    assert series["hw_procs_running"] == 4
    assert series["plugin_up{plugin=x_good}"] == 1
    assert series["plugin_series{plugin=x_good}"] == 1
    assert series["plugin_failures_total{plugin=x_good}"] == 0
    assert abs(series["plugin_last_success_timestamp_seconds{plugin=x_good}"] - time.time()) < 60
    assert series["plugin_duration_seconds{plugin=x_good}"] > 0
    assert series["cycles_total"] == 2
    assert node.said == []


def test_the_reader_lives_across_cycles(make: Make) -> None:
    pid = '@plugin()\ndef collect(host):\n    yield Sample("hw_procs_running", {}, os.getpid())\n'
    node = make({"x_pid": pid})
    node.cycle()
    first = node.series()["hw_procs_running"]
    node.cycle()
    assert node.series()["hw_procs_running"] == first != os.getpid()
    os.kill(int(first), signal.SIGKILL)
    os.waitid(os.P_PID, int(first), os.WEXITED | os.WNOWAIT)
    node.cycle()
    after = node.series()
    assert after["hw_procs_running"] not in (first, os.getpid())
    assert after["plugin_failures_total{plugin=x_pid}"] == 0


BROKEN = {
    "raises": "    raise RuntimeError('no')",
    "raises late": "    yield Sample('hw_procs_blocked', {}, 1)\n    raise ParseError('half')",
    "is denied": "    raise Denied('no permission')\n    yield",
    "ends its reader": "    os._exit(3)\n    yield",
    "yields nonsense": "    yield 5",
    "yields what is no JSON": "    yield Sample('hw_procs_blocked', {}, object())",
    "says too much": "    for n in range(200000): yield Sample('hw_x', {'device': str(n)}, n)",
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_a_plugin_that_breaks_costs_its_own_series(make: Make, body: str) -> None:
    node = make({"x_bad": f"@plugin()\ndef collect(host):\n{body}\n", "x_good": GOOD})
    node.cycle()
    node.cycle()
    series = node.series()
    assert series["hw_procs_running"] == 4
    assert series["plugin_up{plugin=x_good}"] == 1
    assert series["plugin_up{plugin=x_bad}"] == 0
    assert series["plugin_failures_total{plugin=x_bad}"] == 2
    assert "plugin_last_success_timestamp_seconds{plugin=x_bad}" not in series
    is_denied = "Denied" in body
    info = "plugin_denied_info{plugin=x_bad,reason=no permission}"
    assert [name for name in series if "denied" in name] == [info] * is_denied
    (said,) = node.said
    assert said.startswith("x_bad: ")


def test_samples_that_are_refused_are_counted(make: Make) -> None:
    body = "    yield Sample('hw_procs_running', {}, 1)\n    yield Sample('no_such_metric', {}, 1)"
    node = make({"x_good": GOOD, "x_thief": f"@plugin()\ndef collect(host):\n{body}\n"})
    node.cycle()
    series = node.series()
    assert series["hw_procs_running"] == 4
    assert series["rejected_samples_total{plugin=x_thief}"] == 2


def test_nothing_there_is_no_failure(make: Make) -> None:
    node = make({"x_none": "@plugin()\ndef collect(host):\n    raise NoData('none')\n    yield\n"})
    node.cycle()
    series = node.series()
    assert series["plugin_up{plugin=x_none}"] == 1
    assert series["plugin_series{plugin=x_none}"] == 0


def test_a_plugin_that_never_answers_is_ended_and_others_stay_fresh(
    make: Make, tmp_path: Path
) -> None:
    sleeps = (
        "@plugin(timeout_s=2)\ndef collect(host):\n"
        "    yield Sample('hw_procs_blocked', {}, 1)\n"
        f"    time.sleep(60 if os.path.exists('{tmp_path}/hang') else 0)\n"
    )
    node = make({"x_sleeps": sleeps, "x_good": GOOD})
    node.cycle()
    assert node.series()["hw_procs_blocked"] == 1
    (tmp_path / "hang").touch()
    for _ in range(3):
        node.cycle()
    series = node.series()
    assert series["plugin_timeouts_total{plugin=x_sleeps}"] == 3
    assert series["abandoned_readers"] == 0
    assert "hw_procs_blocked" in series
    later = node.series(2 * INTERVAL_S)
    assert "hw_procs_blocked" not in later
    (tmp_path / "hang").unlink()
    node.cycle()
    assert node.series()["hw_procs_blocked"] == 1
    assert node.said[-1] == "x_sleeps: succeeds again"


def test_a_slow_plugin_does_not_keep_the_others_waiting(make: Make) -> None:
    slow = (
        "@plugin(timeout_s=20)\ndef collect(host):\n    time.sleep(3)\n"
        "    yield Sample('hw_procs_blocked', {}, 1)\n"
    )
    node = make({"x_a_slow": slow, "x_good": GOOD})
    node.collector.begin()
    while "hw_procs_running" not in node.series():
        node.collector.work(1.0)
    assert not node.collector.is_idle
    node.collector.begin()  # what is at work goes on, the other one runs again
    while not node.collector.is_idle:
        node.collector.work(1.0)
    series = node.series()
    assert series["hw_procs_blocked"] == 1
    assert series["plugin_failures_total{plugin=x_a_slow}"] == 0


def test_sources_have_their_own_fates(make: Make) -> None:
    node = make(
        {
            "x_parts": """
def parts(host):
    return ["/a", "/b", "/c", "/d"]

@plugin(timeout_s=2, sources=parts)
def collect(host, source):
    if source == "/b": time.sleep(60)
    if source == "/c": raise ReadError("/c: broken")
    yield Sample("hw_net_rx_bytes_total", {"device": source}, 1)
"""
        }
    )
    node.cycle()
    series = node.series()
    assert series["plugin_series{plugin=x_parts}"] == 2
    assert series["plugin_up{plugin=x_parts}"] == 0
    assert series["plugin_timeouts_total{plugin=x_parts}"] == 1
    assert series["plugin_failures_total{plugin=x_parts}"] == 1


@pytest.mark.parametrize(
    ("error", "up"), [("NoData('none')", 1), ("Denied('no')", 0), ("ValueError('x')", 0)]
)
def test_a_listing_that_fails(make: Make, error: str, up: int) -> None:
    listing = f"def parts(host):\n    raise {error}\n"
    text = f"{listing}\n@plugin(sources=parts)\ndef collect(host, source):\n    yield\n"
    node = make({"x_parts": text, "x_good": GOOD})
    node.cycle()
    node.cycle()
    series = node.series()
    assert series["plugin_up{plugin=x_parts}"] == up
    assert series["plugin_failures_total{plugin=x_parts}"] == 2 * (1 - up)
    assert series["hw_procs_running"] == 4


LAST = """
def parts(host):
    return ["/1", "/2", "/3"]

@plugin(timeout_s=2, last=True, sources=parts)
def collect(host, source):
    if source == "/2" and os.path.exists(host.root + "/hang"): time.sleep(60)
    yield Sample("hw_net_rx_bytes_total", {"device": source}, time.monotonic())
"""


def test_what_a_driver_fault_hangs_comes_last_and_stops_at_its_first_hang(
    make: Make, tmp_path: Path
) -> None:
    good = GOOD.replace("{}, 4", "{}, time.monotonic()")
    node = make({"x_a_last": LAST, "x_good": good})
    node.cycle()
    series = node.series()
    last = [series[f"hw_net_rx_bytes_total{{device=/{n}}}"] for n in (1, 2, 3)]
    assert [series["hw_procs_running"], *last] == sorted([series["hw_procs_running"], *last])
    (tmp_path / "hang").touch()
    node.cycle()
    after = node.series()
    now = [after[f"hw_net_rx_bytes_total{{device=/{n}}}"] for n in (1, 2, 3)]
    assert (now[0] > last[0], now[1:]) == (True, last[1:])
    assert after["plugin_timeouts_total{plugin=x_a_last}"] == 1


def test_nothing_that_a_driver_fault_hangs_is_read_once_it_shows(make: Make) -> None:
    says = (
        "@plugin(keeps_state=True)\ndef collect(host, state):\n"
        "    yield State({'driver_fault': 'amdgpu_cper_ring_write'})\n"
    )
    node = make({"x_a_last": LAST, "x_log": says})
    node.cycle()
    series = node.series()
    assert not [name for name in series if name.startswith("hw_net")]
    assert series["plugin_up{plugin=x_a_last}"] == 0
    assert "amdgpu_cper_ring_write in the kernel log shows the driver fault" in node.said[0]


COUNTS = """
@plugin(keeps_state=True)
def collect(host, state):
    count = state.get("count", 0) + 1
    yield State({"count": count})
    yield Sample("hw_oom_kills_total", {}, count)
"""


def test_state_comes_back_also_after_a_restart(make: Make, tmp_path: Path) -> None:
    directory = str(tmp_path / "state")
    state = SavedState(directory, "n1", "b1")
    node = make({"x_counts": COUNTS}, state=state)
    node.cycle()
    node.cycle()
    assert node.series()["hw_oom_kills_total"] == 2
    state.save()
    again = make({"x_counts": COUNTS}, state=SavedState(directory, "n1", "b1"))
    again.cycle()
    assert again.series()["hw_oom_kills_total"] == 3


def test_a_source_that_another_reader_holds_is_waited_for_then_left_out(
    make: Make, tmp_path: Path
) -> None:
    node = make({"x_good": GOOD})
    held = sandbox.lock(sandbox.tag(f"x_good:{tmp_path}"))
    assert held is not None
    node.cycle()
    series = node.series()
    assert "hw_procs_running" not in series
    assert series["plugin_up{plugin=x_good}"] == 0
    assert series["abandoned_readers"] == 0  # it is only held
    assert "another raydiag reader on this machine holds it" in node.said[0]
    held.close()
    node.cycle()
    assert node.series()["hw_procs_running"] == 4


def test_paths_that_answered_einval_are_counted(make: Make, tmp_path: Path) -> None:
    reads = (
        "import errno\n@plugin()\ndef collect(host):\n"
        "    host.failed('/sys/a', OSError(errno.EINVAL, ''))\n"
        "    yield Sample('hw_procs_blocked', {}, len(host.left_alone))\n"
    )
    node = make({"x_reads": reads})
    node.cycle()
    node.cycle()
    assert node.series()["skipped_paths{plugin=x_reads}"] == 1


def test_a_path_that_answered_einval_is_tried_again_after_an_hour(
    make: Make,
) -> None:
    body = (
        "@plugin()\ndef collect(host):\n"
        "    if '/sys/a' not in host.left_alone:\n"
        "        raise ReadError('opened')\n"
        "    yield Sample('hw_procs_running', {}, 4)\n"
    )
    node = make({"x_alone": body})
    node.collector._left_alone["/sys/a"] = ("x_alone", time.monotonic())
    node.cycle()
    assert node.series()["skipped_paths{plugin=x_alone}"] == 1
    assert node.series()["plugin_failures_total{plugin=x_alone}"] == 0
    node.collector._left_alone["/sys/a"] = ("x_alone", time.monotonic() - 3601)
    node.cycle()
    assert node.series()["plugin_failures_total{plugin=x_alone}"] == 1
    assert node.series()["skipped_paths{plugin=x_alone}"] == 0


def test_what_a_driver_fault_hangs_waits_for_the_kernel_log_of_this_cycle(make: Make) -> None:
    """It answers slowly here, long after the next source would be started beside a slow one."""
    node = make(
        {
            "x_log": "@plugin(timeout_s=5, keeps_state=True)\n"
            "def collect(host, state):\n"
            "    time.sleep(0.6)\n"
            "    yield State({'driver_fault': 'aca_sysfs_read'})\n",
            "x_ras": "@plugin(last=True)\n"
            "def collect(host):\n"
            "    yield Sample('hw_procs_running', {}, 4)\n",
        }
    )
    node.cycle()
    assert "hw_procs_running" not in node.series()
    assert "aca_sysfs_read in the kernel log" in node.said[0]


def test_nothing_that_a_driver_fault_hangs_is_read_before_the_log_is_read_to_its_end(
    make: Make,
) -> None:
    node = make({"x_ras": GOOD.replace("timeout_s=5", "timeout_s=5, last=True"), "x_log": GOOD})
    node.state.put("x_log", {"is_behind": True})
    node.cycle()
    assert node.series()["plugin_up{plugin=x_ras}"] == 0
    assert "not read to its end" in node.said[0]
    node.state.put("x_log", {"is_behind": False})
    node.cycle()
    assert node.series()["plugin_up{plugin=x_ras}"] == 1


def test_what_could_not_be_read_is_told_once_for_each_change(make: Make) -> None:
    node = make(
        {
            "x_half": "from raydiag.model import Status, Unread\n"
            "@plugin(keeps_state=True)\n"
            "def collect(host, state):\n"
            "    n = state.get('n', 0)\n"
            "    yield State({'n': n + 1})\n"
            "    yield Sample('hw_procs_running', {}, 4)\n"
            "    if n < 2: yield Unread('/a', Status.ERROR, '/a: Input/output error')\n"
            "    yield Unread('/b', Status.NO_DATA, '/b: not there')\n"
        }
    )
    for _ in range(4):
        node.cycle()
    assert node.said == ["x_half: not read: /a: Input/output error", "x_half: all of it is read"]


def test_no_reader_is_left(make: Make) -> None:
    node = make({"x_good": GOOD})
    node.cycle()
    node.collector.close()
    deadline = time.monotonic() + 120
    while (left := _readers()) and time.monotonic() < deadline:  # a killed one takes a moment
        time.sleep(0.01)
    assert left == []


def _readers() -> list[str]:
    """Names of readers among this process's children, dead ones that nobody has reaped aside."""
    names = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            if fields["Name"].startswith("rd-") and not fields["State"].startswith("Z"):
                names.append(fields["Name"])
    return names
