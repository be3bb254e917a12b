"""`raydiag exporter run` and `once` as processes: what is refused, how they end, what is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from raydiag.cli import main
from raydiag.exporter.main import ExporterSettings, collect_once
from tests.cluster import fake_node, fake_rdma
from tests.exporter.running import (
    RAYDIAG,
    exporter,
    living,
    processes_below,
    value,
    wait_until_gone,
)

pytestmark = pytest.mark.slow

OWN = "raydiag_exporter_"
CYCLES = f"{OWN}cycles_total"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of a node with 8 GPUs, 8 NICs and a kernel log that has seen two GPU errors."""
    root = tmp_path_factory.mktemp("node")
    fake_node.write_amdgpu(root / "sys")
    fake_rdma.write_rdma(root / "sys", driver="ionic", devices=8)
    (root / "proc").symlink_to("/proc")
    (root / "dev").mkdir()
    write_kmsg(root, 2)
    return root


def write_kmsg(root: Path, errors: int) -> None:
    """Records 0.. of which so many speak of a GPU error; atomically."""
    lines = [f"6,{n},{1000 + n},-;all is quiet\n" for n in range(5)]
    lines += [f"3,{5 + n},{2000 + n},-;amdgpu: ring timeout error\n" for n in range(errors)]
    new = root / "dev/kmsg.new"
    new.write_text("".join(lines))
    new.replace(root / "dev/kmsg")


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    try:
        code = main(["exporter", *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return code, said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "ACTION"),
        (["start"], "invalid choice: 'start'"),
        *(
            (["run", "--listen", text], words)
            for text, words in (
                ("9400", "'9400' is not ADDR:PORT"),
                ("127.0.0.1:", "'' is not a port"),
                ("127.0.0.1:0", "'0' is not a port"),
                ("127.0.0.1:65536", "'65536' is not a port"),
                ("127.0.0.1:http", "'http' is not a port"),
                ("::1:9400", "write an IPv6 address as [ADDR]:PORT"),
            )
        ),
        *(
            (["run", f"--interval={text}"], f"{text!r} is not a number of seconds")
            for text in ("0", "-1", "nan", "inf", "ten", "", "1e9")
        ),
        (["run", "--only", "gpu"], "--only: no plugin 'gpu'; there are: gpu_pcie"),
        (["run", "--skip", "net,gpu"], "--skip: no plugin 'gpu'; there are: gpu_pcie"),
        (["run", "--root", "/no/such/place"], "--root /no/such/place: there is no such directory"),
        (["run", "--plugins", "/no/such"], "--plugins /no/such: there is no such directory"),
        (["run", "--tls-key", "k"], "--tls-key and --tls-client-ca need --tls-cert"),
        (["once", "--listen", "127.0.0.1:9400"], "unrecognized arguments"),
        (["check"], "the following arguments are required: FILE"),
    ],
)
def test_usage_errors_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refused(arguments, capsys)
    assert code == 2
    assert words in said


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with exporter(tmp_path, port=other.getsockname()[1]) as running:
            assert running.process.wait(60) == 4
    assert f"(pid {os.getpid()}) has that port\n" in running.said()
    assert running.said().count("\n") == 1


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--pid-file=/no/such/place/pid", "--pid-file /no/such/place/pid: cannot be written"),
        ("--tls-cert=/no/such/cert", "--tls-cert /no/such/cert: cannot be used"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, option: str, words: str) -> None:
    with exporter(tmp_path, option) as running:
        assert running.process.wait(60) == 4
    assert words in running.said()
    assert "Traceback" not in running.said()


def test_once_prints_the_page(node: Path) -> None:
    argv = [*RAYDIAG, "exporter", "once", "--root", str(node), "--host", "n7"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    samples = [s for family in text_string_to_metric_families(done.stdout) for s in family.samples]
    assert {sample.labels["host"] for sample in samples} == {"n7"}
    assert value(done.stdout, 'hw_gpu_power_watts{gpu="7"}') == 250
    assert value(done.stdout, "hw_dmesg_gpu_errors_total") == 2
    assert value(done.stdout, CYCLES) == 1


def test_once_of_some_plugins_writes_no_state(node: Path, tmp_path: Path) -> None:
    settings = ExporterSettings(
        only=["kernel_log", "net"],
        skip=["net"],
        root=str(node),
        state_directory=str(tmp_path / "s"),
    )
    said: list[str] = []
    page = collect_once(settings, said.append)
    names = {line.split("{")[0] for line in page.splitlines() if line.startswith("hw_")}
    assert names == {"hw_dmesg_gpu_errors_total", "hw_scrape_duration_seconds"}, (said, page)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_and_nothing_is_left(
    node: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    pid_file = tmp_path / "pid"
    options = ("--root", str(node), "--interval", "0.1", "--pid-file", str(pid_file))
    with exporter(tmp_path, *options) as running:
        running.wait_for(CYCLES, 3)
        pid = running.process.pid
        below = processes_below(pid)
        assert "raydiag-http" in below.values()
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        assert pid_file.read_text().split() == [str(pid), started]
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        running.process.send_signal(number)
        assert running.process.wait(120) == code
    assert wait_until_gone(list(below)) == []
    assert not pid_file.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "state"]
    assert "Traceback" not in running.said()


def test_killed_it_leaves_nothing_that_runs_and_the_count_goes_on(
    node: Path, tmp_path: Path
) -> None:
    write_kmsg(node, 2)
    options = ("--root", str(node), "--interval", "0.1", "--only", "kernel_log,procs")
    with exporter(tmp_path, *options) as running:
        running.wait_for("hw_dmesg_gpu_errors_total", 1)
        running.wait_for(CYCLES, 3)
        below = processes_below(running.process.pid)
        running.process.kill()
        running.process.wait()
        assert wait_until_gone(list(below)) == []
    write_kmsg(node, 3)
    (node / "dev/kmsg").write_text("3,7,2002,-;amdgpu: ring timeout error\n")  # the rest is gone
    with exporter(tmp_path, *options, port=running.port) as running:
        assert running.wait_for("hw_dmesg_gpu_errors_total") == 3
        assert running.value(f"{OWN}kernel_log_records_lost_total") == 0
    write_kmsg(node, 2)


def test_without_a_place_for_state_it_says_so_and_goes_on(node: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = ("--root", str(node), "--interval", "0.1", "--only", "kernel_log")
    with exporter(tmp_path, *options, "--state-dir", str(tmp_path / "file")) as running:
        running.wait_for(CYCLES, 3)
        assert running.value("hw_dmesg_gpu_errors_total") == 2
    assert "exporter-" in running.said()
    assert ": not written: " in running.said() or ": not read: " in running.said()


def test_it_ends_when_its_server_does(node: Path, tmp_path: Path) -> None:
    with exporter(tmp_path, "--root", str(node), "--interval", "0.1") as running:
        running.wait_for(CYCLES, 1)
        below = processes_below(running.process.pid)
        (server,) = [pid for pid, name in below.items() if name == "raydiag-http"]
        os.kill(server, signal.SIGKILL)
        assert running.process.wait(120) == 1
    assert wait_until_gone(list(below)) == []
    assert "the HTTP server ended (exit code 137)" in running.said()


def test_others_may_only_ask_where_it_is_said(node: Path, tmp_path: Path) -> None:
    options = ("--root", str(node), "--only", "procs")
    with exporter(tmp_path, *options) as running:
        running.wait_for(CYCLES)
        assert "whoever reaches this node" not in running.said()
        port = f":{running.port:04X} "
        rows = Path("/proc/net/tcp").read_text().splitlines()
        listening = [row.split()[1] for row in rows if port in row and " 0A " in row]
        assert listening == [f"0100007F:{running.port:04X}"]
    with exporter(tmp_path, *options, address="0.0.0.0") as everywhere:
        everywhere.wait_for(CYCLES)
        assert everywhere.said().count("whoever reaches this node can read its metrics") == 1


def test_nobody_who_reads_its_words_can_hold_it_up(node: Path, tmp_path: Path) -> None:
    """Its stderr is a pipe that is full, which nobody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    options = ("--root", str(node), "--interval", "0.1", "--only", "procs")
    with exporter(tmp_path, *options, stderr=writing) as running:
        running.wait_for(CYCLES, 3)
        running.process.terminate()
        assert running.process.wait(120) == 143
    os.close(reading)
    os.close(writing)


def test_under_a_watchdog_it_comes_back(node: Path, tmp_path: Path) -> None:
    """It is killed, as by somebody who has put new code in its place; the first wait is 5 s."""
    pid_file = tmp_path / "pid"
    options = ("--root", str(node), "--interval", "0.1", "--supervise")
    with exporter(tmp_path, *options, "--pid-file", str(pid_file)) as running:
        running.wait_for(CYCLES, 1)
        first = int(pid_file.read_text().split()[0])
        assert first != running.process.pid
        argv = Path(f"/proc/{first}/cmdline").read_bytes()
        assert argv == Path(f"/proc/{running.process.pid}/cmdline").read_bytes()
        os.kill(first, signal.SIGKILL)
        assert wait_until_gone([first]) == []
        running.wait_for(CYCLES, 1)
        second = int(pid_file.read_text().split()[0])
        assert second != first
        below = processes_below(running.process.pid)
        assert second in below
        running.process.terminate()
        assert running.process.wait(120) == 143
    assert "[Metrics Exporter] Watchdog: exited with code 137, restart #1\n" in running.said()
    assert wait_until_gone(list(below)) == []
    assert not pid_file.exists()


def test_it_ends_with_its_watchdog(node: Path, tmp_path: Path) -> None:
    with exporter(tmp_path, "--root", str(node), "--interval", "0.1", "--supervise") as running:
        running.wait_for(CYCLES, 1)
        below = processes_below(running.process.pid)
        running.process.kill()
        running.process.wait()
    assert wait_until_gone(list(below)) == []


def test_plugins_of_others_run_beside_ours(node: Path, tmp_path: Path) -> None:
    directory = tmp_path / "plugins"
    directory.mkdir()
    (directory / "site_metrics_plugin.sh").write_text(
        'echo "# TYPE site_fans gauge"; echo "site_fans{host=\\"$1\\"} 6"\n'
    )
    (directory / "net_metrics_plugin.sh").write_text("echo 'no sample'\n")
    options = ("--root", str(node), "--interval", "0.2", "--plugins", str(directory))
    with exporter(tmp_path, *options, "--only", "procs") as running:
        assert running.wait_for("site_fans") == 6
        plugin = '{plugin="site_metrics_plugin"}'
        running.wait_for(f"{OWN}plugin_last_success_timestamp_seconds{plugin}")
        assert running.value(f"{OWN}plugin_up{plugin}") == 1
        assert running.value(f'{OWN}plugin_up{{plugin="net_metrics_plugin"}}') == 0
        assert running.said().count("net_metrics_plugin: line 1: ") == 1
        (directory / "site_metrics_plugin.sh").unlink()
        cycles = running.wait_for(CYCLES)
        running.wait_for(CYCLES, cycles + 5)
        assert running.value("site_fans") is None
        assert running.value(f"{OWN}plugin_up{plugin}") is None
        assert living(running.process.pid) is not None
