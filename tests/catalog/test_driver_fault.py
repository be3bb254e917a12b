"""What an investigation of driver faults says, and that a mistake in its table is refused."""

from __future__ import annotations

from importlib import resources

import pytest

from raydiag import catalog
from raydiag.catalog.driver_fault import parse_words, words
from raydiag.errors import CatalogError

TEXT = resources.files(catalog).joinpath("driver_fault.yaml").read_text("utf-8")


def test_every_function_that_gives_a_fault_away_has_a_meaning() -> None:
    assert set(words().signatures) == set(catalog.kernel_table().driver_fault_symbols)


def test_every_class_of_the_gpu_families_is_reported() -> None:
    families = ("amdgpu-", "kfd-", "nvidia-", "nvlink", "xgmi-error")
    of_gpus = {name for name in catalog.failures() if name.startswith(families)}
    assert of_gpus <= words().classes


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("classes: [", "classes: [no-such-class, ", "no-such-class"),
        ("  aca_sysfs_read:", "  aca_sysfs_reads:", "in one of two tables only"),
        ("recovery: >-", "recover: >-", "recovery is missing"),
        ("impact:", "surprise: 1\nimpact:", "surprise"),
    ],
)
def test_a_mistake_is_refused(old: str, new: str, complaint: str) -> None:
    assert old in TEXT
    with pytest.raises(CatalogError, match=complaint):
        parse_words(TEXT.replace(old, new, 1))
