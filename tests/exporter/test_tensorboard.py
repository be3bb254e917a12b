"""The bridge over real event files, which another hand writes while it is read."""

from __future__ import annotations

import contextlib
import http.server
import json
import math
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import NoData
from raydiag.exporter import event_paths, event_steps
from raydiag.exporter.plugins import State, load
from raydiag.exporter.plugins import tensorboard as bridge
from raydiag.host import Host
from raydiag.model import Unread
from tests.tsdb import eventfiles as files
from tests.tsdb import promtool

pytestmark = pytest.mark.slow

HERE = os.uname().nodename.split(".")[0]
TAGS = ("learning/loss", "perf/step_time_seconds")


class Every10Seconds(bridge._Cycle):
    """Cycles of the tests follow each other at once, and count as if they did not."""

    def passed(self, now: float) -> None:
        super().passed(now if self._last is None else self._last + 10.0)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bridge.DIRECTORY, str(tmp_path))
    for name in ("NODE_RANK", event_paths.HOST, "RAYDIAG_JOB_START", "SLURM_JOB_START_TIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(event_paths, "_RESCAN_S", -1.0)
    monkeypatch.setattr(bridge, "_cycle", Every10Seconds())


def step(number: int, at: float, loss: float = 2.5, tags: Iterable[str] = TAGS) -> bytes:
    """All scalars of a step, one event each, as training writes them."""
    events = [
        files.event(at + 1e-4 * n, number, [files.scalar(tag, loss)]) for n, tag in enumerate(tags)
    ]
    return b"".join(map(files.record, events))


def header(created: float) -> bytes:
    return files.record(files.event(created, 0, ()))


def file(directory: Path, content: bytes, created: float | None = None, host: str = HERE) -> Path:
    path = directory / f"events.out.tfevents.{int(created or time.time())}.{host}"
    path.write_bytes(header(time.time()) + content)
    return path


class Exporter:
    """Cycles of the plugin; what it keeps goes through JSON, as on the way through its reader."""

    def __init__(self) -> None:
        self.state: Mapping[str, Any] = {}
        self.unread: list[Unread] = []
        self.stamps: set[int | None] = set()

    def cycle(self) -> dict[str, float]:
        """Values by metric; {} where the plugin has nothing."""
        values: dict[str, float] = {}
        self.unread, self.stamps = [], set()
        try:
            for item in load("tensorboard").function(Host(), state=self.state):
                if isinstance(item, State):
                    self.state = json.loads(json.dumps(item.values, allow_nan=False))
                elif isinstance(item, Unread):
                    self.unread.append(item)
                else:
                    assert item.labels == {}
                    assert item.name not in values
                    values[item.name] = item.value
                    self.stamps.add(item.timestamp_ms)
        except NoData:
            return {}
        return values

    def steps(self, cycles: int) -> list[float]:
        return [self.cycle().get("tb_step", -1.0) for _ in range(cycles)]

    @property
    def stamp_s(self) -> float:
        (stamp,) = self.stamps
        assert stamp is not None
        return stamp / 1000


@pytest.fixture
def exporter() -> Exporter:
    return Exporter()


def test_a_step_is_handed_out_whole_at_its_own_time(tmp_path: Path, exporter: Exporter) -> None:
    at = time.time() - 20
    file(tmp_path, step(7, at, 2.5, [*TAGS, "learning/grad norm-2"]))
    assert exporter.cycle() == {
        "tb_step": 7,
        "tb_learning_loss": 2.5,
        "tb_perf_step_time_seconds": 2.5,
        "tb_learning_grad_norm_2": 2.5,
        "tb_metrics_plugin_staleness_fill": 0,
    }
    assert exporter.stamp_s == math.floor(at * 1000) / 1000


def test_steps_that_come_at_once_are_handed_out_one_by_one(
    tmp_path: Path, exporter: Exporter
) -> None:
    now = time.time()
    path = file(tmp_path, b"".join(step(n, now - 200 + 15 * n) for n in range(6)))
    assert exporter.steps(4) == [0, 1, 2, 3]
    with path.open("ab") as stream:
        stream.write(b"".join(step(n, now - 200 + 15 * n) for n in range(6, 9)))
    assert exporter.steps(7) == [4, 5, 6, 7, 8, 8, 8]
    assert exporter.unread == []


def test_after_a_restart_it_goes_on_where_it_was(tmp_path: Path, exporter: Exporter) -> None:
    now = time.time()
    file(tmp_path, b"".join(step(n, now - 200 + 15 * n) for n in range(6)))
    assert exporter.steps(3) == [0, 1, 2]
    again = Exporter()
    again.state = exporter.state
    assert again.steps(1) == [3]
    # A new process shows the last one once more, for the scrape that may have missed it.
    again.state = {**again.state, "exporter": 1}
    assert again.steps(4) == [3, 4, 5, 5]


@pytest.mark.parametrize(
    "state", [{"offsets": 3}, {"shown": [1]}, {"stamp_ms": "x"}, {"since": "x"}]
)
def test_a_damaged_state_is_no_obstacle(
    tmp_path: Path, exporter: Exporter, state: dict[str, Any]
) -> None:
    file(tmp_path, step(7, time.time() - 20))
    exporter.state = {"directory": str(tmp_path), **state}
    assert exporter.steps(1) == [7]


def test_a_step_is_not_taken_half(tmp_path: Path, exporter: Exporter) -> None:
    now = time.time()
    whole = step(1, now - 60) + step(2, now - 40)
    path = file(tmp_path, b"")
    begun = path.read_bytes()
    first = len(step(1, now - 60))
    for cut in range(first, len(whole)):
        path.write_bytes(begun + whole[:cut])
        seen = Exporter()
        found = seen.cycle()
        # Where the cut is on a record's end, it cannot be seen, and old scalars count as all.
        on_end = cut in (first, first + len(whole[first:]) // 2)
        assert found.get("tb_step") in ({1, 2} if on_end else {None, 1})
        assert len(found) in (0, 4)
    path.write_bytes(begun + whole)
    assert exporter.steps(3) == [1, 2, 2]


def test_a_step_that_was_just_written_waits_for_its_other_scalars(
    tmp_path: Path, exporter: Exporter
) -> None:
    path = file(tmp_path, step(1, time.time() - 60) + step(2, time.time() + 30, tags=TAGS[:1]))
    assert exporter.steps(2) == [1, 1]
    with path.open("ab") as stream:
        stream.write(step(2, time.time() + 30, tags=TAGS[1:]) + step(3, time.time() + 40))
    found = exporter.cycle()
    assert found["tb_step"] == 2
    assert set(found) >= {"tb_learning_loss", "tb_perf_step_time_seconds"}


def test_a_quiet_file_is_repeated_behind_what_the_writer_may_still_hold(
    tmp_path: Path, exporter: Exporter
) -> None:
    at = time.time() - 290
    path = file(tmp_path, step(7, at))
    assert exporter.cycle()["tb_metrics_plugin_staleness_fill"] == 0
    filled = exporter.cycle()
    assert filled["tb_metrics_plugin_staleness_fill"] == 1
    assert (filled["tb_step"], filled["tb_learning_loss"]) == (7, 2.5)
    assert exporter.stamp_s == pytest.approx(at + 150, abs=0.002)
    assert exporter.cycle() == filled  # the next one is not due
    with path.open("ab") as stream:
        stream.write(step(8, at + 170) + step(9, at + 185))
    assert exporter.cycle()["tb_metrics_plugin_staleness_fill"] == 0
    assert exporter.stamp_s == pytest.approx(at + 170, abs=0.002)


def test_a_step_later_than_a_repetition_is_not_lost(tmp_path: Path, exporter: Exporter) -> None:
    at = time.time() - 290
    path = file(tmp_path, step(7, at))
    exporter.steps(2)
    filled_at = exporter.stamp_s
    with path.open("ab") as stream:
        stream.write(step(8, at + 100))
    assert exporter.steps(1) == [8]
    assert exporter.stamp_s == pytest.approx(filled_at + 0.001, abs=1e-4)


def test_after_a_short_rest_nothing_is_repeated(tmp_path: Path, exporter: Exporter) -> None:
    file(tmp_path, step(7, time.time() - 270))
    assert [exporter.cycle()["tb_metrics_plugin_staleness_fill"] for _ in range(3)] == [0, 0, 0]


def test_what_prometheus_would_refuse_is_left_out_and_counted(
    tmp_path: Path, exporter: Exporter
) -> None:
    now = time.time()
    path = file(tmp_path, step(0, now - 100))
    assert exporter.steps(1) == [0]
    with path.open("ab") as stream:
        stream.write(b"".join(step(n, now - 3400 + 300 * n) for n in range(1, 4)))
    assert exporter.steps(1) == [2]
    (said,) = exporter.unread
    assert said.source == str(path)
    assert said.reason.startswith("1 steps were too old")


def test_history_is_neither_shown_nor_complained_of(
    tmp_path: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    file(tmp_path, b"".join(step(n, now - 9000 + n) for n in range(30)), created=now - 9100)
    assert exporter.cycle() == {}
    assert exporter.unread == []
    # With the start of the job it is no history: the job hangs, and its last step is repeated.
    monkeypatch.setenv("RAYDIAG_JOB_START", str(now - 9200))
    shown = Exporter().cycle()
    assert (shown["tb_step"], shown["tb_metrics_plugin_staleness_fill"]) == (29, 1)


def test_steps_faster_than_cycles_stay_ten_minutes_behind_at_most(
    tmp_path: Path, exporter: Exporter
) -> None:
    now = time.time()
    path = file(tmp_path, step(0, now - 1999))
    exporter.cycle()
    with path.open("ab") as stream:
        stream.write(b"".join(step(n, now - 2000 + 2 * n) for n in range(1, 1000)))
    first = exporter.cycle()["tb_step"]
    assert 698 <= first <= 705
    assert "steps were too old" in exporter.unread[0].reason
    assert exporter.steps(2) == [first + 1, first + 2]


def test_the_distance_of_cycles_is_measured() -> None:
    cycle = bridge._Cycle()
    for n in range(60):
        cycle.passed(1000.0 + 15 * n)
    assert cycle.length_s == pytest.approx(15, abs=0.1)
    cycle.passed(1e6)  # the machine slept
    assert cycle.length_s < 30


def test_slow_steps_are_all_handed_out_however_late(tmp_path: Path, exporter: Exporter) -> None:
    now = time.time()
    file(tmp_path, b"".join(step(n, now - 2900 + 60 * n) for n in range(48)))
    assert exporter.steps(48) == list(range(48))
    assert exporter.unread == []


@pytest.mark.parametrize("steps", [200, 1500])
def test_of_a_long_file_it_begins_where_prometheus_would_take_it(
    tmp_path: Path, exporter: Exporter, steps: int
) -> None:
    """Every 10 s a step of some 700 bytes: the last 50 minutes are a part of the longer file."""
    now = time.time()
    tags = [f"learning/tag_{n}" for n in range(12)]
    one = step(0, 0.0, tags=tags)
    assert 600 < len(one) < 900
    file(tmp_path, b"".join(step(n, now + 5 - 10 * (steps - n), tags=tags) for n in range(steps)))
    first = max(0, steps - 300)
    assert exporter.steps(3) == [first, first + 1, first + 2]
    assert exporter.unread == []


# ---- whose files


def test_only_this_hosts_files_count(tmp_path: Path, exporter: Exporter) -> None:
    at = time.time() - 30
    file(tmp_path, step(1, at), host=f"{HERE}2")
    file(tmp_path, step(2, at), host=f"x{HERE}")
    file(tmp_path, step(3, at), host=f"{HERE[:-1]}")
    assert exporter.cycle() == {}
    file(tmp_path, step(4, at), host=f"{HERE}.cluster.local.4711.0.v2")
    assert exporter.steps(1) == [4]


def test_a_pods_name_or_the_name_given_by_the_user(
    tmp_path: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(tmp_path, step(4, time.time() - 30), host="worker-7")
    assert exporter.cycle() == {}
    monkeypatch.setenv(event_paths.HOST, "worker-7")
    assert exporter.steps(1) == [4]


def test_other_jobs_files_of_a_shared_directory(
    tmp_path: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    file(tmp_path, step(900, now - 50), created=now - 5000)
    file(tmp_path, step(1, now - 40), created=now - 1000)
    file(tmp_path, step(2, now - 30), created=now - 500)
    assert exporter.steps(2) == [2, 2]  # nothing known: the newest
    monkeypatch.setenv("SLURM_JOB_START_TIME", str(int(now) - 1000))
    assert Exporter().steps(3) == [1, 2, 2]


def test_files_that_follow_each_other_and_directories_below(
    tmp_path: Path, exporter: Exporter
) -> None:
    now = time.time()
    below = tmp_path / "run" / "tensorboard"
    below.mkdir(parents=True)
    (tmp_path / "1200").mkdir()
    file(tmp_path / "1200", step(99, now - 60), created=now)  # in a checkpoint
    first = file(below, step(1, now - 60) + step(2, now - 45), created=now - 100)
    assert exporter.steps(1) == [1]
    file(below, step(3, now - 30) + step(4, now - 15), created=now)
    assert exporter.steps(4) == [2, 3, 4, 4]
    first.unlink()
    assert exporter.steps(1) == [4]


def test_a_file_that_was_cut_and_is_written_anew(tmp_path: Path, exporter: Exporter) -> None:
    now = time.time()
    path = file(tmp_path, step(1, now - 60) + step(2, now - 50))
    assert exporter.steps(3) == [1, 2, 2]
    path.write_bytes(step(1, now - 20))
    assert exporter.steps(1) == [1]


@pytest.mark.parametrize("rank", ["1", "15"])
def test_other_ranks_have_none(
    tmp_path: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    file(tmp_path, step(1, time.time() - 60))
    monkeypatch.setenv("NODE_RANK", rank)
    assert exporter.cycle() == {}
    monkeypatch.setenv("NODE_RANK", "0")
    assert exporter.steps(1) == [1]


def test_without_a_directory_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(bridge.DIRECTORY)
    with pytest.raises(NoData, match="--tensorboard-dir"):
        list(load("tensorboard").function(Host(), state={}))
    monkeypatch.setenv(bridge.DIRECTORY, "/nonexistent/tensorboard")
    with pytest.raises(NoData, match="/nonexistent/tensorboard"):
        list(load("tensorboard").function(Host(), state={}))


# ---- damage


def test_a_damaged_record_costs_itself(tmp_path: Path, exporter: Exporter) -> None:
    now = time.time()
    bad = bytearray(step(2, now - 40))
    bad[20] ^= 0xFF  # content of its first record
    file(tmp_path, step(1, now - 60) + bytes(bad) + step(3, now - 20))
    assert exporter.steps(1) == [1]
    assert "tb_learning_loss" not in exporter.cycle()  # step 2 has its other scalar
    assert exporter.steps(1) == [3]


def test_behind_a_damaged_length_it_goes_on(tmp_path: Path, exporter: Exporter) -> None:
    now = time.time()
    path = file(tmp_path, step(1, now - 60) + b"\xff" * 100_000 + step(3, now - 20))
    assert exporter.steps(1) == [1]
    assert exporter.steps(2) == [3, 3]
    with path.open("ab") as stream:
        stream.write(bytes(4000))  # a hole, as a network file system shows it
    assert exporter.steps(1) == [3]
    with path.open("ab") as stream:
        stream.write(step(4, now - 10))
    assert exporter.steps(1) == [4]


def test_damage_that_goes_on_for_long_does_not_stop_it(tmp_path: Path, exporter: Exporter) -> None:
    now = time.time()
    file(tmp_path, step(1, now - 60) + b"\xff" * (5 << 20) + step(3, now - 20))
    exporter.state = {"directory": str(tmp_path), "since": 0, "offsets": {}}
    seen = [found for found in exporter.steps(12) if found >= 0]
    assert seen[-1] == 3


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not an event file at all\n" * 50, id="text"),
        pytest.param(bytes(100_000), id="zeros"),
        pytest.param(os.urandom(100_000), id="noise"),
        pytest.param(files.record(b"\x09half"), id="no-event"),
        pytest.param(struct.pack("<Q", 1 << 62), id="a-length-alone"),
    ],
)
def test_anything_may_stand_in_a_file(tmp_path: Path, exporter: Exporter, content: bytes) -> None:
    path = tmp_path / f"events.out.tfevents.{int(time.time())}.{HERE}"
    path.write_bytes(content)
    assert exporter.cycle() == {}
    assert exporter.cycle() == {}


def test_pictures_texts_and_too_many_tags(tmp_path: Path, exporter: Exporter) -> None:
    now = time.time()
    large = files.record(files.event(now - 50, 1, [files.scalar("x", 1.0)]) + bytes(600_000))
    text = files.tensor("run/text_summary", 7, files.message(8, b"hello"))
    many = step(2, now - 20, tags=[f"t/{n}" for n in range(700)])
    tf2 = files.tensor("perf/tf2", 1, files.message(4, struct.pack("<f", 4.0)))
    one = files.record(files.event(now - 60, 1, [text, tf2, files.scalar("step", 8.0)]))
    file(tmp_path, one + large + many + step(3, now - 10))
    found = exporter.cycle()
    assert found["tb_perf_tf2"] == 4.0
    assert found["tb_step"] == 1  # not the scalar of that name
    assert not any("text" in name for name in found)
    assert len(exporter.cycle()) == 502


def test_values_that_are_no_numbers_survive_the_state(tmp_path: Path, exporter: Exporter) -> None:
    file(tmp_path, step(1, time.time() - 60, math.nan) + step(2, time.time() - 30, math.inf))
    assert math.isnan(exporter.cycle()["tb_learning_loss"])
    assert exporter.cycle()["tb_learning_loss"] == math.inf
    assert exporter.cycle()["tb_learning_loss"] == math.inf


def test_times_out_of_this_world_do_not_stop_the_rest(tmp_path: Path, exporter: Exporter) -> None:
    now = time.time()
    odd = b"".join(step(n, at) for n, at in enumerate([math.nan, 1e300, -5.0, math.inf, 0.0]))
    file(tmp_path, odd + step(7, now - 30))
    assert exporter.steps(1) == [7]
    assert abs(exporter.stamp_s - (now - 30)) < 1


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.lists(st.integers(0, 3000), max_size=6),
)
def test_every_step_comes_once_and_in_order_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], cuts: list[int]
) -> None:
    """Read from the place where the last step ended, with the file cut at any byte in between."""
    now = 1_795_300_000.0
    times = [now - 1000 + sum(gaps[: n + 1]) for n in range(len(gaps))]
    content = header(now) + b"".join(step(n, at) for n, at in enumerate(times))
    path = tmp_path_factory.mktemp("grows") / "file"
    offset, seen = 0, []
    for cut in [*sorted(min(one, len(content)) for one in cuts), len(content)]:
        path.write_bytes(content[:cut])
        fd = os.open(path, os.O_RDONLY)
        while True:
            # As if all were new: no step is taken for complete before the next one has begun.
            part = event_steps.read(fd, offset, now - 1000 if cut < len(content) else now)
            offset = part.steps[0].end if part.steps else part.start
            if not part.steps:
                break
            seen.append((part.steps[0].number, len(part.steps[0].values)))
        os.close(fd)
    assert seen == [(n, len(TAGS)) for n in range(len(times))]


# ---- into a real Prometheus


def test_prometheus_has_every_step_at_its_time_and_the_repetition(
    tmp_path: Path, exporter: Exporter
) -> None:
    """One cycle for each scrape; steps come in blocks, as writers flush them."""
    now = time.time()
    directory = tmp_path / "tensorboard"
    directory.mkdir()
    times = [now - 700 + 20 * n for n in range(12)]
    path = file(directory, b"".join(step(n, times[n], 9.0 - n) for n in range(7)))
    pages: list[str] = []

    def page() -> str:
        if len(pages) == 4:
            with path.open("ab") as stream:
                stream.write(b"".join(step(n, times[n], 9.0 - n) for n in range(7, 12)))
        found = exporter.cycle()
        lines = [f'{k}{{host="a"}} {v!r} {exporter.stamp_s * 1000:.0f}' for k, v in found.items()]
        pages.append("".join(f"{line}\n" for line in lines))
        return pages[-1]

    with scraped(page, tmp_path / "data") as ask:
        wait_for(lambda: len(pages) > 14)
        samples = ask('tb_step{host="a"}[1h]')
        losses = ask("tb_learning_loss[1h]")
        fills = ask("tb_metrics_plugin_staleness_fill[1h]")
    assert [value for _, value in samples] == [*map(float, range(12)), 11.0]
    assert [at for at, _ in samples[:12]] == pytest.approx(times, abs=0.002)
    assert [value for _, value in losses[:12]] == [9.0 - n for n in range(12)]
    assert [value for _, value in fills] == [0.0] * 12 + [1.0]
    assert times[11] + 150 <= fills[-1][0] < now - 100


@contextlib.contextmanager
def scraped(page: Callable[[], str], data: Path) -> Iterator[Callable[[str], list[Any]]]:
    """A Prometheus that scrapes `page`; gives how to ask it for the samples of one series."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Be quiet."""

    program = promtool.program("prometheus")
    target = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=target.serve_forever, daemon=True).start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = data.parent / "prometheus.yml"
    config.write_text(
        "scrape_configs:\n- job_name: node_hw\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{target.server_address[1]}']}}]\n"
    )
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={data}"]
    server = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def ask(query: str) -> list[Any]:
        url = f"http://127.0.0.1:{port}/api/v1/query"
        answer = requests.get(url, {"query": query}, timeout=20).json()
        (series,) = answer["data"]["result"]
        return [(at, float(value)) for at, value in series["values"]]

    try:
        yield ask
    finally:
        server.kill()
        server.wait(20)
        target.shutdown()
        target.server_close()


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)
