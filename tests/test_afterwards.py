"""Work that outlasts a command holds nobody up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

_PROGRAM = """
import os, sys
from raydiag.cluster.afterwards import do_afterwards
def work():
    os.open(sys.argv[1], os.O_RDONLY)  # waits for a writer
    facts = [os.getsid(0) == os.getpid(), os.getcwd()]
    facts.append(sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)))
    with open(sys.argv[2], "w") as answer:
        answer.write(repr(facts))
do_afterwards(work)
print("done")
"""


def test_the_command_ends_and_its_output_with_it(tmp_path: Path) -> None:
    pipe, answer = tmp_path / "pipe", tmp_path / "answer"
    os.mkfifo(pipe)
    arguments = [sys.executable, "-c", _PROGRAM, str(pipe), str(answer)]
    # Waits for the end of stdout as well as for the process; the work is not done yet.
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert not answer.exists()
    with pipe.open("w"):
        while not answer.exists() or not answer.read_text():
            time.sleep(0.01)
    assert answer.read_text() == repr([True, "/", ["/dev/null"] * 3])
