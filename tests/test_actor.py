"""The actor's own part: the node runner as its child, without a Ray."""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path

import pytest

from raydiag import memory_import, probes
from raydiag.cluster import actor, bundle

ENTRYPOINT = bundle.entrypoint("node_runner")


@pytest.fixture
def node_actor(monkeypatch: pytest.MonkeyPatch) -> actor.RaydiagNodeActor:
    monkeypatch.setattr(os, "nice", lambda _: 0)  # the test process itself shall not slow down
    return actor.RaydiagNodeActor()


def packed(*names: str) -> bytes:
    modules = bundle.modules(probes.names())
    return memory_import.packed(modules, {"probes": list(names), "options": {}})


def test_answer_of_a_real_runner(node_actor: actor.RaydiagNodeActor) -> None:
    before = time.time()
    times, _, packed_answer = node_actor.probe(ENTRYPOINT, packed("memory"), 20).partition(b"\n")
    came_at, left_at = map(float, times.split())
    assert before - 0.001 <= came_at <= left_at <= time.time() + 0.001
    answer = json.loads(zlib.decompress(packed_answer))
    assert answer["hostname"] == os.uname().nodename
    assert answer["probes"]["memory"]["status"] == "ok"


def test_an_operation_of_a_hotfix_is_started_alike(node_actor: actor.RaydiagNodeActor) -> None:
    modules = memory_import.packed(bundle.hotfix_modules(), {"operation": "dance"})
    entrypoint = bundle.entrypoint("hotfix_node")
    packed_answer = node_actor.probe(entrypoint, modules, 20).partition(b"\n")[2]
    assert json.loads(zlib.decompress(packed_answer)) == {"error": "unknown operation 'dance'"}


def test_another_python_is_told_and_not_tried(node_actor: actor.RaydiagNodeActor) -> None:
    other = b"\x00\x00\r\n" + packed("memory")[4:]
    with pytest.raises(RuntimeError, match=r"Python 3\.\d+\.\d+ here, another one on the head"):
        node_actor.probe(ENTRYPOINT, other, 20)


def test_last_words_of_a_runner_that_breaks(node_actor: actor.RaydiagNodeActor) -> None:
    with pytest.raises(RuntimeError, match="ended before it answered: KeyError: 'no_such_probe'"):
        node_actor.probe(ENTRYPOINT, packed("no_such_probe"), 20)


def test_runner_that_never_answers_is_ended(
    node_actor: actor.RaydiagNodeActor, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    script = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(RuntimeError, match="no answer in time"):
        node_actor.probe(script, packed("memory"), 1.5)
    pid = int(note.read_text())
    end = time.monotonic() + 10
    while _runs(pid):
        assert time.monotonic() < end
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (OSError, ChildProcessError):
        return False


def test_environment_of_the_job_stays_out(
    node_actor: actor.RaydiagNodeActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/libnothing.so")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    script = (
        "import os, sys, zlib;"
        "answer = zlib.compress(' '.join(sorted(os.environ)).encode());"
        "sys.stdout.buffer.write(b'%d\\n' % len(answer) + answer)"
    )
    _, _, answer = node_actor.probe(script, packed("memory"), 20).partition(b"\n")
    assert set(zlib.decompress(answer).decode().split()) <= {
        "HOME",
        "PATH",
        "LD_LIBRARY_PATH",
        "LC_CTYPE",
    }
