"""Whether a plugin file passes before it is rolled out, as a user sees it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from raydiag.errors import CannotRun
from raydiag.exporter import naming
from raydiag.exporter.check import CheckedPlugin, check
from raydiag.render.exporter import check_document, check_report
from raydiag.render.markdown import markdown_text
from raydiag.render.text import text as written
from tests import schemas
from tests.exporter.foreign_cycle import HOST, write

pytestmark = pytest.mark.slow

GOOD = """\
echo "# HELP my_depth Jobs that wait."
echo "# TYPE my_depth gauge"
echo "my_depth{host=\\"$1\\",queue=\\"a\\"} ${_PLUGIN_STATE:-3}"
echo "my_depth{host=\\"$1\\",queue=\\"b\\"} 4"
echo "# STATE 5"
"""


def checked(path: Path, may_run: bool = True) -> CheckedPlugin:
    (one,) = check([str(path)], HOST, may_run)
    document = json.loads(json.dumps(check_document([one], time.time())))
    schemas.fits(document, "exporter")
    assert document["files"][0]["passes"] is one.passes
    text = written(check_report([one]), width=1000)
    in_markdown = markdown_text(check_report([one]))
    for line in (*one.problems, *one.warnings):
        assert line in text
    assert text.startswith("PASSES " if one.passes else "FAILS ")
    assert ("PASSES" if one.passes else "FAILS") in in_markdown
    assert "Traceback" not in text
    return one


def test_a_good_plugin_passes(tmp_path: Path) -> None:
    one = checked(write(tmp_path / "jobs_metrics_plugin.sh", GOOD, 0o644))
    assert one.passes
    assert (one.problems, list(one.warnings)) == ((), [])
    assert (one.kind, one.was_run, one.not_here) == ("shell", True, False)
    (metric,) = one.metrics
    assert metric.name == "my_depth"
    assert (metric.type, metric.labels, metric.series) == ("gauge", ("host", "queue"), 2)


FAULTS = {
    "syntax": ("a_metrics_plugin.sh", "if true; then echo 1\n", "bash -n: ", 0o644),
    "empty": ("a_metrics_plugin.sh", "", "printed nothing", 0o644),
    "fails": ("a_metrics_plugin.sh", "echo no >&2; exit 4\n", "exit status 4: no", 0o644),
    "garbage": (
        "a_metrics_plugin.sh",
        "echo what is this\n",
        "line 1: neither a sample nor a comment",
        0o644,
    ),
    "second run": (
        "a_metrics_plugin.sh",
        "[[ $_PLUGIN_STATE ]] && exit 2\necho 'a 1'\necho '# STATE 1'\n",
        "run a second time, with its own state: exit status 2",
        0o644,
    ),
    "sh syntax": ("queue", "#!/bin/sh\ncase x in\n", "bash -n: ", 0o755),
    "no Python": ("a.py", "def collect(\n", "not Python", 0o644),
    "no collect": ("a.py", "x = 1\n", "no function `collect`", 0o644),
    "yields text": (
        "a.py",
        "def collect(host):\n    yield 'a 1'\n",
        "collect yielded a str: yield Sample(name, labels, value)",
        0o644,
    ),
    "returns nothing": (
        "a.py",
        "def collect(host): pass\n",
        "collect returned None: yield Sample(name, labels, value)",
        0o644,
    ),
    "breaks": ("a.py", "def collect(host): yield 1/0\n", "ZeroDivisionError", 0o644),
    "ends": ("a.py", "import os\ndef collect(host): os._exit(1)\n", "the guarded reader", 0o644),
    "not executable": ("queue", "#!/bin/sh\necho 'a 1'\n", "and not executable", 0o644),
    "another type": (
        "queue",
        "#!/bin/sh\necho '# TYPE hw_oom_kills_total gauge'\necho 'hw_oom_kills_total 1'\n",
        "hw_oom_kills_total is a counter in raydiag's exporter, and here a gauge",
        0o755,
    ),
    "has a series of ours": (
        "queue",
        "#!/bin/sh\necho 'hw_procs_running 1'\n",
        "refuses them from a plugin: hw_procs_running",
        0o755,
    ),
    "100 MB": ("queue", "#!/bin/sh\nyes 'a 1'\n", "prints more than", 0o755),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_wrong_is_said_in_a_line(what: str, tmp_path: Path) -> None:
    name, text, why, mode = FAULTS[what]
    one = checked(write(tmp_path / name, text, mode))
    assert not one.passes
    assert any(why in line for line in one.problems), one.problems
    assert not any("\n" in line for line in one.problems)


def test_what_to_yield_is_shown_by_a_line_that_passes(tmp_path: Path) -> None:
    (problem,) = checked(write(tmp_path / "a.py", "def collect(host):\n    yield 'a 1'\n")).problems
    imported, _, example = problem.partition(", as in: ")[2].partition("; ")
    text = f"{imported}\ndef collect(host):\n    {example}\n"
    assert checked(write(tmp_path / "b.py", text)).problems == ()
    page = Path(__file__).parents[2] / "deploy" / "README.md"
    assert example in page.read_text()


def test_a_binary_file_and_a_directory_are_no_plugins(tmp_path: Path) -> None:
    binary = tmp_path / "a_metrics_plugin.sh"
    binary.write_bytes(bytes(range(256)) * 100)
    assert not checked(binary).passes
    assert checked(tmp_path).problems == (f"{tmp_path}: a directory",)


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="no such file"):
        check([str(tmp_path / "none")], HOST)


def test_without_a_run_only_the_syntax_is_looked_at(tmp_path: Path) -> None:
    trap = tmp_path / "was-run"
    good = write(tmp_path / "a_metrics_plugin.sh", f"touch {trap}\nexit 1\n", 0o644)
    one = checked(good, may_run=False)
    assert one.passes
    assert one.was_run is False
    assert not trap.exists()
    assert not checked(write(good, "fi\n"), may_run=False).passes


def test_a_shell_plugin_may_have_the_metrics_that_ours_has(tmp_path: Path) -> None:
    script = "echo '# TYPE hw_procs_running gauge'\necho 'hw_procs_running 1'\n"
    one = checked(write(tmp_path / "host_metrics_plugin.sh", script, 0o644))
    assert one.passes
    assert any("fine for the shell exporter" in line for line in one.warnings)


def test_exit_99_passes_and_is_told(tmp_path: Path) -> None:
    one = checked(write(tmp_path / "a_metrics_plugin.sh", "exit 99\n"))
    assert (one.passes, one.not_here) == (True, True)


def test_several_files_are_checked_against_each_other(tmp_path: Path) -> None:
    first = write(tmp_path / "a_metrics_plugin.sh", "echo 'my_depth 1'\n")
    second = write(tmp_path / "b_metrics_plugin.sh", "echo 'my_depth 2'\n")
    one, other = check([str(first), str(second)], HOST)
    assert one.passes
    assert list(other.problems) == [f"{first} has the metric my_depth as well"]


NAMES = {
    ("my_depth", "gauge"): [],
    ("my_runs", "counter"): ["a counter's name ends in _total"],
    ("my_runs_total", "gauge"): ["only a counter's name ends in _total"],
    ("my_milliseconds", "gauge"): ["seconds rather than milliseconds"],
    ("myDepth", "gauge"): ["names are snake_case"],
    ("my:depth", "gauge"): ["colons are for recording rules"],
    ("my_depth_gauge", "gauge"): ["the type gauge is no part of a name"],
    ("my_wait_ms", "gauge"): ["units are written out, and ms is an abbreviation"],
}


@pytest.mark.parametrize(("name", "kind"), NAMES)
def test_advice_on_names_agrees_with_promtool(name: str, kind: str) -> None:
    advice = list(naming.advice(name, kind, "Help."))
    assert advice == NAMES[name, kind]
    assert next(naming.advice(name, kind, "")) == "no HELP line"
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH to compare with")
    page = f"# HELP {name} Help.\n# TYPE {name} {kind}\n{name} 1\n"
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, text=True, capture_output=True, check=False
    )
    assert bool(done.returncode) is bool(advice), done
