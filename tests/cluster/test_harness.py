"""The harness itself: are hosts, hanging file and fake node what they claim to be?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import fuse_hang, namespaces, simulated_hosts
from .fake_node import (
    KernelRecord,
    as_seen_on_host,
    boot_time_s,
    cper_oops_records,
    kmsg,
    quiet_records,
    ras_file,
    set_ras,
    write_amdgpu,
    write_kmsg,
)
from .fuse_hang import HangingFile
from .simulated_hosts import Cluster, HostSpec

needs_hosts = pytest.mark.skipif(bool(namespaces.unavailable()), reason=namespaces.unavailable())
needs_fuse = pytest.mark.skipif(bool(fuse_hang.unavailable()), reason=fuse_hang.unavailable())

# What a Ray task, run on each node, sees there: host name, GPUs, kernel log.
_LOOK_AROUND = """
import json, os, socket, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
def look():
    gpus = sorted(n for n in os.listdir("/sys/bus/pci/drivers/amdgpu") if ":" in n)
    return socket.gethostname(), gpus, open("/dev/kmsg").read(), os.listdir("/sys/class/hwmon")
look = ray.remote(num_cpus=0)(look)
nodes = [n for n in ray.nodes() if n["Alive"]]
seen = [look.options(scheduling_strategy=On(n["NodeID"], soft=False)).remote() for n in nodes]
print(json.dumps([[n["NodeManagerHostname"], *ray.get(s)] for n, s in zip(nodes, seen)]))
"""


def wait_until(condition: Callable[[], object], deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


def ours_left(directory: Path) -> list[str]:
    """Mounts and processes that still name the cluster's directory."""
    left = [m for m in Path("/proc/self/mounts").read_text().splitlines() if str(directory) in m]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in command:
            left.append(str(process))
    return left


# ---- simulated hosts


@pytest.fixture(scope="module")
def sys_trees(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two nodes: eight GPUs, and two GPUs with a driver fault in the log."""
    trees = [tmp_path_factory.mktemp(name) for name in ("eight", "two")]
    write_amdgpu(trees[0] / "sys", gpus=8)
    write_kmsg(trees[0] / "kmsg", quiet_records())
    write_amdgpu(trees[1] / "sys", gpus=2)
    write_kmsg(trees[1] / "kmsg", cper_oops_records(time.time()))
    return trees


@pytest.fixture(scope="module")
def mirrored(sys_trees: list[Path]) -> Iterator[HangingFile]:
    """The second node's /sys, in which reads can be made to hang."""
    if fuse_hang.unavailable():
        pytest.skip(fuse_hang.unavailable())
    with HangingFile(sys_trees[1] / "sys") as hanging:
        yield hanging


@pytest.fixture(scope="module")
def two_hosts(sys_trees: list[Path], mirrored: HangingFile) -> Iterator[Cluster]:
    if namespaces.unavailable():
        pytest.skip(namespaces.unavailable())
    names = ("alpha", "beta")
    specs = [
        HostSpec(name, sys=tree / "sys", kmsg=tree / "kmsg", tmpfs={"/mnt": 1 << 20})
        for name, tree in zip(names, sys_trees, strict=True)
    ]
    with Cluster(specs) as cluster:
        yield cluster


@pytest.mark.cluster
def test_each_node_sees_its_own_machine(two_hosts: Cluster) -> None:
    argv = [sys.executable, "-c", _LOOK_AROUND, two_hosts.gcs_address]
    done = two_hosts.run_on(two_hosts.head, argv)
    assert done.returncode == 0, done.stderr
    seen = {ray_name: rest for ray_name, *rest in json.loads(done.stdout.splitlines()[-1])}
    assert seen.keys() == {"alpha", "beta"}
    for name, gpus, oops in (("alpha", 8, False), ("beta", 2, True)):
        hostname, addresses, log, hwmon = seen[name]
        assert hostname == name
        assert len(addresses) == gpus
        assert len(hwmon) == gpus + 1
        assert ("RIP: 0010:amdgpu_cper_ring_get_ent_sz" in log) is oops


@pytest.mark.cluster
def test_a_host_has_its_own_names_processes_and_disks(two_hosts: Cluster) -> None:
    show = "hostname; cat /proc/1/comm; ps -e -o comm= | grep -c raylet; df -B1 --output=size /mnt"
    done = two_hosts.run_on("beta", ["sh", "-c", show])
    assert done.stdout.split() == ["beta", "bash", "1", "1B-blocks", str(1 << 20)]
    assert two_hosts.run_on("beta", ["getent", "hosts", "alpha"]).stdout.split()[0] == "10.77.0.1"
    assert set(two_hosts.processes("alpha")).isdisjoint(two_hosts.processes("beta"))
    assert os.uname().nodename not in ("alpha", "beta")


@pytest.mark.cluster
def test_commands_keep_status_directory_and_environment(two_hosts: Cluster, tmp_path: Path) -> None:
    script = 'pwd; echo "$RAY_AUTH_MODE $MORE"; echo oops >&2; exit 3'
    done = two_hosts.run_on("beta", ["sh", "-c", script], cwd=tmp_path, env={"MORE": "1"})
    assert (done.returncode, done.stderr) == (3, "oops\n")
    assert done.stdout == f"{tmp_path}\ndisabled 1\n"


@pytest.mark.cluster
def test_a_command_that_takes_too_long_is_ended(two_hosts: Cluster) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        two_hosts.run_on("beta", ["sleep", "7654"], timeout=0.3)
    running = two_hosts.run_on("beta", ["ps", "-e", "-o", "args="]).stdout
    assert "sleep 7654" not in running
    process = two_hosts.popen_on("beta", ["sleep", "7654"])
    two_hosts.signal(process, signal.SIGTERM)
    assert process.wait(5) == -signal.SIGTERM


@pytest.mark.cluster
def test_a_reader_on_a_host_is_stuck_until_release(
    two_hosts: Cluster, mirrored: HangingFile, sys_trees: list[Path]
) -> None:
    tree = sys_trees[1] / "sys"
    gpu = sorted((tree / "bus/pci/drivers/amdgpu").glob("0000:*"))[0].resolve()
    path = as_seen_on_host(tree, ras_file(gpu, "umc"))
    mirrored.hang(ras_file(gpu, "umc"))
    try:
        reader = two_hosts.popen_on("beta", ["cat", path], stdout=subprocess.PIPE)
        pids = mirrored.wait_for_readers(1)
        two_hosts.signal(reader, signal.SIGKILL)
        wait_until(lambda: mirrored.stuck_pids("cat") == pids)
        states = ["ps", "-e", "-o", "stat=,comm="]
        assert "D    cat" in two_hosts.run_on("beta", states).stdout
        assert " cat" not in two_hosts.run_on("alpha", states).stdout
        other = as_seen_on_host(tree, ras_file(gpu, "gfx"))
        assert two_hosts.run_on("beta", ["cat", other], timeout=5).stdout == "ue: 0\nce: 0\nde: 0\n"
    finally:
        mirrored.release()
    assert reader.wait(5) == -signal.SIGKILL
    assert two_hosts.run_on("beta", ["cat", path], timeout=5).stdout == "ue: 0\nce: 0\nde: 0\n"


@pytest.mark.cluster
def test_a_cut_link_and_a_killed_raylet_are_dead_nodes() -> None:
    if reason := namespaces.unavailable():
        pytest.skip(reason)
    bystander = HostSpec("desk", ray=False)
    # With the same addresses as the cluster of the other tests, which runs at the same time.
    with Cluster(["head", "cut", "killed", bystander], auth="token") as cluster:
        directory, networks = cluster.directory, [h.network for h in cluster.hosts.values()]
        assert cluster.node_states() == dict.fromkeys(("head", "cut", "killed"), "ALIVE")
        reach = ["bash", "-c", f"exec 3<>/dev/tcp/head/{simulated_hosts.GCS_PORT}"]
        assert cluster.run_on("desk", reach, timeout=5).returncode == 0
        cluster.cut_link("cut")
        cluster.kill_raylet("killed")
        for name in ("cut", "killed"):
            cluster.wait_for_state(name, "DEAD", 60)
        assert cluster.node_states()["head"] == "ALIVE"
        cluster.cut_link("desk")
        with pytest.raises(subprocess.TimeoutExpired):
            cluster.run_on("desk", reach, timeout=0.5)
        cluster.restore_link("desk")
        assert cluster.run_on("desk", reach, timeout=10).returncode == 0
    assert not any(namespaces.processes_in(network) for network in networks)
    assert not directory.exists()
    assert ours_left(directory) == []


@pytest.mark.cluster
@needs_hosts
def test_nothing_is_left_when_the_test_run_is_killed() -> None:
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from cluster.simulated_hosts import Cluster, HostSpec\n"
        "with Cluster([HostSpec('lonely', ray=False)]) as cluster:\n"
        "    print(cluster.hosts['lonely'].network, cluster.directory, flush=True)\n"
        "    time.sleep(60)\n"
    )
    argv = [sys.executable, "-c", script, str(Path(__file__).parents[1])]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        network, directory = run.stdout.readline().split()
        assert namespaces.processes_in(network)
        run.kill()
    wait_until(lambda: not namespaces.processes_in(network))
    wait_until(lambda: not os.path.exists(directory))
    wait_until(lambda: ours_left(Path(directory)) == [])


@pytest.mark.cluster
@needs_hosts
def test_a_cluster_that_does_not_start_says_why_and_leaves_nothing() -> None:
    cluster = Cluster([HostSpec("broken", ray_args=["--no-such-option"])])
    with pytest.raises(RuntimeError, match="--no-such-option"):
        cluster.__enter__()
    assert not cluster.directory.exists()
    assert ours_left(cluster.directory) == []


# ---- the hanging file


@needs_fuse
def test_hung_reads_leave_the_rest_readable(tmp_path: Path) -> None:
    (tmp_path / "ras").mkdir()
    hung, well = tmp_path / "ras/aca_umc", tmp_path / "ras/aca_gfx"
    hung.write_text("ue: 1\n")
    well.write_text("ue: 0\n")
    with HangingFile(tmp_path, hang=("ras/aca_umc",)) as mount:
        # More than the ten threads of libfuse's default.
        readers = [subprocess.Popen(["cat", hung], stdout=subprocess.PIPE) for _ in range(12)]
        pids = mount.wait_for_readers(12)
        for reader in readers[1:]:
            reader.kill()
        killed = sorted(reader.pid for reader in readers[1:])
        wait_until(lambda: mount.stuck_pids() == killed)
        assert pids == sorted(reader.pid for reader in readers)
        assert mount.stuck_pids("other") == []
        assert well.read_text() == "ue: 0\n"
        assert hung.stat().st_size == 6
        assert sorted(p.name for p in hung.parent.iterdir()) == ["aca_gfx", "aca_umc"]
        assert os.statvfs(tmp_path).f_blocks > 0
        mount.release()
        assert readers[0].communicate(timeout=5)[0] == b"ue: 1\n"
        for reader in readers[1:]:
            reader.communicate(timeout=5)
        assert mount.reader_pids() == []
        assert hung.read_text() == "ue: 1\n"
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


@needs_fuse
def test_a_hung_statfs_and_an_exit_without_release(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with HangingFile(tmp_path) as mount:
        mount.hang(tmp_path, "statfs")
        reader = subprocess.Popen(["stat", "-f", tmp_path], stdout=subprocess.DEVNULL)
        assert mount.wait_for_readers(1) == [reader.pid]
        assert (tmp_path / "file").read_text() == "x"
        reader.kill()
        wait_until(lambda: mount.stuck_pids("stat") == [reader.pid])
    assert reader.wait(5) == -signal.SIGKILL
    with pytest.raises(ValueError, match="not below"):
        mount.hang("/etc/passwd")


@needs_fuse
def test_no_mount_is_left_when_the_test_run_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from cluster.fuse_hang import HangingFile\n"
        "with HangingFile(sys.argv[2]):\n"
        "    print('mounted', flush=True)\n"
        "    time.sleep(60)\n"
    )
    argv = [sys.executable, "-c", script, str(Path(__file__).parents[1]), str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "mounted\n"
        assert str(tmp_path) in Path("/proc/self/mounts").read_text()
        run.kill()
    wait_until(lambda: str(tmp_path) not in Path("/proc/self/mounts").read_text())


# ---- the fake node


def test_gpus_are_reached_by_every_way_and_hwmon_has_another_order(tmp_path: Path) -> None:
    gpus = write_amdgpu(tmp_path, gpus=3, temperatures_c={2: 91.5}, kfd_users=[4242])
    for gpu in gpus:
        assert (tmp_path / "bus/pci/drivers/amdgpu" / gpu.name).resolve() == gpu
        assert (gpu / "driver").resolve() == tmp_path / "bus/pci/drivers/amdgpu"
    order = {}
    for hwmon in (tmp_path / "class/hwmon").iterdir():
        if (hwmon / "name").read_text() == "amdgpu\n":
            order[int(hwmon.name.removeprefix("hwmon"))] = (hwmon / "device").resolve()
    assert [order[number] for number in sorted(order)] == gpus[::-1]
    hottest = next((gpus[2] / "hwmon").iterdir())
    assert (hottest / "temp2_input").read_text() == "91500\n"
    assert os.listdir(tmp_path / "class/kfd/kfd/proc") == ["4242"]
    assert (tmp_path / "module/amdgpu/version").read_text() == "6.14.14\n"


def test_ras_counters_in_both_schemes(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    gpu = write_amdgpu(new, gpus=2, ras={1: {"umc": (0, 12, 3)}})[1]
    assert ras_file(gpu, "umc").read_text() == "ue: 0\nce: 12\nde: 3\n"
    set_ras(gpu, "umc", (1, 12, 3))
    assert ras_file(gpu, "umc").read_text().startswith("ue: 1\n")
    gpu = write_amdgpu(old, gpus=1, ras_names="err_count", driver_version="")[0]
    assert (gpu / "ras/xgmi_wafl_err_count").read_text() == "ue: 0\nce: 0\n"
    assert not (old / "module/amdgpu/version").exists()


def test_kernel_records_have_the_real_form() -> None:
    text = kmsg([KernelRecord("hello", 1000.25, 3, device="0000:05:00.0")], 1000.0, first_seq=7)
    assert text == "3,7,250000,-;hello\n SUBSYSTEM=pci\n DEVICE=+pci:0000:05:00.0\n"
    assert kmsg([KernelRecord("by hand", 1000.0, 4, facility=1)], 1000.0) == "12,0,0,-;by hand\n"
    with pytest.raises(ValueError, match="before the boot"):
        kmsg([KernelRecord("too old", 999.0)], boot_s=1000.0)
    assert boot_time_s() < time.time()
    times = [record.time_s for record in cper_oops_records(5000.0)]
    assert times == sorted(times)
