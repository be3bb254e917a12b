"""The node runner as an actor starts it, with planted probes that misbehave, on the real kernel."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from raydiag import memory_import, probes, sandbox
from raydiag.cluster import bundle
from raydiag.cluster.actor import RaydiagNodeActor
from tests.cluster import fuse_hang
from tests.cluster.fuse_hang import HangingFile

PATIENCE_S = 120.0  # only a hang takes that long
BUDGET_S = 60.0  # of a run in which the probes' own deadlines matter
REPOSITORY = Path(memory_import.__file__).parent.parent

_PREAMBLE = """
from dataclasses import dataclass
import os, time
from raydiag.errors import Denied, NoData
from raydiag.probes import FIRST, LAST, PROCESSES, probe
@dataclass(frozen=True)
class Seen:
    text: str
def sources(host):
    return sorted(host.path(f"/{name}") for name in os.listdir(host.root))
def content(path):
    with open(path) as file:
        return file.read()
"""

# What an actor's process is, without Ray: modules, request and budget come on stdin.
_ACTOR = """
import json, sys
sys.path.insert(0, sys.argv[1])
from raydiag import memory_import
from raydiag.cluster.actor import RaydiagNodeActor
asked = json.load(sys.stdin)
packed = memory_import.packed(asked["modules"], asked["request"])
answer = RaydiagNodeActor.probe(None, asked["entrypoint"], packed, asked["budget_s"])
sys.stdout.buffer.write(answer.partition(b"\\n")[2])
"""


def planted(body: str, arguments: str = "", takes: str = "host") -> str:
    """Source of a probe; NAME stands for its own. Its deadline is one for a busy machine."""
    if "timeout_s" not in arguments:
        arguments = f", timeout_s=30{arguments}"
    return f"{_PREAMBLE}\n@probe(Seen{arguments})\ndef NAME({takes}):\n" + textwrap.indent(
        textwrap.dedent(body), "    "
    )


def modules(sources: Mapping[str, str], real: tuple[str, ...] = ()) -> dict[str, str]:
    found = {n: t for n, t in bundle.modules(real).items() if not n.startswith("raydiag.cluster")}
    for name, text in sources.items():
        found[f"raydiag.probes.{name}"] = text.replace("NAME", name)
    return found


def run(sources: Mapping[str, str], budget_s: float = BUDGET_S, **request: Any) -> dict[str, Any]:
    """The node's answer to planted probes."""
    packed = memory_import.packed(modules(sources), {"probes": list(sources), **request})
    entrypoint = bundle.entrypoint("node_runner")
    answer = RaydiagNodeActor.probe(None, entrypoint, packed, budget_s)  # type: ignore[arg-type]
    decoded: dict[str, Any] = json.loads(zlib.decompress(answer.partition(b"\n")[2]))
    return decoded


def texts(result: Mapping[str, Any]) -> list[str]:
    return [record["text"] for record in result["records"]]


def until(condition: Callable[[], Any]) -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.005)
    return value


def is_gone(pid: int) -> bool:
    """Ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


READ_EACH = planted(
    "yield Seen(content(source))", ", timeout_s=2.0, sources=sources", "host, source"
)
READ_EACH_LAST = READ_EACH.replace("timeout_s", "stage=LAST, timeout_s")
GOOD = planted("yield Seen('fine')")


# ---- probes that act, probes that break


@pytest.mark.parametrize("kind", ["", ", reader=PROCESSES"], ids=["files", "processes"])
def test_a_probe_that_acts_is_refused_by_the_kernel(kind: str, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as bystander:
        answer = run(
            {
                "writes": planted(f"open('{tmp_path}/written', 'w')\nyield Seen('')", kind),
                "signals": planted("os.kill(os.getppid(), 9)\nyield Seen('')", kind),
                "ends": planted(f"os.kill({bystander.pid}, 15)\nyield Seen('')", kind),
                "device": planted(
                    f"os.mknod('{tmp_path}/node', 0o20600, os.makedev(1, 3))\nyield Seen('')", kind
                ),
                "good": GOOD,
            }
        )
        assert bystander.poll() is None
        bystander.kill()
    assert list(tmp_path.iterdir()) == []
    results = answer["probes"]
    for name in ("writes", "signals", "ends", "device"):
        assert results[name]["status"] == "error"
        assert results[name]["records"] == []
        assert "PermissionError: [Errno 1] Operation not permitted" in results[name]["reason"]
    assert texts(results["good"]) == ["fine"]


@pytest.mark.slow
def test_a_probe_that_breaks_costs_its_own_result_only() -> None:
    answer = run(
        {
            "raises": planted("yield Seen('before')\nraise ValueError('odd')"),
            "talks": planted("for _ in range(10240): yield Seen('x' * 1024)"),
            "mistypes": planted("yield Seen('before')\nyield 42"),
            "not_json": planted("yield Seen(b'bytes')"),
            "returns": planted("return 5"),
            "leaves": planted("os._exit(3)\nyield Seen('')"),
            "loops": planted("yield Seen('before')\nwhile True: pass", ", timeout_s=0.5"),
            "no_such": planted("raise NoData('no such device')\nyield"),
            "refused": planted("raise Denied('not permitted')\nyield"),
            "empty": planted("return\nyield"),
            "good": GOOD,
        }
    )
    results = answer["probes"]
    assert {name: result["status"] for name, result in results.items()} == {
        "raises": "error",
        "talks": "error",
        "mistypes": "error",
        "not_json": "error",
        "returns": "error",
        "leaves": "error",
        "loops": "timeout",
        "no_such": "no_data",
        "refused": "denied",
        "empty": "ok",
        "good": "ok",
    }
    assert results["raises"]["reason"] == "ValueError: odd"
    assert "more than 4 MiB" in results["talks"]["reason"]
    # Whether it left before it was asked, or after.
    assert re.search("ended before it answered|Broken pipe", results["leaves"]["reason"])
    # It never waited. So does a reader that gets no CPU: it had four times as long.
    assert float(results["loops"]["reason"].split()[4]) >= 2.0
    assert (results["no_such"]["reason"], results["refused"]["reason"]) == (
        "no such device",
        "not permitted",
    )
    # What came before the break is kept, and a reader that was killed in time is not a stuck one.
    for name in ("raises", "mistypes", "loops"):
        assert texts(results[name]) == ["before"]
    assert answer["stuck"] == []


def test_the_answer_says_how_readers_were_confined_and_what_it_cost() -> None:
    answer = run({"good": GOOD, "other": planted("yield Seen('')", ", reader=PROCESSES")})
    assert {kind: holds["seccomp"] for kind, holds in answer["sandbox"].items()} == {
        "files": True,
        "processes": True,
    }
    assert answer["sandbox"]["processes"]["landlock_abi"] == 0
    assert answer["hostname"] == os.uname().nodename
    assert answer["cpu_s"] > 0
    assert until(lambda: is_gone(answer["pid"]))


def test_without_descriptors_for_a_reader_the_probe_says_so() -> None:
    packed = memory_import.packed(modules({"good": GOOD}), {"probes": ["good"]})
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))\n"
    program = limit + bundle.entrypoint("node_runner")
    times = (str(time.monotonic() + BUDGET_S), str(BUDGET_S))
    argv = [sys.executable, "-I", "-S", "-B", "-c", program, *times, str(os.getpid())]
    done = subprocess.run(argv, input=packed, capture_output=True, timeout=PATIENCE_S, check=True)
    answer = json.loads(zlib.decompress(done.stdout.partition(b"\n")[2]))
    assert answer["probes"]["good"]["status"] == "error"
    assert "Too many open files" in answer["probes"]["good"]["reason"]


# ---- reads that hang


@pytest.fixture(scope="module")
def file_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HangingFile]:
    if reason := fuse_hang.unavailable():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("hanging")
    for name in "abcd":
        (directory / name).write_text(name)
    with HangingFile(directory) as file_system:
        yield file_system


@pytest.fixture
def tree(file_system: HangingFile) -> Iterator[HangingFile]:
    """Files a, b, c, d; afterwards all reads answer again and no reader is left."""
    yield file_system
    file_system.release()
    until(lambda: not file_system.reader_pids())


def root_of(tree: HangingFile) -> dict[str, Any]:
    return {"root": str(tree.directory)}


def test_a_source_that_hangs_costs_its_own_value_only(tree: HangingFile) -> None:
    tree.hang("b")
    answer = run({"each": READ_EACH, "good": GOOD}, **root_of(tree))
    result = answer["probes"]["each"]
    assert result["status"] == "timeout"
    assert sorted(texts(result)) == ["a", "c", "d"]
    ((source, status, reason),) = result["unread"]
    (pid,) = tree.stuck_pids("rd-")
    assert (source, status) == (str(tree.directory / "b"), "timeout")
    assert f"(pid {pid}) is stuck in {fuse_hang.WAIT_CHANNEL}" in reason
    (stuck,) = answer["stuck"]
    assert 0.3 < stuck.pop("seconds") < PATIENCE_S
    assert stuck == {
        "source": source,
        "probe": "each",
        "pid": pid,
        "wchan": fuse_hang.WAIT_CHANNEL,
        "new": True,
    }
    assert answer["probes"]["good"]["status"] == "ok"


def test_ten_runs_leave_one_stuck_reader_and_the_next_run_after_its_end_is_whole(
    tree: HangingFile,
) -> None:
    tree.hang("b")
    answers = [run({"each": READ_EACH}, **root_of(tree)) for _ in range(10)]
    (pid,) = tree.stuck_pids("rd-")
    for answer in answers:
        assert sorted(texts(answer["probes"]["each"])) == ["a", "c", "d"]
        assert answer["probes"]["each"]["status"] == "timeout"
        (stuck,) = answer["stuck"]
        assert (stuck["pid"], stuck["wchan"]) == (pid, fuse_hang.WAIT_CHANNEL)
        assert stuck["new"] is (answer is answers[0])
    ((_, _, reason),) = answers[-1]["probes"]["each"]["unread"]
    assert reason == f"not read: a reader of an earlier run (pid {pid}) is still stuck in it"

    tree.release()
    until(lambda: is_gone(pid))
    healed = run({"each": READ_EACH}, **root_of(tree))
    assert healed["probes"]["each"]["status"] == "ok"
    assert sorted(texts(healed["probes"]["each"])) == ["a", "b", "c", "d"]
    assert healed["stuck"] == []


def test_two_runs_at_once_leave_one_stuck_reader(tree: HangingFile) -> None:
    tree.hang("b")
    answers: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(run({"each": READ_EACH}, **root_of(tree))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tree.stuck_pids("rd-")) == 1
    for answer in answers:
        assert answer["probes"]["each"]["status"] == "timeout"
        assert sorted(texts(answer["probes"]["each"])) == ["a", "c", "d"]
    assert sorted(stuck["new"] for answer in answers for stuck in answer["stuck"]) == [False, True]


@pytest.mark.slow
def test_a_node_full_of_stuck_readers_is_not_given_more(tree: HangingFile) -> None:
    names = [f"full{os.getpid()}_{number}" for number in range(sandbox.MOST_STUCK + 2)]
    tree.hang("a")
    slow = planted(f"yield Seen(content('{tree.directory}/a'))", ", timeout_s=0.3")
    first = planted("yield Seen('kernel log')", ", stage=FIRST")
    for _ in range(5):  # on a busy machine a reader may be ended before it has come to its file
        run(dict.fromkeys(names[: sandbox.MOST_STUCK], slow))
        if len(tree.stuck_pids("rd-")) == sandbox.MOST_STUCK:
            break
    answer = run({"first": first, **dict.fromkeys(names, slow)})
    assert len(tree.stuck_pids("rd-")) == sandbox.MOST_STUCK
    assert texts(answer["probes"]["first"]) == ["kernel log"]
    reasons = {answer["probes"][name]["reason"] for name in names}
    assert reasons == {f"not read: {sandbox.MOST_STUCK} readers are stuck on this node already"}


# ---- the last stage


FAULT = planted("yield Seen('RIP: 0010:driver_ring_write+0x6a/0x2f0')", ", stage=FIRST")


def test_the_last_stage_is_skipped_when_the_first_saw_the_driver_fault(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    request: dict[str, Any] = {
        "root": str(tmp_path),
        "driver_fault_symbols": ["other_symbol", "driver_ring_write"],
    }
    asked = {"each": READ_EACH_LAST, "fault": FAULT}
    skipped = run(asked, **request)["probes"]["each"]
    assert (skipped["status"], skipped["records"]) == ("denied", [])
    assert "driver_ring_write" in skipped["reason"]
    insisted = run(asked, force_ras=True, **request)["probes"]["each"]
    assert (insisted["status"], texts(insisted)) == ("ok", ["a"])
    unrelated = run(asked, **{**request, "driver_fault_symbols": ["other_symbol"]})["probes"][
        "each"
    ]
    assert (unrelated["status"], texts(unrelated)) == ("ok", ["a"])


_EXPORTER = planted("yield History({'gpu_metrics_plugin': %d}, %s)", ", samples=1").replace(
    "@probe(Seen", "@dataclass(frozen=True)\nclass History:\n    timed_out: dict\n"
    "    log_age_s: float\n@probe(History"
)  # fmt: skip


@pytest.mark.parametrize(
    ("times", "age_s", "status"),
    [
        (7, "25.0", "denied"),
        (7, "1800.0", "denied"),  # as long as it counts as a sign of the fault
        (7, "None", "denied"),  # nobody knows how old it is
        (2, "25.0", "ok"),
        (7, "90000.0", "ok"),
    ],
)
def test_the_last_stage_is_skipped_where_the_exporters_readers_hang(
    tmp_path: Path, times: int, age_s: str, status: str
) -> None:
    (tmp_path / "a").write_text("a")
    asked = {"each": READ_EACH_LAST, "exporter": _EXPORTER % (times, age_s)}
    result = run(asked, root=str(tmp_path))["probes"]["each"]
    assert result["status"] == status
    assert ("GPU plugin timed out 7 times" in result["reason"]) is (status == "denied")
    insisted = run(asked, root=str(tmp_path), force_ras=True)["probes"]["each"]
    assert insisted["status"] == "ok"


def test_a_symbol_that_a_later_stage_saw_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    normal = FAULT.replace("stage=FIRST", "")
    answer = run(
        {"each": READ_EACH_LAST, "normal": normal},
        root=str(tmp_path),
        driver_fault_symbols=["driver_ring_write"],
    )
    assert answer["probes"]["each"]["status"] == "ok"


def test_the_last_stage_ends_at_its_first_hang_and_a_later_run_goes_around_it(
    tree: HangingFile,
) -> None:
    tree.hang("b")
    asked = {"each": READ_EACH_LAST, "after": GOOD.replace("(Seen,", "(Seen, stage=LAST,")}
    first, second = run(asked, **root_of(tree)), run(asked, **root_of(tree))

    result = first["probes"]["each"]
    assert texts(result) == ["a"]
    assert [Path(source).name for source, _, _ in result["unread"]] == ["b", "c", "d"]
    reasons = [reason for _, _, reason in result["unread"]] + [first["probes"]["after"]["reason"]]
    assert ["may hang in the same way" in reason for reason in reasons] == [False, True, True, True]

    assert texts(second["probes"]["each"]) == ["a", "c", "d"]
    assert [Path(source).name for source, _, _ in second["probes"]["each"]["unread"]] == ["b"]
    assert second["probes"]["after"]["status"] == "ok"
    assert [stuck["new"] for answer in (first, second) for stuck in answer["stuck"]] == [
        True,
        False,
    ]
    assert len(tree.stuck_pids("rd-")) == 1


@pytest.mark.slow
def test_when_everything_hangs_a_run_of_the_last_stage_adds_one_stuck_reader(
    tree: HangingFile,
) -> None:
    for name in "abcd":
        tree.hang(name)
    for number in range(1, 3):
        run({"each": READ_EACH_LAST}, **root_of(tree))
        assert len(tree.stuck_pids("rd-")) == number


# ---- the whole run


@pytest.mark.slow
def test_an_answer_comes_before_the_nodes_deadline_whatever_hangs(tree: HangingFile) -> None:
    for name in "abcd":
        tree.hang(name)
    loops = planted("yield Seen('before')\nwhile True: pass", ", timeout_s=60")
    each = READ_EACH.replace("timeout_s=2.0", "timeout_s=60")
    late = planted("yield Seen('late')", ", stage=LAST")
    asked = {"good": GOOD, "loops": loops, "each": each, "late": late}
    # The actor raises when no answer is there in time: that there is one is the point.
    answer = run(asked, budget_s=8.0, **root_of(tree))
    results = answer["probes"]
    assert {name: result["status"] for name, result in results.items()} == {
        "good": "ok",
        "loops": "timeout",
        "each": "timeout",
        "late": "timeout",
    }
    assert texts(results["loops"]) == ["before"]
    assert results["late"]["reason"] == "not reached before the node's deadline"
    assert "no answer before the node's deadline" in results["loops"]["reason"]
    assert {Path(stuck["source"]).name for stuck in answer["stuck"]} == set("abcd")
    assert len(tree.stuck_pids("rd-")) == 4


@pytest.mark.slow
def test_a_late_start_of_the_interpreter_costs_no_answer() -> None:
    """The actor's deadline runs from its call: the runner has what is left of it then."""
    loops = planted("while True: pass\nyield Seen('')", ", timeout_s=600")
    packed = memory_import.packed(
        modules({"good": GOOD, "loops": loops}), {"probes": ["good", "loops"]}
    )
    late = f"import time\ntime.sleep(3)\n{bundle.entrypoint('node_runner')}"
    answer = RaydiagNodeActor.probe(None, late, packed, 10.0)  # type: ignore[arg-type]
    results = json.loads(zlib.decompress(answer.partition(b"\n")[2]))["probes"]
    assert {name: result["status"] for name, result in results.items()} == {
        "good": "ok",
        "loops": "timeout",
    }


def test_runner_and_readers_end_with_the_actor() -> None:
    waits = planted("time.sleep(600)\nyield Seen('')", ", timeout_s=600")
    name = f"waits{os.getpid()}"  # no other test run on this machine has that
    tag = sandbox.tag(f"{name}:")
    with subprocess.Popen(
        [sys.executable, "-c", _ACTOR, str(REPOSITORY)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as actor:
        assert actor.stdin is not None
        json.dump(asked_of_actor(modules({name: waits}), [name], 600.0), actor.stdin)
        actor.stdin.close()
        reader = until(lambda: sandbox.readers_at_work().get(tag, (0,))[0])
        status = Path(f"/proc/{reader}/status").read_text()
        parent = int(status.partition("PPid:")[2].split()[0])
        assert b"raydiag" in Path(f"/proc/{parent}/cmdline").read_bytes()
        actor.send_signal(signal.SIGKILL)
    until(lambda: is_gone(parent))
    until(lambda: is_gone(reader))


def asked_of_actor(
    carried_modules: Mapping[str, str], names: list[str], budget_s: float
) -> dict[str, Any]:
    return {
        "modules": carried_modules,
        "request": {"probes": names},
        "entrypoint": bundle.entrypoint("node_runner"),
        "budget_s": budget_s,
    }


def oldest_python() -> str:
    """A Python 3.9 that runs, from PATH or from pyenv; empty without one."""
    found = [Path(p, "python3.9") for p in os.get_exec_path()]
    found += Path.home().glob(".pyenv/versions/3.9.*/bin/python3.9")
    for path in found:
        if (
            shutil.which(path)
            and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0
        ):
            return str(path)
    return ""


def test_every_probe_runs_on_the_oldest_python() -> None:
    python = oldest_python()
    if not python:
        pytest.skip("no python3.9 on this machine: the cluster's side was not run on it")
    names = probes.names()
    asked = asked_of_actor(modules({}, tuple(names)), names, BUDGET_S)
    done = subprocess.run(
        [python, "-B", "-c", _ACTOR, str(REPOSITORY)],
        input=json.dumps(asked).encode(),
        capture_output=True,
        timeout=BUDGET_S + PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer = json.loads(zlib.decompress(done.stdout))
    assert set(answer["probes"]) == set(names)
    broken = {n: r["reason"] for n, r in answer["probes"].items() if r["status"] == "error"}
    assert broken == {}


# ---- two samples of counters


COUNTS = planted(
    """
    yield Seen(content(source))
    """,
    ", samples=2, sources=sources",
    "host, source",
)


def test_counters_are_read_again_after_the_interval(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").symlink_to("/proc/uptime")  # it counts, whatever the machine does besides
    body = COUNTS.replace("sources=sources", "sources=lambda h: [h.path('/a'), h.path('/b')]")
    answer = run({"counts": body, "good": GOOD}, root=str(tmp_path), interval_s=0.4)
    counts = answer["probes"]["counts"]
    first, later = texts(counts), [record["text"] for record in counts["later"]]
    assert first[0] == later[0] == "1"
    assert float(later[1].split()[0]) > float(first[1].split()[0])
    assert counts["interval_s"] >= 0.4
    assert answer["probes"]["good"]["later"] == []


def test_a_source_that_failed_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("1")
    (tmp_path / "bad").mkdir()
    answer = run({"counts": COUNTS}, root=str(tmp_path), interval_s=0.1)["probes"]["counts"]
    assert answer["status"] == "error"
    assert len(answer["records"]) == len(answer["later"]) == 1
    assert len(answer["unread"]) == 1


def test_without_time_for_a_second_sample_growth_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("1")
    answer = run({"counts": COUNTS}, root=str(tmp_path), interval_s=BUDGET_S)
    counts = answer["probes"]["counts"]
    assert (counts["status"], counts["later"]) == ("timeout", [])
    assert "no time was left for a second sample" in counts["reason"]
    assert answer["duration_s"] < 4


@pytest.mark.parametrize(("text", "least_s", "most_s"), [("0", 0.2, 0.9), ("7", 1.0, 5.0)])
def test_what_has_counted_before_is_watched_for_longer(
    text: str, least_s: float, most_s: float, tmp_path: Path
) -> None:
    (tmp_path / "errors").write_text(text)
    body = COUNTS.replace("samples=2", "samples=2, watch=lambda seen: seen.text != '0'")
    for _ in range(5):  # a busy machine may keep the second look waiting
        counts = run({"counts": body}, root=str(tmp_path))["probes"]["counts"]
        assert least_s <= counts["interval_s"]
        if counts["interval_s"] <= most_s:
            return
    pytest.fail(f"watched for {counts['interval_s']} s each time")
