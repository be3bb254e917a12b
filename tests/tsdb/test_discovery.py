from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from raydiag.errors import CannotRun
from raydiag.model import Window
from raydiag.tsdb import time_bounds
from raydiag.tsdb.connection import connect, open_directory
from raydiag.tsdb.discovery import discover
from raydiag.tsdb.discovery_types import Discovery, short_name
from raydiag.tsdb.families import family_of
from raydiag.tsdb.series import Query
from tests.tsdb import promtool, samples
from tests.tsdb.conftest import Live
from tests.tsdb.promtool import OneSeries

pytestmark = pytest.mark.slow


def look(data: Path, expected: Sequence[str] = samples.HOSTS, **more: object) -> Discovery:
    with open_directory(str(data)) as found:
        return discover(found, time.time(), expected, **more)  # type: ignore[arg-type]


def made(tmp_path: Path, series: Sequence[OneSeries]) -> Path:
    return promtool.write_blocks(series, tmp_path / "12-made" / "prometheus")


def test_families_with_their_hosts(data: Path) -> None:
    seen = look(data)
    assert {one.prefix: len(one.metrics) for one in seen.families} == {
        "hw_gpu_": 1,
        "hw_tcp_": 1,
        "hw_": 1,
        "ray_node_": 1,
        "tb_": 3,
        "up": 1,
    }
    for one in seen.families:
        assert one.hosts == (("mi10",) if one.prefix == "tb_" else samples.HOSTS)
    assert seen.has("tb_step") and not seen.has("tb_other")
    assert seen.family("hw_rdma_") is None


def test_times_resolution_refresh_and_lag(data: Path) -> None:
    seen = look(data)
    assert seen.window == Window(samples.START, samples.END)
    gpu, ray, training = seen.family("hw_gpu_"), seen.family("ray_node_"), seen.family("tb_")
    assert gpu is not None and ray is not None and training is not None
    assert (gpu.resolution_s, gpu.lag_s) == (10, 0)
    # Scraped every ten seconds, renewed once a minute: an onset is known to a minute.
    assert (ray.resolution_s, ray.refresh_s, ray.uncertainty_s) == (10, 60, 60)
    assert training.last == samples.START + 120.25 + 390 + 40
    assert training.lag_s == samples.END - training.last
    assert training.first is not None and 0 <= training.first - (samples.START + 120.25) <= 15


def test_hosts_under_all_their_names(data: Path) -> None:
    seen = look(data)
    head = seen.host("mi10")
    assert head is not None
    assert head.instances == ("mi10:55080", "mi10:9400")
    assert head.ips == ("10.9.0.0",) and head.is_head and head.gpus == 2
    for labels in ({"host": "mi11"}, {"instance": "mi11:55080"}, {"ip": "10.9.0.1"}):
        assert seen.host_of(labels) == "mi11"
    assert seen.host_of({"instance": "new.example.org:9400"}) == "new"
    assert seen.host_of({"device": "eth0"}) is None


def test_series_of_ray_are_selected_by_instance(data: Path) -> None:
    with open_directory(str(data)) as found:
        seen = discover(found, time.time())
        for metric in ("ray_node_mem_used", "hw_scrape_duration_seconds", "up"):
            text = seen.select(metric, ["mi11", "mi12"])
            answer = found.client.ask(Query.at(metric, text, samples.END))
            assert {seen.host_of(one.labels) for one in answer.series} == {"mi11", "mi12"}


def test_missing_and_foreign_hosts(data: Path) -> None:
    seen = look(data, ["mi10.example.org", "mi11", "mi77"])
    assert seen.missing == ("mi77",) and seen.foreign == ("mi12",)
    assert [one.host for one in seen.coverage.blind] == ["mi77"]
    assert (seen.coverage.asked, seen.coverage.answered) == (3, 2)
    assert not seen.coverage.complete


def test_fewer_names_than_nodes(data: Path) -> None:
    assert len(look(data, (), nnodes=5).coverage.blind) == 2
    assert look(data, (), nnodes=3).coverage.complete


def test_a_host_that_stops_early_and_one_that_comes_late(
    tmp_path: Path, needs_prometheus: None
) -> None:
    series = samples.job(until={"mi11": 20})
    late = [(t, 1.0) for t in samples.times(20, samples.START + 400)]
    series.append(("hw_scrape_duration_seconds", {"host": "late"}, late))
    seen = look(made(tmp_path, series))
    stopped, late_one = seen.host("mi11"), seen.host("late")
    assert stopped is not None and late_one is not None
    for prefix in ("hw_", "ray_"):
        sight = stopped.sample_range(prefix)
        assert sight is not None and sight.last == samples.START + 190
    sight = late_one.sample_range("hw_")
    assert sight is not None and 0 <= sight.first - (samples.START + 400) <= 15
    assert late_one.sample_range("ray_") is None


def test_a_host_that_stopped_is_looked_for_from_the_first_sample_on(
    tmp_path: Path, needs_prometheus: None
) -> None:
    """A server that knows that a target is gone shows its samples at their own times only."""
    data = made(tmp_path, samples.job())
    bounds = Window(samples.START, samples.START + 7200)
    with open_directory(str(data)) as found:
        discover(found, time.time(), samples.HOSTS, window=bounds)
        (asked,) = [one for one in found.client.asked if one.id == "discovery-gone"]
    seconds = min(map(int, re.findall(r"\[(\d+)s:", asked.promql)))
    assert asked.end - seconds <= samples.START


def test_targets_and_how_often_they_were_up(tmp_path: Path, needs_prometheus: None) -> None:
    series = [one for one in samples.job() if one[0] != "up"]
    for host in samples.HOSTS:
        flags = [(t, float(host != "mi12" or i < 30)) for i, t in enumerate(samples.times())]
        series.append(("up", {"instance": f"{host}:9400", "job": "node_hw"}, flags))
    seen = look(made(tmp_path, series))
    assert [(one.host, one.up) for one in seen.targets] == [
        *(("mi10", True), ("mi11", True), ("mi12", False))
    ]
    assert round(seen.targets[2].share_up, 3) == round(30 / samples.COUNT, 3)


def test_rays_series_are_joined_by_address_when_the_caller_knows_it(
    tmp_path: Path, needs_prometheus: None
) -> None:
    when = [(t, 1.0) for t in samples.times()]
    series = [
        ("hw_procs_running", {"host": "a", "instance": "localhost:9400"}, when),
        ("hw_procs_running", {"host": "b", "instance": "localhost:9400"}, when),
        ("ray_node_mem_used", {"ip": "10.0.0.1", "instance": "10.0.0.1:55080"}, when),
    ]
    data = made(tmp_path, series)
    assert [one.name for one in look(data, ()).hosts] == ["10.0.0.1", "a", "b"]
    seen = look(data, ("a", "b"), addresses={"10.0.0.1": "b.example.org"})
    assert [one.name for one in seen.hosts] == ["a", "b"]
    assert seen.host_of({"ip": "10.0.0.1"}) == "b"


def test_a_live_server(live: Live) -> None:
    seen = discover(connect(live.url), time.time())
    assert [one.name for one in seen.hosts] == ["mi10"]
    assert seen.window is not None and time.time() - seen.window.end < 5
    assert [one.up for one in seen.targets] == [True]


def test_a_live_server_costs_five_questions(data: Path) -> None:
    """When it began is known to five minutes at first: nobody is taken for late because of it."""
    with open_directory(str(data)) as found:
        served = replace(found, live=True, stored=None)
        seen = discover(served, samples.END + 100, samples.HOSTS)
        asked = [one.id for one in found.client.asked]
    assert seen.window == Window(samples.START, samples.END)
    assert {one.share_up for one in seen.targets} == {1.0}
    assert asked == [
        *("discovery-oldest", "discovery-last", "discovery-first"),
        *("discovery-fine", "discovery-up"),
    ]


def test_a_live_server_with_older_samples_is_looked_through_further(
    tmp_path: Path, needs_prometheus: None
) -> None:
    """Also beyond a pause of days, in which the nearest look sees nothing older."""
    hour = [float(60 * minute) for minute in range(60)]
    long_ago = samples.START - 9 * 86_400
    points = [(start + one, 1.0) for start in (long_ago, samples.START) for one in hour]
    place = made(tmp_path, [("up", {"job": "node_hw", "instance": "mi10:9400"}, points)])
    with open_directory(str(place)) as found:
        served = replace(found, live=True, stored=None)
        seen = discover(served, samples.START + 3600)
        searched = [one.id for one in found.client.asked if "oldest" in one.id]
    assert seen.window is not None and abs(seen.window.start - long_ago) <= 60
    assert len(searched) == 3


def test_a_server_that_lists_no_metrics(live: Live) -> None:
    connection = connect(live.url)
    connection.client.url += "/nowhere"
    with pytest.raises(CannotRun, match="cannot list its metrics"):
        discover(connection, time.time())


@pytest.mark.parametrize(
    ("metric", "family"),
    [
        ("hw_gpu_power_watts", "hw_gpu_"),
        ("hw_context_switches_total", "hw_"),
        ("hw_scrape_duration_seconds", "hw_"),
        ("ray_node_mem_used", "ray_node_"),
        ("ray_tasks", "ray_"),
        ("scrape_duration_seconds", "scrape_"),
        ("go_goroutines", "other"),
    ],
)
def test_every_metric_has_its_family(metric: str, family: str) -> None:
    assert family_of(metric) == family


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"headStats": {"minTime": 1_795e9, "maxTime": 1_796e9, "numSeries": 3}}, True),
        ({"minTime": 1_795e9, "maxTime": 1_796e9}, True),
        ({"headStats": {"minTime": 1_795e9, "maxTime": 1_795e9, "numSeries": 0}}, False),
        ({"headStats": {"minTime": 2**63 - 1, "maxTime": -(2**63), "numSeries": 1}}, False),
        ({"headStats": {"minTime": 0, "maxTime": 0}}, False),
        ({"headStats": {}}, False),
        (None, False),
    ],
)
def test_the_head_may_be_empty_or_absurd(data: object, found: bool) -> None:
    assert (time_bounds.head(data) is not None) is found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mi1.example.org:9400", "mi1"),
        ("10.0.0.1:55080", "10.0.0.1"),
        ("[2001:db8::1]:9400", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("mi1", "mi1"),
        ("", ""),
    ],
)
def test_short_names(text: str, name: str) -> None:
    assert short_name(text) == name
