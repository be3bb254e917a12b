"""The registry against the table of metrics that dashboards and stored series rest on."""

from __future__ import annotations

import pytest

from raydiag.exporter import metrics
from raydiag.exporter.metrics import COUNTER, GAUGE, REGISTRY, UNTYPED

GPU, PORT, DEVICE, HOST = "gpu host", "device host port", "device host", "host"

# name, labels, type, unit; {} is filled with each of the words at the end.
TABLE = (
    ("hw_gpu_temperature_celsius", GPU, GAUGE, "°C"),
    ("hw_gpu_power_watts", GPU, GAUGE, "W"),
    ("hw_gpu_clock_mhz", "gpu host type", GAUGE, "MHz"),
    ("hw_gpu_vram_used_bytes", GPU, GAUGE, "bytes"),
    ("hw_gpu_vram_total_bytes", GPU, GAUGE, "bytes"),
    ("hw_gpu_ras_{}_ue_total", GPU, COUNTER, "errors", "umc xgmi gfx mmhub sdma"),
    ("hw_gpu_ras_{}_ce_total", GPU, COUNTER, "errors", "umc xgmi gfx mmhub sdma"),
    ("hw_gpu_pcie_{}_total", GPU, COUNTER, "errors", "correctable nonfatal fatal"),
    ("hw_net_{}_bytes_total", DEVICE, COUNTER, "bytes", "rx tx"),
    ("hw_net_{}_errors_total", DEVICE, COUNTER, "errors", "rx tx"),
    ("hw_net_{}_drop_total", DEVICE, COUNTER, "drops", "rx tx"),
    ("hw_tcp_retransmits_total", HOST, COUNTER, "segments"),
    ("hw_tcp_listen_overflows_total", HOST, COUNTER, "events"),
    ("hw_tcp_listen_drops_total", HOST, COUNTER, "events"),
    ("hw_tcp_estab_resets_total", HOST, COUNTER, "events"),
    ("hw_tcp_abort_on_timeout_total", HOST, COUNTER, "events"),
    ("hw_rdma_{}_bytes_total", PORT, COUNTER, "bytes", "rx tx"),
    ("hw_rdma_{}_pkts_total", PORT, COUNTER, "packets", "rx tx"),
    ("hw_rdma_tx_retx_{}_total", PORT, COUNTER, "{}", "bytes packets"),
    ("hw_rdma_tx_ack_timeout_total", PORT, COUNTER, "events"),
    ("hw_rdma_{}_cnp_pkts_total", PORT, COUNTER, "packets", "rx tx"),
    ("hw_rdma_req_rx_cqe_err_total", PORT, COUNTER, "errors"),
    ("hw_rdma_req_tx_retry_excd_err_total", PORT, COUNTER, "errors"),
    ("hw_rdma_port_state", PORT, GAUGE, "0/1"),
    ("hw_procs_{}", HOST, GAUGE, "processes", "running blocked"),
    ("hw_context_switches_total", HOST, COUNTER, "switches"),
    ("hw_oom_kills_total", HOST, COUNTER, "kills"),
    ("hw_mem_{}_bytes", HOST, GAUGE, "bytes", "dirty writeback"),
    ("hw_io_pressure_{}_pct", HOST, GAUGE, "%", "some full some_avg300 full_avg300"),
    ("hw_io_pressure_full_total_us", HOST, UNTYPED, "us"),
    ("hw_dmesg_gpu_errors_total", HOST, COUNTER, "lines"),
    ("hw_gpu_user_processes", HOST, GAUGE, "processes"),
    ("hw_scrape_duration_seconds", HOST, GAUGE, "s"),
    ("hw_rdma_rx_ecn_pkts_total", PORT, COUNTER, "packets"),
    ("hw_rdma_ccl_tx_retx_{}_total", PORT, COUNTER, "{}", "bytes packets"),
    ("hw_rdma_ccl_tx_ack_timeout_total", PORT, COUNTER, "events"),
    ("hw_rdma_ccl_tx_{}_total", PORT, COUNTER, "{}", "bytes packets"),
    ("hw_rdma_ccl_rx_{}_total", PORT, COUNTER, "{}", "bytes packets"),
    ("hw_rdma_rx_dup_{}_total", PORT, COUNTER, "events", "response request"),
    ("tb_step", HOST, GAUGE, "step"),
    ("tb_learning_{}", HOST, GAUGE, "", "loss grad_norm raw_grad_norm param_norm"),
    ("tb_learning_{}", HOST, GAUGE, "", "current_learning_rate moe_lb_loss mtp_loss"),
    ("tb_learning_total_weights", HOST, GAUGE, "tokens"),
    ("tb_perf_step_time_seconds", HOST, GAUGE, "s"),
    ("tb_perf_per_device_tflops", HOST, GAUGE, "TFLOP"),
    ("tb_perf_per_device_tflops_per_sec", HOST, GAUGE, "TFLOP/s"),
    ("tb_perf_per_device_tokens", HOST, GAUGE, "tokens"),
    ("tb_perf_per_device_tokens_per_sec", HOST, GAUGE, "tokens/s"),
    ("tb_metrics_plugin_staleness_fill", HOST, GAUGE, "0/1"),
)


def rows() -> dict[str, tuple[str, str, str]]:
    found = {}
    for name, labels, kind, unit, *words in TABLE:
        for word in "".join(words).split() or [""]:
            short = "pkts" if word == "packets" else word
            found[name.format(short)] = (labels, kind, unit.format(word))
    return found


@pytest.mark.parametrize("name", rows())
def test_a_metric_has_the_prescribed_labels_type_and_unit(name: str) -> None:
    metric = REGISTRY[name]
    assert (" ".join(metric.labels), metric.type, metric.unit) == rows()[name]


def test_there_are_no_others_but_the_exporters_own() -> None:
    others = {name for name in REGISTRY if not name.startswith("raydiag_exporter_")}
    assert others == set(rows())


def test_every_metric_says_what_it_is_and_where_it_comes_from() -> None:
    for name, metric in REGISTRY.items():
        assert metric.name == name
        assert metric.help.endswith(".")
        assert metric.source
        assert "host" in metric.labels
        assert list(metric.labels) == sorted(metric.labels)


def test_counters_and_only_they_end_in_total() -> None:
    for metric in REGISTRY.values():
        assert metric.name.endswith("_total") == (metric.type == COUNTER), metric.name


def test_what_differs_on_purpose_is_said() -> None:
    """Each row of the table in the docstring names metrics that exist."""
    assert metrics.__doc__ is not None
    cells = [line.split("|")[1] for line in metrics.__doc__.split("\n") if line.startswith("| hw_")]
    assert len(cells) >= 10
    for word in " ".join(cells).replace(",", " ").split():
        if word.startswith("hw_"):
            assert any(name.startswith(word.removesuffix("*")) for name in REGISTRY), word


@pytest.mark.parametrize("name", ["tb_perf_a_tag_of_tomorrow", "tb_learning_loss"])
def test_any_scalar_of_tensorboard_is_a_gauge(name: str) -> None:
    metric = metrics.metric_of(name)
    assert metric is not None
    assert (metric.name, metric.type, metric.labels) == (name, GAUGE, ("host",))


def test_other_names_are_not_ours() -> None:
    assert metrics.metric_of("hw_something_else") is None
