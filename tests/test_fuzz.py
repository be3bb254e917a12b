"""Whatever bytes come: an answer or an error of ours, and never another exception or a hang.

`make fuzz` looks for longer; RAYDIAG_FUZZ is how many texts each target gets.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from raydiag import event_file, exposition, probes, records
from raydiag.cli import main
from raydiag.cluster import collect, frames, submission
from raydiag.errors import ParseError, RaydiagError
from raydiag.hotfix.journal import Journal
from raydiag.hotfix.messages import Rollback
from raydiag.hotfix.node_rollback import rollback, statuses
from raydiag.joblog.state import PassState
from raydiag.model import Node
from raydiag.tsdb import directory, response, tfrecords

pytestmark = pytest.mark.slow

DEEP = b"[" * 200_000
# What real inputs are made of, so that what is made of it gets past the first check.
CORPUS = [
    b"0: completed step: 5, seconds: 10.7, TFLOP/s/device: 300.1, loss: 2.31\n",
    b"[2026-02-12T16:59:01Z] [Prometheus] Watchdog: exited with code 137, restart #3\n",
    b"Training:  5%|#   | 5/100 [00:10<03:10,  2.00s/it, loss=2.3]\n",
    b"6,1234,987654321,-;amdgpu 0000:c5:00.0: amdgpu: ring gfx_0.0.0 timeout\n SUBSYSTEM=pci\n",
    b"<3>Feb 12 16:59:01 n1 kernel: [  12.345] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen\n",
    b"[Thu Feb 12 16:59:01 2026] Out of memory: Killed process 42 (python3) total-vm:1024kB\n",
    b"# HELP a b\n# TYPE a gauge\na{host=\"n1\",x=\"\\\\\"} 1e9 1770926290000\n# STATE 5\n",
    b'{"version":1,"minTime":1700000000000,"maxTime":1700000060000,"stats":{"numSamples":1}}',
    b'{"at":1,"who":"a","event":"intent","name":"gpu_metrics_plugin.sh","path":"/etc/passwd",'
    b'"old_sha256":"00","new_sha256":"11"}\n',
    b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"2"]]}]}}',
    b"probe: {deadline: 60}\n<<: &a [*a]\n",
    b"@raydiag nonce 1 1/1 0123456789abcdef eJwDAAAAAAE=\n",
    b'{"node_id":"a","host":"n1","address":"10.0.0.4","alive":true,"clock_offset_s":[1]}',
    struct.pack("<QI", 10, 0) + b"\x09\x00\x00\x00\x00\x00\x00\xf0\x3f\x10" + struct.pack("<I", 0),
    b"\x1f\x8b\x08\x00", b"\xff\xfe", b"\x00" * 64, b"nan inf -1e999 1_0 \xd9\xa1", DEEP[:5000],
]  # fmt: skip
PIECES = st.sampled_from(CORPUS)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Pieces of the corpus, some of them cut, repeated, or with bytes changed."""
    parts = []
    for piece in draw(st.lists(PIECES | st.binary(max_size=64), min_size=1, max_size=6)):
        part = bytearray(piece[: draw(st.integers(0, len(piece)))] or piece)
        for _ in range(draw(st.integers(0, 3))):
            part[draw(st.integers(0, len(part) - 1)) if part else 0 : 1] = draw(
                st.binary(max_size=4)
            )
        parts.append(bytes(part) * draw(st.sampled_from([1, 1, 1, 2, 50])))
    return b"".join(parts)


COUNT = int(os.environ.get("RAYDIAG_FUZZ", "60"))
fuzzed = settings(
    max_examples=COUNT,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=COUNT <= 60,
)


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    signal.alarm(60 + COUNT * 5)
    yield
    signal.alarm(0)


def of_command(*words: str) -> Callable[[bytes, Path], None]:
    def run(data: bytes, place: Path) -> None:
        path = place / "7-fuzz.log"
        path.write_bytes(data)
        arguments = [word.replace("FILE", str(path)) for word in words]
        with contextlib.ExitStack() as stack:
            null = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(null))
            stack.enter_context(contextlib.redirect_stderr(null))
            try:
                code = main(arguments)
            except SystemExit as error:
                code = int(error.code or 0)
        assert code in (0, 1, 2, 3, 4)

    return run


def exposition_page(data: bytes, place: Path) -> None:
    exposition.parse(data)


def events(data: bytes, place: Path) -> None:
    for content in tfrecords.scan(data).contents:
        list(event_file.scalars(content))
    list(event_file.scalars(data))


def records_of_nodes(data: bytes, place: Path) -> None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = {"alive": data.decode("latin-1"), "host": len(data)}
    records.decode(Node, value)
    for item in value if isinstance(value, list) else [value]:
        records.decode(probes.load("rdma").record, item)


def frame(data: bytes, place: Path) -> None:
    decoder = frames.Decoder("nonce")
    decoder.feed(data.decode("latin-1"))
    for line in frames.encode("nonce", 5, zlib.compress(data)):
        decoder.feed(line + "\n")
    for message in decoder.messages.values():
        with contextlib.suppress(ValueError):
            submission.unpacked(message)


def node_answer(data: bytes, place: Path) -> None:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        message = {"status": "answered", "answer": data.decode("latin-1")}
    if isinstance(message, dict):
        node = {"node_id": "a", "host": "n1", "address": "10.0.0.4", "alive": True}
        collect.reports([node], {1: message}, ["versions"], {})


def block(data: bytes, place: Path) -> None:
    folder = place / ("0" * 26)
    folder.mkdir(exist_ok=True)
    for name in ("meta.json", "index"):
        (folder / name).write_bytes(data)
    directory.read(place)


def prometheus(data: bytes, place: Path) -> None:
    response.data(200, "application/json", data)


def journal(data: bytes, place: Path) -> None:
    place.chmod(0o700)
    (place / "r1.jsonl").write_bytes(data)
    own = Journal(str(place))
    statuses(own)
    (place / "files").mkdir(exist_ok=True)
    rollback(own, Rollback(rollout="r1", who="me"), str(place / "files"), 0)
    assert list((place / "files").iterdir()) == []


def state(data: bytes, place: Path) -> None:
    assert PassState.loads(data.decode("latin-1"), "x").marks == {}


TARGETS: dict[str, Callable[[bytes, Path], None]] = {
    "triage": of_command("triage", "FILE", "--now", "log-end"),
    "kmsg": of_command("kmsg", "FILE"),
    "config": of_command("kmsg", os.devnull, "--config", "FILE"),
    "state file": of_command("triage", "FILE", "--state", "FILE"),
    "exposition": exposition_page,
    "event file": events,
    "records": records_of_nodes,
    "frames": frame,
    "answer of a node": node_answer,
    "block": block,
    "prometheus": prometheus,
    "journal": journal,
    "state": state,
}


@pytest.mark.parametrize("target", TARGETS)
def test_any_bytes(
    target: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYDIAG_TRACEBACK", "1")  # an internal error fails with its own traceback
    place = tmp_path_factory.mktemp("fuzz")

    @fuzzed
    @given(texts())
    @example(DEEP)
    @example(b"")
    def run(data: bytes) -> None:
        with contextlib.suppress(RaydiagError, ParseError):
            TARGETS[target](data, place)

    run()
