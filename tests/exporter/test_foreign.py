"""Plugins that are not ours: which files are plugins, the shell protocol, reloads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydiag.exporter.external_plugins import DATED_REPLAY_S, REPLAY_S
from raydiag.model import Status
from tests.exporter.foreign_cycle import HOST, Cycles, cycles, values, write

pytestmark = pytest.mark.slow

# In the shell protocol: a counter that lives in the state, and says nothing new every other time.
COUNTING = """\
n=$(( ${_PLUGIN_STATE:-0} + 1 ))
if (( n % 2 )); then
  echo "# TYPE my_runs gauge"
  echo "my_runs{host=\\"$1\\"} $n"
fi
echo "# STATE $n"
"""
SIMPLE = '#!/bin/sh\necho "# TYPE my_depth gauge"\necho "my_depth{queue=\\"a\\"} 3"\n'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "plugins"
    place.mkdir()
    return place


@pytest.fixture
def running(directory: Path) -> Iterator[Cycles]:
    with cycles(directory) as made:
        yield made


def test_each_kind_of_plugin_gives_its_samples(directory: Path, running: Cycles) -> None:
    write(directory / "queue", SIMPLE)
    write(
        directory / "pages.py",
        "from raydiag.exporter.metrics import GAUGE, Metric, Sample\n"
        "METRICS = [Metric('my_pages', GAUGE, '', ('kind', 'host'), 'Pages.', 'here')]\n"
        "def collect(host):\n"
        "    yield Sample('my_pages', {'kind': 'a \"b\"'}, 7)\n"
        "    yield Sample('my_untold', {}, float('inf'))\n",
    )
    outcomes = running.run()
    assert {name: one.status for name, one in outcomes.items()} == {
        "queue": Status.OK,
        "pages": Status.OK,
    }
    assert values(outcomes["queue"]) == {"my_depth{queue=a}": 3.0}
    assert outcomes["queue"].declared["my_depth"].type == "gauge"
    assert values(outcomes["pages"]) == {'my_pages{kind=a "b"}': 7, "my_untold": float("inf")}
    assert outcomes["pages"].declared["my_pages"].help == "Pages."
    assert outcomes["pages"].declared["my_untold"].type == "untyped"


def test_a_python_plugin_may_ask_for_its_reader_and_time(directory: Path, running: Cycles) -> None:
    write(
        directory / "own.py",
        "from raydiag.exporter.plugins import plugin\n"
        "from raydiag.exporter.metrics import Sample\n"
        "from raydiag.probes import PROCESSES\n"
        "@plugin(timeout_s=0.7, reader=PROCESSES)\n"
        "def collect(host):\n"
        "    yield Sample('my_own', {}, 1)\n",
    )
    assert values(running.run()["own"]) == {"my_own": 1}
    (ask,) = running.foreign.asks()
    assert (ask.reader, ask.timeout_s) == ("processes", 0.7)


def test_what_is_no_plugin_is_passed_over(directory: Path, running: Cycles) -> None:
    write(directory / "README.md", "# Plugins\n", 0o644)
    write(directory / "data.txt", "a 1\n", 0o644)
    write(directory / "library.py", "def help_others(): pass\n", 0o644)
    write(directory / "queue~", SIMPLE)
    write(directory / ".hidden", SIMPLE)
    write(directory / "queue.bak", SIMPLE)
    (directory / "more").mkdir()
    assert running.run() == {}
    told = {Path(path).name for path in running.foreign.problems()}
    assert told == {"README.md", "data.txt", "library.py", "more"}


def test_beside_shell_plugins_no_other_program_is_run(directory: Path, running: Cycles) -> None:
    trap = directory.parent / "was-run"
    write(directory / "launch_training.sh", f"#!/bin/sh\ntouch {trap}\n")
    write(directory / "patch.py", f"open({str(trap)!r}, 'w')\ndef collect(host): yield\n")
    write(directory / "run_metrics_plugin.sh", COUNTING, 0o644)
    assert list(running.run()) == ["run_metrics_plugin"]
    assert not trap.exists()
    assert "only these are plugins" in running.foreign.problems()[str(directory / "patch.py")]


def test_a_name_that_is_taken_is_refused(directory: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    write(directory / "queue", SIMPLE)
    write(directory / "gpu", SIMPLE)
    write(second / "queue.sh", SIMPLE)
    with cycles(directory, second, taken=("gpu",)) as running:
        assert list(running.run()) == ["queue"]
        problems = running.foreign.problems()
    assert problems[str(directory / "gpu")].endswith("already: raydiag's own")
    assert problems[str(second / "queue.sh")].endswith(f"already: {directory / 'queue'}")


# ---- the shell protocol


def test_state_is_passed_on_and_nothing_new_repeats_the_last(
    directory: Path, running: Cycles
) -> None:
    write(directory / "run_metrics_plugin.sh", COUNTING, 0o644)
    now_s = 1_800_000_000.0
    seen = []
    for cycle in range(4):
        outcome = running.run(now_s + 10 * cycle)["run_metrics_plugin"]
        age_s = running.facts(now_s + 10 * cycle).get(
            ("plugin_replay_age_seconds", "run_metrics_plugin")
        )
        seen.append((values(outcome)["my_runs"], outcome.measured_at, age_s))
    assert seen == [
        (1, now_s, None),
        (1, None, 10.0),
        (3, now_s + 20, None),
        (3, None, 10.0),
    ]


ONCE = """\
if [[ -z $_PLUGIN_STATE ]]; then
  echo 'my_plain 1'
  echo 'tb_dated 2 1770948000123'
fi
echo "# STATE kept"
"""


def test_a_repetition_has_a_limit(directory: Path, running: Cycles) -> None:
    write(directory / "once_metrics_plugin.sh", ONCE)
    now_s = 1_800_000_000.0
    assert len(values(running.run(now_s)["once_metrics_plugin"])) == 2

    def at(age_s: float) -> tuple[Status, set[str]]:
        outcome = running.run(now_s + age_s)["once_metrics_plugin"]
        return outcome.status, set(values(outcome))

    assert at(REPLAY_S) == (Status.OK, {"my_plain", "tb_dated"})
    assert at(REPLAY_S + 1) == (Status.OK, {"tb_dated"})
    assert at(DATED_REPLAY_S + 1) == (Status.ERROR, set())


def test_state_none_clears_what_was_kept(directory: Path, running: Cycles) -> None:
    write(
        directory / "a_metrics_plugin.sh",
        'case $_PLUGIN_STATE in\n"") echo "a 1"; echo "# STATE 1";;\n'
        '1) echo "# STATE __NONE__ 0";;\nesac\n',
    )
    assert values(running.run()["a_metrics_plugin"]) == {"a": 1}
    assert values(running.run()["a_metrics_plugin"]) == {}
    assert values(running.run()["a_metrics_plugin"]) == {"a": 1}  # it was given no state again


def test_a_state_before_any_sample_is_no_data(directory: Path, running: Cycles) -> None:
    write(directory / "a_metrics_plugin.sh", "echo '# STATE 1'\n")
    outcome = running.run()["a_metrics_plugin"]
    assert (outcome.status, outcome.samples) == (Status.NO_DATA, None)


def test_exit_99_is_the_last_run_until_the_content_changes(
    directory: Path, running: Cycles
) -> None:
    count = directory.parent / "count"
    script = f"echo run >> {count}\nexit 99\n"
    plugin = write(directory / "a_metrics_plugin.sh", script)
    assert values(running.run()["a_metrics_plugin"]) == {}
    assert running.run() == {}
    os.utime(plugin)  # touched, and the same
    assert running.run() == {}
    assert count.read_text() == "run\n"
    assert running.facts()["plugin_disabled", "a_metrics_plugin"] == 1
    write(plugin, f"{script}# another content\n")
    assert list(running.run()) == ["a_metrics_plugin"]
    assert count.read_text() == "run\nrun\n"


def test_the_host_is_an_argument_and_its_label_is_left_to_the_page(
    directory: Path, running: Cycles
) -> None:
    write(directory / "a_metrics_plugin.sh", 'echo "a{host=\\"$1\\",gpu=\\"0\\"} 1"\necho "b 2"\n')
    outcome = running.run()["a_metrics_plugin"]
    assert values(outcome) == {"a{gpu=0}": 1, "b": 2}
    assert outcome.declared["a"].labels == ("gpu", "host")
    other = write(directory / "b_metrics_plugin.sh", "echo 'a{host=\"other\"} 1'\n")
    os.utime(other, (1_700_000_000, 1_700_000_000))
    outcome = running.run()["b_metrics_plugin"]
    assert outcome.reason == f"a is of host 'other', and this is '{HOST}'"


# ---- reload


def test_new_content_runs_in_the_next_cycle(directory: Path, running: Cycles) -> None:
    plugin = write(directory / "queue", SIMPLE)
    assert values(running.run()["queue"]) == {"my_depth{queue=a}": 3}
    write(plugin, SIMPLE.replace("3", "4"))
    outcome = running.run()["queue"]
    assert (values(outcome), outcome.is_new) == ({"my_depth{queue=a}": 4}, True)
    assert running.run()["queue"].is_new is False


BROKEN = {
    "syntax": ("bash -n", "if true; then echo 1\n"),
    "fails": ("exit status 3: no luck", "echo no luck >&2\nexit 3\n"),
    "garbage": ("neither a sample nor a comment", "echo '!!!'\n"),
    "nothing": ("printed nothing", "true\n"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_new_version_leaves_the_last_good_one_running(
    broken: str, directory: Path, running: Cycles
) -> None:
    why, text = BROKEN[broken]
    plugin = write(
        directory / "a_metrics_plugin.sh", 'echo "my_own \\"$0\\" 1" >/dev/null\necho "my_own 1"\n'
    )
    assert values(running.run()["a_metrics_plugin"]) == {"my_own": 1}
    write(plugin, text)
    for _ in range(3):
        assert values(running.run()["a_metrics_plugin"]) == {"my_own": 1}
    assert why in running.foreign.problems()[str(plugin)]
    facts = running.facts()
    assert facts["plugin_outdated", "a_metrics_plugin"] == 1
    assert facts["plugin_reload_errors_total", "a_metrics_plugin"] >= 1
    write(plugin, "echo 'my_own 2'\n")
    assert values(running.run()["a_metrics_plugin"]) == {"my_own": 2}
    assert running.facts()["plugin_outdated", "a_metrics_plugin"] == 0


def test_a_new_version_that_is_late_is_told_from_a_broken_one(
    directory: Path, running: Cycles
) -> None:
    path = write(directory / "queue", SIMPLE)
    running.run()
    assert running.facts()["plugin_late", "queue"] == 0
    write(path, "#!/bin/sh\nsleep 60\n")
    running.run(timeouts={"queue": 0.5})
    facts = running.facts()
    assert (facts["plugin_outdated", "queue"], facts["plugin_late", "queue"]) == (1, 1)
    write(path, "#!/bin/sh\nexit 3\n")
    running.run()
    facts = running.facts()
    assert (facts["plugin_outdated", "queue"], facts["plugin_late", "queue"]) == (1, 0)


def test_the_last_good_version_still_has_its_own_name(directory: Path, running: Cycles) -> None:
    write(directory / "neighbour.inc", "echo 'my_own 5'\n", 0o644)
    good = '. "$(dirname "$0")/neighbour.inc"\n'
    plugin = write(directory / "a_metrics_plugin.sh", good)
    assert values(running.run()["a_metrics_plugin"]) == {"my_own": 5}
    write(plugin, "fi\n")
    assert values(running.run()["a_metrics_plugin"]) == {"my_own": 5}


def test_a_broken_program_and_a_broken_python_file_too(directory: Path, running: Cycles) -> None:
    good = (
        "from raydiag.exporter.metrics import Sample\ndef collect(host): yield Sample('p', {}, 1)\n"
    )
    program, module = write(directory / "queue", SIMPLE), write(directory / "p.py", good)
    running.run()
    write(program, "#!/no/such/shell\n")
    write(module, "def collect(host): yield (\n")
    outcomes = running.run()
    assert values(outcomes["queue"]) == {"my_depth{queue=a}": 3}
    assert values(outcomes["p"]) == {"p": 1}
    assert "not Python" in running.foreign.problems()[str(module)]
    write(module, f"raise OSError('not today')\n{good}")
    assert values(running.run()["p"]) == {"p": 1}
    assert "OSError: not today" in running.foreign.problems()[str(module)]
    assert {running.facts()["plugin_outdated", name] for name in ("queue", "p")} == {1}


def test_a_broken_version_is_tried_less_and_less_often(directory: Path, running: Cycles) -> None:
    plugin = write(directory / "a_metrics_plugin.sh", "echo 'a 1'\n")
    running.run()
    write(plugin, "exit 1\n")
    errors = []
    for _ in range(12):
        running.run()
        errors.append(running.facts()["plugin_reload_errors_total", "a_metrics_plugin"])
    assert errors == [1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4]


def test_a_version_with_wrong_syntax_is_not_tried_again(directory: Path, running: Cycles) -> None:
    plugin = write(directory / "a_metrics_plugin.sh", "echo 'a 1'\n")
    running.run()
    write(plugin, "fi\n")
    for _ in range(12):
        assert values(running.run()["a_metrics_plugin"]) == {"a": 1}
    assert running.facts()["plugin_reload_errors_total", "a_metrics_plugin"] == 1
    assert running.facts()["plugin_outdated", "a_metrics_plugin"] == 1


def test_a_version_that_never_worked_gives_way_to_one_that_may(
    directory: Path, running: Cycles
) -> None:
    plugin = write(directory / "a_metrics_plugin.sh", "exit 1\n")
    assert running.run()["a_metrics_plugin"].status is Status.ERROR
    assert running.facts()["plugin_outdated", "a_metrics_plugin"] == 0
    write(plugin, "exit 2\n")
    assert running.run()["a_metrics_plugin"].reason == "exit status 2"
    write(plugin, "echo 'a 1'\n")
    assert values(running.run()["a_metrics_plugin"]) == {"a": 1}


def test_a_deleted_plugin_is_gone(directory: Path, running: Cycles) -> None:
    plugin = write(directory / "queue", SIMPLE)
    running.run()
    plugin.unlink()
    assert running.run() == {}
    assert running.gone == ["queue"]
    assert running.facts() == {}


def test_a_directory_that_cannot_be_looked_at_keeps_its_plugins(
    directory: Path, running: Cycles
) -> None:
    write(directory / "queue", SIMPLE)
    running.run()
    directory.rename(directory.with_name("elsewhere"))
    assert values(running.run()["queue"]) == {"my_depth{queue=a}": 3}  # from the copy
    assert "No such file" in running.foreign.problems()[str(directory)]


def test_a_file_that_has_just_changed_in_place_is_left_until_it_settles(
    directory: Path, running: Cycles
) -> None:
    plugin = write(directory / "a_metrics_plugin.sh", "echo 'a 1'\n")
    os.utime(plugin, (1_700_000_000, 1_700_000_000))
    running.run()
    with plugin.open("a") as half:
        half.write("echo 'b")
    os.utime(plugin, (time.time() + 0.5, time.time() + 0.5))  # whatever the machine's speed
    os.utime(plugin)
    assert values(running.run()["a_metrics_plugin"]) == {"a": 1}
    assert running.facts()["plugin_reload_errors_total", "a_metrics_plugin"] == 0


def test_what_changes_type_or_labels_is_refused_until_the_file_changes(
    directory: Path, running: Cycles
) -> None:
    script = (
        'if [[ -z $_PLUGIN_STATE ]]; then echo "# TYPE a gauge"; echo "a 1"; echo \'b{x="1"} 1\'\n'
        'else echo "# TYPE a counter"; echo "a 2"; echo \'b{y="1"} 1\'; echo "c 3"; fi\n'
        "echo '# STATE 1'\n"
    )
    plugin = write(directory / "a_metrics_plugin.sh", script)
    assert len(values(running.run()["a_metrics_plugin"])) == 2
    outcome = running.run()["a_metrics_plugin"]
    assert values(outcome) == {"c": 3}
    assert outcome.refused == [
        "a was gauge with labels none and is now counter with labels none",
        "b was untyped with labels x and is now untyped with labels y",
    ]
    write(plugin, f"{script}# new\n")
    assert len(values(running.run()["a_metrics_plugin"])) == 3
