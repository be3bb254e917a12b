"""Ray's dashboard over HTTP, against a server on loopback that plays well and ill."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raydiag.cluster import jobs_api
from raydiag.cluster.jobs_api import JobsApi, PrintedLog
from raydiag.errors import AuthenticationFailed, CannotRun
from raydiag.model import Actor
from tests.fake_dashboard import SESSION, FakeDashboard, Reply

TRACEBACK = """Traceback (most recent call last):
  File "job_head.py", line 400, in submit_job
    raise ValueError("no such thing")
ValueError: no such thing
"""
PAGE = "<!DOCTYPE html>\n<html><body><h1>It works</h1></body></html>\n"

CALLS: dict[str, Callable[[JobsApi], Any]] = {
    "version": lambda api: api.version(),
    "submit": lambda api: api.submit("true", "raydiag-1", {}),
    "job": lambda api: api.job("raydiag-1"),
    "stop": lambda api: api.stop("raydiag-1"),
    "jobs": lambda api: api.jobs(),
}
ROUTES = {
    "version": "GET /api/version",
    "submit": "POST /api/jobs/",
    "job": "GET JOB/",
    "stop": "POST JOB/stop",
    "jobs": "GET /api/jobs/",
}
every_call = pytest.mark.parametrize("call", CALLS)


@pytest.fixture
def dashboard() -> Iterator[FakeDashboard]:
    server = FakeDashboard()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("RAY_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def refused(call: str, api: JobsApi) -> str:
    """The message with which the call fails; one line, that says where."""
    with pytest.raises(CannotRun) as caught:
        CALLS[call](api)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    assert api.url in message
    return message


def free_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_version(dashboard: FakeDashboard) -> None:
    assert JobsApi(dashboard.url).version() == {"ray_version": "2.60.0", "session_name": SESSION}


def test_slash_at_the_end_of_the_url(dashboard: FakeDashboard) -> None:
    assert JobsApi(dashboard.url + "/").version()["ray_version"] == "2.60.0"


def test_submission(dashboard: FakeDashboard) -> None:
    api = JobsApi(dashboard.url)
    api.submit("echo 'two words'", "raydiag-probe-1", {"raydiag": "probe"})
    assert dashboard.submitted == {
        "entrypoint": "echo 'two words'",
        "submission_id": "raydiag-probe-1",
        "runtime_env": {},
        "metadata": {"raydiag": "probe"},
        "entrypoint_num_cpus": 0,
        "entrypoint_num_gpus": 0,
    }
    # Without the slash at its end Ray has no such route.
    assert dashboard.asked[-1].path == "/api/jobs/"
    assert api.job("raydiag-probe-1")["status"] == "PENDING"
    api.stop("raydiag-probe-1")
    assert dashboard.stopped == ["raydiag-probe-1"]


def test_log(dashboard: FakeDashboard) -> None:
    api = JobsApi(dashboard.url)
    dashboard.overrides["GET JOB/logs"] = Reply(body=json.dumps({"logs": "one\ntwo\n"}))
    assert api.logs("raydiag-1") == "one\ntwo\n"


STATE = "GET /api/v0/logs/file"


@pytest.fixture
def printing(dashboard: FakeDashboard) -> FakeDashboard:
    """It knows on which node the job's driver runs."""
    dashboard.overrides["GET JOB/"] = Reply(body='{"driver_node_id": "ab12"}')
    return dashboard


def test_what_a_job_printed_comes_line_by_line_from_its_end(printing: FakeDashboard) -> None:
    printing.overrides[STATE] = Reply(body="one\ntwo\n")
    assert JobsApi(printing.url).printed("llama") == PrintedLog("one\ntwo\n")


def test_the_end_of_a_long_log_is_told_as_such(
    printing: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "_LOG_LINES", 3)
    printing.overrides[STATE] = Reply(body="one\ntwo\nthree\n")
    printed = JobsApi(printing.url).printed("llama")
    assert printed.text == "one\ntwo\nthree\n"
    assert "last 3 lines" in printed.reason


def test_an_older_ray_gives_all_of_a_log(printing: FakeDashboard) -> None:
    printing.overrides[STATE] = Reply(500, body="no submission_id here")
    printing.overrides["GET JOB/logs"] = Reply(body='{"logs": "one\\n"}')
    assert JobsApi(printing.url).printed("llama") == PrintedLog("one\n")


@pytest.mark.parametrize("old", [True, False])
def test_a_log_that_is_too_long_is_not_taken_for_all_of_it(
    printing: FakeDashboard, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    monkeypatch.setattr(jobs_api, "_LOG_BYTES", 1000)
    body = json.dumps({"logs": "x" * 5000})
    printing.overrides[STATE] = Reply(500) if old else Reply(body=body)
    printing.overrides["GET JOB/logs"] = Reply(body=body)
    printed = JobsApi(printing.url).printed("llama")
    assert printed.text == ""
    assert "name its directory" in printed.reason


def test_a_log_that_is_not_given_is_told_so(printing: FakeDashboard) -> None:
    for route in (STATE, "GET JOB/logs"):
        printing.overrides[route] = Reply(500, body="agent is gone")
    printed = JobsApi(printing.url).printed("llama")
    assert printed.text == "" and "does not give its log" in printed.reason


def test_a_stuck_agent_is_asked_for_a_log_once(
    printing: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "_TIMEOUT_S", (1.0, 0.2))
    printing.stuck = ("/api/v0/logs",)
    printed = JobsApi(printing.url).printed("llama")
    assert "does not give its log" in printed.reason
    assert not any(asked.path.endswith("/logs") for asked in printing.asked)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(404, "not yet", "text/plain"),
        Reply(500, TRACEBACK, "text/plain"),
        Reply(body="[]"),
        Reply(body='{"logs": null}'),
        Reply(body=PAGE, content_type="text/html"),
    ],
)
def test_log_that_is_not_there_is_empty(dashboard: FakeDashboard, reply: Reply) -> None:
    dashboard.overrides["GET JOB/logs"] = reply
    assert JobsApi(dashboard.url).logs("raydiag-1") == ""


@pytest.mark.parametrize("foreign", ["raysubmit_abc", "01000000", "", "xraydiag-1"])
def test_foreign_jobs_are_never_stopped(dashboard: FakeDashboard, foreign: str) -> None:
    with pytest.raises(CannotRun, match="is not raydiag's job"):
        JobsApi(dashboard.url).stop(foreign)
    assert dashboard.asked == []


@pytest.mark.parametrize("foreign", ["", "raysubmit_1", "my-raydiag-1"])
def test_foreign_jobs_are_never_deleted(dashboard: FakeDashboard, foreign: str) -> None:
    with pytest.raises(CannotRun, match="is not raydiag's job"):
        JobsApi(dashboard.url).delete(foreign)
    assert dashboard.asked == []


def test_calls_are_over_at_the_limit(dashboard: FakeDashboard) -> None:
    dashboard.silent.set()
    api = JobsApi(dashboard.url)
    api.limit = time.monotonic() + 0.3
    assert "does not answer" in refused("job", api)
    assert time.monotonic() < api.limit + 5  # and not after the usual half minute


def job(status: str, start_ms: Any, submission_id: Any = None) -> dict[str, Any]:
    return {"status": status, "start_time": start_ms, "submission_id": submission_id}


@pytest.mark.parametrize(
    ("jobs", "start"),
    [
        ([], None),
        ([job("RUNNING", 5_000, "raysubmit_b"), job("RUNNING", 3_000)], 3.0),
        ([job("RUNNING", 5_000, "raysubmit_b"), job("RUNNING", 1_000, "raydiag-probe-1")], 5.0),
        ([job("RUNNING", 1_000, "raydiag-probe-1")], None),
        ([job("SUCCEEDED", 1_000), job("FAILED", 2_000, "raysubmit_c")], None),
        ([job("PENDING", None, "raysubmit_d"), job("RUNNING", None)], None),
    ],
)
def test_training_start_leaves_our_own_jobs_out(
    dashboard: FakeDashboard, jobs: list[dict[str, Any]], start: float | None
) -> None:
    dashboard.jobs = jobs
    assert jobs_api.training_start(JobsApi(dashboard.url).jobs()) == start


def test_actors(dashboard: FakeDashboard) -> None:
    rows = [
        {"node_id": "n1", "pid": 7, "class_name": "Trainer", "name": "rank_0", "state": "ALIVE"},
        {
            "node_id": "n2",
            "pid": None,
            "class_name": "main.<locals>.Trainer",
            "name": None,
            "state": "DEAD",
            "job_id": "02000000",
        },
        {"node_id": "n1", "pid": 9, "class_name": "RaydiagNodeActor", "state": "ALIVE"},
    ]
    dashboard.overrides["GET /api/v0/actors"] = Reply(
        body=json.dumps({"result": True, "data": {"result": {"result": rows}}})
    )
    assert JobsApi(dashboard.url).actors() == [
        Actor("n1", 7, "Trainer", "rank_0", True),
        Actor("n2", 0, "Trainer", "", False, "02000000"),
    ]


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"data": null}', '{"data": {"result": {}}}'])
def test_actors_are_optional(dashboard: FakeDashboard, body: str) -> None:
    dashboard.overrides["GET /api/v0/actors"] = Reply(body=body)
    assert JobsApi(dashboard.url).actors() == []


@every_call
@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=PAGE, content_type="text/html"),
        Reply(body="7"),
        Reply(body=""),
        Reply(body="null"),
    ],
)
def test_server_that_is_not_ray(dashboard: FakeDashboard, call: str, reply: Reply) -> None:
    dashboard.overrides[ROUTES[call]] = reply
    message = refused(call, JobsApi(dashboard.url))
    assert "is not that of a Ray dashboard" in message
    assert "--address" in message
    assert "It works" not in message


@pytest.mark.parametrize("body", ["{}", '{"version": "1.0"}', '["ray_version"]'])
def test_version_of_something_else(dashboard: FakeDashboard, body: str) -> None:
    dashboard.overrides["GET /api/version"] = Reply(body=body)
    assert "/api/version is not that of a Ray dashboard" in refused(
        "version", JobsApi(dashboard.url)
    )


def test_not_found_page_of_another_server(dashboard: FakeDashboard) -> None:
    dashboard.overrides["GET /api/version"] = Reply(404, PAGE, "text/html; charset=utf-8")
    message = refused("version", JobsApi(dashboard.url))
    assert "HTTP 404: Not Found; if this is no Ray dashboard, give" in message


@every_call
def test_server_error_shows_ray_s_words(dashboard: FakeDashboard, call: str) -> None:
    dashboard.overrides[ROUTES[call]] = Reply(500, TRACEBACK, "text/plain")
    message = refused(call, JobsApi(dashboard.url))
    assert "HTTP 500" in message
    assert "ValueError: no such thing; Ray's side of it is in dashboard.log" in message


def test_agent_that_still_starts_is_waited_for(dashboard: FakeDashboard) -> None:
    words = "No available agent to submit job, please try again later."
    dashboard.once["POST /api/jobs/"] = Reply(500, words, "text/plain")
    CALLS["submit"](JobsApi(dashboard.url))
    assert dashboard.submitted is not None
    assert [asked.method for asked in dashboard.asked] == ["POST", "POST"]


def test_long_words_are_cut(dashboard: FakeDashboard) -> None:
    dashboard.overrides["POST /api/jobs/"] = Reply(400, "x " * 5000 + "the end", "text/plain")
    assert "the end" in refused("submit", JobsApi(dashboard.url))


@every_call
def test_nothing_listens(call: str) -> None:
    message = refused(call, JobsApi(free_url()))
    assert message.startswith("no Ray dashboard at http://127.0.0.1:")
    assert ": Connection refused. Is the cluster up" in message
    assert "--address local" in message


def test_listener_that_never_answers(
    dashboard: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "_TIMEOUT_S", (1.0, 0.05))
    dashboard.silent.set()
    for call in CALLS:
        assert "takes connections and does not answer" in refused(call, JobsApi(dashboard.url))
    assert JobsApi(dashboard.url).logs("raydiag-1") == ""
    assert JobsApi(dashboard.url).actors() == []


def test_a_head_whose_agent_starts_no_jobs(
    dashboard: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "_TIMEOUT_S", (1.0, 0.5))
    api = JobsApi(dashboard.url)
    api.version()
    dashboard.silent.set()
    message = refused("submit", api)
    assert "answers, but Ray's dashboard agent on the head node" in message
    assert "takes connections and does not answer" in refused("jobs", api)


@pytest.mark.parametrize(
    ("date", "ahead_s"),
    [("Thu, 01 Jan 2026 00:00:00 GMT", 0.0), ("Thu, 01 Jan 2026 01:00:00 GMT", 3600.0)],
)
def test_the_clock_of_the_head(
    dashboard: FakeDashboard, monkeypatch: pytest.MonkeyPatch, date: str, ahead_s: float
) -> None:
    api = JobsApi(dashboard.url)
    assert api.head_time() is None
    dashboard.date = date
    monkeypatch.setattr("time.time", lambda: 1_767_225_600.0)
    api.version()
    assert api.head_time() == 1_767_225_600.0 + ahead_s


@pytest.mark.parametrize("date", ["", "today", "Thu, 99 Jan 2026 00:00:00 GMT"])
def test_a_dashboard_without_a_clock(dashboard: FakeDashboard, date: str) -> None:
    api = JobsApi(dashboard.url)
    dashboard.date = date
    api.version()
    assert api.head_time() is None


def test_https_where_http_is_spoken(dashboard: FakeDashboard) -> None:
    message = refused("version", JobsApi(dashboard.url.replace("http:", "https:")))
    assert "SSL" in message
    assert "Connection refused" not in message


@pytest.mark.parametrize("host", ["a..b", "x" * 64, ".x", "two words", "\u2603.invalid"])
def test_host_that_no_resolver_takes(host: str) -> None:
    assert "--address" in refused("jobs", JobsApi(f"http://{host}:8265"))


def test_token_is_sent_as_bearer_with_every_request(dashboard: FakeDashboard) -> None:
    dashboard.token = "s3cret"
    api = JobsApi(dashboard.url, "s3cret")
    api.version()
    api.jobs()
    api.submit("true", "raydiag-1", {})
    api.stop("raydiag-1")
    assert {asked.headers["Authorization"] for asked in dashboard.asked} == {"Bearer s3cret"}


def test_no_token_no_header(dashboard: FakeDashboard) -> None:
    JobsApi(dashboard.url).version()
    assert "Authorization" not in dashboard.asked[0].headers


@every_call
@pytest.mark.parametrize(
    ("token", "words"), [(None, "requires a token"), ("old", "refuses the token")]
)
def test_token_missing_or_wrong(
    dashboard: FakeDashboard, call: str, token: str | None, words: str
) -> None:
    dashboard.token = "s3cret"
    message = refused(call, JobsApi(dashboard.url, token))
    assert f"{words}: give this cluster's own in RAY_AUTH_TOKEN" in message
    assert "old" not in message
    with pytest.raises(AuthenticationFailed):
        CALLS[call](JobsApi(dashboard.url, token))


def test_unauthorized_with_a_token(dashboard: FakeDashboard) -> None:
    dashboard.overrides["GET /api/version"] = Reply(401, "no", "text/plain")
    assert "refuses the token" in refused("version", JobsApi(dashboard.url, "s3cret"))


def test_token_does_not_follow_a_redirect_to_another_server(dashboard: FakeDashboard) -> None:
    other = FakeDashboard()
    try:
        where = {"Location": f"{other.url}/api/version"}
        dashboard.overrides["GET /api/version"] = Reply(302, headers=where)
        JobsApi(dashboard.url, "s3cret").version()
        assert "Authorization" not in other.asked[0].headers
    finally:
        other.close()


def test_proxy_is_not_asked_for_loopback(
    dashboard: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, free_url())
    JobsApi(dashboard.url).version()
    JobsApi(dashboard.url.replace("127.0.0.1", "localhost")).version()


@pytest.mark.parametrize(
    ("url", "uses_proxy"),
    [
        ("http://10.1.2.3:8265", False),
        ("http://192.168.0.1", False),
        ("http://[::1]:8265", False),
        ("http://[fd00::1]:8265", False),
        ("http://node001:8265", False),  # a name without a domain is of this site
        ("https://ray.example.com", True),
        ("http://8.8.8.8:8265", True),
    ],
)
def test_proxy_is_used_beyond_the_site_only(url: str, uses_proxy: bool) -> None:
    assert JobsApi(url)._session.trust_env is uses_proxy


def test_proxy_is_asked_for_a_public_name(
    dashboard: FakeDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", dashboard.url)
    with pytest.raises(CannotRun, match="HTTP 404"):
        JobsApi("http://ray.example.com").version()
    assert dashboard.asked[0].path == "http://ray.example.com/api/version"


class TestToken:
    """Looked up where Ray looks it up."""

    def test_none(self) -> None:
        assert jobs_api.token() is None

    def test_precedence(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("of-home\n")
        assert jobs_api.token() == "of-home"
        (tmp_path / "named").write_text(" of-path ")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "named"))
        assert jobs_api.token() == "of-path"
        monkeypatch.setenv("RAY_AUTH_TOKEN", "of-environment\n")
        assert jobs_api.token() == "of-environment"
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        assert jobs_api.token() == "of-environment"
        monkeypatch.setenv("RAY_AUTH_MODE", "Disabled")
        assert jobs_api.token() is None

    def test_named_file_is_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "nothing"
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
        with pytest.raises(AuthenticationFailed) as caught:
            jobs_api.token()
        assert str(caught.value) == f"RAY_AUTH_TOKEN_PATH: {path}: No such file or directory"

    @pytest.mark.parametrize("content", [b"", b" \n"])
    def test_empty_file(
        self, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "token").write_bytes(content)
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
        assert jobs_api.token() is None

    @pytest.mark.parametrize(
        "content", [b"s3cret\nmore", b"s3cret more", b"\x7fELF\xff", b"s\xc3\xa9"]
    )
    def test_file_that_holds_no_token_is_not_shown(
        self, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "token"
        path.write_bytes(content)
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
        with pytest.raises(AuthenticationFailed, match="does not hold a token") as caught:
            jobs_api.token()
        assert str(path) in str(caught.value)
        assert "s3cret" not in str(caught.value)

    def test_home_that_is_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)
        assert jobs_api.token() is None
