"""Like findings folded into one group, and the words for where, since when and on what evidence."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from raydiag.model import Diagnosis, Evidence, Finding, Severity
from raydiag.nodeset import fold
from raydiag.render.document import chain_indices, severity_of
from raydiag.render.formats import (
    beginning,
    count,
    counted,
    filled,
    number,
    shape,
    since,
    timed,
    utc,
)
from raydiag.render.report import Paragraph, Quote, Section, Steps, severity_label

EVIDENCE_LINES = 5
_MOST_DEVICES = 3  # so many different devices are named, more are counted


@dataclass(frozen=True)
class Group:
    """Findings that differ in their scope and numbers only, and what they caused."""

    findings: Sequence[Finding]
    effects: Sequence[Finding] = ()

    @property
    def first(self) -> Finding:
        """The finding that stands for all of them."""
        return self.findings[0]

    @property
    def severity(self) -> Severity:
        """That of each of them."""
        return severity_of(self.first)

    def facts(self) -> list[str]:
        """Scope, onset, confidence, whether it is new; without what is not known."""
        facts = [scope(self.findings), self._since(), self.first.confidence.value]
        return list(filter(None, [*facts, known_before(self.findings)]))

    def evidence(self, verbose: bool) -> list[str]:
        """A line for each piece of evidence of the first finding."""
        evidence = self.first.evidence
        lines = list(map(evidence_line, beginning(evidence, EVIDENCE_LINES, verbose)))
        if len(evidence) > len(lines):
            lines.append(f"(+{len(evidence) - len(lines)} more: -v shows all)")
        return lines

    def section(self, verbose: bool) -> Section:
        """Everything about them: what, on what evidence, why, and what to do next."""
        return Section(
            title=self.first.failure_class,
            label=severity_label(self.severity),
            facts=self.facts(),
            blocks=[
                Paragraph(self.first.title),
                Paragraph(self._whose_evidence()),
                Quote(self.evidence(verbose)),
                Paragraph(self.first.explanation),
                Paragraph(self._caused()),
                Steps(self.first.next_steps, label="Next"),
            ],
        )

    def _since(self) -> str:
        onsets = {finding.onset for finding in self.findings if finding.onset is not None}
        first = since(min(onsets, default=None))
        return f"{first} (the first)" if len(onsets) > 1 else first

    def _whose_evidence(self) -> str:
        """Which of several findings the evidence belongs to; empty for a single one."""
        if len(self.findings) == 1:
            return ""
        several = f"{len(self.findings)} findings of this kind"
        return f"{several}; the evidence is that of {scope([self.first])}:"

    def _caused(self) -> str:
        kinds = Counter(effect.failure_class for effect in self.effects)
        return filled("Caused: {}", counted(kinds))


def groups(diagnosis: Diagnosis, verbose: bool) -> list[Group]:
    """The findings in groups, most severe first; `verbose` keeps each by itself."""
    effects = _effects(diagnosis)
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, finding in enumerate(diagnosis.findings):
        alike[index if verbose else _likeness(finding)].append(index)
    grouped = []
    for indices in alike.values():
        caused = list(chain.from_iterable(effects.get(index, ()) for index in indices))
        grouped.append(Group([diagnosis.findings[index] for index in indices], caused))
    # sorted() is stable: within a severity, the order of the diagnosis stays.
    return sorted(grouped, key=lambda group: -group.severity.rank)


def scope(findings: Iterable[Finding]) -> str:
    """Where: hosts, GPUs, device, process, task of like findings; "" for the whole cluster."""
    findings = list(findings)
    gpus = _values(findings, "gpu")
    parts = [fold(_values(findings, "host")), _gpus(gpus), _devices(findings, bool(gpus))]
    pids, tasks = _values(findings, "pid"), _values(findings, "task")
    if pids:
        parts.append(f"pid {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes")
    if tasks:
        parts.append(f"task {fold(tasks)}")
    return " ".join(filter(None, parts))


def known_before(findings: Iterable[Finding]) -> str:
    """Whether earlier probes have found it; "" where no resident agent remembers them."""
    known = list(filter(None, map(attrgetter("known"), findings)))
    before = [finding for finding in known if finding.times]
    if not before:
        return "new" if known else ""
    of_these = f" ({len(before)} of these {len(known)})" if len(before) < len(known) else ""
    times = count(max(finding.times for finding in before), "probe")
    first = utc(min(finding.first_seen for finding in before))
    return f"known since {first}, by {times}{of_these}"


def evidence_line(evidence: Evidence) -> str:
    """`source: text  (time)`; the value where there is no text."""
    line = source_and_text(evidence)
    if evidence.value is not None and not evidence.text:
        line += f" = {number(evidence.value)}"
    return timed(line, evidence.time)


def source_and_text(evidence: Evidence, source: str | None = None) -> str:
    """`source: text`, or what there is of both; `source` replaces the evidence's own."""
    return ": ".join(filter(None, (source or evidence.source, evidence.text)))


def _effects(diagnosis: Diagnosis) -> dict[int, list[Finding]]:
    """What each root caused, by the root's position among the findings."""
    effects: dict[int, list[Finding]] = defaultdict(list)
    for root, *caused in chain_indices(diagnosis):
        effects[root] += [diagnosis.findings[index] for index in caused]
    return effects


def _likeness(finding: Finding) -> Hashable:
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


def _values(findings: Iterable[Finding], field: str) -> list[str]:
    """What the findings say in a field, sorted by value, each once."""
    return list(map(str, sorted(_known(findings, field))))


def _known(findings: Iterable[Finding], field: str) -> set[str]:
    return {getattr(finding, field) for finding in findings} - {None}


def _gpus(gpus: Sequence[str]) -> str:
    if not gpus:
        return ""
    return f"{'gpu' if len(gpus) == 1 else 'gpus'} {fold(gpus).strip('[]')}"


def _devices(findings: Iterable[Finding], of_gpus: bool) -> str:
    """Devices by name; those of several GPUs are not, the GPUs' numbers tell them."""
    devices = _values(findings, "device")
    if of_gpus:
        return f"({devices[0]})" if len(devices) == 1 else ""
    return ", ".join(devices) if len(devices) <= _MOST_DEVICES else f"{len(devices)} devices"
