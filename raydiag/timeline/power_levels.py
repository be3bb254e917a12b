"""What power means in a job: idle, spinning in a collective, or computing."""

from dataclasses import dataclass

import numpy as np

from raydiag.catalog.hardware import Accelerator, accelerator
from raydiag.timeline import known_values
from raydiag.timeline.masked_tables import MaskedTables

_IDLE_SHARE = 0.6  # of the power in training: below it nothing is computed
_ACTIVE_SHARE = 0.75
_IDLE_FACTOR = 2.0  # times idle power: waiting takes little more, training three times as much
_UNUSED_PERCENT = 5.0
_LIMIT_SHARE = 0.5  # of the power limit, between waiting and training on every known model
_MIN_SAMPLES = 8


@dataclass(frozen=True)
class PowerLevels:
    """The levels that tell idle, spinning and computing GPUs apart."""

    idle_watts: float  # below: nothing is computed, though a collective may spin
    active_watts: float  # at least: training
    usual_watts: float | None  # in this job's own steady training
    source: str

    @property
    def description(self) -> str:
        """For a person: the levels, and what they come from."""
        idle = f"idle below {self.idle_watts:.0f} W by {self.source}"
        return f"usual {self.usual_watts:.0f} W, {idle}" if self.usual_watts else idle


def gpu_model(tables: MaskedTables) -> Accelerator | None:
    """The model, as given from outside or by Ray's series; None for one that is not listed."""
    model = accelerator(tables.context.gpu_model)
    for series in tables.answers.series("gpu-utilisation"):
        model = model or accelerator(series.labels.get("GpuDeviceName"))
    return model


def power_levels(tables: MaskedTables, model: Accelerator | None) -> PowerLevels | None:
    """From the model's numbers and this job's own training; None with neither."""
    usual = active = _usual_watts(tables, model)
    idle = None
    if model is not None:
        active = usual or model.active_watts
        idle = model.waiting_watts or model.idle_watts
    if active is None:
        return _without_training(tables, model)
    between = _IDLE_SHARE * active
    if idle and idle < active:
        between = (idle + active) / 2
    source = _source(usual, model if idle else None)
    return PowerLevels(between, max(_ACTIVE_SHARE * active, between), usual, source)


def _source(usual: float | None, model: Accelerator | None) -> str:
    """Of the levels, for a person; `model`: whose idle power they rest on."""
    if model is None:
        return "this job's own training" if usual else "the model's levels"
    if usual:
        return f"this job's own training and {model.model}'s idle power"
    return f"the model's levels ({model.model})"


def _without_training(tables: MaskedTables, model: Accelerator | None) -> PowerLevels | None:
    if model and model.limit_watts:
        half = _LIMIT_SHARE * model.limit_watts
        return PowerLevels(half, half, None, f"half of {model.model}'s limit")
    resting = _resting_watts(tables)
    if resting is None:
        return None
    twice = _IDLE_FACTOR * resting
    return PowerLevels(twice, twice, None, "twice this job's own idle power")


def _resting_watts(tables: MaskedTables) -> float | None:
    """What GPUs drew while none of them was used; None when they always were."""
    power = tables.table("gpu-power").pick("avg")
    use = tables.table("gpu-utilisation").pick("max")
    if not len(power) or not len(use):
        return None
    unused = use.times[np.nan_to_num(use.values, nan=np.inf).max(axis=0) < _UNUSED_PERCENT]
    return known_values.median(power.values[:, np.isin(power.times, unused)].ravel())


def _usual_watts(tables: MaskedTables, model: Accelerator | None) -> float | None:
    values = known_values.known(tables.steady("gpu-power").pick("avg").values)
    if tables.trained is None or values.size < _MIN_SAMPLES:
        return None
    usual = float(np.median(values))
    # A job that computed nothing all along has no baseline of its own.
    if model and model.idle_watts and usual <= model.idle_watts:
        return None
    return usual
