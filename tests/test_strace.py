"""What a whole run on this node asks of the kernel, as strace sees it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zlib

import pytest

from raydiag import memory_import, probes
from raydiag.cluster import bundle

# "?" lets strace go on where the machine has no such call.
_CALLS = [
    "?open",
    "openat",
    "openat2",
    "?creat",
    "kill",
    "tkill",
    "tgkill",
    "rt_sigqueueinfo",
    "ptrace",
    "pidfd_send_signal",
    "?unlink",
    "unlinkat",
    "?rename",
    "renameat2",
    "?mknod",
    "mknodat",
    "?mkdir",
    "mkdirat",
    "process_vm_writev",
    "mount",
    "execve",
    "?fork",
    "?vfork",
    "clone",
    "clone3",
]
_WRITING = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_TMPFILE")
_LINE = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+|\?)", re.DOTALL)

_RUN_S = 120  # for the traced run, which strace makes some ten times as slow

Call = tuple[int, str, str, int]  # pid, name, arguments, result


def calls(log: str) -> list[Call]:
    """Calls that returned; one that strace cut in two is put together."""
    found, begun = [], {}
    for line in log.splitlines():
        pid, _, text = line.partition(" ")
        if text.endswith("<unfinished ...>"):
            begun[pid] = text.removesuffix("<unfinished ...>").strip()
            continue
        if "resumed>" in text:
            text = begun.pop(pid) + text.partition("resumed>")[2]
        if match := _LINE.match(f"{pid} {text.strip()}"):
            number, name, arguments, result = match.groups()
            found.append((int(number), name, arguments, int(result) if result != "?" else 0))
    return found


def patient(modules: dict[str, str]) -> dict[str, str]:
    """The modules with the whole run's time for each source.

    A traced process is in a tracing stop most of the time, which the runner takes for a hang.
    """
    deadline = "task.due = now + probe.timeout_s"
    runner = modules["raydiag.runner"]
    assert runner.count(deadline) == 1
    return {**modules, "raydiag.runner": runner.replace(deadline, "task.due = self.deadline")}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Call], dict[str, object]]:
    """Calls of one run of every probe that runs unasked, and its answer.

    Without `stacks`: it would start py-spy on whatever Ray workers this machine has at the moment.
    """
    if not shutil.which("strace"):
        pytest.skip("no strace on this machine: what a run asks of the kernel was not looked at")
    log = tmp_path_factory.mktemp("strace") / "log"
    names = probes.defaults()
    modules = patient(bundle.modules(names))
    packed = memory_import.packed(
        modules, {"probes": names, "options": {"kernel_log": {"words": ["a"]}}}
    )
    strace = ["strace", "-f", "-qq", "-s", "300", "-o", str(log), "-e", f"trace={','.join(_CALLS)}"]
    # The shell stands in for the actor: strace would be the parent that the runner checks for.
    times = (f"{time.monotonic() + _RUN_S}", f"{_RUN_S}")
    runner = [sys.executable, "-I", "-S", "-B", "-c", bundle.entrypoint("node_runner"), *times]
    program = 'exec "$@" $$'
    argv = ["sh", "-c", program, "sh", *strace, *runner]
    done = subprocess.run(argv, input=packed, capture_output=True, timeout=2 * _RUN_S, check=False)
    if b"PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.decode().strip()}")
    assert done.returncode == 0, done.stderr.decode()
    return calls(log.read_text()), json.loads(zlib.decompress(done.stdout.partition(b"\n")[2]))


def test_the_run_was_a_whole_one(run: tuple[list[Call], dict[str, object]]) -> None:
    traced, answer = run
    assert set(answer["probes"]) == set(probes.defaults())  # type: ignore[call-overload]
    opened = [arguments for _, name, arguments, _ in traced if name.startswith("open")]
    assert any('"/proc/meminfo"' in one for one in opened)
    assert any('"/dev/kmsg"' in one for one in opened)
    assert len({pid for pid, *_ in traced}) >= 3  # the runner and a reader of each kind


def test_nothing_is_opened_to_be_written(run: tuple[list[Call], dict[str, object]]) -> None:
    opened = [call for call in run[0] if call[1].startswith("open") and call[3] >= 0]
    assert len(opened) > 50
    assert [call for call in opened if any(flag in call[2] for flag in _WRITING)] == []


def test_no_file_is_made_or_removed_and_no_program_started(
    run: tuple[list[Call], dict[str, object]],
) -> None:
    harmless = {"open", "openat", "kill", "fork", "vfork", "clone", "clone3", "execve"}
    assert [call for call in run[0] if call[1] not in harmless] == []
    assert len([call for call in run[0] if call[1] == "execve"]) == 1  # the runner's own start


def test_only_readers_are_signalled(run: tuple[list[Call], dict[str, object]]) -> None:
    traced, _ = run
    (runner, *_) = [pid for pid, name, *_ in traced if name == "execve"]
    forks = {"fork", "vfork", "clone", "clone3"}
    readers = {result for pid, name, _, result in traced if name in forks and pid == runner}
    kills = [(pid, int(arguments.split(",")[0])) for pid, n, arguments, _ in traced if n == "kill"]
    assert kills
    assert {pid for pid, _ in kills} == {runner}
    assert {target for _, target in kills} <= readers
    assert os.getpid() not in readers
