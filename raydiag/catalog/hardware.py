"""KNOW: what accelerators draw, clock and hold, from `hardware.yaml`, each number with a source."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

from raydiag.catalog.rows import CatalogRow, loaded, rows
from raydiag.errors import CatalogError

_FILE = "hardware.yaml"
_NUMBERS = ("idle_watts", "waiting_watts", "active_watts", "limit_watts", "clock_mhz", "memory_gb")


@dataclass(frozen=True)
class Accelerator:
    """One model. None: nobody has published the number, so it decides nothing."""

    model: str
    names: tuple[str, ...]  # lower case, without separators
    idle_watts: float | None  # at most, between jobs
    waiting_watts: float | None  # at most, while a collective spins
    active_watts: float | None  # at least, in training
    limit_watts: float | None
    clock_mhz: float | None
    memory_gb: float | None  # 10^9 bytes
    sources: Mapping[str, str]  # by the name of the number


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """Every model of the table."""
    return parse_hardware(resources.files(__package__).joinpath(_FILE).read_text("utf-8"))


def accelerator(device_name: str | None) -> Accelerator | None:
    """The model that a driver's name for a device means; None for one that is not in the table.

    Of several words that fit, the longest counts: "GB200" is not a "B200".
    """
    plain = "".join(filter(str.isalnum, (device_name or "").lower()))
    best: Accelerator | None = None
    longest = 0
    for model in accelerators():
        for name in model.names:
            before, name_found, _ = plain.partition(name)
            # Not as the end of another model's: GB200, GH100.
            if name_found and not before.endswith("g") and len(name) > longest:
                best, longest = model, len(name)
    return best


def parse_hardware(text: str, file: str = _FILE) -> tuple[Accelerator, ...]:
    """The models in a YAML list. Raises CatalogError."""
    models: list[Accelerator] = []
    names_so_far: set[str] = set()
    for row in rows(loaded(text, file), file, "model"):
        names = row.texts("names")
        numbers, sources = {}, {}
        for key in _NUMBERS:
            numbers[key], source = _number(row, key)
            if source:
                sources[key] = source
        row.end()
        if any(not name.isalnum() or name != name.lower() for name in names):
            raise row.error("names must be lower case, without separators")
        if not names_so_far.isdisjoint(names):
            raise row.error(f"the name {min(names_so_far.intersection(names))!r} is there twice")
        names_so_far.update(names)
        _check_levels(row, numbers)
        models.append(Accelerator(row.name, names, sources=MappingProxyType(sources), **numbers))
    return tuple(models)


def _number(row: CatalogRow, key: str) -> tuple[float | None, str]:
    if key not in row.data:
        return None, ""
    part = CatalogRow(row.take(key), row.file, f"{row.name}: {key}")
    value, source = part.take("value"), part.text("source")
    part.end()
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise part.error("value must be a number above zero")
    return float(value), source


def _check_levels(row: CatalogRow, numbers: Mapping[str, float | None]) -> None:
    """Idle, waiting, active and limit go up, as far as they are known."""
    levels = [value for key, value in numbers.items() if key.endswith("_watts") and value]
    if levels != sorted(levels):
        raise CatalogError(f"{row.file}: {row.name}: the levels in watts do not go up")
