"""What NVIDIA's error numbers mean: the strict loader of `nvidia_codes.yaml`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Optional

from raydiag.catalog.rows import FAMILIES, CatalogRow, loaded, require_class
from raydiag.errors import CatalogError
from raydiag.model import Severity

_FILE = "nvidia_codes.yaml"


@dataclass(frozen=True)
class NvidiaCode:
    """What one of NVIDIA's error numbers means."""

    name: str  # e.g. "Xid 79"
    title: str
    severity: Optional[Severity]  # None: the line itself states it
    finding: str  # failure class; empty: that of the event
    also: tuple[str, ...]
    next_step: str


def parse_nvidia_codes(
    text: str, classes: Iterable[str], events: Iterable[str], file: str = _FILE
) -> Mapping[tuple[str, int], NvidiaCode]:
    """Error numbers by family and number. Raises CatalogError."""
    data, known_events = loaded(text, file), frozenset(events)
    if not isinstance(data, list) or not data:
        raise CatalogError(f"{file}: not a list of rows")
    table: dict[tuple[str, int], NvidiaCode] = {}
    for number, fields in enumerate(data, 1):
        row = CatalogRow(fields, file, f"row {number}")
        numbers, entry = row.numbers("codes"), _entry(row, classes, known_events)
        for family, code in numbers:
            if (family, code) in table:
                raise row.error(f"{family} {code} is there twice")
            table[family, code] = replace(entry, name=f"{FAMILIES[family]} {code}")
    return MappingProxyType(table)


def _entry(row: CatalogRow, classes: Iterable[str], events: frozenset[str]) -> NvidiaCode:
    """What the row says of each of its numbers."""
    title, next_step = row.text("title"), row.text("next_step")
    severity = row.severity() if "severity" in row.data else None
    finding = row.text("finding", "")
    also = row.texts("also", least=0)
    row.end()
    if finding:
        require_class(finding, classes, f"{row.file}: {row.name}")
    if not events.issuperset(also):
        raise row.error(f"no row has the event {also[0]!r}")
    return NvidiaCode("", title, severity, finding, also, next_step)
