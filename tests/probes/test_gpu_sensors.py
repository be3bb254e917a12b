from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.amdgpu import amdgpu_addresses, is_pci_address
from raydiag.errors import Denied, NoData
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.gpu_sensors import GpuSensors, gpu_sensors

# Real kernel files whose reading fails for everybody, root included: a write-only setting (EACCES)
# and unmapped memory (EIO).
EACCES_FILE, EIO_FILE = "/proc/sys/vm/compact_memory", "/proc/self/mem"

SENSORS = {
    "temp1_input": "44000",
    "temp2_input": "71000",
    "temp2_crit": "110000",
    "temp3_input": "62000",
    "temp3_crit": "95000",
    "power1_input": "812000000",
    "power1_cap": "1000000000",
    "freq1_input": "2100000000",
    "freq2_input": "1300000000",
}


def add_gpu(
    root: Path,
    address: str,
    hwmon: str = "",
    sensors: dict[str, str] = SENSORS,
    driver: bool = True,
) -> Path:
    """A GPU below a bridge, as sysfs shows it; returns its device directory."""
    device = root / "sys/devices/pci0000:00/0000:00:01.1" / address
    device.mkdir(parents=True)
    (device / "mem_info_vram_used").write_text("1073741824\n")
    (device / "mem_info_vram_total").write_text("206158430208\n")
    (device / "unique_id").write_text("a1b2c3d4e5f60718\n")
    if driver:
        drivers = root / "sys/bus/pci/drivers/amdgpu"
        drivers.mkdir(parents=True, exist_ok=True)
        (drivers / address).symlink_to(os.path.relpath(device, drivers))
    if hwmon:
        real = device / "hwmon" / hwmon
        real.mkdir(parents=True)
        (real / "name").write_text("amdgpu\n")
        (real / "device").symlink_to("../..")
        for name, value in sensors.items():
            (real / name).write_text(value + "\n")
        links = root / "sys/class/hwmon"
        links.mkdir(parents=True, exist_ok=True)
        (links / hwmon).symlink_to(os.path.relpath(real, links))
    return device


def read(root: Path) -> tuple[list[GpuSensors], list[Unread]]:
    records = list(gpu_sensors(Host(str(root))))
    return (
        [x for x in records if isinstance(x, GpuSensors)],
        [x for x in records if isinstance(x, Unread)],
    )


def test_ok_gives_every_value_in_its_unit(tmp_path: Path) -> None:
    add_gpu(tmp_path, "0000:c5:00.0", hwmon="hwmon7")
    other = tmp_path / "sys/class/hwmon/hwmon0"
    other.mkdir()
    (other / "name").write_text("k10temp\n")
    assert read(tmp_path) == (
        [
            GpuSensors(
                gpu=0,
                address="0000:c5:00.0",
                temperature_c=71.0,
                temperature_crit_c=110.0,
                power_w=812.0,
                power_averaged=False,
                power_cap_w=1000.0,
                sclk_mhz=2100.0,
                mclk_mhz=1300.0,
                vram_used_bytes=1 << 30,
                vram_total_bytes=206158430208,
                unique_id="a1b2c3d4e5f60718",
            )
        ],
        [],
    )


def test_ok_index_follows_sorted_addresses_in_every_domain(tmp_path: Path) -> None:
    add_gpu(tmp_path, "0001:05:00.0", hwmon="hwmon1")
    add_gpu(tmp_path, "0000:c5:00.0", hwmon="hwmon2")
    add_gpu(tmp_path, "0000:05:00.0", hwmon="hwmon3")
    for control in ("bind", "unbind", "new_id", "module"):
        (tmp_path / "sys/bus/pci/drivers/amdgpu" / control).write_text("")
    gpus, _ = read(tmp_path)
    assert [(x.gpu, x.address) for x in gpus] == [
        (0, "0000:05:00.0"),
        (1, "0000:c5:00.0"),
        (2, "0001:05:00.0"),
    ]


def test_ok_gpu_without_hwmon_keeps_its_index_and_its_memory(tmp_path: Path) -> None:
    add_gpu(tmp_path, "0000:05:00.0")
    add_gpu(tmp_path, "0000:15:00.0", hwmon="hwmon0")
    gpus, unread = read(tmp_path)
    assert (gpus[0].temperature_c, gpus[0].power_w, gpus[0].sclk_mhz) == (None, None, None)
    assert gpus[0].vram_used_bytes == 1 << 30
    assert gpus[1].temperature_c == 71.0
    assert unread == []


def test_ok_without_driver_directory_hwmon_is_the_list(tmp_path: Path) -> None:
    add_gpu(tmp_path, "0000:15:00.0", hwmon="hwmon0", driver=False)
    add_gpu(tmp_path, "0000:05:00.0", hwmon="hwmon1", driver=False)
    gpus, _ = read(tmp_path)
    assert [x.address for x in gpus] == ["0000:05:00.0", "0000:15:00.0"]
    assert gpus[0].vram_used_bytes == 1 << 30


@pytest.mark.parametrize(
    ("changed", "temperature_c", "crit_c"),
    [
        ({"temp2_input": "0"}, 62.0, 95.0),
        ({"temp2_input": "0", "temp3_input": "-1000"}, 44.0, None),
        ({"temp1_input": "0", "temp2_input": "0", "temp3_input": "0"}, None, None),
        ({"temp2_crit": "0"}, 71.0, None),
    ],
)
def test_ok_first_temperature_above_zero_with_its_own_limit(
    tmp_path: Path, changed: dict[str, str], temperature_c: float, crit_c: float
) -> None:
    add_gpu(tmp_path, "0000:05:00.0", hwmon="hwmon0", sensors={**SENSORS, **changed})
    gpus, _ = read(tmp_path)
    assert (gpus[0].temperature_c, gpus[0].temperature_crit_c) == (temperature_c, crit_c)


def test_ok_averaged_power_is_said_to_be_so(tmp_path: Path) -> None:
    sensors = {"power1_average": "300500000"}
    add_gpu(tmp_path, "0000:05:00.0", hwmon="hwmon0", sensors=sensors)
    gpus, unread = read(tmp_path)
    assert (gpus[0].power_w, gpus[0].power_averaged) == (300.5, True)
    assert unread == []


def test_no_data_without_amdgpu(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        read(tmp_path)
    (tmp_path / "sys/bus/pci/drivers/amdgpu").mkdir(parents=True)
    with pytest.raises(NoData):
        read(tmp_path)


def test_denied_file_leaves_its_field_empty_and_is_reported(tmp_path: Path) -> None:
    device = add_gpu(tmp_path, "0000:05:00.0", hwmon="hwmon0")
    for path in (device / "mem_info_vram_used", device / "unique_id"):
        path.unlink()
        path.symlink_to(EACCES_FILE)
    gpus, unread = read(tmp_path)
    assert (gpus[0].vram_used_bytes, gpus[0].unique_id) == (None, "")
    assert (gpus[0].vram_total_bytes, gpus[0].temperature_c) == (206158430208, 71.0)
    directory = "/sys/bus/pci/drivers/amdgpu/0000:05:00.0"
    assert [(x.source, x.status) for x in unread] == [
        (f"{directory}/mem_info_vram_used", Status.DENIED),
        (f"{directory}/unique_id", Status.DENIED),
    ]


class ClosedHost(Host):
    """A host on which one directory may not be listed."""

    def __init__(self, root: Path, closed: str) -> None:
        super().__init__(str(root))
        self.closed = closed

    def listdir(self, path: str) -> list[str]:
        if path == self.closed:
            raise Denied(path)
        return super().listdir(path)


def test_denied_driver_directory_is_not_no_gpu(tmp_path: Path) -> None:
    with pytest.raises(Denied):
        amdgpu_addresses(ClosedHost(tmp_path, "/sys/bus/pci/drivers/amdgpu"))


def test_denied_hwmon_is_not_no_sensor(tmp_path: Path) -> None:
    add_gpu(tmp_path, "0000:05:00.0", hwmon="hwmon0")
    unread, gpu = gpu_sensors(ClosedHost(tmp_path, "/sys/class/hwmon"))
    assert isinstance(unread, Unread)
    assert (unread.source, unread.status) == ("/sys/class/hwmon", Status.DENIED)
    assert isinstance(gpu, GpuSensors)
    assert (gpu.temperature_c, gpu.vram_used_bytes) == (None, 1 << 30)


def test_malformed_or_failing_files_cost_their_own_field_only(tmp_path: Path) -> None:
    sensors = {**SENSORS, "temp2_input": "N/A", "freq1_input": ""}
    device = add_gpu(tmp_path, "0000:05:00.0", hwmon="hwmon0", sensors=sensors)
    (device / "unique_id").write_text("none\n")
    power = tmp_path / "sys/class/hwmon/hwmon0/power1_input"
    power.unlink()
    power.symlink_to(EIO_FILE)
    gpus, unread = read(tmp_path)
    assert (gpus[0].power_w, gpus[0].power_averaged) == (None, False)
    assert (gpus[0].sclk_mhz, gpus[0].mclk_mhz) == (None, 1300.0)
    assert (gpus[0].temperature_c, gpus[0].unique_id) == (62.0, "")
    assert {x.status for x in unread} == {Status.ERROR}
    assert sorted(x.source.rsplit("/")[-1] for x in unread) == [
        "freq1_input",
        "power1_input",
        "temp2_input",
        "unique_id",
    ]


def test_malformed_address_names_are_no_devices() -> None:
    names = [
        "bind",
        "0000:05:00",
        "0000:05:00.0.1",
        "0000:0x:00.0",
        "0000::00.0",
        "0000:05:00.",
        "",
    ]
    assert [name for name in names if is_pci_address(name)] == []


@given(st.integers(0, 0x1FFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_every_address_that_the_kernel_prints_is_one(
    domain: int, bus: int, device: int, function: int
) -> None:
    assert is_pci_address(f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}")


@given(st.text(max_size=20))
def test_arbitrary_unique_id_is_hexadecimal_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    root = tmp_path_factory.mktemp("node")
    device = add_gpu(root, "0000:05:00.0")
    (device / "unique_id").write_bytes(text.encode())
    gpus, unread = read(root)
    if gpus[0].unique_id:
        assert (int(gpus[0].unique_id, 16), unread) == (int(text.strip(), 16), [])
    else:
        assert [x.source.rsplit("/")[-1] for x in unread] == ["unique_id"]
