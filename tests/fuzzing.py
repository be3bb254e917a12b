"""What reads bytes that others wrote, each as a function of bytes, and what bytes to begin with.

    python -m tests.fuzzing 1000000              each target so often, guided by coverage (atheris)
    python -m tests.fuzzing 1000000 kmsg block   these targets

A short run without atheris is tests/test_fuzz.py. A target passes where it returns or raises an
error of ours; any other exception, 20 s for one input, or 2 GiB of memory is a failure, and the
input is kept below .cache/fuzz.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__" and sys.argv[1:2] == ["--one"]:
    import atheris

    atheris.instrument_imports(include=["raydiag"]).__enter__()

from raydiag import cli, event_file, exposition, kmsg, probes, records
from raydiag.cli import config, main
from raydiag.cluster import collect, frames, submission
from raydiag.errors import ParseError, RaydiagError
from raydiag.hotfix.journal import Journal
from raydiag.hotfix.messages import Rollback
from raydiag.hotfix.node_rollback import rollback, statuses
from raydiag.joblog import read
from raydiag.joblog.facts import Resolved
from raydiag.joblog.state import PassState
from raydiag.model import Node
from raydiag.triage import judge
from raydiag.triage.signatures import Classifier, make_selector
from raydiag.triage.verdict import Moment
from raydiag.tsdb import directory, response, tfrecords

Target = Callable[[bytes, Path], None]  # takes the input and a directory to write in

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


def of_command(*words: str) -> Target:
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


def job_log(data: bytes, place: Path) -> None:
    path = place / "7-fuzz.log"
    path.write_bytes(data)
    facts = read.read(Resolved("7", "7", None, None, (str(path),)), SELECTOR, CLASSIFIER())
    judge(facts, Moment(facts.last_time, log_end=True))


def kernel_log(data: bytes, place: Path) -> None:
    path = place / "kernel.log"
    path.write_bytes(data)
    kmsg.examine([str(path)], 1.8e9)


def settings(data: bytes, place: Path) -> None:
    path = place / "settings.yaml"
    path.write_bytes(data)
    parser, commands = PARSER()
    config.apply(str(path), parser, commands, {"command": "kmsg"})


SELECTOR, CLASSIFIER = functools.cache(make_selector), functools.cache(Classifier)
PARSER = functools.cache(cli._parser)
# Whole commands are run only in the short run: each takes some milliseconds.
COMMANDS: dict[str, Target] = {
    "triage": of_command("triage", "FILE", "--now", "log-end"),
    "kmsg": of_command("kmsg", "FILE"),
    "config": of_command("kmsg", os.devnull, "--config", "FILE"),
    "state-file": of_command("triage", "FILE", "--state", "FILE"),
}
TARGETS: dict[str, Target] = {
    "job-log": job_log,
    "kernel-log": kernel_log,
    "settings": settings,
    "exposition": exposition_page,
    "event-file": events,
    "records": records_of_nodes,
    "frames": frame,
    "node-answer": node_answer,
    "block": block,
    "prometheus": prometheus,
    "journal": journal,
    "state": state,
}


def check(target: str, data: bytes, place: Path) -> None:
    """Raises whatever the target raises that is no error of ours. `place` is a directory."""
    with contextlib.suppress(RaydiagError, ParseError):
        (COMMANDS | TARGETS)[target](data, place)


# ---- the long run, guided by coverage

KEPT = Path(".cache/fuzz")
LIMITS = ("-max_len=4096", "-timeout=20", "-rss_limit_mb=2048")


def run_one(target: str, options: Sequence[str]) -> None:
    """Fuzz in this process until the options say that it is enough; ends the process."""
    os.environ["RAYDIAG_TRACEBACK"] = "1"
    place = Path(tempfile.mkdtemp(prefix="fuzz-", dir=os.environ["TMPDIR"]))
    atheris.Setup(["fuzz", *options], lambda data: check(target, data, place))
    atheris.Fuzz()


def begin(target: str, cases: str) -> subprocess.CompletedProcess[str]:
    """One target in a process of its own."""
    seeds, failures = KEPT / target / "seeds", KEPT / target / "failures"
    for folder in (seeds, failures):
        folder.mkdir(parents=True, exist_ok=True)
    for number, piece in enumerate(CORPUS):
        (seeds / str(number)).write_bytes(piece)
    argv = [sys.executable, "-m", "tests.fuzzing", "--one", target, f"-runs={cases}"]
    argv += [*LIMITS, f"-artifact_prefix={failures}/", "-print_final_stats=1"]
    with tempfile.TemporaryDirectory(prefix="raydiag-fuzz-") as place:
        corpus = Path(place) / "corpus"  # what it adds is not kept: a run is like the one before
        corpus.mkdir()
        return subprocess.run(
            [*argv, str(corpus), str(seeds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "TMPDIR": place},
        )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def row(target: str, done: subprocess.CompletedProcess[str]) -> str:
    """Cases, seconds and memory early and at the end, from what libFuzzer prints."""
    (KEPT / target / "log").write_text(done.stdout)
    ended = re.search(r"Done (\d+) runs in (\d+) second", done.stdout)
    memory = re.findall(r"^#\d+\s.* rss: (\d+)Mb", done.stdout, re.MULTILINE)
    early, last = (memory[len(memory) // 3], memory[-1]) if memory else ("?", "?")
    cases, seconds = ended.groups() if ended else ("?", "?")
    state = "passed" if done.returncode == 0 else f"FAILED, see {KEPT / target}"
    return f"{target:12} {cases:>9} {seconds:>6} {early:>6} {last:>6}  {state}"


def run_all(cases: str, targets: Sequence[str]) -> int:
    """Each target with so many cases, as many at once as there are cores; the exit code."""
    say(f"{'target':12} {'cases':>9} {'s':>6} {'MiB':>6} {'at end':>6}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = pool.map(lambda target: (target, begin(target, cases)), targets)
        codes = []
        for target, done in runs:
            say(row(target, done))
            codes.append(done.returncode)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_one(sys.argv[2], sys.argv[3:])
    elif len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(TARGETS):
        sys.exit(f"usage: python -m tests.fuzzing CASES [TARGET ...], of {', '.join(TARGETS)}")
    else:
        sys.exit(run_all(sys.argv[1], sys.argv[2:] or list(TARGETS)))
