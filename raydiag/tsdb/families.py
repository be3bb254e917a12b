"""Families of metrics: by prefix, and which metric stands for each; see `families.yaml`."""

from collections.abc import Mapping, Sequence
from importlib import resources

import yaml

_TABLE = resources.files(__package__).joinpath("families.yaml")
_FAMILIES: Mapping[str, Sequence[str]] = yaml.safe_load(_TABLE.read_text("utf-8"))
PREFIXES = tuple(_FAMILIES["prefixes"])
OTHER = "other"


def family_of(metric: str) -> str:
    """Prefix of the family; "other" for a metric that belongs to none."""
    return max(filter(metric.startswith, PREFIXES), key=len, default=OTHER)


def sampled(metrics: Sequence[str]) -> str:
    """The metric that stands for a family of these."""
    return next(filter(metrics.__contains__, _FAMILIES["sampled"]), metrics[0])
