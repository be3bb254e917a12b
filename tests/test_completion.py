"""`raydiag completion`: what real shells make of it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raydiag import catalog
from raydiag.cli import main

Complete = Callable[[str], set[str]]
_LIMIT_S = 60.0  # of a shell that starts on a busy machine

# What is typed, and what must be among the candidates.
CASES = [
    ("raydiag dia", {"diagnose"}),
    ("raydiag tsdb ", {"info", "query", "verify", "view"}),
    ("raydiag diagnose --format ", {"text", "json", "markdown", "html"}),
    ("raydiag diagnose 47", {"4711"}),
    ("raydiag triage ", {"4711", "outputs"}),
    ("raydiag probe --node node01", {"node017"}),
    ("raydiag probe --node ", {"node017"}),
    ("raydiag probe --only ra", {"ras", "ray_logs"}),
    ("raydiag explain rccl-h", {"rccl-hang"}),
    ("raydiag schema kms", {"kmsg"}),
    ("raydiag demo strag", {"straggler"}),
    ("raydiag kmsg dme", {"dmesg.txt"}),
]
each_case = pytest.mark.parametrize(("typed", "expected"), CASES, ids=[case[0] for case in CASES])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a job below outputs/."""
    hosts = tmp_path / "outputs" / "4711-llama" / "ray_logs"
    for name in ("node017", "node018$(touch hit)", "node019`touch hit`", "node01;touch hit"):
        (hosts / name).mkdir(parents=True)
    (tmp_path / "outputs" / "4712$(touch hit)-llama").mkdir()
    (tmp_path / "dmesg.txt").touch()
    return tmp_path


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The completion of a shell, in a file."""
    directory = tmp_path_factory.mktemp("completion")

    def write(shell: str) -> Path:
        path = directory / shell
        if not path.exists():
            done = subprocess.run(
                [sys.executable, "-m", "raydiag", "completion", shell],
                capture_output=True,
                text=True,
                check=True,
            )
            path.write_text(done.stdout)
        return path

    return write


def program(shell: str) -> str:
    found = shutil.which(shell)
    if not found:
        pytest.skip(f"there is no {shell}: apt-get install {shell}")
    return found


_BASH = """
source "$1"
COMP_LINE=$2; COMP_WORDS=($COMP_LINE); [[ $COMP_LINE == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); COMP_POINT=${#COMP_LINE}
function=$(complete -p raydiag | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function raydiag "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@each_case
def test_bash(typed: str, expected: set[str], script: Callable[[str], Path], place: Path) -> None:
    command = [program("bash"), "--norc", "-c", _BASH, "bash", str(script("bash")), typed]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    assert expected <= set(done.stdout.split())
    assert done.stderr == ""
    assert not (place / "hit").exists()  # names of directories are words, not commands


@each_case
def test_fish(typed: str, expected: set[str], script: Callable[[str], Path], place: Path) -> None:
    text = f"source {script('fish')}; complete -C '{typed}'"
    done = subprocess.run(
        [program("fish"), "--no-config", "-c", text],
        cwd=place,
        env={**os.environ, "HOME": str(place)},
        capture_output=True,
        text=True,
        check=True,
    )
    candidates = {line.partition("\t")[0].rstrip("/") for line in done.stdout.splitlines()}
    assert expected <= candidates
    assert done.stderr == ""
    assert not (place / "hit").exists()


@pytest.mark.slow
@each_case
def test_zsh(
    typed: str, expected: set[str], script: Callable[[str], Path], place: Path, tmp_path: Path
) -> None:
    """Completion is part of zsh's line editor, so it is typed at a prompt, on a terminal."""
    functions = tmp_path / "zfunc"
    functions.mkdir()
    shutil.copy(script("zsh"), functions / "_raydiag")
    (tmp_path / ".zshrc").write_text(
        f"fpath=({functions} $fpath)\nautoload -U compinit\ncompinit -u -D\nPROMPT='ready> '\n"
    )
    zsh = program("zsh")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(place)
        os.environ.update(TERM="dumb", HOME=str(tmp_path), ZDOTDIR=str(tmp_path))
        os.execv(zsh, ["zsh", "-d", "-i"])
    try:
        _shown(terminal, {"ready> "})
        os.write(terminal, typed.encode() + b"\t\t")
        shown = _shown(terminal, expected)
    finally:
        os.close(terminal)
        os.waitpid(process, 0)
    assert all(word in shown for word in expected), shown
    assert not (place / "hit").exists()


def _shown(terminal: int, wanted: set[str]) -> str:
    """What appears on the terminal until all of it is there, or time is over."""
    shown, end = "", time.monotonic() + _LIMIT_S
    while time.monotonic() < end and not all(word in shown for word in wanted):
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                shown += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the shell is gone
                break
    return shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_read_its_script(shell: str, script: Callable[[str], Path]) -> None:
    done = subprocess.run([program(shell), "-n", script(shell)], capture_output=True, check=True)
    assert done.stderr == b""


def test_every_class_is_a_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    words = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    assert set(catalog.failures()) <= words


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
