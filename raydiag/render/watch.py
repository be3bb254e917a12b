"""What a watcher says: a line for each look and event, the same as JSON, and the hand-over note."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from raydiag.model import Coverage, Diagnosis
from raydiag.render import document
from raydiag.render.document import picked, rfc3339
from raydiag.render.escape import terminal
from raydiag.render.formats import count, filled, joined, span, utc
from raydiag.render.report import KeyValues, Report, Section, Steps, Tone, Toned, Words, bullets
from raydiag.render.secrets import masked_text
from raydiag.watch.following import JobLook, Memory
from raydiag.watch.watch_state import WatchState

_MOST_EVENTS = 20


def look_line(memory: Memory, look: JobLook, most_looks: int | None) -> str:
    """One line, also when nothing changed; `most_looks` is None where the clock decides."""
    when = rfc3339(look.time)
    tick = f"look {memory.looks}{filled(' of {}', most_looks or '')}"
    if look.failed:
        return terminal(masked_text(joined([when, tick, f"failed: {look.failed}"])))
    return terminal(joined([when, tick, *_progress(memory, look), *_health(memory, look)]))


def _progress(memory: Memory, look: JobLook) -> Iterator[str]:
    yield look.status.value
    if look.last_step is not None:
        yield f"step {look.last_step}{filled(' of {}', look.total_steps or '')}"
    if look.step_time_s is not None:
        yield f"{look.step_time_s:.3g} s/step"
    if look.last_save is not None:
        yield f"saved {look.last_save}"
    if memory.advanced_at is not None:
        yield f"last step {span(max(0.0, look.time - memory.advanced_at))} ago"


def _health(memory: Memory, look: JobLook) -> Iterator[str]:
    if look.nodes is not None:
        yield f"{look.nodes[0]} of {count(look.nodes[1], 'node')}"
    yield f"alarms: {', '.join(memory.open_alarms) or 'none'}"


def look_document(memory: Memory, look: JobLook) -> dict[str, Any]:
    """A look as JSON; `raydiag/schemas/watch.json` states the shape."""
    fields = picked(look, "status", "primary", "last_step", "total_steps", "step_time_s", "failed")
    answered, asked = look.nodes or (0, 0)
    return {
        **document.head("watch", look.time),
        "kind": "look",
        "job": memory.job,
        "text": "",
        "alarm": False,
        "look": {**fields, "number": memory.looks, "alarms": sorted(memory.open_alarms)},
        **document.findings_and_coverage(Diagnosis((), (), Coverage(asked, answered))),
    }


def event_document(
    job: str, kind: str, text: str, is_alarm: bool, generated_at: float
) -> dict[str, Any]:
    """An event as JSON; secrets are masked, since it goes elsewhere."""
    return {
        **document.head("watch", generated_at),
        "kind": kind,
        "job": job,
        "text": masked_text(text),
        "alarm": is_alarm,
        "look": None,
        **document.findings_and_coverage(Diagnosis((), (), Coverage(0, 0))),
    }


def event_line(event: Mapping[str, Any]) -> str:
    """For people."""
    mark = "ALARM" if event["alarm"] else "NOTE"
    return terminal(f"{event['generated_at']}  {mark} {event['kind']}: {event['text']}")


def handover_report(state: WatchState, now: float) -> Report:
    """Where the job stands, what happened, and what to type first."""
    memory = state.memory
    step = "none" if memory.last_step is None else str(memory.last_step)
    if memory.advanced_at is not None:
        step += f", {span(max(0.0, now - memory.advanced_at))} ago"
    stands = Toned(memory.ended or memory.status or "not looked at yet", _tone(memory))
    facts: list[tuple[str, Words]] = [
        ("Job", memory.job),
        ("Status", stands),
        ("Last step", step),
        ("Watched since", utc(memory.began)),
        ("Last look", f"{utc(state.written)} ({span(max(0.0, now - state.written))} ago)"),
    ]
    alarms = [f"since {utc(since)}: {key}" for key, since in memory.open_alarms.items()]
    events = [event_line(event) for event in state.events[-_MOST_EVENTS:]]
    sections = [
        Section("Hand-over", [KeyValues(facts)], is_chapter=True),
        Section("Open alarms", [bullets(alarms)]),
        Section("What happened", [bullets(events)]),
        Section("First command", [Steps([_first_command(state)], label="Run")]),
    ]
    return Report(sections)


def handover_document(state: WatchState, now: float) -> dict[str, Any]:
    """The note as JSON."""
    memory = state.memory
    return {
        **document.head("handover", now),
        **picked(memory, "job", "status", "last_step", "advanced_at", "began", "ended"),
        "done": bool(memory.ended),
        "alarms": memory.open_alarms,
        "events": state.events,
        "written": state.written,
        "first_command": _first_command(state),
        **document.findings_and_coverage(Diagnosis((), (), Coverage(0, 0))),
    }


def _first_command(state: WatchState) -> str:
    if state.memory.ended:
        directory = shlex.quote(state.directory)
        return f"cd {directory} && raydiag diagnose {shlex.quote(state.memory.job)}"
    directory = shlex.quote(state.directory)
    return f"cd {directory} && {shlex.join(['raydiag', *state.words])}"


def _tone(memory: Memory) -> Tone:
    if memory.open_alarms or memory.ended in ("failed", "cancelled"):
        return Tone.BAD
    return Tone.GOOD
