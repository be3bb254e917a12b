"""Makes the example incidents: `python -m examples.generate [NAME ...]`, in a checkout.

Each is what a job leaves behind: its log, its workers' logs, a Prometheus directory with real
blocks, an excerpt of a kernel log where the kernel has something to say, and `expected.json`, which
says what went wrong. The same call makes the same files, byte for byte, with the same promtool.

The simulation is that of `tests/incidents`; here stands what happens in each example, and to whom.
Needs `promtool` on PATH (Debian: package prometheus).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from tests.incidents import jobdir, tsdb
from tests.incidents.baseline import HOST_MEMORY_BYTES
from tests.incidents.generate import play_out
from tests.incidents.job import GpuModel, Job, Options, Override, draw
from tests.incidents.kinds import Run, World, slow
from tests.incidents.timeline import IDLE, SAVE
from tests.incidents.truth import Incident, Truth

HERE = Path(__file__).parent
_ULID_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_H100 = GpuModel("NVIDIA_H100_80GB_HBM3", 118, 182, 660, 1755, 85_520_809_984)
_MI300X = GpuModel("AMD_Instinct_MI300X_OAM", 172, 218, 655, 2050, 206_141_652_992)
_MI355X = GpuModel("AMD_Instinct_MI355X_OAM", 260, 302, 900, 2050, 309_220_868_096)
_PCI = ("05", "26", "46", "65", "85", "a6", "c6", "e5")  # buses of an MI300X host's GPUs


@dataclass(frozen=True)
class Example:
    """One incident: whose job it was, when it began, and what then happened."""

    name: str
    title: str
    begun: str  # UTC
    minutes: float  # of training, were it not for what happens
    job_id: int
    trained: str
    hosts: tuple[str, ...]
    subnet: str
    model: GpuModel
    nic: str
    happens: Callable[[Job, Story], Run]
    kernel: tuple[str, ...] = ()  # what its kernel log says, by class
    framework: str = "maxtext"
    dialect: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # of the job


@dataclass
class Story:
    """What an example leaves beside logs and series: kernel lines by host, with their times."""

    kernel: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def say(self, host: str, at: float, *lines: str) -> None:
        """Lines of that host's kernel, a millisecond apart."""
        told = self.kernel.setdefault(host, [])
        told += [(at + number / 1000, line) for number, line in enumerate(lines)]


def generate(example: Example, target: Path) -> Incident:
    """The example in `target`, which takes the place of an old one. Raises tsdb.NoPrometheus."""
    begun = datetime.fromisoformat(example.begun).replace(tzinfo=timezone.utc).timestamp()
    options = Options(
        nodes=len(example.hosts),
        ports=2,
        minutes=example.minutes,
        interval_s=15.0,
        ray_refresh_s=0.0,
        noise=True,
        start=begun,
        dialect=example.dialect,
    )
    job = draw(example.job_id, options)
    _cast(example, job)
    story = Story()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch, "outputs")
        play = example.happens(job, story)
        incident = play_out(example.name, play, job, example.job_id, place)
        made = Path(incident.job_dir)
        log = made / "log"
        log.unlink()
        shutil.move(made.with_name(f"{made.name}.log"), log)
        _name_blocks(made / "prometheus", example.job_id)
        _write_kernel_logs(made, story)
        expected = json.dumps(_expected(example, incident), indent=2)
        (made / "expected.json").write_text(expected + "\n", encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    return incident


def _cast(example: Example, job: Job) -> None:
    """The job is this example's, whatever the seed has drawn."""
    job.job_id, job.trained, job.framework = example.job_id, example.trained, example.framework
    job.hosts = list(example.hosts)
    job.ips = [f"{example.subnet}.{number + 11}" for number in range(len(example.hosts))]
    job.model, job.nic = example.model, example.nic
    job.full_families = job.all_tasks = job.restored = False
    job.plan.first_step, job.plan.save_first = 0, False
    job.total_steps = 5000
    for name, value in example.settings.items():
        setattr(job.plan if hasattr(job.plan, name) else job, name, value)
    job.early_lines += _START_UP[job.framework](job)


def _maxtext_start(job: Job) -> list[str]:
    begun = jobdir.clock(job.start + 140.263417)
    compiled = jobdir.clock(job.plan.train_start)
    held_gb = job.model.vram_bytes * 0.74 / 1e9
    return [
        f"0: I{begun} 4021 distributed.py:126] Starting JAX distributed service on "
        f"{job.ips[0]}:34011",
        *(
            f"{task}: I{begun} {4021 + task} distributed.py:141] Connecting to JAX distributed "
            f"service on {job.ips[0]}:34011"
            for task in range(len(job.hosts))
        ),
        f"0: System Information: Jax Version: 0.6.2, {len(job.hosts)} processes, "
        f"{len(job.hosts) * job.options.gpus} devices",
        "0: NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
        "1: NCCL INFO Channel 00/0 : 8[0] -> 16[0] [send] via NET/IB/0/GDRDMA",
        "0: number parameters: 405.853 billion" if "405b" in job.trained else "0: params sharded",
        f"0: I{compiled} 4021 train.py:388] Compiling train_step",
        f"0: Using (GB) {held_gb:.1f} / {job.model.vram_bytes / 1e9:.1f} (74.0%) on device 0",
    ]


def _megatron_start(job: Job) -> list[str]:
    return [
        f"{task * job.options.gpus}: {host}: NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE"
        for task, host in enumerate(job.hosts)
    ] + ["0: [before the start of training step] datetime: " + jobdir.iso(job.plan.train_start)]


_START_UP = {"maxtext": _maxtext_start, "megatron": _megatron_start}


def _expected(example: Example, incident: Incident) -> dict[str, Any]:
    truth = incident.truth
    return {
        "title": example.title,
        "class": truth.verdict,
        "hosts": list(truth.hosts or ()),
        "gpus": [{"host": host, "gpu": gpu} for host, gpu in truth.gpus],
        "onset": truth.onset and round(truth.onset, 3),
        "onset_within_s": 2 * max(incident.interval_s, truth.resolution_s) + 1,
        "kernel": list(example.kernel),
    }


def _write_kernel_logs(made: Path, story: Story) -> None:
    """As `journalctl -k -o short-iso-precise` shows them."""
    for host, lines in story.kernel.items():
        shown = []
        for at, text in sorted(lines):
            stamp = datetime.fromtimestamp(at, tz=timezone.utc)
            shown.append(f"{stamp:%Y-%m-%dT%H:%M:%S.%f}+00:00 {host} kernel: {text}\n")
        (made / f"kernel-{host}.txt").write_text("".join(shown), encoding="utf-8")


def _name_blocks(data: Path, seed: int) -> None:
    """A block's name is the time at which it was made, and chance; here it is the job's number."""
    for number, meta_file in enumerate(sorted(data.glob("*/meta.json"), key=_begin_of_block)):
        meta = json.loads(meta_file.read_text())
        old, new = meta["ulid"], _ulid(meta["maxTime"], seed * 10 + number)
        meta["ulid"] = new
        meta["compaction"]["sources"] = [new if one == old else one for one in _sources(meta)]
        meta_file.write_text(json.dumps(meta, indent=1) + "\n")
        meta_file.parent.rename(data / new)


def _begin_of_block(meta_file: Path) -> int:
    return int(json.loads(meta_file.read_text())["minTime"])


def _sources(meta: dict[str, Any]) -> list[str]:
    return list(meta["compaction"].get("sources") or [])


def _ulid(milliseconds: int, number: int) -> str:
    """48 bits of time and 80 of a number, in Crockford's base 32."""
    value, letters = milliseconds << 80 | number, ""
    for _ in range(26):
        value, digit = divmod(value, 32)
        letters = _ULID_LETTERS[digit] + letters
    return letters


# ---- what happens


def _cancelled(job: Job, at: float) -> None:
    """Somebody looked, and gave the job up."""
    job.ended_at = at
    stamp = datetime.fromtimestamp(at, tz=timezone.utc)
    line = f"STEP {job.job_id}.0 ON {job.head} CANCELLED AT {stamp:%Y-%m-%dT%H:%M:%S}"
    job.lines.append(f"slurmstepd: error: *** {line} ***")
    job.cancel()


def _rccl_hang(job: Job, story: Story) -> Run:
    """Every rank waits in one collective, and every GPU spins in it."""
    at = job.moment(0.6, 0.7)
    job.hang(at, 26 * 60)
    _cancelled(job, at + 26 * 60)
    world = yield
    return Truth("rccl-hang", (), onset=world.last_step)


def _oom_host(job: Job, story: Story) -> Run:
    """The loader of one host keeps what it has read, until the kernel ends the trainer."""
    host = job.hosts[2]
    kill = job.moment(0.85, 0.95, 20)
    at = kill - 17 * 60
    job.hang(kill, 50)
    job.overrides.append(Override(host, kill, 1e12, None, phase=IDLE))
    task = job.hosts.index(host)
    job.fail(
        137,
        "Training FAILED (exit=137)",
        f"slurmstepd: error: Detected 1 oom_kill event in StepId={job.job_id}.0. Some of the step "
        "tasks have been OOM Killed.",
        f"srun: error: {host}: task {task}: Out Of Memory",
    )
    world = yield
    memory = world.one(host, "ray_node_mem_used")
    growing = memory.within(at, kill)
    level = float(np.median(memory.values[growing]))
    share = (memory.times[growing] - at) / (kill - at)
    leaked = (HOST_MEMORY_BYTES * 0.985 - level) * share
    uneven = 2.5e10 * np.sin(40 * share) * share * (1 - share)  # collected now and then
    memory.values[growing] += np.round(leaked + uneven)
    memory.put(kill, 1e12, 6e10, 4e8)
    world.one(host, "hw_oom_kills_total").bump(kill, 1)
    world.one(host, "hw_gpu_user_processes").put(kill, 1e12, 0.0)
    story.say(
        host,
        kill,
        "python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, "
        "oom_score_adj=0",
        "CPU: 71 PID: 418822 Comm: python3 Tainted: G           OE      6.8.0-60-generic",
        "Call Trace:",
        " <TASK>",
        " dump_stack_lvl+0x76/0xa0",
        " oom_kill_process+0x118/0x280",
        " out_of_memory+0x103/0x350",
        " </TASK>",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
        f"task_memcg=/system.slice/slurmstepd.scope/job_{job.job_id}/step_0/user/task_{task},"
        "task=ray::MaxTextTra,pid=418822,uid=20031",
        "Out of memory: Killed process 418822 (ray::MaxTextTra) total-vm:2914387712kB, "
        "anon-rss:2251820944kB, file-rss:188416kB, shmem-rss:1048kB, UID:20031 "
        "pgtables:4812644kB oom_score_adj:0",
    )
    return Truth("oom-host", (host,), onset=at, kill_time=kill, pattern="leak")


def _gpu_memory_error(job: Job, story: Story) -> Run:
    """HBM loses data on one GPU, the job dies of it, and the driver then hangs its readers."""
    host, gpu = job.hosts[1], 3
    at = job.moment(0.6, 0.7)
    job.hang(at + 3, 9 * 60)
    task = job.hosts.index(host)
    job.fail(
        1,
        "Training FAILED (exit=1)",
        f"{task}: [Node {task}] Actor failed: Training subprocess killed by SIGABRT (signal 6)",
    )
    world = yield
    world.gpu(host, gpu, "hw_gpu_ras_umc_ue_total").bump(at, 2)
    _hang_readers(world, host, at + 90)
    _driver_fault_lines(story, host, gpu, at)
    return Truth("gpu-memory-error", (host,), ((host, gpu),), onset=at)


def _hang_readers(world: World, host: str, at: float) -> None:
    """Every second cycle of the exporter waits for a RAS file until its limit."""
    duration = world.one(host, "hw_scrape_duration_seconds")
    inside = np.flatnonzero(duration.within(at, 1e12))
    stalled = np.zeros(len(duration.times), dtype=bool)
    stalled[inside[::2]] = True
    duration.values[stalled] = np.round(12.0 + 0.1 * np.arange(stalled.sum()) % 0.4, 3)
    for series in world.signals.of(host, "hw_gpu_"):
        if series.metric != "hw_gpu_user_processes":
            series.values[stalled] = np.nan
    for number in range(6):
        world.one(host, "hw_dmesg_gpu_errors_total").bump(at - 90 + number * 80, 4)


def _driver_fault_lines(story: Story, host: str, gpu: int, at: float) -> None:
    card = f"amdgpu 0000:{_PCI[gpu]}:00.0: amdgpu:"
    story.say(
        host,
        at,
        f"{card} {{41}}socket: 3, die: 0, 2 new uncorrectable hardware errors detected in umc "
        "block",
        f"{card} {{41}}socket: 3, die: 0, 2 uncorrectable hardware errors detected in total in "
        "umc block",
        f"{card} Poison is created",
        f"{card} {{42}}poison is consumed by client 27, kick off gpu reset flow",
        f"{card} GPU reset begin!. Source:  3",
    )
    story.say(host, at + 11, f"{card} failed to wait on hqd deactivate")
    story.say(
        host,
        at + 92,
        "BUG: unable to handle page fault for address: ffffb81c6a04f000",
        "#PF: supervisor read access in kernel mode",
        "Oops: 0000 [#1] PREEMPT SMP NOPTI",
        "CPU: 18 PID: 3307 Comm: metrics_exporte Tainted: G           OE      6.8.0-60-generic",
        "RIP: 0010:amdgpu_cper_ring_get_ent_sz+0x4c/0xb0 [amdgpu]",
        "Call Trace:",
        " <TASK>",
        " amdgpu_cper_ring_write+0x8f/0x240 [amdgpu]",
        " amdgpu_cper_generate_ue_record+0x121/0x1d0 [amdgpu]",
        " amdgpu_ras_query_error_status_with_event+0x1e7/0x2f0 [amdgpu]",
        " amdgpu_ras_aca_sysfs_read+0x5b/0xc0 [amdgpu]",
        " </TASK>",
    )
    story.say(
        host,
        at + 333,
        "INFO: task metrics_exporte:3391 blocked for more than 120 seconds.",
        "      Tainted: G      D    OE      6.8.0-60-generic",
        "task:metrics_exporte state:D stack:0     pid:3391  ppid:2950   flags:0x00000002",
    )


def _nfs_stall(job: Job, story: Story) -> Run:
    """A file server stops answering in a save; those who write wait in it, all others for them."""
    save = job.timeline().saves[-1]
    at = save.start
    job.hang(at + 1, 35 * 60)
    job.plan.save_lengths_s[save.step] = 36 * 60
    job.overrides += [Override(host, at, 1e12, None, phase=SAVE) for host in job.hosts]
    _cancelled(job, at + 35 * 60)
    world = yield
    for host in job.writers:
        for metric, value, noise in (
            ("hw_io_pressure_full_pct", 93.0, 2.0),
            ("hw_io_pressure_some_pct", 96.0, 1.0),
            ("hw_procs_blocked", 34.0, 2.0),
            ("hw_mem_dirty_bytes", 3.1e10, 2e9),
            ("hw_mem_writeback_bytes", 9e9, 5e8),
        ):
            world.one(host, metric).put(at + 20, world.end, value, noise)
        story.say(host, at + 38, "nfs: server stor02 not responding, still trying")
        story.say(
            host,
            at + 250,
            "INFO: task ray::MaxTextTra:402117 blocked for more than 120 seconds.",
            "      Tainted: G           OE      6.8.0-60-generic",
            "Call Trace:",
            " <TASK>",
            " nfs_wait_bit_killable+0x1e/0x90 [nfs]",
            " nfs_wb_all+0x2a/0xf0 [nfs]",
            " </TASK>",
        )
    return Truth("storage-stall", tuple(job.writers), onset=at)


def _straggler(job: Job, story: Story) -> Run:
    """The input pipeline of one host is late: its GPUs wait for data, all others spin for them."""
    host, at = job.hosts[3], job.moment(0.45, 0.55)
    slow(job, at, 1e12, 1.45)
    _cancelled(job, job.plan.train_end + 20)
    job.overrides.append(Override(host, at, 1e12, None, load=0.35))
    world = yield
    for series in world.signals.of(host, "ray_node_gpus_utilization"):
        busy = series.within(at, 1e12) & (series.values > 90)
        series.values[busy] = np.round(series.values[busy] * 0.52)
    return Truth("straggler", (host,), onset=at)


def _loss_divergence(job: Job, story: Story) -> Run:
    """The loss turns and climbs, on machines that are well."""
    at = job.moment(0.5, 0.6)
    _cancelled(job, job.plan.train_end + 20)
    world = yield
    since = world.training.after(at)
    world.training["learning_loss"][:] += 0.11 * since
    first = world.training.times[world.training.times >= at][0]
    return Truth("loss-divergence", (), onset=float(first), resolution_s=job.plan.step_s)


EXAMPLES = (
    Example(
        "rccl-hang",
        "Hang in a collective: every GPU is busy, nothing moves",
        "2026-03-11T02:06:00",
        38,
        48213,
        "llama3.1-405b",
        ("mi355-a017", "mi355-a018", "mi355-a019", "mi355-a020"),
        "10.41.7",
        _MI355X,
        "ionic_{}",
        _rccl_hang,
        settings={"step_s": 11.2, "compile_s": 95.0, "period": 50, "asynchronous": True},
    ),
    Example(
        "oom-host",
        "Host memory runs out: one data loader leaks until the kernel ends the trainer",
        "2026-03-19T14:04:00",
        48,
        48977,
        "mixtral-8x22b",
        ("node0217", "node0218", "node0219", "node0220"),
        "10.60.2",
        _MI300X,
        "rdma{}",
        _oom_host,
        kernel=("oom-kill",),
        settings={"step_s": 9.6, "compile_s": 70.0, "period": 100, "asynchronous": True},
    ),
    Example(
        "gpu-memory-error",
        "Uncorrectable GPU memory error: the job dies of it, and the driver hangs afterwards",
        "2026-04-02T20:05:00",
        44,
        50144,
        "deepseek3-671b",
        ("gpu-r4n1", "gpu-r4n2", "gpu-r4n3", "gpu-r4n4"),
        "10.88.4",
        _MI300X,
        "rdma{}",
        _gpu_memory_error,
        kernel=(
            "amdgpu-ras-ue",
            "amdgpu-poison",
            "amdgpu-reset",
            "amdgpu-ring-timeout",
            "amdgpu-cper",
            "kernel-oops",
            "hung-task",
        ),
        settings={"step_s": 12.4, "compile_s": 110.0, "period": 50, "asynchronous": True},
    ),
    Example(
        "nfs-stall",
        "A file server stops answering while a checkpoint is saved",
        "2026-04-15T08:03:00",
        32,
        51290,
        "llama2-70b",
        ("tw041", "tw042", "tw043", "tw044"),
        "10.12.9",
        _MI300X,
        "bnxt_re{}",
        _nfs_stall,
        kernel=("nfs-timeout", "hung-task"),
        settings={
            "step_s": 8.3,
            "compile_s": 60.0,
            "period": 70,
            "asynchronous": False,
            "save_s": 55.0,
        },
    ),
    Example(
        "straggler",
        "One host gets its data late, and all others wait for it in every step",
        "2026-05-06T22:05:00",
        46,
        53408,
        "llama3-70b",
        ("dgx-11", "dgx-12", "dgx-13", "dgx-14"),
        "10.30.1",
        _H100,
        "mlx5_{}",
        _straggler,
        framework="megatron",
        dialect="dcgm",
        settings={"step_s": 10.4, "compile_s": 40.0, "period": 100, "asynchronous": True},
    ),
    Example(
        "loss-divergence",
        "The loss diverges, and no machine is to blame",
        "2026-05-20T10:04:00",
        46,
        54771,
        "llama3-8b",
        ("mi300-b05", "mi300-b06", "mi300-b07", "mi300-b08"),
        "10.71.5",
        _MI300X,
        "rdma{}",
        _loss_divergence,
        framework="megatron",
        settings={"step_s": 9.1, "compile_s": 35.0, "period": 100, "asynchronous": True},
    ),
)


def _named(names: list[str]) -> Iterator[Example]:
    for example in EXAMPLES:
        if not names or example.name in names:
            yield example


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.generate", description=__doc__)
    known = [example.name for example in EXAMPLES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--out", type=Path, default=HERE, help="default: beside this script")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(known):
        parser.error(f"no example {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    for example in _named(asked.names):
        try:
            generate(example, asked.out / example.name)
        except tsdb.NoPrometheus as missing:
            sys.stderr.write(f"{missing}\n")
            return 4
        files = (asked.out / example.name).rglob("*")
        size = sum(path.stat().st_size for path in files if path.is_file())
        sys.stdout.write(f"{os.path.join(asked.out, example.name)}  {size / 1000:.0f} kB\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
