"""Files and JSON of others: no wait, and limits of length and depth."""

from __future__ import annotations

import ast
import json
import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydiag import cli, untrusted
from raydiag.cluster import jobs_api
from raydiag.errors import AuthenticationFailed, ReadError
from raydiag.hotfix import log_tail, own_exporter
from raydiag.hotfix.ledger import Ledger
from raydiag.joblog import find
from raydiag.joblog.lines import open_log
from raydiag.joblog.state import PassState
from raydiag.tsdb import directory, stack_logs, tfevents
from raydiag.untrusted import inflated, parsed, regular

DEEP = "[" * 200_000


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A wait for ever ends as a failure."""
    signal.alarm(120)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("text", [DEEP, DEEP + "]" * 200_000, "[" * 100 + "]" * 100, '{"a":' * 100])
def test_what_is_nested_deeply_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parsed(text)


@pytest.mark.parametrize("value", [1, None, "[" * 1000, [], {}, {"a": [{"b": [1, 2]}]}])
def test_what_is_not_is_read(value: object) -> None:
    assert parsed(json.dumps(value)) == value


def test_what_is_long_is_refused_before_it_is_inflated() -> None:
    bomb = zlib.compress(b"[" + b"1," * 30_000_000 + b"1]")
    assert len(bomb) < 1 << 20
    with pytest.raises(ValueError, match="over the size limit"):
        inflated(bomb, 1 << 20)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        parsed("1" * 11, 10)


@pytest.mark.parametrize("packed", [b"", b"no zlib", zlib.compress(DEEP.encode())])
def test_what_cannot_be_inflated_is_a_value_error(packed: bytes) -> None:
    with pytest.raises(ValueError):
        inflated(packed)


def odd(path: Path, kind: str) -> Path:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    return path


KINDS = ["fifo", "directory", "device"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_but_a_regular_one_is_opened(tmp_path: Path, kind: str) -> None:
    path = odd(tmp_path / "file", kind)
    with pytest.raises(OSError, match="not a regular file"), open(path, opener=regular):
        pass
    with pytest.raises(ReadError, match="not a regular file"):
        open_log(str(path))
    with pytest.raises(OSError, match="not a regular file"):
        tfevents._content(str(path))
    with pytest.raises(OSError, match="not a regular file"):
        list(stack_logs._lines(path, "n1"))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_waits_for_a_file_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = odd(tmp_path / "file", kind)
    assert log_tail.tail(str(path)) == ""
    with pytest.raises(own_exporter._NotFound, match="names no process"):
        own_exporter._of_pid_file(str(path))
    assert find._path_in(path) is None
    odd(tmp_path / "r1.stop", kind)
    assert Ledger(str(tmp_path)).stop_asked("r1") == ""
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with pytest.raises(AuthenticationFailed, match="RAY_AUTH_TOKEN_PATH"):
        jobs_api.token()


# Opened without a look at what they are, and why they may be.
_TRUSTED_OPENS = {
    "cli/options.py": "where the user wants the report",
    "cluster/local.py": "in the directory of the temporary Ray, ours alone",
    "tsdb/private_directory.py": "in a directory of ours alone",
    "tsdb/server.py": "the same",
    "tsdb/view.py": "tombstones that were found intact a moment ago",
    "cluster/bundle.py": "of the package itself",
    "cli/demo.py": "of the examples that the package carries",
    "cli/schema.py": "of the package itself",
    "recovery/policy.py": "of the package itself",
    "joblog/driver_logs.py": "/proc/<pid>/comm",
}


def test_every_file_is_opened_so() -> None:
    """open() has an opener, a descriptor, or a place below /proc; else the reason is above."""
    package, careless = Path(untrusted.__file__).parent, set()
    for path in package.rglob("*.py"):
        place = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and _is_careless(node):
                careless.add(place)
    assert careless == set(_TRUSTED_OPENS)


def _is_careless(call: ast.Call) -> bool:
    text = ast.unparse(call)
    if isinstance(call.func, ast.Attribute):
        reads_path = call.func.attr in ("read_text", "read_bytes")
        return (
            reads_path
            and not any(
                word in text
                for word in ("host.", "Host()", "self.read", "self.host", "resources.", "super()")
            )
            and not text.startswith(("files(", "_TABLE", "self.host"))
        )
    if not isinstance(call.func, ast.Name) or call.func.id != "open":
        return False
    of = ast.unparse(call.args[0]) if call.args else ""
    is_descriptor = of in ("fd", "fds[0]") or of.startswith(("os.open(", "regular("))
    return not (is_descriptor or "opener=" in text or of.strip("f'").startswith("/proc/"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["meta.json", "index", "chunks/000001"])
def test_a_block_costs_itself_only(tmp_path: Path, kind: str, name: str) -> None:
    block = tmp_path / ("0" * 26)
    (block / "chunks").mkdir(parents=True)
    (block / "chunks" / "000001").write_bytes(b"")
    meta = {"version": 1, "minTime": 1_700_000_000_000, "maxTime": 1_700_000_060_000}
    (block / "meta.json").write_text(json.dumps(meta))
    (block / name).unlink(missing_ok=True)
    odd(block / name, kind)
    (unread,) = directory.read(tmp_path).unread
    assert unread.reason


def test_a_deep_meta_json_costs_its_block_only(tmp_path: Path) -> None:
    block = tmp_path / ("0" * 26)
    block.mkdir()
    (block / "meta.json").write_text(DEEP)
    (unread,) = directory.read(tmp_path).unread
    assert "no JSON" in unread.reason


def test_a_deep_state_is_an_empty_one() -> None:
    assert PassState.loads(DEEP, "x").marks == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", ["--config", "--state"])
def test_an_option_that_names_no_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, option: str
) -> None:
    log = tmp_path / "1-a.log"
    log.write_text("x\n")
    path = odd(tmp_path / "file", kind)
    assert cli.main(["triage", str(log), option, str(path)]) in (2, 4)
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "not a regular file" in line
