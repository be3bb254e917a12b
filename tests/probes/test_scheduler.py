from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import Denied, NoData, ParseError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.scheduler import (
    SchedulerState,
    parse_cpu_list,
    parse_loadavg,
    parse_stat,
    scheduler,
)

# A write-only setting: opening it for reading is refused to everybody, root included.
EACCES_FILE = "/proc/sys/vm/compact_memory"
STAT = """cpu  70 0 30 700 10 1 2 3 0 0
cpu0 40 0 10 300 4 1 1 1 0 0
cpu1 20 0 10 200 3 0 1 1 0 0
cpu3 10 0 10 200 3 0 0 1 9 0
intr 12 0 5
ctxt 4711
btime 1760000000
processes 99
procs_running 6
procs_blocked 2
softirq 1 2 3
"""
FILES = {
    "proc/stat": STAT,
    "proc/loadavg": "6.50 5.25 4.00 6/812 4242",
    "proc/uptime": "86400.25 99999.00",
    "proc/self/status": "Name:\tpython3\nCpus_allowed_list:\t0-1,7\n",
    "proc/self/cgroup": "0::/job_7/step_0\n",
    "proc/pressure/cpu": "some avg10=61.50 avg60=40.25 avg300=12.00 total=9\n",
    "proc/pressure/io": "full avg10=1.00 avg60=2.00 avg300=3.00 total=9\n",
}
V2 = "sys/fs/cgroup"


def tree(root: Path, files: dict[str, str]) -> Host:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Host(str(root))


def read(host: Host) -> tuple[SchedulerState, list[Unread]]:
    found = list(scheduler(host))
    (state,) = [x for x in found if isinstance(x, SchedulerState)]
    return state, [x for x in found if isinstance(x, Unread)]


def v2_group(path: str, quota: str, cpus: str) -> dict[str, str]:
    directory = f"{V2}{path}"
    return {
        f"{directory}/cgroup.type": "domain",
        f"{directory}/cpu.max": quota,
        f"{directory}/cpuset.cpus.effective": cpus,
        f"{directory}/cpu.stat": (
            "usage_usec 2500000\nnr_periods 40\nnr_throttled 10\nthrottled_usec 1500000\n"
        ),
        f"{directory}/cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=55.00 total=1\n",
    }


def test_ok_node_and_the_cpus_that_we_may_use(tmp_path: Path) -> None:
    state, unread = read(tree(tmp_path, FILES))
    assert unread == []
    assert (state.cpus_online, state.cpus_allowed) == (3, 2)
    assert (state.load1, state.load5, state.load15, state.tasks) == (6.5, 5.25, 4.0, 812)
    assert (state.running, state.blocked, state.context_switches) == (6, 2, 4711)
    assert state.uptime_s == 86400.25
    assert (state.ticks["user"], state.ticks["idle"], state.ticks["steal"]) == (70, 700, 3)
    assert state.allowed_ticks["user"] == 60
    assert (state.pressure["cpu_some_avg60"], state.pressure["io_full_avg300"]) == (40.25, 3.0)
    assert (state.cgroup_version, state.cgroup_path, state.cgroup_usage_s) == (0, "", None)


def test_ok_v2_the_tightest_quota_counts(tmp_path: Path) -> None:
    files = {
        **FILES,
        f"{V2}/cgroup.controllers": "cpuset cpu memory",
        f"{V2}/cpu.stat": "usage_usec 9\n",
        **v2_group("/job_7", "150000 100000", "0-1,3"),
        **v2_group("/job_7/step_0", "max 100000", "0-1"),
    }
    state, unread = read(tree(tmp_path, files))
    assert unread == []
    assert (state.cgroup_version, state.cgroup_path) == (2, "/sys/fs/cgroup/job_7")
    assert (state.cgroup_quota_cpus, state.cgroup_cpus, state.cgroup_usage_s) == (1.5, 3, 2.5)
    assert (state.cgroup_periods, state.cgroup_throttled, state.cgroup_throttled_s) == (40, 10, 1.5)
    assert state.cgroup_pressure == {
        "cpu_some_avg10": 0.0,
        "cpu_some_avg60": 0.0,
        "cpu_some_avg300": 55.0,
    }
    assert not state.cgroup_is_root


def test_ok_v2_without_quota_the_outermost_smaller_cpuset(tmp_path: Path) -> None:
    files = {
        **FILES,
        f"{V2}/cgroup.controllers": "cpuset cpu",
        f"{V2}/cpuset.cpus.effective": "0-1,3",
        **v2_group("/job_7", "max 100000", "0-1"),
        **v2_group("/job_7/step_0", "max 100000", "0"),
    }
    state, _ = read(tree(tmp_path, files))
    assert (state.cgroup_path, state.cgroup_cpus) == ("/sys/fs/cgroup/job_7", 2)
    assert state.cgroup_quota_cpus is None


def test_ok_v2_on_the_node_itself_is_the_root(tmp_path: Path) -> None:
    files = {
        **FILES,
        "proc/self/cgroup": "0::/",
        f"{V2}/cgroup.controllers": "cpu",
        f"{V2}/cpu.stat": "usage_usec 7000000\n",
    }
    state, _ = read(tree(tmp_path, files))
    assert (state.cgroup_path, state.cgroup_is_root) == ("/sys/fs/cgroup", True)
    assert (state.cgroup_usage_s, state.cgroup_periods) == (7.0, None)


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_ok_v1_container(tmp_path: Path, mount: str) -> None:
    files = {
        **FILES,
        "proc/self/cgroup": "3:cpuset:/docker/1\n2:cpu,cpuacct:/docker/1\n",
        f"{V2}/{mount}/cgroup.procs": "",
        f"{V2}/{mount}/cpu.cfs_quota_us": "200000",
        f"{V2}/{mount}/cpu.cfs_period_us": "100000",
        f"{V2}/{mount}/cpu.stat": "nr_periods 8\nnr_throttled 4\nthrottled_time 3000000000\n",
        f"{V2}/cpuacct/cgroup.procs": "",
        f"{V2}/cpuacct/cpuacct.usage": "5000000000",
        f"{V2}/cpu,cpuacct/cpuacct.usage": "5000000000",
        f"{V2}/cpuset/cpuset.effective_cpus": "0-1",
    }
    state, unread = read(tree(tmp_path, files))
    assert unread == []
    assert (state.cgroup_version, state.cgroup_path) == (1, f"/sys/fs/cgroup/{mount}")
    assert (state.cgroup_quota_cpus, state.cgroup_usage_s, state.cgroup_cpus) == (2.0, 5.0, 2)
    assert (state.cgroup_throttled, state.cgroup_throttled_s) == (4, 3.0)
    assert (state.cgroup_is_root, state.cgroup_pressure) == (False, {})
    (tmp_path / f"{V2}/{mount}/release_agent").write_text("")
    assert read(Host(str(tmp_path)))[0].cgroup_is_root


@pytest.mark.parametrize("name", ["proc/stat", "proc/loadavg", "proc/uptime"])
def test_no_data_and_denied_without_its_main_files(tmp_path: Path, name: str) -> None:
    host = tree(tmp_path, FILES)
    (tmp_path / name).unlink()
    with pytest.raises(NoData):
        list(scheduler(host))
    (tmp_path / name).symlink_to(EACCES_FILE)
    with pytest.raises(Denied):
        list(scheduler(host))


def test_denied_and_malformed_parts_are_unread_and_unknown(tmp_path: Path) -> None:
    files = {
        **FILES,
        "proc/pressure/io": "full avg10=x\n",
        "proc/self/cgroup": "0::/job_7\n",
        "proc/self/status": "Cpus_allowed_list:\t0-x\n",
        f"{V2}/cgroup.controllers": "cpu",
        **v2_group("/job_7", "7", "0-"),
    }
    host = tree(tmp_path, files)
    (tmp_path / f"{V2}/job_7/cpu.stat").unlink()
    (tmp_path / f"{V2}/job_7/cpu.stat").symlink_to(EACCES_FILE)
    state, unread = read(host)
    assert (state.cpus_allowed, state.cgroup_quota_cpus, state.cgroup_usage_s) == (3, None, None)
    assert {(x.source, x.status) for x in unread} == {
        ("/proc/self/status", Status.ERROR),
        ("/proc/pressure/io", Status.ERROR),
        ("/sys/fs/cgroup/job_7/cpu.max", Status.ERROR),
        ("/sys/fs/cgroup/job_7/cpuset.cpus.effective", Status.ERROR),
        ("/sys/fs/cgroup/job_7/cpu.stat", Status.DENIED),
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("proc/stat", ""),
        ("proc/stat", STAT.replace("ctxt 4711\n", "")),
        ("proc/stat", STAT.replace("cpu1 20 0 10 200 3 0 1 1 0 0", "cpu1 20 0 10")),
        ("proc/loadavg", "1.0 2.0"),
        ("proc/loadavg", "1.0 2.0 x 1/2 3"),
        ("proc/uptime", "long"),
    ],
)
def test_malformed_main_file(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ParseError, match=f"/{name}"):
        list(scheduler(tree(tmp_path, {**FILES, name: text})))


@given(st.sets(st.integers(0, 600)))
def test_cpu_lists_survive(cpus: set[int]) -> None:
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    text = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
    assert parse_cpu_list(text + "\n") == cpus


@given(st.one_of(st.text(), st.text("0123456789-, cpu\n./")))
def test_arbitrary_text_gives_numbers_or_a_parse_error(text: str) -> None:
    for parse in (parse_stat, parse_loadavg, parse_cpu_list):
        try:
            parse(text)
        except ParseError as error:
            assert str(error)


def test_real_machine_counts_on() -> None:
    first, _ = read(Host())
    later, _ = read(Host())
    assert 1 <= first.cpus_allowed <= first.cpus_online
    assert sum(later.ticks.values()) >= sum(first.ticks.values()) > 0
    assert later.context_switches >= first.context_switches
