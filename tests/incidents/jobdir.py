"""The job directory around the series: log, Ray's logs, exporter logs, event file.

Source: the layout and literal lines of maxtext-slurm's launcher; step lines of MaxText, which carry
no clock times, or a log of Megatron-LM.
"""

from __future__ import annotations

import math
import os
import struct
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from tests.incidents import megatron
from tests.incidents.job import Job
from tests.incidents.timeline import Timeline
from tests.incidents.training import Training

_ACTORS = {"maxtext": "MaxTextTrainerActor", "megatron": "MegatronTrainRayActor"}
_GREEN, _RED, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b(B\x1b[m"


def write(job: Job, timeline: Timeline, training: Training, outputs: Path, end: float) -> Path:
    """Everything but the TSDB; returns the job directory."""
    directory = outputs / f"{job.job_id}-{job.name}"
    directory.mkdir(parents=True)
    log = outputs / f"{directory.name}.log"
    log.write_text(_log(job, timeline, training, end), encoding="utf-8")
    os.utime(log, (end, end))  # something always writes to it, also when training stands still
    (directory / "log").symlink_to(f"../{log.name}")
    if job.ray:
        _ray_logs(job, timeline, training, directory)
        _observability(job, directory)
    if job.event_file:
        _event_file(job, training, directory)
    return directory


def _log(job: Job, timeline: Timeline, training: Training, end: float) -> str:
    if job.framework == "megatron":
        return "\n".join(megatron.lines(job, timeline, training, end)) + "\n"
    lines = [*_header(job, timeline), *job.early_lines]
    for position, step in enumerate(timeline.steps):
        if job.log_until is not None and step.end > job.log_until:
            break
        text = _step_line(training, position)
        tasks = range(len(job.hosts)) if job.all_tasks else range(1)
        lines += [f"{task}: {text}" for task in tasks]
    lines += job.lines
    if job.ending != "live":
        lines += _summary(job, end)
    return "\n".join(lines) + "\n"


def _header(job: Job, timeline: Timeline) -> list[str]:
    total = job.total_steps or (timeline.steps[-1].number + 1 if timeline.steps else 5000)
    plan = job.plan
    passed = f"steps={total}"
    if plan.period:
        passed += " enable_checkpointing=true"
        passed += f" async_checkpointing={str(plan.asynchronous).lower()}"
    passed += f" per_device_batch_size={job.tokens // 8192}"
    passed += f" jax_distributed_heartbeat_timeout_seconds={job.heartbeat_s}"
    nodes = ",".join(job.hosts)
    lines = [
        f"JOB_ID={job.job_id}",
        f"JOB_NAME={job.name}",
        f"NNODES={len(job.hosts)}",
        f"JOB_NODELIST={nodes}",
        "JAX_COORDINATOR_PORT=34011",
        *(["RAY_PORT=34012"] if job.ray else []),
        f'PASSTHROUGH_ARGS="{passed}"',
        f"MODEL_NAME={job.name}",
        f"NODELIST_EXPANDED={nodes}",
        "== Preflight BEGIN (timeout=900s) ==",
        "== Preflight END (31s) ==",
        "== Training BEGIN (no timeout) ==",
    ]
    if job.ray:
        lines += [
            "[Prometheus] Started on port 9190 (ray: 5s; node_hw: 10s)",
            "  ssh -J me@login01 -L 8265:localhost:8265 -L 6006:localhost:6006 "
            f"-L 9190:localhost:9190 root@{job.head}",
        ]
    lines += ["0: NCCL WARN MSCCL++: Feature not enabled"]
    lines += ["0: Failed call to cuInit: UNKNOWN ERROR (303)"]
    if plan.period:
        lines.append(f"0: Config param checkpoint_period: {plan.period}")
    return lines


def _step_line(training: Training, position: int) -> str:
    seconds = training["perf_step_time_seconds"][position]
    loss = float(np.float32(training["learning_loss"][position]))
    told = f"{loss:.3f}" if math.isfinite(loss) else str(loss)
    return (
        f"completed step: {training.steps[position]}, seconds: {seconds:.3f}, "
        f"TFLOP/s/device: {training['perf_per_device_tflops_per_sec'][position]:.3f}, "
        f"Tokens/s/device: {training['perf_per_device_tokens_per_sec'][position]:.3f}, "
        f"total_weights: {training['learning_total_weights'][position]:.0f}, loss: {told}"
    )


def _summary(job: Job, end: float) -> list[str]:
    wall = int(end - job.start)
    status = f"{_GREEN}SUCCESS (exit 0){_PLAIN}"
    if job.exit_code:
        status = f"{_RED}FAILED (exit {job.exit_code}){_PLAIN} \u2014 {job.reason}"
    return [
        "========================== JOB SUMMARY ==========================",
        f"  Job:    {job.job_id} ({job.name})",
        f"  Model:  {job.name}",
        f"  Nodes:  {len(job.hosts)}",
        f"  Wall:   {wall // 3600}h {wall // 60 % 60}m {wall % 60}s",
        f"  Status: {status}",
        "=================================================================",
    ]


def clock(at: float) -> str:
    """glog's time of day, without a year."""
    return datetime.fromtimestamp(at, tz=timezone.utc).strftime("%m%d %H:%M:%S.%f")


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- Ray, exporter and Prometheus logs


def _ray_logs(job: Job, timeline: Timeline, training: Training, directory: Path) -> None:
    for index, host in enumerate(job.hosts):
        folder = directory / "ray_logs" / host
        folder.mkdir(parents=True)
        (folder / "raylet.out").write_text("raylet started\n")
        if index == 0:
            (folder / "gcs_server.out").write_text("gcs server started\n")
        lines = [":job_id:01000000", ":actor_name:" + _ACTORS[job.framework]]
        if job.framework == "maxtext":
            lines += _worker_steps(job, timeline, training)
        lines += job.worker_lines.get(host, [])
        worker = folder / f"worker-{index:056x}-01000000-{4000 + index}.out"
        worker.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _worker_steps(job: Job, timeline: Timeline, training: Training) -> list[str]:
    """What each of MaxText's ranks prints; Megatron's last rank alone prints, to the job's log."""
    restored = f"restoring from this run's directory step {job.plan.first_step - 1}"
    fresh = "No existing checkpoints found, not restoring checkpoint."
    steps = [
        _step_line(training, position)
        for position, step in enumerate(timeline.steps)
        if job.log_until is None or step.end <= job.log_until
    ]
    return [restored if job.restored else fresh, *steps]


def _observability(job: Job, directory: Path) -> None:
    exporter, prometheus = directory / "metrics_exporter", directory / "prometheus"
    exporter.mkdir()
    prometheus.mkdir()
    for host in job.hosts:
        lines = [f"[metrics_exporter] Starting on port 9400 (poll every 10s) on {host}"]
        lines += job.exporter_lines.get(host, [])
        (exporter / f"{host}.log").write_text("\n".join(lines) + "\n")
    ready = 'level=info msg="Server is ready to receive web requests."'
    (prometheus / "prometheus.log").write_text("\n".join([ready, *job.prometheus_lines]) + "\n")
    targets = {"ray": 55080, "node_hw": 9400}
    config = "scrape_configs:\n" + "".join(
        f"- job_name: {name}\n  static_configs:\n  - targets: "
        f"[{', '.join(f'{host}:{port}' for host in job.hosts)}]\n"
        for name, port in targets.items()
    )
    (prometheus / "ray_prometheus.yml").write_text(config)


# ---- TensorBoard: records of length, checksum, event, checksum


def _event_file(job: Job, training: Training, directory: Path) -> None:
    folder = directory / "tensorboard"
    folder.mkdir()
    created = int(job.plan.train_start)
    path = folder / f"events.out.tfevents.{created}.{job.head}"
    with path.open("wb") as out:
        out.write(_record(_event(created, 0, b"\x1a\x0dbrain.Event:2")))
        for position, at in enumerate(training.times):
            values = b""
            for tag, column in training.scalars.items():
                told = tag.replace("_", "/", 1).encode()
                number = struct.pack("<f", column[position])
                value = b"\x0a" + bytes([len(told)]) + told + b"\x15" + number
                values += b"\x0a" + bytes([len(value)]) + value
            body = b"\x2a" + _varint(len(values)) + values
            out.write(_record(_event(float(at), int(training.steps[position]), body)))


def _event(at: float, step: int, body: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", at) + b"\x10" + _varint(step) + body


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    checks = [struct.pack("<I", _masked_crc(part)) for part in (length, event)]
    return length + checks[0] + event + checks[1]


def _crc_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _crc_table()


def _masked_crc(content: bytes) -> int:
    """CRC-32C, rotated and offset as TensorFlow's records have it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
