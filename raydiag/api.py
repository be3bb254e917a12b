"""The Python API: `from raydiag import probe, triage, diagnose`.

Each function does what the command of its name does and returns an `Answer`. Which cluster is meant
is told by `address` (URL of a dashboard, or "local" for a temporary Ray on this machine) or by
`ssh` ([USER@]HEAD, with `jump` and `ssh_config`), else by Ray's variables, else it is this
machine's.

Names, parameters and types of this module, and those of `raydiag.model` that it hands out, keep to
semantic versioning: see docs/api.md. Everything else in the package may change with any version.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from raydiag.cli import command_line, live, options
from raydiag.cli import diagnose as diagnose_command
from raydiag.cli import probe as probe_command
from raydiag.cli import triage as triage_command
from raydiag.errors import UsageError
from raydiag.model import Coverage, Diagnosis, Finding
from raydiag.render.secrets import masked_text, masked_value

if TYPE_CHECKING:
    from raydiag.render.report import Report

__all__ = ["probe", "triage", "diagnose", "Answer"]

_HEALTHY, _UNKNOWN = "healthy", "unknown"
_COLUMNS = 100


@dataclass(frozen=True)
class Answer:
    """What was found, and what that rests on."""

    verdict: str  # id of a failure class, "healthy" or "unknown"
    exit_code: int  # of the command: 0 all well and seen, 1 a problem, 3 not everything was seen
    diagnosis: Diagnosis  # findings, in order; chains of cause and effect; coverage
    document: dict[str, Any]  # what `--format json` writes; `raydiag schema NAME` describes it
    warnings: Sequence[str]  # what the command would say on stderr
    _report: Callable[[], Report] = field(repr=False, compare=False)

    @property
    def findings(self) -> Sequence[Finding]:
        """Everything that was found, the most severe first. Secrets in evidence are not masked."""
        return self.diagnosis.findings

    @property
    def coverage(self) -> Coverage:
        """What was asked, what answered, what could not be read."""
        return self.diagnosis.coverage

    def report(self, form: Literal["text", "markdown", "html"] = "text") -> str:
        """The report that the command would show. Raises ValueError for an unknown form."""
        from raydiag.render.html import html_text
        from raydiag.render.markdown import markdown_text
        from raydiag.render.text import text

        if form == "text":
            return text(self._report(), _COLUMNS)
        if form == "markdown":
            return markdown_text(self._report())
        if form == "html":
            return html_text(self._report(), "raydiag")
        raise ValueError(f"no form {form!r}: text, markdown or html")


def probe(
    nodes: Sequence[str] | None = None,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    deadline_s: float = 30.0,
    address: str | None = None,
    ssh: str | None = None,
    jump: str | None = None,
    ssh_config: str | None = None,
) -> Answer:
    """Run read-only probes on nodes of a Ray cluster: host names, addresses or sets; None is all.

    `only` and `skip` name probes. The answer comes within `deadline_s`, complete or not.
    Raises CannotRun where no cluster can be reached, UsageError for nodes and probes that are none.
    """
    from raydiag.explain import diagnosis
    from raydiag.render.document import probe_document
    from raydiag.render.probe import probe_report

    arguments = _arguments("probe", address, ssh, jump, ssh_config)
    arguments.node, arguments.deadline = nodes, _positive(deadline_s)
    arguments.only, arguments.skip = ",".join(only) or None, ",".join(skip) or None
    said = _Said()
    with probe_command.probed(arguments, said) as probed:
        pass
    parts = (probed.snapshot, probed.diagnosis, probed.cluster)
    exit_code = diagnosis.exit_code(probed.diagnosis)
    problems = probed.diagnosis.problems
    return Answer(
        problems[0].failure_class if problems else _without_class(exit_code),
        exit_code,
        probed.diagnosis,
        masked_value(probe_document(*parts, probed.snapshot.time)),
        said.warnings,
        lambda: probe_report(*parts, False),
    )


def triage(
    job: str,
    *,
    outputs: str = "outputs",
    now: float | Literal["log-end"] | None = None,
    running: bool | None = None,
    address: str | None = None,
    ssh: str | None = None,
    jump: str | None = None,
    ssh_config: str | None = None,
) -> Answer:
    """Read the logs of a job: a directory, a log, an id below `outputs`, or a job of Ray's.

    `now`: judge as of then, Unix seconds. `running`: whether the job runs; None asks Slurm where it
    is installed. Raises NoSuchJob, CannotRun, and UsageError where `job` is several jobs.
    """
    import time

    from raydiag.render.triage import triage_document, triage_report
    from raydiag.triage import exit_code

    arguments = _arguments("triage", address, ssh, jump, ssh_config)
    arguments.jobs, arguments.outputs = [job], outputs
    arguments.now, arguments.job_state = now, _job_state(running)
    said = _Said()
    verdicts, _ = triage_command.verdicts_of(arguments, None)
    if len(verdicts) != 1:
        raise UsageError(f"{job}: {len(verdicts)} jobs are there: name one of them")
    code = exit_code(verdicts[0])
    return Answer(
        verdicts[0].primary or _without_class(code),
        code,
        verdicts[0].diagnosis,
        masked_value(triage_document(verdicts, time.time())),
        said.warnings,
        lambda: triage_report(verdicts, False),
    )


def diagnose(
    job: str | None = None,
    *,
    outputs: str = "outputs",
    prometheus: str | None = None,
    now: float | Literal["log-end"] | None = None,
    running: bool | None = None,
    deadline_s: float = 120.0,
    address: str | None = None,
    ssh: str | None = None,
    jump: str | None = None,
    ssh_config: str | None = None,
) -> Answer:
    """One verdict of a job's log and metrics, and of a cluster's nodes where one is named.

    Without `job` the job that runs on the cluster is meant. `prometheus` is the URL of a server; a
    job's own data is served by a temporary one. `deadline_s` is for all queries together; `now` and
    `running` as for `triage`. Raises NoSuchJob and CannotRun.
    """
    import time

    from raydiag.render.diagnose import diagnosis_report
    from raydiag.render.diagnose_document import diagnose_document

    arguments = _arguments("diagnose", address, ssh, jump, ssh_config)
    arguments.jobs, arguments.outputs = [job] if job else [], outputs
    arguments.prometheus, arguments.deadline = prometheus, _positive(deadline_s)
    arguments.now, arguments.job_state = now, _job_state(running)
    said = _Said()
    examined = diagnose_command.collected(arguments, said, live.is_cluster_meant)
    return Answer(
        examined.explained.verdict.failure_class,
        examined.exit_code,
        examined.explained.diagnosis,
        masked_value(diagnose_document(examined, time.time())),
        said.warnings,
        lambda: diagnosis_report(examined, False, False),
    )


class _Said(options.ProgressLine):
    """What a command says on stderr, kept for the caller."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        """A line that changes no verdict."""
        self.warnings.append(masked_text(text))


def _arguments(command: str, *way_in: str | None) -> argparse.Namespace:
    """The options of a command as they are without any, but for the way to the cluster."""
    arguments = command_line().parse_args([command])
    vars(arguments).update(zip(options.WAY_IN, way_in))
    return arguments


def _positive(seconds: float) -> float:
    if not seconds > 0:
        raise UsageError(f"deadline_s is {seconds!r}: give seconds, more than 0")
    return seconds


def _job_state(running: bool | None) -> str:
    if running is None:
        return "auto"
    return "running" if running else "ended"


def _without_class(exit_code: int) -> str:
    """The verdict where no class is named."""
    return _UNKNOWN if exit_code else _HEALTHY
