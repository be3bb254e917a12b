from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag import sandbox
from raydiag.amdgpu import is_pci_address
from raydiag.errors import Denied, NoData, ReadError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.nvidia import (
    NvidiaGpu,
    driver_version,
    number,
    nvidia,
    pci_address,
    rows_of,
    unknown_field,
)

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024"
MODEL = "NVIDIA H100 80GB HBM3"
MIB = 1 << 20
WELL: dict[str, str] = {
    "index": "0",
    "pci.bus_id": "00000000:1B:00.0",
    "uuid": "GPU-0badc0de-1",
    "temperature.gpu": "41",
    "power.draw": "612.35",
    "power.limit": "700.00",
    "clocks.sm": "1755",
    "clocks.max.sm": "1980",
    "memory.used": "73210",
    "memory.total": "81559",
    "utilization.gpu": "99",
    "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.corrected.volatile.total": "3",
    "clocks_event_reasons.active": "0x0000000000000004",
    "pcie.link.gen.current": "5",
    "pcie.link.gen.max": "5",
    "pcie.link.width.current": "16",
    "pcie.link.width.max": "16",
    "name": MODEL,
}


REMAPS = [f"remapped_rows.{x}" for x in ("correctable", "uncorrectable", "pending", "failure")]


class Smi:
    """Stands in for nvidia-smi: answers the fields that it knows, refuses the first other one."""

    def __init__(self, *gpus: dict[str, str], status: int = 0, more: str = "") -> None:
        self.gpus, self.status, self.more = gpus, status, more
        self.queries: list[list[str]] = []
        self.unknown: set[str] = set()
        self.remaps = b""

    def __call__(self, argv: Sequence[str], timeout_s: float) -> tuple[int, bytes, bytes]:
        program, query, form = argv
        if query.startswith("--query-remapped-rows="):
            assert query.partition("=")[2] == f"gpu_bus_id,{','.join(REMAPS)}"
            return 0, self.remaps, b""
        assert (program, form) == ("nvidia-smi", "--format=csv,noheader,nounits")
        assert 0 < timeout_s < 10
        fields = query.removeprefix("--query-gpu=").split(",")
        self.queries.append(fields)
        for field in fields:
            if field in self.unknown:
                return 2, f'Field "{field}" is not a valid field to query.\n\n'.encode(), b""
        old = {"clocks_throttle_reasons.active": "clocks_event_reasons.active"}
        lines = [", ".join(gpu[old.get(field, field)] for field in fields) for gpu in self.gpus]
        return self.status, "\n".join([*lines, self.more, ""]).encode(), b""


Answer = Callable[[Any], None]


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> Answer:
    return lambda stand_in: monkeypatch.setattr(sandbox, "run_command", stand_in)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with the driver and two GPUs, the second one in another PCI domain."""
    add_gpu(tmp_path, "0000:1b:00.0", 0)
    add_gpu(tmp_path, "0001:2c:00.0", 1)
    (tmp_path / "dev/nvidiactl").touch()
    (tmp_path / "proc/driver/nvidia/version").write_text(f"{VERSION}\nGCC version: 12.2.0\n")
    return tmp_path


def add_gpu(root: Path, address: str, minor: int) -> None:
    directory = root / f"proc/driver/nvidia/gpus/{address}"
    directory.mkdir(parents=True)
    (directory / "information").write_text(
        f"Model: \t\t {MODEL}\nIRQ:   \t\t 314\nGPU UUID: \t GPU-from-file-{minor}\n"
        f"Bus Location: \t {address}\nDevice Minor: \t {minor}\n"
    )
    (root / "dev").mkdir(exist_ok=True)
    (root / f"dev/nvidia{minor}").touch()


def run(root: Path) -> tuple[list[NvidiaGpu], list[Unread]]:
    found = list(nvidia(Host(str(root))))
    gpus = [item for item in found if isinstance(item, NvidiaGpu)]
    return gpus, [item for item in found if isinstance(item, Unread)]


SECOND = {**WELL, "index": "1", "pci.bus_id": "00000001:2C:00.0"}


def test_ok_every_field_with_its_unit(root: Path, smi: Answer) -> None:
    stand_in = Smi(WELL, SECOND)
    smi(stand_in)
    gpus, unread = run(root)
    assert unread == []
    assert gpus[0] == NvidiaGpu(
        gpu=0,
        address="0000:1b:00.0",
        name=MODEL,
        uuid="GPU-0badc0de-1",
        driver_version="550.54.15",
        temperature_c=41.0,
        power_w=612.35,
        power_cap_w=700.0,
        sm_clock_mhz=1755.0,
        max_sm_clock_mhz=1980.0,
        vram_used_bytes=73210 * MIB,
        vram_total_bytes=81559 * MIB,
        utilisation_percent=99.0,
        ecc_uncorrected=0,
        ecc_corrected=3,
        clock_reasons=4,
        pcie_generation=5,
        max_pcie_generation=5,
        pcie_width=16,
        max_pcie_width=16,
    )
    assert (gpus[1].gpu, gpus[1].address) == (1, "0001:2c:00.0")
    assert len(stand_in.queries) == 1


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"00000000:1B:00.0, 1, 2, No, No\n", (3, False, False)),
        (b"00000000:1B:00.0, 0, 9, 1, 1\n", (9, True, True)),
        (b"00000000:1B:00.0, [N/A], [N/A], [N/A], [N/A]\n", (None, None, None)),
        (b"00000000:2B:00.0, 1, 2, Yes, Yes\n", (None, None, None)),
        (b"", (None, None, None)),
        (b'Field "gpu_bus_id" is not a valid field to query.\n', (None, None, None)),
    ],
)
def test_ok_remapped_rows_where_they_are_asked_for(
    root: Path, smi: Answer, answer: bytes, expected: tuple[Any, ...]
) -> None:
    asked = Smi(WELL)
    asked.remaps = answer
    smi(asked)
    record = next(x for x in nvidia(Host(str(root)), remapped=True) if isinstance(x, NvidiaGpu))
    assert (record.rows_remapped, record.remap_pending, record.remap_failed) == expected
    plain = next(x for x in nvidia(Host(str(root))) if isinstance(x, NvidiaGpu))
    assert plain.remap_failed is None


def test_ok_fields_that_this_version_names_otherwise_or_not_at_all(root: Path, smi: Answer) -> None:
    stand_in = Smi({**WELL, "name": "NVIDIA A100, 80GB"}, SECOND)
    stand_in.unknown = {"clocks_event_reasons.active", "pcie.link.gen.max"}
    smi(stand_in)
    gpus, unread = run(root)
    assert unread == []
    assert (gpus[0].clock_reasons, gpus[0].max_pcie_generation) == (4, None)
    assert (gpus[0].pcie_width, gpus[0].name) == (16, "NVIDIA A100, 80GB")
    assert len(stand_in.queries) == 3


@pytest.mark.parametrize(
    "text", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "ERR!", "", "inf", "1_0", "-1"]
)
def test_ok_what_is_not_known_is_none(root: Path, smi: Answer, text: str) -> None:
    known = ("index", "pci.bus_id", "uuid", "name")
    smi(Smi({key: value if key in known else text for key, value in WELL.items()}, SECOND))
    gpus, unread = run(root)
    assert unread == []
    readings = {k: v for k, v in vars(gpus[0]).items() if k not in ("gpu", "address", *known)}
    assert readings.pop("driver_version") == "550.54.15"
    assert set(readings.values()) == {None}


def test_no_data_without_a_driver(tmp_path: Path, smi: Answer) -> None:
    stand_in = Smi(WELL)
    smi(stand_in)
    with pytest.raises(NoData):
        run(tmp_path)
    assert stand_in.queries == []  # where there is no driver nothing is started


def test_no_data_in_a_container_without_gpus_on_a_node_with_some(root: Path, smi: Answer) -> None:
    stand_in = Smi(WELL)
    smi(stand_in)
    for device in (root / "dev").iterdir():
        device.unlink()
    with pytest.raises(NoData):
        run(root)
    assert stand_in.queries == []


def test_no_data_for_a_driver_without_gpus(tmp_path: Path, smi: Answer) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    smi(Smi())
    with pytest.raises(NoData):
        run(tmp_path)


def fails(error: Exception) -> Callable[..., tuple[int, bytes, bytes]]:
    def run_command(argv: Sequence[str], timeout_s: float) -> tuple[int, bytes, bytes]:
        raise error

    return run_command


@pytest.mark.parametrize(
    "stand_in",
    [
        fails(NoData("nvidia-smi: not installed here")),
        fails(ReadError("nvidia-smi: no answer within 8 s")),
        Smi(status=18, more="Failed to initialize NVML: Driver/library version mismatch"),
        Smi(more="No devices were found"),
    ],
)
def test_without_an_answer_the_drivers_list_stands_in(
    root: Path, smi: Answer, stand_in: Any
) -> None:
    smi(stand_in)
    gpus, (unread,) = run(root)
    assert (unread.source, unread.status) == ("nvidia-smi", Status.ERROR)
    assert [(x.gpu, x.address, x.uuid, x.name) for x in gpus] == [
        (0, "0000:1b:00.0", "GPU-from-file-0", MODEL),
        (1, "0001:2c:00.0", "GPU-from-file-1", MODEL),
    ]
    assert {(x.temperature_c, x.ecc_uncorrected) for x in gpus} == {(None, None)}


def test_denied_program_and_no_list_is_an_error(tmp_path: Path, smi: Answer) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    smi(fails(Denied("nvidia-smi: Permission denied")))
    with pytest.raises(Denied):
        run(tmp_path)


def test_lost_gpu_is_told_beside_those_that_answer(root: Path, smi: Answer) -> None:
    lost = "Unable to determine the device handle for GPU0001:2C:00.0: Unknown Error"
    smi(Smi(WELL, status=15, more=lost))
    (gpu,), unread = run(root)
    assert gpu.address == "0000:1b:00.0"
    assert [item.source for item in unread] == [
        "nvidia-smi",
        "/proc/driver/nvidia/gpus/0001:2c:00.0",
    ]
    assert lost in unread[0].reason


def test_gpu_that_the_container_was_not_given_is_not_missed(root: Path, smi: Answer) -> None:
    (root / "dev/nvidia1").unlink()
    smi(Smi(WELL))
    gpus, unread = run(root)
    assert (len(gpus), unread) == (1, [])


@pytest.mark.parametrize(
    "row",
    [
        {**WELL, "pci.bus_id": "[GPU is lost]"},
        {**WELL, "index": "[N/A]"},
        {**WELL, "pci.bus_id": "1B:00"},
    ],
)
def test_malformed_row_is_no_gpu(root: Path, smi: Answer, row: dict[str, str]) -> None:
    smi(Smi(row, SECOND))
    gpus, unread = run(root)
    assert [gpu.gpu for gpu in gpus] == [1]
    assert unread[0].source == "nvidia-smi"


def test_version_and_complaint() -> None:
    assert driver_version(VERSION) == "550.54.15"
    open_module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release"
    assert driver_version(open_module) == "570.133.20"
    assert driver_version("no number ...") == ""
    assert unknown_field('Field "a.b" is not a valid field to query.') == "a.b"
    assert unknown_field('GPU "a.b" is lost') == ""


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))
def test_addresses_are_the_kernels(domain: int, bus: int, slot: int, function: int) -> None:
    kernel = f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"
    assert pci_address(f"{domain:08X}:{bus:02X}:{slot:02X}.{function}") == kernel
    assert pci_address(kernel) == kernel


@given(st.text())
def test_any_text_gives_rows_with_addresses_or_none(text: str) -> None:
    rows, _ = rows_of(text, ["index", "pci.bus_id", "name"])
    assert all(is_pci_address(row["pci.bus_id"]) for row in rows)
    value = number(text)
    assert value is None or 0 <= value < 1e18
    assert "." in driver_version(text) or driver_version(text) == ""
