"""Where a playbook writes rows and observations while it judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, TypedDict

from raydiag.model import Confidence, Evidence, Finding, Observation, Severity
from raydiag.playbooks.observations import Exclusion, ReportRow, RuledOut
from raydiag.playbooks.tables import ROWS, RowKind
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import Span

if TYPE_CHECKING:
    from typing_extensions import Required, Unpack


@dataclass(frozen=True)
class Period:
    """When what was observed began and ended."""

    onset: float | None = None
    until: float | None = None  # when it was last seen; None: a fact without an end
    recovered: bool = False  # it ended well before the window did
    uncertainty_s: float = 0.0  # of the onset
    before_job: bool = False  # it was so from the first sample on


class _Details(TypedDict, total=False):
    """What an observation says besides its row and its evidence."""

    period: Required[Period]
    failure_class: str
    host: str | None
    gpu: int | None
    device: str | None
    confidence: Confidence
    severity: Severity | None
    explanation: str
    symptom: bool
    facts: Mapping[str, float | str]


def likely_if(condition: bool) -> Confidence:
    """Likely or, without what speaks for it, possible."""
    return Confidence.LIKELY if condition else Confidence.POSSIBLE


def remark_unless(serious: bool) -> Severity | None:
    """A remark; where it is serious, as severe as its class."""
    return None if serious else Severity.INFO


class ReportWriter:
    """Rows, observations and the rest of one playbook's report."""

    def __init__(self, playbook: str, timeline: RunTimeline) -> None:
        self.playbook, self.timeline = playbook, timeline
        self.rows: list[ReportRow] = []
        self.observations: list[Observation] = []
        self.ruled_out: list[RuledOut] = []
        self.exclusions: Sequence[Exclusion] = ()
        self.summary: Sequence[str] = ()  # lines of the health summary, where there is one

    @property
    def observed_classes(self) -> list[str]:
        """Failure classes that were observed, each once, in order."""
        findings = map(attrgetter("finding"), self.observations)
        return list(dict.fromkeys(map(attrgetter("failure_class"), findings)))

    @property
    def observed_hosts(self) -> list[str]:
        """Hosts with an observation, each once, sorted."""
        findings = map(attrgetter("finding"), self.observations)
        return sorted(set(filter(None, map(attrgetter("host"), findings))))

    def row(
        self,
        row: str,
        holds: bool | None,
        interpretation: str,
        hosts: Sequence[str] = (),
        value: float | None = None,
        unit: str = "",
        query: str | None = None,
        gpu: int | None = None,
        device: str | None = None,
    ) -> None:
        """One row; `holds` is None where it cannot be decided."""
        kind, place = ROWS.get(row, RowKind()), (tuple(hosts), gpu, device)
        if holds or value is not None:
            unit = unit or kind.unit
        query_id = kind.query if query is None else query
        self.rows.append(ReportRow(row, holds, interpretation, *place, value, unit, query_id))

    def cannot_judge(self, row: str) -> bool:
        """Write that a row cannot be decided; True when so."""
        reason = self.timeline.missing(ROWS[row].query)
        if reason:
            self.row(row, None, reason)
        return bool(reason)

    def finding(
        self,
        row: str,
        text: str,
        *,
        value: float | None = None,
        unit: str = "",
        at: float | None = None,
        evidence: Sequence[Evidence] = (),
        **details: Unpack[_Details],
    ) -> None:
        """A row that holds, and an observation of which it is the evidence.

        `at` is the time of the value where that is not the onset; `evidence` is what is seen in
        place of the row.
        """
        hosts = filter(None, [details.get("host")])
        place = (details.get("gpu"), details.get("device"))
        self.row(row, True, text, tuple(hosts), value, unit, None, *place)
        time = details["period"].onset if at is None else at
        seen = evidence or [self.evidence(ROWS[row].query, text, value, time)]
        self.observe(row, seen, **details)

    def observe(self, row: str, evidence: Sequence[Evidence], **details: Unpack[_Details]) -> None:
        """One finding, with what ordering needs besides."""
        period, kind = details["period"], ROWS[row]
        finding = Finding(
            details.get("failure_class", kind.failure_class),
            details.get("host"),
            details.get("gpu"),
            details.get("device"),
            severity=details.get("severity"),
            onset=None if period.before_job else period.onset,
            confidence=details.get("confidence", Confidence(kind.confidence or "likely")),
            evidence=tuple(evidence),
            explanation=details.get("explanation", ""),
            before_job=period.before_job,
        )
        symptom, facts = details.get("symptom", False), dict(details.get("facts") or {})
        lasted = (period.until, period.recovered, period.uncertainty_s)
        self.observations.append(Observation(finding, self.playbook, row, symptom, *lasted, facts))

    def rule_out(self, failure_class: str, reason: str) -> None:
        """A cause that the series speak against."""
        self.ruled_out.append(RuledOut(failure_class, reason, self.playbook))

    def evidence(
        self, query: str, text: str, value: float | None = None, time: float | None = None
    ) -> Evidence:
        """What was seen in the answer to a query."""
        return Evidence(self.timeline.answers.promql(query), text, value, time)

    def period(self, span: Span, uncertainty_s: float, onset: float | None = None) -> Period:
        """Of a span that began with it, or at `onset`."""
        start = span.start if onset is None else onset
        return Period(start, span.end, self.timeline.is_over(span), uncertainty_s)
