"""A server is asked in our names, whatever exporters its nodes have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from raydiag.catalog.series import Dialect, dialects
from raydiag.model import Status
from raydiag.tsdb import dialects as dialects_module
from raydiag.tsdb.client import Client, Metadata
from raydiag.tsdb.dialects import TranslatingClient
from raydiag.tsdb.rewriting import selector
from raydiag.tsdb.series import Query, QueryResult, Series

Row = Mapping[str, str]


def dcgm(number: int, metric: str = "DCGM_FI_DEV_GPU_TEMP") -> Row:
    host = {"Hostname": f"n{number}.example.org", "instance": f"10.0.0.{number}:9400"}
    return {"__name__": metric, "gpu": "0", "device": "nvidia0", "job": "dcgm", **host}


def uname(number: int) -> Row:
    instance = f"10.0.0.{number}:9100"
    return {"__name__": "node_uname_info", "nodename": f"n{number}", "instance": instance}


def own(number: int, metric: str = "hw_gpu_power_watts") -> Row:
    return {"__name__": metric, "host": f"n{number}", "instance": f"n{number}:9400", "gpu": "0"}


class Server:
    """What a Prometheus with these series says, and what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: list[str], rows: list[Row]) -> None:
        self.names, self.rows = names, rows
        self.calls: list[str] = []
        self.matched: list[str] = []
        self.answers: list[Row] = []
        monkeypatch.setattr(Client, "metadata", self._metadata)
        monkeypatch.setattr(Client, "ask_all", self._ask_all)
        self.client = TranslatingClient("http://127.0.0.1:1")

    def _metadata(self, path: str, parameters: Mapping[str, Any] | None = None) -> Metadata:
        self.calls.append(path)
        if path != "series":
            return Metadata(Status.OK, "", self.names)
        self.matched = (parameters or {})["match[]"]
        units = [selector(text) for text in self.matched]
        found = [row for row in self.rows if any(unit.selects(row) for unit in units)]
        return Metadata(Status.OK, "", found)

    def _ask_all(self, queries: list[Query], *_: object) -> dict[str, QueryResult]:
        queries = list(queries)
        self.asked = [query.promql for query in queries]
        series = tuple(Series.of(labels, [1.0, 2.0], [3.0, 4.0]) for labels in self.answers)
        return {query.id: QueryResult(query, Status.OK, "", series) for query in queries}

    def query(self, text: str) -> str:
        """What the server is asked instead."""
        self.answer = self.client.ask_all([Query.at("q", text, 2.0)])["q"]
        (asked,) = self.asked
        return asked


def cluster(monkeypatch: pytest.MonkeyPatch, *more: Row, names: tuple[str, ...] = ()) -> Server:
    """Two hosts with dcgm-exporter and node_exporter, and what there is besides."""
    rows = [dcgm(1), dcgm(2), uname(1), uname(2), *more]
    without_rows = [
        *("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_FB_USED"),
        *("node_procs_running", "node_context_switches_total", "node_infiniband_state_id"),
        "node_pressure_io_stalled_seconds_total",
    ]
    found = {row["__name__"] for row in rows}
    return Server(monkeypatch, sorted({*without_rows, *names, *found}), rows)


def test_where_only_our_exporter_is_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, ["hw_gpu_power_watts", "up"], [own(1)])
    for text in ("max by (host) (hw_gpu_power_watts)", "rate(hw_tcp_retransmits_total[5m])"):
        assert server.query(text) == text
    assert server.calls == ["label/__name__/values"]
    assert server.client.spoken() == ()
    assert server.client.metadata("label/__name__/values").data == server.names


HOST = '"host", "$1", "instance", "(.+)"), "host", "$1", "Hostname", "(.+)"), "host", "$1", '
HOST += '"hostname", "(.+)")'
OF_NODE = '"host", "$1", "instance", "(.+)"), "host", "$1", "nodename", "(.+)")'


def of_gpu(text: str) -> str:
    nested = f"label_replace(label_replace(label_replace({text}, {HOST}"
    return f"max by (host, instance, gpu) ({nested})"


def of_node(text: str, by: str = "") -> str:
    return f"max by (host, instance{by}) (label_replace(label_replace({text}, {OF_NODE})"


def named(text: str, name: str) -> str:
    return f'label_replace({text}, "__name__", "{name}", "", "")'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "hw_gpu_power_watts",
            f"({named(of_gpu('DCGM_FI_DEV_POWER_USAGE'), 'hw_gpu_power_watts')})",
        ),
        (
            "count by (host) (count_over_time(hw_gpu_vram_used_bytes[60s]))",
            f"count by (host) (({of_gpu('count_over_time(DCGM_FI_DEV_FB_USED[60s])')}))",
        ),
        (
            "max_over_time(hw_gpu_vram_used_bytes[60s])",
            f"({of_gpu('max_over_time(DCGM_FI_DEV_FB_USED[60s]) * 1048576')})",
        ),
        (
            'hw_gpu_clock_mhz{type="sclk", host=~"n1|n9", gpu="0"} > 5',
            "("
            + named(
                "label_replace("
                + of_gpu(r'DCGM_FI_DEV_SM_CLOCK{instance=~"10\\.0\\.0\\.1:9400",gpu="0"}')
                + ', "type", "sclk", "", "")',
                "hw_gpu_clock_mhz",
            )
            + ") > 5",
        ),
        ('hw_gpu_clock_mhz{type="mclk"}', 'hw_gpu_clock_mhz{type="mclk"}'),
        ('hw_gpu_power_watts{host="n9"}', 'hw_gpu_power_watts{host="n9"}'),
        (
            "timestamp(hw_procs_running)",
            f"({of_node('timestamp(node_procs_running)')})",
        ),
        (
            "resets(hw_context_switches_total[1h])",
            f"({of_node('resets(node_context_switches_total[1h])')})",
        ),
        (
            "max_over_time(hw_io_pressure_full_pct[1h])",
            "("
            + of_node(
                "max_over_time((irate(node_pressure_io_stalled_seconds_total[5m]))[1h:15s]) * 100"
            )
            + ")",
        ),
        (
            "timestamp(hw_io_pressure_full_pct)",
            f"({of_node('timestamp(node_pressure_io_stalled_seconds_total)')})",
        ),
        (
            'count(hw_rdma_port_state{device="mlx5_0"} == 0)',
            "count(("
            + named(
                of_node('(node_infiniband_state_id{device="mlx5_0"} == bool 4)', ", device, port"),
                "hw_rdma_port_state",
            )
            + ") == 0)",
        ),
        # Whoever serves it: the time of its samples tells that an exporter lives, and no more.
        ("hw_scrape_duration_seconds", "hw_scrape_duration_seconds"),
        (
            "timestamp(hw_scrape_duration_seconds)",
            f"({of_gpu('timestamp(DCGM_FI_DEV_POWER_USAGE)')})",
        ),
    ],
)
def test_questions_in_their_names(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    assert cluster(monkeypatch).query(text) == expected


def test_several_metrics_in_one_question_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    server = cluster(monkeypatch)
    asked = server.query(
        'max by (host, __name__) ({__name__=~"hw_procs_running|hw_gpu_power_watts"})'
    )
    for name in ("hw_procs_running", "hw_gpu_power_watts"):
        assert f'"__name__", "{name}", "", "")' in asked
        assert f'"raydiag_of", "{name}", "", "")' in asked
    assert "{__name__=~" not in asked


def test_a_host_counts_once_and_in_our_words_first(monkeypatch: pytest.MonkeyPatch) -> None:
    server = cluster(monkeypatch, own(1), own(3))
    asked = server.query("sum by (host) (hw_gpu_power_watts)")
    assert asked.startswith("sum by (host) ((hw_gpu_power_watts or label_replace(")
    assert r'DCGM_FI_DEV_POWER_USAGE{instance!~"10\\.0\\.0\\.1:9400"}' in asked
    # Of what ours does not say there, theirs does.
    assert "instance!~" not in server.query("hw_procs_running")
    assert "DCGM" not in server.query('hw_gpu_power_watts{host="n1"}')


def test_answers_have_our_names_of_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    server = cluster(monkeypatch)
    server.answers = [{"host": "10.0.0.1:9100"}, {"host": "n2.example.org", "raydiag_of": "x"}]
    server.query("hw_procs_running")
    assert [series.labels for series in server.answer.series] == [{"host": "n1"}, {"host": "n2"}]
    assert server.answer.query.promql == "hw_procs_running"


def test_an_exporter_that_has_moved_stays_one_series(monkeypatch: pytest.MonkeyPatch) -> None:
    server = cluster(monkeypatch)
    server.answers = [{"host": "10.0.0.1:9100"}, {"host": "n1.example.org"}]
    server.query("max by (host) (hw_procs_running)")
    (series,) = server.answer.series
    assert series.labels == {"host": "n1"} and series.times.tolist() == [1.0, 2.0]


def test_of_two_exporters_of_a_host_the_one_that_lives_tells_so() -> None:
    stopped = Series.of({"host": "n1"}, [1.0, 2.0, 3.0], [10.0, 10.0, np.nan])
    alive = Series.of({"host": "n1"}, [2.0, 3.0, 4.0], [20.0, 30.0, 40.0])
    joined = dialects_module._joined([stopped, alive])
    assert joined.times.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert joined.values.tolist() == [10.0, 20.0, 30.0, 40.0]


def test_raw_samples_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    server = cluster(monkeypatch, own(3))
    server.answers = [dcgm(1, "DCGM_FI_DEV_FB_USED"), own(3)]
    text = '{__name__=~"hw_gpu_vram_used_bytes|hw_gpu_power_watts",instance=~"|x"}[5m]'
    asked = server.query(text)
    names = "DCGM_FI_DEV_FB_USED|DCGM_FI_DEV_POWER_USAGE|hw_gpu_power_watts"
    assert asked == f'{{__name__=~"{names}",instance=~"|x"}}[5m]'
    theirs, ours = server.answer.series
    assert theirs.metric == "hw_gpu_vram_used_bytes" and theirs.labels["host"] == "n1"
    assert theirs.values.tolist() == [3.0 * 2**20, 4.0 * 2**20]
    assert ours.labels == own(3)


def test_metrics_and_series_are_listed_in_our_names(monkeypatch: pytest.MonkeyPatch) -> None:
    server = cluster(monkeypatch, {"__name__": "go_threads", "instance": "10.0.0.1:9100"})
    names = server.client.metadata("label/__name__/values").data
    assert {"hw_gpu_power_watts", "hw_procs_running", "go_threads"} <= set(names)
    assert not any(name.startswith(("DCGM_FI_DEV_P", "node_")) for name in names)
    server.rows.append(dcgm(1, "DCGM_FI_DEV_POWER_USAGE"))
    match = {"match[]": ["hw_gpu_power_watts", "go_threads"]}
    rows = server.client.metadata("series", match).data
    assert server.matched == ["DCGM_FI_DEV_POWER_USAGE", "go_threads"]
    power = {"__name__": "hw_gpu_power_watts", "host": "n1", "gpu": "0"}
    assert power | {"instance": "10.0.0.1:9400"} in rows and len(rows) == 2


def test_hosts_by_address_where_no_label_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = {"__name__": "ray_node_mem_used", "ip": "10.0.0.7", "instance": "n7:8080"}
    nameless = {**dcgm(7), "Hostname": "dcgm-exporter-x7k2p"}
    server = cluster(monkeypatch, ray, nameless)
    server.query("hw_gpu_power_watts")
    (spoken, _) = server.client.spoken()
    assert spoken.hosts == ("n1", "n2", "n7")


def test_rays_hosts_are_named_by_their_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = {"__name__": "ray_node_gpus_utilization", "ip": "10.9.0.8", "instance": "10.9.0.8:80"}
    named = {**dcgm(8), "instance": "n8.example.org:9400", "UUID": "GPU-1"}
    server = cluster(monkeypatch, {**ray, "GpuUuid": "GPU-1"}, named)
    server.query("up")
    assert server.client.addresses["10.9.0.8"] == "n8"


def test_names_that_an_exporter_is_set_up_to_begin_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = {"hostname": "n5", "gpu_id": "0", "instance": "10.0.0.5:5000"}
    vram = {"__name__": "amd_gpu_total_vram", **row}
    server = cluster(monkeypatch, vram, names=("amd_gpu_clock",))
    asked = server.query("rate(hw_gpu_clock_mhz[5m])")
    assert 'rate(amd_gpu_clock{clock_type=~"system|GPU_CLOCK_TYPE_SYSTEM"}[5m])' in asked


def test_what_is_used_and_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    server = cluster(monkeypatch)
    server.query("up")
    gpus, hosts = server.client.spoken()
    assert (gpus.name, hosts.name) == ("dcgm", "node")
    assert gpus.used["hw_gpu_power_watts"] == "DCGM_FI_DEV_POWER_USAGE"
    assert "hw_gpu_ras_umc_ue_total" in gpus.lacking and "hw_oom_kills_total" in hosts.lacking


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["node_infiniband_np_cnp_packets_sent_total"], "np_cnp"),
        (["node_infiniband_rp_cnp_packets_handled_total"], "rp_cnp"),
    ],
)
def test_congestion_is_seen_from_either_end(names: list[str], expected: str) -> None:
    node = next(dialect for dialect in dialects() if dialect.name == "node")
    series = next(row for row in node.series if row.metric == "hw_rdma_rx_cnp_pkts_total")
    assert [expected in part for part in series.answerable(names)] == [True]


@pytest.mark.parametrize("dialect", dialects(), ids=lambda dialect: dialect.markers[0])
def test_every_expression_of_the_table_can_be_given_matchers(dialect: Dialect) -> None:
    for foreign in dialect.series:
        assert dialect.labels.keys() >= set(foreign.by)
        for expression in foreign.read:
            assert foreign.names(expression)
            measured, first = foreign.measured(expression, ['a="b"'])
            assert measured.count('a="b"') == len(foreign.names(expression))
            assert first in measured


def test_an_address_of_every_machine_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporters behind tunnels: `localhost:9401` is one host, `localhost:9402` another."""
    tunnels: list[Row] = [
        {**uname(number), "instance": f"127.0.0.1:910{number}", "nodename": f"n{number}"}
        for number in (1, 2)
    ]
    server = Server(monkeypatch, ["node_uname_info", "node_procs_running"], tunnels)
    server.answers = [
        {"instance": "127.0.0.1:9101", "host": "n1"},
        {"instance": "127.0.0.1:9102", "host": "n2"},
    ]
    server.query("hw_procs_running")
    assert server.client.addresses == {}
    assert {series.labels["host"] for series in server.answer.series} == {"n1", "n2"}
