"""The checks of a set-up as a report and as JSON: `raydiag/schemas/doctor.json`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from raydiag.doctor.set_up import CheckResult, CheckStatus, SetUp
from raydiag.model import Coverage, Diagnosis
from raydiag.nodeset import fold
from raydiag.render import document
from raydiag.render.coverage import blind_lines
from raydiag.render.document import picked
from raydiag.render.formats import count, joined
from raydiag.render.report import (
    Paragraph,
    Quote,
    Report,
    Section,
    Steps,
    Tone,
    Toned,
    bullets,
    table,
)

_LABELS = {
    CheckStatus.PROBLEM: Toned("PROBLEM", Tone.BAD),
    CheckStatus.UNKNOWN: Toned("NOT CHECKED", Tone.DOUBTFUL),
    CheckStatus.ADVICE: Toned("ADVICE", Tone.DOUBTFUL),
}
_OK = Toned("ok", Tone.GOOD)


def doctor_report(checks: Sequence[CheckResult], coverage: Coverage, verbose: bool) -> Report:
    """Problems first, each with what mends it; what is well in a table."""
    sections = [Section(blocks=[_headline(checks)])]
    for status in _LABELS:
        for check in checks:
            if check.status is status:
                sections.append(_unwell(check))
    sections.append(Section("Well", list(_well(checks, verbose))))
    answered = f"{coverage.answered} of {count(coverage.asked, 'node')} answered"
    blind = [bullets(blind_lines(coverage))]
    return Report([*sections, Section("Coverage", facts=[answered], blocks=blind)])


def doctor_document(
    checks: Sequence[CheckResult], set_up: SetUp, coverage: Coverage, generated_at: float
) -> dict[str, Any]:
    """The JSON document of `raydiag doctor`."""
    return {
        **document.head("doctor", generated_at),
        "cluster": document.plain(dict(set_up.cluster)),
        "checks": list(map(_check, checks)),
        **document.findings_and_coverage(Diagnosis((), (), coverage)),
    }


def _check(check: CheckResult) -> dict[str, Any]:
    return picked(check, "id", "area", "status", "title", "hosts", "evidence", "fix")


def _headline(checks: Sequence[CheckResult]) -> Paragraph:
    by_status = Counter(check.status for check in checks)
    problems, unchecked = by_status[CheckStatus.PROBLEM], by_status[CheckStatus.UNKNOWN]
    parts = [
        count(problems, "problem"),
        f"{by_status[CheckStatus.ADVICE]} to improve",
        f"{unchecked} not checked",
        f"{by_status[CheckStatus.OK]} well",
    ]
    tone = Tone.GOOD
    if problems or unchecked:
        tone = Tone.BAD if problems else Tone.DOUBTFUL
    return Paragraph(f"{', '.join(parts)}.", tone, strong=True)


def _unwell(check: CheckResult) -> Section:
    blocks = [Quote(check.evidence), Steps([check.fix] if check.fix else [], label="Fix")]
    facts = [joined([check.id, fold(check.hosts)])]
    return Section(check.title, blocks, label=_LABELS[check.status], facts=facts)


def _well(checks: Sequence[CheckResult], verbose: bool) -> Iterator[Any]:
    well = [check for check in checks if check.status is CheckStatus.OK]
    if verbose:
        yield table(("", "Check", "Area"), ([_OK, check.title, check.area] for check in well))
    else:
        yield bullets(check.title for check in well)
