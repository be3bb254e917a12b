from __future__ import annotations

import pytest

from raydiag.model import Confidence, Severity
from raydiag.probes.memory import MemoryState
from raydiag.rules.storage import cgroup_memory_pressure
from tests.rules.snapshots import report, snapshot

GIB = 1 << 30


def state(
    current: int | None,
    limit: int | None,
    inactive: int | None = 0,
    kills: int = 0,
    active: int | None = 0,
) -> MemoryState:
    return MemoryState(
        total_bytes=512 * GIB,
        available_bytes=400 * GIB,
        dirty_bytes=None,
        writeback_bytes=None,
        swap_total_bytes=0,
        swap_free_bytes=0,
        pressure={},
        oom_kills_since_boot=kills,
        cgroup_version=2,
        cgroup_path="/sys/fs/cgroup/job",
        cgroup_current_bytes=current,
        cgroup_limit_bytes=limit,
        cgroup_inactive_file_bytes=inactive,
        cgroup_active_file_bytes=active,
        cgroup_oom_kills=kills,
    )


def test_a_group_at_its_limit_is_a_warning() -> None:
    (finding,) = cgroup_memory_pressure(
        snapshot(report("a", memory=[state(97 * GIB, 100 * GIB, GIB)]))
    )
    assert (finding.failure_class, finding.host) == ("cgroup-memory-pressure", "a")
    assert finding.severity is Severity.WARNING
    assert finding.evidence[0].value == pytest.approx(0.96)
    assert finding.evidence[0].source == "/sys/fs/cgroup/job"


@pytest.mark.parametrize("unknown", [{"inactive": None}, {"active": None}])
def test_where_the_page_cache_is_not_known_it_is_possible_only(unknown: dict[str, None]) -> None:
    full = state(97 * GIB, 100 * GIB, **unknown)  # type: ignore[arg-type]
    (finding,) = cgroup_memory_pressure(snapshot(report("a", memory=[full])))
    assert finding.confidence is Confidence.POSSIBLE
    assert "page cache included" in finding.evidence[0].text


@pytest.mark.parametrize(
    "quiet",
    [
        state(97 * GIB, 100 * GIB, 40 * GIB),  # mostly page cache
        state(97 * GIB, 100 * GIB, GIB, active=8 * GIB),  # cache that was read twice
        state(89 * GIB, 100 * GIB),
        state(97 * GIB, None),
        state(None, 100 * GIB),
        state(GIB, 100 * GIB, kills=12),  # kills since boot
    ],
)
def test_room_or_an_unknown_is_silent(quiet: MemoryState) -> None:
    assert not list(cgroup_memory_pressure(snapshot(report("a", memory=[quiet]))))
