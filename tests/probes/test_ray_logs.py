from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raydiag.errors import Denied, NoData, ReadError
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes import ray_logs as ray_logs_module
from raydiag.probes.ray_logs import RayLog, ray_logs

# Real kernel files whose reading fails for everybody, root included.
EACCES_FILE, EIO_FILE = "/proc/sys/vm/compact_memory", "/proc/self/mem"

SESSION = "session_2026-02-12_19-43-07_880086_14947"
UPTIME_S = 50_000.0
RAYLET = 500
STEP = "completed step: {}, seconds: 3.412, TFLOP/s/device: 402.1, loss: 2.871\n"


class Node:
    """A tree with a raylet and its session's logs."""

    def __init__(self, root: Path, session: str = SESSION, temp: str = "/scratch/ray") -> None:
        self.root = root
        self.logs = f"{temp}/{session}/logs"
        (root / self.logs[1:]).mkdir(parents=True)
        (root / "proc").mkdir(exist_ok=True)
        (root / "proc/uptime").write_text(f"{UPTIME_S} 1000.0\n")

    def process(
        self, pid: int, comm: str, ppid: int, cmdline: str = "", state: str = "S", cpu_s: float = 0
    ) -> None:
        directory = self.root / f"proc/{pid}"
        directory.mkdir()
        ticks = int((UPTIME_S - 1000) * os.sysconf("SC_CLK_TCK"))
        used = int(cpu_s * os.sysconf("SC_CLK_TCK"))
        rest = f"{ppid} 1 1 0 -1 4194560 1 0 0 0 {used} 0 0 0 20 0 9 0 {ticks} 1 1 1 0 0 0"
        (directory / "stat").write_text(f"{pid} ({comm}) {state} {rest}\n")
        (directory / "comm").write_text(f"{comm}\n")
        (directory / "cmdline").write_text(cmdline)

    def raylet(self, pid: int = RAYLET, session: str = SESSION, state: str = "S") -> None:
        directory = self.logs.rsplit("/", 2)[0] + f"/{session}"
        arguments = (
            "/site-packages/ray/core/src/ray/raylet/raylet",
            "--python_worker_command=python default_worker.py --session-name=other",
            f"--session_dir={directory}",
            f"--log_dir={directory}/logs",
            f"--session-name={session}",
        )
        self.process(pid, "raylet", 1, "\0".join(arguments) + "\0", state)

    def log(self, name: str, text: str | bytes, age_s: float = 1.0) -> str:
        path = self.root / self.logs[1:] / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        then = time.time() - age_s
        os.utime(path, (then, then))
        return f"{self.logs}/{name}"

    def worker(self, pid: int, out: str, err: str = "", age_s: float = 1.0) -> str:
        self.process(pid, "ray::Trainer.tr", RAYLET)
        stem = f"worker-{pid:056x}-ffffffff-{pid}"
        self.log(f"{stem}.err", err, age_s)
        return self.log(f"{stem}.out", out, age_s)

    def read(self, **options: Any) -> list[RayLog | Unread]:
        return list(ray_logs(Host(str(self.root)), **options))

    def records(self, **options: Any) -> list[RayLog]:
        return [item for item in self.read(**options) if isinstance(item, RayLog)]


MARKERS = ":job_id:02000000\n:actor_name:Trainer\n:actor_name:Trainer(rank=3)\n"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.raylet()
    return node


def test_ok_worker_with_steps(node: Node) -> None:
    path = node.worker(700, MARKERS + STEP.format(117) + STEP.format(118), MARKERS, age_s=40)
    (record,) = node.records()
    assert (record.component, record.path, record.pid) == ("worker", path, 700)
    assert (record.session, record.session_from) == (SESSION, "raylet")
    assert (record.job_id, record.actor, record.title) == (
        "02000000",
        "Trainer",
        "Trainer(rank=3)",
    )
    assert (record.step, record.step_format, record.step_duration_s) == (118, "MaxText", 3.412)
    assert record.step_line == STEP.format(118).strip()
    assert record.log_changed_s == pytest.approx(40, abs=5)
    assert record.step_age_s == pytest.approx(40, abs=5)
    assert record.process_age_s == pytest.approx(1000, abs=1)
    assert record.whole
    assert record.size_bytes == len(MARKERS + STEP.format(117) + STEP.format(118) + MARKERS)


def test_ok_what_a_worker_has_started_counts_as_its_load(node: Node) -> None:
    node.worker(700, MARKERS + STEP.format(118))
    node.worker(710, MARKERS + STEP.format(118))
    node.process(701, "sh", 700, cpu_s=0.5)
    node.process(702, "python", 701, cpu_s=90.0)
    node.process(703, "python", 1, cpu_s=7000.0)
    assert {record.pid: record.cpu_s for record in node.records()} == {700: 90.5, 710: 0.0}


def test_ok_steps_that_the_driver_prints(node: Node) -> None:
    path = node.log("job-driver-toy-1.log", "starting\n" + STEP.format(41), age_s=70)
    node.log("job-driver-toy-2.log", "no steps\n")
    node.log("job-driver-toy-3.log", STEP.format(9), age_s=90_000)
    node.log("job-driver-raydiag-probe-1.log", STEP.format(9))
    (record,) = node.records()
    assert (record.component, record.path, record.job_id) == ("driver", path, "toy-1")
    assert (record.step, record.step_duration_s, record.pid) == (41, 3.412, None)
    assert record.step_age_s == pytest.approx(70, abs=5)


def test_ok_thousands_of_jobs_cost_a_bounded_number_of_looks(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at a file takes its time on slow storage. Ray's own logs are not counted."""
    for number in range(1500):
        node.log(f"job-driver-raysubmit_{number:016x}.log", STEP.format(1), age_s=90_000)
    node.log("job-driver-raysubmit_zzzzzzzzzzzzzzzz.log", STEP.format(41), age_s=70)
    look = ray_logs_module._changed
    looked_at: list[str] = []

    def _changed(host: Host, path: str) -> float:
        looked_at.append(path)
        return look(host, path)

    monkeypatch.setattr(ray_logs_module, "_changed", _changed)
    gaps = [item for item in node.read() if isinstance(item, Unread)]
    assert 0 < len([path for path in looked_at if "job-driver" in path]) <= 400
    assert [gap.reason for gap in gaps if "job-driver" in gap.source] == [
        "logs of 1101 more jobs were not looked at"
    ]


def test_ok_of_many_jobs_those_whose_names_tell_the_newest_are_looked_at(node: Node) -> None:
    for number in range(600):
        node.log(f"job-driver-train-{1_700_000_000 + number}.log", STEP.format(1), age_s=90_000)
    node.log("job-driver-train-1700000600.log", STEP.format(41), age_s=70)
    (record,) = node.records()
    assert (record.job_id, record.step) == ("train-1700000600", 41)


def test_ok_fresh_log_with_an_old_step(node: Node) -> None:
    then = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - 600))
    node.worker(700, MARKERS + f"{then} {STEP.format(9)}waiting\n", "oops: ValueError: x\n")
    node.worker(701, MARKERS + STEP.format(9) + "waiting\n")
    ages = {record.pid: record.step_age_s for record in node.records()}
    assert ages[700] == pytest.approx(600, abs=5)
    assert ages[701] is None  # nothing dates it
    errors = {record.pid: record.error_lines for record in node.records()}
    assert errors == {700: ("oops: ValueError: x",), 701: ()}


def test_ok_how_far_a_killed_worker_had_come(node: Node) -> None:
    node.worker(700, MARKERS + STEP.format(120))
    for pid, step, age_s in ((701, 118, 60.0), (690, 90, 4000.0), (680, 7, 90_000.0)):
        stem = f"worker-{pid:056x}-ffffffff-{pid}"
        node.log(f"{stem}.out", MARKERS + STEP.format(step), age_s)
        node.log(f"{stem}.err", MARKERS, age_s)
    node.log(f"worker-{9:056x}-ffffffff-702.out", MARKERS + "it never made a step\n")
    logs = {record.pid: record for record in node.records()}
    assert [logs[pid].component for pid in (700, 701, 690)] == [
        "worker",
        "ended worker",
        "ended worker",
    ]
    assert logs.keys() == {700, 701, 690}  # the third is of another day
    assert (logs[701].step, logs[701].title) == (118, "Trainer(rank=3)")
    assert logs[701].step_age_s == pytest.approx(60, abs=5)
    assert (logs[701].process_age_s, logs[701].cpu_s) == (None, None)


def test_ok_only_what_works_now_counts(node: Node) -> None:
    node.worker(700, MARKERS + STEP.format(118))
    node.log(f"worker-{1:056x}-01000000-701.out", MARKERS + STEP.format(1))  # dead
    node.worker(702, MARKERS + STEP.format(2), age_s=5000)  # its number belongs to another now
    node.process(703, "ray::IDLE", RAYLET)
    node.log(f"worker-{3:056x}-ffffffff-703.out", MARKERS + STEP.format(3))
    node.process(704, "ray::Trainer.tr", 501)  # a worker of another cluster
    node.log(f"worker-{4:056x}-ffffffff-704.out", MARKERS + STEP.format(4))
    node.worker(705, ":job_id:03000000\n:actor_name:RaydiagNodeActor\n")
    node.log(f"python-core-worker-{5:056x}_700.log", STEP.format(5))
    at_work = [record.pid for record in node.records() if record.component == "worker"]
    assert at_work == [700]


def test_ok_only_the_ends_of_long_files_are_read(node: Node) -> None:
    path = node.root / node.worker(700, MARKERS)[1:]
    with path.open("r+b") as file:
        file.seek(3 << 30)  # a hole of 3 GB
        file.write(b"\n" + STEP.format(118).encode() + b"log line\n" * 20_000)
    began = time.process_time()
    (record,) = node.records()
    assert time.process_time() - began < 1.0
    assert (record.step, record.actor, record.whole) == (118, "Trainer", False)
    assert record.size_bytes > 3 << 30


def test_ok_a_step_far_from_the_end_is_looked_for(node: Node) -> None:
    node.worker(700, MARKERS * 900 + STEP.format(118) + "warning\n" * 20_000)
    node.worker(701, MARKERS * 9000 + STEP.format(118) + "warning\n" * 60_000)
    assert {record.pid: record.step for record in node.records()} == {700: 118, 701: None}


def test_ok_steps_before_a_rotation(node: Node) -> None:
    path = node.worker(700, "later\n")
    name = path.rpartition("/")[2]
    node.log(name.replace(".out", ".1.out"), MARKERS + STEP.format(118))
    assert [record.step for record in node.records()] == [118]


def test_ok_errors_of_ray_itself(node: Node) -> None:
    lines = [
        "[2026-02-12 19:43:15,805 I 15532 15532] (raylet) main.cc:283: E is a letter",
        "[2026-02-12 19:43:16,805 E 15532 15532] (raylet) agent.cc:12: Failed to establish "
        "connection to the metrics exporter agent",
        "[2026-02-12 19:43:17,805 E 15532 15532] (raylet) node.cc:99: lost it",
    ]
    node.log("raylet.out", "\n".join(lines) + "\n")
    node.log("gcs_server.out", lines[0])
    raylet, gcs = node.records()
    assert (raylet.component, raylet.errors, raylet.error_lines) == ("raylet", 1, (lines[2],))
    assert (gcs.component, gcs.errors) == ("gcs_server", 0)


def test_ok_the_session_that_is_meant(node: Node) -> None:
    node.worker(700, MARKERS + STEP.format(118))
    other = "session_2026-03-01_00-00-00_000001_9"
    node.raylet(900, other)
    (node.root / node.logs.replace(SESSION, other)[1:]).mkdir(parents=True)
    assert [record.pid for record in node.records(session_name=SESSION)] == [700]
    assert node.records(session_name=other) == []
    with pytest.raises(NoData):  # two raylets, and none of them is ours
        node.read()
    with pytest.raises(NoData):
        node.read(session_name="session_2026-04-01_00-00-00_000001_9")


def test_ok_without_a_raylet_the_newest_session_is_a_guess(tmp_path: Path) -> None:
    node = Node(tmp_path, temp="/tmp/ray")
    node.process(700, "ray::Trainer.tr", 1)
    node.log(f"worker-{7:056x}-02000000-700.out", STEP.format(118))
    with pytest.raises(NoData):
        node.read()
    assert [record.session_from for record in node.records(session_name=SESSION)] == ["name"]
    (tmp_path / "tmp/ray/session_latest").symlink_to(SESSION)
    (record,) = node.records()
    assert (record.session, record.session_from, record.job_id) == (SESSION, "newest", "02000000")


def test_no_data_without_ray(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    with pytest.raises(NoData):
        list(ray_logs(Host(str(tmp_path))))


def test_no_data_when_the_raylet_must_not_be_read(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.raylet(state="D")
    with pytest.raises(NoData):
        node.read()


def test_denied_file_is_unread_and_the_others_are_read(node: Node) -> None:
    node.worker(700, MARKERS + STEP.format(118))
    path = node.worker(701, "")
    (node.root / path[1:]).unlink()
    (node.root / path[1:]).symlink_to(EACCES_FILE)
    read = node.read()
    (unread,) = [item for item in read if isinstance(item, Unread)]
    assert (unread.source, unread.status) == (path, Status.DENIED)
    assert [item.pid for item in read if isinstance(item, RayLog)] == [700]


def test_denied_directory(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def listdir(self: Host, path: str) -> list[str]:
        if path == node.logs:
            raise Denied(path)
        return sorted(os.listdir(self.path(path)))

    monkeypatch.setattr(Host, "listdir", listdir)
    with pytest.raises(Denied):
        node.read()


def test_malformed_files_give_no_step_and_no_name(node: Node) -> None:
    node.worker(700, "\0" * 5000 + ":actor_name", "\xff\xfe" * 100)
    (record,) = node.records()
    assert (record.step, record.actor, record.job_id, record.buffered) == (None, "", "", True)


def test_malformed_uptime_is_an_error(node: Node) -> None:
    (node.root / "proc/uptime").write_text("soon\n")
    with pytest.raises(ReadError, match="not seconds"):
        node.read()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300), st.integers(0, 10**9))
def test_steps_are_found_behind_any_text(node: Node, text: str, step: int) -> None:
    if not (node.root / "proc/700").exists():
        node.worker(700, "")
    name = f"worker-{700:056x}-ffffffff-700.out"
    harmless = re.sub(":(?:task|actor)_name:", "", text)
    node.log(name, f"{harmless}\n{STEP.format(step)}")
    assert [record.step for record in node.records()] == [step]
