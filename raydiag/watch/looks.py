"""Looks at a job, made of documents of `triage` and `probe`; a diagnosis in a line."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raydiag.triage.verdict import JobStatus
from raydiag.watch.following import JobLook, SeenProblem

_OF_STATUS = ("hang", "cancelled", "unknown-death")  # the status says as much


def look(
    triage: Mapping[str, Any], probe: Mapping[str, Any] | None, time: float, failed: str = ""
) -> JobLook:
    """`triage` is empty where it failed, `probe` is None where nodes were not asked."""
    problems = list(_problems([triage, probe or {}]))
    nodes = None
    if probe:
        counts = probe["coverage"]["nodes"]
        nodes = (counts["answered"], counts["asked"])
    if not triage:
        return JobLook(time, problems=problems, nodes=nodes, failed=failed)
    progress = triage["progress"]
    throughput = progress.get("throughput") or {}
    return JobLook(
        time=time,
        status=JobStatus(triage["status"]),
        primary=triage["primary"],
        last_step=progress["last_step"],
        total_steps=progress["total_steps"],
        step_time_s=progress["step_time_s"],
        last_step_time=progress["last_step_time"],
        last_save=progress["last_checkpoint"],
        is_slower=bool(throughput.get("degraded")),
        problems=problems,
        nodes=nodes,
        failed=failed,
    )


def _problems(documents: Sequence[Mapping[str, Any]]) -> Iterator[SeenProblem]:
    for document in documents:
        for finding in document.get("findings", ()):
            if finding["severity"] != "info" and finding["class"] not in _OF_STATUS:
                yield SeenProblem(finding["class"], _where(finding), finding["title"])


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
