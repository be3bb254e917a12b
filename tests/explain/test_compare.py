"""`raydiag compare` over real Prometheus data: runs of one job that differ in what is planted."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from raydiag import cli
from raydiag.tsdb import server
from tests import schemas
from tests.explain import comparable
from tests.explain.comparable import Made, make
from tests.incidents.job import Job
from tests.incidents.kinds import World, slow
from tests.tsdb import promtool
from tests.tsdb.conftest import free_port
from tests.tsdb.evidence import digest

FLAG = "enable_single_replica_ckpt_restoring=true"
FOR_EVER = 1e12
Document = dict[str, Any]
Compare = Callable[..., tuple[int, Document]]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs for the code under test and for the generator; without them the tests skip."""
    promtool.provide(monkeypatch)
    place = str(Path(promtool.program("promtool")).parent)
    monkeypatch.setenv("PATH", place, prepend=":")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("first")


@pytest.fixture
def first(outputs: Path) -> str:
    """Job 701, well, which the others are compared with; made once."""
    path = outputs / "701-JAX-llama2-70b"
    return str(path) if path.exists() else make(outputs, 1).path


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Compare:
    def run(*arguments: str) -> tuple[int, Document]:
        code = cli.main(["compare", *arguments, "--job-state", "ended", "--format", "json"])
        document = json.loads(capsys.readouterr().out)
        schemas.fits(document, "compare")
        return code, document

    return run


def only(document: Document) -> Document:
    (found,) = document["comparisons"]
    assert isinstance(found, dict)
    return found


def classes(document: Document) -> set[str]:
    return {one["class"] for one in document["findings"] if one["severity"] != "info"}


def metric(document: Document, name: str) -> Document:
    (found,) = [one for one in only(document)["metrics"] if one["metric"] == name]
    assert isinstance(found, dict)
    return found


def test_each_directory_is_served_once(
    first: str, tmp_path: Path, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = []
    real = server.running

    def counted(data: Path, *more: Any) -> Any:
        served.append(os.readlink(next(data.glob("01*/index"))))
        return real(data, *more)

    monkeypatch.setattr(server, "running", counted)
    code, _ = compare(first, make(tmp_path, 2).path)
    assert code == 0
    assert len(served) == len(set(served)) == 2


# ---- nothing, once, or all the time


def test_two_runs_of_one_job_are_alike_and_untouched(
    first: str, tmp_path: Path, compare: Compare
) -> None:
    other = make(tmp_path, 2).path
    before = digest(Path(first)), digest(Path(other))
    code, document = compare(first, other)
    assert (digest(Path(first)), digest(Path(other))) == before
    verdict = only(document)["verdict"]
    assert (code, verdict["kind"], verdict["class"]) == (0, "alike", "healthy")
    assert [job["metrics"] for job in document["jobs"]] == ["directory", "directory"]
    assert [job["identity"] for job in document["jobs"]] == ["verified", "verified"]
    overlap = only(document)["overlap"]
    assert (overlap["first"], overlap["compared_from"]) == (0, 10)
    assert overlap["left_out"] == [60, 61, 120, 121]
    assert not any(one["missing"] for one in only(document)["metrics"])


def test_a_bad_link_on_one_host_makes_the_job_slower(
    first: str, tmp_path: Path, compare: Compare
) -> None:
    def plant(world: World) -> None:
        host, port = world.job.hosts[1], world.job.ports[1]
        for name, rate in (("retx_pkts", 40.0), ("ack_timeout", 0.5)):
            series = world.one(host, f"hw_rdma_tx_{name}_total", device=port)
            series.rate(world.job.plan.train_start, FOR_EVER, rate)

    made = make(tmp_path, 2, lambda job: comparable.slower(job, 1.2), plant)
    code, document = compare(first, made.path)
    verdict = only(document)["verdict"]
    assert (code, verdict["class"], verdict["slower"]) == (1, "rdma-degraded", "702")
    assert verdict["hosts"] == [made.job.hosts[1]]
    assert verdict["slower_percent"] == pytest.approx(100 * (1 - 1 / 1.2), abs=0.3)
    assert only(document)["causes"][0]["device"] == made.job.ports[1]
    assert only(document)["training"][0]["pattern"] == "persistent"
    # The other way round it is the first job that has it.
    code, document = compare(made.path, first)
    verdict = only(document)["verdict"]
    assert (code, verdict["class"], verdict["slower"]) == (1, "rdma-degraded", "702")


def test_what_passes_is_no_lasting_difference_and_has_its_cause(
    first: str, tmp_path: Path, compare: Compare
) -> None:
    def edit(job: Job) -> None:
        slow(job, job.plan.train_start + 600, job.plan.train_start + 900, 1.3)

    def plant(world: World) -> None:
        series = world.one(
            world.job.hosts[1], "hw_rdma_tx_retx_pkts_total", device=world.job.ports[1]
        )
        begin = world.job.plan.train_start + 600
        series.rate(begin, begin + 300, 40)

    code, document = compare(first, make(tmp_path, 2, edit, plant).path)
    verdict = only(document)["verdict"]
    assert (code, verdict["kind"], verdict["class"]) == (1, "transient", "rdma-degraded")
    assert verdict["slower"] is None and verdict["confidence"] == "confirmed"


def test_one_slow_step_is_a_spike(first: str, tmp_path: Path, compare: Compare) -> None:
    def edit(job: Job) -> None:
        slow(job, job.plan.train_start + 700, job.plan.train_start + 730, 4.0)

    code, document = compare(first, make(tmp_path, 2, edit).path)
    verdict = only(document)["verdict"]
    assert (code, verdict["kind"], verdict["class"]) == (0, "transient", "healthy")


def test_a_gap_that_begins_at_a_step_is_dated(first: str, tmp_path: Path, compare: Compare) -> None:
    made = make(tmp_path, 2, lambda job: slow(job, job.plan.train_start + 900, FOR_EVER, 1.1))
    begin = made.job.plan.train_start + 900
    code, document = compare(first, made.path)
    found = only(document)
    assert (code, found["verdict"]["kind"]) == (1, "unexplained")
    assert found["training"][0]["pattern"] == "since"
    assert found["verdict"]["slower_percent"] == pytest.approx(9.1, abs=0.5)
    (finding,) = [one for one in document["findings"] if one["class"] == "tgs-degradation"]
    assert finding["job"] == "702" and abs(finding["onset"] - begin) < 10 * comparable.STEP_S
    assert "MaxText" in found["verdict"]["trace"]


# ---- settings, and what explains nothing


def test_other_settings_come_first_and_are_no_problem(
    first: str, tmp_path: Path, compare: Compare, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "remat_policy=full _env_NCCL_DEBUG=INFO run_name=again"
    made = make(tmp_path, 2, lambda job: comparable.slower(job, 1.2), arguments=arguments)
    code, document = compare(first, made.path)
    found = only(document)
    assert (code, found["verdict"]["kind"]) == (0, "configuration")
    explaining = [one["parameter"] for one in found["config"] if one["explains"]]
    assert explaining == ["_env_NCCL_DEBUG", "remat_policy"]
    assert cli.main(["compare", first, made.path, "--job-state", "ended"]) == 0
    out = capsys.readouterr().out
    assert "run_name" not in out and "remat_policy" in out


def test_tcp_retransmits_explain_no_throughput(
    first: str, tmp_path: Path, compare: Compare
) -> None:
    def plant(world: World) -> None:
        for host in world.job.hosts:
            world.one(host, "hw_tcp_retransmits_total").rate(0, FOR_EVER, 1500)

    code, document = compare(first, make(tmp_path / "same", 2, plant=plant).path)
    assert (code, only(document)["verdict"]["class"]) == (0, "healthy")
    made = make(tmp_path / "slower", 3, lambda job: comparable.slower(job, 1.05), plant)
    code, document = compare(first, made.path)
    found = only(document)
    assert (code, found["verdict"]["class"], found["causes"]) == (1, "unknown", [])
    assert metric(document, "rate(hw_tcp_retransmits_total)")["differs"] is True
    assert "tcp-retransmits" in {one["class"] for one in found["ruled_out"]}


def test_tasks_of_one_host_and_tasks_of_all(first: str, tmp_path: Path, compare: Compare) -> None:
    def one(world: World) -> None:
        world.one(world.job.hosts[2], "hw_procs_running").shift(0, FOR_EVER, lambda s: s * 0 + 40)

    def every(world: World) -> None:
        for host in world.job.hosts:
            world.one(host, "hw_procs_running").shift(0, FOR_EVER, lambda s: s * 0 + 20)

    def edit(job: Job) -> None:
        comparable.slower(job, 1.04)

    made = make(tmp_path, 2, edit, one)
    _, document = compare(first, made.path)
    verdict = only(document)["verdict"]
    assert (verdict["class"], verdict["hosts"]) == ("cpu-contention", [made.job.hosts[2]])
    code, document = compare(first, make(tmp_path, 3, edit, every).path)
    found = only(document)
    assert (code, found["verdict"]["class"]) == (1, "thread-oversubscription")
    assert "runs without enable_single_replica" in found["ruled_out"][0]["why"]


def test_storage_outside_saves(first: str, tmp_path: Path, compare: Compare) -> None:
    def plant(world: World) -> None:
        host, begin = world.job.hosts[1], world.job.plan.train_start + 100
        world.one(host, "hw_io_pressure_full_pct").put(begin, FOR_EVER, 55, 3)

    made = make(tmp_path, 2, lambda job: comparable.slower(job, 1.1), plant)
    code, document = compare(first, made.path)
    verdict = only(document)["verdict"]
    assert (code, verdict["class"]) == (1, "storage-stall")
    assert verdict["hosts"] == [made.job.hosts[1]]


def hot(world: World) -> None:
    host, begin = world.job.hosts[1], world.job.plan.train_start + 60
    for gpu in range(world.job.options.gpus):
        world.gpu(host, gpu, "hw_gpu_temperature_celsius").put(begin, FOR_EVER, 101, 1)
        world.gpu(host, gpu, "hw_gpu_clock_mhz").put(begin, FOR_EVER, 1300, 10)


def congested(world: World) -> None:
    for host in world.job.hosts:
        for port in world.job.ports:
            series = world.one(host, "hw_rdma_rx_cnp_pkts_total", device=port)
            series.rate(world.job.plan.train_start, FOR_EVER, 5000)


def crowded(world: World) -> None:
    host = world.job.hosts[1]
    world.one(host, "hw_procs_running").shift(0, FOR_EVER, lambda s: s * 0 + 30)
    world.one(host, "hw_gpu_user_processes").shift(0, FOR_EVER, lambda s: s * 0 + 2)


@pytest.mark.parametrize(
    ("plant", "failure_class", "on_one_host"),
    [
        (hot, "thermal-throttling", True),
        (congested, "network-congestion", False),
        (crowded, "noisy-neighbour", True),
    ],
)
def test_other_causes(
    plant: Callable[[World], None],
    failure_class: str,
    on_one_host: bool,
    first: str,
    tmp_path: Path,
    compare: Compare,
) -> None:
    made = make(tmp_path, 2, lambda job: comparable.slower(job, 1.1), plant)
    code, document = compare(first, made.path)
    verdict = only(document)["verdict"]
    assert (code, verdict["class"]) == (1, failure_class)
    assert verdict["hosts"] == ([made.job.hosts[1]] if on_one_host else [])
    assert failure_class in classes(document)


def test_what_both_jobs_have_is_no_difference(tmp_path: Path, compare: Compare) -> None:
    pair = [make(tmp_path, number, plant=congested).path for number in (1, 2)]
    code, document = compare(*pair)
    assert (code, only(document)["verdict"]["class"]) == (0, "healthy")
    assert only(document)["causes"] == []


# ---- the communicator of a single-replica restore


def leaking(job: Job) -> None:
    comparable.restored(job)
    comparable.slower(job, 1.012)
    comparable.waves(job, ["start", "SingleReplicaArrayHandler", "training"])


def more_tasks(world: World) -> None:
    for host in world.job.hosts:
        world.one(host, "hw_procs_running").shift(0, FOR_EVER, lambda s: s * 0 + 17)


@pytest.fixture(scope="module")
def restorable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """A fresh job with the flag, and two waves of initialisations; made once."""
    place = tmp_path_factory.mktemp("fresh")

    def path() -> str:
        made = place / "701-JAX-llama2-70b"
        if not made.exists():
            make(place, 1, lambda j: comparable.waves(j, ["start", "training"]), arguments=FLAG)
        return str(made)

    yield path


def test_a_leak_is_proved_by_the_workers_logs(
    restorable: Callable[[], str],
    tmp_path: Path,
    compare: Compare,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = make(tmp_path, 2, leaking, more_tasks, FLAG)
    dump = Path(made.path) / "xla_dump"
    dump.mkdir()
    for name in ("module_0001.jit_create_zeros.txt", "module_0001.jit_create_zeros.hlo.pb"):
        (dump / name).touch()
    code, document = compare(restorable(), made.path)
    found = only(document)
    assert (code, found["verdict"]["class"]) == (1, "rccl-communicator-leak")
    assert found["verdict"]["confidence"] == "confirmed" and found["verdict"]["slower"] == "702"
    waves = [job["worker_logs"]["waves"] for job in document["jobs"]]
    assert waves == [2, 3] and document["jobs"][1]["worker_logs"]["jit_create_zeros"] == 1
    assert document["jobs"][1]["start"] == "restored from checkpoint step 60"
    (finding,) = [one for one in document["findings"] if one["class"] == "rccl-communicator-leak"]
    assert "LockableGpuClique" in finding["explanation"]
    assert "yihuang/fix-rccl-thread-leak-single-replica-restore" in finding["next_steps"][0]
    for words in (["--format", "markdown"], []):
        cli.main(["compare", restorable(), made.path, "--job-state", "ended", *words])
        out = capsys.readouterr().out
        assert "3 waves of initialisations, 2 in job 701" in " ".join(out.split())
        assert "clear_caches" not in out and "clear_backends" not in out


def test_without_the_logs_it_is_likely_and_against_them_it_is_none(
    restorable: Callable[[], str], tmp_path: Path, compare: Compare
) -> None:
    def quiet(job: Job) -> None:
        leaking(job)
        job.worker_lines.clear()

    def two(job: Job) -> None:
        leaking(job)
        job.worker_lines.clear()
        comparable.waves(job, ["start", "training"])

    _, document = compare(restorable(), make(tmp_path, 2, quiet, more_tasks, FLAG).path)
    verdict = only(document)["verdict"]
    assert (verdict["class"], verdict["confidence"]) == ("rccl-communicator-leak", "likely")
    _, document = compare(restorable(), make(tmp_path, 3, two, more_tasks, FLAG).path)
    assert only(document)["verdict"]["class"] == "thread-oversubscription"


def test_the_flag_alone_leaks_nothing(
    restorable: Callable[[], str], first: str, tmp_path: Path, compare: Compare
) -> None:
    code, document = compare(first, restorable())
    assert code == 0 and "rccl-communicator-leak" not in classes(document)
    (why,) = [
        one["why"]
        for one in only(document)["ruled_out"]
        if one["class"] == "rccl-communicator-leak"
    ]
    assert "started afresh" in why
    fixed = make(tmp_path, 2, comparable.restored, arguments=FLAG)
    code, document = compare(first, fixed.path)
    assert code == 0 and "rccl-communicator-leak" not in classes(document)


# ---- live, finished and without Ray


@contextlib.contextmanager
def serving(made: Made) -> Iterator[str]:
    """The job's own Prometheus, as while it lives: it scrapes into the job's directory."""
    port = free_port()
    config = Path(made.path).parent / "live.yml"
    config.write_text(
        "global: {scrape_interval: 300s}\nscrape_configs:\n"
        "- {job_name: node_hw, static_configs: [{targets: ['127.0.0.1:1']}]}\n"
    )
    data = Path(made.path) / "prometheus"
    command = [promtool.program("prometheus"), f"--config.file={config}"]
    command += [f"--storage.tsdb.path={data}", f"--web.listen-address=127.0.0.1:{port}"]
    command += ["--storage.tsdb.retention.time=10y"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for_targets(url, process)
        made.rewrite("-L 9190:localhost:9190", f"-L {port}:localhost:{port}")
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_for_targets(url: str, process: subprocess.Popen[bytes]) -> None:
    """It knows what to scrape some seconds after it is ready."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        assert process.poll() is None
        with contextlib.suppress(requests.RequestException):
            found = requests.get(f"{url}/api/v1/targets", timeout=1).json()
            if found["data"]["activeTargets"]:
                return
        time.sleep(0.2)
    raise AssertionError("no target after 30 s")


def test_a_live_a_finished_and_a_job_without_ray_in_one_comparison(
    first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def live(job: Job) -> None:
        job.ending, job.total_steps = "live", 5000

    def without(job: Job) -> None:
        job.ray = False

    running, bare = make(tmp_path, 2, live), make(tmp_path, 3, without)
    with serving(running) as url:
        words = ["compare", first, running.path, bare.path, "--format", "json"]
        words += ["--job-state", "ended", "--job-state", f"{running.path}=running"]
        words += ["--now", f"{running.path}={running.end}"]
        code = cli.main(words)
        document = json.loads(capsys.readouterr().out)
        # A server that is named is asked as well as one that is found.
        cli.main([*words, "--prometheus", f"{running.path}={url}"])
        named = json.loads(capsys.readouterr().out)
    schemas.fits(document, "compare")
    assert [job["metrics"] for job in document["jobs"]] == ["directory", "live", "log only"]
    assert [job["metrics"] for job in named["jobs"]] == ["directory", "live", "log only"]
    assert document["jobs"][1]["origin"] == url and document["jobs"][1]["status"] == "running"
    assert "RAY=0" in document["jobs"][2]["log_only"]
    assert [(one["a"], one["b"]) for one in document["comparisons"]] == [
        ("701", "702"),
        ("701", "703"),
    ]
    assert [one["verdict"]["class"] for one in document["comparisons"]] == ["healthy", "healthy"]
    assert code == 0
    without_metrics = document["comparisons"][1]
    assert without_metrics["training"][0]["pattern"] == "none"
    assert {one["differs"] for one in without_metrics["metrics"]} == {None}
    assert any("by its log alone" in note for note in without_metrics["notes"])


def test_a_server_that_does_not_answer(first: str, tmp_path: Path, compare: Compare) -> None:
    other = make(tmp_path, 2).path
    nobody = f"http://127.0.0.1:{free_port()}"
    code, document = compare(first, other, "--prometheus", f"{other}={nobody}")
    assert code == 0 and document["jobs"][1]["metrics"] == "directory"


# ---- steps that are not shared


def test_steps_that_do_not_overlap_are_said(first: str, tmp_path: Path, compare: Compare) -> None:
    made = make(tmp_path, 2, lambda job: comparable.restored(job, 600))
    code, document = compare(first, made.path)
    found = only(document)
    assert (code, found["verdict"]["kind"]) == (3, "not comparable")
    assert "no step in common: 0 to 166, and 601 to" in found["overlap"]["reason"]
    assert {one["differs"] for one in found["metrics"]} == {None}


# ---- saves, and what the bridge has lost


def failing(job: Job) -> None:
    job.fail(1, "python exited")
    error = 'Error opening "zarr" driver: .../checkpoints/120/items/manifest.ocdbt.__lock'
    job.lines = [
        "2: Traceback (most recent call last):",
        f"2: ValueError: NOT_FOUND: {error}: No such file or directory",
    ]
    job.plan.stop_at = job.plan.train_start + 1120
    job.ended_at = job.plan.stop_at + 60


def busier(world: World) -> None:
    head = world.job.head
    world.one(head, "hw_tcp_retransmits_total").rate(world.last_step, FOR_EVER, 9000)
    world.one(head, "hw_io_pressure_full_pct").put(world.last_step, FOR_EVER, 99.0)


def test_storage_was_busier_at_the_save_that_failed(
    tmp_path: Path, compare: Compare, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(tmp_path, 2, failing, busier)
    code, document = compare(made.path)
    assert code == 1 and document["job"] == "702" and "jobs" not in document
    assert [(one["step"], one["failed"]) for one in document["saves"]] == [(60, False), (120, True)]
    (finding,) = [one for one in document["findings"] if one["class"] == "storage-stall"]
    assert finding["host"] == made.job.head and "GCS" in finding["explanation"]
    chain = [document["findings"][index]["class"] for index in document["chains"][0]]
    assert chain == ["storage-stall", "checkpoint-fs-error"]
    for words in ([], ["--format", "markdown"]):
        assert cli.main(["compare", made.path, "--job-state", "ended", *words]) == 1
        assert "120 (failed)" in capsys.readouterr().out


def test_storage_was_as_always_at_the_save_that_failed(tmp_path: Path, compare: Compare) -> None:
    code, document = compare(make(tmp_path, 2, failing).path)
    assert code == 1 and "storage-stall" not in classes(document)
    assert "checkpoint-fs-error" in classes(document)


def test_steps_that_the_bridge_lost_come_from_the_event_file(
    first: str, tmp_path: Path, compare: Compare
) -> None:
    def edit(job: Job) -> None:
        job.event_file = True
        comparable.slower(job, 1.05)

    def plant(world: World) -> None:
        world.training.exported[:] = True
        world.training.exported[80:100] = False

    made = make(tmp_path, 2, edit, plant)
    code, document = compare(first, made.path)
    assert code == 1
    told = document["jobs"][1]
    assert told["event_files"]["missing"] == [{"first": 80, "last": 99}]
    assert told["steps"]["sources"] == {"metrics": told["steps"]["count"] - 20, "event file": 20}
    (gap,) = [one for one in document["findings"] if one["class"] == "tb-bridge-gap"]
    assert gap["severity"] == "info" and "80 to 99" in gap["evidence"][0]["text"]
    assert only(document)["verdict"]["slower_percent"] == pytest.approx(4.8, abs=0.2)


def test_without_the_bridge_the_event_file_dates_the_steps(
    first: str, tmp_path: Path, compare: Compare
) -> None:
    def edit(job: Job) -> None:
        job.event_file = True

    def plant(world: World) -> None:
        world.training.exported[:] = False

    code, document = compare(first, make(tmp_path, 2, edit, plant).path)
    assert (code, only(document)["verdict"]["class"]) == (0, "healthy")
    assert list(document["jobs"][1]["steps"]["sources"]) == ["event file"]
    assert metric(document, "hw_procs_running")["b"] == pytest.approx(49, abs=1)


# ---- reports and usage


def test_the_report_has_the_sections_that_its_readers_know(
    first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(tmp_path, 2, lambda job: comparable.slower(job, 1.2), arguments="attention=flash")
    words = ["compare", first, made.path, "--job-state", "ended"]
    assert cli.main([*words, "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("## Multi-Job Comparison: 701 vs 702\n")
    order = [
        "### Config differences",
        "| Parameter | Job A | Job B |",
        "### Overlapping step range: 0 to 1",
        "### Metric comparison",
        "| Metric | Job A | Job B | Delta | Likely cause |",
        "### Root cause",
        "### Queries",
        "### Coverage",
    ]
    places = [out.find(one) for one in order]
    assert -1 not in places and places == sorted(places)
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("Multi-Job Comparison: 701 vs 702\n\nROOT CAUSE")
    assert "CONFIG DIFFERENCES" in text and "METRIC COMPARISON" in text
    # -v shows what is the same as well.
    assert len(text) < len((cli.main([*words, "-v"]), capsys.readouterr().out)[1])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "name two jobs"),
        (["FIRST", "FIRST"], 2, "named twice"),
        (["FIRST", "FIRST.log"], 2, "are one job"),
        (["FIRST", "nowhere"], 4, "nowhere"),
        (["FIRST", "x", "--job-state", "gone"], 2, "--job-state gone"),
        (["FIRST", "x", "--now", "FIRST=soon"], 2, "--now"),
        (["FIRST", "x", "--prometheus", "http://127.0.0.1:1"], 2, "say of which job"),
        (["FIRST", "x", "--address", "y"], 2, "--address"),
    ],
)
def test_usage(
    first: str, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        got = cli.main(["compare", *(word.replace("FIRST", first) for word in words)])
    except SystemExit as stopped:
        got = int(str(stopped.code))
    assert got == code
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
