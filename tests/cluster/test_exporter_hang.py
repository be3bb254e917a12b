"""The exporter on a node where one RAS file hangs, with a reader that no signal ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cluster import fake_node, fake_rdma, fuse_hang
from tests.cluster.conftest import wanted_or_skip
from tests.cluster.fuse_hang import HangingFile
from tests.exporter.running import Running, exporter, processes_below, value, wait_until_gone

pytestmark = pytest.mark.cluster

OWN = "raydiag_exporter_"
CYCLES = f"{OWN}cycles_total"
STUCK = f"{OWN}abandoned_readers"
HUNG, WELL = 5, 2
RAS = "hw_gpu_ras_umc_ce_total"
POWER = f'hw_gpu_power_watts{{gpu="{HUNG}"}}'


class Node:
    """Files of a node with 8 GPUs and 8 cards; one GPU's RAS files can be made to hang."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gpus = fake_node.write_amdgpu(root / "sys")
        fake_rdma.write_rdma(root / "sys", driver="ionic", devices=8)
        (root / "proc").symlink_to("/proc")
        (root / "dev").mkdir()
        fake_node.write_kmsg(root / "dev/kmsg", fake_node.quiet_records())
        self.ras = self.gpus[HUNG] / "ras"

    def set_power(self, watts: int) -> None:
        (hwmon,) = (self.gpus[HUNG] / "hwmon").iterdir()
        fake_node.rewrite(hwmon / "power1_input", str(watts * 1_000_000))

    def set_errors(self, count: int) -> None:
        fake_node.set_ras(self.gpus[WELL], "umc", (0, count, 0))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    wanted_or_skip(fuse_hang.unavailable())
    return Node(tmp_path / "node")


@pytest.fixture
def hanging(node: Node) -> Iterator[HangingFile]:
    with HangingFile(node.ras) as mounted:
        yield mounted
        mounted.release()


def run(node: Node, directory: Path, port: int = 0) -> AbstractContextManager[Running]:
    return exporter(directory, "--root", str(node.root), "--interval", "0.2", port=port)


def wait_for_cycles(running: Running, count: int) -> float:
    return running.wait_for(CYCLES, running.wait_for(CYCLES) + count)


def test_a_hung_file_costs_its_own_series_and_one_process(
    node: Node, hanging: HangingFile, tmp_path: Path
) -> None:
    with run(node, tmp_path) as running:
        running.wait_for(f'{RAS}{{gpu="{HUNG}"}}')
        hanging.hang("aca_umc")
        running.wait_for(STUCK, 0)
        stuck = hanging.stuck_pids("rd-")
        assert len(stuck) == 1
        began = running.wait_for(CYCLES)
        switches = running.wait_for("hw_context_switches_total")
        for tens in range(1, 11):  # a hundred cycles, looked at every ten
            node.set_power(300 + tens)
            node.set_errors(tens)
            running.wait_for(CYCLES, began + 10 * tens)
            assert hanging.stuck_pids("rd-") == stuck
            assert hanging.reader_pids() == stuck
            assert running.wait_for(POWER, 299 + tens) == 300 + tens
            assert running.wait_for(f'{RAS}{{gpu="{WELL}"}}', tens - 1) == tens
            switches = running.wait_for("hw_context_switches_total", switches)
            assert running.value(f'{RAS}{{gpu="{HUNG}"}}') is None
        page = running.page()
        assert value(page, STUCK) == 1
        assert value(page, f"{STUCK}_total") == 1
        source = f'plugin="gpu_ras",source="/sys/bus/pci/drivers/amdgpu/{address(node)}/ras"'
        assert (value(page, f"{OWN}stuck_source_seconds{{{source}}}") or 0) > 9
        assert value(page, f'{OWN}plugin_up{{plugin="gpu_ras"}}') == 0
        assert value(page, f'{OWN}plugin_timeouts_total{{plugin="gpu_ras"}}') == 1
        assert value(page, f'{OWN}plugin_up{{plugin="gpu_sensors"}}') == 1
        hanging.release()
        running.wait_for(f'{RAS}{{gpu="{HUNG}"}}')
        wait_for_cycles(running, 2)
        page = running.page()
        assert value(page, STUCK) == 0
        assert value(page, f"{STUCK}_total") == 1
        assert value(page, f'{OWN}plugin_up{{plugin="gpu_ras"}}') == 1
        assert hanging.reader_pids() == []


def address(node: Node) -> str:
    return node.gpus[HUNG].name


def test_killed_over_a_hung_file_the_next_one_stays_away(
    node: Node, hanging: HangingFile, tmp_path: Path
) -> None:
    hanging.hang("aca_umc")
    with run(node, tmp_path) as running:
        running.wait_for(STUCK, 0)
        stuck = hanging.stuck_pids("rd-")
        below = [pid for pid in processes_below(running.process.pid) if pid not in stuck]
        running.process.kill()
        running.process.wait()
        assert wait_until_gone(below) == []
    with run(node, tmp_path, running.port) as again:
        again.wait_for(STUCK, 0)
        wait_for_cycles(again, 10)
        assert hanging.reader_pids() == stuck
        assert again.value(f"{STUCK}_total") == 0  # it is not ours
        again.wait_for(f'{RAS}{{gpu="{WELL}"}}')
        hanging.release()
        again.wait_for(f'{RAS}{{gpu="{HUNG}"}}')
        wait_for_cycles(again, 2)
        assert again.value(STUCK) == 0


def test_it_ends_at_once_while_a_reader_hangs(
    node: Node, hanging: HangingFile, tmp_path: Path
) -> None:
    hanging.hang("aca_umc")
    with run(node, tmp_path) as running:
        running.wait_for(STUCK, 0)
        stuck = hanging.stuck_pids("rd-")
        below = [pid for pid in processes_below(running.process.pid) if pid not in stuck]
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 143
    assert wait_until_gone(below) == []
    hanging.release()
    assert wait_until_gone(stuck) == []


def test_it_ends_at_once_in_the_middle_of_a_hang(
    node: Node, hanging: HangingFile, tmp_path: Path
) -> None:
    """The reader has not missed its deadline yet."""
    with run(node, tmp_path) as running:
        running.wait_for(CYCLES, 1)
        hanging.hang("aca_umc")
        hanging.wait_for_readers()
        os.kill(running.process.pid, signal.SIGTERM)
        assert running.process.wait(30) == 143


def test_a_driver_fault_in_the_kernel_log_keeps_it_away(
    node: Node, hanging: HangingFile, tmp_path: Path
) -> None:
    hanging.hang("aca_umc")
    records = [*fake_node.quiet_records(), *fake_node.cper_oops_records(time.time() - 60)]
    fake_node.write_kmsg(node.root / "dev/kmsg", records)
    with run(node, tmp_path) as running:
        running.wait_for(CYCLES, 20)
        page = running.page()
        assert hanging.reader_pids() == []
        assert value(page, STUCK) == 0
        assert value(page, f'{OWN}plugin_up{{plugin="gpu_ras"}}') == 0
        assert value(page, f'{RAS}{{gpu="{WELL}"}}') is None
        assert value(page, POWER) is not None
    assert "shows the driver fault" in running.said()
