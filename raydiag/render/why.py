"""Why the verdict is what it is, in the lines that a first screen of 80 x 25 has room for.

What has no room there follows below it (`further_evidence`), so that nothing is said twice.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from raydiag import catalog
from raydiag.explain.job import ExaminedJob, ticket
from raydiag.model import Evidence, Finding, Severity
from raydiag.render import report as blocks
from raydiag.render.first_screen import COLUMNS, ROWS, rows_of
from raydiag.render.formats import filled, grouped, joined, timed, utc
from raydiag.render.groups import Group, groups, scope, source_and_text
from raydiag.render.places import JobPlaces
from raydiag.render.report import Bullet

_HEADINGS = 7  # rows of headings and blank lines
_LEAST_ROWS = 4  # however long the verdict and the next steps are
_MOST_OF_EVIDENCE = 3  # of one finding
_MOST_OF_REASON = 2 * COLUMNS  # characters that say why a finding is there
_MOST_OF_LINE = 400  # characters of evidence further below
_DAY = len("2026-11-20 ")
_ASIDE = re.compile(r" \([^()]*\)")
_NUMBER = re.compile(r"\d")
_QUANTITY = re.compile(r"\d+(?:\.\d+)?(?: ?[^\W\d_]+| ?%)?")  # a number with what it counts


def why_of(examined: ExaminedJob, next_steps: Iterable[str]) -> Why:
    """The reasons, with as much room as verdict and next steps leave."""
    summary = examined.explained.verdict.summary
    return Why(examined, 1 + sum(map(rows_of, [summary, *next_steps])))


@dataclass(frozen=True)
class _Reason:
    """A line that speaks for the verdict, or of what else is wrong, and what it tells."""

    bullet: Bullet
    told: frozenset[str]  # texts of evidence, explanations

    @property
    def rows(self) -> int:
        return rows_of(self.bullet.whole_text)


@dataclass(frozen=True)
class Why:
    """The reasons of one job's verdict; `rows_taken`: by the verdict and by what to do now."""

    examined: ExaminedJob
    rows_taken: int

    def brief(self) -> blocks.Bullets:
        """As many of the reasons as there is room for; those of the cause come first."""
        entries = list(map(attrgetter("bullet"), self._shown))
        left = sum(not reason.told <= self.told for reason in self._reasons)
        entries += map(Bullet, filter(None, [filled("(+{} more, below)", left or "")]))
        return blocks.Bullets(entries)

    def further_evidence(self) -> blocks.Bullets:
        """What `brief` has no room for: evidence of all findings, each line once."""
        told = set(self.told)
        entries = []
        for finding in self._findings:
            untold = [one for one in self._telling(finding) if one.text not in told]
            if untold:
                told.update(map(attrgetter("text"), untold))
                heading = joined([finding.failure_class, scope([finding])])
                entries.append(Bullet(heading, list(map(self._whole_line, untold))))
        return blocks.Bullets(entries)

    def is_told(self, text: str) -> bool:
        """Whether a text, or all parts of a list, stand among the reasons or the evidence."""
        return text in self.told or self._everything.issuperset(text.split("; "))

    @cached_property
    def _everything(self) -> frozenset[str]:
        texts = [piece.text for finding in self._findings for piece in self._telling(finding)]
        return self.told.union(texts)

    @cached_property
    def told(self) -> frozenset[str]:
        """What `brief` tells: texts of evidence, and explanations."""
        return frozenset[str]().union(*map(attrgetter("told"), self._shown))

    @cached_property
    def _shown(self) -> Sequence[_Reason]:
        room = max(ROWS - _HEADINGS - self.rows_taken, _LEAST_ROWS)
        shown: list[_Reason] = []
        for reason in self._reasons:
            room -= reason.rows
            if room < 0 and shown:
                break
            shown.append(reason)
        return shown

    @cached_property
    def _reasons(self) -> Sequence[_Reason]:
        chain = ticket.verdict_chain(self.examined)
        reasons: list[_Reason] = []
        for root in chain[:1]:
            reasons += self._of_root(root)
        return [*reasons, *self._of_effects(chain[1:]), *self._of_others()]

    def _of_root(self, root: Finding) -> Iterator[_Reason]:
        """What was concluded of this case, else the evidence itself; and the line of the log."""
        evidence = self._telling(root)
        summary = self.examined.explained.verdict.summary
        if _is_of_this_case(root) and root.explanation not in summary:
            covered = [piece for piece in evidence if _is_in(piece.text, root.explanation)]
            told = frozenset([root.explanation, *map(attrgetter("text"), covered)])
            yield _Reason(Bullet(root.explanation), told)
            evidence = [piece for piece in evidence if piece.text not in told]
        for piece in evidence:
            line = joined([self._clock(piece.time), self._line(piece)])
            yield _Reason(Bullet(_cut(line)), frozenset([piece.text]))

    def _of_effects(self, effects: Iterable[Finding]) -> Iterator[_Reason]:
        """What followed; findings that rest on the same line share one here."""
        for alike in grouped(effects, self._basis).values():
            first = alike[0]
            names = ", ".join(dict.fromkeys(map(attrgetter("failure_class"), alike)))
            head = joined([self._clock(first.onset), names, scope([first])])
            yield self._about(head, first)

    def _of_others(self) -> Iterator[_Reason]:
        """What is wrong besides, and not part of the verdict."""
        for group in self._other_groups():
            first = group.first
            head = joined([first.failure_class, scope(group.findings), self._clock(first.onset)])
            yield self._about(head, first, blocks.severity_label(group.severity))

    def _about(self, head: str, finding: Finding, badge: blocks.Toned | None = None) -> _Reason:
        """A line about a finding that is not the cause, with what it tells of the evidence."""
        reason, told = self._reason(finding)
        text = ": ".join(filter(None, [head, reason or finding.title]))
        return _Reason(Bullet(_cut(text), badge=badge), told)

    def _reason(self, finding: Finding) -> tuple[str, frozenset[str]]:
        """A line of the log, what was concluded of this case, or a piece of evidence."""
        evidence = self._telling(finding)
        texts = frozenset(map(attrgetter("text"), evidence))
        is_of_log = bool(evidence) and JobPlaces.is_of_log(evidence[0])
        if _is_of_this_case(finding) and not is_of_log:
            return _ASIDE.sub("", finding.explanation), texts | {finding.explanation}
        for piece in evidence:
            return self._line(piece), frozenset([piece.text])
        return "", frozenset([finding.explanation])

    def _basis(self, finding: Finding) -> Hashable:
        return scope([finding]), self._reason(finding)[0]

    def _telling(self, finding: Finding) -> Sequence[Evidence]:
        """Its evidence, without the lines around one of the log."""
        seen: dict[str, Evidence] = {}
        for evidence in finding.evidence[:_MOST_OF_EVIDENCE]:
            if not (seen and JobPlaces.is_of_log(evidence)):
                seen.setdefault(evidence.text, evidence)
        return list(seen.values())

    @cached_property
    def _findings(self) -> Sequence[Finding]:
        """Those of the verdict's chain, and one of each kind that is wrong besides."""
        others = map(attrgetter("first"), self._other_groups())
        return [*ticket.verdict_chain(self.examined), *others]

    def _other_groups(self) -> Iterator[Group]:
        in_chain = set(map(id, ticket.verdict_chain(self.examined)))
        for group in groups(self.examined.explained.diagnosis, verbose=False):
            is_problem = group.severity is not Severity.INFO
            if is_problem and in_chain.isdisjoint(map(id, group.findings)):
                yield group

    def _line(self, evidence: Evidence) -> str:
        """What was seen; a query says nothing to who reads, a place in a log does."""
        places = JobPlaces(self.examined.triage)
        if JobPlaces.is_of_log(evidence) or not evidence.text:
            return places.short(source_and_text(evidence))
        return places.short(evidence.text)

    def _whole_line(self, evidence: Evidence) -> str:
        return timed(self._line(evidence)[:_MOST_OF_LINE], evidence.time)

    def _clock(self, time_s: float | None) -> str:
        """The time of day; with its date where that is not the verdict's."""
        if time_s is None:
            return ""
        onset = self.examined.explained.verdict.onset
        date, told = utc(time_s)[:_DAY], utc(time_s)
        return told[_DAY:] if onset is not None and utc(onset).startswith(date) else told


def _is_of_this_case(finding: Finding) -> bool:
    """Whether its explanation has numbers: then it says more than what its class means."""
    general = catalog.failure(finding.failure_class).explanation
    return finding.explanation != general and _NUMBER.search(finding.explanation) is not None


def _is_in(evidence: str, conclusion: str) -> bool:
    """Whether a sentence holds a piece of evidence, or all quantities of it."""
    quantities = set(_QUANTITY.findall(evidence))
    has_all = bool(quantities) and quantities <= set(_QUANTITY.findall(conclusion))
    return evidence in conclusion or has_all


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_OF_REASON else f"{text[: _MOST_OF_REASON - 4]} ..."
