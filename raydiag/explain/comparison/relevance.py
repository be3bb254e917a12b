"""What of a comparison matters to its reader: which causes, settings, metrics and findings."""

import itertools
from collections.abc import Iterator, Sequence
from operator import attrgetter

from raydiag.explain.comparison import Comparison, answer
from raydiag.explain.comparison.gap import SpeedGap
from raydiag.explain.comparison.metrics import ComparedMetrics, odd_hosts
from raydiag.explain.comparison.pair import LEAK, Contrast
from raydiag.explain.comparison.settings import Setting
from raydiag.explain.comparison.side import Side
from raydiag.model import Finding, Severity

_SAME_PERCENT = 2.0  # of loss, gradient norm and the like
_ALWAYS_SHOWN = ("checkpoint", "ckpt", "RAY", "steps")  # parts of names of settings
_MOST_NEXT_STEPS = 8


def notable_settings(contrast: Contrast) -> list[Setting]:
    """Settings that may explain the difference, or that its reader looks for."""
    notable = []
    for setting in contrast.pair.settings:
        if setting.explains or any(part in setting.parameter for part in _ALWAYS_SHOWN):
            notable.append(setting)
    return notable


def trains_the_same(gap: SpeedGap) -> bool:
    """Whether training itself is the same: loss and the like wander from step to step."""
    return abs(gap.percent) <= max(_SAME_PERCENT, 3 * gap.error_percent)


def classes_resting_on(contrast: Contrast, metric: str) -> list[str]:
    """Classes of the causes that have this metric as evidence, each once."""
    classes: dict[str, None] = {}
    for finding in map(attrgetter("finding"), contrast.causes):
        if metric in map(attrgetter("source"), finding.evidence):
            classes[finding.failure_class] = None
    return list(classes)


def few_odd_hosts(
    contrast: Contrast, compared: ComparedMetrics
) -> Iterator[tuple[Side, list[str]]]:
    """Each job with the hosts that stand out, where these are some of its hosts and not all."""
    if not compared.differs:
        return
    for side, is_second in ((contrast.pair.a, False), (contrast.pair.b, True)):
        hosts = odd_hosts(compared, is_second)
        if hosts and len(hosts) < max(2, len(side.hosts)):
            yield side, hosts


def source_trace(contrast: Contrast) -> str:
    """Where to read on in the source; the mechanism where it is known; "" without any."""
    if contrast.answer.trace or contrast.answer.kind != LEAK:
        return contrast.answer.trace
    explanations = map(attrgetter("finding.explanation"), contrast.causes)
    return next(filter(None, explanations), "")


def next_steps(comparison: Comparison) -> list[str]:
    """Those for what makes a job slower; what else a job has is for a diagnosis of that job.

    Of a job that is compared with none, those of the problems of its saves.
    """
    findings = list(comparison.diagnosis.problems)
    if comparison.contrasts:
        labelled = itertools.chain.from_iterable(map(answer.findings, comparison.contrasts))
        findings = [finding for _, finding in labelled]
    steps = dict.fromkeys(itertools.chain.from_iterable(map(attrgetter("next_steps"), findings)))
    return [*list(steps)[:_MOST_NEXT_STEPS], *_other_problems(comparison, findings)]


def _other_problems(comparison: Comparison, told: Sequence[Finding]) -> Iterator[str]:
    """One line for each job that has another problem than those that are told of."""
    classes_by_job: dict[str, list[str]] = {}
    told_classes = {finding.failure_class for finding in told}
    for label, finding in other_findings(comparison, show_all=False):
        is_told = finding.failure_class in told_classes
        if finding.severity is not Severity.INFO and not is_told:
            classes_by_job.setdefault(label, []).append(finding.failure_class)
    asked = {side.label: side.asked for side in comparison.sides}
    for label, classes in classes_by_job.items():
        listed = ", ".join(dict.fromkeys(classes))
        yield f"Job {label} has a problem of its own ({listed}): raydiag diagnose {asked[label]}"


def other_findings(comparison: Comparison, show_all: bool) -> Iterator[tuple[str, Finding]]:
    """Findings that are no cause in any contrast, each with the label of its job.

    Notes only with `show_all`, but for what the TensorBoard bridge has lost.
    """
    causes: set[tuple[str, str | None, str]] = set()
    for cause in itertools.chain(*map(attrgetter("causes"), comparison.contrasts)):
        causes.add((*cause.finding.class_and_host, cause.label))
    for finding, label in zip(comparison.diagnosis.findings, comparison.owners, strict=True):
        is_note = finding.severity is Severity.INFO and finding.failure_class != "tb-bridge-gap"
        is_cause = (finding.failure_class, finding.host, label) in causes
        if not is_cause and (show_all or not is_note):
            yield label, finding
