"""`--redact` of triage, diagnose and compare: no planted name is left in any format."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from raydiag.cli import main
from raydiag.playbooks.observations import ReportRow
from raydiag.render.job_names import JobNames, hosts_of_urls
from tests import schemas
from tests.explain import comparable
from tests.explain.comparable import Made, make
from tests.incidents.job import Job
from tests.incidents.kinds import World

pytestmark = pytest.mark.slow

FORMATS = ("text", "markdown", "json", "html")
HOSTS = ("zulu-17.corp.example", "yankee4", "xray-a-3.corp.example")


def names(*hosts: str) -> JobNames:
    return JobNames(hosts, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yankee4: at zulu-17.corp.example", "host-2: at host-1"),
        (r'x{host=~"zulu-17\\.corp\\.example|yankee4"}', 'x{host=~"host-1|host-2"}'),
        ("/data/alice/outputs/78771-secret/prometheus", "dir-1/job-1/prometheus"),
        ("/data/alice/outputs/78771-secret.log:12", "dir-1/job-1.log:12"),
        ("slurm-78771.out of job 78771, 78771_0", "slurm-job-1.out of job-1, job-1_0"),
        ("step 78771, 0.78771 of 78771.5 and 787710", "step 78771, 0.78771 of 78771.5 and 787710"),
        ("open /mnt/projects/falcon/a.bin", "open path-1"),
        (
            "/opt/venv/lib/python3.12/x.py /sys/class/net",
            "/opt/venv/lib/python3.12/x.py /sys/class/net",
        ),
        ("JOB_NODELIST=yankee[4-5],zulu-17", "JOB_NODELIST=3 hosts"),
        ("gpu[0-7]", "gpu[0-7]"),
        ("http://yankee4:9190/graph", "http://host-2:9190/graph"),
        ("secret sauce", "job-1 sauce"),
        ("event in StepId=78771.0. STEP 78771.batch", "event in StepId=job-1.0. STEP job-1.batch"),
        (r'x{instance=~"10\\.0\\.0\\.2:55080|x"}', 'x{instance=~"addr-1:55080|x"}'),
        ("10.0.0.2_55080 of ip-10-0-0-7", "addr-1_55080 of host-4"),
        ("version 5.15.0.91-generic, ~3 s, 10:20:30", "version 5.15.0.91-generic, ~3 s, 10:20:30"),
        ("gs://falcon-team/run/ckpt at filer:/export/alice/x", "path-1 at filer:path-2"),
        ("~alice/run/x file:///scratch/alice/x", "path-1 path-2"),
    ],
)
def test_text(text: str, expected: str) -> None:
    known = names(*HOSTS)
    known.know_job("78771", "secret", ["/data/alice/outputs/78771-secret"])
    assert known.text(text) == expected


def test_a_short_job_id_is_no_number_of_anything_else() -> None:
    known = names()
    known.know_job("12", "tiny", [])
    text = "job 12 has 12 steps of 12.5 s, 12-tiny.log"
    assert known.text(text) == "job-1 has 12 steps of 12.5 s, job-1.log"


@pytest.mark.parametrize("name", ["hang", "rccl", "running", "step"])
def test_a_job_that_is_called_like_a_class_leaves_the_classes(name: str) -> None:
    known = names("head", "node")
    known.know_job("78771", name, [f"/data/alice/outputs/78771-{name}"])
    assert known.text("rccl-hang") == "rccl-hang"
    assert known.text("running") == "running"
    assert name not in known.text(f"/data/alice/outputs/78771-{name}.log")
    assert known.value(a_row("node-death")) == a_row("node-death")


def a_row(row: str) -> ReportRow:
    return ReportRow(row, True, "nothing of note")


def test_what_is_one_object_stays_one() -> None:
    known = names("yankee4")
    once = comparable.SMALL
    first, second = known.value([once, once])
    assert first is second


def test_machines_that_urls_and_logins_name() -> None:
    told = (
        "http://gate7.corp:8265 of oscar@login2: give --address http://HEAD:PORT or http://10.0.0.1"
    )
    assert list(hosts_of_urls([told])) == ["gate7.corp", "login2"]


# ---- whole reports


@dataclass
class Planted:
    """Two jobs of a user, and every name of theirs."""

    first: Made
    second: Made
    names: set[str]


def _hosts(job: Job) -> None:
    job.hosts[:] = HOSTS


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    if not (shutil.which("promtool") and shutil.which("prometheus")):
        pytest.skip("promtool and prometheus are not on PATH")
    out = tmp_path_factory.mktemp("home") / "quebec" / "november"
    out.mkdir(parents=True)

    def slower(job: Job) -> None:
        _hosts(job)
        comparable.slower(job, 1.2)

    def plant(world: World) -> None:
        host, port = world.job.hosts[1], world.job.ports[1]
        for name, rate in (("retx_pkts", 40.0), ("ack_timeout", 0.5)):
            series = world.one(host, f"hw_rdma_tx_{name}_total", device=port)
            series.rate(world.job.plan.train_start, 1e12, rate)

    first = make(out, 1, _hosts)
    second = make(out, 2, slower, plant)
    for made in (first, second):
        with made.log.open("a", encoding="utf-8") as log:
            log.write(
                "0: OSError: [Errno 28] No space left on device: '/lustre/tango/ckpt/3'\n"
                "0: ssh -J oscar@gate.corp.example -L 8265:zulu-17:8265 romeo@zulu-17\n"
                "0: Traceback: /home/sierra/train/loop.py of sierra\n"
            )
    stem = Path(first.path).name
    secret = {"zulu", "yankee", "xray", "corp.example", "quebec", "november", "tango", "oscar"}
    secret |= {"romeo", "sierra", stem, stem.partition("-")[2], "701-", "702-", *first.job.ips}
    return Planted(first, second, secret)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("command", ["triage", "diagnose", "compare"])
def test_no_name_is_left(
    planted: Planted, command: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [planted.second.path]
    if command != "diagnose":
        jobs.insert(0, planted.first.path)
    more = [] if form == "json" else ["-v"]
    arguments = [command, *jobs, "--job-state", "ended", "--format", form, *more]
    code = main(arguments)
    plain = capsys.readouterr().out
    assert main([*arguments, "--redact"]) == code
    told = capsys.readouterr().out
    there = {name for name in planted.names if name in plain}
    assert there  # else nothing is tested
    assert {name for name in planted.names if name in told} == set()
    assert "job-1" in told or "job 1" in told.lower()
    if form == "json":
        schemas.fits(json.loads(told), command)
        assert re.findall(r'"class": "[\w-]+"', told) == re.findall(r'"class": "[\w-]+"', plain)


def test_stand_ins_are_the_same_in_every_format(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for form in FORMATS:
        main(
            ["diagnose", planted.second.path, "--job-state", "ended", "--format", form, "--redact"]
        )
        told.append(capsys.readouterr().out)
    (host,) = json.loads(told[2])["verdict"]["hosts"]
    assert re.fullmatch(r"host-\d", host)
    assert all(
        f"rdma-degraded  {host}" in text or f"rdma-degraded {host}" in text for text in told[:2]
    )
