"""NVIDIA GPUs through a stand-in of `pynvml`.

Most machines that run these tests have no NVIDIA GPU. The stand-in has names, arguments, units and
errors as the NVML API reference and nvidia-ml-py document them; the last test asks a real one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydiag import sandbox
from raydiag.errors import NoData, ReadError
from raydiag.exporter import metrics, reading
from raydiag.exporter.metrics import Sample
from raydiag.exporter.plugins import load
from raydiag.exporter.plugins import nvidia as module
from raydiag.host import Host
from raydiag.model import Status, Unread

BINDING = '''
"""What of nvidia-ml-py the plugin uses; GPUs come from the file gpus.json beside it."""
import json, os

NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC = 0, 1
NVML_ERROR_UNINITIALIZED, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_DRIVER_NOT_LOADED = 1, 3, 9
_TEXTS = {1: "Uninitialized", 3: "Not Supported", 4: "Insufficient Permissions",
          9: "Driver Not Loaded", 15: "GPU is lost", 999: "Unknown Error"}
_running = 0

class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value
    def __str__(self):
        return _TEXTS[self.value]

class _Fields:
    def __init__(self, **fields):
        self.__dict__.update(fields)

def _node():
    with open(os.path.join(os.path.dirname(__file__), "gpus.json")) as file:
        return json.load(file)

def _value(handle, key):
    if not _running:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    value = _node()["gpus"][handle].get(key)
    if value is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    if isinstance(value, dict):
        raise NVMLError(value["error"])
    return value

def nvmlInit():
    global _running
    if _node().get("init"):
        raise NVMLError(_node()["init"])
    _running += 1

def nvmlShutdown():
    global _running
    if not _running:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    _running -= 1

def nvmlDeviceGetCount():
    if _node().get("count"):
        raise NVMLError(_node()["count"])
    return len(_node()["gpus"])

def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetPciInfo(handle):
    bus = _value(handle, "bus")
    return _Fields(busId=bus.encode() if _node().get("bytes") else bus)
def nvmlDeviceGetTemperature(handle, sensor):
    assert sensor == NVML_TEMPERATURE_GPU
    return _value(handle, "celsius")
def nvmlDeviceGetPowerUsage(handle): return _value(handle, "milliwatts")
def nvmlDeviceGetMemoryInfo(handle):
    total, free, used = _value(handle, "memory")
    return _Fields(total=total, free=free, used=used)
def nvmlDeviceGetClockInfo(handle, clock):
    return _value(handle, {1: "sm", 2: "mem"}[clock])
def nvmlDeviceGetTotalEccErrors(handle, kind, counter):
    return _value(handle, ("volatile", "aggregate")[counter] + ("_ce", "_ue")[kind])
def nvmlDeviceGetPcieReplayCounter(handle): return _value(handle, "replays")
'''
H100 = {
    "bus": "00000000:1B:00.0",
    "celsius": 61,
    "milliwatts": 687_250,
    "memory": [85_520_809_984, 1_000_000_000, 84_520_809_984],
    "sm": 1980,
    "mem": 2619,
    "volatile_ue": 1,
    "volatile_ce": 12,
    "aggregate_ue": 30,
    "aggregate_ce": 400,
    "replays": 5,
}


class Node:
    """A tree of files with a driver in it, and what the stand-in says."""

    def __init__(self, root: Path, binding: Path) -> None:
        self.root, self._said = root, binding / "gpus.json"
        (root / "dev").mkdir(parents=True)
        (root / "dev" / "nvidiactl").touch()
        (binding / "pynvml.py").write_text(BINDING)
        self.says(H100)

    def says(self, *gpus: dict[str, Any], **more: Any) -> None:
        self._said.write_text(json.dumps({"gpus": gpus, **more}))

    def aer(self, address: str, kind: str, total: int) -> None:
        directory = self.root / "sys/bus/pci/devices" / address
        directory.mkdir(parents=True, exist_ok=True)
        name = {"nonfatal": "NONFATAL", "fatal": "FATAL"}[kind]
        (directory / f"aer_dev_{kind}").write_text(f"Undefined 0\nTOTAL_ERR_{name} {total}\n")

    def collect(self) -> list[Sample | Unread]:
        return list(load("nvidia").function(Host(str(self.root))))

    def samples(self) -> dict[tuple[str, ...], float]:
        found = [one for one in self.collect() if isinstance(one, Sample)]
        return {(one.name, *one.labels.values()): one.value for one in found}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    binding = tmp_path / "binding"
    binding.mkdir()
    monkeypatch.syspath_prepend(str(binding))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    module._started.clear()
    yield Node(tmp_path / "root", binding)
    module._started.clear()
    sys.modules.pop("pynvml", None)


def test_every_value_in_the_units_of_the_names(node: Node) -> None:
    node.aer("0000:1b:00.0", "nonfatal", 2)
    node.aer("0000:1b:00.0", "fatal", 0)
    assert node.samples() == {
        ("hw_gpu_temperature_celsius", "0"): 61,
        ("hw_gpu_power_watts", "0"): 687.25,
        ("hw_gpu_vram_used_bytes", "0"): 84_520_809_984,
        ("hw_gpu_vram_total_bytes", "0"): 85_520_809_984,
        ("hw_gpu_ras_umc_ue_total", "0"): 1,
        ("hw_gpu_ras_umc_ce_total", "0"): 12,
        ("hw_gpu_pcie_correctable_total", "0"): 5,
        ("hw_gpu_clock_mhz", "0", "sclk"): 1980,
        ("hw_gpu_clock_mhz", "0", "mclk"): 2619,
        ("hw_gpu_pcie_nonfatal_total", "0"): 2,
        ("hw_gpu_pcie_fatal_total", "0"): 0,
    }


def test_names_and_labels_are_those_of_the_registry(node: Node) -> None:
    for one in node.collect():
        assert isinstance(one, Sample)
        metric = metrics.metric_of(one.name)
        assert metric is not None
        assert sorted([*one.labels, "host"]) == sorted(metric.labels)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_gpus_are_numbered_by_address(node: Node, as_bytes: bool) -> None:
    other = {**H100, "bus": "00000000:0A:00.0", "celsius": 40}
    node.says(H100, other, bytes=as_bytes)
    found = node.samples()
    assert found["hw_gpu_temperature_celsius", "0"] == 40
    assert found["hw_gpu_temperature_celsius", "1"] == 61


def test_amd_gpus_come_first(node: Node) -> None:
    (node.root / "sys/bus/pci/drivers/amdgpu/0000:c5:00.0").mkdir(parents=True)
    assert {labels[1] for labels in node.samples()} == {"1"}


def test_what_a_gpu_has_not_is_no_series(node: Node) -> None:
    node.says({"bus": H100["bus"], "celsius": 61})
    assert node.samples() == {("hw_gpu_temperature_celsius", "0"): 61}
    assert not [one for one in node.collect() if isinstance(one, Unread)]


def test_errors_of_its_whole_life_where_it_counts_no_others(node: Node) -> None:
    node.says({**H100, "volatile_ue": None, "volatile_ce": None})
    found = node.samples()
    assert found["hw_gpu_ras_umc_ue_total", "0"] == 30
    assert found["hw_gpu_ras_umc_ce_total", "0"] == 400


def test_what_is_refused_or_lost_is_said_and_costs_nothing_else(node: Node) -> None:
    node.says({**H100, "milliwatts": {"error": 4}}, {**H100, "celsius": {"error": 15}})
    found = node.collect()
    said = [one for one in found if isinstance(one, Unread)]
    assert [one.status for one in said] == [Status.DENIED, Status.ERROR]
    assert "GPU is lost" in said[1].reason
    assert len(found) - len(said) == 2 * 9 - 2


def test_without_the_binding_there_is_no_data(node: Node) -> None:
    (node.root.parent / "binding" / "pynvml.py").unlink()
    if importlib.util.find_spec("pynvml") is not None:
        pytest.skip("nvidia-ml-py is installed here")
    with pytest.raises(NoData, match="nvidia-ml-py"):
        node.collect()


def test_without_a_device_nothing_is_loaded(node: Node) -> None:
    (node.root / "dev" / "nvidiactl").unlink()
    with pytest.raises(NoData, match="no NVIDIA GPU"):
        node.collect()
    assert "pynvml" not in sys.modules


def test_a_driver_that_went_away_and_came_back(node: Node) -> None:
    assert node.samples()
    node.says(H100, count=9)
    with pytest.raises(ReadError, match="Driver Not Loaded"):
        node.collect()
    node.says(H100, init=9)
    with pytest.raises(ReadError, match="NVML does not start"):
        node.collect()
    node.says(H100)
    assert node.samples()[("hw_gpu_power_watts", "0")] == 687.25


def test_in_a_guarded_reader_of_its_kind(node: Node) -> None:
    plugin = load("nvidia")
    assert plugin.reader == "commands"

    def serve(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield reading.run(plugin, None, reading.NodeFiles(str(node.root)), {})

    reader = sandbox.Reader(serve, plugin.reader)
    answers: list[dict[str, Any]] = []
    reader.ask({}, sandbox.tag("nvidia"), None)
    while {"end": True} not in answers:
        assert select.select([reader], [], [], 30)[0]
        answers += reader.receive()
    reader.abandon()
    (answer,) = (one for one in answers if "samples" in one)
    assert answer["failed"] is None
    assert len(answer["samples"]) == 9


def test_a_real_one() -> None:
    if importlib.util.find_spec("pynvml") is None or not os.path.exists("/dev/nvidiactl"):
        pytest.skip("no NVIDIA GPU, or nvidia-ml-py is not installed: only the stand-in was asked")
    found = [one for one in load("nvidia").function(Host()) if isinstance(one, Sample)]
    assert {"hw_gpu_temperature_celsius", "hw_gpu_vram_total_bytes"} <= {one.name for one in found}
