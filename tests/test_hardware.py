"""What GPUs draw, clock and hold: the table, and names that mean a model."""

from __future__ import annotations

import pytest

from raydiag.catalog.hardware import accelerator, accelerators, parse_hardware
from raydiag.errors import CatalogError

GOOD = """
- model: X1
  names: [x1]
  idle_watts: {value: 100, source: a paper}
  active_watts: {value: 500, source: a paper}
"""


def test_every_number_has_its_source() -> None:
    for one in accelerators():
        for name in ("idle_watts", "waiting_watts", "active_watts", "limit_watts", "clock_mhz"):
            assert (getattr(one, name) is not None) == (name in one.sources), one.model


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
    ],
)
def test_a_drivers_name(name: str, model: str) -> None:
    found = accelerator(name)
    assert found is not None
    assert found.model == model


@pytest.mark.parametrize("name", [None, "", "NVIDIA GB200", "AMD Instinct MI250X", "Tesla"])
def test_a_name_of_no_model(name: str | None) -> None:
    assert accelerator(name) is None


def test_levels_that_were_given() -> None:
    found = accelerator("MI355X")
    assert found is not None
    assert (found.idle_watts, found.waiting_watts) == (260.0, 300.0)
    assert parse_hardware(GOOD)[0].limit_watts is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("value: 100, source: a paper", "value: 100", "source is missing"),
        ("value: 100", "value: -1", "above zero"),
        ("value: 100", "value: '100'", "above zero"),
        ("value: 100", "value: .inf", "above zero"),
        ("value: 100", "value: 600", "do not go up"),
        ("idle_watts", "idle_volts", "unknown key"),
        ("[x1]", "[X1]", "lower case"),
        ("names: [x1]", "size: 3", "names is missing"),
    ],
)
def test_mistakes_are_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(CatalogError, match=said):
        parse_hardware(GOOD.replace(old, new, 1))


def test_one_name_means_one_model() -> None:
    with pytest.raises(CatalogError, match="twice"):
        parse_hardware(GOOD + GOOD)
