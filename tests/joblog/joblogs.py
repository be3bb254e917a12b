"""Logs on disk and a selector for them, for the tests of joblog."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Union

from raydiag.joblog.facts import JobFacts
from raydiag.joblog.find import resolve
from raydiag.joblog.log_line import Classify, Hit, JobLogLine, Selector
from raydiag.joblog.read import read

WORDS = {"NCCL WARN": "nccl", "Error": "error", "MSCCL++": "quiet"}


def literals(*more: bytes) -> Callable[[Sequence[bytes]], Selector]:
    """A selector that looks for the anchors and a few words."""

    def make(anchors: Sequence[bytes]) -> Selector:
        words = [*anchors, *more, *(word.encode() for word in WORDS)]
        pattern = re.compile(b"|".join(re.escape(word) for word in words))
        return lambda chunk: [found.start() for found in pattern.finditer(chunk)]

    return make


def classify(line: JobLogLine) -> Sequence[Hit]:
    return [
        Hit(row, "" if row == "quiet" else row, "harmless" if row == "quiet" else "root", "")
        for word, row in WORDS.items()
        if word in line.text
    ]


def write(path: Path, content: Union[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def facts_of(
    content: Union[str, bytes], tmp_path: Path, name: str = "job.log", **options: Any
) -> JobFacts:
    """Facts of one log with this content."""
    return facts_at(write(tmp_path / name, content), **options)


def facts_at(
    asked: Union[str, Path],
    judge: Classify = classify,
    outputs: str = "outputs",
    **options: Any,
) -> JobFacts:
    return read(resolve(str(asked), outputs), literals(), judge, **options)


def maxtext(step: int, seconds: float = 10.0, loss: str = "2.5", prefix: str = "") -> str:
    return (
        f"{prefix}completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: 400.000, "
        f"Tokens/s/device: 2400.000, total_weights: 4096, loss: {loss}\n"
    )
