from __future__ import annotations

import pytest

from raydiag.model import NodeReport, Severity
from raydiag.probes.storage import MountUsage
from raydiag.rules.storage import exhausted_inodes, full_disks, stalled_storage
from tests.rules import test_cpu
from tests.rules.snapshots import report, snapshot

GIB = 1 << 30


def mount(
    available: int,
    total: int = 1000 * GIB,
    free_inodes: int = 500,
    fs_type: str = "ext4",
    point: str = "/scratch",
) -> MountUsage:
    return MountUsage(
        point, "/dev/nvme0n1p2", fs_type, total, available, available, 1000, free_inodes
    )


def overlays(available: int, free_inodes: int = 500) -> list[MountUsage]:
    """File systems of containers, which show the numbers of the disk that they lie on."""
    points = [f"/containers/{number}/merged" for number in range(30)]
    return [mount(available, 1000 * GIB, free_inodes, "overlay", point) for point in points]


@pytest.mark.parametrize(
    ("available", "total", "severity"),
    [
        (0, 1000 * GIB, Severity.CRITICAL),
        (9 * GIB, 1000 * GIB, Severity.CRITICAL),
        (19 * GIB, 1000 * GIB, Severity.WARNING),
        (4 * GIB, 100 * GIB, Severity.WARNING),
    ],
)
def test_a_full_disk(available: int, total: int, severity: Severity) -> None:
    (finding,) = full_disks(snapshot(report("a", storage=[mount(available, total)])))
    assert (finding.failure_class, finding.device) == ("disk-full", "/scratch")
    assert finding.severity is severity
    assert finding.evidence[0].value == available
    assert "/dev/nvme0n1p2 (ext4)" in finding.evidence[0].text


def test_sizes_are_told_in_human_units() -> None:
    (finding,) = full_disks(snapshot(report("a", storage=[mount(3 * GIB // 2)])))
    assert "1.5 GiB of 1000.0 GiB" in finding.evidence[0].text


@pytest.mark.parametrize(
    "quiet",
    [
        mount(30 * GIB),  # 3 %, but plenty
        mount(6 * GIB, 100 * GIB),  # little, but 6 %
        mount(9 << 40, 1 << 50, fs_type="lustre"),  # less than 1 %, but plenty
        mount(9 * GIB, 225 * GIB, fs_type="tmpfs", point="/dev/shm"),  # Ray's object store
        mount(64 << 20, 225 * GIB, fs_type="tmpfs", point="/dev/shm"),
        mount(0, 32 * 1024),  # too small to hold data
        mount(0, 0),
    ],
)
def test_room_enough_is_silent(quiet: MountUsage) -> None:
    assert not list(full_disks(snapshot(report("a", storage=[quiet]))))


@pytest.mark.parametrize("available", [0, 63 << 20])
def test_shared_memory_is_full_when_next_to_nothing_is_left(available: int) -> None:
    shm = mount(available, 225 * GIB, fs_type="tmpfs", point="/dev/shm")
    (finding,) = full_disks(snapshot(report("a", storage=[shm])))
    assert (finding.device, finding.severity) == ("/dev/shm", Severity.CRITICAL)


def test_containers_on_a_full_disk_are_that_one_disk() -> None:
    disk = mount(0, free_inodes=0, point="/")
    seen = snapshot(report("a", storage=[*overlays(0, 0), disk]))
    assert [one.device for one in full_disks(seen)] == ["/"]
    assert [one.device for one in exhausted_inodes(seen)] == ["/"]
    inside = snapshot(report("a", storage=overlays(0)))
    assert [one.device for one in full_disks(inside)] == ["/containers/0/merged"]


def test_an_overlay_on_another_disk_is_its_own() -> None:
    other = mount(0, 500 * GIB, fs_type="overlay", point="/elsewhere")
    roomy = mount(500 * GIB, point="/")
    full = mount(0, fs_type="overlay", point="/containers/full")
    seen = snapshot(report("a", storage=[roomy, full, other]))
    assert [one.device for one in full_disks(seen)] == ["/containers/full", "/elsewhere"]


@pytest.mark.parametrize(
    ("free_inodes", "severity"), [(0, Severity.CRITICAL), (9, Severity.WARNING)]
)
def test_inodes_run_out_before_space(free_inodes: int, severity: Severity) -> None:
    seen = snapshot(report("a", storage=[mount(500 * GIB, free_inodes=free_inodes)]))
    (finding,) = exhausted_inodes(seen)
    assert (finding.failure_class, finding.device) == ("inode-exhausted", "/scratch")
    assert finding.severity is severity
    assert not list(full_disks(seen))


def test_enough_or_uncounted_inodes_are_silent() -> None:
    uncounted = MountUsage("/b", "/dev/sdb", "btrfs", 100 * GIB, 50 * GIB, 50 * GIB, 0, 0)
    seen = snapshot(report("a", storage=[mount(500 * GIB, free_inodes=10), uncounted]))
    assert not list(exhausted_inodes(seen))


def test_a_full_xfs_is_one_fault() -> None:
    seen = snapshot(report("a", storage=[mount(0, free_inodes=0, fs_type="xfs")]))
    assert len(list(full_disks(seen))) == 1
    assert not list(exhausted_inodes(seen))


def stalled(minute: float, minutes: float, blocked: int, blocked_later: int) -> NodeReport:
    pressure = {"io_full_avg60": minute, "io_full_avg300": minutes}
    first = test_cpu.state(pressure=pressure, blocked=blocked)
    return test_cpu.node(first, test_cpu.after(first, blocked=blocked_later))


def test_work_that_stands_still_for_storage() -> None:
    (finding,) = test_cpu.judged(stalled_storage, stalled(35.0, 22.0, 4, 6))
    assert (finding.failure_class, finding.severity) == ("storage-stall", Severity.WARNING)
    assert finding.evidence[0].value == 22.0
    assert "6 threads wait for it now" in finding.evidence[0].text


def test_storage_that_nobody_waits_for_any_more_is_a_remark() -> None:
    (finding,) = test_cpu.judged(stalled_storage, stalled(35.0, 22.0, 4, 0))
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(("minute", "minutes"), [(95.0, 6.0), (15.0, 22.0), (0.0, 0.0)])
def test_a_short_wait_for_storage_is_nothing(minute: float, minutes: float) -> None:
    assert test_cpu.judged(stalled_storage, stalled(minute, minutes, 4, 6)) == []


def test_storage_is_not_judged_while_a_job_starts() -> None:
    assert test_cpu.judged(stalled_storage, stalled(35.0, 22.0, 4, 6), job_age_s=300) == []
