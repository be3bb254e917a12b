"""Work that outlasts a command holds nobody up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

_WORK = """
import json, os, sys
told = json.load(sys.stdin)
os.open(told["pipe"], os.O_RDONLY)  # waits for a writer
links = []
for fd in os.listdir("/proc/self/fd"):
    try:
        links.append(os.readlink("/proc/self/fd/" + fd))
    except OSError:
        pass  # that of the listing
shown = open("/proc/self/cmdline").read() + open("/proc/self/environ").read()
facts = [os.getsid(0) == os.getpid(), os.getcwd(), links.count(os.devnull), told["held"] in links]
facts += [told["secret"] in shown, "raydiag" in sys.modules]
with open(told["answer"], "w") as answer:
    answer.write(repr(facts))
"""
_PROGRAM = """
import os, sys, threading, time
from raydiag.cluster.afterwards import do_afterwards
pipe, answer, held = sys.argv[1:]
os.set_inheritable(os.open(held, os.O_RDONLY), True)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
told = {"pipe": pipe, "answer": answer, "held": held, "secret": os.environ["RAY_AUTH_TOKEN"]}
do_afterwards(os.environ["WORK"], told)
print("done")
"""


def test_the_command_ends_and_its_output_with_it(tmp_path: Path) -> None:
    """Also one with threads: what it leaves behind is no fork of it."""
    pipe, answer, held = tmp_path / "pipe", tmp_path / "answer", tmp_path / "held"
    os.mkfifo(pipe)
    held.touch()
    arguments = [sys.executable, "-c", _PROGRAM, str(pipe), str(answer), str(held)]
    place = {**os.environ, "RAY_AUTH_TOKEN": "planted-secret", "WORK": _WORK}
    # Waits for the end of stdout as well as for the process; the work is not done yet.
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=True, timeout=60, env=place
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert not answer.exists()
    with pipe.open("w"):
        while not answer.exists() or not answer.read_text():
            time.sleep(0.01)
    assert answer.read_text() == repr([True, "/", 2, False, False, False])
