"""Which first samples ask for a longer look before the second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raydiag.host import Host
from raydiag.probes import network, pcie, rdma
from tests.cluster import fake_node, fake_rdma


def test_pcie_errors_since_boot_are_watched(tmp_path: Path) -> None:
    fake_node.write_amdgpu(tmp_path / "sys", gpus=2)
    functions = list(pcie.pcie(Host(str(tmp_path))))
    assert not any(pcie.has_counted(one) for one in functions)
    assert pcie.has_counted(replace(functions[0], correctable=3))
    assert pcie.has_counted(replace(functions[0], received_fatal=1))


@pytest.mark.parametrize("driver", ["ionic", "mlx5", "bnxt_re"])
def test_traffic_of_a_port_is_not_watched_and_losses_are(driver: str, tmp_path: Path) -> None:
    (name, *_) = fake_rdma.write_rdma(tmp_path / "sys", driver=driver, devices=1, since_boot=0)
    (port,) = rdma.rdma(Host(str(tmp_path)), f"{rdma.DIRECTORY}/{name}")
    assert isinstance(port, rdma.RdmaPort)
    assert port.counters
    assert not rdma.has_counted(port)
    for lost in ("tx_rdma_retx_pkts", "local_ack_timeout_err", "to_retransmits", "link_downed"):
        assert rdma.has_counted(replace(port, counters={**port.counters, lost: 1}))


def test_network_errors_and_full_queues_are_watched() -> None:
    well = network.NetworkState(
        namespace="net:[1]",
        uptime_s=1e6,
        tcp={"RetransSegs": 9_000, "ListenDrops": 0},
        interfaces={"eth0": {"rx_errors": 0, "tx_errors": 0, "rx_dropped": 12}},
        operstates={},
    )
    assert not network.has_counted(well)
    assert network.has_counted(replace(well, tcp={"ListenDrops": 4}))
    assert network.has_counted(replace(well, interfaces={"eth0": {"tx_errors": 1}}))
