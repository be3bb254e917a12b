"""What is true of each failure class, from `failures.yaml`: the only vocabulary of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from raydiag.catalog.rows import CatalogRow, loaded, require_class, rows
from raydiag.errors import CatalogError
from raydiag.model import Severity

_FILE = "failures.yaml"
JOB, MONITORING, NODE = "job", "monitoring", "node"
# What may be known of a job, and decides which next steps are for it.
_SITUATIONS: Mapping[str, Sequence[str]] = {
    "state": ("running", "ended"),
    "framework": ("jax", "torch"),
    "scheduler": ("slurm", "kubernetes"),
}
# What a variant may say, and how it is read.
_VARIANT: Mapping[str, Callable[[CatalogRow, str], object]] = {
    **dict.fromkeys(("title", "explanation"), CatalogRow.text),
    "severity": CatalogRow.severity,
    "confidence": CatalogRow.confidence,
    "next_steps": CatalogRow.texts,
}
_LISTS_OF_CLASSES = ("can_cause", "more_specific_than", "also_reported_as", "ends")


@dataclass(frozen=True)
class FailureClass:
    """One thing that can go wrong. What the flags mean stands at the top of `failures.yaml`."""

    id: str
    title: str
    severity: Severity  # where the rule that finds it does not say otherwise
    can_cause: tuple[str, ...]  # ids of classes that may follow from this one
    conditions: Mapping[str, Mapping[str, str]]  # next step -> where it applies; {}: everywhere
    explanation: str
    source: str
    concerns: str = JOB  # JOB, MONITORING or NODE
    symptom: bool = False
    felt_by_peers: bool = False
    hang: bool = False
    slow: bool = False
    ends_hang: bool = False
    mechanism: bool = False
    late_notice: bool = False
    told_by_others: bool = False
    survivable: bool = False
    spares_the_job: bool = False
    stops_its_process: bool = False
    whole_host: bool = False
    needs_two_signs: bool = False
    cluster_wide: bool = False
    exporter_only: bool = False
    more_specific_than: tuple[str, ...] = ()
    also_reported_as: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    playbooks: tuple[str, ...] = ()
    acts_after_s: int | None = None
    acts_within_s: int | None = None
    harmless_below: int | None = None
    # Name of a circumstance -> what a finding says there: fields of `model.Finding`.
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def next_steps(self) -> tuple[str, ...]:
        """Actions, the first one first, wherever they apply."""
        return tuple(self.conditions)

    def steps_in(self, situation: Mapping[str, str]) -> tuple[str, ...]:
        """The next steps that nothing known of the job's situation contradicts."""

        def _fits(step: str) -> bool:
            needed = self.conditions[step].items()
            return all(situation.get(name, value) == value for name, value in needed)

        return tuple(filter(_fits, self.conditions))

    @property
    def of_monitoring(self) -> bool:
        """Whether it is about what watches the job, not about the job."""
        return self.concerns == MONITORING

    @property
    def of_node(self) -> bool:
        """Whether it is true of a node whatever its job does, so never why a job fails."""
        return self.concerns == NODE


class Cascade(NamedTuple):
    """Classes of a log that follow from a root, whatever the order of its lines."""

    rule: str  # the reason that is reported
    roots: frozenset[str]
    effects: frozenset[str]


@dataclass(frozen=True)
class FailureTable:
    """The whole of `failures.yaml`."""

    classes: Mapping[str, FailureClass]
    log_priority: tuple[str, ...]  # of several errors on one line of a log the first one counts
    cascades: tuple[Cascade, ...]


def parse_failures(text: str, file: str = _FILE) -> FailureTable:
    """The table in a YAML object.

    Raises CatalogError for an unknown key, class or group, and for classes or groups in a circle.
    """
    top = CatalogRow(loaded(text, file), file, file)
    groups = _Groups(top.table("groups"), file)
    priority = top.texts("log_priority", least=0)
    cascades = tuple(_cascades(top, groups, file))
    class_rows = rows(top.take("classes"), file, "id")
    classes = {row.name: _failure_class(row, groups) for row in class_rows}
    top.end()
    _refuse_unknown("log_priority", priority, classes, file)
    for group in groups.names():
        _refuse_unknown(group, groups.expanded([f"${group}"]), classes, file)
    for cascade in cascades:
        _refuse_unknown("cascades", sorted(cascade.roots | cascade.effects), classes, file)
    for entry in classes.values():
        named_classes = chain.from_iterable(attrgetter(*_LISTS_OF_CLASSES)(entry))
        _refuse_unknown(entry.id, named_classes, classes, file)
    _refuse_cycles({name: entry.can_cause for name, entry in classes.items()}, file)
    return FailureTable(MappingProxyType(classes), priority, cascades)


def _failure_class(row: CatalogRow, groups: _Groups) -> FailureClass:
    classes = {key: groups.expanded(row.texts(key, least=0)) for key in _LISTS_OF_CLASSES}
    return row.rest(
        FailureClass,
        id=row.name,
        severity=row.severity(),
        conditions=MappingProxyType(dict(_steps(row))),
        concerns=row.choice("concerns", (JOB, MONITORING, NODE), JOB),
        variants=MappingProxyType(dict(_variants(row))),
        **classes,
    )


def _steps(row: CatalogRow) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Each next step with its conditions: a text, or `do` with the situation that it is for."""
    entries = row.take("next_steps")
    if not isinstance(entries, list):
        raise row.error("next_steps must be a list of steps")
    if not entries:
        raise row.error("next_steps is empty")
    for entry in entries:
        step = CatalogRow(entry if isinstance(entry, dict) else {"do": entry}, row.file, row.name)
        text, conditions = step.text("do"), {}
        for name, choices in _SITUATIONS.items():
            if name in step.data:
                conditions[name] = step.choice(name, choices)
        step.end()
        yield text, conditions


def _variants(row: CatalogRow) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, data in row.table("variants").items():
        variant = CatalogRow(data, row.file, f"{row.name}: {name}")
        read = {key: _VARIANT[key](variant, key) for key in _VARIANT if key in variant.data}
        variant.end()
        yield name, MappingProxyType(read)


def _cascades(top: CatalogRow, groups: _Groups, file: str) -> Iterator[Cascade]:
    if "cascades" not in top.data:
        return
    for row in rows(top.take("cascades"), file, "rule"):
        roots = groups.expanded(row.texts("roots"))
        effects = groups.expanded(row.texts("effects"))
        row.end()
        yield Cascade(row.name, frozenset(roots), frozenset(effects))


class _Groups:
    """Named groups of classes; `$name` stands for the members of one, in a group as well."""

    def __init__(self, members: Mapping[str, object], file: str) -> None:
        self._file = file
        row = CatalogRow(dict(members), file, "groups")
        self._members = {name: row.texts(name) for name in members}
        _refuse_cycles({name: tuple(self._groups_in(name)) for name in members}, file)

    def names(self) -> Sequence[str]:
        """Every group."""
        return tuple(self._members)

    def expanded(self, names: Sequence[str]) -> tuple[str, ...]:
        """The classes that are meant, each once."""
        classes: dict[str, None] = {}
        for name in names:
            if name.startswith("$"):
                classes.update(dict.fromkeys(self.expanded(self._of(name[1:]))))
            else:
                classes[name] = None
        return tuple(classes)

    def _of(self, group: str) -> tuple[str, ...]:
        if group not in self._members:
            raise CatalogError(f"{self._file}: no group {group!r}")
        return self._members[group]

    def _groups_in(self, group: str) -> Iterator[str]:
        for name in self._of(group):
            if name.startswith("$"):
                self._of(name[1:])
                yield name[1:]


def _refuse_unknown(place: str, names: Iterable[str], classes: Iterable[str], file: str) -> None:
    for name in names:
        require_class(name, classes, f"{file}: {place}")


def _refuse_cycles(edges: Mapping[str, Sequence[str]], file: str) -> None:
    """Root causes are found by walking `can_cause` upwards, which must come to an end."""
    finished: set[str] = set()

    def visit(name: str, path: Sequence[str]) -> None:
        if name in path:
            cycle = " -> ".join((*path[path.index(name) :], name))
            raise CatalogError(f"{file}: {name}: causes itself: {cycle}")
        if name not in finished:
            for effect in edges[name]:
                visit(effect, (*path, name))
            finished.add(name)

    for name in edges:
        visit(name, ())
