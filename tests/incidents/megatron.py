"""The log of a Megatron-LM job instead of MaxText's: argument table, step lines with clock times.

Source: training_log, print_args and save_checkpoint of Megatron-LM; srun's labels in front.
"""

from __future__ import annotations

import math
from datetime import datetime, timezone

from tests.incidents.job import Job
from tests.incidents.timeline import Save, Timeline
from tests.incidents.training import Training

_SEQUENCES = 512  # of one global batch
_DOTS = 48


def lines(job: Job, timeline: Timeline, training: Training, end: float) -> list[str]:
    """The whole log. The last rank prints the steps, the first one everything else."""
    shown: list[tuple[float, str]] = []
    for position, step in enumerate(timeline.steps):
        if job.log_until is None or step.end <= job.log_until:
            shown.append((step.end, step_line(job, training, position)))
    for save in timeline.saves:
        shown += _save_lines(save, min(end, job.plan.stop_at))
    shown.sort(key=lambda line: line[0])
    return [*_header(job), *job.early_lines, *(text for _, text in shown), *job.lines]


def step_line(job: Job, training: Training, position: int) -> str:
    """What the last rank prints after an iteration; a loss that is no number is left out."""
    number = int(training.steps[position]) + 1
    values = {name: float(column[position]) for name, column in training.scalars.items()}
    seconds = values["perf_step_time_seconds"]
    loss = values["learning_loss"]
    is_nan = not math.isfinite(loss)
    fields = [
        f"iteration {number:8d}/{job.total_steps or 5000:8d}",
        f"consumed samples: {number * _SEQUENCES:12d}",
        f"elapsed time per iteration (ms): {seconds * 1000:.1f}",
        f"throughput per GPU (TFLOP/s/GPU): {values['perf_per_device_tflops_per_sec']:.1f}",
        f"learning rate: {values['learning_current_learning_rate']:.6E}",
        f"global batch size: {_SEQUENCES:5d}",
        *([] if is_nan else [f"lm loss: {loss:.6E}"]),
        "loss scale: 1.0",
        f"grad norm: {values['learning_raw_grad_norm']:.3f}",
        "number of skipped iterations:   0",
        f"number of nan iterations: {int(is_nan):3d}",
    ]
    stamp = datetime.fromtimestamp(training.times[position], tz=timezone.utc)
    rank = len(job.hosts) * job.options.gpus - 1
    return f"{rank}: [{stamp:%Y-%m-%d %H:%M:%S}] {' | '.join(fields)} |"


def _header(job: Job) -> list[str]:
    gpus = len(job.hosts) * job.options.gpus
    arguments = {
        "data_parallel_size": gpus // 8,
        "global_batch_size": _SEQUENCES,
        "micro_batch_size": 1,
        "num_layers": 80,
        "save": "/data/checkpoints/" + job.name,
        "save_interval": job.plan.period or 1000,
        "seq_length": 8192,
        "tensor_model_parallel_size": 8,
        "train_iters": job.total_steps or 5000,
        "world_size": gpus,
    }
    nodes = ",".join(job.hosts)
    return [
        f"JOB_ID={job.job_id}",
        f"JOB_NAME={job.name}",
        f"NNODES={len(job.hosts)}",
        f"NODELIST_EXPANDED={nodes}",
        f"using world size: {gpus}, data-parallel size: {gpus // 8}, tensor-model-parallel size: 8",
        "------------------------ arguments ------------------------",
        *(f"  {name} {'.' * (_DOTS - len(name))} {value}" for name, value in arguments.items()),
        "-------------------- end of arguments ---------------------",
        "0: > initializing torch distributed ...",
        "0: > setting tensorboard ...",
        "0: time to initialize megatron (seconds): 31.482",
        "0: > building train, validation, and test datasets for GPT ...",
        "0: done with setup ...",
        "0: training ...",
    ]


def _save_lines(save: Save, until: float) -> list[tuple[float, str]]:
    place = f"{save.step + 1:7d}"
    begun = f"0: saving checkpoint at iteration {place} to /data/checkpoints in torch_dist format"
    done = f"0:   successfully saved checkpoint from iteration {place} to /data/checkpoints"
    return [(save.start, begun), *([(save.end, done)] if save.end < until else [])]
