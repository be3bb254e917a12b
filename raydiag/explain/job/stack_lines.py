"""What log lines say of a Prometheus that has no samples."""

from __future__ import annotations

from raydiag.explain.job.request import TriagedJob
from raydiag.model import Evidence
from raydiag.tsdb import stack_logs
from raydiag.tsdb.stack_logs import StackLogs

_FAILURES = ("no-server", "port-taken", "gave-up")
_HEAD_LINES = 3


def logs_of(job: TriagedJob) -> StackLogs:
    """The logs of what watches the job."""
    return stack_logs.read(job.directory) if job.directory is not None else StackLogs()


def lines_on_no_samples(job: TriagedJob) -> list[Evidence]:
    """Lines of the monitoring's own logs, then of the job's log, that tell why."""
    logs, facts = logs_of(job), job.facts
    evidence = []
    for failure in _FAILURES:
        for line in logs.of(failure):
            evidence.append(Evidence(f"{line.file}:{line.line}", line.text, time=line.time))
    head = [line for line in facts.head if line.startswith("[Prometheus]")]
    log = facts.files[0].path if facts.files else facts.resolved.asked
    evidence += [Evidence(log, line) for line in head[:_HEAD_LINES]]
    return evidence
