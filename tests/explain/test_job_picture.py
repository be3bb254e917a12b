"""What a diagnosis has to draw: the series of its verdict, chosen without one more query."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raydiag.explain.job import DiagnosisRequest, ExaminedJob, examine
from raydiag.joblog import find, read
from raydiag.timeline.courses import SAVE, STALL
from raydiag.triage.signatures import Classifier, make_selector
from raydiag.triage.verdict import Moment
from tests.incidents.generate import generate
from tests.incidents.job import Options
from tests.incidents.truth import Incident

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("promtool") and shutil.which("prometheus")),
        reason="promtool and prometheus are not on PATH",
    ),
]
SMALL = Options(nodes=4, gpus=4, ports=2, minutes=40, interval_s=15)


def diagnosed(kind: str, out: Path) -> tuple[Incident, ExaminedJob]:
    incident = generate(kind, 5, out / "out", SMALL)
    facts = read.read(find.resolve(incident.job_dir, str(out)), make_selector, Classifier())
    return incident, examine(facts, Moment(now=incident.now, alive=False), DiagnosisRequest())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("rdma-degraded", "RDMA retransmits"),
        ("gpu-memory-error", "Uncorrectable GPU errors, worst counter"),
        ("storage-stall", "Time in which all tasks wait for storage"),
        ("oom-host-leak", "Memory used"),
        ("thermal-throttling", "Hottest GPU"),
        ("loss-divergence", "Loss"),
    ],
)
def test_the_verdict_is_drawn(kind: str, expected: str, tmp_path: Path) -> None:
    incident, examined = diagnosed(kind, tmp_path)
    picture, verdict = examined.picture, examined.explained.verdict
    assert verdict.failure_class == incident.truth.verdict
    assert 2 <= len(picture.courses) <= 4
    course = picture.courses[0]
    assert course.title == expected
    assert course.onset == verdict.onset
    assert course.extent is not None and course.onset is not None
    assert course.extent[0] < course.onset < course.extent[1]
    if verdict.hosts:
        assert [curve.name for curve in course.curves] == list(verdict.hosts)[:3]
        assert course.others is not None
    assert len({course.extent for course in picture.courses}) == 1
    assert picture.gpus == dict.fromkeys(picture.hosts, 4)
    assert examined.metrics is not None and len(examined.metrics.asked) <= 40


def test_a_hang_shows_saves_and_where_steps_stopped(tmp_path: Path) -> None:
    _, examined = diagnosed("rccl-hang", tmp_path)
    stretches = {stretch.name: stretch for stretch in examined.picture.stretches}
    assert set(stretches) == {SAVE, STALL}
    assert stretches[STALL].start == examined.picture.steps.last_at
    assert "Time per training step" in {course.title for course in examined.picture.courses}
