"""Which alerts are asked about, one diagnosis at a time, and what was answered."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from raydiag.alerts.payload import FINGERPRINT, Alert
from raydiag.file_writing import write_file
from raydiag.own_command import CommandAnswer

MOST_WAITING = 16  # jobs; Alertmanager tries again when it is refused
MOST_ALERTS_WAITING = 1000  # of all jobs
MOST_FILES = 500  # of answers; the oldest go
_MOST_REMEMBERED = 1000
_MOST_CHARACTERS = 1000  # of an annotation
# A name below --outputs: no path, no option, nothing that a shell or a URL would mean.
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")

Ask = Callable[[str], CommandAnswer]  # the job, "" for the one that was named at the start


@dataclass
class _Request:
    """One diagnosis that waits, and the alerts that it answers."""

    job: str
    alerts: list[Alert] = field(default_factory=list)


class AlertDesk:
    """Takes alerts from threads of the receiver; `work` diagnoses in the thread that calls it."""

    def __init__(self, ask: Ask, directory: str, job_label: str = "") -> None:
        self._ask, self._directory, self._job_label = ask, directory, job_label
        self._waiting: OrderedDict[str, _Request] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._answers: OrderedDict[str, str] = OrderedDict()  # fingerprint -> annotation
        self._changed = threading.Condition()

    def take(self, alerts: Sequence[Alert]) -> int:
        """Queue what fires and is new; how many that are. All or nothing.

        Raises ValueError for a job that is no name, and queue.Full.
        """
        new = {alert.occasion: alert for alert in alerts if alert.is_firing}
        with self._changed:
            for occasion in self._seen.keys() & new.keys():
                del new[occasion]
            jobs = {occasion: self._job(alert) for occasion, alert in new.items()}
            waiting = sum(len(request.alerts) for request in self._waiting.values())
            if waiting + len(new) > MOST_ALERTS_WAITING:
                raise queue.Full
            if len(self._waiting.keys() | set(jobs.values())) > MOST_WAITING:
                raise queue.Full
            for occasion, alert in new.items():
                job = jobs[occasion]
                self._waiting.setdefault(job, _Request(job)).alerts.append(alert)
                _remember(self._seen, occasion, None)
            self._changed.notify()
        return len(new)

    def annotation(self, fingerprint: str) -> str:
        """What was answered to an alert; "" where nothing is known."""
        with self._changed:
            return self._answers.get(fingerprint, "")

    def work(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        """Diagnose what waits, for ever; `tell` gets an event for each. Raises what `tell` does."""
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                _, request = self._waiting.popitem(last=False)
            answer = self._ask(request.job)
            event = _event(request, answer)
            event["text"] += self._write(request, {**event, "document": answer.document or None})
            with self._changed:
                for alert in request.alerts:
                    _remember(self._answers, alert.fingerprint, event["text"])
            tell(event)

    def _job(self, alert: Alert) -> str:
        """The job that an alert is about; "" for the one that was named at the start."""
        job = alert.labels.get(self._job_label, "") if self._job_label else ""
        if job and not _JOB.fullmatch(job):
            raise ValueError(f"label {self._job_label} is no name of a job")
        return job

    def _write(self, request: _Request, event: Mapping[str, Any]) -> str:
        """A file for each alert, whole or not at all. Returns why there is none, else ""."""
        if not self._directory:
            return ""
        try:
            for alert in request.alerts:
                content = json.dumps({**event, "alerts": [dict(alert.labels)]}).encode()
                write_file(os.path.join(self._directory, f"{alert.fingerprint}.json"), content)
            _remove_oldest(self._directory)
        except OSError as error:
            return f" (not written to {self._directory}: {error.strerror})"
        return ""


def _remove_oldest(directory: str) -> None:
    """Of the files of answers, those that are too many. Raises OSError."""
    ages = []
    for entry in os.scandir(directory):
        stem, end = os.path.splitext(entry.name)
        if end == ".json" and FINGERPRINT.fullmatch(stem):
            with contextlib.suppress(FileNotFoundError):
                ages.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    for _, path in sorted(ages)[:-MOST_FILES]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _remember(memory: OrderedDict[Any, Any], key: object, value: object) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > _MOST_REMEMBERED:
        memory.popitem(last=False)


def _event(request: _Request, answer: CommandAnswer) -> dict[str, Any]:
    """What sinks and the answer's file get; `text` fits into an annotation."""
    names = sorted({alert.name for alert in request.alerts})
    verdict = answer.document.get("verdict") or {}
    text = f"{', '.join(names)}: {_words(verdict, answer)}"
    return {
        "kind": "alert",
        "job": request.job or "the live job",
        "time": time.time(),
        "text": " ".join(text.split())[:_MOST_CHARACTERS],
        "verdict": verdict.get("class"),
        "alerts": [dict(alert.labels) for alert in request.alerts],
    }


def _words(verdict: Mapping[str, Any], answer: CommandAnswer) -> str:
    if not answer.document:
        return f"no diagnosis: {answer.complaint}"
    of_verdict = [row for row in answer.document["findings"] if row["class"] == verdict["class"]]
    next_steps = chain.from_iterable(row["next_steps"] for row in of_verdict)
    told = f"{verdict['class']} ({verdict['confidence']}): {verdict['summary']}"
    nodes = answer.document["coverage"]["nodes"]
    unseen = nodes["asked"] - nodes["answered"]
    note = f" Not seen: {unseen} of {nodes['asked']} nodes." if unseen else ""
    return f"{told}{note} Next: {next(next_steps, 'raydiag diagnose -v')}"
