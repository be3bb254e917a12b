"""What lines of a job's log mean: the strict loader of `signatures.yaml`.

Source: signatures.yaml; its header says what each key means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Literal, cast

from raydiag import catalog
from raydiag.catalog.literals import required_literals
from raydiag.catalog.rows import CatalogRow, loaded, rows
from raydiag.errors import CatalogError

_FILE = "signatures.yaml"
_GROUP_NAME = re.compile(r"\(\?P<([a-z_]+)>")

Role = Literal["root", "consequence", "either", "harmless"]
When = Literal["", "training", "before-training"]

ROLES = ("root", "consequence", "either", "harmless")
WHEN = ("", "training", "before-training")
STAGES = (
    *("", "Slurm prolog", "job start", "preflight", "ECC check", "Docker pull", "container start"),
    *("Ray init", "training start", "training", "checkpoint", "teardown"),
)
# Named groups that the judges understand. The loader adds the number of its pattern to each, since
# names of one regular expression must differ: host2 is a host.
GROUPS = frozenset(
    {"task", "rank", "local_rank", "host", "peer", "ip", "gpu", "pid", "code", "signal"}
    | {"exception", "reason", "name", "path"}
)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One row: a form of line, and what it is evidence of."""

    id: str
    failure_class: str  # empty for a harmless row
    role: Role
    weak: bool  # counts only where nothing else explains the end
    stage: str  # empty where it may be any
    when: When
    pattern: re.Pattern[str]  # searched in the text of a line; groups as in `GROUPS`
    anchored: bool  # it looks at where a text begins
    literals: frozenset[str]  # each match holds one of them
    unless: re.Pattern[str] | None  # the row does not count where this is found
    instead_of: frozenset[str]  # rows that this one makes superfluous on the same line
    beside: str = ""  # harmless within `BESIDE_LINES` below a line of that row; empty: never
    does_not_show: str = ""  # empty where nothing needs to be said
    examples: tuple[str, ...]
    near_misses: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class SignatureTable:
    """The whole of `signatures.yaml`, rows in its own order."""

    rows: tuple[Signature, ...]
    by_id: Mapping[str, Signature]
    quotes: re.Pattern[str]  # a line that starts like this tells nothing


@cache
def table() -> SignatureTable:
    """The signatures of job logs; read once."""
    text = resources.files("raydiag.catalog").joinpath(_FILE).read_text("utf-8")
    return parse_signatures(text, catalog.failures())


def parse_signatures(text: str, classes: Iterable[str], file: str = _FILE) -> SignatureTable:
    """The table in a YAML object. Raises CatalogError, also for a class not in `classes`."""
    top = CatalogRow(loaded(text, file), file, file)
    quotes = _alternation(top, top.texts("quotes"))
    known = frozenset(classes)
    signatures = tuple(_signature(row, known) for row in rows(top.take("signatures"), file, "id"))
    top.end()
    by_id = {row.id: row for row in signatures}
    for row in signatures:
        for other in (*sorted(row.instead_of), *filter(None, [row.beside])):
            if other not in by_id or other == row.id:
                raise CatalogError(f"{file}: {row.id}: no other row {other!r}")
    return SignatureTable(signatures, MappingProxyType(by_id), quotes)


def _signature(row: CatalogRow, classes: frozenset[str]) -> Signature:
    role = cast(Role, row.choice("role", ROLES))
    failure_class = row.text("class") if role != "harmless" else ""
    if failure_class and failure_class not in classes:
        raise row.error(f"no failure class {failure_class!r}")
    unless = row.texts("unless", least=0)
    pattern = _pattern(row)
    literals = required_literals(pattern.pattern)
    if not literals:
        raise row.error("patterns: no literal that every match holds")
    return row.rest(
        Signature,
        id=row.name,
        failure_class=failure_class,
        role=role,
        stage=row.choice("stage", STAGES, ""),
        when=cast(When, row.choice("when", WHEN, "")),
        pattern=pattern,
        anchored="^" in re.sub(r"\[\^|\\\^", "", pattern.pattern),
        literals=literals,
        unless=_alternation(row, unless) if unless else None,
        instead_of=frozenset(row.texts("instead_of", least=0)),
    )


def _pattern(row: CatalogRow) -> re.Pattern[str]:
    """All patterns of a row as one."""
    numbered = []
    for number, pattern in enumerate(row.texts("patterns"), 1):
        numbered.append(_GROUP_NAME.sub(rf"(?P<\g<1>{number}>", pattern))
    row.data["patterns"] = "|".join(numbered)
    return row.pattern("patterns", GROUPS, numbered=True)


def _alternation(row: CatalogRow, patterns: tuple[str, ...]) -> re.Pattern[str]:
    try:
        return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    except re.error as error:
        raise row.error(f"a pattern: {error}") from None
