"""Looks at a job, made of documents of `triage` and `probe`; a diagnosis in a line."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from raydiag.own_command import CommandAnswer
from raydiag.triage.verdict import JobStatus
from raydiag.watch.following import IN_LOG, ON_NODES, JobLook, SeenProblem

_OF_STATUS = ("hang", "cancelled", "unknown-death")  # the status says as much


def look(triage: CommandAnswer, probe: CommandAnswer | None, time: float) -> JobLook:
    """`probe` is None where nodes were not to be asked."""
    problems = list(_problems(triage.document, IN_LOG))
    seen = JobLook(time, problems=problems, failed=triage.complaint)
    if triage.document:
        seen = _with_log(seen, triage.document)
    if probe is None:
        return seen
    if not probe.document:
        return replace(seen, blind=probe.complaint)
    counts = probe.document["coverage"]["nodes"]
    problems += _problems(probe.document, ON_NODES)
    return replace(seen, problems=problems, nodes=(counts["answered"], counts["asked"]))


def _with_log(seen: JobLook, document: Mapping[str, Any]) -> JobLook:
    progress = document["progress"]
    throughput = progress.get("throughput") or {}
    return replace(
        seen,
        status=JobStatus(document["status"]),
        primary=document["primary"],
        last_step=progress["last_step"],
        total_steps=progress["total_steps"],
        step_time_s=progress["step_time_s"],
        last_step_time=progress["last_step_time"],
        last_save=progress["last_checkpoint"],
        is_slower=bool(throughput.get("degraded")),
    )


def _problems(document: Mapping[str, Any], source: str) -> Iterator[SeenProblem]:
    for finding in document.get("findings", ()):
        if finding["severity"] != "info" and finding["class"] not in _OF_STATUS:
            yield SeenProblem(finding["class"], _where(finding), finding["title"], source)


def _where(finding: Mapping[str, Any]) -> str:
    gpu = None if finding["gpu"] is None else f"gpu {finding['gpu']}"
    places = [finding["host"], gpu, finding["device"]]
    return " ".join(filter(None, places))


def diagnosis_line(document: Mapping[str, Any]) -> str:
    """The verdict and what to do first."""
    verdict = document["verdict"]
    hosts = ", ".join(verdict["hosts"])
    line = f"{verdict['class']} ({verdict['confidence']})"
    if hosts:
        line += f" on {hosts}"
    line += f": {verdict['summary']}"
    steps = [step for finding in document["findings"] for step in finding["next_steps"]]
    return f"{line} Next: {steps[0]}" if steps else line
