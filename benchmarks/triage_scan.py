"""What looking for the signatures costs, against bare hyperscan, ripgrep and plain `re`.

    python benchmarks/triage_scan.py MIB         measure with a log of that size
    python benchmarks/triage_scan.py FILE MIB    only write it

The log is that of a training job with sixteen tasks: one line in ten a step, the others what the
libraries print, half of them with names in hexadecimal; one in ten thousand an example of the
table. All ways read it once in this run, warm; times are CPU seconds of the process.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from raydiag.catalog.signatures import table
from raydiag.joblog.line_selection import selector
from raydiag.joblog.log_line import JobLogLine, Prefix, Selector
from raydiag.joblog.passes import ANCHORS
from raydiag.triage.signatures import Classifier, make_selector

_CHUNK = 1 << 20
_PLAIN_BYTES = 2 << 20  # plain `re` is too slow for all of it
_DULL = (
    "mi2033:%d:%d [%d] NCCL INFO Channel %02d/0 : 1[1] -> 0[0] via P2P/IPC comm 0x%x nRanks 16",
    "I0212 19:58:%02d.%06d    %d cuda_executor.cc:%d] Compiled kernel fusion_%x in %d ms",
    "mi2034:%d:%d [%d] NCCL INFO NET/IB : Using [%d]bnxt_re0:1/RoCE ; OOB eth%d:10.0.0.%d<0>",
    "INFO:absl:[process=%d][thread=array_type_handler-%d] wrote %d arrays, %x of %x, %d bytes",
    "2026-02-12 19:58:%02d,%03d [INFO] data.py:%d epoch %d shard %08x-%d.array_record opened",
    "Per train step: Total TFLOPs: %d.%d split as %d.%d%% learnable weight flops and %d.%d%%",
    "W0212 19:58:%02d.%06d  %d gpu_timer.cc:%d] delay kernel timed %d us, stream %x",
)
_STEP = (
    "completed step: %d, seconds: %d.%03d, TFLOP/s/device: %d.%03d, Tokens/s/device: 2512.133, "
    "total_weights: 1048576, loss: 2.%d"
)


def write(path: str, size_bytes: int) -> None:
    """A job's log: `srun -l` prefixes, no two lines alike."""
    chance = random.Random(7)
    examples = [text for row in table().rows for text in row.examples]
    block = []
    for number in range(100_000):
        draw = chance.random()
        numbers = [chance.randrange(1 << 16) for _ in range(6)]
        text = _DULL[number % len(_DULL)]
        if draw < 0.0001:
            text = chance.choice(examples)
        elif draw < 0.1:
            text = _STEP % (number, *(one % 900 for one in numbers[:5]))
        else:
            text = text % tuple(numbers[: text.count("%") - 2 * text.count("%%")])
        block.append(f"{number % 16:2}: {text}\n")
    data = "".join(block).encode()
    with open(path, "wb") as stream:
        for start in range(0, size_bytes, len(data)):
            stream.write(data[: size_bytes - start])


def chunks(path: str, limit: int | None = None) -> Iterator[bytes]:
    """Pieces of about a MiB that end where a line does."""
    rest, left = b"", limit
    with open(path, "rb", buffering=0) as stream:
        while data := stream.read(_CHUNK if left is None else min(_CHUNK, left)):
            left = None if left is None else left - len(data)
            end = data.rfind(b"\n") + 1
            yield rest + data[:end]
            rest = data[end:]
    if rest:
        yield rest


def bare_hyperscan(path: str) -> int:
    """The patterns themselves in one database, counted and nothing else."""
    hyperscan = importlib.import_module("hyperscan")
    patterns = [pattern.encode() for pattern in comparable()]
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=patterns,
        ids=list(range(len(patterns))),
        elements=len(patterns),
        flags=[hyperscan.HS_FLAG_MULTILINE] * len(patterns),
    )
    found = [0]

    def seen(*_: object) -> None:
        found[0] += 1

    for chunk in chunks(path):
        database.scan(chunk, match_event_handler=seen)
    return found[0]


def comparable() -> list[str]:
    """The table's patterns as other engines take them: no names, no look-around, no `.*` end."""
    patterns = []
    for row in table().rows:
        text = re.sub(r"\(\?P<\w+>", "(?:", row.pattern.pattern)
        text = _without_lookaround(text).replace(".{0,400}", ".*")
        patterns.append(text.removesuffix(".*"))
    return patterns


def _without_lookaround(pattern: str) -> str:
    while found := re.search(r"\(\?<?[=!]", pattern):
        depth, end = 0, found.start()
        for end in range(found.start(), len(pattern)):
            if pattern[end - 1] != "\\":
                depth += {"(": 1, ")": -1}.get(pattern[end], 0)
            if not depth:
                break
        pattern = pattern[: found.start()] + pattern[end + 1 :]
    return pattern


def ripgrep(path: str) -> int:
    """`rg -c` with the same patterns; its CPU time is added to this process's by `spent`."""
    with tempfile.NamedTemporaryFile("w", suffix=".patterns") as file:
        file.write("\n".join(comparable()))
        file.flush()
        argv = ["rg", "--no-config", "-j1", "-a", "-c", "--no-unicode", "-f", file.name, path]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr[-500:])
    return int(done.stdout or 0)


def selected(select: Selector, path: str, limit: int | None = None) -> int:
    """What raydiag does: select lines, decode them, let `re` decide."""
    classify = Classifier()
    found = 0
    for chunk in chunks(path, limit):
        end = 0
        for offset in select(chunk):
            if offset < end:
                continue
            start = chunk.rfind(b"\n", 0, offset) + 1
            end = chunk.find(b"\n", offset)
            end = len(chunk) if end < 0 else end
            found += bool(classify(_line(chunk[start:end])))
    return found


def plain(path: str, limit: int) -> int:
    """The same without any selection: every row's pattern in one alternation, line by line."""
    alternation = re.compile("|".join(f"(?:{pattern})" for pattern in comparable()))
    classify = Classifier()
    found = 0
    for chunk in chunks(path, limit):
        for raw in chunk.split(b"\n"):
            line = _line(raw)
            found += bool(alternation.search(line.text) and classify(line))
    return found


def _line(raw: bytes) -> JobLogLine:
    text = raw.decode("utf-8", "replace")[4:]
    return JobLogLine("log", 1, text, text, Prefix(), None, None, True)


def spent(work: Callable[[], int]) -> tuple[float, int]:
    """CPU seconds of this process and its children, and what `work` returns."""
    before = _cpu_s()
    found = work()
    return _cpu_s() - before, found


def _cpu_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(size_bytes: int) -> dict[str, float | None]:
    """GB per CPU second of each way, with setting up; None where its program is missing."""
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "job.log")
        write(path, size_bytes)
        for _ in chunks(path):  # into the page cache
            pass
        literals = {text.encode() for row in table().rows for text in row.literals}
        limit = min(size_bytes, _PLAIN_BYTES)
        ways: dict[str, tuple[int, Callable[[], int] | None]] = {
            "bare hyperscan": (size_bytes, lambda: bare_hyperscan(path)),
            "ripgrep": (size_bytes, lambda: ripgrep(path)),
            "raydiag": (size_bytes, lambda: selected(make_selector([]), path)),
            "raydiag with the reader's anchors": (
                size_bytes,
                lambda: selected(make_selector(ANCHORS), path),
            ),
            "raydiag without hyperscan": (
                min(size_bytes, 128 * limit),
                lambda: selected(selector(literals, fast=False), path, 128 * limit),
            ),
            "plain re": (limit, lambda: plain(path, limit)),
        }
        if importlib.util.find_spec("hyperscan") is None:
            ways["bare hyperscan"] = (0, None)
        if shutil.which("rg") is None:
            ways["ripgrep"] = (0, None)
        speeds: dict[str, float | None] = {}
        for name, (amount, work) in ways.items():
            if work is None:
                speeds[name] = None
                continue
            cpu_s, found = spent(work)
            speeds[name] = amount / cpu_s / 1e9
            speeds[f"lines found by {name}"] = found
    return speeds


if __name__ == "__main__":
    *where, mebibytes = sys.argv[1:]
    if where:
        write(where[0], int(mebibytes) << 20)
    else:
        print(json.dumps(measure(int(mebibytes) << 20), indent=1))
