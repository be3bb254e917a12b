from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag import probes
from raydiag.errors import Denied, NoData, ParseError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.pcie import PcieFunction, aer_total, link_speed_gts, pcie
from tests.cluster import fake_node

# A real kernel file whose reading fails with EIO for everybody, root included.
EIO_FILE = "/proc/self/mem"


def run(root: Path) -> tuple[dict[str, PcieFunction], list[Unread]]:
    found = list(pcie(Host(str(root))))
    functions = [item for item in found if isinstance(item, PcieFunction)]
    assert len({item.address for item in functions}) == len(functions)
    unread = [item for item in found if isinstance(item, Unread)]
    return {item.address: item for item in functions}, unread


def add_function(root: Path, path: str, model: tuple[str, str] = ("", "")) -> Path:
    """A PCI function at that path below /sys/devices."""
    directory = root / "sys/devices" / path
    fake_node.write_link_state(directory)
    for name, value in zip(("vendor", "device"), model, strict=True):
        if value:
            (directory / name).write_text(f"{value}\n")
    return directory


def add_link(root: Path, link: str, target: Path) -> None:
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(target)


def test_ok_gpus_and_the_bridges_above_them(tmp_path: Path) -> None:
    gpus = fake_node.write_amdgpu(tmp_path / "sys", addresses=["0000:05:00.0", "0001:15:00.0"])
    fake_node.set_link(gpus[1], width=8, speed_gts=2.5)
    fake_node.set_aer(gpus[1], "correctable", 7)
    fake_node.set_aer(gpus[1].parent, "nonfatal", 2)
    fake_node.set_aer(gpus[1].parent.parent, "fatal", 1)
    (gpus[1].parent.parent / "aer_rootport_total_err_cor").chmod(0o644)
    (gpus[1].parent.parent / "aer_rootport_total_err_cor").write_text("9\n")
    functions, unread = run(tmp_path)
    assert unread == []
    assert list(functions) == [
        *("0000:05:00.0", "0001:15:00.0"),
        *("0000:00:01.1", "0000:01:00.0", "0001:10:01.1", "0001:11:00.0"),
    ]
    assert functions["0001:15:00.0"] == PcieFunction(
        address="0001:15:00.0",
        kind="gpu",
        name="amdgpu",
        gpu=1,
        model="1002:75a0",
        above="0001:11:00.0",
        speed_gts=2.5,
        max_speed_gts=32.0,
        width=8,
        max_width=16,
        correctable=7,
        nonfatal=0,
        fatal=0,
        received_correctable=None,
        received_nonfatal=None,
        received_fatal=None,
    )
    bridge, port = functions["0001:11:00.0"], functions["0001:10:01.1"]
    assert (bridge.kind, bridge.above, bridge.nonfatal) == ("bridge", "0001:10:01.1", 2)
    assert (bridge.gpu, bridge.model, bridge.received_correctable) == (None, "", None)
    assert (port.above, port.fatal, port.received_correctable) == ("", 1, 9)


def test_ok_rdma_devices_share_a_bridge_and_it_is_read_once(tmp_path: Path) -> None:
    for name, path in (
        ("mlx5_0", "pci0000:c0/0000:c0:01.0/0000:c1:00.0"),
        ("mlx5_1", "pci0000:c0/0000:c0:01.0/0000:c1:00.1"),
    ):
        directory = add_function(tmp_path, path, ("0x15b3", "0x1021"))
        add_link(tmp_path, f"sys/class/infiniband/{name}/device", directory)
    add_function(tmp_path, "pci0000:c0/0000:c0:01.0")
    # Two devices of one function, one of them through a helper device; one made by software.
    (directory / "ionic.rdma.0").mkdir()
    add_link(tmp_path, "sys/class/infiniband/ionic_0/device", directory / "ionic.rdma.0")
    (tmp_path / "sys/class/infiniband/rxe0").mkdir()
    functions, unread = run(tmp_path)
    assert unread == []
    assert [(x.address, x.kind, x.name, x.above) for x in functions.values()] == [
        ("0000:c1:00.1", "rdma", "ionic_0,mlx5_1", "0000:c0:01.0"),
        ("0000:c1:00.0", "rdma", "mlx5_0", "0000:c0:01.0"),
        ("0000:c0:01.0", "bridge", "", ""),
    ]
    assert functions["0000:c1:00.0"].model == "15b3:1021"
    assert functions["0000:c1:00.0"].gpu is None


def test_ok_nvidia_gpus_by_their_driver(tmp_path: Path) -> None:
    for address in ("0000:1b:00.0", "0000:0a:00.0"):
        directory = add_function(tmp_path, f"pci0000:00/{address}", ("0x10de", "0x2330"))
        add_link(tmp_path, f"sys/bus/pci/drivers/nvidia/{address}", directory)
    functions, _ = run(tmp_path)
    assert [(x.gpu, x.address, x.name, x.above) for x in functions.values()] == [
        (None, "0000:0a:00.0", "nvidia", ""),
        (None, "0000:1b:00.0", "nvidia", ""),
    ]


def test_ok_gpu_that_only_hwmon_shows(tmp_path: Path) -> None:
    directory = add_function(tmp_path, "pci0000:00/0000:00:01.1/0000:05:00.0")
    hwmon = tmp_path / "sys/class/hwmon/hwmon3"
    hwmon.mkdir(parents=True)
    (hwmon / "name").write_text("amdgpu\n")
    add_link(tmp_path, "sys/class/hwmon/hwmon3/device", directory)
    functions, _ = run(tmp_path)
    assert functions["0000:05:00.0"].width == 16
    assert functions["0000:00:01.1"].kind == "bridge"


def test_ok_missing_is_not_zero(tmp_path: Path) -> None:
    directory = tmp_path / "sys/bus/pci/drivers/amdgpu/0000:05:00.0"
    directory.mkdir(parents=True)
    (directory / "current_link_width").write_text("0\n")  # as of a virtual function
    (directory / "max_link_width").write_text("255\n")  # as of one that does not answer
    (directory / "current_link_speed").write_text("Unknown\n")
    functions, unread = run(tmp_path)
    (gpu,) = functions.values()
    assert unread == []
    assert (gpu.width, gpu.max_width, gpu.speed_gts, gpu.max_speed_gts) == (None,) * 4
    assert (gpu.correctable, gpu.nonfatal, gpu.fatal, gpu.model) == (None, None, None, "")


@pytest.mark.parametrize("lanes", [0, 63, 255])
def test_ok_device_that_does_not_answer_is_unread(tmp_path: Path, lanes: int) -> None:
    gpus = fake_node.write_amdgpu(tmp_path / "sys", gpus=3)
    fake_node.set_link(gpus[1], width=lanes)
    functions, (unread,) = run(tmp_path)
    gpu = functions["0000:15:00.0"]
    assert (gpu.width, gpu.odd_width, gpu.virtual_function) == (None, lanes, False)
    assert functions["0000:05:00.0"].odd_width is None
    assert unread.source.endswith("0000:15:00.0/current_link_width")
    assert unread.status is Status.ERROR
    assert f"{lanes} lanes: the device does not answer" in unread.reason


@pytest.mark.parametrize(("lanes", "unread"), [(0, 0), (255, 0), (63, 2)])
def test_ok_no_lanes_without_one_that_has_some(tmp_path: Path, lanes: int, unread: int) -> None:
    """Virtual functions in a virtual machine show 0 as well; 63 is an answer that never came."""
    for gpu in fake_node.write_amdgpu(tmp_path / "sys", gpus=2):
        fake_node.set_link(gpu, width=lanes)
    functions, missed = run(tmp_path)
    assert [one.odd_width for one in functions.values() if one.kind == "gpu"] == [lanes] * 2
    assert len(missed) == unread


def test_ok_virtual_functions_have_no_link(tmp_path: Path) -> None:
    gpus = fake_node.write_amdgpu(tmp_path / "sys", gpus=2)
    fake_node.set_link(gpus[1], width=0)
    (gpus[1] / "physfn").symlink_to(gpus[0])
    functions, unread = run(tmp_path)
    assert unread == []
    assert functions["0000:15:00.0"].virtual_function


def test_counters_are_read_twice() -> None:
    assert probes.load("pcie").samples == 2


def test_no_data_without_devices(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        run(tmp_path)
    (tmp_path / "sys/class/infiniband/rxe0").mkdir(parents=True)
    with pytest.raises(NoData):
        run(tmp_path)


class RefusingHost(Host):
    """Refuses what root may read: one directory listing, or one file."""

    refused = "/sys/bus/pci/drivers/amdgpu"

    def listdir(self, path: str) -> list[str]:
        if path == self.refused:
            raise Denied(f"{path}: Permission denied")
        return super().listdir(path)


def test_denied_listing_is_not_no_gpu(tmp_path: Path) -> None:
    fake_node.write_amdgpu(tmp_path / "sys", gpus=1)
    with pytest.raises(Denied, match="drivers/amdgpu"):
        list(pcie(RefusingHost(str(tmp_path))))
    directory = add_function(tmp_path, "pci0000:c0/0000:c1:00.0")
    add_link(tmp_path, "sys/class/infiniband/mlx5_0/device", directory)
    unread, nic = pcie(RefusingHost(str(tmp_path)))
    assert isinstance(unread, Unread)
    assert unread.status is Status.DENIED
    assert isinstance(nic, PcieFunction)


def test_malformed_and_failing_files_are_unread(tmp_path: Path) -> None:
    (gpu,) = fake_node.write_amdgpu(tmp_path / "sys", gpus=1)
    for name, text in {
        "current_link_speed": "fast",
        "current_link_width": "x16",
        "aer_dev_correctable": "RxErr 0\nBadTLP 0",
    }.items():
        (gpu / name).chmod(0o644)
        (gpu / name).write_text(text)
    (gpu / "aer_dev_fatal").unlink()
    (gpu / "aer_dev_fatal").symlink_to(EIO_FILE)
    functions, unread = run(tmp_path)
    names = [item.source.rsplit("/", 1)[1] for item in unread]
    assert names == [
        *("current_link_speed", "current_link_width", "aer_dev_correctable", "aer_dev_fatal"),
    ]
    assert {item.status for item in unread} == {Status.ERROR}
    record = functions["0000:05:00.0"]
    assert (record.speed_gts, record.width, record.correctable, record.fatal) == (None,) * 4
    assert record.nonfatal == 0


@pytest.mark.parametrize(
    ("text", "speed"),
    [("32.0 GT/s PCIe", 32.0), ("8 GT/s", 8.0), ("2.5 GT/s PCIe", 2.5), ("Unknown speed", None)],
)
def test_speed(text: str, speed: float | None) -> None:
    assert link_speed_gts(text) == speed


@pytest.mark.parametrize("text", ["", "32.0", "GT/s", ".5.1 GT/s", "nan GT/s", "-8 GT/s PCIe"])
def test_what_is_no_speed(text: str) -> None:
    with pytest.raises(ParseError):
        link_speed_gts(text)


NAMES = st.sampled_from(["RxErr", "Receiver Error", "BadTLP", "Malformed TLP", "NonFatalErr"])


@given(
    st.lists(st.tuples(NAMES, st.integers(0, 2**64))),
    st.sampled_from(["TOTAL_ERR_COR", "TOTAL_ERR_NONFATAL", "TOTAL_ERR_FATAL"]),
    st.integers(0, 2**64 - 1),
)
def test_total_is_the_total_whatever_stands_above(
    lines: list[tuple[str, int]], name: str, total: int
) -> None:
    text = "\n".join([*(f"{key} {count}" for key, count in lines), f"{name} {total}"])
    assert aer_total(text) == total


@given(st.text())
def test_any_text_gives_a_value_or_a_parse_error(text: str) -> None:
    for parse in (aer_total, link_speed_gts):
        try:
            value = parse(text)
        except ParseError:
            continue
        assert value is None or value >= 0
