"""The resident agent's state as a report and as JSON; `raydiag/schemas/agent.json` states it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydiag.model import Coverage, Diagnosis
from raydiag.render import document
from raydiag.render.formats import count, joined, span, utc
from raydiag.render.report import Paragraph, Quote, Report, Section, Tone, bullets

_OUTCOMES = {
    "started": "The resident agent is up.",
    "replaced": "The resident agent was replaced.",
    "was up": "The resident agent was up already.",
    "up": "The resident agent is up.",
    "none": "No resident agent is up.",
    "stopped": "The resident agent was stopped, and nothing of it is left.",
}

_Json = Mapping[str, Any]


def agent_document(answer: _Json, generated_at: float) -> dict[str, Any]:
    """The JSON document of `raydiag agent`.

    `answer`: command, outcome, reason, usable, job (id, version, started_at), status, log.
    """
    return {
        **document.head("agent", generated_at),
        **document.findings_and_coverage(Diagnosis((), (), Coverage(0, 0))),
        **answer,
    }


def agent_report(answer: _Json) -> Report:
    """The report of `raydiag agent`."""
    outcome = str(answer["outcome"])
    is_well = answer["usable"] or outcome == "stopped"
    tone = Tone.GOOD if is_well else Tone.DOUBTFUL
    blocks = [Paragraph(_OUTCOMES[outcome], strong=True)]
    if answer["reason"]:
        blocks.append(Paragraph(str(answer["reason"])))
    sections = [Section(blocks=blocks, tone=tone)]
    if answer["status"] is not None and outcome != "stopped":
        sections.append(Section("State", [bullets(_state(answer["job"], answer["status"]))]))
    if answer["command"] == "logs":
        lines = list(answer["log"]) or ["(nothing)"]
        sections.append(Section("What its job has printed", [Quote(lines)]))
    return Report(sections)


def _state(job: _Json, status: _Json) -> Iterator[str]:
    age_s = status["time"] - status["started_at"]
    since = utc(status["started_at"])
    yield f"job {job['id']}, raydiag {status['version']}, up for {span(age_s)} since {since}"
    yield f"{count(status['nodes'], 'node')} with an actor; {status['late']} owe an answer"
    if status["stuck_readers"]:
        yield f"{count(status['stuck_readers'], 'reader')} of raydiag's hang on nodes"
    yield joined(
        [f"{count(status['rounds'], 'round')}, {status['own_rounds']} of its own", *_last(status)]
    )
    every_s = status["every_s"]
    yield f"a round of its own every {span(every_s)}" if every_s else "no rounds of its own"
    if status["memory_trouble"]:
        yield f"memory: not on disk: {status['memory_trouble']}"
    else:
        yield f"memory: {status['memory_file']} on the head"
    mib = status["rss_bytes"] / (1 << 20)
    yield f"on the head: {status['cpu_s']:.1f} s of CPU time so far, {mib:.0f} MiB resident"
    if status["metrics_port"]:
        yield f"metrics: http://127.0.0.1:{status['metrics_port']}/metrics on the head"


def _last(status: _Json) -> Iterator[str]:
    last = status["last_round"]
    if last:
        answered = f"{last['answered']} of {last['asked']} answered"
        age = span(status["time"] - last["at"])
        yield f"the last {age} ago in {last['seconds']:.2f} s: {answered}"
