"""The count of kernel lines: what counts, that it never falls, what was lost, who comes after."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag import catalog
from raydiag.exporter import plugins
from raydiag.exporter.plugins.kernel_log import DRIVER_FAULT_SYMBOLS, Count, resumed
from raydiag.exporter.reading import NodeFiles, run
from tests.exporter import fake_sys

PLUGIN = plugins.load("kernel_log")
ERROR = "amdgpu 0000:05:00.0: amdgpu: ring gfx_0.0.0 timeout"


class Node:
    """A node's log in a file, and readers of it that come one after another."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state: dict[str, Any] = {}
        self.boot("first")
        self.log([])

    def boot(self, boot_id: str) -> None:
        fake_sys.write(self.root / "proc/sys/kernel/random/boot_id", boot_id)

    def log(self, records: list[tuple[int, str]], priority: int = 3) -> None:
        """Replace the ring's content."""
        lines = [f"{priority},{seq},{seq * 10},-;{text}" for seq, text in records]
        fake_sys.write(self.root / "dev/kmsg", "\n".join(lines))

    def append(self, record: str) -> None:
        path = self.root / "dev/kmsg"
        path.chmod(0o644)
        with path.open("a") as file:
            file.write(f"{record}\n")

    def cycle(self, new_reader: bool = False) -> dict[str, int]:
        if new_reader:
            fake_sys.write(self.root / "other/dev/kmsg", "6,0,0,-;another log")
            run(PLUGIN, None, NodeFiles(str(self.root / "other")), {})
        answer = run(PLUGIN, None, NodeFiles(str(self.root)), self.state)
        assert answer["failed"] is None, answer["failed"]
        self.state = dict(answer["state"])
        errors, lost = (sample.value for sample in answer["samples"])
        return {"errors": errors, "lost": lost}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("record", "counts"),
    [
        (f"3,1,1,-;{ERROR}", True),
        ("4,1,1,-;amdgpu: GPU reset begin!", True),
        ("0,1,1,-;[drm:foo] *ERROR* something", True),
        ("3,1,1,-;XGMI link FAILED", True),
        ("2,1,1,-;amdgpu: memory access fault", True),
        (f"5,1,1,-;{ERROR}", False),
        (f"6,1,1,-;{ERROR}", False),
        ("3,1,1,-;amdgpu: SMU is initialized", False),
        ("3,1,1,-;nvme0: I/O error", False),
        (f"12,1,1,-;{ERROR}", False),  # written by user space
        (f"11,1,1,-;{ERROR}", False),
        (f"3,1,1,-,caller=T7;{ERROR}", True),
        ("4,1,1,-; ? amdgpu_cper_ring_write+0x6a/0x2f0 [amdgpu]", False),
        (f"garbage;{ERROR}", False),
        (ERROR, False),
    ],
)
def test_which_lines_count(node: Node, record: str, counts: bool) -> None:
    fake_sys.write(node.root / "dev/kmsg", f"6,0,0,-;Linux version 6.8\n{record}\n")
    assert node.cycle() == {"errors": int(counts), "lost": 0}


def test_lines_that_come_later_are_added(node: Node) -> None:
    node.log([(0, "Linux"), (1, ERROR)])
    assert node.cycle()["errors"] == 1
    assert node.cycle()["errors"] == 1
    node.append(f"3,2,1,-;{ERROR}")
    node.append(f"3,3,1,-;{ERROR}")
    assert node.cycle() == {"errors": 3, "lost": 0}


def test_a_reader_that_comes_after_does_not_count_again(node: Node) -> None:
    node.log([(0, "Linux"), (1, ERROR), (2, ERROR)])
    assert node.cycle()["errors"] == 2
    assert node.cycle(new_reader=True) == {"errors": 2, "lost": 0}


def test_the_count_does_not_fall_when_records_leave_the_ring(node: Node) -> None:
    node.log([(0, "Linux"), (1, ERROR), (2, ERROR)])
    node.cycle()
    node.log([(2, ERROR), (3, "quiet")])
    assert node.cycle(new_reader=True) == {"errors": 2, "lost": 0}


def test_records_that_nobody_read_are_counted_as_lost(node: Node) -> None:
    node.log([(0, "Linux"), (1, ERROR)])
    node.cycle()
    node.log([(10, ERROR), (11, "quiet"), (15, "quiet")])
    assert node.cycle(new_reader=True) == {"errors": 2, "lost": 8 + 3}


def test_what_left_the_ring_before_the_first_look_is_not_lost_by_us(node: Node) -> None:
    node.log([(5000, ERROR)])
    assert node.cycle() == {"errors": 1, "lost": 0}


def test_after_a_reboot_it_starts_again(node: Node) -> None:
    node.log([(0, "Linux"), (1, ERROR), (2, ERROR)])
    node.cycle()
    node.boot("second")
    node.log([(0, "Linux"), (1, ERROR)])
    assert node.cycle(new_reader=True) == {"errors": 1, "lost": 0}


def test_a_log_that_is_too_long_for_one_cycle_is_read_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.log([(0, "Linux"), *((seq, ERROR) for seq in range(1, 1500))])
    with monkeypatch.context() as patch:
        patch.setattr("raydiag.exporter.plugins.kernel_log._READING_S", -1.0)
        first = node.cycle()["errors"]
        assert first < 1499
        assert node.state["is_behind"] is True
        assert node.cycle()["errors"] > first
    assert node.cycle() == {"errors": 1499, "lost": 0}
    assert node.state["is_behind"] is False


@pytest.mark.parametrize("content", ["", "no record at all\n"])
def test_nothing_to_read_is_not_checked(tmp_path: Path, content: str) -> None:
    fake_sys.write(tmp_path / "dev/kmsg", content)
    answer = run(PLUGIN, None, NodeFiles(str(tmp_path)), {})
    assert answer["failed"][0] == "denied"
    assert "was not checked" in answer["failed"][1]


def test_no_log_is_not_checked(tmp_path: Path) -> None:
    answer = run(PLUGIN, None, NodeFiles(str(tmp_path)), {})
    assert (answer["samples"], answer["failed"][0]) == ([], "denied")


@given(
    st.dictionaries(
        st.sampled_from(["boot_id", "seq", "errors", "lost", "driver_fault"]),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just("b")),
    )
)
def test_a_saved_state_that_makes_no_sense_is_none(state: dict[str, Any]) -> None:
    count = resumed(state, "b")
    assert count == Count("b") or vars(count) == state


def test_a_saved_state_of_this_boot_goes_on() -> None:
    saved = Count("b", 5, 6, 7, "aca_sysfs_read")
    assert resumed(vars(saved), "b") == saved
    assert resumed(vars(saved), "c") == Count("c")


@pytest.mark.parametrize("priority", [3, 6])
def test_the_driver_fault_is_told_until_the_next_boot(node: Node, priority: int) -> None:
    node.log([(0, "Linux"), (1, " ? amdgpu_cper_ring_write+0x6a/0x2f0 [amdgpu]")], priority)
    node.cycle()
    assert node.state["driver_fault"] == "amdgpu_cper_ring_write"
    node.log([(2, "quiet")])
    node.cycle(new_reader=True)
    assert node.state["driver_fault"] == "amdgpu_cper_ring_write"
    node.boot("second")
    node.cycle(new_reader=True)
    assert node.state["driver_fault"] == ""


def test_what_user_space_wrote_shows_no_fault(node: Node) -> None:
    node.log([(0, "Linux"), (1, "amdgpu_cper_ring_write, says somebody")], priority=12)
    node.cycle()
    assert node.state["driver_fault"] == ""


def test_functions_of_the_fault_are_the_catalogs() -> None:
    assert set(DRIVER_FAULT_SYMBOLS) == set(catalog.kernel_table().driver_fault_symbols)


def test_the_real_log_is_read_once_and_then_its_end_only() -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("/dev/kmsg cannot be read here")
    first = run(PLUGIN, None, NodeFiles("/"), {})
    if first["failed"] is not None:
        pytest.skip(f"/dev/kmsg: {first['failed'][1]}")
    assert first["state"]["seq"] > 0
    again = run(PLUGIN, None, NodeFiles("/"), first["state"])
    assert again["state"]["seq"] >= first["state"]["seq"]
    assert again["state"]["lost"] == first["state"]["lost"] == 0
    afresh = run(PLUGIN, None, NodeFiles("/"), {})
    assert afresh["state"]["errors"] >= first["state"]["errors"]
