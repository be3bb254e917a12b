"""Where a playbook writes rows and observations while it judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Optional

from raydiag.model import Confidence, Evidence, Finding, Observation, Severity, Window
from raydiag.playbooks.observations import Exclusion, ReportRow, RuledOut
from raydiag.timeline.run_timeline import RunTimeline
from raydiag.timeline.threshold_spans import Span


@dataclass(frozen=True)
class Period:
    """When what was observed began and ended."""

    onset: Optional[float] = None
    until: Optional[float] = None  # when it was last seen; None: a fact without an end
    recovered: bool = False  # it ended well before the window did
    uncertainty_s: float = 0.0  # of the onset
    before_job: bool = False  # it was so from the first sample on


def likely_if(condition: bool) -> Confidence:
    """Likely or, without what speaks for it, possible."""
    return Confidence.LIKELY if condition else Confidence.POSSIBLE


def remark_unless(serious: bool) -> Optional[Severity]:
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
        holds: Optional[bool],
        interpretation: str,
        hosts: Sequence[str] = (),
        value: Optional[float] = None,
        unit: str = "",
        query: str = "",
        gpu: Optional[int] = None,
        device: Optional[str] = None,
        window: Optional[Window] = None,
    ) -> None:
        """One row; `holds` is None where it cannot be decided."""
        self.rows.append(
            ReportRow(
                self.playbook,
                row,
                holds,
                interpretation,
                tuple(hosts),
                gpu,
                device,
                value,
                unit,
                query,
                window or self.timeline.window,
            )
        )

    def cannot_judge(self, row: str, query: str) -> bool:
        """Write that a row cannot be decided; True when so."""
        reason = self.timeline.missing(query)
        if reason:
            self.row(row, None, reason, query=query)
        return bool(reason)

    def finding(
        self,
        failure_class: str,
        row: str,
        text: str,
        *,
        query: str,
        host: Optional[str] = None,
        value: Optional[float] = None,
        unit: str = "",
        at: Optional[float] = None,
        period: Period,
        confidence: Confidence = Confidence.LIKELY,
        severity: Optional[Severity] = None,
        gpu: Optional[int] = None,
        device: Optional[str] = None,
        symptom: bool = False,
        facts: Optional[Mapping[str, float | str]] = None,
    ) -> None:
        """A row that holds, and an observation of which it is the evidence; `at`: of the value."""
        hosts = () if host is None else (host,)
        self.row(row, True, text, hosts, value, unit, query, gpu, device)
        self.observe(
            failure_class,
            row,
            [self.evidence(query, text, value, at)],
            host=host,
            period=period,
            confidence=confidence,
            severity=severity,
            gpu=gpu,
            device=device,
            symptom=symptom,
            facts=facts,
        )

    def observe(
        self,
        failure_class: str,
        row: str,
        evidence: Sequence[Evidence],
        *,
        host: Optional[str] = None,
        period: Period,
        confidence: Confidence = Confidence.LIKELY,
        severity: Optional[Severity] = None,
        explanation: str = "",
        gpu: Optional[int] = None,
        device: Optional[str] = None,
        symptom: bool = False,
        facts: Optional[Mapping[str, float | str]] = None,
    ) -> None:
        """One finding, with what ordering needs besides."""
        finding = Finding(
            failure_class,
            host,
            gpu,
            device,
            severity=severity,
            onset=None if period.before_job else period.onset,
            confidence=confidence,
            evidence=tuple(evidence),
            explanation=explanation,
            before_job=period.before_job,
        )
        self.observations.append(
            Observation(
                finding,
                self.playbook,
                row,
                symptom,
                period.until,
                period.recovered,
                period.uncertainty_s,
                dict(facts or {}),
            )
        )

    def rule_out(self, failure_class: str, reason: str) -> None:
        """A cause that the series speak against."""
        self.ruled_out.append(RuledOut(failure_class, reason, self.playbook))

    def evidence(
        self, query: str, text: str, value: Optional[float] = None, time: Optional[float] = None
    ) -> Evidence:
        """What was seen in the answer to a query."""
        return Evidence(self.timeline.answers.promql(query), text, value, time)

    def period(self, span: Span, uncertainty_s: float, onset: Optional[float] = None) -> Period:
        """Of a span that began with it, or at `onset`."""
        start = span.start if onset is None else onset
        return Period(start, span.end, self.timeline.is_over(span), uncertainty_s)
