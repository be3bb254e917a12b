"""What a reader keeps between cycles, and what it answers for a plugin that breaks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.exporter.metrics import Sample
from raydiag.exporter.plugins import Plugin, State
from raydiag.exporter.reading import NodeFiles, run
from raydiag.host import Host
from raydiag.model import Status, Unread
from tests.exporter import fake_sys


def made(function: Callable[..., Iterator[Any]], keeps_state: bool = False) -> Plugin:
    return Plugin("made", function, 1.0, "files", keeps_state=keeps_state)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---- files


def test_files_of_sys_stay_open_and_others_do_not(tmp_path: Path) -> None:
    fake_sys.write(tmp_path / "sys/a", "1")
    fake_sys.write(tmp_path / "proc/b", "2")
    files, before = NodeFiles(str(tmp_path)), open_files()
    for _ in range(3):
        assert (int(files.read_text("/sys/a")), int(files.read_text("/proc/b"))) == (1, 2)
    assert open_files() == before + 1
    files.close()
    assert open_files() == before


def test_a_file_that_was_written_replaced_or_removed_is_seen_as_it_is(tmp_path: Path) -> None:
    path, files = tmp_path / "sys/a", NodeFiles(str(tmp_path))
    fake_sys.write(path, "1")
    assert int(files.read_text("/sys/a")) == 1
    path.chmod(0o644)
    path.write_text("22\n")
    assert int(files.read_text("/sys/a")) == 22
    fake_sys.write(path, "3")
    assert int(files.read_text("/sys/a")) == 3
    path.unlink()
    with pytest.raises(NoData):
        files.read_text("/sys/a")
    fake_sys.write(path, "4")
    assert int(files.read_text("/sys/a")) == 4
    files.close()


def test_only_so_many_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydiag.exporter.reading._MOST_OPEN", 3)
    files, before = NodeFiles(str(tmp_path)), open_files()
    for number in range(10):
        fake_sys.write(tmp_path / f"sys/{number}", number)
    for _ in range(2):
        assert [int(files.read_text(f"/sys/{number}")) for number in range(10)] == list(range(10))
    assert open_files() == before + 3
    files.close()


@pytest.mark.parametrize("limit", [1, 5, 4096, 1 << 20])
def test_content_is_read_to_its_end_or_the_limit(tmp_path: Path, limit: int) -> None:
    content = b"0123456789" * 2000
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/a").write_bytes(content)
    files = NodeFiles(str(tmp_path))
    assert files.read_bytes("/sys/a", limit) == files.read_bytes("/sys/a", limit) == content[:limit]
    files.close()


def test_real_files_of_sys_give_the_same_as_without_keeping_them_open() -> None:
    names = Host().listdir("/sys/class/net/lo")
    paths = [f"/sys/class/net/lo/{one}" for one in ("mtu", "address", "ifindex") if one in names]
    assert paths
    files = NodeFiles()
    for path in paths * 2:
        assert files.read_bytes(path) == Host().read_bytes(path)
    files.close()


@pytest.mark.parametrize("limit", [4096, 10_000, 300_000])
def test_a_file_of_sys_that_comes_a_page_at_a_time_is_read_whole(limit: int) -> None:
    path = "/sys/kernel/btf/vmlinux"
    if not os.access(path, os.R_OK):
        pytest.skip(f"{path} is not there: no other file of /sys is that large everywhere")
    files = NodeFiles()
    assert files.read_bytes(path, limit) == Host().read_bytes(path, limit)
    files.close()


@pytest.mark.parametrize("path", ["/sys/kernel/debug/x", "/sys/class/drm/amdgpu_gpu_recover"])
def test_files_whose_reading_acts_are_never_opened(tmp_path: Path, path: str) -> None:
    fake_sys.write(tmp_path / path[1:], "1")
    files, before = NodeFiles(str(tmp_path)), open_files()
    with pytest.raises(Denied):
        int(files.read_text(path))
    assert open_files() == before


def test_directories_of_devices_are_listed_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, now = NodeFiles(str(tmp_path)), [1000.0]
    monkeypatch.setattr("raydiag.exporter.reading.time.monotonic", lambda: now[0])
    devices = "/sys/class/infiniband"
    with pytest.raises(NoData):
        files.listdir(devices)
    (tmp_path / devices[1:] / "ionic_0").mkdir(parents=True)
    assert files.listdir(devices) == ["ionic_0"]  # what was not there is looked for again
    (tmp_path / devices[1:] / "ionic_1").mkdir()
    assert files.listdir(devices) == ["ionic_0"]
    now[0] += 60
    assert files.listdir(devices) == ["ionic_0", "ionic_1"]
    listed = files.listdir(devices)
    listed.clear()
    assert files.listdir(devices) == ["ionic_0", "ionic_1"]


def test_other_directories_are_listed_each_time(tmp_path: Path) -> None:
    files = NodeFiles(str(tmp_path))
    for number in range(3):
        (tmp_path / f"sys/class/kfd/kfd/proc/{number}").mkdir(parents=True)
        assert len(files.listdir("/sys/class/kfd/kfd/proc")) == number + 1


def test_a_path_that_gave_einval_is_left_alone_and_others_are_not(tmp_path: Path) -> None:
    fake_sys.write(tmp_path / "sys/a/good", "1")
    fake_sys.refuse(tmp_path / "sys/a/bad")
    files = NodeFiles(str(tmp_path))
    with pytest.raises(ReadError, match="Invalid argument"):
        int(files.read_text("/sys/a/bad"))
    assert files.left_alone == {"/sys/a/bad"}
    with pytest.raises(NoData, match="left alone"):
        int(files.read_text("/sys/a/bad"))
    assert int(files.read_text("/sys/a/good")) == 1
    files.left_alone.add("/sys/a")
    with pytest.raises(NoData, match="left alone"):
        int(files.read_text("/sys/a/good"))


# ---- answers


def test_an_answer_is_plain_json(tmp_path: Path) -> None:
    def collect(host: Host) -> Iterator[Any]:
        yield Sample("hw_x", {"gpu": "0"}, 1)
        yield Unread("/sys/y", Status.DENIED, "no")
        yield Sample("tb_z", {}, 0.5, 1700)
        yield State({"seq": 4})

    answer = run(made(collect), None, NodeFiles(str(tmp_path)), {})
    assert json.loads(json.dumps(answer)) == {
        "samples": [["hw_x", {"gpu": "0"}, 1, None], ["tb_z", {}, 0.5, 1700]],
        "unread": [["/sys/y", "denied", "no"]],
        "state": {"seq": 4},
        "failed": None,
        "left_alone": [],
    }


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (NoData("nothing"), "no_data", "nothing"),
        (Denied("refused"), "denied", "refused"),
        (ParseError("garbage"), "error", "garbage"),
        (ZeroDivisionError("by zero"), "error", "ZeroDivisionError: by zero"),
        (RecursionError("deep"), "error", "RecursionError: deep"),
    ],
)
def test_a_plugin_that_breaks_keeps_what_it_had(
    tmp_path: Path, error: Exception, status: str, reason: str
) -> None:
    def collect(host: Host) -> Iterator[Any]:
        yield Sample("hw_x", {}, 1)
        raise error

    answer = run(made(collect), None, NodeFiles(str(tmp_path)), {})
    assert len(answer["samples"]) == 1
    assert answer["failed"] == [status, reason]


@pytest.mark.parametrize("item", [("hw_x", {}, 1), None, "hw_x 1", 5])
def test_what_is_no_sample_is_an_error(tmp_path: Path, item: object) -> None:
    def collect(host: Host) -> Iterator[Any]:
        yield item

    answer = run(made(collect), None, NodeFiles(str(tmp_path)), {})
    status, reason = answer["failed"]
    assert status == "error"
    assert reason.startswith(f"collect yielded a {type(item).__name__}: yield Sample(name, labels")


def test_state_goes_to_those_that_keep_it(tmp_path: Path) -> None:
    def collect(host: Host, state: Mapping[str, Any]) -> Iterator[Any]:
        yield State({"runs": state.get("runs", 0) + 1})

    plugin, files = made(collect, keeps_state=True), NodeFiles(str(tmp_path))
    state: dict[str, Any] = {}
    for _ in range(3):
        state = dict(run(plugin, None, files, state)["state"])
    assert state == {"runs": 3}
