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
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__" and sys.argv[1:2] == ["--one"]:
    import atheris

    atheris.instrument_imports(include=["raydiag"]).__enter__()

from raydiag import cli, event_file, exposition, kmsg, probes, records, untrusted
from raydiag.cli import config, main
from raydiag.cluster import collect, frames, submission
from raydiag.errors import ParseError, RaydiagError
from raydiag.explain import diagnosis
from raydiag.hotfix.journal import Journal
from raydiag.hotfix.messages import Rollback
from raydiag.hotfix.node_rollback import rollback, statuses
from raydiag.joblog import read
from raydiag.joblog import state as state_file
from raydiag.joblog.facts import Resolved
from raydiag.joblog.state import PassState
from raydiag.model import Node, Snapshot
from raydiag.render import document, text
from raydiag.render.probe import probe_report
from raydiag.triage import judge
from raydiag.triage.signatures import Classifier, make_selector
from raydiag.triage.verdict import Moment
from raydiag.tsdb import directory, response, tfrecords
from tests import odd_documents as odd

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
    *(bytes([128, number]) + bytes(range(number, number + 24)) for number in range(0, 120, 10)),
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


def is_odd(data: bytes) -> bool:
    """Whether a document is to be made that is nearly right; else the bytes are it."""
    return data[:1] >= b"\x80"


def json_of(data: bytes, document: Any) -> bytes:
    """The bytes of a document of that kind."""
    return odd.text_of(odd.altered(document, data[1:])) if is_odd(data) else data


def value_of(data: bytes, document: Any) -> Any:
    """The same as a value; a string where the bytes are no JSON."""
    try:
        return untrusted.parsed(json_of(data, document))
    except ValueError:
        return data.decode("latin-1")


def records_of_nodes(data: bytes, place: Path) -> None:
    kinds = EXAMPLES()
    kind, example = kinds[(data[1] if data[1:] else 0) % len(kinds)]
    records.decode(kind, value_of(data[:1] + data[2:], example))


def frame(data: bytes, place: Path) -> None:
    lines = [f"{line}\n" for line in frames.encode("nonce", 5, zlib.compress(data[:64], 1))]
    if is_odd(data):
        fields = odd.altered(lines[0].split(), data[1:])
        lines += [" ".join(map(str, fields)) if isinstance(fields, list) else str(fields), "\n"]
    decoder = frames.Decoder("nonce")
    decoder.feed(data.decode("latin-1") + "".join(lines))
    for message in decoder.messages.values():
        with contextlib.suppress(ValueError):
            submission.unpacked(message)


def node_answer(data: bytes, place: Path) -> None:
    name = PROBES[(data[1] if data[1:] else 0) % len(PROBES)]
    message = odd.message(data[2:], [name]) if is_odd(data) else value_of(data, odd.MESSAGE)
    (report,) = collect.reports([odd.NODE], {1: message}, [name], {})
    assert isinstance(report.duration_s, float)


def block(data: bytes, place: Path) -> None:
    folder = place / ("0" * 26)
    folder.mkdir(exist_ok=True)
    for name in ("meta.json", "index"):
        (folder / name).write_bytes(json_of(data, odd.META))
    directory.read(place)


def prometheus(data: bytes, place: Path) -> None:
    body = json_of(data, odd.ANSWERS[len(data) % len(odd.ANSWERS)])
    if response.matrix(body.replace(b": ", b":").replace(b", ", b",")) is None:
        response.series(response.data(200, "application/json", body)[0])


def journal(data: bytes, place: Path) -> None:
    place.chmod(0o700)
    files = place / "files"
    lines = data
    if is_odd(data):
        rows = odd.altered(odd.records_of_rollout(str(files)), data[1:])
        lines = b"\n".join(map(odd.text_of, rows if isinstance(rows, list) else [rows]))
    (place / "r1.jsonl").write_bytes(lines)
    own = Journal(str(place))
    statuses(own)
    files.mkdir(exist_ok=True)
    rollback(own, Rollback(rollout="r1", who="me"), str(files), 0)
    assert os.listdir(files) == []


def state(data: bytes, place: Path) -> None:
    document = value_of(data, odd.state())
    if is_odd(data) and isinstance(document, dict):
        document["made_by"] = state_file._made_by("x", document.get("marks"))
    text = json.dumps(document) if is_odd(data) else data.decode("latin-1")
    PassState.loads(text, "x").mark_for("7-fuzz.log", 100, 7)


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
    path.write_bytes(json_of(data, {"kmsg": {"verbose": True, "output": "x"}, "probe": {}}))
    parser, commands = PARSER()
    config.apply(str(path), parser, commands, {"command": "kmsg"})


def verdict(data: bytes, place: Path) -> None:
    """What nodes answered, odd values in the right fields, judged and shown."""
    message = odd.message(b"\x00" + data, list(PROBES))
    reports = collect.reports([odd.NODE], {1: message}, list(PROBES), {})
    snapshot = Snapshot(reports, 1.8e9)
    explained = diagnosis.explain(snapshot)
    "".join(document.lines(document.probe_document(snapshot, explained, {}, 1.8e9)))
    text.text(probe_report(snapshot, explained, {}, True), 100, False)


@functools.cache
def EXAMPLES() -> list[tuple[Any, Any]]:
    kinds = [Node, *(probes.load(name).record for name in PROBES)]
    return [(kind, odd.example_of(kind)) for kind in kinds]


PROBES = probes.names()
SELECTOR, CLASSIFIER = functools.cache(make_selector), functools.cache(Classifier)
PARSER = functools.cache(cli._parser)
# Whole commands are run only in the short run: each takes some milliseconds.
COMMANDS: dict[str, Target] = {
    "triage": of_command("triage", "FILE", "--now", "log-end"),
    "kmsg": of_command("kmsg", "FILE"),
    "config": of_command("kmsg", os.devnull, "--config", "FILE"),
    "verdict": verdict,
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
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # files are written for each case
LIMITS = ("-max_len=1024", "-timeout=20", "-rss_limit_mb=2048")


def run_one(target: str, options: Sequence[str]) -> None:
    """Fuzz in this process until the options say that it is enough; ends the process."""
    os.environ["RAYDIAG_TRACEBACK"] = "1"
    place = Path(tempfile.mkdtemp(prefix="fuzz-", dir=os.environ["TMPDIR"]))
    atheris.Setup(["fuzz", *options], lambda data: check(target, data, place))
    atheris.Fuzz()


@dataclass(frozen=True)
class Run:
    """One target in a process of its own, which has ended."""

    target: str
    code: int
    log: str
    cpu_s: float
    peak_mib: float


def begin(target: str, cases: str) -> Run:
    seeds, failures = KEPT / target / "seeds", KEPT / target / "failures"
    for folder in (seeds, failures):
        folder.mkdir(parents=True, exist_ok=True)
    for number, piece in enumerate(CORPUS):
        (seeds / str(number)).write_bytes(piece)
    argv = [sys.executable, "-m", "tests.fuzzing", "--one", target, f"-runs={cases}"]
    argv += [*LIMITS, f"-artifact_prefix={failures}/", "-print_final_stats=1"]
    log = KEPT / target / "log"
    with tempfile.TemporaryDirectory(prefix="raydiag-fuzz-", dir=IN_MEMORY) as place:
        corpus = Path(place) / "corpus"  # what it adds is not kept: a run is like the one before
        corpus.mkdir()
        environment = {**os.environ, "TMPDIR": place}
        with log.open("wb") as output:
            pid = subprocess.Popen(
                [*argv, str(corpus), str(seeds)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            ).pid
            _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    text = log.read_text(errors="replace")
    return Run(target, code, text, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def row(run: Run) -> str:
    """Cases, CPU time, memory after a third of the run and at its peak."""
    ended = re.search(r"Done (\d+) runs in \d+ second", run.log)
    memory = re.findall(r"^#\d+\s.* rss: (\d+)Mb", run.log, re.MULTILINE)
    early = memory[len(memory) // 3] if memory else "?"
    state = "passed" if run.code == 0 else f"FAILED, see {KEPT / run.target}"
    cases = ended[1] if ended else "?"
    return f"{run.target:12} {cases:>9} {run.cpu_s:>8.0f} {early:>6} {run.peak_mib:>6.0f}  {state}"


def run_all(cases: str, targets: Sequence[str]) -> int:
    """Each target with so many cases, as many at once as there are cores; the exit code."""
    say(f"{'target':12} {'cases':>9} {'CPU s':>8} {'MiB':>6} {'peak':>6}")
    codes = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for ended in as_completed([pool.submit(begin, target, cases) for target in targets]):
            say(row(ended.result()))
            codes.append(ended.result().code)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_one(sys.argv[2], sys.argv[3:])
    elif len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(TARGETS):
        sys.exit(f"usage: python -m tests.fuzzing CASES [TARGET ...], of {', '.join(TARGETS)}")
    else:
        sys.exit(run_all(sys.argv[1], sys.argv[2:] or list(TARGETS)))
