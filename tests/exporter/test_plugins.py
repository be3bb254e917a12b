"""All plugins over the files of a whole node: every series that is prescribed, and no other.

What is expected is computed here from the numbers that were planted, by the rules that the metrics
have had in the shell exporter; where ours differ on purpose, the difference is named.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from raydiag.exporter import plugins
from raydiag.exporter.metrics import REGISTRY, UNTYPED, Sample
from raydiag.exporter.page import MetricsPage
from raydiag.exporter.reading import NodeFiles, run
from tests.exporter import fake_sys
from tests.exporter.fake_sys import Planted

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]

BUILT_IN = (
    *("gpu_sensors", "gpu_ras", "gpu_pcie", "gpu_users", "net", "tcp", "rdma", "procs", "oom"),
    *("memory", "io_pressure", "kernel_log"),
)
# Series of ours that the shell exporter's rules do not give, and those whose value differs: the
# documented exceptions.
ONLY_OURS = {"raydiag_exporter_kernel_log_records_lost_total"}
ESTABLISHED_RESETS = "hw_tcp_estab_resets_total"  # the shell exporter's is always 0

RDMA_HARDWARE = {
    "tx_retx_bytes": "tx_rdma_retx_bytes",
    "tx_retx_pkts": "tx_rdma_retx_pkts",
    "tx_ack_timeout": "tx_rdma_ack_timeout",
    "rx_cnp_pkts": "rx_rdma_cnp_pkts",
    "tx_cnp_pkts": "tx_rdma_cnp_pkts",
    "req_rx_cqe_err": "req_rx_cqe_err",
    "req_tx_retry_excd_err": "req_tx_retry_excd_err",
    "rx_ecn_pkts": "rx_rdma_ecn_pkts",
    "ccl_tx_retx_pkts": "tx_rdma_ccl_cts_retx_pkts",
    "ccl_tx_retx_bytes": "tx_rdma_ccl_cts_retx_bytes",
    "ccl_tx_ack_timeout": "tx_rdma_ccl_cts_ack_timeout",
    "ccl_tx_pkts": "tx_rdma_ccl_cts_pkts",
    "ccl_tx_bytes": "tx_rdma_ccl_cts_bytes",
    "ccl_rx_pkts": "rx_rdma_ccl_cts_pkts",
    "ccl_rx_bytes": "rx_rdma_ccl_cts_bytes",
    "rx_dup_response": "req_rx_dup_response",
    "rx_dup_request": "resp_rx_dup_request",
}


def collected(root: Path, names: Sequence[str] = BUILT_IN) -> tuple[str, list[str]]:
    """The page of one cycle, run here in the test, and what was refused or failed."""
    page, trouble = MetricsPage("node001", 10.0), []
    files = NodeFiles(str(root))
    for name in names:
        plugin = plugins.load(name)
        for source in plugin.sources(files) if plugin.sources else [None]:
            answer = run(plugin, source, files, {})
            samples = [Sample(*sample) for sample in answer["samples"]]
            trouble += page.put(name, source or "", samples, 0.0)
            trouble += [str(item) for item in (*answer["unread"], answer["failed"]) if item]
    files.close()
    text = page.render(0.0)
    return (text.own + text.plugin_lines).decode(), trouble


def series(text: str) -> Series:
    families = text_string_to_metric_families(text)
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
    }


def prescribed(planted: Planted) -> Series:
    found: Series = {}

    def add(name: str, value: float, **labels: str) -> None:
        found[name, tuple(sorted({"host": "node001", **labels}.items()))] = value

    for gpu, held in enumerate(planted.gpus):
        at = {"gpu": str(gpu)}
        add("hw_gpu_temperature_celsius", held["temp2_input"] / 1000, **at)
        add("hw_gpu_power_watts", held["power1_input"] / 1_000_000, **at)
        add("hw_gpu_clock_mhz", held["freq1_input"] / 1_000_000, type="sclk", **at)
        add("hw_gpu_clock_mhz", held["freq2_input"] / 1_000_000, type="mclk", **at)
        add("hw_gpu_vram_used_bytes", held["mem_info_vram_used"], **at)
        add("hw_gpu_vram_total_bytes", held["mem_info_vram_total"], **at)
        for block, file in (("umc", "umc"), ("xgmi", "xgmi_wafl"), ("gfx", "gfx")):
            add(f"hw_gpu_ras_{block}_ue_total", held[f"{file} ue"], **at)
            add(f"hw_gpu_ras_{block}_ce_total", held[f"{file} ce"], **at)
        for block in ("mmhub", "sdma"):
            add(f"hw_gpu_ras_{block}_ue_total", held[f"{block} ue"], **at)
            add(f"hw_gpu_ras_{block}_ce_total", held[f"{block} ce"], **at)
        for kind in ("correctable", "nonfatal", "fatal"):
            add(f"hw_gpu_pcie_{kind}_total", held[kind], **at)
    for device, counters in planted.ports.items():
        port = {"device": device, "port": "1"}
        for way, ib in (("rx", "rcv"), ("tx", "xmit")):
            if "port_rcv_data" in counters:
                data, packets = 4 * counters[f"port_{ib}_data"], counters[f"port_{ib}_packets"]
            else:
                data = counters[f"{way}_rdma_ucast_bytes"]
                packets = counters[f"{way}_rdma_ucast_pkts"]
            add(f"hw_rdma_{way}_bytes_total", data, **port)
            add(f"hw_rdma_{way}_pkts_total", packets, **port)
        for metric, counter in RDMA_HARDWARE.items():
            add(f"hw_rdma_{metric}_total", counters[counter], **port)
        add("hw_rdma_port_state", 1, **port)
    for device, numbers in planted.interfaces.items():
        if device not in ("lo", "docker0", "veth1a2b"):
            for way, first in (("rx", 0), ("tx", 8)):
                add(f"hw_net_{way}_bytes_total", numbers[first], device=device)
                add(f"hw_net_{way}_errors_total", numbers[first + 2], device=device)
                add(f"hw_net_{way}_drop_total", numbers[first + 3], device=device)
    for metric, key, factor in (
        ("hw_tcp_retransmits_total", "RetransSegs", 1),
        ("hw_tcp_listen_overflows_total", "ListenOverflows", 1),
        ("hw_tcp_listen_drops_total", "ListenDrops", 1),
        ("hw_tcp_abort_on_timeout_total", "TCPAbortOnTimeout", 1),
        ("hw_procs_running", "procs_running", 1),
        ("hw_procs_blocked", "procs_blocked", 1),
        ("hw_context_switches_total", "ctxt", 1),
        ("hw_oom_kills_total", "oom_kill", 1),
        ("hw_mem_dirty_bytes", "Dirty", 1024),
        ("hw_mem_writeback_bytes", "Writeback", 1024),
        ("hw_io_pressure_full_total_us", "full total", 1),
    ):
        add(metric, planted.host[key] * factor)
    for kind in ("some", "full"):
        add(f"hw_io_pressure_{kind}_pct", float(planted.pressure[f"{kind} avg10"]))
        add(f"hw_io_pressure_{kind}_avg300_pct", float(planted.pressure[f"{kind} avg300"]))
    add(ESTABLISHED_RESETS, 0)
    add("hw_dmesg_gpu_errors_total", fake_sys.GPU_LINES)
    add("hw_gpu_user_processes", 2)
    return found


def values(
    found: Mapping[tuple[str, tuple[tuple[str, str], ...]], float], name: str
) -> list[float]:
    return sorted(value for (metric, _), value in found.items() if metric == name)


def test_all_that_is_prescribed_and_nothing_else(tmp_path: Path) -> None:
    planted = fake_sys.plant(tmp_path)
    text, trouble = collected(tmp_path)
    assert trouble == []
    found, expected = series(text), prescribed(planted)
    assert {name for name, _ in found.keys() - expected.keys()} == ONLY_OURS
    assert expected.keys() - found.keys() == set()
    differing = {
        name for (name, labels) in expected if found[name, labels] != expected[name, labels]
    }
    assert differing == {ESTABLISHED_RESETS}
    assert values(found, ESTABLISHED_RESETS) == [planted.host["EstabResets"]]
    assert 380 < len(found) < 420


def test_types_are_the_registrys(tmp_path: Path) -> None:
    fake_sys.plant(tmp_path)
    text, _ = collected(tmp_path)
    said = dict(line.split()[2:] for line in text.split("\n") if line.startswith("# TYPE "))
    assert said == {name: REGISTRY[name].type for name in said}
    assert said["hw_io_pressure_full_total_us"] == UNTYPED


def test_every_metric_of_a_node_comes_from_some_plugin(tmp_path: Path) -> None:
    fake_sys.plant(tmp_path)
    found = series(collected(tmp_path)[0])
    of_nodes = {name for name in REGISTRY if name.startswith("hw_")}
    # The collector times its own cycles.
    assert of_nodes - {name for name, _ in found} == {"hw_scrape_duration_seconds"}


def test_gpus_of_every_pci_domain_have_all_series(tmp_path: Path) -> None:
    addresses = ("0000:05:00.0", "0001:05:00.0", "0002:05:00.0")
    planted = fake_sys.plant(tmp_path, addresses=addresses, cards=1)
    found, expected = series(collected(tmp_path)[0]), prescribed(planted)
    name = "hw_gpu_ras_umc_ue_total"
    assert values(found, name) == values(expected, name)
    assert len(values(found, name)) == 3
    assert len(values(found, "hw_gpu_pcie_fatal_total")) == 3


def test_a_second_cycle_reads_what_the_files_hold_by_then(tmp_path: Path) -> None:
    """Files of /sys are kept open: written again, replaced or removed, no old value is given."""
    fake_sys.plant(tmp_path, cards=1)
    files = NodeFiles(str(tmp_path))
    plugin = plugins.load("rdma")
    directory = fake_sys.port_directory(tmp_path, "ionic_0") / "hw_counters"

    def read() -> dict[str, float]:
        answer = run(plugin, "/sys/class/infiniband/ionic_0", files, {})
        assert answer["failed"] is None
        return {sample[0]: sample[2] for sample in answer["samples"]}

    read()
    in_place, replaced = directory / "tx_rdma_retx_pkts", directory / "tx_rdma_retx_bytes"
    in_place.chmod(0o644)
    in_place.write_text("11\n")
    fake_sys.write(replaced, 22)
    (directory / "tx_rdma_ack_timeout").unlink()
    now = read()
    assert now["hw_rdma_tx_retx_pkts_total"] == 11
    assert now["hw_rdma_tx_retx_bytes_total"] == 22
    assert "hw_rdma_tx_ack_timeout_total" not in now
    files.close()


def test_a_node_without_any_of_it_gives_no_series_and_no_error(tmp_path: Path) -> None:
    files = NodeFiles(str(tmp_path))
    for name in BUILT_IN:
        plugin = plugins.load(name)
        if plugin.sources is not None:
            with pytest.raises(Exception, match=r"no .*|No such file"):
                plugin.sources(files)
            continue
        answer = run(plugin, None, files, {})
        status = "denied" if name == "kernel_log" else "no_data"
        if name == "gpu_users":
            assert answer["samples"] == [("hw_gpu_user_processes", {}, 0, None)]
        else:
            assert (answer["samples"], answer["failed"][0]) == ([], status)


# ---- the package of plugins


def sources() -> list[Path]:
    directory = Path(plugins.__path__[0])
    return sorted(path for path in directory.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_a_plugin_is_a_small_file_that_bears_its_name(path: Path) -> None:
    plugin = plugins.load(path.stem)
    assert plugin.name == path.stem
    assert plugin.function.__name__ == "collect"
    text = path.read_text()
    assert len(text.splitlines()) < 300
    assert "Source:" in (ast.get_docstring(ast.parse(text)) or "")
    ast.parse(text, feature_version=(3, 9))


def test_names_are_those_of_the_files() -> None:
    assert plugins.names() == [path.stem for path in sources()]
    assert set(BUILT_IN) <= set(plugins.names())


def test_an_unknown_plugin_is_named() -> None:
    with pytest.raises(KeyError, match="not_there"):
        plugins.load("not_there")


def test_ras_comes_last_and_only_ras() -> None:
    assert [name for name in plugins.names() if plugins.load(name).last] == ["gpu_ras"]
