"""Training-time efficiency as a report and as JSON; `raydiag/schemas/kpi.json` states the shape."""

from collections.abc import Sequence
from typing import Any

from raydiag.model import Coverage, Diagnosis
from raydiag.render import document
from raydiag.render.document import picked
from raydiag.render.formats import count, filled, or_dash, span, utc
from raydiag.render.report import Block, KeyValues, Paragraph, Report, Section, bullets, table
from raydiag.watch.efficiency import (
    PARTS,
    AttemptTime,
    JobEfficiency,
    TimeSpent,
    all_together,
    efficiency,
)

_BAR_COLUMNS = 40
_TITLES = {
    "productive": "Productive (steps that were kept)",
    "image": "Container image",
    "startup": "Start-up and warm-up",
    "restore": "Loading checkpoints",
    "save": "Saving checkpoints",
    "slow": "Slower than usual",
    "stall": "Stalled",
    "lost": "Lost (steps that were not kept)",
    "down": "Down between attempts",
    "queue": "In the scheduler's queue",
    "other": "Other (the log does not tell)",
}


def kpi_report(jobs: Sequence[JobEfficiency]) -> Report:
    """Each job with where its time went and its attempts; then all together."""
    sections = []
    for job in jobs:
        sections += _sections(job)
    if len(jobs) > 1:
        spent = all_together(jobs)
        title = f"All {len(jobs)} jobs: {_percent(efficiency(spent))}"
        sections.append(Section(title, list(_where_time_went(spent)), is_chapter=True))
    return Report(sections)


def kpi_document(jobs: Sequence[JobEfficiency], generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag kpi`."""
    spent = all_together(jobs)
    return {
        **document.head("kpi", generated_at),
        **document.findings_and_coverage(Diagnosis((), (), Coverage(0, 0))),
        "total": {"jobs": len(jobs), "efficiency": efficiency(spent), **_times(spent)},
        "jobs": list(map(_job, jobs)),
    }


def _sections(job: JobEfficiency) -> list[Section]:
    name = f"{job.name}{filled(' ({})', job.job_id or '')}"
    title = f"Training-time efficiency of {name}: {_percent(job.efficiency)}"
    pace = "not known"
    if job.step_time_s is not None:
        pace = f"{job.step_time_s:.4g} s (by {job.step_time_source})"
    facts: list[tuple[str, str]] = [
        ("Wall time", span(getattr(job.spent, "total", None))),
        ("Attempts", count(len(job.attempts), "attempt")),
        ("Usual step", pace),
    ]
    header = ("#", "Began", "Wall", "Steps", "Kept to", "Productive", "Lost", "Down", "Ended")
    rows = list(map(_attempt_row, job.attempts))
    return [
        Section(title, [KeyValues(facts)], is_chapter=True),
        Section("Where the time went", list(_where_time_went(job.spent))),
        Section("Attempts", [table(header, rows)]),
        Section("Notes", [bullets(job.notes)]),
    ]


def _where_time_went(spent: TimeSpent | None) -> list[Block]:
    if spent is None or spent.total <= 0:
        return [Paragraph("Not known.")]
    rows = []
    for part in PARTS:
        seconds = getattr(spent, part)
        share = seconds / spent.total
        if abs(share) >= 0.0005:
            bar = "#" * max(0, round(share * _BAR_COLUMNS))
            rows.append([_TITLES[part], span(seconds), f"{100 * share:.1f} %", bar])
    return [table(("Time", "Spent", "Share", ""), rows)]


def _attempt_row(attempt: AttemptTime) -> list[str]:
    wall, productive, lost, down = _spans(attempt.spent)
    steps = "-"
    if attempt.first_step is not None:
        steps = f"{attempt.first_step} to {or_dash(attempt.last_step)}"
    return [
        str(attempt.index),
        or_dash(attempt.start and utc(attempt.start)),
        wall,
        steps,
        or_dash(attempt.kept_step),
        productive,
        lost,
        down,
        ", ".join(filter(None, [attempt.status.value, attempt.primary])),
    ]


def _spans(spent: TimeSpent | None) -> list[str]:
    """Of the attempt itself, productive, lost, and the time before it."""
    if spent is None:
        return ["n/a"] * 4
    before_s = spent.down + spent.queue
    return list(map(span, (spent.total - before_s, spent.productive, spent.lost, before_s)))


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{100 * share:.1f} %"


def _job(job: JobEfficiency) -> dict[str, Any]:
    return {
        **picked(job, "name", "job_id", "efficiency", "restarts"),
        **picked(job, "step_time_s", "step_time_source"),
        **_times(job.spent),
        "attempts": list(map(_attempt, job.attempts)),
        "notes": list(job.notes),
    }


def _attempt(attempt: AttemptTime) -> dict[str, Any]:
    return {
        **picked(attempt, "index", "source", "status", "primary", "start", "end"),
        **picked(attempt, "first_step", "last_step", "kept_step", "reached_save"),
        **_times(attempt.spent),
    }


def _times(spent: TimeSpent | None) -> dict[str, Any]:
    """Wall, productive and down time, and all parts by name; null where they are not known."""
    if spent is None:
        return dict.fromkeys(("wall_s", "productive_s", "downtime_s", "seconds"))
    return {
        "wall_s": spent.total,
        "productive_s": spent.productive,
        "downtime_s": spent.down + spent.queue,
        "seconds": picked(spent, *PARTS),
    }
