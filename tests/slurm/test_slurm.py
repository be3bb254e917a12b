"""The files of deploy/ and raydiag's view of jobs, on a real Slurm."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import schemas
from tests.loopback_sshd import free_port
from tests.slurm import real_slurm
from tests.slurm.real_slurm import ROOT, Slurm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(real_slurm.unavailable()), reason=real_slurm.unavailable()),
]
_DEPLOY = ROOT / "deploy"
_STEPS = """
for step in $(seq {first} {last}); do
  echo "completed step: $step, seconds: 0.301, TFLOP/s/device: 380.1, loss: 3.1"
  sleep 0.3
done
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with real_slurm.running(tmp_path_factory.mktemp("slurm")) as own_slurm:
        yield own_slurm


def steps(first: int, last: int) -> str:
    """Lines of a training, three a second."""
    return _STEPS.format(first=first, last=last)


def triage(slurm: Slurm, job: str) -> dict[str, Any]:
    printed = slurm.run("raydiag", "triage", job, "--format", "json", code=None)
    document: dict[str, Any] = json.loads(printed)
    schemas.fits(document, "triage")
    return document


def served(port: int) -> str:
    """The metrics of an exporter on that port. Raises OSError."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def wait_for_metrics(port: int) -> str:
    end = time.monotonic() + 60
    while True:
        try:
            if "hw_" in (text := served(port)):
                return text
        except OSError:
            pass
        assert time.monotonic() < end, "the exporter does not serve"
        time.sleep(0.5)


def test_exporters_live_with_a_job_and_do_not_change_how_it_ends(slurm: Slurm) -> None:
    port = free_port()
    script = f"""
export RAYDIAG_LISTEN=127.0.0.1:{port} RAYDIAG_LOGS=outputs/$SLURM_JOB_ID-llama/metrics_exporter
export RAYDIAG_RUN_DIR={slurm.directory}/run
source {_DEPLOY}/slurm/job_exporters.sh
start_exporters
{steps(0, 3)}
while [ ! -e finish ]; do sleep 0.2; done
{steps(4, 5)}
stop_exporters
"""
    job = slurm.submit(script)
    assert 'host="' in wait_for_metrics(port)
    assert triage(slurm, job)["status"] == "running"
    (slurm.outputs.parent / "finish").touch()
    assert slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED") == "COMPLETED"
    document = triage(slurm, job)
    assert (document["status"], document["primary"]) == ("completed", None)
    assert document["progress"]["last_step"] == 5
    with pytest.raises(OSError):
        served(port)


def test_no_prolog_or_epilog_of_ours_drains_a_node(slurm: Slurm) -> None:
    """There is no systemd here to start anything, which is what a broken node looks like."""
    job = slurm.submit("true", "--nodes=2")
    slurm.wait_for(job, "COMPLETED")
    end = time.monotonic() + 30
    while set(slurm.node_states().values()) != {"idle"} and time.monotonic() < end:
        time.sleep(0.3)  # epilogs run after the job's end
    assert (slurm.directory / "prolog-ran").exists() and (slurm.directory / "epilog-ran").exists()
    assert slurm.node_states() == {"n1": "idle", "n2": "idle"}


def test_a_requeued_job_is_judged_by_its_second_attempt(slurm: Slurm) -> None:
    script = f"""
if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then
  {steps(0, 11)}
  echo 'Traceback (most recent call last):'
  echo '  File "/opt/train/data.py", line 8, in batches'
  echo "RuntimeError: the shard has no rows"
  exit 1
fi
{steps(0, 5)}
"""
    job = slurm.submit(script, "--requeue")
    slurm.wait_for(job, "FAILED")
    first = triage(slurm, job)
    assert first["status"] == "failed"
    slurm.run("scontrol", "requeue", job)
    assert slurm.wait_for(job, "PENDING") and triage(slurm, job)["status"] != "running"
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # two minutes otherwise
    slurm.wait_for(job, "COMPLETED")
    second = triage(slurm, job)
    assert (second["status"], second["progress"]["last_step"]) == ("completed", 5)
    document = json.loads(slurm.run("raydiag", "kpi", job, "--format", "json", code=None))
    schemas.fits(document, "kpi")
    statuses = [attempt["status"] for attempt in document["jobs"][0]["attempts"]]
    assert statuses == ["failed", "completed"]


def test_a_held_and_a_cancelled_job_are_told_apart(slurm: Slurm) -> None:
    job = slurm.submit(steps(0, 200))
    slurm.wait_for(job, "RUNNING")
    end = time.monotonic() + 30
    while "step: 2" not in slurm.printed(job) and time.monotonic() < end:
        time.sleep(0.3)
    slurm.run("scancel", job)
    slurm.wait_for(job, "CANCELLED")
    assert triage(slurm, job)["status"] == "cancelled"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """Of a probe: one node is broken, one is only silent, one may have something."""
    findings = [
        {
            "class": "gpu-memory-error",
            "severity": "critical",
            "confidence": "confirmed",
            "host": "n2",
        },
        {
            "class": "node-unreachable",
            "severity": "critical",
            "confidence": "confirmed",
            "host": "n1",
        },
        {"class": "pcie-degraded", "severity": "critical", "confidence": "likely", "host": "n1"},
    ]
    path = tmp_path / "report.json"
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    document = {"schema": "raydiag.probe/1", "generated_at": made, "findings": findings}
    path.write_text(json.dumps(document))
    return path


def test_nodes_with_a_critical_finding_are_drained(slurm: Slurm, report: Path) -> None:
    drain = str(_DEPLOY / "slurm" / "drain_unhealthy.sh")
    said = slurm.run(drain, str(report))
    assert "would drain n2: gpu-memory-error" in said and "n1" not in said
    assert slurm.node_states()["n2"] == "idle"
    slurm.run("env", "RAYDIAG_DRAIN=1", drain, str(report))
    assert slurm.node_states() == {"n1": "idle", "n2": "drained"}
    assert slurm.node_reason("n2") == "raydiag: gpu-memory-error"
    slurm.run("scontrol", "update", "NodeName=n2", "State=RESUME")


def test_too_many_nodes_are_nobodys_to_drain(slurm: Slurm, report: Path, tmp_path: Path) -> None:
    drain = str(_DEPLOY / "slurm" / "drain_unhealthy.sh")
    none_allowed = ("env", "RAYDIAG_DRAIN=1", "RAYDIAG_DRAIN_AT_MOST=0")
    slurm.run(*none_allowed, drain, str(report), code=1)
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema": "raydiag.probe/1"')
    slurm.run("env", "RAYDIAG_DRAIN=1", drain, str(broken), code=2)
    slurm.run("env", "RAYDIAG_DRAIN=1", "RAYDIAG_DRAIN_AT_MOST=four", drain, str(report), code=2)
    old = json.loads(report.read_text()) | {"generated_at": "2026-01-01T00:00:00Z"}
    report.write_text(json.dumps(old))
    assert "no node to drain" in slurm.run("env", "RAYDIAG_DRAIN=1", drain, str(report))
    assert set(slurm.node_states().values()) == {"idle"}


_PROBE_IN_JOB = """
unset RAY_ADDRESS
srun --overlap --nodes=1 --ntasks=1 ray start --head --block --port={gcs} --dashboard-port={port} \\
  --temp-dir={temporary} --num-cpus=1 --object-store-memory=80000000 --disable-usage-stats &
for _ in $(seq 120); do
  sleep 1
  raydiag probe --address http://127.0.0.1:{port} --only versions --json -o report.json && break
done
kill %1
wait
"""


@pytest.mark.cluster
def test_a_probe_inside_an_allocation_with_ray_started_by_srun(slurm: Slurm) -> None:
    script = _PROBE_IN_JOB.format(
        gcs=free_port(), port=free_port(), temporary=f"/tmp/rs{free_port()}"
    )
    job = slurm.submit(script)
    slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED")
    document = json.loads((slurm.outputs.parent / "report.json").read_text())
    schemas.fits(document, "probe")
    assert document["coverage"]["nodes"]["answered"] == 1, slurm.log(job).read_text()[-2000:]
