"""The command line: what is refused, what is printed where, exit codes, reports in files."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from raydiag import __version__
from raydiag.cli import main, options, probe
from raydiag.errors import CannotRun
from tests import schemas
from tests.fake_dashboard import END, FakeDashboard, Reply, framed, node, packed, start_message

Invoke = Callable[..., tuple[int, str, str]]
RESULT = {
    "status": "ok",
    "duration_s": 0.1,
    "reason": "",
    "records": [{"component": "kernel", "version": "5.15.0", "source": "/proc/version"}],
    "unread": [],
}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("RAY_") or name.lower().endswith("_proxy") or name == "NO_COLOR":
            monkeypatch.delenv(name)
    # Users have a buffered stdout, which can fail once more at exit.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.delenv("RAYDIAG_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    """`invoke("probe", ...)`: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


def answer(**changed: Any) -> dict[str, Any]:
    """A node's message; `changed` goes into its only probe's result."""
    return packed(
        {
            "time": time.time(),
            "cpu_s": 0.1,
            "pid": 4242,
            "sandbox": {},
            "stuck": [],
            "probes": {"versions": {**RESULT, **changed}},
        }
    )


@pytest.fixture
def dashboard() -> Iterator[FakeDashboard]:
    """A cluster of one node, on which all is well."""
    server = FakeDashboard()
    nodes_say(server, {0: start_message(node(1)), 1: answer(), END: {"duration_s": 0.5}})
    yield server
    server.close()


def nodes_say(dashboard: FakeDashboard, messages: Mapping[int, Mapping[str, Any]]) -> None:
    dashboard.status = "SUCCEEDED"
    dashboard.log = lambda request: "".join(
        f"{line}\n" for line in framed(request["nonce"], messages)
    )


def probing(dashboard: FakeDashboard, *more: str) -> list[str]:
    return ["probe", "--all-nodes", "--only", "versions", "--address", dashboard.url, *more]


def free_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def raydiag(*arguments: str, **options_: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "raydiag", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        **{"stdout": subprocess.PIPE, **options_},
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prob"], "invalid choice: 'prob'; did you mean 'probe'?"),
        (["quux"], "invalid choice: 'quux'; choose probe, kmsg, triage"),
        (["probe", "-o", "/"], "'/' is a directory"),
        (["probe", "-o", ""], "'' is a directory"),
        (["probe", "--all-nodes", "--node", "a"], "not allowed with argument"),
        (["probe", "--node"], "--node: expected at least one argument"),
        (["probe", "--node", ""], "--node: no node is named"),
        (["probe", "--node", "a[3-1]"], "'3-1' runs backwards"),
        (["probe", "--node", "a[1-999999999]"], "more than"),
        (["probe", "--all-nodes", "--only", "gpu"], "--only: no probe 'gpu'; there are: "),
        (["probe", "--all-nodes", "--skip", "memory,gpu"], "--skip: no probe 'gpu'; there are: "),
        (["probe", "--all-nodes", "--only", ","], "no probe is left to run"),
        (["probe", "--all-nodes", "--only", "memory", "--skip", "memory"], "no probe is left"),
        (["probe", "--all-nodes", "--only", ",", "--stacks", "--skip", "stacks"], "no probe is"),
        *(
            (["probe", "--all-nodes", f"--deadline={text}"], f"{text!r} is not a number of seconds")
            for text in ("0", "0.9", "-5", "601", "nan", "inf", "ten", "", "1e9")
        ),
        (["probe", "--all-nodes", "--format", "xml"], "invalid choice: 'xml'"),
        (["probe", "--all-nodes", "--faster"], "unrecognized arguments: --faster"),
        (["probe", "--all-nodes", "--\x1b[31mred"], "unrecognized arguments: --\\x1b[31mred"),
        (["probe", "--all-nodes", "-o", "/no/such/place/report"], "there is no such directory"),
        (["probe", "--all-nodes", "--address", "ftp://head"], "'ftp://head' is not an address"),
    ],
)
def test_usage_errors_are_one_line(arguments: list[str], words: str, invoke: Invoke) -> None:
    code, out, err = invoke(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("raydiag")
    assert err.index("\n") == len(err) - 1


def test_a_file_that_may_not_be_written_is_refused_at_once(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    code, _, err = invoke("probe", "-o", "report")
    assert code == 2 and "'report' cannot be written: permission denied" in err


def test_without_a_command_the_help_is_printed(invoke: Invoke) -> None:
    code, out, err = invoke()
    assert (code, out) == (2, "")
    assert err.startswith("usage: raydiag") and "triage" in err


@pytest.mark.parametrize(
    ("words", "options_", "said"),
    [
        (["help"], ["--help"], "triage"),
        (["help", "kmsg"], ["kmsg", "--help"], "/dev/kmsg"),
        (["version"], ["--version"], __version__),
    ],
)
def test_words_for_options(
    words: list[str], options_: list[str], said: str, invoke: Invoke
) -> None:
    code, out, _ = invoke(*words)
    assert (code, out) == invoke(*options_)[:2]
    assert code == 0 and said in out


def test_probe_looks_at_all_nodes(invoke: Invoke, dashboard: FakeDashboard) -> None:
    words = [word for word in probing(dashboard) if word != "--all-nodes"]
    code, out, _ = invoke(*words)
    assert code == 0 and "1 of 1 node" in out


def test_triage_reads_stdin() -> None:
    process = raydiag("triage", "-", "--now", "log-end", stdin=subprocess.PIPE)
    out, err = process.communicate("ValueError: no such thing\n", timeout=20)
    assert err == "" and out.startswith("Job triage: stdin\n")


@pytest.mark.parametrize("command", ["probe", "triage", "exporter status"])
def test_an_error_points_to_the_help_of_its_own_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--fooo"])
    first = command.split()[0]
    assert f"raydiag {first}: unrecognized arguments: --fooo; see" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["kmsg", "triage"])
def test_stdin_that_is_closed(command: str) -> None:
    shell = ["sh", "-c", f"exec {sys.executable} -m raydiag {command} - <&-"]
    process = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)
    said = (process.returncode, process.stdout, process.stderr)
    assert said == (4, "", "raydiag: -: stdin is closed\n")


def test_stdout_that_is_closed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[   13.000000] all is well\n")
    command = f"{sys.executable} -m raydiag kmsg {log} >&-"
    process = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert process.returncode == 4
    assert process.stderr.startswith("raydiag: cannot write the report: stdout is closed")


def test_a_report_that_cannot_be_written_is_printed(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log = tmp_path / "log"
    log.write_text("[   13.000000] all is well\n")
    monkeypatch.setattr(options, "_replace", full)
    code, out, err = invoke("kmsg", str(log), "-o", str(tmp_path / "report"))
    assert code == 4 and out.startswith("No event in 1 file.")
    assert "cannot write there: No space left on device" in err


def test_a_hyphen_is_stdout(invoke: Invoke, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[   13.000000] all is well\n")
    assert invoke("kmsg", str(log), "-o", "-") == invoke("kmsg", str(log))
    assert os.listdir(tmp_path) == ["log"]


def test_bad_address_in_the_environment(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "tcp://head")
    code, _, err = invoke("probe", "--all-nodes")
    assert (code, err.startswith("raydiag: RAY_API_SERVER_ADDRESS: ")) == (2, True)


def test_no_cluster(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", free_url())
    code, out, err = invoke("probe", "--all-nodes")
    assert (code, out) == (4, "")
    assert err.startswith("raydiag: no Ray dashboard at http://127.0.0.1:")
    assert err.count("\n") == 1


def test_server_that_is_not_ray(invoke: Invoke, dashboard: FakeDashboard) -> None:
    page = Reply(body="<html>\n", content_type="text/html")
    dashboard.overrides = {"GET /api/jobs/": page, "GET /api/version": page}
    code, out, err = invoke(*probing(dashboard))
    assert (code, out) == (4, "")
    assert "is not that of a Ray dashboard" in err
    assert err.count("\n") == 1


def test_wrong_token(invoke: Invoke, dashboard: FakeDashboard) -> None:
    dashboard.token = "s3cret"
    code, _, err = invoke(*probing(dashboard))
    assert (code, "requires a token" in err) == (4, True)


def test_error_text_of_a_server_is_harmless_for_a_terminal(
    invoke: Invoke, dashboard: FakeDashboard
) -> None:
    dashboard.overrides["GET /api/version"] = Reply(500, "\x1b]0;owned\x07\nno", "text/plain")
    code, _, err = invoke(*probing(dashboard))
    assert (code, err.count("\n"), "\x1b" in err) == (4, 1, False)
    assert "\\x1b]0;owned\\x07 no" in err


def test_all_is_well(invoke: Invoke, dashboard: FakeDashboard) -> None:
    code, out, err = invoke(*probing(dashboard))
    assert (code, err) == (0, "")
    assert out.startswith("No problem found on 1 of 1 node")
    assert "\x1b" not in out


def test_json(invoke: Invoke, dashboard: FakeDashboard) -> None:
    code, out, err = invoke(*probing(dashboard, "--format", "json"))
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == "raydiag.probe/1"
    assert document["nodes"][0]["probes"]["versions"]["records"] == RESULT["records"]


def test_markdown(invoke: Invoke, dashboard: FakeDashboard, tmp_path: Path) -> None:
    target = tmp_path / "report.md"
    code, out, _ = invoke(*probing(dashboard, "--format", "markdown", "-o", str(target)))
    assert (code, out) == (0, "")
    assert target.read_text().startswith("**No problem found on 1 of 1 node")
    assert "| node001 | ok |" in target.read_text()


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html"])
def test_redacted(form: str, invoke: Invoke, dashboard: FakeDashboard) -> None:
    _, plain, _ = invoke(*probing(dashboard, "--format", form))
    code, out, err = invoke(*probing(dashboard, "--format", form, "--redact"))
    assert (code, err) == (0, "")
    for name in ("node001", "session_2026"):
        assert name in plain
        assert name not in out
    assert "host-1" in out
    assert "5.15.0" in out


def test_not_everything_was_seen(invoke: Invoke, dashboard: FakeDashboard) -> None:
    denied = answer(status="denied", reason="permission", records=[])
    nodes_say(dashboard, {0: start_message(node(1)), 1: denied, END: {"duration_s": 0.5}})
    code, out, _ = invoke(*probing(dashboard))
    assert (code, "not everything could be seen" in out) == (3, True)


def test_problem_found(invoke: Invoke, dashboard: FakeDashboard) -> None:
    gone = {"status": "unreachable", "reason": "its actor died", "duration_s": 0.1}
    nodes_say(
        dashboard,
        {0: start_message(node(1), node(2)), 1: answer(), 2: gone, END: {"duration_s": 0.5}},
    )
    code, out, _ = invoke(*probing(dashboard))
    assert (code, "node002" in out) == (1, True)


def test_node_that_does_not_exist(invoke: Invoke, dashboard: FakeDashboard) -> None:
    nodes_say(dashboard, {END: {"usage": "no node 'x' in this cluster; it has: node001"}})
    code, out, err = invoke("probe", "--node", "x", "--address", dashboard.url)
    assert (code, out) == (2, "")
    assert err == "raydiag: no node 'x' in this cluster; it has: node001\n"


def test_sets_of_nodes_are_expanded(invoke: Invoke, dashboard: FakeDashboard) -> None:
    asked: list[Any] = []
    write_log = dashboard.log

    def log(request: Mapping[str, Any]) -> str:
        asked.append(request["select"])
        return write_log(request)

    dashboard.log = log
    invoke("probe", "--node", "a[1-2]", "b", "--node", "c", "--address", dashboard.url)
    assert asked[0] == ["a1", "a2", "b", "c"]


def test_stacks_are_read_only_when_asked_for() -> None:
    usual = probe._chosen(None, None, stacks=False)
    assert "stacks" not in usual
    assert probe._chosen(None, None, stacks=True) == sorted([*usual, "stacks"])
    assert probe._chosen("memory", None, stacks=True) == ["memory", "stacks"]
    assert probe._chosen("stacks", None, stacks=False) == ["stacks"]


def test_help_loads_nothing_heavy() -> None:
    for arguments in (["--help"], ["probe", "--help"]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "raydiag", *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.split("\n")}
        assert "raydiag" in loaded
        assert loaded.isdisjoint({"ray", "requests", "yaml", "psutil", "prometheus_client"})
        assert done.stdout.startswith("usage: raydiag")


def test_help_of_probe_tells_the_exit_codes(invoke: Invoke) -> None:
    code, out, _ = invoke("probe", "--help")
    assert code == 0
    for words in ("0 nothing wrong", "1 a problem", "2 usage", "3 nothing wrong", "4 could not"):
        assert words in out


def test_module_is_an_entry_point() -> None:
    process = raydiag("--version")
    assert process.communicate() == (f"raydiag {__version__}\n", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("triage", "no/such/job", "--format", "json"),
        ("kmsg", "no/such/file", "--json"),
        ("triage", "--format=json", "--no-such-option"),
        ("tsdb", "info", "no/such/job", "--format", "json"),
        ("triage", "no/such/job", "--format", "jsonl"),
    ],
)
def test_errors_are_json_where_json_was_asked_for(invoke: Invoke, words: Sequence[str]) -> None:
    code, out, err = invoke(*words)
    assert out == "" and err.count("\n") == 1
    document = json.loads(err)
    schemas.fits(document, "error")
    assert document["error"]["exit_code"] == code
    assert "no/such" in document["error"]["message"] or "--no-such-option" in err


@pytest.mark.parametrize("name", ["myjob", "raysubmit_abc"])
def test_a_job_of_a_cluster_that_does_not_answer_is_not_only_unknown(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    code, _, err = invoke("diagnose", name)
    assert code == 4 and err.count("\n") == 1
    assert name in err and "no Ray dashboard at http://127.0.0.1:1" in err


def test_json_is_short_for_its_format(invoke: Invoke, tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    log.write_text("[    1.000000] Linux version 5.15.0\n")
    code, out, _ = invoke("kmsg", str(log), "--json")
    assert (code, json.loads(out)["schema"]) == (0, "raydiag.kmsg/1")


def test_lines_of_json_have_one_shape_for_one_job_and_for_several(
    invoke: Invoke, tmp_path: Path
) -> None:
    for number in (1, 2):
        (tmp_path / f"job{number}.log").write_text("completed step: 3, seconds: 1.0, loss: 2.5\n")
    first, second = str(tmp_path / "job1.log"), str(tmp_path / "job2.log")
    shapes = []
    for names in ((first,), (first, second)):
        code, out, _ = invoke("triage", *names, "--now", "log-end", "--format", "jsonl")
        assert code in (0, 3)
        documents = list(map(json.loads, out.splitlines()))
        assert tuple(document["log"] for document in documents) == names
        for document in documents:
            schemas.fits(document, "triage")
            shapes.append(document.keys())
    assert shapes[0] == shapes[1] == shapes[2]


def test_any_document_can_be_one_line(invoke: Invoke, tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    log.write_text("[    1.000000] Linux version 5.15.0\n")
    _, out, _ = invoke("kmsg", str(log), "--format", "jsonl")
    assert out.count("\n") == 1
    schemas.fits(json.loads(out), "kmsg")


def test_an_early_interrupt_ends_quietly() -> None:
    program = """
import signal, sys
from tests import schemas
import raydiag.__main__
early = signal.getsignal(signal.SIGINT)
raydiag.__main__.main(["triage", "no/such/job"])
late = signal.getsignal(signal.SIGINT)
print(early is signal.SIG_DFL, late is signal.default_int_handler)
"""
    printed = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)
    assert printed == "True True\n"


def test_nothing_is_imported_before_an_interrupt_is_quiet() -> None:
    program = """
import _signal, sys
early = {}
class Watch:
    def find_spec(self, name, path=None, target=None):
        early.setdefault(name, _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler)
sys.meta_path.insert(0, Watch())
import raydiag.__main__
print([name for name, is_loud in early.items() if is_loud])
"""
    arguments = [sys.executable, "-S", "-c", program]
    place = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[2])}
    printed = subprocess.check_output(arguments, text=True, timeout=60, env=place)
    assert printed == "['raydiag', 'raydiag.__main__']\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number: signal.Signals, dashboard: FakeDashboard) -> None:
    reading = threading.Event()

    def log(request: Mapping[str, Any]) -> str:
        reading.set()
        return ""

    dashboard.log = log
    dashboard.status = "RUNNING"
    process = raydiag(*probing(dashboard))
    assert reading.wait(20)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err == "raydiag: interrupted\n"
    assert len(dashboard.stopped) == 1


def falls_silent(dashboard: FakeDashboard, *messages: tuple[int, Mapping[str, Any]]) -> None:
    """The coordinator has said this much when the dashboard stops answering."""
    dashboard.status = "RUNNING"

    def log(request: Mapping[str, Any]) -> str:
        dashboard.silent.set()
        lines = framed(request["nonce"], dict(messages))
        return "".join(f"{line}\n" for line in lines)

    dashboard.log = log


@pytest.mark.slow
def test_dashboard_that_falls_silent_costs_no_more_than_the_deadline(
    dashboard: FakeDashboard,
) -> None:
    falls_silent(dashboard, (0, start_message(node(1))))
    process = raydiag(*probing(dashboard, "--deadline", "2"))
    out, err = process.communicate(timeout=30)  # it was a minute and a half once
    assert (process.returncode, out) == (4, "")
    assert "gave no answer" in err
    assert "may still run, until its own deadline at most" in err


@pytest.mark.slow
def test_answers_before_the_dashboard_fell_silent_are_reported(dashboard: FakeDashboard) -> None:
    falls_silent(dashboard, (0, start_message(node(1), node(2))), (1, answer()))
    process = raydiag(*probing(dashboard, "--deadline", "2"))
    out, err = process.communicate(timeout=30)
    assert process.returncode in (1, 3)
    assert "its answer was lost" in out
    assert "may still run" in err


@pytest.mark.slow
def test_interrupted_while_the_dashboard_is_silent(dashboard: FakeDashboard) -> None:
    falls_silent(dashboard, (0, start_message(node(1))))
    process = raydiag(*probing(dashboard))
    assert dashboard.silent.wait(20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=25)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_node_with_an_impossible_time_costs_nobody_else(dashboard: FakeDashboard) -> None:
    liar = {**answer(), "status": "answered"}
    late = packed(
        {
            "time": 1e18,
            "cpu_s": 0.1,
            "pid": 1,
            "sandbox": {},
            "stuck": [],
            "probes": {"versions": RESULT},
        }
    )
    messages = {0: start_message(node(1), node(2)), 1: liar, 2: late, END: {"duration_s": 0.5}}
    nodes_say(dashboard, messages)
    process = raydiag(*probing(dashboard, "--format", "json"))
    out, err = process.communicate(timeout=30)
    assert err == ""
    assert [item["status"] for item in json.loads(out)["nodes"]] == ["ok", "unreachable"]


def test_a_bug_of_our_own_is_one_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: object) -> int:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("raydiag.cli.probe.run", broken)
    code, out, err = invoke("probe", "--all-nodes")
    assert (code, out) == (4, "")
    assert err.startswith("raydiag: internal error: ZeroDivisionError: division by zero;")
    assert err.count("\n") == 1
    monkeypatch.setenv("RAYDIAG_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        invoke("probe", "--all-nodes")


def test_reader_of_the_report_goes_away(dashboard: FakeDashboard) -> None:
    process = raydiag(*probing(dashboard))
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(20) == 141


def test_stdout_is_full(dashboard: FakeDashboard) -> None:
    with open("/dev/full", "w") as full:
        process = raydiag(*probing(dashboard), stdout=full)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 4
    assert err == "raydiag: cannot write the report to stdout: No space left on device\n"


class TestReport:
    def test_into_a_file(self, invoke: Invoke, dashboard: FakeDashboard, tmp_path: Path) -> None:
        target = tmp_path / "report.json"
        code, out, _ = invoke(*probing(dashboard, "--format", "json", "-o", str(target)))
        assert (code, out) == (0, "")
        assert json.loads(target.read_text(encoding="utf-8"))["schema"] == "raydiag.probe/1"
        assert os.listdir(tmp_path) == ["report.json"]

    def test_into_a_file_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        options.write_report(["a", "b"], "report")
        assert (tmp_path / "report").read_text() == "ab"

    @pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
    def test_umask(self, umask: int, mode: int, tmp_path: Path) -> None:
        before = os.umask(umask)
        try:
            options.write_report(["text"], str(tmp_path / "report"))
        finally:
            assert os.umask(before) == umask  # looking at it must not change it
        assert stat.S_IMODE((tmp_path / "report").stat().st_mode) == mode

    @pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
    def test_old_report_is_kept_when_the_new_one_fails(
        self, error: BaseException, tmp_path: Path
    ) -> None:
        def chunks() -> Iterable[str]:
            yield "half of the new"
            raise error

        target = tmp_path / "report"
        target.write_text("old")
        with pytest.raises((CannotRun, KeyboardInterrupt)):
            options.write_report(chunks(), str(target))
        assert target.read_text() == "old"
        assert os.listdir(tmp_path) == ["report"]

    def test_old_report_is_kept_when_there_is_no_cluster(
        self, invoke: Invoke, tmp_path: Path
    ) -> None:
        target = tmp_path / "report"
        target.write_text("old")
        code, _, _ = invoke("probe", "--all-nodes", "--address", free_url(), "-o", str(target))
        assert (code, target.read_text()) == (4, "old")

    @pytest.mark.parametrize("name", ["", "missing/report"])
    def test_place_that_does_not_take_it(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(CannotRun, match="cannot write there: ") as caught:
            options.write_report(["text"], str(tmp_path / name))
        assert str(tmp_path) in str(caught.value)
        assert os.listdir(tmp_path) == []

    def test_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").write_text("old")
        (tmp_path / "link").symlink_to("real")
        options.write_report(["new"], str(tmp_path / "link"))
        assert (tmp_path / "real").read_text() == "new"
        assert (tmp_path / "link").is_symlink()

    def test_pipe_is_written_to_and_not_replaced(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        # Open for reading and writing at once, so that nobody waits for anybody.
        fd = os.open(pipe, os.O_RDWR)
        try:
            options.write_report(["text"], str(pipe))
            assert os.read(fd, 100) == b"text"
        finally:
            os.close(fd)
        assert pipe.is_fifo()

    def test_words_that_the_locale_lacks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
        options.write_report(["node\u00e9\n"], None)
        assert raw.getvalue() == b"node\\xe9\n"


@pytest.mark.parametrize(
    ("terminal", "environment", "colour"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),  # by the convention, empty is unset
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colour(
    terminal: bool,
    environment: Mapping[str, str],
    colour: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert options.wants_colour() is colour


@pytest.mark.parametrize("more", [[], ["-o", "report"]])
def test_colour_is_for_the_terminal_and_not_for_files(
    more: list[str],
    invoke: Invoke,
    dashboard: FakeDashboard,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    gone = {"status": "unreachable", "reason": "its actor died", "duration_s": 0.1}
    nodes_say(dashboard, {0: start_message(node(1)), 1: gone, END: {"duration_s": 0.5}})
    _, out, _ = invoke(*probing(dashboard, *more))
    text = (tmp_path / "report").read_text() if more else out
    assert ("\x1b" in text) is not bool(more)


class TestProgress:
    def test_terminal_only(self, capsys: pytest.CaptureFixture[str]) -> None:
        progress = options.ProgressLine(quiet=False)
        progress.nodes(1, 2)
        progress.clear()
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize("quiet", [True, False])
    def test_one_line_that_goes_away(
        self, quiet: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        progress = options.ProgressLine(quiet)
        progress.say("a longer text than the next one, which has a bar of thirty characters .....")
        progress.nodes(1, 2)
        progress.clear()
        err = capsys.readouterr().err
        assert ("1 of 2 nodes answered" in err) is not quiet
        assert "\n" not in err
        assert quiet or err.endswith(" \r")

    def test_gone_before_an_error_is_told(
        self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        _, _, err = invoke("probe", "--all-nodes", "--address", free_url())
        assert err.startswith("\rasking the cluster ...\r ")
        assert "\rraydiag: no Ray dashboard" in err

    def test_no_nodes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        options.ProgressLine(quiet=False).nodes(0, 0)
