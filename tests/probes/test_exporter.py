from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.errors import NoData
from raydiag.host import Host
from raydiag.model import Status, Unread
from raydiag.probes.exporter import FILE, LOG, Exporter, exporter, fetch, parse_log, parse_metrics
from tests.cluster.shell_exporter import metrics, shell_exporter

# Real kernel files whose reading fails for everybody, root included.
PATIENCE_S = 60.0  # of a busy machine
EACCES_FILE, EIO_FILE = "/proc/sys/vm/compact_memory", "/proc/self/mem"


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "uptime").write_text("50000.00 1.0\n")
    (proc / "stat").write_text("cpu  1 2 3\nctxt 8000000\nbtime 1700000000\n")
    return tmp_path


def add_process(root: Path, pid: int, comm: str, cmdline: str, state: str = "S") -> None:
    directory = root / f"proc/{pid}"
    directory.mkdir()
    ticks = 40_000 * os.sysconf("SC_CLK_TCK")
    rest = f"1 1 1 0 -1 4194560 1 0 0 0 5 5 0 0 20 0 9 0 {ticks} 1 1 1 0 0 0"
    (directory / "stat").write_text(f"{pid} ({comm}) {state} {rest}\n")
    (directory / "comm").write_text(f"{comm}\n")
    (directory / "cmdline").write_text(cmdline.replace(" ", "\0"))


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def read(root: Path, port: int) -> Exporter:
    (record,) = exporter(Host(str(root)), port=port)
    assert isinstance(record, Exporter)
    return record


@contextmanager
def answering(port: int, answer: bytes, hang_s: float = 0.0) -> Iterator[None]:
    """One connection gets these bytes."""
    with socket.create_server(("127.0.0.1", port)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)
                time.sleep(hang_s)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(PATIENCE_S)


def test_ok_healthy_exporter_moves(root: Path, port: int) -> None:
    with shell_exporter("healthy", port, root / FILE[1:]):
        first = second = read(root, port)
        end = time.monotonic() + PATIENCE_S
        while second.checksum == first.checksum and time.monotonic() < end:
            time.sleep(0.1)
            second = read(root, port)
    assert (first.answer, first.reason, first.samples, first.hw_samples) == ("ok", "", 11, 11)
    assert first.groups == ("gpu", "procs", "rdma", "scrape")
    assert first.scrape_duration_s == pytest.approx(0.107, abs=0.005)
    assert first.checksum != second.checksum
    # The file may be replaced between the answer and the look at it.
    assert all(age is None or age < PATIENCE_S for age in (first.data_age_s, second.data_age_s))
    assert {first.data_age_s, second.data_age_s} != {None}


def test_ok_frozen_file_has_its_age(root: Path, port: int) -> None:
    file = root / FILE[1:]
    file.write_text(metrics(1))
    age(file, 900)
    add_process(root, 41, "bash", "bash /job/utils/metrics_exporter.sh --port 9400", "T")
    add_process(root, 42, "python3", f"python3 -c code {FILE} 9400")
    add_process(root, 43, "bash", "bash /job/utils/gpu_metrics_plugin.sh n1", "D")
    add_process(root, 44, "bash", "bash -l")
    with shell_exporter("frozen", port, file):
        first, second = read(root, port), read(root, port)
    assert first.checksum == second.checksum
    assert first.data_age_s == pytest.approx(900, abs=PATIENCE_S)
    assert first.data_time_s == pytest.approx(time.time() - 900, abs=PATIENCE_S)
    assert first.file_age_s == first.data_age_s
    # Of what is stuck no arguments are read.
    assert first.processes == ("loop 41 T 10000", "server 42 S 10000")
    assert first.process_age_s == pytest.approx(10_000)


def test_ok_a_file_that_is_not_served_tells_no_age(root: Path, port: int) -> None:
    other = root / "other"
    other.write_text(metrics(1) + 'hw_context_switches_total{host="n1"} 5000000\n')
    (root / FILE[1:]).write_text(metrics(2))
    age(root / FILE[1:], 9000)
    with shell_exporter("frozen", port, other):
        record = read(root, port)
    assert (record.data_age_s, record.data_time_s) == (None, None)
    assert record.file_age_s == pytest.approx(9000, abs=PATIENCE_S)
    assert (record.switches_served, record.switches_now, record.uptime_s) == (5e6, 8_000_000, 5e4)


def test_ok_exporter_that_hangs_is_given_up_in_time(root: Path, port: int) -> None:
    with shell_exporter("hangs", port, root / "none"):
        record = read(root, port)
    assert (record.answer, record.body_bytes) == ("timeout", 0)


def test_ok_slow_plugin_and_its_log(root: Path, port: int) -> None:
    (root / LOG[1:]).write_text(
        "[metrics_exporter] host_metrics_plugin timed out after 10s\n"
        "[metrics_exporter] Starting on port 9400 (poll every 10s) on n1\n"
        "[metrics_exporter] tb_metrics_plugin exited 99 \u2014 permanently skipped\n"
        + "[metrics_exporter] gpu_metrics_plugin timed out after 10s\n"
        * 7
    )
    with shell_exporter("slow", port, root / FILE[1:]):
        record = read(root, port)
    assert record.scrape_duration_s == pytest.approx(11.9, abs=0.01)
    assert record.timed_out == {"gpu_metrics_plugin": 7}
    assert record.skipped == ("tb_metrics_plugin",)
    assert record.ends_in_timeout
    assert record.log_age_s == pytest.approx(0, abs=5)
    assert len(record.log_lines) == 5


def test_ok_exporter_that_is_gone(root: Path, port: int) -> None:
    (root / LOG[1:]).write_text("OSError: [Errno 98] Address already in use\n")
    add_process(root, 41, "metrics_exporte", "", "D")
    record = read(root, port)
    assert (record.answer, record.samples) == ("refused", 0)
    assert record.log_lines == ("OSError: [Errno 98] Address already in use",)
    assert record.processes == ("loop 41 D 10000",)


def test_no_data_where_no_exporter_ever_was(root: Path, port: int) -> None:
    with pytest.raises(NoData):
        list(exporter(Host(str(root)), port=port))


def test_denied_files_are_unread(root: Path, port: int) -> None:
    served = root / "served"
    served.write_text(metrics(1))
    (root / FILE[1:]).symlink_to(EACCES_FILE)
    (root / LOG[1:]).symlink_to(EIO_FILE)
    with shell_exporter("frozen", port, served):
        found = list(exporter(Host(str(root)), port=port))
    unread = {item.source: item.status for item in found if isinstance(item, Unread)}
    assert unread == {FILE: Status.DENIED, LOG: Status.ERROR}
    (record,) = (item for item in found if isinstance(item, Exporter))
    assert (record.answer, record.data_age_s) == ("ok", None)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "answered ''"),
        (b"SSH-2.0-OpenSSH_9\r\n", "answered 'SSH-2.0-OpenSSH_9'"),
        (b"HTTP/1.0 503 Busy\r\n\r\nhw_a 1\n", "answered 'HTTP/1.0 503 Busy'"),
    ],
)
def test_malformed_answer_is_an_error(root: Path, port: int, answer: bytes, reason: str) -> None:
    with answering(port, answer):
        record = read(root, port)
    assert (record.answer, record.reason, record.samples) == ("error", reason, 0)


def test_malformed_metrics_give_no_values(root: Path, port: int) -> None:
    body = b"hw_scrape_duration_seconds soon\nhw_context_switches_total{\nhw_a 1\nother 2\n\xff\n"
    with answering(port, b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n" + body):
        record = read(root, port)
    assert (record.answer, record.samples, record.hw_samples) == ("ok", 5, 3)
    assert (record.scrape_duration_s, record.switches_served) == (None, None)


def test_an_answer_that_trickles_is_given_up(port: int) -> None:
    with answering(port, b"HTTP/1.0 200 OK\r\n\r\nhw_a 1\n", hang_s=0.6):
        assert fetch(port, 0.3)[0] == "timeout"


def test_restarts_have_the_times_of_their_lines() -> None:
    log = parse_log(
        "[1970-01-02T00:00:10Z] [Metrics Exporter] Watchdog: exited with code 137, restart #3\n"
        "[yesterday] [Metrics Exporter] Watchdog: exited with code 137, restart #4\n"
    )
    assert log.restarts == (86_410.0,)
    assert len(log.log_lines) == 2


NAMES = st.from_regex(r"hw_[a-z]{1,8}_[a-z_]{1,12}", fullmatch=True)


@given(st.dictionaries(NAMES, st.integers(0, 2**53), min_size=1, max_size=30), st.lists(st.text()))
def test_values_survive_comments_and_labels(values: dict[str, int], comments: list[str]) -> None:
    lines = [f'{name}{{host="a}}b",x="1"}} {value} 1700000000000' for name, value in values.items()]
    lines += [f"# {comment}".replace("\n", " ") for comment in comments]
    lines.append("hw_scrape_duration_seconds 2.5")
    served = parse_metrics("\n".join(lines).encode("utf-8", "replace"))
    assert (served.hw_samples, served.scrape_duration_s) == (len(values) + 1, 2.5)
    assert set(served.groups) == {name.split("_")[1] for name in values} | {"scrape"}


@given(st.binary(max_size=2000))
def test_any_answer_is_counted(body: bytes) -> None:
    served = parse_metrics(body)
    assert 0 <= served.hw_samples <= served.samples <= body.count(b"\n") + 1


@given(st.text(max_size=2000))
def test_any_log_gives_bounded_lines(text: str) -> None:
    log = parse_log(text)
    assert len(log.log_lines) <= 5
    assert all(len(line) <= 300 for line in log.log_lines)
