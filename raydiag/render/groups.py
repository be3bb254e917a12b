"""Like findings folded into one group, and the words for where, since when and on what evidence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from raydiag.model import Diagnosis, Evidence, Finding, Severity
from raydiag.nodeset import fold
from raydiag.render.document import chain_indices, severity_of
from raydiag.render.layout import number, shape, utc

EVIDENCE_LINES = 5
_SCOPE_NAMES = 3  # so many different devices are named, more are counted


@dataclass(frozen=True)
class Group:
    """Findings that differ in their scope and numbers only, and what they account for."""

    findings: Sequence[Finding]
    effects: Sequence[Finding]

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def severity(self) -> Severity:
        return severity_of(self.first)

    def heading(self) -> list[str]:
        """Class, scope, onset, confidence; without what is not known. Not escaped."""
        first = self.first
        parts = [first.failure_class, scope(self.findings), _since(self.findings)]
        return [part for part in (*parts, first.confidence.value) if part]

    def evidence(self, verbose: bool) -> list[str]:
        """A line for each piece of evidence of the first finding. Not escaped."""
        shown = self.first.evidence if verbose else self.first.evidence[:EVIDENCE_LINES]
        lines = [_evidence(item) for item in shown]
        if len(self.first.evidence) > len(shown):
            lines.append(f"(+{len(self.first.evidence) - len(shown)} more: -v shows all)")
        return lines

    def whose_evidence(self) -> str:
        """Which of several findings the evidence belongs to; empty for a single one."""
        if len(self.findings) == 1:
            return ""
        several = f"{len(self.findings)} findings of this kind"
        return f"{several}; the evidence is that of {scope([self.first])}:"

    def accounts_for(self) -> str:
        """What it caused; empty when nothing."""
        kinds = Counter(effect.failure_class for effect in self.effects)
        listed = ", ".join(f"{n} {name}" for name, n in kinds.items())
        return f"Accounts for: {listed}" if listed else ""


def groups(diagnosis: Diagnosis, verbose: bool) -> list[Group]:
    """The findings in groups, most severe first; `verbose` keeps each by itself."""
    effects: dict[int, list[Finding]] = defaultdict(list)
    for root, *others in chain_indices(diagnosis):
        effects[root] += [diagnosis.findings[index] for index in others]
    alike: dict[Any, list[int]] = defaultdict(list)
    for index, finding in enumerate(diagnosis.findings):
        alike[index if verbose else _likeness(finding)].append(index)
    found = [
        Group(
            [diagnosis.findings[index] for index in indices],
            [effect for index in indices for effect in effects.get(index, ())],
        )
        for indices in alike.values()
    ]
    # sorted() is stable: within a severity, the order of the diagnosis stays.
    return sorted(found, key=lambda group: -group.severity.rank)


def _likeness(finding: Finding) -> tuple[object, ...]:
    """Findings that agree in this are one group."""
    return (
        finding.failure_class,
        finding.address,
        severity_of(finding),
        finding.confidence,
        finding.host is None,
        finding.title,
        shape(finding.explanation, finding.host),
        tuple(finding.next_steps),
    )


def scope(findings: Sequence[Finding]) -> str:
    """Where: hosts, GPUs, device, process, task of like findings; "" for the whole cluster."""
    gpus = sorted({item.gpu for item in findings if item.gpu is not None})
    devices = sorted({item.device for item in findings if item.device is not None})
    pids = sorted({item.pid for item in findings if item.pid is not None})
    tasks = sorted({item.task for item in findings if item.task is not None})
    parts = [fold(item.host for item in findings if item.host is not None)]
    if gpus:
        parts.append(f"{'gpu' if len(gpus) == 1 else 'gpus'} {fold(map(str, gpus)).strip('[]')}")
    if gpus and len(devices) == 1:
        parts.append(f"({devices[0]})")
    elif devices and not gpus:
        parts.append(_names(devices, "devices"))
    if pids:
        parts.append(f"pid {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes")
    if tasks:
        parts.append(f"task {fold(tasks)}")
    return " ".join(part for part in parts if part)


def _names(names: Sequence[str], noun: str) -> str:
    return ", ".join(names) if len(names) <= _SCOPE_NAMES else f"{len(names)} {noun}"


def _since(findings: Iterable[Finding]) -> str:
    onsets = {item.onset for item in findings if item.onset is not None}
    if not onsets:
        return ""
    return f"since {utc(min(onsets))}" + (" (the first)" if len(onsets) > 1 else "")


def _evidence(item: Evidence) -> str:
    text = f"{item.source}: {item.text}" if item.text else item.source
    if item.value is not None and not item.text:
        text += f" = {number(item.value)}"
    return text if item.time is None else f"{text}  ({utc(item.time)})"
