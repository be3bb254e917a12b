"""A comparison of jobs as a report: the answer, what differs, and what it rests on."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, starmap
from operator import attrgetter

from raydiag import __version__
from raydiag.explain.comparison import Comparison, relevance
from raydiag.explain.comparison.gap import PERSISTENT, SINCE, TRANSIENT, SpeedGap
from raydiag.explain.comparison.metrics import MEAN, TABLES, ComparedMetrics
from raydiag.explain.comparison.pair import Contrast
from raydiag.explain.comparison.picture import pace_course
from raydiag.explain.comparison.saves import LOADS, Saves
from raydiag.explain.comparison.side import Side
from raydiag.explain.comparison.worker_logs import WorkerLogCounts
from raydiag.model import Coverage, Evidence
from raydiag.nodeset import fold
from raydiag.render import report
from raydiag.render.diagnose import query_lines
from raydiag.render.document import severity_of
from raydiag.render.formats import beginning, count, filled, joined, or_dash, quantity, since, utc
from raydiag.render.groups import scope, source_and_text
from raydiag.render.places import JobPlaces
from raydiag.render.report import Block, Bullet, Paragraph, Report, Section, bullets, table
from raydiag.timeline.training_series import SECONDS, TGS

_MOST_EVIDENCE = 6  # of one cause; all of it stands in the JSON
_MOST_EVIDENCE_OF_OTHERS = 2
_UNITS = {TGS: "tokens/s/device", SECONDS: "s"}
_TONES = {"healthy": report.Tone.GOOD, "unknown": report.Tone.DOUBTFUL}
_SAME = "none: the same"
_USUAL_CAUSES: Mapping[str, str] = TABLES["usual_causes"]


def comparison_report(comparison: Comparison, show_all: bool) -> Report:
    """The report of `raydiag compare`; `show_all` also shows what is the same."""
    sections: list[Section] = []
    for contrast in comparison.contrasts:
        sections += _contrast(contrast, show_all)
    if not comparison.contrasts:
        (side,) = comparison.sides
        sections.append(Section(f"Saves of job {side.label}", is_chapter=True))
        sections.append(Section("Job", [Paragraph(_about(side))]))
    sections += _of_all_jobs(comparison, show_all)
    return Report(sections, _footer(comparison))


def _contrast(contrast: Contrast, show_all: bool) -> Iterator[Section]:
    pair = contrast.pair
    yield Section(f"Multi-Job Comparison: {pair.a.label} vs {pair.b.label}", is_chapter=True)
    jobs = report.KeyValues([("Job A", _about(pair.a)), ("Job B", _about(pair.b))])
    yield Section("Jobs", [jobs])
    yield Section("Config differences", [_settings(contrast, show_all)])
    shared_range, *details = _steps(contrast)
    overlap = bullets(details).or_else("No step can be compared.")
    yield Section(f"Overlapping step range: {shared_range}", [overlap, *_pace(contrast)])
    title = "Metric comparison (steady means over these steps)"
    yield Section(title, [_metrics(contrast, show_all)])
    yield Section("Environment", [_environment(contrast, show_all)])
    yield Section("Log evidence", [table(("", "Job A", "Job B"), _worker_logs(contrast))])
    yield _root_cause(contrast)
    yield Section("Source code trace", [Paragraph(relevance.source_trace(contrast))])


def _of_all_jobs(comparison: Comparison, show_all: bool) -> Iterator[Section]:
    for side, saves in zip(comparison.sides, comparison.saves, strict=True):
        title = f"Load during saves of job {side.label}"
        yield Section(title, [_saves(saves)])
    yield Section("Other findings", [report.Bullets(list(_others(comparison, show_all)))])
    yield Section("Ruled out", [bullets(_ruled_out(comparison))])
    yield Section("Notes", [bullets(_notes(comparison))])
    yield Section("Recommended next steps", [report.Steps(relevance.next_steps(comparison))])
    queries = report.Quote(list(_queries(comparison)))
    yield Section("Queries", [queries.or_else("None was asked.")], only_in_documents=True)
    coverage = bullets(_coverage(comparison.diagnosis.coverage))
    yield Section("Coverage", [coverage.or_else("Logs only.")])


def _about(side: Side) -> str:
    """One job in one line."""
    triage, run, examined = side.examined.triage, side.run, side.examined
    steps = "no steps" if run.first is None else f"steps {run.first} to {run.last}"
    steps += filled(" ({})", ", ".join(starmap("{} {}".format, run.sources.items())))
    job = [side.label, triage.resolved.job_dir or triage.log, examined.case.status]
    diagnosis = f"own diagnosis: {examined.explained.verdict.failure_class}"
    metrics = f"metrics: {side.source}" + filled(" ({})", examined.log_only)
    return joined([*job, side.start or "start unknown", steps, diagnosis, metrics])


def _settings(contrast: Contrast, show_all: bool) -> Block:
    """What differs; names, paths and the like only with `show_all`."""
    settings = contrast.pair.settings if show_all else relevance.notable_settings(contrast)
    rows = map(attrgetter("parameter", "a", "b"), settings)
    differences = table(("Parameter", "Job A", "Job B"), rows)
    return differences.or_else("None that may explain anything.")


def _pace(contrast: Contrast) -> Iterator[Block]:
    """The plot of both jobs."""
    course = pace_course(contrast.pair)
    if course is not None:
        yield report.Plot(course)


def _steps(contrast: Contrast) -> Iterator[str]:
    """The range of steps, and what of it counts."""
    overlap = contrast.pair.overlap
    if overlap.start is None:
        yield f"none: {overlap.reason}"
        return
    yield f"{overlap.first} to {overlap.last}"
    compared = f"Compared: {overlap.start} to {overlap.last}"
    if overlap.saves:
        compared += f", without {len(overlap.saves)} that a save of either job slows"
    yield f"{compared}."
    for side in (contrast.pair.a, contrast.pair.b):
        looked = contrast.pair.looked(side)
        if looked is not None:
            start, end = utc(looked.window.start), utc(looked.window.end)
            yield f"In job {side.label} from {start} to {end}."


def _metrics(contrast: Contrast, show_all: bool) -> Block:
    """Training first, then the whole checklist; what is the same only with `show_all`."""
    rows = list(map(_training_row, contrast.pair.gaps))
    for compared in contrast.pair.metrics:
        if show_all or compared.differs:
            rows.append(_checklist_row(contrast, compared))
    header = ("Metric", "Job A", "Job B", "Delta", "Likely cause")
    return table(header, rows).or_else("None.")


def _training_row(gap: SpeedGap) -> list[str]:
    template = "{0.mean:.5g} ± {0.deviation:.2g} " + _UNITS.get(gap.metric, "")
    means = map(template.rstrip().format, (gap.a, gap.b))
    return [gap.metric, *means, _change(gap), _pattern(gap)]


def _change(gap: SpeedGap) -> str:
    """Of the medians; of what begins late, where it has begun: over all steps it would hide."""
    if gap.kind == SINCE and gap.spike_percent is not None:
        return f"{gap.spike_percent:+.2f} % since then"
    return f"{gap.percent:+.2f} %"


def _pattern(gap: SpeedGap) -> str:
    if gap.metric not in _UNITS:
        if relevance.trains_the_same(gap):
            return _SAME
        return "training itself: data, settings or numerics"
    until = f" to {gap.until_step}" if gap.until_step not in (None, gap.since_step) else ""
    patterns = {
        PERSISTENT: "stays over all steps",
        SINCE: f"from step {gap.since_step} on",
        TRANSIENT: f"transient, at step {gap.since_step}{until}",
    }
    return patterns.get(gap.kind, "none")


def _checklist_row(contrast: Contrast, compared: ComparedMetrics) -> list[str]:
    measure = compared.measure
    name = measure.metric
    if measure.how != MEAN:
        name += " (counted)"
    values = [quantity(compared.a, measure.unit, 4), quantity(compared.b, measure.unit, 4)]
    if compared.delta is None:
        return [name, *values, "-", compared.missing]
    delta = f"{compared.delta:+.4g}"
    if compared.percent is not None:
        delta += f" ({compared.percent:+.0f} %)"
    return [name, *values, delta, _likely_cause(contrast, compared)]


def _likely_cause(contrast: Contrast, compared: ComparedMetrics) -> str:
    if not compared.differs:
        return _SAME
    classes = ", ".join(relevance.classes_resting_on(contrast, compared.measure.metric))
    odd = []
    for side, hosts in relevance.few_odd_hosts(contrast, compared):
        odd.append(f"{fold(hosts)} of job {side.label}")
    causes = classes or _USUAL_CAUSES[compared.measure.group]
    return "; ".join(filter(None, [causes, ", ".join(odd)]))


def _environment(contrast: Contrast, show_all: bool) -> Block:
    rows = []
    for fact in contrast.pair.environment:
        if show_all or not fact.same or fact.what == "node set":
            rows.append((fact.what, fact.a, fact.b))
    return table(("", "Job A", "Job B"), rows).or_else("The same.")


def _worker_logs(contrast: Contrast) -> Iterator[tuple[str, str, str]]:
    """Lines of the workers' logs by pattern, of both jobs."""
    a, b = contrast.pair.a.workers, contrast.pair.b.workers
    if not a.files and not b.files:
        return
    yield "waves of communicator initialisations", or_dash(a.waves), or_dash(b.waves)
    for pattern in dict.fromkeys([*a.counts, *b.counts]):
        yield f"lines: {pattern}", _times(a, pattern), _times(b, pattern)
    if a.dumped_zeros is not None or b.dumped_zeros is not None:
        yield "xla_dump: jit_create_zeros", or_dash(a.dumped_zeros), or_dash(b.dumped_zeros)


def _times(logs: WorkerLogCounts, pattern: str) -> str:
    return str(logs.counts.get(pattern, 0)) if logs.files else "-"


def _evidence_line(evidence: Evidence) -> str:
    """A line of a log with its place; what a query showed: the queries stand by themselves."""
    if evidence.text and not JobPlaces.is_of_log(evidence):
        return evidence.text
    return source_and_text(evidence)


def _root_cause(contrast: Contrast) -> Section:
    """The answer, its confidence, and what else may slow the slower job."""
    answer = contrast.answer
    place = filled(" on {}", fold(answer.hosts))
    explanations = [answer.summary]
    evidence: list[str] = []
    for cause in filter(contrast.pair.may_be_slower, contrast.causes):
        finding = cause.finding
        if cause.explains not in answer.summary:
            facts = [scope([finding]), finding.confidence.value, cause.explains]
            explanations.append(joined([finding.failure_class, *facts]))
        evidence += map(_evidence_line, finding.evidence[:_MOST_EVIDENCE])
    return Section(
        "Root cause",
        [bullets(explanations), report.Quote(evidence)],
        tone=_TONES.get(answer.failure_class, report.Tone.BAD),
        facts=[f"{answer.failure_class}{place} ({answer.confidence.value}; {answer.kind})"],
        comes_first=True,
    )


def _saves(saves: Saves) -> report.Table:
    """The highest peak of each save, and whose it is."""
    header = ["Save", "From", *map("{0.metric} ({0.unit})".format, LOADS)]
    rows = []
    for load in saves.loads:
        step = str(load.step)
        if load.failed:
            step += " (failed)"
        peaks = [_highest_peak(load.peaks.get(measure.metric, {})) for measure in LOADS]
        rows.append([step, utc(load.window.start), *peaks])
    return table(header, rows)


def _highest_peak(peaks: Mapping[str, float]) -> str:
    if not peaks:
        return "-"
    host = max(peaks, key=lambda name: peaks[name])
    return f"{peaks[host]:.4g} {host}"


def _others(comparison: Comparison, show_all: bool) -> Iterator[Bullet]:
    """Saves, the bridge, the jobs' own findings; PromQL stands in the JSON."""
    for label, finding in relevance.other_findings(comparison, show_all):
        facts = [scope([finding]), since(finding.onset), finding.title]
        heading = joined([f"job {label}", finding.failure_class, *facts])
        pieces = beginning(finding.evidence, _MOST_EVIDENCE_OF_OTHERS, show_all)
        details = [evidence.text or evidence.source for evidence in pieces]
        yield Bullet(heading, details, report.severity_label(severity_of(finding)))


def _ruled_out(comparison: Comparison) -> Iterable[str]:
    parts = [*comparison.contrasts, *comparison.saves]
    causes = chain.from_iterable(map(attrgetter("ruled_out"), parts))
    return map("{0.failure_class}: {0.why}".format, dict.fromkeys(causes))


def _notes(comparison: Comparison) -> Iterable[str]:
    parts = [*comparison.contrasts, *comparison.saves]
    notes = list(chain.from_iterable(map(attrgetter("notes"), parts)))
    for side in comparison.sides:
        notes += [f"job {side.label}: {note}" for note in side.examined.notes]
    return dict.fromkeys(notes)


def _coverage(coverage: Coverage) -> Iterator[str]:
    if coverage.asked:
        yield f"{coverage.answered} of {count(coverage.asked, 'node')} seen."
    for blind in coverage.blind:
        yield f"not seen: {blind.host}: {blind.reason}"
    for gap in coverage.unread:
        yield ": ".join(filter(None, ["unread", gap.host, gap.source, gap.reason]))


def _queries(comparison: Comparison) -> Iterator[str]:
    for side, queries in zip(comparison.sides, comparison.asked, strict=True):
        for line in query_lines(queries):
            yield f"job {side.label}: {line}"


def _footer(comparison: Comparison) -> str:
    queries = sum(map(len, comparison.asked))
    labels = map(attrgetter("label"), comparison.sides)
    return joined([f"raydiag {__version__}", *labels, f"{queries} queries"])
