"""The signature table holds what it promises, and its loader refuses every kind of mistake."""

from __future__ import annotations

import textwrap
import time

import pytest

from raydiag import catalog
from raydiag.catalog.literals import required_literals, without_digits
from raydiag.catalog.signatures import Signature, parse_signatures, table
from raydiag.errors import CatalogError
from raydiag.joblog.facts import Hit, Line, Prefix
from raydiag.joblog.select import selector
from raydiag.triage.signatures import BESIDE_LINES, Classifier, make_selector

ROWS = table().rows
# Classes of the published list that are judged from steps, exits or the scheduler, not from a line.
JUDGED = {"hang", "unknown-death", "soft-success", "tgs-degradation"}
JOB_CLASSES = {
    *("container-pull-fail", "container-load-fail", "no-gpu", "nccl-nic-fail", "port-fail"),
    *("model-not-found", "patch-branch-fail", "ray-start-fail", "prolog-kill-no-log"),
    *("preflight-timeout", "pull-timeout", "ecc-timeout", "train-timeout", "stage-fail"),
    *("heartbeat-timeout", "oom-host", "oom-gpu", "nccl-timeout", "nccl-error"),
    *("xla-compile-fail", "python-exception", "signal-kill", "subprocess-fail", "actor-fail"),
    *("checkpoint-fs-error", "cancelled", "node-fail", "import-error", "config-error"),
    *("data-error", "disk-full", "loss-divergence", "gpu-hardware-error", "rendezvous-fail"),
    *("ray-node-dead",),
}
EXAMPLES = [
    pytest.param(row, text, id=f"{row.id}-{number}")
    for row in ROWS
    for number, text in enumerate(row.examples)
]
NEAR_MISSES = [
    pytest.param(row, text, id=f"{row.id}-{number}")
    for row in ROWS
    for number, text in enumerate(row.near_misses)
]


LITERALS = {literal.encode() for row in ROWS for literal in row.literals}
SELECTORS = [make_selector([]), selector(LITERALS, fast=False)]
CLASSIFIER = Classifier()


def line(text: str, number: int = 1, training: bool = True) -> Line:
    return Line("job.log", number, text, text, Prefix(), None, None, training)


def hits(text: str, training: bool = True) -> list[Hit]:
    return list(CLASSIFIER(line(text, training=training)))


def rows_of(text: str, training: bool = True) -> set[str]:
    return {hit.row for hit in hits(text, training)}


@pytest.mark.parametrize(("row", "text"), EXAMPLES)
def test_example_is_of_its_row(row: Signature, text: str) -> None:
    assert row.id in rows_of(text, training=row.when != "before-training")


@pytest.mark.parametrize(("row", "text"), EXAMPLES)
def test_example_is_of_no_other_class_that_means_something_else(row: Signature, text: str) -> None:
    classes = {hit.failure_class for hit in hits(text)} - {row.failure_class}
    assert classes <= MEANS_ALSO.get(row.id, set())


# Lines that are about two things.
MEANS_ALSO: dict[str, set[str]] = {}


@pytest.mark.parametrize(("row", "text"), NEAR_MISSES)
def test_near_miss_is_not_of_its_row(row: Signature, text: str) -> None:
    assert row.id not in rows_of(text)


@pytest.mark.parametrize(("row", "text"), EXAMPLES)
def test_example_is_selected(row: Signature, text: str) -> None:
    for select in SELECTORS:
        assert list(select(b"0: " + text.encode() + b"\n"))


def test_every_class_has_a_row_or_a_judge() -> None:
    assert {row.failure_class for row in ROWS} - {""} == JOB_CLASSES
    assert catalog.failures().keys() >= JOB_CLASSES | JUDGED
