from __future__ import annotations

import http.server
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raydiag.errors import UsageError
from raydiag.model import Status, Window
from raydiag.tsdb import promql
from raydiag.tsdb.client import IN_FLIGHT, Client, base_url
from raydiag.tsdb.connection import open_directory
from raydiag.tsdb.series import Query
from tests.tsdb import promtool, samples

# ---- a real server


@pytest.fixture
def client(blocks: Path) -> Iterator[Client]:
    with open_directory(str(blocks)) as found:
        yield found.client


def test_every_kind_of_result(client: Client) -> None:
    at = samples.END
    window = Window(samples.START, samples.END, 60)
    answers = client.ask_all(
        [
            Query.at("vector", "hw_scrape_duration_seconds", at),
            Query.at("matrix", "hw_scrape_duration_seconds[1m]", at),
            Query.at("scalar", "scalar(vector(3))", at),
            Query.at("string", '"word"', at),
            Query.at("nothing", "no_such_metric", at),
            Query("range", "sum(up)", window),
            Query.at("nan", "vector(0) / 0", at),
        ]
    )
    assert list(answers) == ["vector", "matrix", "scalar", "string", "nothing", "range", "nan"]
    assert all(answer.ok for answer in answers.values())
    assert sorted(one.labels["host"] for one in answers["vector"].series) == list(samples.HOSTS)
    assert [len(one) for one in answers["matrix"].series] == [7, 7, 7]
    assert answers["scalar"].series[0].last == 3
    assert answers["nothing"].series == ()
    assert answers["range"].series[0].values.tolist() == [6] * 11
    assert answers["nan"].series[0].nan_times.tolist() == [at]
    record = {one.id: one for one in client.asked}
    assert record["range"].rows == 1 and record["range"].samples == 11
    assert record["range"].step_s == 60 and record["range"].promql == "sum(up)"


def test_wrong_promql_has_the_servers_words(client: Client) -> None:
    answer = client.ask(Query.at("q", "rate(up)", samples.END))
    assert answer.status is Status.ERROR and answer.bad_query
    assert "expected type range vector" in answer.reason
    assert client.asked[-1].reason == answer.reason


def test_two_queries_with_one_id(client: Client) -> None:
    with pytest.raises(UsageError, match="one id"):
        client.ask_all([Query.at("q", "up", 1), Query.at("q", "up", 2)])


def test_hosts_with_special_characters(tmp_path: Path, needs_prometheus: None) -> None:
    names = ["a.b", "axb", "c|d", 'e"f', "g\\h", "i+j", "k{l}", "ü-1"]
    when = samples.times(7)
    series = [("hw_procs_running", {"host": one}, [(t, 1.0) for t in when]) for one in names]
    with open_directory(str(promtool.write_blocks(series, tmp_path / "prometheus"))) as found:
        for chosen in ([one] for one in names):
            text = promql.selector("hw_procs_running", match={"host": promql.any_of(chosen)})
            answer = found.client.ask(Query.at("q", text, when[-1]))
            assert [one.labels["host"] for one in answer.series] == chosen, answer.reason
        text = promql.selector("hw_procs_running", match={"host": promql.any_of(names)})
        assert len(found.client.ask(Query.at("q", text, when[-1])).series) == len(names)


# ---- servers that are none

Answering = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answering) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer(self)

        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def saying(status: int, body: bytes, kind: str = "application/json") -> Answering:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


REFUSAL = b'{"status":"error","errorType":"%s","error":"%s"}'
OK_HEAD = b'{"status":"success","data":{"resultType":"matrix","result":'


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (200, b"<!DOCTYPE html><html>", "text/html", "web page instead of Prometheus's JSON"),
        (200, b"<html>", "text/plain", "web page instead"),
        (200, b"", "", "not Prometheus's JSON"),
        (200, b"[]", "application/json", "not Prometheus's JSON"),
        (200, b"[" * 100_000, "application/json", "not Prometheus's JSON"),
        (200, b'{"status":"success"}', "application/json", "not in Prometheus's format"),
        (200, OK_HEAD + b"[{}]}}", "application/json", "not in Prometheus's format"),
        (200, OK_HEAD + b'[{"metric":{},"values":[[1,"x"]]}]}}', "", "not in Prometheus's format"),
        (200, b'{"status":"success","data":{"resultType":"streams","result":[]}}', "", "streams"),
        (401, b"no", "text/plain", "wants a login"),
        (403, b"no", "text/plain", "wants a login"),
        (404, b"404 page not found", "text/plain", "HTTP 404 and not Prometheus's JSON: 404 page"),
        (500, b"oops", "text/plain", "HTTP 500: the server failed"),
        (502, b"<html>", "text/html", "HTTP 502: the server behind the gateway"),
        (503, b"Service Unavailable", "text/plain", "HTTP 503: the server is not ready"),
        (422, REFUSAL % (b"execution", b"too\\n many"), "", "execution: too many"),
        (503, REFUSAL % (b"timeout", b"query timed out"), "", "timeout: query timed out"),
    ],
)
def test_an_answer_that_is_none(status: int, body: bytes, kind: str, words: str) -> None:
    with serving(saying(status, body, kind)) as url:
        answer = Client(url).ask(Query.at("q", "up", 1))
    assert answer.status is Status.ERROR and words in answer.reason
    assert not answer.bad_query and answer.series == ()
    assert "\n" not in answer.reason


def test_a_gateway_that_lets_get_through_only() -> None:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        body = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
        saying(405 if handler.command == "POST" else 200, body)(handler)

    with serving(answer) as url:
        assert Client(url).ask(Query.at("q", "up", 1)).ok


def test_numbers_that_json_has_not() -> None:
    body = OK_HEAD + b'[{"metric":{},"values":[[1,"NaN"],[2,"+Inf"],[3,"-Inf"],[4,"1e3"]]}]}}'
    with serving(saying(200, body)) as url:
        (one,) = Client(url).ask(Query.at("q", "up", 1)).series
    assert one.values.tolist() == [math.inf, -math.inf, 1000]
    assert one.nan_times.tolist() == [1]


def test_a_server_that_stalls_costs_the_deadline_and_is_then_given_up() -> None:
    with serving(lambda handler: time.sleep(20)) as url:
        client = Client(url, deadline_s=0.3)
        started = time.monotonic()
        answers = client.ask_all([Query.at(str(n), "up", 1) for n in range(40)])
        assert time.monotonic() - started < 3
    assert {answer.status for answer in answers.values()} == {Status.TIMEOUT}
    assert "not asked" in answers["39"].reason
    assert len(client.asked) == 40


def test_all_queries_together_have_a_limit() -> None:
    def slow(handler: http.server.BaseHTTPRequestHandler) -> None:
        time.sleep(0.2)
        saying(200, b'{"status":"success","data":{"resultType":"vector","result":[]}}')(handler)

    with serving(slow) as url:
        started = time.monotonic()
        answers = Client(url).ask_all(
            [Query.at(str(n), "up", 1) for n in range(20)], deadline_s=0.7
        )
        assert time.monotonic() - started < 2
    kinds = {answer.status for answer in answers.values()}
    assert kinds == {Status.OK, Status.TIMEOUT}


def test_an_answer_that_trickles_in_is_broken_off() -> None:
    def trickle(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        for _ in range(200):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)

    with serving(trickle) as url:
        started = time.monotonic()
        answer = Client(url, deadline_s=0.5).ask(Query.at("q", "up", 1))
        assert time.monotonic() - started < 2
    assert answer.status is Status.TIMEOUT


def test_an_answer_that_breaks_off() -> None:
    def broken(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        handler.wfile.write(b'{"status":')

    with serving(broken) as url:
        answer = Client(url).ask(Query.at("q", "up", 1))
    assert answer.status is Status.ERROR and answer.reason


def test_nobody_listens_and_nobody_speaks_http() -> None:
    assert "refused" in Client("http://127.0.0.1:9").ask(Query.at("q", "up", 1)).reason
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        client = Client(f"http://127.0.0.1:{deaf.getsockname()[1]}", deadline_s=0.3)
        assert client.ask(Query.at("q", "up", 1)).status is Status.TIMEOUT


def test_never_more_than_two_in_flight() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def counting(handler: http.server.BaseHTTPRequestHandler) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        saying(200, b'{"status":"success","data":{"resultType":"vector","result":[]}}')(handler)

    with serving(counting) as url:
        Client(url).ask_all([Query.at(str(n), "up", 1) for n in range(12)])
    assert most[0] == IN_FLIGHT


def test_a_proxy_of_the_environment_is_not_asked_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(saying(200, b'{"status":"success","data":[]}')) as url:
        assert Client(url).metadata("labels").ok


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://h:9190/", "http://h:9190"),
        ("h:9190", "http://h:9190"),
        ("https://h/prom/graph", "https://h/prom"),
        ("http://h:9190/api/v1", "http://h:9190"),
        ("http://[::1]:9190", "http://[::1]:9190"),
    ],
)
def test_what_people_copy_from_the_address_line(given: str, expected: str) -> None:
    assert base_url(given) == expected


@pytest.mark.parametrize("given", ["", "ftp://h", "http://", "http://h:x", "http://h:99999999"])
def test_what_is_no_url(given: str) -> None:
    with pytest.raises(UsageError, match="not the URL of a Prometheus"):
        base_url(given)
