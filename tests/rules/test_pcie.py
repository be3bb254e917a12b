from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.explain.diagnosis import judge_nodes
from raydiag.model import Confidence, NodeReport, ProbeResult, Severity, Status
from raydiag.probes.kernel_log import KernelLine
from raydiag.probes.pcie import PcieFunction
from raydiag.rules.pcie import PciePaths, degraded_links, growing_link_errors
from tests.rules.gpu_records import ADDRESSES, amd_gpus
from tests.rules.snapshots import NOW, report, snapshot

GPU, NIC = ADDRESSES[0], "0000:c1:00.0"


def function(address: str, kind: str = "gpu", **values: Any) -> PcieFunction:
    names = {"gpu": "amdgpu", "rdma": "mlx5_0", "bridge": ""}
    models = {"gpu": "1002:75a0", "rdma": "15b3:1021", "bridge": ""}
    well: dict[str, Any] = {
        "name": names[kind],
        "gpu": ADDRESSES.index(address) if address in ADDRESSES else None,
        "model": models[kind],
        "above": "",
        "speed_gts": 32.0,
        "max_speed_gts": 32.0,
        "width": 16,
        "max_width": 16,
        "correctable": 5,
        "nonfatal": 0,
        "fatal": 0,
        "received_correctable": None,
        "received_nonfatal": None,
        "received_fatal": None,
    }
    return PcieFunction(address, kind, **{**well, **values})


def bridge(address: str, above: str = "", **values: Any) -> PcieFunction:
    return function(address, "bridge", above=above, **values)


def gpus(count: int = 8, **values: Any) -> list[PcieFunction]:
    """GPUs, each below a root port of its own; `values` are those of the first GPU."""
    ports = [bridge(f"0000:{n:02x}:01.1") for n in range(count)]
    found = [function(ADDRESSES[n], above=ports[n].address) for n in range(count)]
    return [replace(found[0], **values), *found[1:], *ports]


def changed(functions: Sequence[PcieFunction], address: str, **values: Any) -> list[PcieFunction]:
    return [replace(one, **values) if one.address == address else one for one in functions]


def nic(**values: Any) -> list[PcieFunction]:
    """A network card below its root port."""
    return [function(NIC, "rdma", **{"above": "0000:c0:01.0", **values}), bridge("0000:c0:01.0")]


def seen(*nodes: Sequence[PcieFunction], loaded: bool = False) -> Any:
    names = (f"node{n}" for n in range(9))
    probes: dict[str, Any] = {"gpu_sensors": amd_gpus()} if loaded else {}
    return snapshot(*(report(next(names), pcie=node, **probes) for node in nodes))


def grown(first: Sequence[PcieFunction], later: Sequence[PcieFunction]) -> NodeReport:
    result = ProbeResult("pcie", Status.OK, records=first, later=later, interval_s=1.25)
    return report("node0", results=[result])


class TestWidth:
    def test_a_narrowed_gpu_is_a_warning(self) -> None:
        (finding,) = degraded_links(seen(gpus(width=8), gpus()))
        assert (finding.failure_class, finding.severity) == ("pcie-degraded", Severity.WARNING)
        assert (finding.host, finding.gpu, finding.device) == ("node0", 0, GPU)
        assert finding.evidence[0].text == "x8, x16 is possible"
        assert finding.evidence[0].source == f"link of {GPU} below 0000:00:01.1"

    def test_a_link_that_only_its_partner_shows_is_that_of_the_gpu(self) -> None:
        (finding,) = degraded_links(seen(changed(gpus(), "0000:00:01.1", width=4)))
        assert (finding.gpu, finding.device) == (0, GPU)

    def test_a_single_one_with_a_partner_that_can_do_more(self) -> None:
        (finding,) = degraded_links(seen(nic(width=8)))
        assert (finding.device, finding.gpu, finding.severity) == (NIC, None, Severity.WARNING)
        assert "mlx5_0" in finding.evidence[1].text

    def test_a_narrow_slot_is_by_design(self) -> None:
        narrow = changed(gpus(width=8), "0000:00:01.1", width=8, max_width=8)
        assert not list(degraded_links(seen(narrow, gpus())))

    @pytest.mark.parametrize("values", [{"width": None}, {"width": 8, "max_width": 8}, {}])
    def test_well_or_unknown_is_silent(self, values: dict[str, Any]) -> None:
        assert not list(degraded_links(seen(gpus(**values), gpus())))
        assert not list(degraded_links(seen([])))

    def test_where_all_are_alike_it_is_wired_so(self) -> None:
        wired = [replace(one, width=8) for one in gpus()]
        found = list(degraded_links(seen(wired)))
        assert {one.severity for one in found} == {Severity.INFO}
        assert len(found) == 8
        found = list(degraded_links(seen(wired, gpus())))
        assert {(one.host, one.severity) for one in found} == {("node0", Severity.WARNING)}

    def test_the_same_slot_elsewhere_knows_best(self) -> None:
        found = list(degraded_links(seen(gpus(width=8), gpus(width=8), gpus(width=8))))
        assert [one.severity for one in found] == [Severity.INFO] * 3

    def test_without_partner_and_peer_nobody_can_tell(self) -> None:
        alone = [function(NIC, "rdma", width=8)]
        (finding,) = degraded_links(seen(alone))
        assert finding.severity is Severity.INFO
        assert "cannot be seen" in finding.explanation
        (finding,) = degraded_links(seen(alone, [function(NIC, "rdma")]))
        assert (finding.host, finding.severity) == ("node0", Severity.WARNING)

    def test_two_functions_of_one_card_are_one_link(self) -> None:
        second = function("0000:c1:00.1", "rdma", above="0000:c0:01.0", width=8, name="mlx5_1")
        (finding,) = degraded_links(seen([nic(width=8)[0], second, nic()[1]]))
        assert finding.device == NIC


class TestVirtualFunctions:
    """They have no link of their own; what the bridge above shows is that of the physical one."""

    BRIDGE = bridge("0000:c0:01.0", width=8)

    @pytest.mark.parametrize(
        "values",
        [
            {"max_width": None},
            {"virtual_function": True},  # some repeat what the physical one can do
            {"odd_width": 0},  # in a virtual machine, where nothing says that it is one
        ],
    )
    def test_they_are_not_judged_by_the_bridge(self, values: dict[str, Any]) -> None:
        lone = function(NIC, "rdma", **{"above": "0000:c0:01.0", "width": None, **values})
        assert not list(degraded_links(seen([lone, self.BRIDGE])))

    def test_they_do_not_stand_before_the_physical_one(self) -> None:
        values: dict[str, Any] = {"above": "0000:c0:01.0", "name": "mlx5_1"}
        virtual = function("0000:c1:00.2", "rdma", width=None, virtual_function=True, **values)
        physical = function(NIC, "rdma", above="0000:c0:01.0", width=8)
        (finding,) = degraded_links(seen([virtual, physical, self.BRIDGE]))
        assert finding.evidence[0].source == f"link of {NIC} below 0000:c0:01.0"


DEAD: Mapping[str, Any] = {
    **dict.fromkeys(("width", "max_width", "speed_gts", "max_speed_gts")),
    "odd_width": 63,
}


class TestDeadLinks:
    def test_a_gpu_that_does_not_answer(self) -> None:
        (finding,) = judge_nodes(seen(gpus(**DEAD)))
        assert (finding.failure_class, finding.host) == ("pcie-link-down", "node0")
        assert (finding.gpu, finding.device) == (0, GPU)
        assert (finding.severity, finding.confidence) == (Severity.CRITICAL, Confidence.LIKELY)
        assert finding.evidence[0].source == f"current_link_width of {GPU}"

    def test_the_same_slot_of_another_host_tells_too(self) -> None:
        found = list(degraded_links(seen(nic(**DEAD), nic())))
        assert [(one.failure_class, one.host) for one in found] == [("pcie-link-down", "node0")]
        assert "mlx5_0" in found[0].evidence[1].text

    @pytest.mark.parametrize(
        "node",
        [
            nic(**DEAD),  # nobody shows what is usual
            gpus(**DEAD, virtual_function=True),
            [replace(one, **DEAD) for one in gpus()],
        ],
    )
    def test_no_lanes_that_say_nothing(self, node: list[PcieFunction]) -> None:
        assert not list(degraded_links(seen(node)))

    @pytest.mark.parametrize(("lanes", "found"), [(0, False), (255, False), (63, True)])
    def test_a_virtual_machine_beside_other_hosts(self, lanes: int, found: bool) -> None:
        dead = function("0000:07:00.0", **{**DEAD, "odd_width": lanes})
        assert bool(list(degraded_links(seen([dead], gpus())))) is found
        for well in ([function("0000:07:00.0")], [function("0000:08:00.0"), dead]):
            assert next(degraded_links(seen([dead], well))).device == "0000:07:00.0"


class TestSwitch:
    """A GPU and two cards below one switch: root port, upper side, three lower sides."""

    NODE = (
        function(GPU, above="0000:03:00.0"),
        function(NIC, "rdma", above="0000:03:01.0"),
        function("0000:c2:00.0", "rdma", above="0000:03:02.0", name="mlx5_1"),
        bridge("0000:00:01.0", received_correctable=0, received_nonfatal=0, received_fatal=0),
        bridge("0000:02:00.0", above="0000:00:01.0"),
        *(bridge(f"0000:03:0{n}.0", above="0000:02:00.0") for n in range(3)),
    )

    def test_links_are_every_other_step(self) -> None:
        links = PciePaths(self.NODE).links()
        assert {(link.lower.address, link.upper and link.upper.address) for link in links} == {
            (GPU, "0000:03:00.0"),
            (NIC, "0000:03:01.0"),
            ("0000:c2:00.0", "0000:03:02.0"),
            ("0000:02:00.0", "0000:00:01.0"),
        }

    def test_the_uplink_is_the_only_gpus(self) -> None:
        narrow = changed(self.NODE, "0000:02:00.0", width=8)
        (finding,) = degraded_links(seen(narrow, self.NODE))
        assert (finding.gpu, finding.device) == (0, GPU)
        assert "0000:02:00.0 below 0000:00:01.0" in finding.evidence[0].source

    def test_what_cards_share_is_the_bridges(self) -> None:
        cards = [one for one in self.NODE if one.address != GPU]
        (finding,) = degraded_links(seen(changed(cards, "0000:02:00.0", width=8), cards))
        assert (finding.gpu, finding.device) == (None, "0000:02:00.0")
        assert finding.evidence[1].text == f"mlx5_0 {NIC}, mlx5_1 0000:c2:00.0"

    def test_the_root_port_counts_what_its_messages_tell_once_more(self) -> None:
        later = changed(self.NODE, NIC, nonfatal=3)
        later = changed(later, "0000:00:01.0", received_nonfatal=3)
        (finding,) = growing_link_errors(snapshot(grown(self.NODE, later)))
        assert (finding.device, finding.gpu) == (NIC, None)
        assert finding.evidence[0].value == 3.0

    def test_the_root_port_alone_stands_for_what_is_below(self) -> None:
        later = changed(self.NODE, "0000:00:01.0", received_fatal=1)
        (finding,) = growing_link_errors(snapshot(grown(self.NODE, later)))
        assert (finding.failure_class, finding.device) == ("pcie-fatal", GPU)
        assert "aer_rootport_total_err_fatal of 0000:00:01.0" in finding.evidence[0].source


class TestSpeed:
    SLOW = gpus(speed_gts=2.5)

    def test_an_idle_gpu_may_lower_it(self) -> None:
        assert not list(degraded_links(seen(self.SLOW, gpus())))

    def test_a_loaded_gpu_whose_peers_are_faster(self) -> None:
        (finding,) = degraded_links(seen(self.SLOW, gpus(), loaded=True))
        assert (finding.gpu, finding.severity) == (0, Severity.WARNING)
        assert finding.evidence[0].text == "2.5 GT/s, 32 GT/s is possible"

    def test_loaded_gpus_that_are_all_alike(self) -> None:
        slow = [replace(one, speed_gts=16.0) for one in gpus()]
        assert not list(degraded_links(seen(slow, loaded=True)))

    def test_a_card_has_no_reason_to_be_slow(self) -> None:
        (finding,) = degraded_links(seen(nic(speed_gts=8.0)))
        assert (finding.device, finding.severity) == (NIC, Severity.WARNING)
        found = list(degraded_links(seen(nic(speed_gts=8.0), nic(speed_gts=8.0))))
        assert [one.severity for one in found] == [Severity.INFO] * 2

    def test_a_slower_slot_is_by_design(self) -> None:
        card = [nic(speed_gts=16.0)[0], bridge("0000:c0:01.0", max_speed_gts=16.0)]
        assert not list(degraded_links(seen(card)))


class TestGrowth:
    @pytest.mark.parametrize(
        ("kind", "failure_class"),
        [
            ("correctable", "pcie-degraded"),
            ("nonfatal", "pcie-degraded"),
            ("fatal", "pcie-fatal"),
        ],
    )
    @pytest.mark.parametrize("at", [GPU, "0000:00:01.1"])
    def test_errors_at_either_end_are_the_gpus(
        self, kind: str, failure_class: str, at: str
    ) -> None:
        later = changed(gpus(), at, **{kind: 12})
        (finding,) = judge_nodes(snapshot(grown(gpus(), later)))
        assert (finding.failure_class, finding.gpu, finding.device) == (failure_class, 0, GPU)
        assert finding.severity is not Severity.INFO
        assert finding.evidence[0].text.endswith(f"{kind} errors within 1.2 s")
        assert at in finding.evidence[0].source

    def test_one_corrected_error_is_a_remark(self) -> None:
        later = changed(gpus(), GPU, correctable=6)
        (finding,) = growing_link_errors(snapshot(grown(gpus(), later)))
        assert finding.severity is Severity.INFO
        both = changed(later, "0000:00:01.1", correctable=6)  # the same one, at the other end
        (finding,) = growing_link_errors(snapshot(grown(gpus(), both)))
        assert finding.severity is Severity.INFO
        assert len(finding.evidence) == 2
        two = changed(later, "0000:00:01.1", correctable=7)
        (finding,) = growing_link_errors(snapshot(grown(gpus(), two)))
        assert finding.severity is None

    def test_errors_of_two_links_are_two(self) -> None:
        node = list(TestSwitch.NODE)
        later = changed(changed(node, GPU, correctable=6), "0000:02:00.0", correctable=6)
        (finding,) = growing_link_errors(snapshot(grown(node, later)))
        assert (finding.device, finding.severity) == (GPU, None)

    def test_both_functions_of_a_card_note_the_same_error(self) -> None:
        node = [*nic(), function("0000:c1:00.1", "rdma", above="0000:c0:01.0", name="mlx5_1")]
        later = [replace(one, correctable=6) for one in node]
        found = list(growing_link_errors(snapshot(grown(node, later))))
        assert {one.severity for one in found} == {Severity.INFO}

    @pytest.mark.parametrize("count", [5, 4, None])
    def test_a_counter_that_stands_or_was_set_back_is_silent(self, count: int | None) -> None:
        later = changed(gpus(), GPU, correctable=count)
        assert not list(growing_link_errors(snapshot(grown(gpus(), later))))

    def test_totals_of_one_sample_decide_nothing(self) -> None:
        many = changed(gpus(), GPU, correctable=90_000, fatal=3)
        assert not list(growing_link_errors(seen(many)))

    def test_one_fault_is_one_finding(self) -> None:
        first = gpus(width=8)
        later = changed(changed(first, GPU, correctable=50), "0000:00:01.1", nonfatal=2)
        (finding,) = judge_nodes(snapshot(grown(first, later)))
        assert (finding.severity, finding.gpu, finding.device) == (Severity.WARNING, 0, GPU)
        assert len(finding.evidence) == 3

    def test_the_kernels_word_about_the_port_above_is_evidence_of_the_same(self) -> None:
        text = "pcieport 0000:00:01.1: AER: Uncorrected (Non-Fatal) error received: 0000:00:01.1"
        line = KernelLine(1, NOW - 5, 1.0, 3, 0, text, True, 0)
        logged = ProbeResult("kernel_log", Status.OK, records=[line])
        sensors = ProbeResult("gpu_sensors", Status.OK, records=amd_gpus())
        first, later = gpus(), changed(gpus(), GPU, nonfatal=2)
        counted = ProbeResult("pcie", Status.OK, records=first, later=later, interval_s=1.0)
        (finding,) = judge_nodes(snapshot(report("node0", results=[logged, sensors, counted])))
        assert (finding.failure_class, finding.gpu, finding.device) == ("pcie-degraded", 0, GPU)
        assert {piece.text for piece in finding.evidence} >= {
            text,
            "2 nonfatal errors within 1.0 s",
        }


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), unique_by=lambda pair: pair[0]))
def test_paths_end_whatever_a_node_says(above: list[tuple[int, int]]) -> None:
    """A node may lie: a bridge above itself must not keep us for ever."""
    functions = [
        function(f"0000:0{here}:00.0", "bridge" if here % 2 else "gpu", above=f"0000:0{up}:00.0")
        for here, up in above
    ]
    paths = PciePaths(functions)
    assert len(list(paths.links())) <= len(functions) * (len(functions) + 1)
    for one in functions:
        assert paths.bearer(one) in functions
