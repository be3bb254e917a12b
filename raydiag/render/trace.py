"""An incident as a Chrome trace: JSON that ui.perfetto.dev and chrome://tracing load.

One process for the job: its steps as slices, its saves and the stall beside them, the verdict's
onset across everything. One process for each host: what was found there, from when to when, and
the series of the plots as counters. Times are microseconds since 1970, so that traces of one time
can be laid over each other.

Source: Trace Event Format (Google), events X, b and e, i, C and M.
"""

import json
import math
from collections.abc import Iterator, Mapping
from itertools import count, pairwise
from typing import Any

from raydiag import __version__
from raydiag.explain.job import ExaminedJob
from raydiag.model import Observation
from raydiag.render.document import severity_of
from raydiag.render.secrets import masked_value
from raydiag.timeline.courses import Course

_Event = dict[str, Any]
_JOB = 1  # process
_STEPS, _BESIDE, _FOUND = 1, 2, 3  # threads
_MOST_EVIDENCE = 3


def trace_text(examined: ExaminedJob) -> Iterator[str]:
    """The trace, an event a line. Secrets are masked."""
    verdict = examined.explained.verdict
    told = {"verdict": verdict.failure_class, "summary": verdict.summary, "made by": __version__}
    yield f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(masked_value(told))},\n'
    yield '"traceEvents": [\n'
    events = _Trace(examined).events()
    yield ",\n".join(json.dumps(masked_value(event)) for event in events)
    yield "\n]}\n"


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


class _Trace:
    """The events of one job; processes are numbered as hosts come up."""

    def __init__(self, examined: ExaminedJob) -> None:
        self._examined = examined
        self._processes: dict[str, int] = {}
        self._ids = count(1)

    def events(self) -> Iterator[_Event]:
        """All of them; names of processes last, when all are known."""
        for host in self._examined.picture.hosts:
            self._process(host)
        yield from self._steps()
        yield from self._beside()
        yield from self._findings()
        for course in self._examined.picture.courses:
            yield from self._counters(course)
        yield from self._names()

    def _process(self, host: str | None) -> int:
        """That of a host; what is no host's is the job's."""
        if host is None:
            return _JOB
        return self._processes.setdefault(host, _JOB + 1 + len(self._processes))

    def _steps(self) -> Iterator[_Event]:
        steps = self._examined.picture.steps
        ended = list(zip(steps.numbers.tolist(), steps.ended_at.tolist(), strict=True))
        for (_, start), (number, end) in pairwise(ended):
            where = {"pid": _JOB, "tid": _STEPS, "ts": _microseconds(start)}
            lasted = _microseconds(end) - where["ts"]
            step = {"name": f"step {number:.0f}", "ph": "X", "cat": "step", "dur": lasted}
            yield {**step, **where, "args": {"step": number, "seconds": round(end - start, 3)}}

    def _beside(self) -> Iterator[_Event]:
        """Saves, the stall, and the onset."""
        for stretch in self._examined.picture.stretches:
            yield from self._span(stretch.name, _JOB, _BESIDE, (stretch.start, stretch.end), {})
        verdict = self._examined.explained.verdict
        if verdict.onset is not None:
            args = {"hosts": list(verdict.hosts), "confidence": verdict.confidence.value}
            name = f"onset: {verdict.failure_class}"
            yield _instant(name, (_JOB, _BESIDE), verdict.onset, "g", args)

    def _findings(self) -> Iterator[_Event]:
        for observation in self._examined.explained.observations:
            finding = observation.finding
            process = self._process(finding.host)
            if finding.onset is None:
                continue
            args = _told(observation)
            yield _instant(finding.failure_class, (process, _FOUND), finding.onset, "p", args)
            if observation.until is not None and observation.until > finding.onset:
                lasted = finding.onset, observation.until
                yield from self._span(finding.failure_class, process, _FOUND, lasted, args)

    def _span(
        self,
        name: str,
        process: int,
        thread: int,
        lasted: tuple[float, float],
        args: Mapping[str, Any],
    ) -> Iterator[_Event]:
        """What may overlap with others: two events of one id."""
        shared = {"name": name, "cat": "span", "id": next(self._ids), "pid": process, "tid": thread}
        yield {**shared, "ph": "b", "ts": _microseconds(lasted[0]), "args": args}
        yield {**shared, "ph": "e", "ts": _microseconds(lasted[1])}

    def _counters(self, course: Course) -> Iterator[_Event]:
        """Of the hosts that stand by themselves, and the median of the others."""
        rows = [
            (self._processes.get(curve.name, _JOB), course.title, curve.values)
            for curve in course.curves
            if not curve.lasting  # steps are slices already
        ]
        if course.others is not None:
            name = f"{course.title}, median of {course.others.name}"
            rows.append((_JOB, name, course.others.median))
        for process, name, values in rows:
            for at, value in zip(course.at.tolist(), values.tolist(), strict=True):
                if math.isfinite(value):
                    place = {"pid": process, "ts": _microseconds(at)}
                    yield {
                        "name": name,
                        "ph": "C",
                        **place,
                        "args": {course.unit or "value": value},
                    }

    def _names(self) -> Iterator[_Event]:
        threads = {_STEPS: "training steps", _BESIDE: "saves and stall", _FOUND: "findings"}
        yield _named("process_name", _JOB, 0, "job")
        for thread, name in threads.items():
            yield _named("thread_name", _JOB, thread, name)
        for host, process in self._processes.items():
            yield _named("process_name", process, 0, host)
            yield _named("thread_name", process, _FOUND, threads[_FOUND])


def _instant(
    name: str, place: tuple[int, int], at: float, scope: str, args: Mapping[str, Any]
) -> _Event:
    process, thread = place
    where = {"pid": process, "tid": thread, "ts": _microseconds(at)}
    return {"name": name, "ph": "i", "cat": "finding", "s": scope, **where, "args": args}


def _named(kind: str, process: int, thread: int, name: str) -> _Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _told(observation: Observation) -> dict[str, Any]:
    """What is known of a finding besides its time; nothing that is not."""
    finding = observation.finding
    told = {
        "title": finding.title,
        "severity": severity_of(finding).value,
        "confidence": finding.confidence.value,
        "gpu": finding.gpu,
        "device": finding.device,
        "evidence": [evidence.text for evidence in finding.evidence[:_MOST_EVIDENCE]],
    }
    return {name: value for name, value in told.items() if value is not None}
