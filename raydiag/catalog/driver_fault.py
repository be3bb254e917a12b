"""KNOW: what an investigation of GPU driver faults says, from `driver_fault.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from raydiag import catalog
from raydiag.catalog.rows import CatalogRow, loaded, require_class
from raydiag.errors import CatalogError

_FILE = "driver_fault.yaml"


@dataclass(frozen=True)
class DriverFaultWords:
    """What is always true of such faults."""

    classes: frozenset[str]  # failure classes that an investigation reports
    signatures: Mapping[str, str]  # kernel function -> what its crash or hang means
    impact: Mapping[str, str]  # on whom -> what it means for them
    recovery: str
    return_criteria: Mapping[str, str]  # driver -> when its vendor takes a GPU back


@cache
def words() -> DriverFaultWords:
    """The table. Raises CatalogError."""
    return parse_words(resources.files(__package__).joinpath(_FILE).read_text("utf-8"))


def parse_words(text: str, file: str = _FILE) -> DriverFaultWords:
    """The table in a YAML object. Raises CatalogError, also for a class that does not exist."""
    row = CatalogRow(loaded(text, file), file, file)
    classes, tables = row.texts("classes"), ("signatures", "impact", "return_criteria")
    signatures, impact, criteria = map(row.mapping, tables)
    recovery = row.text("recovery")
    row.end()
    for failure_class in classes:
        require_class(failure_class, catalog.failures(), f"{file}: classes")
    unknown = set(catalog.kernel_table().driver_fault_symbols).symmetric_difference(signatures)
    if unknown:
        raise CatalogError(f"{file}: signatures: {min(unknown)} is in one of two tables only")
    return DriverFaultWords(frozenset(classes), signatures, impact, recovery, criteria)
