from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from raydiag.model import NodeReport, ProbeResult, Severity, Status, Unread
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.pcie import PcieFunction
from raydiag.probes.processes import RayProcess
from raydiag.probes.versions import Version
from raydiag.rules.peers import environment_mismatch, missing_gpus, version_skew
from tests.rules.snapshots import report, snapshot

ADDRESSES = [f"0000:{bus:02x}:00.0" for bus in range(8)]


def sensors(addresses: Sequence[str], vram: int | None = None) -> list[GpuSensors]:
    return [
        GpuSensors(i, one, None, None, None, False, None, None, None, None, vram, "")
        for i, one in enumerate(addresses)
    ]


def versions(**components: str) -> list[Version]:
    return [Version(name, value, f"/sys/{name}") for name, value in components.items()]


def gpu_node(
    host: str, addresses: Sequence[str] = ADDRESSES, vram: int | None = None, **probes: Any
) -> NodeReport:
    found = sensors(addresses, vram)
    return report(host, gpu_sensors=found, **{"versions": versions(amdgpu="6.8"), **probes})


def pcie_function(address: str, name: str, model: str) -> PcieFunction:
    kind = "gpu" if name == "nvidia" else "rdma"
    links: list[Any] = [None] * 10
    return PcieFunction(address, kind, name, None, model, "", *links)


class TestMissingGpus:
    def test_the_missing_address_is_named(self) -> None:
        seen = snapshot(gpu_node("a"), gpu_node("b"), gpu_node("c", ADDRESSES[:6]))
        (finding,) = missing_gpus(seen)
        assert (finding.failure_class, finding.host) == ("gpu-missing", "c")
        assert (finding.device, finding.gpu) == (",".join(ADDRESSES[6:]), None)
        assert finding.severity is Severity.CRITICAL
        assert "6 GPUs here, 8 on 2 of 3 hosts" in finding.evidence[0].text

    def test_with_the_driver_but_no_gpu_all_are_missing(self) -> None:
        none = ProbeResult("gpu_sensors", Status.NO_DATA, reason="no amdgpu device")
        bare = report("c", versions=versions(amdgpu="6.8"), results=[none])
        (finding,) = missing_gpus(snapshot(gpu_node("a"), gpu_node("b"), bare))
        assert (finding.host, finding.device) == ("c", ",".join(ADDRESSES))

    def test_where_addresses_differ_none_is_named(self) -> None:
        moved = [one.replace("0000", "0001") for one in ADDRESSES]
        seen = snapshot(gpu_node("a"), gpu_node("b", moved), gpu_node("c", ADDRESSES[:7]))
        (finding,) = missing_gpus(seen)
        assert (finding.host, finding.device) == ("c", None)

    def test_a_host_without_gpus_or_without_an_answer_is_not_compared(self) -> None:
        hung = ProbeResult("gpu_sensors", Status.TIMEOUT, records=sensors(ADDRESSES[:2]))
        seen = snapshot(
            gpu_node("a"),
            gpu_node("b"),
            report("head", versions=versions(kernel="6.1"), gpu_sensors=[]),
            report("d", versions=versions(amdgpu="6.8"), results=[hung]),
            report("e", versions=versions(amdgpu="6.8")),
        )
        assert not list(missing_gpus(seen))

    @pytest.mark.parametrize("counts", [(8,), (8, 7, 7), (0, 0)])
    def test_as_many_as_most_have_is_enough(self, counts: tuple[int, ...]) -> None:
        nodes = [gpu_node(f"n{i}", ADDRESSES[:count]) for i, count in enumerate(counts)]
        assert not list(missing_gpus(snapshot(*nodes)))

    @pytest.mark.parametrize(
        ("counts", "text"),
        [
            ((8, 7), "GPUs: 7 on n1; 8 on n0"),
            ((8, 7, 8, 7), "GPUs: 7 on n1, n3; 8 on n0, n2"),
            ((8, 7, 8, 7, 6), "GPUs: 7 on n1, n3; 8 on n0, n2; 6 on n4"),
        ],
    )
    def test_without_a_majority_nobody_is_blamed(self, counts: Sequence[int], text: str) -> None:
        nodes = [gpu_node(f"n{i}", ADDRESSES[:count]) for i, count in enumerate(counts)]
        (finding,) = missing_gpus(snapshot(*nodes))
        assert (finding.failure_class, finding.host) == ("gpu-missing", None)
        assert finding.severity is Severity.WARNING
        assert [piece.text for piece in finding.evidence] == [text]

    def test_other_models_are_not_compared(self) -> None:
        head = gpu_node("head", ADDRESSES[:1], vram=512 << 20)
        workers = [gpu_node(host, vram=(192 << 30) - 4096) for host in "abc"]
        assert not list(missing_gpus(snapshot(head, *workers)))
        unknown = gpu_node("d", ADDRESSES[:7])
        same = gpu_node("e", ADDRESSES[:6], vram=192 << 30)
        found = list(missing_gpus(snapshot(head, *workers, unknown, same)))
        assert [(one.host, one.severity) for one in found] == [
            ("d", Severity.CRITICAL),
            ("e", Severity.CRITICAL),
        ]

    def test_gpus_of_nvidia_are_those_on_the_bus(self) -> None:
        def node(host: str, count: int, model: str = "10de:2330") -> NodeReport:
            none = ProbeResult("gpu_sensors", Status.NO_DATA, reason="no amdgpu device")
            found = [pcie_function(one, "nvidia", model) for one in ADDRESSES[:count]]
            card = pcie_function("0000:c1:00.0", "mlx5_0", "15b3:1021")
            return report(host, results=[none], pcie=[*found, card])

        seen = snapshot(node("a", 8), node("b", 8), node("c", 7), node("d", 4, "10de:20b0"))
        (finding,) = missing_gpus(seen)
        assert (finding.host, finding.device) == ("c", ADDRESSES[7])

    def test_two_ray_nodes_of_one_machine_are_one_host(self) -> None:
        few = ADDRESSES[:7]
        nodes = [report("a", node_id=str(i), gpu_sensors=sensors(few)) for i in range(3)]
        (finding,) = missing_gpus(snapshot(*nodes, gpu_node("b")))
        assert finding.evidence[0].text == "GPUs: 7 on a; 8 on b"

    def test_machines_that_share_a_host_name_are_two_hosts(self) -> None:
        nodes = [
            report("a", node_id=str(n), address=f"10.0.0.{n}", gpu_sensors=sensors(ADDRESSES[:n]))
            for n in (7, 8)
        ]
        (finding,) = missing_gpus(snapshot(*nodes, gpu_node("b")))
        assert finding.host == "a (10.0.0.7)"


class TestVersionSkew:
    def test_the_odd_host_against_a_majority(self) -> None:
        usual = versions(kernel="6.8.0-45", rocm="6.2.0", mlx5_core="24.10")
        odd = versions(kernel="6.8.0-40", rocm="6.2.0", mlx5_core="24.04")
        seen = snapshot(
            *(report(host, versions=usual) for host in "abc"), report("d", versions=odd)
        )
        (finding,) = version_skew(seen)
        assert (finding.failure_class, finding.host) == ("version-skew", "d")
        assert finding.severity is Severity.WARNING
        assert [piece.text for piece in finding.evidence] == [
            "kernel 6.8.0-40 here, 6.8.0-45 on 3 others",
            "mlx5_core 24.04 here, 24.10 on 3 others",
        ]

    def test_without_a_majority_the_groups_are_named(self) -> None:
        seen = snapshot(
            report("a", versions=versions(rocm="6.2")), report("b", versions=versions(rocm="6.3"))
        )
        (finding,) = version_skew(seen)
        assert (finding.host, finding.severity) == (None, Severity.WARNING)
        assert finding.evidence[0].text == "rocm 6.2 on a; 6.3 on b"

    def test_another_kernel_on_a_head_without_gpus_is_only_told(self) -> None:
        head = report("head", versions=versions(kernel="6.1"))
        new = versions(kernel="6.8", amdgpu="6.8")
        one = [gpu_node("a", versions=new)]
        two = [*one, gpu_node("b", versions=new)]
        for workers, host in ((one, None), (two, "head")):
            (finding,) = version_skew(snapshot(head, *workers))
            assert (finding.host, finding.severity) == (host, Severity.INFO)

    def test_hosts_with_gpus_are_compared_with_their_like(self) -> None:
        new = versions(kernel="6.8", amdgpu="6.8")
        heads = [report(f"cpu{i}", versions=versions(kernel="6.1")) for i in range(5)]
        seen = snapshot(*heads, *(gpu_node(f"gpu{i}", versions=new) for i in range(4)))
        found = list(version_skew(seen))
        assert [(one.host, one.severity) for one in found] == [
            (f"cpu{i}", Severity.INFO) for i in range(5)
        ]
        odd = gpu_node("odd", versions=versions(kernel="6.1", amdgpu="6.8"))
        sick = [one for one in version_skew(snapshot(*seen.nodes, odd)) if one.host == "odd"]
        assert [(one.severity, one.evidence[0].text) for one in sick] == [
            (Severity.WARNING, "kernel 6.1 here, 6.8 on 4 others")
        ]

    def test_equal_unjudged_or_single_versions_are_silent(self) -> None:
        seen = snapshot(
            report("a", versions=versions(kernel="6.8", os="22.04", python="3.10", glibc="2.35")),
            report("b", versions=versions(kernel="6.8", os="24.04", python="3.12", glibc="2.39")),
            report("c", versions=versions(kernel="6.8", ionic="1.2")),
        )
        assert not list(version_skew(seen))


def process(pid: int, command: str = "ray::Trainer.fit", **environment: str) -> RayProcess:
    return RayProcess(
        pid=pid,
        ppid=1,
        start_time_s=1.0,
        comm="python3",
        command=command,
        role="worker",
        worker_pid=pid,
        state="S",
        threads=1,
        rss_bytes=0,
        environment=environment,
    )


def worker_node(host: str, *processes: RayProcess) -> NodeReport:
    return report(host, processes=processes)


class TestEnvironmentMismatch:
    def test_another_interface_than_the_majority(self) -> None:
        seen = snapshot(
            *(worker_node(host, process(1, NCCL_SOCKET_IFNAME="bond0")) for host in "abc"),
            worker_node("d", process(1, NCCL_SOCKET_IFNAME="eth0")),
        )
        (finding,) = environment_mismatch(seen)
        assert (finding.failure_class, finding.host) == ("env-mismatch", "d")
        assert finding.severity is Severity.WARNING
        assert finding.evidence[0].text == "NCCL_SOCKET_IFNAME eth0 here, bond0 on 3 others"

    def test_unset_where_most_set_it(self) -> None:
        seen = snapshot(
            *(worker_node(host, process(1, GLOO_SOCKET_IFNAME="bond0")) for host in "abc"),
            worker_node("d", process(1, "ray::Trainer")),
        )
        (finding,) = environment_mismatch(seen)
        assert finding.host == "d"
        assert "unset here" in finding.evidence[0].text

    def test_two_hosts_that_disagree_are_reported_without_blame(self) -> None:
        seen = snapshot(
            worker_node("a", process(1, NCCL_SOCKET_IFNAME="bond0")),
            worker_node("b", process(1, NCCL_SOCKET_IFNAME="eth0")),
        )
        (finding,) = environment_mismatch(seen)
        assert finding.host is None
        assert finding.evidence[0].text == "NCCL_SOCKET_IFNAME bond0 on a; eth0 on b"

    def test_hosts_without_training_are_left_out(self) -> None:
        setting = {"NCCL_SOCKET_IFNAME": "bond0"}
        seen = snapshot(
            *(
                worker_node(
                    host,
                    process(1, **setting),
                    process(2, "ray::IDLE", NCCL_SOCKET_IFNAME="old0"),
                )
                for host in "abc"
            ),
            worker_node("head", process(1, "ray::JobSupervisor"), process(2, "ray::IDLE")),
            worker_node("unreadable", process(1, "")),
            worker_node("empty"),
        )
        assert not list(environment_mismatch(seen))

    def test_two_programs_may_use_different_networks(self) -> None:
        settings = {"ray::Trainer.fit": "bond0", "ray::Server": "eth0", "python3 serve.py": "eth1"}
        seen = snapshot(
            *(
                worker_node(f"{host}{number}", process(1, command, NCCL_SOCKET_IFNAME=interface))
                for number, (command, interface) in enumerate(settings.items())
                for host in "ab"
            )
        )
        assert not list(environment_mismatch(seen))

    def test_the_program_that_disagrees_is_named(self) -> None:
        seen = snapshot(
            worker_node("a", process(1, NCCL_SOCKET_IFNAME="bond0"), process(2, "ray::Server.get")),
            worker_node("b", process(1, NCCL_SOCKET_IFNAME="eth0"), process(2, "ray::Server.get")),
        )
        (finding,) = environment_mismatch(seen)
        assert [piece.source for piece in finding.evidence] == [
            "/proc/<pid>/environ of ray::Trainer"
        ]

    def test_a_refused_environment_is_not_an_unset_variable(self) -> None:
        refused = Unread("/proc/<pid>/environ", Status.DENIED, "1 processes")
        hidden = ProbeResult("processes", Status.OK, records=[process(1)], unread=[refused])
        nodes = [worker_node(host, process(1, NCCL_SOCKET_IFNAME="bond0")) for host in "ab"]
        assert not list(environment_mismatch(snapshot(*nodes, report("c", results=[hidden]))))

    def test_equal_values_are_silent(self) -> None:
        nodes = [worker_node(host, process(1, NCCL_SOCKET_IFNAME="bond0")) for host in "ab"]
        assert not list(environment_mismatch(snapshot(*nodes)))


def test_programs_that_differ_in_their_rank_only_are_alike() -> None:
    def ranked(rank: int, name: str) -> NodeReport:
        command = f"python train.py --node-rank {rank}"
        return worker_node(f"n{rank}", process(9, command, NCCL_SOCKET_IFNAME=name))

    well = [ranked(rank, "eth0") for rank in range(3)]
    (finding,) = environment_mismatch(snapshot(*well, ranked(3, "eth1")))
    assert (finding.failure_class, finding.host) == ("env-mismatch", "n3")
