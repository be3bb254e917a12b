"""What a training loop writes to TensorBoard, and how the exporter's bridge passes it on.

Source: MaxText's scalar tags; the bridge adds one sample for each event at the event's own time and
repeats the last one every 150 s, marked, when nothing new comes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.incidents.job import MOE, Job
from tests.incidents.signals import Signals
from tests.incidents.timeline import Timeline

Floats = NDArray[np.float64]
FILL_S = 150.0
# What Megatron-LM's own writer calls them; it counts its steps from 1.
_MEGATRON_TAGS = {
    "learning_loss": "lm_loss",
    "learning_raw_grad_norm": "grad_norm",
    "learning_current_learning_rate": "learning_rate",
    "perf_step_time_seconds": "iteration_time",
}


@dataclass
class Training:
    """Scalars of each completed step: arrays as long as `timeline.steps`; NaN is a NaN."""

    steps: NDArray[np.int64]
    times: Floats  # of the events
    scalars: dict[str, Floats]  # metric without `tb_`
    exported: NDArray[np.bool_]  # False: never reached the TSDB

    def __getitem__(self, metric: str) -> Floats:
        return self.scalars[metric]

    def after(self, at: float) -> Floats:
        """Steps completed since `at`, 0 before: the argument of a curve that begins there."""
        return np.cumsum(self.times >= at).astype(float)


def train(job: Job, timeline: Timeline) -> Training:
    """A loss that falls, a gradient norm that is clipped at 1, a schedule with warm-up."""
    rng = job.rng
    count = len(timeline.steps)
    number = np.array([step.number for step in timeline.steps], dtype=np.int64)
    seconds = np.array([step.seconds for step in timeline.steps])
    ends = np.array([step.end for step in timeline.steps])
    loss = 1.9 + 8.6 * np.exp(-number / 220.0) + rng.normal(0, 0.008, count)
    raw = 0.45 + 0.08 * np.sin(number / 30.0) + rng.normal(0, 0.015, count)
    rate = 3e-5 * np.minimum(1.0, (number + 1) / 60.0)
    scalars = {
        "learning_loss": loss,
        "learning_raw_grad_norm": raw,
        "learning_grad_norm": np.minimum(raw, 1.0),
        "learning_param_norm": 1200 + 0.02 * number,
        "learning_current_learning_rate": rate,
        "learning_total_weights": np.full(count, float(job.tokens * 8)),
        "perf_step_time_seconds": seconds,
        "perf_per_device_tflops": np.full(count, job.tokens * 0.171),
        "perf_per_device_tflops_per_sec": job.tokens * 0.171 / seconds,
        "perf_per_device_tokens_per_sec": job.tokens / seconds,
    }
    if job.trained in MOE:
        scalars["learning_moe_lb_loss"] = 1.02 + rng.normal(0, 0.006, count)
    exported = np.ones(count, dtype=bool)
    if not np.isfinite(job.plan.stop_at) and job.ended_at is None and rng.random() < 0.5:
        # The writer flushes every two minutes; what came last may never have been seen.
        exported = ends < ends[-1] - rng.uniform(0, 90) if count else exported
    return Training(number, ends + 0.001, scalars, exported)


def export(job: Job, training: Training, signals: Signals, until: float) -> None:
    """tb_* series of rank 0, with fills up to `until`."""
    kept = np.flatnonzero(training.exported)
    if not len(kept):
        return
    times, picked, filled = _with_fills(training.times, kept, until)
    labels = {"host": job.head, "instance": f"{job.head}:9400", "job": "node_hw"}
    columns = {**training.scalars, "step": training.steps.astype(float)}
    if job.framework == "megatron":
        columns = {told: training[ours] for ours, told in _MEGATRON_TAGS.items()}
        columns["step"] = training.steps + 1.0
    for metric, values in columns.items():
        exact = values.astype(np.float32).astype(float)[picked]
        signals.add(f"tb_{metric}", job.head, "tb", times, exact, dict(labels))
    signals.add("tb_metrics_plugin_staleness_fill", job.head, "tb", times, filled, dict(labels))


def _with_fills(
    times: Floats, kept: NDArray[np.int64], until: float
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Sample times, the step each one shows, and 1.0 where it is a repetition."""
    at: list[float] = []
    shown: list[int] = []
    fill: list[float] = []
    for position, step in enumerate(kept):
        following = times[kept[position + 1]] if position + 1 < len(kept) else until
        at.append(float(times[step]))
        shown.append(int(step))
        fill.append(0.0)
        repeats = int(max(0.0, following - times[step] - 1.0) // FILL_S)
        for number in range(1, repeats + 1):
            at.append(float(times[step]) + number * FILL_S)
            shown.append(int(step))
            fill.append(1.0)
    return np.array(at), np.array(shown, dtype=np.int64), np.array(fill)
