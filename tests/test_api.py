"""The Python API on real jobs: the same answers as the commands', typed, and imported late."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import raydiag
from raydiag import diagnose, probe, triage
from raydiag.cli import main
from raydiag.errors import CannotRun, NoSuchJob, UsageError
from raydiag.model import Confidence, Severity
from tests.schemas import fits
from tests.tsdb import promtool

REPOSITORY = Path(__file__).parent.parent
EXAMPLE = REPOSITORY / "examples" / "gpu-memory-error"


def test_triage_reads_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    answer = triage(str(EXAMPLE), running=False)
    assert (answer.verdict, answer.exit_code) == ("signal-kill", 1)
    first = answer.findings[0]
    assert (first.failure_class, first.host) == ("signal-kill", "gpu-r4n2")
    assert (first.severity, first.confidence) == (Severity.CRITICAL, Confidence.LIKELY)
    assert answer.coverage.complete
    fits(answer.document, "triage")
    assert capsys.readouterr() == ("", "")
    main(["triage", str(EXAMPLE), "--job-state", "ended", "--no-pager"])
    assert "".join(capsys.readouterr().out.split()) == "".join(answer.report().split())


@pytest.mark.slow
def test_diagnose_reads_log_and_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    promtool.provide(monkeypatch)
    answer = diagnose(str(EXAMPLE))
    expected = json.loads((EXAMPLE / "expected.json").read_text(encoding="utf-8"))
    assert (answer.verdict, answer.exit_code) == (expected["class"], 1)
    assert answer.diagnosis.chains[0].findings[0].failure_class == expected["class"]
    assert answer.document["verdict"]["class"] == expected["class"]
    fits(answer.document, "diagnose")
    assert answer.report("markdown").startswith("#")
    assert answer.report("html").startswith("<!doctype html>")
    with pytest.raises(ValueError, match="text, markdown or html"):
        answer.report("pdf")  # type: ignore[arg-type]


@pytest.mark.cluster
def test_probe_asks_a_real_ray_from_a_thread(capfd: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        # Twice: Ray reads the token of its first cluster only, unless it is made to forget it.
        for _ in range(2):
            asked = pool.submit(probe, address="local", only=["versions", "memory"])
            answer = asked.result(120)
            (node,) = answer.document["nodes"]
            assert (node["status"], set(node["probes"])) == ("ok", {"versions", "memory"})
    assert answer.coverage.answered == 1
    assert answer.verdict in ("healthy", "unknown") or answer.exit_code == 1
    assert answer.report()
    fits(answer.document, "probe")
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_asked_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(NoSuchJob):
        triage("no-such-job", outputs=str(tmp_path))
    with pytest.raises(CannotRun, match="no Ray dashboard"):
        probe(address="http://127.0.0.1:1", deadline_s=2)
    with pytest.raises(UsageError, match="no probe 'rass'"):
        probe(only=["rass"], address="http://127.0.0.1:1")
    with pytest.raises(UsageError, match="deadline_s"):
        diagnose(str(EXAMPLE), deadline_s=0)


def test_several_jobs_are_no_job(tmp_path: Path) -> None:
    for number in (7877, 7878):
        directory = tmp_path / f"{number}-llama"
        directory.mkdir()
        (directory / "log").write_bytes((EXAMPLE / "log").read_bytes())
    with pytest.raises(UsageError, match="2 jobs are there"):
        triage(str(tmp_path))


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    return done.stdout


def test_the_package_alone_imports_nothing() -> None:
    loaded = run("import sys; before = set(sys.modules); import raydiag; print(*sys.modules)")
    ours = {name for name in loaded.split() if name.startswith("raydiag.")}
    assert ours == set()
    functions = run("import sys; from raydiag import probe, triage, diagnose; print(*sys.modules)")
    assert {"ray", "requests", "psutil"} & {n.partition(".")[0] for n in functions.split()} == set()


@pytest.mark.parametrize(
    "first",
    [
        "from raydiag import triage",
        "from raydiag.triage import judge; from raydiag import diagnose, triage",
        "import raydiag.triage.verdict; from raydiag import triage",
        "import raydiag.explain.job; from raydiag import triage",
        "import raydiag.api; from raydiag import triage",
        "import raydiag; triage = raydiag.triage",
        "from raydiag import diagnose; import raydiag.triage; from raydiag import triage",
    ],
)
def test_triage_is_a_function_whatever_was_imported_before(first: str) -> None:
    """It is the name of a package as well."""
    program = (
        f"{first}; import copy, inspect, pickle, raydiag.api\n"
        "assert inspect.signature(triage) == inspect.signature(raydiag.api.triage)\n"
        "again = pickle.loads(pickle.dumps(copy.deepcopy(triage)))\n"
        f"print(again({str(EXAMPLE)!r}, running=False).verdict)"
    )
    assert run(program) == "signal-kill\n"


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'cure'"):
        raydiag.cure  # type: ignore[attr-defined]  # noqa: B018


def test_its_users_are_type_checked(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "user.py"
    program.write_text(
        "from raydiag import diagnose, probe, triage\n"
        "reveal_type(triage('x').verdict)\n"
        "reveal_type(diagnose)\n"
        "probe(nodes=3)\n"
    )
    options = ["--strict", "--cache-dir", str(REPOSITORY / ".mypy_cache"), "--config-file", ""]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(program)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (
        'Revealed type is "str"' in done.stdout or 'Revealed type is "builtins.str"' in done.stdout
    )
    assert re.search(r'user.py:4: error: .*"nodes"', done.stdout), done.stdout


def test_the_first_example_of_its_page_runs() -> None:
    page = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    program = page.split("```python\n")[1].split("```")[0]
    assert "signal-kill gpu-r4n2 likely" in run(program)


def test_document_report_and_warnings_show_no_secret(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    log = tmp_path / "50144.log"
    log.write_text(
        f"fatal: Authentication failed {secret}\nOSError: No space left on device {secret}\n"
    )
    answer = triage(str(log), running=False)
    assert secret in str(answer.findings)
    assert secret not in json.dumps(answer.document) and "***" in json.dumps(answer.document)
    shown = [answer.report("text"), answer.report("markdown"), answer.report("html")]
    assert secret not in "".join([*shown, *answer.warnings])


def test_text_of_no_file_is_read_without_leaving_the_directory() -> None:
    """Other threads of the calling process rest on it."""
    program = (
        "import sys\n"
        "sys.addaudithook(lambda event, _: event == 'os.chdir' and sys.exit('left it'))\n"
        "from raydiag.cli.live import facts_of_text\n"
        "facts = facts_of_text('slurmstepd: error: Detected 1 oom_kill event\\n', 'job.log')\n"
        "print(facts.files[0].path, {match.file for match in facts.matches})\n"
    )
    assert run(program) == "job.log {'job.log'}\n"
