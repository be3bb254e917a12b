"""What the generator writes is what it says: the same again, real blocks, real label sets."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests import prometheus_programs
from tests.incidents import tsdb
from tests.incidents.generate import generate
from tests.incidents.job import Options, draw
from tests.incidents.timeline import SAVE, TRAIN, WAIT, Slow
from tests.incidents.truth import Incident

SMALL = Options(nodes=3, gpus=2, ports=1, minutes=20, interval_s=15)
needs_promtool = pytest.mark.skipif(
    not (prometheus_programs.found("promtool") and prometheus_programs.found("prometheus")),
    reason="there is no promtool or no prometheus",
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    """A job that nothing is wrong with."""
    return generate("healthy", 5, tmp_path_factory.mktemp("healthy") / "out", SMALL)


@pytest.fixture(scope="module")
def degraded(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    """A job with one network device that sends again and again."""
    return generate("rdma-degraded", 5, tmp_path_factory.mktemp("degraded") / "out", SMALL)


def dump(job_dir: str) -> dict[str, list[tuple[int, float]]]:
    """Every series of the job's directory, by name and labels."""
    data = Path(job_dir, "prometheus")
    (data / "wal").mkdir(exist_ok=True)  # promtool insists on one
    command = [tsdb.program("promtool"), "tsdb", "dump", "--max-time=9000000000000", str(data)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    series: dict[str, list[tuple[int, float]]] = {}
    for line in text.splitlines():
        labels, value, at = line.rsplit(" ", 2)
        series.setdefault(labels, []).append((int(at), float(value)))
    return series


@needs_promtool
def test_the_same_seed_makes_the_same_incident(degraded: Incident, tmp_path: Path) -> None:
    again = generate("rdma-degraded", 5, tmp_path / "again", SMALL)
    assert degraded.truth == again.truth
    assert dump(degraded.job_dir) == dump(again.job_dir)
    other = generate("rdma-degraded", 6, tmp_path / "other", SMALL)
    assert other.truth != degraded.truth


@needs_promtool
def test_series_of_ray_name_no_host_and_those_of_the_exporter_do(healthy: Incident) -> None:
    names = list(dump(healthy.job_dir))
    ours = [one for one in names if '__name__="hw_' in one or '__name__="tb_' in one]
    rays = [one for one in names if '__name__="ray_' in one]
    assert all(re.search(r'[{ ]host="', one) for one in ours)
    assert not any(re.search(r'[{ ]host="', one) for one in rays)
    assert all(f'instance="{host}:55080"' in " ".join(rays) for host in healthy.hosts)


@needs_promtool
def test_the_truth_is_in_the_series(degraded: Incident) -> None:
    ((host, device),) = degraded.truth.devices
    grown = {}
    for name, samples in dump(degraded.job_dir).items():
        if '"hw_rdma_tx_retx_pkts_total"' in name and samples[-1][1] > samples[0][1]:
            first = next(at for at, value in samples if value > samples[0][1])
            grown[name] = first / 1000
    ((name, onset),) = grown.items()
    assert f'host="{host}"' in name
    assert f'device="{device}"' in name
    assert degraded.truth.onset is not None
    assert 0 <= onset - degraded.truth.onset <= degraded.interval_s


@needs_promtool
def test_the_newest_samples_may_lie_in_the_log_alone(healthy: Incident, tmp_path: Path) -> None:
    with_wal = Options(**{**SMALL.__dict__, "wal_s": 300})
    made = generate("healthy", 5, tmp_path / "a", with_wal)
    blocks = Path(made.job_dir, "prometheus").glob("*/meta.json")
    newest = max(json.loads(path.read_text())["maxTime"] for path in blocks) / 1000
    assert newest < made.now - 250
    assert dump(made.job_dir) == dump(healthy.job_dir)


def test_nothing_is_written_without_promtool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus_programs, "found", lambda _name: None)
    with pytest.raises(tsdb.NoPrometheus, match="not on PATH"):
        generate("healthy", 5, tmp_path / "out", SMALL)


def test_a_step_that_is_slowed_in_its_middle_takes_as_much_longer() -> None:
    plan = draw(1, SMALL).plan
    plan.slows.clear()
    assert plan.finish(100.0, 10.0) == 110.0
    plan.slows.append(Slow(105.0, 1000.0, 2.0))
    assert plan.finish(100.0, 10.0) == 115.0


def test_phases_follow_saves_and_the_stop() -> None:
    job = draw(3, SMALL)
    job.plan.period, job.plan.asynchronous = 20, False
    save = job.timeline().saves[-1]
    job.plan.stop_at = save.end + 30
    timeline = job.timeline()
    times = np.array([save.start - 5, (save.start + save.end) / 2, save.end + 60])
    assert timeline.phase(times).tolist() == [TRAIN, SAVE, WAIT]
