from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydiag.errors import CannotRun
from raydiag.model import Status
from raydiag.tsdb import connection, directory, ports, private_directory, view
from raydiag.tsdb.connection import EmptyTsdb, open_directory
from raydiag.tsdb.series import Query
from tests.tsdb import promtool, samples
from tests.tsdb.conftest import Live
from tests.tsdb.evidence import digest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_prometheus")]


@pytest.fixture(autouse=True)
def own_temporary_place(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Views of this test alone, so that it can count them; none may be left."""
    place = tmp_path_factory.mktemp("tmp")
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield place
    monkeypatch.setattr(tempfile, "tempdir", None)


def views() -> list[Path]:
    return sorted(Path(tempfile.gettempdir()).glob("raydiag-tsdb-*"))


def last_values(path: Path, promql: str, time_: float = samples.END) -> list[float]:
    with open_directory(str(path)) as found:
        answer = found.client.ask(Query.at("q", promql, time_))
        assert answer.ok, answer.reason
        return [one.last for one in answer.series if one.last is not None]


def test_a_directory_is_served_quickly_and_nothing_is_left(data: Path) -> None:
    before = digest(data)
    started = time.monotonic()
    with open_directory(str(data.parent)) as found:
        assert time.monotonic() - started < 3
        assert found.stored is not None and found.stored.start == samples.START
        assert found.unread == () and not found.live
        answer = found.client.ask(Query.at("q", "count(up)", samples.END))
        assert [one.last for one in answer.series] == [6]
        (place,) = views()
        assert place.stat().st_mode & 0o777 == 0o700
        url = found.client.url
    assert views() == []
    with pytest.raises(CannotRun):
        connection.connect(url)
    assert digest(data) == before


def test_the_newest_samples_of_a_live_job_are_there_and_its_files_untouched(live: Live) -> None:
    # Stopped for the moment, its files stand still: whatever changes is our doing.
    os.kill(live.pid, signal.SIGSTOP)
    try:
        before = digest(live.data)
        assert last_values(live.data, "count_over_time(up[5m])", time.time())[0] >= 5
        assert digest(live.data) == before
    finally:
        os.kill(live.pid, signal.SIGCONT)


def test_a_running_servers_directory_can_be_read_while_it_writes(live: Live) -> None:
    for _ in range(3):
        assert last_values(live.data, "count_over_time(up[5m])", time.time())[0] >= 5
    assert connection.connect(live.url).live


def test_several_jobs_at_once_have_ports_of_their_own(data: Path) -> None:
    with open_directory(str(data)) as one, open_directory(str(data)) as two:
        assert one.client.url != two.client.url
        for each in (one, two):
            assert each.client.ask(Query.at("q", "up", samples.END)).series
        assert len(views()) == 2


# ---- gone afterwards, however it ends

_HOLD = """
import sys, time
from raydiag.tsdb.connection import open_directory
with open_directory(sys.argv[1]) as found:
    print(found.client.url, flush=True)
    time.sleep(60)
"""


def _held(data: Path) -> tuple[subprocess.Popen[str], str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(data)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    return holder, holder.stdout.readline().strip()


def test_after_kill_9_the_server_is_gone_and_the_next_run_removes_the_view(data: Path) -> None:
    before = digest(data)
    holder, url = _held(data)
    assert connection.connect(url)
    holder.kill()
    holder.wait()
    limit = time.monotonic() + 5
    while time.monotonic() < limit:
        try:
            connection.connect(url)
        except CannotRun:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the server outlives its parent")
    assert len(views()) == 1
    with open_directory(str(data)):
        assert len(views()) == 1
    assert views() == []
    assert digest(data) == before


def test_ctrl_c_leaves_nothing(data: Path) -> None:
    holder, _ = _held(data)
    (view,) = views()
    assert _commands_with(view)
    holder.send_signal(signal.SIGINT)
    holder.wait(10)
    assert views() == []
    assert _commands_with(view) == []


def _commands_with(view: Path) -> list[bytes]:
    """Command lines of running programs that name the directory."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            commands.append(path.read_bytes())
    return [command for command in commands if str(view).encode() in command]


def test_the_view_of_a_run_that_lives_is_left_alone(data: Path) -> None:
    holder, url = _held(data)
    try:
        assert private_directory.remove_leftovers() == []
        with open_directory(str(data)):
            assert len(views()) == 2
        assert connection.connect(url)
    finally:
        holder.kill()
        holder.wait()


def test_an_exception_inside_leaves_nothing(data: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_directory(str(data)):
        raise ZeroDivisionError
    assert views() == []


# ---- what is broken

Damage = Callable[[Path], object]


def _newest_block(data: Path) -> Path:
    return max(one for one in data.iterdir() if (one / "meta.json").exists())


@pytest.fixture
def two_blocks(tmp_path: Path) -> Path:
    """Samples on both sides of a two-hour boundary, so that one block can break."""
    early = [("hw_procs_running", {"host": "a"}, [(t, 1.0) for t in samples.times(30)])]
    later = samples.START + 14_400
    late = [("hw_procs_running", {"host": "a"}, [(t, 2.0) for t in samples.times(30, later)])]
    target = tmp_path / "77-broken" / "prometheus"
    promtool.write_blocks(early, target)
    promtool.write_blocks(late, target)
    return target


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda block: os.truncate(block / "index", 100), "index is cut short"),
        (lambda block: os.truncate(block / "index", 0), "index is empty"),
        (lambda block: os.truncate(block / "meta.json", 5), "meta.json is cut short"),
        (lambda block: (block / "meta.json").write_text("[]"), "no JSON object"),
        (
            lambda block: (block / "meta.json").write_text('{"version":1}'),
            "does not say which time",
        ),
        (lambda block: (block / "meta.json").unlink(), "meta.json is missing"),
        (lambda block: (block / "index").unlink(), "index is missing"),
        (lambda block: shutil.rmtree(block / "chunks"), "chunks is missing"),
        (lambda block: (block / "chunks" / "000001").unlink(), "chunks has no file in it"),
        (lambda block: os.truncate(block / "chunks" / "000001", 0), "not a chunk file"),
        (lambda block: (block / "chunks" / "000001").write_bytes(b"x" * 99), "not a chunk file"),
    ],
)
def test_of_two_blocks_the_whole_one_is_used_and_the_broken_one_told(
    two_blocks: Path, damage: Damage, words: str
) -> None:
    broken = _newest_block(two_blocks)
    damage(broken)
    with open_directory(str(two_blocks)) as found:
        assert [item.source for item in found.unread] == [str(broken)]
        assert words in found.unread[0].reason
        assert found.stored is not None and found.stored.end < samples.START + 7200
        answer = found.client.ask(Query.at("q", "hw_procs_running", samples.START + 60))
        assert [one.last for one in answer.series] == [1.0]


def test_damaged_tombstones_cost_no_block(two_blocks: Path) -> None:
    (_newest_block(two_blocks) / "tombstones").write_bytes(b"nonsense")
    with open_directory(str(two_blocks)) as found:
        assert [item.reason.partition(":")[0] for item in found.unread] == ["damaged"]
        assert found.stored is not None and found.stored.end > samples.START + 7200


def test_a_block_that_only_the_server_finds_broken_is_left_out(two_blocks: Path) -> None:
    index = _newest_block(two_blocks) / "index"
    content = bytearray(index.read_bytes())
    content[5:60] = random.Random(1).randbytes(55)  # its end and its head are whole
    index.write_bytes(content)
    with open_directory(str(two_blocks)) as found:
        answer = found.client.ask(Query.at("q", "hw_procs_running", samples.START + 60))
        assert answer.ok or found.unread
        assert found.unread, "a damaged index was not noticed"


def test_a_damaged_log_is_read_as_far_as_it_goes_and_said(live: Live, tmp_path: Path) -> None:
    copy = tmp_path / "88-torn" / "prometheus"
    shutil.copytree(live.data, copy)
    segment = max((copy / "wal").glob("0*"))
    size = segment.stat().st_size
    with open(segment, "r+b") as stream:
        stream.seek(max(0, size - size // 3))
        stream.write(b"\xff" * 64)
    before = digest(copy)
    with open_directory(str(copy)) as found:
        assert [item.status for item in found.unread] == [Status.ERROR]
        assert found.unread[0].source == str(copy / "wal")
        assert "what follows the damage is missing" in found.unread[0].reason
        answer = found.client.ask(Query.at("q", "count_over_time(up[5m])", time.time()))
        assert answer.ok
    assert digest(copy) == before


def test_an_empty_directory_says_what_is_there(tmp_path: Path) -> None:
    data = tmp_path / "99-empty" / "prometheus"
    data.mkdir(parents=True)
    (data / "prometheus.log").write_text("")
    (data / "wal").mkdir()
    (data / "wal" / "00000000").write_bytes(b"")
    with pytest.raises(EmptyTsdb, match=r"holds no samples \(prometheus.log, wal\)"):
        open_directory(str(tmp_path / "99-empty")).__enter__()
    assert views() == []


def test_a_job_without_data_and_a_place_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="no Prometheus data in it"):
        open_directory(str(tmp_path)).__enter__()
    with pytest.raises(CannotRun, match="there is no such directory"):
        open_directory(str(tmp_path / "nowhere")).__enter__()


def test_all_blocks_broken_and_no_log(data: Path) -> None:
    for block in data.iterdir():
        os.truncate(block / "index", 3)
    with pytest.raises(EmptyTsdb, match="nothing in it can be read"):
        open_directory(str(data)).__enter__()


# ---- what a live server does meanwhile


def _cut_the_log(data: Path) -> None:
    """As after a new block: what the log's old segments held is in a checkpoint."""
    (data / "wal" / "checkpoint.00000000").mkdir()
    (data / "wal" / "00000000").rename(data / "wal" / "checkpoint.00000000" / "00000000")


def _replace_a_block(data: Path) -> None:
    old = _newest_block(data)
    old.rename(data / "01ARZ3NDEKTSV4RRFFQ69G5FAV")


@pytest.mark.parametrize("change", [_cut_the_log, _replace_a_block])
def test_what_changes_while_it_is_looked_at_is_looked_at_again(
    data: Path, change: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "wal").mkdir()
    (data / "wal" / "00000000").write_bytes(b"\0" * 32768)
    (data / "wal" / "00000001").write_bytes(b"\0" * 32768)
    read, listings = directory.read, 0

    def read_and_be_late(path: Path) -> directory.TsdbDirectory:
        nonlocal listings
        listings += 1
        found = read(path)
        if listings == 1:
            change(data)
        return found

    monkeypatch.setattr(directory, "read", read_and_be_late)
    with open_directory(str(data)) as found:
        answer = found.client.ask(Query.at("q", "count(up)", samples.END))
        assert [one.last for one in answer.series] == [6]
        assert found.unread == () and found.has_log and listings == 2


# ---- no room, no rights, no program


def test_without_room_for_the_log_the_blocks_are_served_and_that_is_said(
    live: Live, tmp_path: Path, blocks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "88-full" / "prometheus"
    shutil.copytree(live.data, copy)
    for block in blocks.iterdir():
        shutil.copytree(block, copy / block.name)
    monkeypatch.setattr(view, "_RESERVE_BYTES", 1 << 60)
    with open_directory(str(copy)) as found:
        assert not found.has_log
        (item,) = found.unread
        assert item.source == str(copy / "wal")
        assert "no room for a copy" in item.reason and "newest samples" in item.reason
        (place,) = views()
        assert not list(place.glob("data*/wal/0*[1-9]"))
        answer = found.client.ask(Query.at("q", "count(up)", samples.END))
        assert [one.last for one in answer.series] == [6]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_fills_up_during_the_copy_leaves_no_half_log(
    live: Live, tmp_path: Path, blocks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], check=False
    ).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        copy = tmp_path / "88-full" / "prometheus"
        shutil.copytree(live.data, copy)
        for block in blocks.iterdir():
            shutil.copytree(block, copy / block.name)
        with open(max((copy / "wal").glob("0*")), "ab") as stream:
            stream.write(b"\0" * (4 << 20))
        monkeypatch.setenv("TMPDIR", str(small))
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(view, "_RESERVE_BYTES", -(1 << 40))  # it looked as if there was room
        with open_directory(str(copy)) as found:
            assert not found.has_log
            assert "could not be copied: No space left on device" in found.unread[0].reason
            answer = found.client.ask(Query.at("q", "count(up)", samples.END))
            assert [one.last for one in answer.series] == [6]
        assert views() == []
    finally:
        subprocess.run(["umount", small], check=True)


_AS_ANOTHER = """
import sys
from raydiag.errors import RaydiagError
from raydiag.tsdb.connection import open_directory
from raydiag.tsdb.series import Query
try:
    with open_directory(sys.argv[1]) as found:
        for item in found.unread:
            print(item.status.value, item.reason)
        answer = found.client.ask(Query.at("q", "count(up)", float(sys.argv[2])))
        print("rows", [one.last for one in answer.series])
except RaydiagError as error:
    print("raydiag:", error)
"""


def _as_another_user(data: Path) -> str:
    """What one sees to whom nothing of it belongs: root without its right to read everything."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("giving files away and dropping rights needs root and setpriv (util-linux)")
    for path in [data, *data.rglob("*")]:
        os.chown(path, 65534, 65534)
    rights = "-dac_override,-dac_read_search"
    program = (sys.executable, "-c", _AS_ANOTHER, str(data), str(samples.END))
    done = subprocess.run(
        [setpriv, f"--bounding-set={rights}", f"--inh-caps={rights}", *program],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_foreign_directory_that_can_only_be_read(data: Path) -> None:
    for path in [data, *data.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {name: entry[2:] for name, entry in digest(data).items()}
    assert _as_another_user(data).splitlines() == ["rows [6.0]"]
    assert {name: entry[2:] for name, entry in digest(data).items()} == before


def test_a_foreign_block_that_cannot_be_read_is_told(two_blocks: Path) -> None:
    (_newest_block(two_blocks) / "index").chmod(0o600)
    said = _as_another_user(two_blocks).splitlines()
    assert said == ["denied index: no permission to read it", "rows []"]


def test_a_foreign_directory_that_cannot_be_listed(data: Path) -> None:
    data.chmod(0o700)
    assert "cannot be listed: Permission denied" in _as_another_user(data)


def test_without_the_program_one_line_says_how_to_get_it(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYDIAG_PROMETHEUS", "/nonexistent/prometheus")
    with pytest.raises(CannotRun, match="RAYDIAG_PROMETHEUS=/nonexistent/prometheus"):
        open_directory(str(data)).__enter__()
    monkeypatch.delenv("RAYDIAG_PROMETHEUS")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotRun, match=r"not on PATH.*prometheus\.io/download"):
        open_directory(str(data)).__enter__()


# ---- ports


def test_a_port_that_is_taken_between_choice_and_use_is_not_ours(
    data: Path, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another Prometheus answers there: it must not be taken for ours, nor be ended."""
    taken = int(live.url.rpartition(":")[2])
    offered = iter([taken])
    choose = ports.free
    monkeypatch.setattr(ports, "free", lambda avoid=(): next(offered, None) or choose(avoid))
    with open_directory(str(data)) as found:
        assert found.client.url != live.url
        answer = found.client.ask(Query.at("q", "count(up)", samples.END))
        assert [one.last for one in answer.series] == [6]
    assert connection.connect(live.url)
