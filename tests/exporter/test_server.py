"""The HTTP server: what it answers, how it treats bad clients, and whose life it shares."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from raydiag.errors import CannotRun
from raydiag.exporter import listener
from raydiag.exporter.page import Text
from raydiag.exporter.server import PageServer, tls_context

pytestmark = pytest.mark.slow

TEXT = Text(b'raydiag_exporter_cycles_total{host="n1"} 3\n', b'hw_procs_running{host="n1"} 4\n')
Start = Callable[..., tuple[PageServer, int]]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(tls=...)`: a server that has no page yet, and its port."""
    servers: list[PageServer] = []

    def begin(tls: ssl.SSLContext | None = None) -> tuple[PageServer, int]:
        taken = listener.listen("127.0.0.1", 0)
        port = int(taken.getsockname()[1])
        servers.append(PageServer(taken, "n1", tls))
        return servers[-1], port

    yield begin
    for server in servers:
        server.stop()


def hand_over(server: PageServer, text: Text = TEXT, interval_s: float = 60.0) -> None:
    """Publish, and wait until the child has it."""
    server.publish(text, time.monotonic(), interval_s)
    while not server._is_free:
        server.flush()


def ask(port: int, request: bytes) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """Status line, fields by lower-case name, body; empty where the server says nothing."""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(request)
        return parts(connection)


def parts(connection: socket.socket) -> tuple[bytes, dict[bytes, bytes], bytes]:
    answer = b""
    while chunk := connection.recv(1 << 16):
        answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *fields = head.split(b"\r\n")
    pairs = [field.partition(b": ") for field in fields]
    return first, {name.lower(): value for name, _, value in pairs}, body


def get(
    port: int, more: bytes = b"", path: bytes = b"/metrics"
) -> tuple[bytes, dict[bytes, bytes], bytes]:
    return ask(port, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n" + more + b"\r\n")


def test_the_page_and_its_age_are_served(start: Start) -> None:
    server, port = start()
    hand_over(server)
    status, fields, body = get(port)
    assert status == b"HTTP/1.1 200 OK"
    assert fields[b"content-type"] == b"text/plain; version=0.0.4; charset=utf-8"
    assert int(fields[b"content-length"]) == len(body)
    assert body.startswith(TEXT.plugin_lines + TEXT.own)
    *_, kind, age = body.splitlines()
    assert kind == b"# TYPE raydiag_exporter_page_age_seconds gauge"
    assert age.startswith(b'raydiag_exporter_page_age_seconds{host="n1"} 0.')


def test_the_newest_page_is_served(start: Start) -> None:
    server, port = start()
    for number in range(30):
        hand_over(server, Text(b"", b"hw_procs_running %d\n" % number))
    assert b"hw_procs_running 29\n" in get(port)[2]


def test_a_large_page_comes_whole(start: Start) -> None:
    server, port = start()
    others = b"".join(b'hw_x{gpu="%d"} %d\n' % (number, number) for number in range(200_000))
    hand_over(server, Text(TEXT.own, others))
    assert get(port)[2].startswith(others + TEXT.own)


def test_a_stopped_child_piles_up_no_pages(start: Start) -> None:
    server, port = start()
    hand_over(server)
    os.kill(server.pid, signal.SIGSTOP)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(500):
        server.publish(Text(b"", b"hw_x %d\n" % number), time.monotonic(), 60)
    open_files = len(os.listdir("/proc/self/fd"))
    os.kill(server.pid, signal.SIGCONT)
    assert open_files < before + 10
    while not (server._is_free and server._next is None):
        server.flush()
    assert b"hw_x 499\n" in get(port)[2]


@pytest.mark.parametrize(
    ("accept", "squeezed"),
    [
        (b"gzip", True),
        (b"deflate, GZIP;q=0.5", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.0", False),
        (b"identity", False),
        (b"", False),
    ],
)
def test_gzip_where_it_is_asked_for(start: Start, accept: bytes, squeezed: bool) -> None:
    server, port = start()
    hand_over(server)
    for _ in range(2):  # the second is made from the first's
        _, fields, body = get(port, b"accept-encoding: " + accept + b"\r\n")
        assert (fields.get(b"content-encoding") == b"gzip") is squeezed
        if squeezed:
            reader = zlib.decompressobj(31)  # one member: not every client reads on after it
            text = reader.decompress(body)
            assert (reader.unused_data, text) == (b"", gzip.decompress(body))
            body = text
        assert body.startswith(TEXT.plugin_lines + TEXT.own)
        assert b"page_age_seconds{" in body


def test_an_old_page_is_not_served_as_new(start: Start) -> None:
    server, port = start()
    hand_over(server, interval_s=0.05)
    time.sleep(0.2)
    for more in (b"", b"Accept-Encoding: gzip\r\n"):
        status, _, body = get(port, more)
        text = gzip.decompress(body) if more else body
        assert status.endswith(b"200 OK")
        assert b"hw_procs_running" not in text
        assert text.startswith(TEXT.own)
    status, _, body = get(port, path=b"/healthz")
    assert status == b"HTTP/1.1 503 Service Unavailable"
    assert body.startswith(b"the last page is ")
    hand_over(server)
    assert get(port, path=b"/healthz")[::2] == (b"HTTP/1.1 200 OK", b"ok\n")
    assert b"hw_procs_running" in get(port)[2]


def test_head_has_no_body(start: Start) -> None:
    server, port = start()
    hand_over(server)
    status, fields, body = ask(port, b"HEAD /metrics HTTP/1.0\r\n\r\n")
    assert (status, body) == (b"HTTP/1.1 200 OK", b"")
    assert int(fields[b"content-length"]) > len(TEXT.own)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /metrics?name[]=x HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.0\n\n", b"200"),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /../metrics HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", b"405"),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\n\n", b"400"),
        (b"GET /metrics HTTP/2.0\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 20_000, b"431"),
        (b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 3000, b"431"),
    ],
)
def test_each_request_gets_its_status(start: Start, request_: bytes, status: bytes) -> None:
    server, port = start()
    hand_over(server)
    assert ask(port, request_)[0].split(b" ")[1] == status


def test_who_says_nothing_does_not_keep_others_waiting(start: Start) -> None:
    server, port = start()
    hand_over(server)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    silent[0].sendall(b"GET /metr")
    assert get(port)[0].endswith(b"200 OK")
    for connection in silent:
        connection.close()


def test_too_many_connections_cost_the_oldest(start: Start) -> None:
    server, port = start()
    hand_over(server)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(32)]
    time.sleep(0.7)
    answers = []
    for _ in range(200):  # the first ones make room, on a busy machine not at once
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            try:
                connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
                answers.append(connection.recv(100))
            except OSError:  # the room was not yet free
                answers.append(b"")
        if answers[-1]:
            break
        time.sleep(0.05)
    assert answers[-1].startswith(b"HTTP/1.1 200 OK")
    assert silent[0].recv(1) == b""
    threads = len(os.listdir(f"/proc/{server.pid}/task"))
    assert threads <= 34
    for connection in silent:
        connection.close()


def test_slow_clients_are_cut(start: Start) -> None:
    server, port = start()
    hand_over(server)
    slow = socket.create_connection(("127.0.0.1", port), 30)
    slow.sendall(b"GET /metrics HTTP/1.1\r\n")
    assert slow.recv(1) == b""  # it ends without an answer
    slow.close()


def test_a_client_that_goes_away_costs_nothing(start: Start) -> None:
    server, port = start()
    hand_over(server, Text(b"", b"hw_x 1\n" * 500_000))
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            connection.recv(10)
            linger = b"\1\0\0\0\0\0\0\0"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert get(port, path=b"/healthz")[0].endswith(b"200 OK")


def test_scrapes_at_once_all_get_a_page(start: Start) -> None:
    server, port = start()
    hand_over(server)
    bodies: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: bodies.append(get(port, b"Accept-Encoding: gzip\r\n")[2]))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([body for body in bodies if TEXT.own in gzip.decompress(body)]) == 16


def test_the_end_of_the_child_is_told(start: Start) -> None:
    server, _ = start()
    hand_over(server)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(EOFError, match=r"the HTTP server ended \(exit code 137\)"):
        for _ in range(1000):
            server.publish(TEXT, time.monotonic(), 1)
            time.sleep(0.01)


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    program = """if True:
        import os, time
        from raydiag.exporter import listener
        from raydiag.exporter.server import PageServer
        server = PageServer(listener.listen("127.0.0.1", 0), "n1")
        print(server.pid, flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    until = time.monotonic() + 120
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_child_holds_no_descriptor_of_the_parents(start: Start, tmp_path: Path) -> None:
    with open(tmp_path / "log", "w"):
        server, _ = start()
    hand_over(server)
    held = [
        os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{server.pid}/fd")
    ]
    assert sorted(one.partition(":")[0] for one in held) == ["/dev/null"] * 3 + ["socket"] * 2


# ---- addresses


def test_a_port_that_is_taken_says_by_whom() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        name = Path("/proc/self/comm").read_text().strip()
        with pytest.raises(CannotRun) as refused:
            listener.listen("127.0.0.1", port)
    assert str(refused.value) == (
        f"cannot listen on 127.0.0.1:{port}: {name} (pid {os.getpid()}) has that port"
    )


@pytest.mark.parametrize("address", ["198.51.100.1", "no.such.host.invalid", "a\0b", "x" * 300])
def test_an_address_that_is_not_ours_is_refused(address: str) -> None:
    with pytest.raises(CannotRun, match="listen"):
        listener.listen(address, 0)


@pytest.mark.parametrize(
    ("address", "exposed"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)]
)
def test_who_may_reach_us(address: str, exposed: bool) -> None:
    with listener.listen(address, 0) as taken:
        assert listener.is_exposed(taken) is exposed


# ---- TLS


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """server.pem and client.pem with their keys, each signed by itself."""
    if not shutil.which("openssl"):
        pytest.skip("certificates are made with openssl, which is not installed")
    directory = tmp_path_factory.mktemp("tls")
    for name in ("server", "client"):
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        openssl(directory, "req", "-x509", "-days", "2", *kind, *files, *subject)
    return directory


def secure(port: int, certificates: Path, with_certificate: bool) -> bytes:
    context = ssl.create_default_context(cafile=str(certificates / "server.pem"))
    if with_certificate:
        context.load_cert_chain(certificates / "client.pem", certificates / "client.key")
    with (
        socket.create_connection(("127.0.0.1", port), 20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        return parts(connection)[2]


def test_tls_is_spoken_and_nothing_else(start: Start, certificates: Path) -> None:
    context = tls_context(str(certificates / "server.pem"), str(certificates / "server.key"), None)
    server, port = start(context)
    hand_over(server)
    assert secure(port, certificates, False).startswith(TEXT.plugin_lines)
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = b""
        with suppress(ConnectionResetError):
            answer = connection.recv(1 << 16)
        assert b"hw_procs_running" not in answer


def test_clients_without_a_certificate_are_refused(start: Start, certificates: Path) -> None:
    names = (str(certificates / one) for one in ("server.pem", "server.key", "client.pem"))
    server, port = start(tls_context(*names))
    hand_over(server)
    assert secure(port, certificates, True).startswith(TEXT.plugin_lines)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        secure(port, certificates, False)


@pytest.mark.parametrize("content", [None, b"", b"\0\1\2", b"-----BEGIN CERTIFICATE-----\nx\n"])
def test_a_certificate_that_is_none_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "cert.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CannotRun, match="--tls-cert"):
        tls_context(str(path), None, None)


def test_a_client_ca_that_is_none_is_refused(certificates: Path) -> None:
    names = (str(certificates / one) for one in ("server.pem", "server.key", "server.key"))
    with pytest.raises(CannotRun, match="--tls-client-ca"):
        tls_context(*names)
