from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import Denied, NoData, ParseError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.processes import (
    JOB_VARIABLES,
    VARIABLES,
    RayProcess,
    masked,
    processes,
    selected_variables,
)

BOOT_S = 1_760_000_000
# A write-only setting: opening it for reading is refused to everybody, root included.
PATIENCE_S = 60.0  # of a busy machine
EACCES_FILE = "/proc/sys/vm/compact_memory"


class Node:
    """A fake /proc below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()
        (root / "proc/stat").write_text(f"btime {BOOT_S}\n")
        self.add(1, 0, "init", "/sbin/init")

    def add(
        self,
        pid: int,
        ppid: int,
        comm: str,
        command: str | None = None,
        environ: str = "HOME=/root\0",
        state: str = "S",
    ) -> None:
        """`command` in the form of cmdline; None: reading it is refused."""
        directory = self.root / f"proc/{pid}"
        directory.mkdir()
        (directory / "stat").write_text(
            f"{pid} ({comm}) {state} {ppid} 1 1 0 -1 0 0 0 0 0 5 5 0 0 20 0 12 0 300 8192 25 0 0\n"
        )
        if command is None:
            (directory / "cmdline").symlink_to(EACCES_FILE)
        else:
            (directory / "cmdline").write_text(command)
        (directory / "environ").write_text(environ)

    def read(self) -> tuple[list[RayProcess], list[Unread]]:
        found = list(processes(Host(str(self.root))))
        records = [item for item in found if isinstance(item, RayProcess)]
        return records, [item for item in found if isinstance(item, Unread)]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def ray_node(node: Node) -> Node:
    node.add(10, 1, "raylet", "/opt/ray/raylet\0--node_id=1\0")
    return node


def roles(records: list[RayProcess]) -> list[tuple[int, str, int | None]]:
    return [(x.pid, x.role, x.worker_pid) for x in records]


def test_ok_raylet_workers_and_what_they_started(ray_node: Node) -> None:
    environ = (
        "A=1\0NCCL_SOCKET_IFNAME=eth0\0API_KEY=hush\0TP_SOCKET_IFNAME=\0XNCCL_SOCKET_IFNAME=x\0"
        "SLURM_JOB_ID=4711\0SLURM_JOB_ID_OTHER=1\0"
    )
    ray_node.add(9, 22, "python3", "python3\0-u\0train.py\0", environ)
    ray_node.add(20, 10, "ray::IDLE", "ray::IDLE\0\0\0\0")
    ray_node.add(21, 10, "pt_main_thread", "ray::Trainer.step\0\0\0", environ)
    ray_node.add(22, 21, "bash", "bash\0-c\0run\0")
    ray_node.add(30, 1, "python3", "python3\0unrelated.py\0")
    records, unread = ray_node.read()
    assert unread == []
    assert roles(records) == [
        (9, "child", 21),
        (10, "raylet", None),
        (20, "worker", 20),
        (21, "worker", 21),
        (22, "child", 21),
    ]
    assert records[3] == RayProcess(
        pid=21,
        ppid=10,
        start_time_s=BOOT_S + 300 / os.sysconf("SC_CLK_TCK"),
        comm="pt_main_thread",
        command="ray::Trainer.step",
        role="worker",
        worker_pid=21,
        state="S",
        threads=12,
        rss_bytes=25 * os.sysconf("SC_PAGE_SIZE"),
        environment={"NCCL_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": ""},
        job={"SLURM_JOB_ID": "4711"},
    )
    assert records[0].command == "python3 -u train.py"
    assert records[0].environment == records[3].environment
    assert "hush" not in repr(records)


def test_ok_what_a_worker_forks_has_its_title_and_is_a_child(ray_node: Node) -> None:
    ray_node.add(20, 10, "ray::Trainer", "ray::Trainer\0")
    ray_node.add(21, 20, "ray::Trainer", "ray::Trainer\0")
    ray_node.add(22, 21, "sh", "sh\0")
    assert roles(ray_node.read()[0])[1:] == [
        (20, "worker", 20),
        (21, "child", 20),
        (22, "child", 20),
    ]


def test_ok_a_cluster_that_a_worker_started(ray_node: Node) -> None:
    ray_node.add(20, 10, "ray::Outer", "ray::Outer\0")
    ray_node.add(21, 20, "raylet", "raylet\0")
    ray_node.add(22, 21, "ray::Inner", "ray::Inner\0")
    assert roles(ray_node.read()[0])[1:] == [
        (20, "worker", 20),
        (21, "raylet", None),
        (22, "worker", 22),
    ]


def test_ok_what_the_raylet_knows_of_the_job(node: Node) -> None:
    environ = "NNODES=4\0GLOO_SOCKET_IFNAME=ib0\0SLURM_JOB_NODELIST=n[1-4]\0API_KEY=hush\0"
    node.add(10, 1, "raylet", "raylet\0", environ + f"JOB_NODELIST={'n1,' * 9999}\0")
    (raylet,) = node.read()[0]
    assert raylet.job == {"NNODES": "4", "SLURM_JOB_NODELIST": "n[1-4]"}
    assert raylet.environment == {}


def test_ok_what_is_known_of_the_job_is_told_once(node: Node) -> None:
    node.add(10, 1, "raylet", "raylet\0", "NNODES=4\0")
    node.add(20, 10, "ray::A", "ray::A\0", "NNODES=4\0")
    node.add(21, 20, "python", "python\0", "NNODES=4\0JAX_COORDINATOR_PORT=7000\0")
    node.add(9, 21, "python", "python\0", "NNODES=2\0JAX_COORDINATOR_PORT=7000\0")
    jobs = {x.pid: x.job for x in node.read()[0]}
    assert jobs == {
        9: {"NNODES": "2"},
        10: {"NNODES": "4"},
        20: {},
        21: {"JAX_COORDINATOR_PORT": "7000"},
    }


def test_rays_agents_are_no_workers(ray_node: Node) -> None:
    ray_node.add(20, 10, "ray::DashboardA", "ray::DashboardAgent\0")
    ray_node.add(21, 10, "ray::RuntimeEnv", None, state="D")
    ray_node.add(22, 20, "sh", "sh\0")
    records, unread = ray_node.read()
    assert roles(records) == [(10, "raylet", None), (20, "agent", None), (21, "agent", None)]
    assert unread == []
    assert [record.environment for record in records] == [{}, {}, {}]


def test_raydiag_itself_is_left_out(ray_node: Node) -> None:
    ray_node.add(20, 10, "ray::RaydiagNod", "ray::RaydiagNodeActor.collect\0")
    ray_node.add(21, 20, "python", "python\0-I\0-S\0")
    ray_node.add(22, 21, "rd-idle", "python\0-I\0-S\0")
    ray_node.add(23, 10, "ray::RaydiagNod", "ray::RaydiagNodeActor\0", state="D")
    ray_node.add(24, 10, "MainThread", "ray::RaydiagNodeActor\0")
    assert roles(ray_node.read()[0]) == [(10, "raylet", None)]


def test_jobs_are_told_without_their_supervisors_and_raydiags_own_not_at_all(
    ray_node: Node,
) -> None:
    ray_node.add(20, 10, "ray::JobSupervi", "ray::JobSupervisor\0")
    ray_node.add(21, 20, "sh", "sh\0-c\0python train.py\0")
    ray_node.add(22, 21, "python", "python\0train.py\0")
    own = "from raydiag.cluster.coordinator import main\n"
    ray_node.add(30, 10, "ray::JobSupervi", None)
    ray_node.add(31, 30, "sh", f"sh\0-c\0exec python -B -c '{own}' <<'RAYDIAG'\0")
    ray_node.add(32, 31, "python", f"python\0-B\0-c\0{own}\0")
    assert roles(ray_node.read()[0]) == [
        (10, "raylet", None),
        (21, "child", 20),
        (22, "child", 20),
    ]


def test_of_a_blocked_process_only_stat_is_read(ray_node: Node) -> None:
    ray_node.add(20, 10, "ray::Trainer", None, state="D")
    (ray_node.root / "proc/20/environ").unlink()
    (ray_node.root / "proc/20/environ").symlink_to(EACCES_FILE)
    records, unread = ray_node.read()
    worker = records[1]
    assert (worker.role, worker.state, worker.command, worker.environment) == (
        "worker",
        "D",
        "",
        {},
    )
    assert unread == []


def test_commands_of_unrelated_processes_are_not_read(ray_node: Node) -> None:
    ray_node.add(30, 1, "python3", None)
    records, unread = ray_node.read()
    assert (roles(records), unread) == ([(10, "raylet", None)], [])


def test_denied_environments_are_reported_together(ray_node: Node) -> None:
    for pid in (20, 21):
        ray_node.add(pid, 10, "ray::A", "ray::A\0")
        (ray_node.root / f"proc/{pid}/environ").unlink()
        (ray_node.root / f"proc/{pid}/environ").symlink_to(EACCES_FILE)
    records, unread = ray_node.read()
    assert [x.environment for x in records] == [{}, {}, {}]
    assert unread == [
        Unread(
            "/proc/<pid>/environ",
            Status.DENIED,
            "2 processes, the first: /proc/20/environ: Permission denied",
        )
    ]


def test_an_environment_that_the_title_overwrote_is_not_an_empty_one(ray_node: Node) -> None:
    ray_node.add(20, 10, "ray::A", "ray::A\0", environ="\0" * 400)
    ray_node.add(21, 10, "ray::A", "", environ="", state="Z")
    _, (unread,) = ray_node.read()
    assert (unread.source, unread.status) == ("/proc/<pid>/environ", Status.ERROR)
    assert unread.reason.startswith("1 processes")


def test_no_data_without_ray(node: Node) -> None:
    node.add(30, 1, "python3", "python3\0train.py\0")
    with pytest.raises(NoData, match="no Ray process is visible"):
        node.read()


def test_denied_when_processes_are_hidden(node: Node) -> None:
    (node.root / "proc/30").mkdir()
    (node.root / "proc/30/stat").symlink_to(EACCES_FILE)
    with pytest.raises(Denied, match="no Ray process is visible; /proc/<pid>/stat: 1 processes"):
        node.read()


def test_malformed_stat_costs_no_other_process(ray_node: Node) -> None:
    ray_node.add(20, 10, "ray::A", "ray::A\0")
    ray_node.add(21, 10, "ray::B", "ray::B\0")
    (ray_node.root / "proc/21/stat").write_text("21 (ray::B) S 10 x")
    records, (unread,) = ray_node.read()
    assert roles(records)[1:] == [(20, "worker", 20)]
    assert (unread.source, unread.status) == ("/proc/<pid>/stat", Status.ERROR)


def test_malformed_boot_time(ray_node: Node) -> None:
    (ray_node.root / "proc/stat").write_text("")
    with pytest.raises(ParseError, match="no btime"):
        ray_node.read()


def test_a_process_that_ends_meanwhile_and_a_loop_of_parents(ray_node: Node) -> None:
    ray_node.add(20, 10, "ray::A", "ray::A\0")
    ray_node.add(31, 32, "sh", "sh\0")
    ray_node.add(32, 31, "sh", "sh\0")
    for name in ("cmdline", "environ"):
        (ray_node.root / "proc/20" / name).unlink()
    records, unread = ray_node.read()
    assert (roles(records)[1:], unread) == ([(20, "worker", 20)], [])
    assert (records[1].command, records[1].environment) == ("", {})


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("train\0--hf-token=abc\0--lr=1\0", "train --hf-token=*** --lr=1"),
        ("train\0--hf_token\0abc def\0--lr\x001\0", "train --hf_token *** --lr 1"),
        ("env\0AWS_SECRET_ACCESS_KEY=abc\0python\0", "env AWS_SECRET_ACCESS_KEY=*** python"),
        ("sh\0-c\0export PASSWORD=abc; python x\0-x\0", "sh -c export PASSWORD=*** -x"),
        ('run\0{"api_key": "abc", "n": 1}\0', 'run {"api_key": ***'),
        ("curl\0-H\0Authorization: Bearer abc\0", "curl -H Authorization: ***"),
        ("git\0clone\0https://me:abc@example.org/x\0", "git clone https://***@example.org/x"),
        ("train\0--tokenizer=gpt2\0--max-tokens=9\0", "train --tokenizer=gpt2 --max-tokens=9"),
        ("python3\0utils/monkey_patch.py\0", "python3 utils/monkey_patch.py"),
    ],
)
def test_secrets_are_masked(command: str, shown: str) -> None:
    assert masked(command) == shown


def test_a_secret_is_masked_before_the_command_is_cut(ray_node: Node) -> None:
    ray_node.add(20, 10, "ray::A", "ray::A\0")
    ray_node.add(21, 20, "python3", f"python3\0{'x' * 170}\0--password={'s' * 300}\0")
    child = ray_node.read()[0][2]
    assert child.command == f"python3 {'x' * 170} --password=***"
    ray_node.add(22, 20, "python3", "y" * 900)
    assert ray_node.read()[0][3].command == "y" * 200


@given(
    st.sampled_from(["token", "SECRET", "db_password", "api-key"]),
    st.sampled_from(["=", "\0", ": ", " "]),
    st.text("0123456789", min_size=12),
)
def test_no_secret_survives(name: str, separator: str, secret: str) -> None:
    assert secret not in masked(f"run\0--{name}{separator}{secret}\0--more")


@given(st.lists(st.binary(max_size=30)), st.sampled_from(VARIABLES + JOB_VARIABLES))
def test_only_the_named_variables_are_kept(items: list[bytes], name: str) -> None:
    environ = b"\0".join([*items, name.encode() + b"=ib0"])
    found = selected_variables(environ)
    assert set(found) <= {*VARIABLES, *JOB_VARIABLES}
    assert found[name] == "ib0"


def test_real_processes() -> None:
    """A process that calls itself a Ray worker, and its child, with the environment of both."""
    code = (
        "import ctypes, subprocess, sys\n"
        "ctypes.CDLL(None).prctl(15, b'ray::Pretender', 0, 0, 0)\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "child.kill(); child.wait()\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"GLOO_SOCKET_IFNAME": "ib7", "API_TOKEN": "hush"},
    )
    try:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        end = time.monotonic() + PATIENCE_S
        command = Path(f"/proc/{child}/cmdline")
        while command.read_bytes() != b"sleep\x0060\0" and time.monotonic() < end:
            time.sleep(0.05)  # it is that of the program once exec is through
        found = {x.pid: x for x in processes(Host()) if isinstance(x, RayProcess)}
    finally:
        worker.communicate("", timeout=PATIENCE_S)
    assert (found[worker.pid].role, found[worker.pid].comm) == ("worker", "ray::Pretender")
    assert (found[child].role, found[child].worker_pid) == ("child", worker.pid)
    assert found[child].command == "sleep 60"
    assert (
        found[worker.pid].environment == found[child].environment == {"GLOO_SOCKET_IFNAME": "ib7"}
    )
    assert abs(found[worker.pid].start_time_s - time.time()) < 60
    assert found[worker.pid].rss_bytes > 1 << 20
