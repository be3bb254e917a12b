"""What a playbook hands back: rows for a person to read, observations for the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from raydiag.model import Confidence, Evidence, Finding, Severity, Window
from raydiag.model import Observation as Observation


@dataclass(frozen=True)
class ReportRow:
    """One row of an interpretation table, with the values that it was decided from."""

    playbook: str
    row: str  # id of the row, e.g. "busy-wait"
    holds: Optional[bool]  # None: it cannot be decided, and `interpretation` says why
    interpretation: str
    hosts: tuple[str, ...] = ()
    gpu: Optional[int] = None
    device: Optional[str] = None
    value: Optional[float] = None
    unit: str = ""
    question: str = ""  # id of the query that the value comes from
    window: Optional[Window] = None


@dataclass(frozen=True)
class RuledOut:
    """A cause that the series speak against."""

    failure_class: str
    why: str
    playbook: str


@dataclass(frozen=True)
class Exclusion:
    """A node to leave out of the next job, the most urgent first."""

    host: str
    priority: int  # 1: lost packets for good, 2: retransmits and timeouts, 3: congestion, 4: TCP
    reason: str


@dataclass(frozen=True)
class Report:
    """One playbook's run: everything that it looked at, hits or not."""

    playbook: str
    title: str
    analysis: str  # "Analysis type" of the report: hang, heartbeat, oom, hardware, ...
    window: Window
    questions: tuple[str, ...]  # ids of the queries that it read
    rows: tuple[ReportRow, ...]
    verdict: str = ""  # one sentence
    exclude: tuple[Exclusion, ...] = ()
    block: tuple[str, ...] = ()  # lines of the health summary, where the playbook has one


@dataclass(frozen=True)
class PlaybookOutcome:
    """What all playbooks that ran found."""

    observations: Sequence[Observation]
    reports: Sequence[Report]
    ruled_out: Sequence[RuledOut] = ()


class ObservationRecorder:
    """What one playbook writes down while it runs."""

    def __init__(self, playbook: str, window: Window) -> None:
        self.playbook, self.window = playbook, window
        self.rows: list[ReportRow] = []
        self.observations: list[Observation] = []
        self.ruled_out: list[RuledOut] = []

    def row(
        self,
        row: str,
        holds: Optional[bool],
        interpretation: str,
        hosts: Sequence[str] = (),
        value: Optional[float] = None,
        unit: str = "",
        question: str = "",
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
                question,
                window or self.window,
            )
        )

    def observe(
        self,
        row: str,
        failure_class: str,
        evidence: Sequence[Evidence],
        host: Optional[str] = None,
        onset: Optional[float] = None,
        confidence: Confidence = Confidence.LIKELY,
        severity: Optional[Severity] = None,
        explanation: str = "",
        gpu: Optional[int] = None,
        device: Optional[str] = None,
        symptom: bool = False,
        until: Optional[float] = None,
        recovered: bool = False,
        uncertainty_s: float = 0.0,
        before_job: bool = False,
        facts: Optional[Mapping[str, float | str]] = None,
    ) -> None:
        """One finding, with what ordering needs besides."""
        finding = Finding(
            failure_class,
            host,
            gpu,
            device,
            severity=severity,
            onset=None if before_job else onset,
            confidence=confidence,
            evidence=tuple(evidence),
            explanation=explanation,
            before_job=before_job,
        )
        self.observations.append(
            Observation(
                finding,
                self.playbook,
                row,
                symptom,
                until,
                recovered,
                uncertainty_s,
                dict(facts or {}),
            )
        )

    def rule_out(self, failure_class: str, why: str) -> None:
        self.ruled_out.append(RuledOut(failure_class, why, self.playbook))
