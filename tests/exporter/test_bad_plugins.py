"""Plugins that misbehave: each costs its own series, leaves nothing behind and says why."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydiag import sandbox
from raydiag.exporter import external_run, plugin_files
from raydiag.model import Status
from raydiag.sandbox import Reader
from tests.cluster import fuse_hang
from tests.cluster.fuse_hang import HangingFile
from tests.exporter.foreign_cycle import PATIENCE_S, Cycles, cycles, values, write

pytestmark = pytest.mark.slow

GOOD = "#!/bin/sh\necho 'good 1'\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "plugins"
    place.mkdir()
    return place


@pytest.fixture
def running(directory: Path) -> Iterator[Cycles]:
    with cycles(directory) as made:
        yield made


def processes_with(word: str) -> list[int]:
    """Processes one argument of which is this word; zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in arguments:
                found.append(int(entry.name))
    return found


def gone(word: str) -> bool:
    end = time.monotonic() + PATIENCE_S
    while processes_with(word):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


OUTPUT = {
    "garbage": ("printf '\\001\\002 what\\n'", "neither a sample nor a comment"),
    "not UTF-8": ("printf 'a{b=\"\\377\"} 1\\n'", "line 1: not UTF-8 (byte 0xff)"),
    "nothing": ("true", "printed nothing"),
    "comments only": ("echo '# HELP a b'", "printed no sample"),
    "100 MB": ("head -c 100000000 /dev/zero | tr '\\0' x", "prints more than 1048576 bytes"),
    "without end": ("while :; do echo 'a 1'; done", "prints more than 1048576 bytes"),
    "half a number": ("printf 'a 12'", "the last line has no end"),
    "a series twice": (
        "echo 'a{b=\"1\"} 1'; echo 'a{b=\"1\"} 2'",
        "this series stands there twice",
    ),
    "two types": ("echo '# TYPE a gauge'; echo '# TYPE a counter'; echo 'a 1'", "gauge already"),
    "differing labels": (
        "echo 'a{b=\"1\"} 1'; echo 'a{c=\"1\"} 1'",
        "a has labels ['b'] and ['c']",
    ),
    "our own name": ("echo 'raydiag_exporter_plugin_up 1'", "are raydiag's own"),
    "a dated hw_": ("echo 'hw_a 1 1770948000123'", "a timestamp on a hw_ metric"),
    "too many": ("seq 10001 | sed 's/.*/a{b=\"&\"} 1/'", "more than 10000 samples"),
    "exit status": ("echo 'a 1'; echo 'first words' >&2; exit 7", "exit status 7: first words"),
    "killed": ("echo 'a 1'; kill -9 $$", "exit status 137"),
}


@pytest.mark.parametrize("what", OUTPUT)
def test_output_that_is_refused_costs_its_own_plugin_alone(
    what: str, directory: Path, running: Cycles
) -> None:
    text, why = OUTPUT[what]
    write(directory / "bad", f"#!/bin/sh\n{text}\n")
    write(directory / "good", GOOD)
    for _ in range(2):
        outcomes = running.run()
        assert values(outcomes["good"]) == {"good": 1}
        assert outcomes["bad"].status in (Status.ERROR,)
        assert outcomes["bad"].samples is None
        assert why in outcomes["bad"].reason


def test_nan_infinities_and_times_are_fine(directory: Path, running: Cycles) -> None:
    lines = 'a NaN\\nb +Inf\\nc -Inf\\ntb_d 1.5e3 1770948000123\\ne{x="q\\\\\\\\\\"\\\\n"} 0\\n'
    write(directory / "good", f"#!/bin/sh\nprintf '{lines}'\n")
    samples = {one.name: one for one in running.run()["good"].samples or ()}
    assert samples["a"].value != samples["a"].value
    assert (samples["b"].value, samples["c"].value) == (float("inf"), float("-inf"))
    assert samples["tb_d"][2:] == (1500.0, 1770948000123)


FILES: dict[str, Callable[[Path], object]] = {
    "deleted while it is linked": lambda path: path.symlink_to(path.parent / "nowhere"),
    "a directory": lambda path: path.mkdir(),
    "a FIFO": lambda path: os.mkfifo(path),
    "empty": lambda path: path.write_text(""),
    "half written": lambda path: path.write_text("#!/bin/bash\nfor gpu in 0 1; do\n"),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 10),
    "huge": lambda path: path.write_bytes(b"# \n" * 200_000),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_cannot_be_a_shell_plugin(what: str, directory: Path, running: Cycles) -> None:
    path = directory / "bad_metrics_plugin.sh"
    FILES[what](path)
    write(directory / "good_metrics_plugin.sh", GOOD)
    outcomes = running.run()
    assert values(outcomes["good_metrics_plugin"]) == {"good": 1}
    told = running.foreign.problems().get(str(path)) or outcomes["bad_metrics_plugin"].reason
    assert told
    assert "Traceback" not in told


def test_a_program_that_is_not_executable_is_said_to_be(directory: Path, running: Cycles) -> None:
    path = write(directory / "queue", GOOD, 0o644)
    assert running.run() == {}
    assert running.foreign.problems()[str(path)].endswith("a program, and not executable")
    assert running.facts()["plugin_up", "queue"] == 0
    path.chmod(0o755)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert values(running.run()["queue"]) == {"good": 1}
    assert ("plugin_up", "queue") not in running.facts()  # it is the collector's


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(directory: Path, running: Cycles) -> None:
    path = write(directory / "a_metrics_plugin.sh", GOOD, 0o000)
    assert running.run() == {}
    assert "Permission denied" in running.foreign.problems()[str(path)]


PYTHON = {
    "raises": ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "ends its process": ("import os; os._exit(0)", "no answer in time"),
    "yields a word": ("yield 'a 1'", "collect yielded a str: yield Sample(name, labels, value)"),
    "a bad name": ("yield Sample('a b', {}, 1)", "neither a sample nor a comment"),
    "a value that is none": ("yield Sample('a', {}, 'x')", "not a number"),
    "our own name": ("yield Sample('raydiag_exporter_x', {}, 1)", "are raydiag's own"),
    "no end of samples": ("\n    while 1: yield Sample('a', {}, 1)", "more than 10000 samples"),
    "writes": ("open('/tmp/raydiag-was-here', 'w'); yield", "Operation not permitted"),
    "kills": ("import os; os.kill(os.getppid(), 0); yield", "Operation not permitted"),
}


@pytest.mark.parametrize("what", PYTHON)
def test_python_that_misbehaves(what: str, directory: Path, running: Cycles) -> None:
    text, why = PYTHON[what]
    head = "from raydiag.exporter.metrics import Sample\ndef collect(host):\n"
    write(directory / "bad.py", f"{head}    {text}\n    if 0: yield\n")
    outcome = running.run()["bad"]
    assert outcome.samples is None
    assert why in outcome.reason
    write(directory / "bad.py", f"{head}    yield Sample('a', {{}}, 1)\n")
    assert values(running.run()["bad"]) == {"a": 1}  # the reader has survived, or was replaced


@pytest.mark.parametrize(
    "said", ["'Counter', '', ('host',), 'x'", "'gauge', '', (), None", "'gauge', '', (), '\\ud800'"]
)
def test_python_that_declares_what_no_page_can_hold(
    said: str, directory: Path, running: Cycles
) -> None:
    write(
        directory / "bad.py",
        "from raydiag.exporter.metrics import Metric, Sample\n"
        f"METRICS = (Metric('a', {said}, ''),)\n"
        "def collect(host):\n"
        "    yield Sample('a', {}, 1)\n",
    )
    outcome = running.run()["bad"]
    assert outcome.samples is None
    assert "METRICS: a: no " in outcome.reason


def test_python_leaves_no_file_open_in_the_reader(directory: Path, running: Cycles) -> None:
    text = (
        "import os\n"
        "from raydiag.exporter.metrics import Sample\n"
        "def collect(host):\n"
        "    for name in os.listdir('/sys/class/net'):\n"
        "        host.read_text(f'/sys/class/net/{name}/mtu')\n"
        "    yield Sample('a', {}, len(os.listdir('/proc/self/fd')))\n"
    )
    write(directory / "bad.py", text)
    assert len({values(running.run()["bad"])["a"] for _ in range(3)}) == 1


def test_what_is_true_counts_as_one(directory: Path, running: Cycles) -> None:
    head = "from raydiag.exporter.metrics import Sample\ndef collect(host):\n"
    write(directory / "fine.py", f"{head}    yield Sample('a', {{}}, True)\n")
    assert type(values(running.run()["fine"])["a"]) is int


def test_what_lies_beside_plugins_is_not_read_in_each_cycle(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(directory / "library.py", "def help_others(): pass\n", 0o644)
    write(directory / "data", "a 1\n", 0o644)
    write(directory / "words", "no program\n", 0o644)
    read: list[str] = []
    really = plugin_files._read

    def noted(path: str, size: int) -> tuple[bytes, str]:
        read.append(path)
        return really(path, size)

    monkeypatch.setattr(plugin_files, "_read", noted)
    for _ in range(3):
        told = plugin_files.scan(str(directory), {}, settle=False)
        assert sorted(told["passed_over"]) == ["data", "library.py", "words"]
    assert read == [str(directory / "library.py")]
    write(directory / "library.py", "def collect(host): yield\n", 0o644)
    assert list(plugin_files.scan(str(directory), {}, settle=False)["files"]) == ["library.py"]


def test_one_that_never_ends_is_ended_with_its_children(
    directory: Path, running: Cycles, tmp_path: Path
) -> None:
    mark = f"600.{os.getpid()}1"
    write(directory / "bad", f"#!/bin/sh\n(sleep {mark}; true) &\nsleep {mark} | cat\n")
    write(directory / "good", GOOD)
    outcomes = running.run(timeouts={"bad": 0.5})
    assert outcomes["bad"].status is Status.TIMEOUT
    assert outcomes["bad"].reason == "no end within 0.5 s"
    assert values(outcomes["good"]) == {"good": 1}
    assert gone(mark)


def test_children_that_outlive_it_hold_nothing_up_and_are_ended(
    directory: Path, running: Cycles
) -> None:
    mark = f"600.{os.getpid()}2"
    write(
        directory / "forks",
        f"#!/bin/sh\nsleep {mark} &\nsetsid sleep {mark} &\n(setsid nohup sleep {mark} &)\n"
        "echo 'a 1'\n",
    )
    for _ in range(2):
        assert values(running.run()["forks"]) == {"a": 1}
        assert gone(mark)


def test_a_program_that_ignores_signals_is_ended(directory: Path, running: Cycles) -> None:
    mark = f"600.{os.getpid()}3"
    write(
        directory / "deaf", f"#!/bin/bash\ntrap '' TERM INT HUP\nwhile :; do sleep {mark}; done\n"
    )
    assert running.run(timeouts={"deaf": 0.5})["deaf"].status is Status.TIMEOUT
    assert gone(mark)


def test_when_the_reader_is_killed_nothing_of_the_plugin_stays(
    directory: Path, running: Cycles
) -> None:
    mark = f"600.{os.getpid()}4"
    write(directory / "slow", f"#!/bin/sh\nsleep {mark} &\nsleep {mark}\n")
    for look in running.foreign.looks():
        running.foreign.looked(look, running.ask(look))
    (ask,) = running.foreign.asks()
    reader = Reader(lambda request: iter([external_run.answer(request)]), ask.reader)
    name = sandbox.tag(ask.source)
    reader.ask(ask.request, name, sandbox.lock(name))
    end = time.monotonic() + PATIENCE_S
    while len(processes_with(mark)) < 2:
        assert time.monotonic() < end, "the plugin did not start"
        time.sleep(0.02)
    os.kill(reader.pid, signal.SIGKILL)
    os.waitpid(reader.pid, 0)
    assert gone(mark)
    free = sandbox.lock(name)
    assert free is not None
    free.close()


def test_another_process_group_is_never_touched(directory: Path, running: Cycles) -> None:
    mark = f"600.{os.getpid()}5"
    bystander = os.posix_spawnp("sleep", ["sleep", mark], dict(os.environ))
    try:
        write(directory / "bad", f"#!/bin/sh\nsleep {mark}0\n")
        assert running.run(timeouts={"bad": 0.3})["bad"].status is Status.TIMEOUT
        assert gone(f"{mark}0")
        assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
    finally:
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)


# ---- what hangs in the kernel


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[HangingFile]:
    if reason := fuse_hang.unavailable():
        pytest.skip(reason)
    place = tmp_path / "hangs"
    place.mkdir()
    (place / "counter").write_text("42\n")
    with HangingFile(place) as file_system:
        yield file_system


def test_one_that_hangs_in_the_kernel_is_abandoned_once_and_heals(
    directory: Path, running: Cycles, hanging: HangingFile
) -> None:
    write(directory / "reads", f'#!/bin/sh\necho "a $(cat {hanging.directory}/counter)"\n')
    write(directory / "good", GOOD)
    assert values(running.run()["reads"]) == {"a": 42}
    hanging.hang("counter")
    outcome = running.run(timeouts={"reads": 0.5})["reads"]
    assert outcome.status is Status.TIMEOUT
    assert "cannot be ended" in outcome.reason
    assert "abandoned" in outcome.reason
    (stuck,) = hanging.stuck_pids("cat")
    for _ in range(3):
        outcomes = running.run(timeouts={"reads": 0.5})
        assert values(outcomes["good"]) == {"good": 1}
        assert "reads" not in outcomes  # it would leave one more
        assert running.facts(time.time() + 60)["stuck_source_seconds", "reads"] >= 60
    assert hanging.stuck_pids() == [stuck]
    hanging.release()
    end = time.monotonic() + PATIENCE_S
    while "reads" not in (outcomes := running.run()):
        assert time.monotonic() < end, "it did not heal"
        time.sleep(0.05)
    assert values(outcomes["reads"]) == {"a": 42}
    assert ("stuck_source_seconds", "reads") not in running.facts()


def test_a_directory_that_hangs_costs_one_look_and_no_plugin(
    directory: Path, running: Cycles, tmp_path: Path
) -> None:
    if reason := fuse_hang.unavailable():
        pytest.skip(reason)
    path = write(directory / "a_metrics_plugin.sh", "echo 'a 1'\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert values(running.run()["a_metrics_plugin"]) == {"a": 1}
    path.write_text("echo 'a 2'\n")
    os.utime(path, (1_700_000_001, 1_700_000_001))
    with HangingFile(directory) as file_system:
        file_system.hang("a_metrics_plugin.sh")
        for look in running.foreign.looks():
            running.foreign.looked(look, running.ask(look._replace(timeout_s=0.5)), "no answer")
        assert file_system.stuck_pids("rd-")
        (ask,) = running.foreign.asks()
        assert ask.request["in_place"] is False
        outcome = running.foreign.took(ask, running.ask(ask), time.time())
        assert values(outcome) == {"a": 1}  # the last good version, from its copy
        assert running.foreign.problems()[str(directory)] == "no answer"


# ---- what a program may have


def test_a_program_may_write_a_file_of_its_own(directory: Path, running: Cycles) -> None:
    text = (
        f'#!/bin/sh\nseq 100000 > {directory}/.scratch\necho "a $(wc -l < {directory}/.scratch)"\n'
    )
    write(directory / "writes", text)
    assert values(running.run()["writes"]) == {"a": 100000}


def test_a_program_that_takes_the_nodes_memory_gets_none(directory: Path, running: Cycles) -> None:
    text = f"#!{sys.executable}\nx = bytearray(2 << 30)\nprint('a 1')\n"
    write(directory / "takes", text)
    outcome = running.run()["takes"]
    assert outcome.samples is None
    assert outcome.reason.startswith("exit status 1")


def test_a_program_does_not_inherit_what_the_reader_has_open(
    directory: Path, running: Cycles
) -> None:
    text = (
        f"#!{sys.executable}\nimport os\n"
        "links = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')[3:-1]]\n"
        "print('a', len([link for link in links if not link.startswith('socket:')]))\n"
        "print('b', sum(link.startswith('socket:') for link in links))\n"
    )
    write(directory / "looks", text)
    assert values(running.run()["looks"]) == {"a": 0, "b": 1}  # the lock of its source
