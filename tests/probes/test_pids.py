from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydiag.errors import Denied, NoData, ParseError
from raydiag.host import Host
from raydiag.probes.pids import Pids, pids


def node(root: Path, maximum: str = "4194304\n", load: str = "0.1 0.2 0.3 2/412 90211\n") -> Host:
    for name, text in {
        "proc/sys/kernel/pid_max": maximum,
        "proc/loadavg": load,
        "proc/stat": "cpu 1 2\nbtime 1795144327\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(str(root))


def test_ok(tmp_path: Path) -> None:
    expected = Pids(4_194_304, 412, 1_795_144_327.0, os.sysconf("SC_CLK_TCK"))
    assert list(pids(node(tmp_path))) == [expected]


def test_ok_on_this_machine() -> None:
    (record,) = pids(Host())
    assert 0 < record.in_use < record.maximum
    assert record.boot_s > 1e9


def test_no_data_without_proc(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        list(pids(Host(str(tmp_path))))


def test_denied_is_not_zero(tmp_path: Path) -> None:
    host = node(tmp_path)
    (tmp_path / "proc/loadavg").unlink()
    # Write-only, also for root.
    (tmp_path / "proc/loadavg").symlink_to("/proc/sys/vm/compact_memory")
    with pytest.raises(Denied):
        list(pids(host))


@pytest.mark.parametrize(
    ("maximum", "load"),
    [("many\n", "0.1 0.2 0.3 2/412 9\n"), ("32768\n", "0.1 0.2\n"), ("", ""), ("-1\n", "1/x 2")],
)
def test_malformed_numbers(tmp_path: Path, maximum: str, load: str) -> None:
    with pytest.raises(ParseError):
        list(pids(node(tmp_path, maximum, load)))
