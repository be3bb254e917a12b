"""GPU plugins over odd files: other models, drivers that refuse, devices that vanish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydiag.exporter import plugins
from raydiag.exporter.reading import NodeFiles, run
from tests.cluster import fake_node
from tests.exporter import fake_sys

ADDRESS = fake_node.DEFAULT_ADDRESSES[0]
RAS = f"/sys/bus/pci/drivers/amdgpu/{ADDRESS}/ras"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fake_node.write_amdgpu(tmp_path / "sys", gpus=1)
    return tmp_path


def device(root: Path) -> Path:
    return root / "sys/bus/pci/drivers/amdgpu" / ADDRESS


def answer(root: Path, name: str, source: str | None = ADDRESS) -> dict[str, Any]:
    return run(plugins.load(name), source, NodeFiles(str(root)), {})


def value(root: Path, metric: str, name: str = "gpu_sensors", **labels: str) -> float | None:
    source = {"gpu_sensors": ADDRESS, "gpu_ras": RAS}.get(name)
    for sample in answer(root, name, source)["samples"]:
        if sample.name == metric and labels.items() <= sample.labels.items():
            return float(sample.value)
    return None


def test_junction_then_memory_then_edge_and_a_sensor_at_zero_is_off(root: Path) -> None:
    hwmon = fake_sys.hwmon(root, ADDRESS)
    metric = "hw_gpu_temperature_celsius"
    for name, milli in (("temp1_input", 41_000), ("temp3_input", 63_000), ("temp2_input", 52_500)):
        fake_sys.write(hwmon / name, milli)
    assert value(root, metric) == 52.5
    fake_sys.write(hwmon / "temp2_input", 0)
    assert value(root, metric) == 63.0
    (hwmon / "temp3_input").unlink()
    assert value(root, metric) == 41.0
    fake_sys.write(hwmon / "temp1_input", 0)
    assert value(root, metric) is None


def test_power_is_the_mean_where_there_is_nothing_else(root: Path) -> None:
    hwmon = fake_sys.hwmon(root, ADDRESS)
    fake_sys.write(hwmon / "power1_input", 250_000_000)
    fake_sys.write(hwmon / "power1_average", 300_000_000)
    assert value(root, "hw_gpu_power_watts") == 250.0
    (hwmon / "power1_input").unlink()
    assert value(root, "hw_gpu_power_watts") == 300.0
    (hwmon / "power1_average").unlink()
    assert value(root, "hw_gpu_power_watts") is None


def test_an_idle_gpu_at_zero_watts_is_a_value(root: Path) -> None:
    fake_sys.write(fake_sys.hwmon(root, ADDRESS) / "power1_input", 0)
    assert value(root, "hw_gpu_power_watts") == 0.0


def test_a_sensor_that_holds_no_number_costs_itself_only(root: Path) -> None:
    fake_sys.write(fake_sys.hwmon(root, ADDRESS) / "freq1_input", "n/a")
    got = answer(root, "gpu_sensors")
    assert value(root, "hw_gpu_clock_mhz", type="sclk") is None
    assert value(root, "hw_gpu_clock_mhz", type="mclk") is not None
    assert [status for _, status, _ in got["unread"]] == ["error"]
    assert got["failed"] is None


def test_where_the_drivers_directory_is_hidden_hwmon_leads_to_the_device(tmp_path: Path) -> None:
    real = tmp_path / "sys/devices/pci0000:00" / ADDRESS
    fake_sys.write(real / "hwmon/hwmon3/name", "amdgpu")
    fake_sys.write(real / "hwmon/hwmon3/power1_input", 5_000_000)
    fake_sys.write(real / "mem_info_vram_used", 77)
    (real / "hwmon/hwmon3/device").symlink_to("../..")
    (tmp_path / "sys/class/hwmon").mkdir(parents=True)
    (tmp_path / "sys/class/hwmon/hwmon3").symlink_to(real / "hwmon/hwmon3")
    assert value(tmp_path, "hw_gpu_power_watts", gpu="0") == 5.0
    assert value(tmp_path, "hw_gpu_vram_used_bytes", gpu="0") == 77


def test_older_drivers_name_their_ras_files_otherwise(tmp_path: Path) -> None:
    counts = {0: {"umc": (1, 2, 0), "xgmi_wafl": (3, 4, 0)}}
    fake_node.write_amdgpu(tmp_path / "sys", gpus=1, ras=counts, ras_names="err_count")
    assert value(tmp_path, "hw_gpu_ras_umc_ue_total", "gpu_ras") == 1
    assert value(tmp_path, "hw_gpu_ras_umc_ce_total", "gpu_ras") == 2
    assert value(tmp_path, "hw_gpu_ras_xgmi_ue_total", "gpu_ras") == 3


def test_blocks_without_a_metric_are_not_even_read(root: Path) -> None:
    fake_sys.write(device(root) / "ras/aca_hdp", "no counts at all")
    got = answer(root, "gpu_ras", RAS)
    assert (len(got["samples"]), got["unread"], got["failed"]) == (10, [], None)


@pytest.mark.parametrize(
    "text", ["Query currently inaccessible", "", "ue: x\nce: 1", "\x00\xff", "de: 4"]
)
def test_a_ras_file_without_counts_is_no_zero(root: Path, text: str) -> None:
    fake_sys.write(device(root) / "ras/aca_umc", text)
    got = answer(root, "gpu_ras", RAS)
    assert {one.name for one in got["samples"] if "umc" in one.name} == set()
    assert len(got["samples"]) == 8
    assert [(source, status) for source, status, _ in got["unread"]] == [
        (f"{RAS}/aca_umc", "error")
    ]


def test_a_device_without_error_reporting_has_no_series_of_it(root: Path) -> None:
    for kind in ("correctable", "nonfatal", "fatal"):
        (device(root) / f"aer_dev_{kind}").unlink()
    got = answer(root, "gpu_pcie", None)
    assert (got["samples"], got["unread"], got["failed"]) == ([], [], None)


def test_an_aer_file_without_its_total_is_no_zero(root: Path) -> None:
    fake_sys.write(device(root) / "aer_dev_fatal", "DLP 0\nTLP 0")
    got = answer(root, "gpu_pcie", None)
    assert len(got["samples"]) == 2
    assert [status for _, status, _ in got["unread"]] == ["error"]


def test_users_are_counted_by_kfds_list_and_change_at_once(root: Path) -> None:
    files = NodeFiles(str(root))
    listing = root / "sys/class/kfd/kfd/proc"
    counts = []
    for name in ("41", "42", "not-a-pid"):
        (listing / name).mkdir()
        samples = run(plugins.load("gpu_users"), None, files, {})["samples"]
        counts.append(samples[0].value)
    assert counts == [1, 2, 2]


def test_what_answered_einval_is_not_read_again_also_by_another_reader(root: Path) -> None:
    path, plugin = f"{RAS}/aca_gfx", plugins.load("gpu_ras")
    fake_sys.refuse(device(root) / "ras/aca_gfx")
    first = NodeFiles(str(root))
    got = run(plugin, RAS, first, {})
    assert [source for source, _, _ in got["unread"]] == [path]
    assert got["left_alone"] == [path]
    # Were it read again, it would give counts by now.
    (device(root) / "ras/aca_gfx").unlink()
    fake_node.set_ras(device(root), "gfx", (1, 2, 3))
    for files in (first, NodeFiles(str(root), got["left_alone"])):
        again = run(plugin, RAS, files, {})
        assert (len(again["samples"]), again["unread"], again["left_alone"]) == (8, [], [path])
    assert len(run(plugin, RAS, NodeFiles(str(root)), {})["samples"]) == 10
