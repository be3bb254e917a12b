from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.cgroup import parse_numbers, parse_pressure
from raydiag.errors import Denied, NoData, ParseError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.memory import MemoryState, memory

EACCES_FILE = "/proc/sys/vm/compact_memory"  # write-only, also for root

MEMINFO = """\
MemTotal:       1000 kB
MemFree:         100 kB
MemAvailable:    600 kB
SwapTotal:        50 kB
SwapFree:         40 kB
Dirty:             7 kB
Writeback:         3 kB
WritebackTmp:      9 kB
HugePages_Total:   2
"""
NO_LIMIT_V1 = "9223372036854771712\n"
GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(root: Path) -> tuple[MemoryState, list[Unread]]:
    state, *unread = memory(Host(str(root)))
    assert isinstance(state, MemoryState)
    return state, [x for x in unread if isinstance(x, Unread)]


def v1_group(directory: str, limit: str, usage: int, cache: int, kills: int) -> dict[str, str]:
    return {
        f"{directory}/memory.limit_in_bytes": limit,
        f"{directory}/memory.usage_in_bytes": f"{usage}\n",
        f"{directory}/memory.stat": "active_file 2\ninactive_file 1\n"
        f"total_inactive_file {cache}\ntotal_active_file {cache + 7}\n",
        f"{directory}/memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n",
    }


def v2_group(directory: str, limit: str, usage: int, cache: int, kills: int) -> dict[str, str]:
    return {
        f"{directory}/memory.max": limit,
        f"{directory}/memory.current": f"{usage}\n",
        f"{directory}/memory.stat": f"anon 5\ninactive_file {cache}\nactive_file {cache + 7}\n",
        f"{directory}/memory.events": f"low 0\nmax 9\noom 8\noom_kill {kills}\n",
    }


def cgroup_of(state: MemoryState) -> tuple[object, ...]:
    inactive, active = state.cgroup_inactive_file_bytes, state.cgroup_active_file_bytes
    assert active == (None if inactive is None else inactive + 7)
    return (
        state.cgroup_version,
        state.cgroup_path,
        state.cgroup_limit_bytes,
        state.cgroup_current_bytes,
        state.cgroup_inactive_file_bytes,
        state.cgroup_oom_kills,
    )


def test_ok_node_values(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "/proc/meminfo": MEMINFO,
            "/proc/vmstat": "nr_free_pages 77\noom_kill 4\noom_kill_x 5\n",
            "/proc/pressure/memory": "some avg10=1.50 avg60=0.70 avg300=0.10 total=99\n"
            "full avg10=0.25 avg60=0.00 avg300=0.00 total=9\n",
            "/proc/pressure/cpu": "some avg10=12.00 avg60=8.00 avg300=3.00 total=123\n",
        },
    )
    state, unread = read(tmp_path)
    assert unread == []
    assert (state.total_bytes, state.available_bytes) == (1000 * 1024, 600 * 1024)
    assert (state.dirty_bytes, state.writeback_bytes) == (7 * 1024, 3 * 1024)
    assert (state.swap_total_bytes, state.swap_free_bytes) == (50 * 1024, 40 * 1024)
    assert state.oom_kills_since_boot == 4
    assert state.pressure == {
        "memory_some_avg10": 1.5,
        "memory_some_avg60": 0.7,
        "memory_some_avg300": 0.1,
        "memory_full_avg10": 0.25,
        "memory_full_avg60": 0.0,
        "memory_full_avg300": 0.0,
        "cpu_some_avg10": 12.0,
        "cpu_some_avg60": 8.0,
        "cpu_some_avg300": 3.0,
    }
    assert cgroup_of(state) == (0, "", None, None, None, None)


def test_ok_v2_container_sees_its_own_group_at_the_mount_root(tmp_path: Path) -> None:
    root = "/sys/fs/cgroup"
    write(
        tmp_path,
        {
            "/proc/meminfo": MEMINFO,
            "/proc/self/cgroup": "0::/kubepods.slice/pod7/abc\n",
            f"{root}/cgroup.controllers": "cpu memory pids\n",
            **v2_group(root, f"{4 * GIB}\n", usage=3 * GIB, cache=GIB, kills=2),
        },
    )
    assert cgroup_of(read(tmp_path)[0]) == (2, root, 4 * GIB, 3 * GIB, GIB, 2)


def test_ok_v2_tightest_limit_may_be_an_ancestors(tmp_path: Path) -> None:
    root, job = "/sys/fs/cgroup", "/sys/fs/cgroup/system.slice/job_9"
    write(
        tmp_path,
        {
            "/proc/meminfo": MEMINFO,
            "/proc/self/cgroup": "0::/system.slice/job_9/step_0\n",
            f"{root}/cgroup.controllers": "memory\n",
            **v2_group(f"{root}/system.slice", "max\n", usage=9 * GIB, cache=3 * GIB, kills=5),
            **v2_group(job, f"{2 * GIB}\n", usage=GIB, cache=20, kills=1),
            **v2_group(f"{job}/step_0", f"{8 * GIB}\n", usage=10, cache=5, kills=0),
        },
    )
    assert cgroup_of(read(tmp_path)[0]) == (2, job, 2 * GIB, GIB, 20, 1)


def test_ok_v2_of_equal_limits_the_outer_group_is_the_fuller_one(tmp_path: Path) -> None:
    root = "/sys/fs/cgroup"
    write(
        tmp_path,
        {
            "/proc/meminfo": MEMINFO,
            "/proc/self/cgroup": "0::/pod/main\n",
            f"{root}/cgroup.controllers": "memory\n",
            **v2_group(f"{root}/pod", f"{GIB}\n", usage=900, cache=9, kills=1),
            **v2_group(f"{root}/pod/main", f"{GIB}\n", usage=600, cache=8, kills=0),
        },
    )
    assert cgroup_of(read(tmp_path)[0]) == (2, f"{root}/pod", GIB, 900, 9, 1)


def test_ok_v2_without_limit_gives_our_own_group(tmp_path: Path) -> None:
    root = "/sys/fs/cgroup"
    write(
        tmp_path,
        {
            "/proc/meminfo": MEMINFO,
            "/proc/self/cgroup": "0::/user.slice/session:1\n",
            f"{root}/cgroup.controllers": "memory\n",
            **v2_group(f"{root}/user.slice", "max\n", usage=50, cache=9, kills=3),
            **v2_group(f"{root}/user.slice/session:1", "max\n", usage=40, cache=8, kills=0),
        },
    )
    assert cgroup_of(read(tmp_path)[0]) == (2, f"{root}/user.slice/session:1", None, 40, 8, 0)


def test_ok_v2_group_without_the_controller_counts_in_the_one_above(tmp_path: Path) -> None:
    root = "/sys/fs/cgroup"
    write(
        tmp_path,
        {
            "/proc/meminfo": MEMINFO,
            "/proc/self/cgroup": "0::/a/b\n",
            f"{root}/cgroup.controllers": "memory\n",
            **v2_group(f"{root}/a", "max\n", usage=50, cache=9, kills=3),
            f"{root}/a/b/cgroup.procs": "1\n",
        },
    )
    assert cgroup_of(read(tmp_path)[0]) == (2, f"{root}/a", None, 50, 9, 3)


def test_ok_hybrid_uses_version_1_and_its_huge_value_is_no_limit(tmp_path: Path) -> None:
    root = "/sys/fs/cgroup/memory"
    write(
        tmp_path,
        {
            "/proc/meminfo": MEMINFO,
            "/proc/self/cgroup": "9:name=systemd:/x\n4:cpu,memory:/slurm/job_3\n0::/elsewhere\n",
            "/sys/fs/cgroup/unified/cgroup.controllers": "\n",
            **v1_group(root, NO_LIMIT_V1, usage=90, cache=9, kills=0),
            **v1_group(f"{root}/slurm", f"{3 * GIB}\n", usage=80, cache=8, kills=0),
            **v1_group(f"{root}/slurm/job_3", NO_LIMIT_V1, usage=70, cache=7, kills=6),
        },
    )
    assert cgroup_of(read(tmp_path)[0]) == (1, f"{root}/slurm", 3 * GIB, 80, 8, 6)


def test_ok_v1_path_outside_of_the_namespace_is_the_mount_root(tmp_path: Path) -> None:
    root = "/sys/fs/cgroup/memory"
    write(
        tmp_path,
        {
            "/proc/meminfo": MEMINFO,
            "/proc/self/cgroup": "4:memory:/../../proc\n",
            **v1_group(root, NO_LIMIT_V1, usage=90, cache=9, kills=0),
        },
    )
    assert cgroup_of(read(tmp_path)[0]) == (1, root, None, 90, 9, 0)


def test_no_data_without_meminfo(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        list(memory(Host(str(tmp_path))))


def test_no_data_for_optional_parts_is_none_and_not_zero(tmp_path: Path) -> None:
    write(tmp_path, {"/proc/meminfo": "MemTotal: 8 kB\nMemAvailable: 4 kB\n"})
    state, unread = read(tmp_path)
    assert (state.dirty_bytes, state.writeback_bytes, state.oom_kills_since_boot) == (
        None,
        None,
        None,
    )
    assert state.pressure == {}
    assert unread == []


def test_denied_meminfo_is_denied(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").symlink_to(EACCES_FILE)
    with pytest.raises(Denied):
        list(memory(Host(str(tmp_path))))


def test_denied_part_is_unread_and_the_rest_stays(tmp_path: Path) -> None:
    write(tmp_path, {"/proc/meminfo": MEMINFO, "/proc/pressure/cpu": "some avg10=1.00 total=1\n"})
    (tmp_path / "proc/pressure/io").symlink_to(EACCES_FILE)
    state, unread = read(tmp_path)
    assert state.pressure == {"cpu_some_avg10": 1.0}
    assert [(x.source, x.status) for x in unread] == [("/proc/pressure/io", Status.DENIED)]


@pytest.mark.parametrize("text", ["", "MemTotal: 8 kB\n", "MemTotal: many kB\nMemAvailable: 1 kB"])
def test_malformed_meminfo_raises(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"/proc/meminfo": text})
    with pytest.raises(ParseError):
        list(memory(Host(str(tmp_path))))


def test_malformed_parts_are_unread(tmp_path: Path) -> None:
    root = "/sys/fs/cgroup"
    write(
        tmp_path,
        {
            "/proc/meminfo": MEMINFO,
            "/proc/pressure/io": "some avg10=high total=1\n",
            f"{root}/cgroup.controllers": "memory\n",
            **v2_group(root, "a lot\n", usage=5, cache=1, kills=0),
        },
    )
    state, unread = read(tmp_path)
    assert (state.cgroup_limit_bytes, state.cgroup_current_bytes) == (None, 5)
    assert [(x.source, x.status) for x in unread] == [
        ("/proc/pressure/io", Status.ERROR),
        (f"{root}/memory.max", Status.ERROR),
    ]


KEYS = st.text("abcdefghijklmnopqrstuvwxyzABCDEF()_0123456789", min_size=1)


@given(st.dictionaries(KEYS, st.integers(0, 2**64 - 1)), st.sampled_from(["{} {}", "{}:   {} kB"]))
def test_numbers_survive_both_line_forms(numbers: dict[str, int], form: str) -> None:
    assert parse_numbers("\n".join(form.format(*item) for item in numbers.items())) == numbers


@given(st.text())
def test_arbitrary_text_never_breaks_the_parsers(text: str) -> None:
    assert all(value >= 0 for value in parse_numbers(text).values())
    try:
        averages = parse_pressure("io", text)
    except ParseError:
        return
    assert all(0 <= value < float("inf") for value in averages.values())


@given(st.dictionaries(st.sampled_from(["some", "full"]), st.integers(0, 10000), min_size=1))
def test_pressure_survives(hundredths: dict[str, int]) -> None:
    lines = [f"{kind} avg10={n / 100:.2f} total=7" for kind, n in hundredths.items()]
    assert parse_pressure("cpu", "\n".join(lines)) == {
        f"cpu_{kind}_avg10": n / 100 for kind, n in hundredths.items()
    }


def test_real_machine_has_sane_numbers() -> None:
    (state,) = [x for x in memory(Host()) if isinstance(x, MemoryState)]
    assert 1 << 26 < state.available_bytes <= state.total_bytes < 1 << 50
    assert all(0 <= percent <= 100 for percent in state.pressure.values())
    if state.cgroup_current_bytes is not None:
        assert state.cgroup_current_bytes > (state.cgroup_inactive_file_bytes or 0) >= 0
