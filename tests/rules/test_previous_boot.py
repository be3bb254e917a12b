from __future__ import annotations

from raydiag.model import Confidence, Finding, Severity
from raydiag.probes.previous_boot import CrashDump
from raydiag.rules.previous_boot import crashes
from tests.rules.snapshots import NOW, report, snapshot

HOUR = 3600.0


def dump(age_s: float, reason: str = "Panic", *lines: str, number: int = 1) -> CrashDump:
    return CrashDump(f"/sys/fs/pstore/dmesg-erst-{number}", NOW - age_s, reason, lines)


def judged(*dumps: CrashDump, job_age_s: float | None = None) -> list[Finding]:
    start = None if job_age_s is None else NOW - job_age_s
    return list(crashes(snapshot(report("a", previous_boot=dumps), job_start=start)))


def test_a_panic_since_the_jobs_start() -> None:
    (finding,) = judged(dump(HOUR, "Panic", "Kernel panic - x", "y"), job_age_s=2 * HOUR)
    assert (finding.failure_class, finding.host) == ("kernel-panic", "a")
    assert (finding.severity, finding.confidence) == (Severity.CRITICAL, Confidence.LIKELY)
    assert (finding.onset, finding.device) == (NOW - HOUR, None)
    assert [piece.text for piece in finding.evidence] == ["Kernel panic - x", "y"]


def test_an_oops_of_the_last_day_where_no_job_is_known() -> None:
    (finding,) = judged(dump(23 * HOUR, "Oops", "BUG: x"))
    assert (finding.failure_class, finding.severity) == ("kernel-oops", Severity.WARNING)


def test_older_crash_is_a_note() -> None:
    for job_age_s in (None, HOUR):
        (finding,) = judged(dump(25 * HOUR, "Panic", "Kernel panic"), job_age_s=job_age_s)
        assert finding.severity is Severity.INFO
        assert finding.device == "/sys/fs/pstore/dmesg-erst-1"
        assert "before the present job" in finding.explanation


def test_parts_of_a_crash_are_one_finding_of_the_newest() -> None:
    parts = [dump(HOUR + n, "Panic", f"line {n}", number=n) for n in range(5)]
    old = dump(99 * HOUR, "Panic", "old", number=9)
    (finding,) = judged(old, *parts, job_age_s=2 * HOUR)
    assert finding.onset == NOW - HOUR
    assert [piece.text for piece in finding.evidence] == ["line 0", "line 1", "line 2"]


def test_an_old_part_is_no_evidence_of_a_new_crash() -> None:
    found = judged(dump(HOUR, "Panic", "new"), dump(9 * HOUR, "Panic", "old"), job_age_s=2 * HOUR)
    assert [piece.text for piece in found[0].evidence] == ["new"]


def test_a_panic_and_its_oops_are_two() -> None:
    found = judged(dump(HOUR, "Oops", "BUG: x"), dump(HOUR, "Panic", "Kernel panic", number=2))
    assert [one.failure_class for one in found] == ["kernel-panic", "kernel-oops"]


def test_a_whole_text_with_a_panic_in_it_is_a_panic() -> None:
    (finding,) = judged(dump(HOUR, "Oops", "BUG: x", "Kernel panic - not syncing: x"))
    assert finding.failure_class == "kernel-panic"


def test_a_dump_that_was_not_read_is_at_least_an_oops() -> None:
    (finding,) = judged(dump(HOUR, ""))
    assert finding.failure_class == "kernel-oops"
    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.POSSIBLE)
    assert finding.evidence[0].text == "compressed, or without text"


def test_other_reasons_and_no_dump_are_nothing() -> None:
    assert judged() == []
    assert judged(dump(HOUR, "Shutdown", "some line"), dump(HOUR, "Emergency", number=2)) == []
