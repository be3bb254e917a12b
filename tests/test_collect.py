"""The caller's side of a run: what the nodes' answers become, and what becomes of our job."""

from __future__ import annotations

import base64
import contextlib
import copy
import itertools
import json
import math
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag import probes
from raydiag.cluster import collect as collect_module
from raydiag.cluster import jobs_api, submission
from raydiag.cluster.address import Address
from raydiag.cluster.afterwards import do_afterwards
from raydiag.cluster.bundle import Package
from raydiag.cluster.collect import Collected, ProbeRequest, collect, reports
from raydiag.cluster.jobs_api import JobsApi
from raydiag.errors import CannotRun, ParseError, UsageError
from raydiag.model import NodeReport, NodeStatus, ProbeResult, Status, StuckReader, Unread
from raydiag.probes.versions import Version
from tests import odd_documents as odd
from tests.fake_dashboard import (
    END,
    GCS,
    SESSION,
    FakeDashboard,
    Reply,
    framed,
    node,
    packed,
    start_message,
)

DEADLINE_S = 5.0
VERSION = Version("kernel", "5.15.0", "/proc/version")
RESULT = {
    "status": "ok",
    "duration_s": 0.1,
    "reason": "",
    "records": [vars(VERSION)],
    "unread": [],
}
ANSWER: Mapping[str, Any] = {
    "hostname": "node001",
    "time": 1_767_323_046.5,
    "duration_s": 0.4,
    "cpu_s": 0.05,
    "pid": 4242,
    "sandbox": {"files": {"no_new_privs": True, "seccomp": True, "landlock_abi": 4}},
    "stuck": [],
    "probes": {"versions": RESULT},
}
END_MESSAGE = {"messages": 1, "duration_s": 0.7}


def eventually(holds: Callable[[], bool]) -> bool:
    for _ in range(200):
        if holds():
            return True
        time.sleep(0.05)
    return False


def reported(message: Mapping[str, Any] | None, names: Sequence[str] = ("versions",)) -> NodeReport:
    messages = {} if message is None else {1: message}
    return reports([node(1)], messages, names, ends={})[0]


def with_result(**changed: Any) -> dict[str, Any]:
    return packed({**ANSWER, "probes": {"versions": {**RESULT, **changed}}})


class TestAnswerOfANode:
    def test_whole(self) -> None:
        report = reported(packed(ANSWER))
        assert report.node.host == "node001"
        assert (report.status, report.reason, report.duration_s) == (NodeStatus.OK, "", 0.5)
        assert report.probes == {
            "versions": ProbeResult("versions", Status.OK, 0.1, "", [VERSION], [], [], 0.0)
        }
        assert report.sandbox == ANSWER["sandbox"]
        assert report.pid == 4242
        assert (report.collected_at, report.cpu_s) == (1_767_323_046.5, 0.05)

    @pytest.mark.parametrize("status", ["no_data", "denied"])
    def test_node_is_ok_where_there_is_nothing_to_read(self, status: str) -> None:
        report = reported(with_result(status=status, reason="why", records=[]))
        assert report.status is NodeStatus.OK
        assert report.probes["versions"].status.value == status
        assert report.probes["versions"].reason == "why"

    @pytest.mark.parametrize("status", ["timeout", "error"])
    def test_node_is_partial_where_a_probe_broke(self, status: str) -> None:
        report = reported(with_result(status=status, reason="why"))
        assert report.status is NodeStatus.PARTIAL
        assert report.reason == f"versions {status}: why"
        assert report.records("versions") == [VERSION]  # what came before it broke

    def test_unread_and_stuck(self) -> None:
        stuck = {
            "source": "/mnt/a",
            "probe": "storage",
            "pid": 7,
            "seconds": 2,
            "wchan": "rpc_wait",
            "new": False,
        }
        result = {**RESULT, "unread": [["/proc/x", "denied", "no"]]}
        report = reported(packed({**ANSWER, "stuck": [stuck], "probes": {"versions": result}}))
        assert report.stuck == [StuckReader("/mnt/a", "storage", 7, 2.0, "rpc_wait", False)]
        assert report.probes["versions"].unread == [Unread("/proc/x", Status.DENIED, "no")]

    def test_field_of_a_newer_version_is_ignored(self) -> None:
        record = {**vars(VERSION), "colour": "blue"}
        assert reported(with_result(records=[record])).records("versions") == [VERSION]

    @pytest.mark.parametrize(
        "record",
        [
            {**vars(VERSION), "version": 5},
            {**vars(VERSION), "source": None},
            {"component": "kernel"},
            ["kernel", "5.15.0", "/proc/version"],
            "kernel",
            None,
        ],
    )
    def test_record_that_lies_costs_itself(self, record: Any) -> None:
        report = reported(with_result(records=[vars(VERSION), record]))
        assert report.status is NodeStatus.PARTIAL
        assert report.records("versions") == [VERSION]
        assert report.reason.startswith("versions error: records from the node are wrong: Version")

    @pytest.mark.parametrize(
        "answer",
        [
            None,
            7,
            [],
            "text",
            {},
            {**ANSWER, "probes": {}},
            {**ANSWER, "probes": {"memory": RESULT}},
            {**ANSWER, "probes": None},
            {**ANSWER, "probes": {"versions": 7}},
            {**ANSWER, "probes": {"versions": {**RESULT, "status": "splendid"}}},
            {**ANSWER, "probes": {"versions": {**RESULT, "duration_s": "long"}}},
            {**ANSWER, "probes": {"versions": {**RESULT, "records": 7}}},
            {**ANSWER, "probes": {"versions": {**RESULT, "unread": [["a", "splendid", "b"]]}}},
            {**ANSWER, "probes": {"versions": {**RESULT, "unread": ["ab"]}}},
            {**ANSWER, "stuck": [{"source": 7}]},
            {**ANSWER, "stuck": None},
            {**ANSWER, "sandbox": []},
            {**ANSWER, "sandbox": {"files": 7}},
            {**ANSWER, "time": None},
            {**ANSWER, "time": 10**400},
            {**ANSWER, "cpu_s": "much"},
        ],
    )
    def test_answer_that_makes_no_sense(self, answer: Any) -> None:
        report = reported(packed(answer))
        assert report.status is NodeStatus.UNREACHABLE
        assert report.reason.startswith("its answer cannot be decoded: ")
        assert len(report.reason) <= 300
        assert report.probes == {}

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"no zlib",
            zlib.compress(b"{"),
            zlib.compress(b"\xff\xfe{}"),
            zlib.compress(b"[" * 100_000),
            zlib.compress(json.dumps(ANSWER).encode())[:-1],
            zlib.compress(json.dumps(ANSWER).encode())[:-20],
        ],
    )
    def test_bytes_that_are_no_answer(self, data: bytes) -> None:
        message = {"status": "answered", "answer": base64.b64encode(data).decode()}
        report = reported(message)
        assert report.status is NodeStatus.UNREACHABLE
        assert report.reason.startswith("its answer cannot be decoded: ")

    def test_zip_bomb_is_not_unpacked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(collect_module, "_NODE_ANSWER_LIMIT_BYTES", 1000)
        seen: list[int] = []
        monkeypatch.setattr(json, "loads", lambda text: seen.append(len(text)))
        data = base64.b64encode(zlib.compress(b'"' + b"a" * 10_000_000 + b'"')).decode()
        report = reported({"status": "answered", "answer": data})
        assert "over the size limit" in report.reason
        assert seen == []

    @pytest.mark.parametrize("offset", [[1.0], [1.0, 2.0, 3.0], 1.0, [None, 1.0], ["a", "b"], {}])
    def test_a_clock_offset_of_another_length_costs_its_own_node(self, offset: object) -> None:
        packed = base64.b64encode(zlib.compress(json.dumps(ANSWER).encode())).decode()
        message = {"status": "answered", "answer": packed, "clock_offset_s": offset}
        report = reported(message)
        assert report.status is NodeStatus.UNREACHABLE
        assert "clock_offset_s" in report.reason

    @pytest.mark.parametrize(
        "message",
        [
            {},
            {"status": "asleep"},
            {"status": "dead"},
            {"status": ["answered"]},
            {"status": "answered", "duration_s": "long"},
            {"status": "answered", "answer": 5},
        ],
    )
    def test_a_message_that_is_none_costs_its_own_node(self, message: dict[str, Any]) -> None:
        assert reported(message).status is NodeStatus.UNREACHABLE

    def test_lost_answer(self) -> None:
        report = reported(None)
        assert report.status is NodeStatus.TIMEOUT
        assert report.reason.startswith("its answer was lost: ")

    @pytest.mark.parametrize("status", ["timeout", "unreachable", "dead"])
    def test_no_answer(self, status: str) -> None:
        report = reported({"status": status, "reason": "why", "duration_s": 5.0})
        assert (report.status.value, report.reason, report.duration_s) == (status, "why", 5.0)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from([*ANSWER, *RESULT, "versions"]), inner, max_size=4
                )
            ),
            max_leaves=8,
        ),
        st.sampled_from(["", *ANSWER, *RESULT]),
    )
    def test_anything_at_any_place(self, value: Any, place: str) -> None:
        if place in RESULT and place != "duration_s":
            report = reported(with_result(**{place: value}))
        else:
            report = reported(packed({**ANSWER, place: value} if place else value))
        for record in report.records("versions"):
            assert type(record) is Version


@pytest.mark.slow
@pytest.mark.parametrize("name", probes.names())
def test_an_odd_value_in_any_field_costs_its_own_node(name: str) -> None:
    """Wrong type, wrong length, NaN, huge, deep: in every field of what a node says."""
    whole = {**odd.MESSAGE, "answer": packed(odd.answer([name]))["answer"]}
    for place in places(odd.answer([name])):
        for value in odd.ODD:
            one = packed(replaced(odd.answer([name]), place, value))
            first, second = reports([node(1), node(2)], {1: one, 2: whole}, [name], ends={})
            assert second.status.value == "ok"
            for record in first.records(name):
                assert type(record) is probes.load(name).record
    for place in places(whole):
        for value in odd.ODD:
            messages = {1: replaced(whole, place, value), 2: whole}
            first, second = reports([node(1), node(2)], messages, [name], ends={})
            assert second.status.value == "ok"
            offset = first.clock_offset_s
            assert offset is None or (len(offset) == 2 and all(map(math.isfinite, offset)))


def places(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every part of it stands, lists by their first."""
    if above:
        yield above
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*above, key))
    elif isinstance(document, list) and document:
        yield from places(document[0], (*above, 0))


def replaced(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return document


class Clock:
    """Stands in for `time`: every sleep takes one second, and none at all."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()

    def sleep(self, _: float) -> None:
        self.now += 1.0


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDashboard]:
    clock = Clock()
    monkeypatch.setattr(collect_module, "time", clock)
    monkeypatch.setattr(jobs_api, "time", clock)
    server = FakeDashboard()
    yield server
    server.close()


def job_that_prints(
    dashboard: FakeDashboard, messages: Mapping[int, Mapping[str, Any]], *noise: str
) -> None:
    """The job's log: Ray's own first line, with the whole command, then noise and frames."""

    def log(request: Mapping[str, Any]) -> str:
        assert dashboard.submitted is not None
        shown = f"INFO job_manager.py -- Runtime env is ready\n{dashboard.submitted['entrypoint']}"
        lines = framed(request["nonce"], messages)
        return shown + "".join(f"{line}\n" for line in (*noise, *lines))

    dashboard.log = log


def ends(dashboard: FakeDashboard, status: str, message: str = "") -> None:
    dashboard.status, dashboard.message = status, message


def asking(select: Sequence[str] | None = None) -> ProbeRequest:
    return ProbeRequest(
        probes=["versions"],
        select=select,
        deadline_s=DEADLINE_S,
        options={"kernel_log": {"words": ["ecc"]}},
        driver_fault_symbols=["amdgpu_x"],
    )


def run(
    dashboard: FakeDashboard,
    request: ProbeRequest | None = None,
    address: Address | None = None,
    progress: Callable[[int, int], None] = lambda answered, asked: None,
    warn: Callable[[str], None] = lambda text: None,
) -> contextlib.AbstractContextManager[Collected]:
    where = address or Address(dashboard.url, "--address")
    return collect(JobsApi(dashboard.url), where, request or asking(), progress, warn)


def failure(dashboard: FakeDashboard, **options: Any) -> str:
    with pytest.raises(CannotRun) as caught, run(dashboard, **options):
        raise AssertionError("it collected something")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def job_id(dashboard: FakeDashboard) -> str:
    assert dashboard.submitted is not None
    return str(dashboard.submitted["submission_id"])


class TestRun:
    def test_nodes_in_every_state(self, dashboard: FakeDashboard) -> None:
        timeout = {"status": "timeout", "reason": "no answer within 5 s", "duration_s": 5.0}
        messages = {
            0: start_message(node(1), node(2, alive=False), node(3), node(4)),
            1: packed(ANSWER),
            2: timeout,
            # the answer of node 4 is lost
            END: END_MESSAGE,
        }
        job_that_prints(dashboard, messages, "\x1b[33mwarning\x1b[0m", "@raydiag of yesterday 1")
        ends(dashboard, "SUCCEEDED")
        with run(dashboard) as collected:
            assert [(r.node.host, r.status.value) for r in collected.nodes] == [
                ("node001", "ok"),
                ("node002", "dead"),
                ("node003", "timeout"),
                ("node004", "timeout"),
            ]
            assert collected.nodes[0].records("versions") == [VERSION]
            assert collected.nodes[1].reason == "UNEXPECTED_TERMINATION: health check failed"
            assert collected.asked_at == 1_767_323_045.0
            expected = {
                "address": dashboard.url,
                "gcs_address": GCS,
                "deadline_s": DEADLINE_S,
                "duration_s": 0.7,
                "ray_version": "2.60.0",
                "session_name": SESSION,
            }
            assert collected.cluster.items() >= expected.items()
        assert dashboard.stopped == []

    def test_what_is_submitted(self, dashboard: FakeDashboard) -> None:
        job_that_prints(dashboard, {0: start_message(), END: END_MESSAGE})
        ends(dashboard, "SUCCEEDED")
        with run(dashboard, asking(select=["node001"])):
            pass
        assert dashboard.submitted is not None
        assert job_id(dashboard).startswith("raydiag-probe-")
        assert dashboard.submitted["metadata"]["raydiag"] == "probe"
        request = dashboard.carried()["request"]
        assert request["select"] == ["node001"]
        assert request["deadline_s"] == DEADLINE_S
        assert request["node"] == {
            "probes": ["versions"],
            "options": {"kernel_log": {"words": ["ecc"]}},
            "driver_fault_symbols": ["amdgpu_x"],
            "force_ras": False,
            "interval_s": None,
        }

    def test_progress_and_a_job_that_takes_its_time(self, dashboard: FakeDashboard) -> None:
        messages = {
            0: start_message(node(1)),
            1_000_400: {"answered": 0, "asked": 1},
            1_000_900: {"answered": 1, "asked": 1},
            1: packed(ANSWER),
            END: END_MESSAGE,
        }
        job_that_prints(dashboard, messages)
        whole, polls = dashboard.log, iter(range(1, 100))

        def growing(request: Mapping[str, Any]) -> str:
            text = whole(request)
            poll = next(polls)
            return text if poll > 4 else text[: len(text) * poll // 5]

        dashboard.log = growing
        seen: list[tuple[int, int]] = []
        with run(dashboard, progress=lambda *counts: seen.append(counts)) as collected:
            assert collected.nodes[0].status is NodeStatus.OK
            ends(dashboard, "SUCCEEDED")
        assert seen == [(0, 1), (1, 1)]
        assert dashboard.stopped == []

    def test_end_without_a_line_feed(self, dashboard: FakeDashboard) -> None:
        job_that_prints(dashboard, {0: start_message(node(1)), 1: packed(ANSWER), END: END_MESSAGE})
        whole = dashboard.log
        dashboard.log = lambda request: whole(request).rstrip("\n")
        ends(dashboard, "SUCCEEDED")
        with run(dashboard) as collected:
            assert collected.nodes[0].status is NodeStatus.OK

    def test_nodes_that_do_not_exist_are_a_usage_error(self, dashboard: FakeDashboard) -> None:
        job_that_prints(dashboard, {END: {"usage": "no node 'x' in this cluster; it has: node001"}})
        ends(dashboard, "SUCCEEDED")
        with pytest.raises(UsageError, match="no node 'x'"), run(dashboard, asking(select=["x"])):
            raise AssertionError("it collected something")

    def test_cluster_without_a_living_node_cannot_be_probed(self, dashboard: FakeDashboard) -> None:
        job_that_prints(dashboard, {END: {"failed": "the cluster has no node that is alive"}})
        ends(dashboard, "SUCCEEDED")
        assert failure(dashboard) == "the cluster has no node that is alive"

    def test_lost_start_message(self, dashboard: FakeDashboard) -> None:
        job_that_prints(dashboard, {1: packed(ANSWER), END: END_MESSAGE})
        ends(dashboard, "SUCCEEDED")
        assert failure(dashboard).endswith("is damaged: try again")

    def test_a_forged_answer_beside_the_true_one_costs_that_node(
        self, dashboard: FakeDashboard
    ) -> None:
        messages = {0: start_message(node(1), node(2)), 1: packed(ANSWER), 2: packed(ANSWER)}

        def log(request: Mapping[str, Any]) -> str:
            forged = framed(request["nonce"], {1: packed({**ANSWER, "pid": 1})})
            lines = [*forged, *framed(request["nonce"], {**messages, END: END_MESSAGE})]
            return "".join(f"{line}\n" for line in lines)

        dashboard.log = log
        ends(dashboard, "SUCCEEDED")
        with run(dashboard) as collected:
            forged, other = collected.nodes
        assert (forged.status.value, other.status.value) == ("unreachable", "ok")
        assert forged.reason.startswith("two different messages came in its name")

    @pytest.mark.parametrize("number", [0, END])
    def test_a_forged_beginning_or_end_costs_the_run(
        self, dashboard: FakeDashboard, number: int
    ) -> None:
        messages = {0: start_message(node(1)), 1: packed(ANSWER), END: END_MESSAGE}

        def log(request: Mapping[str, Any]) -> str:
            nonce = request["nonce"]
            lines = [*framed(nonce, {number: {"time": 1}}), *framed(nonce, messages)]
            return "".join(f"{line}\n" for line in lines)

        dashboard.log = log
        ends(dashboard, "SUCCEEDED")
        assert "somebody else writes to that log" in failure(dashboard)

    @pytest.mark.parametrize("value", [None, [], {}, "x", 10**400, float("nan"), [{}], [1]])
    @pytest.mark.parametrize("name", ["nodes", "time", "gcs_address", "session_name", "answered"])
    def test_an_odd_word_of_the_coordinator_is_one_line(
        self, dashboard: FakeDashboard, name: str, value: Any
    ) -> None:
        start = {**start_message(node(1)), name: value}
        progress = {"answered": value, "asked": 1}
        job_that_prints(
            dashboard, {0: start, 1: packed(ANSWER), END + 1: progress, END: {name: value}}
        )
        ends(dashboard, "SUCCEEDED")
        with contextlib.suppress(CannotRun, ParseError), run(dashboard) as collected:
            assert {report.status.value for report in collected.nodes} <= {"ok"}

    def test_job_that_dies_shows_its_last_line(self, dashboard: FakeDashboard) -> None:
        trace = ["Traceback (most recent call last):", '  File "x", line 1', "ImportError: no ray"]
        job_that_prints(dashboard, {}, *trace)
        log_tail = "exec python -B -c 'import ray'\n" * 9
        ends(
            dashboard,
            "FAILED",
            "Job entrypoint command failed with exit code 1, last available logs (truncated to "
            f"20,000 chars):\n{log_tail}",
        )
        assert failure(dashboard) == (
            f"raydiag's job {job_id(dashboard)} gave no answer: status FAILED: Job entrypoint "
            "command failed with exit code 1; last line of its log: ImportError: no ray"
        )
        assert dashboard.stopped == []  # it was over

    @pytest.mark.parametrize("messages", [{}, {0: start_message(node(1))}])
    def test_job_that_dies_in_silence(
        self, dashboard: FakeDashboard, messages: dict[int, dict[str, Any]]
    ) -> None:
        job_that_prints(dashboard, messages)
        ends(dashboard, "FAILED", "driver died")
        assert failure(dashboard).endswith(
            "status FAILED: driver died; last line of its log: (it printed nothing)"
        )

    def test_job_that_never_starts_is_stopped(self, dashboard: FakeDashboard) -> None:
        ends(dashboard, "PENDING", "Job has not started yet.")
        assert "status PENDING: Job has not started yet." in failure(dashboard)
        assert dashboard.stopped == [job_id(dashboard)]

    def test_coordinator_that_hangs_is_stopped_after_the_deadline(
        self, dashboard: FakeDashboard
    ) -> None:
        job_that_prints(dashboard, {0: start_message(node(1))})
        assert "status RUNNING" in failure(dashboard)
        assert dashboard.stopped == [job_id(dashboard)]
        polls = [asked for asked in dashboard.asked if asked.path.endswith("/logs")]
        assert len(polls) <= DEADLINE_S + 4  # one a second, on the fake clock

    def test_job_that_lingers_is_stopped(self, dashboard: FakeDashboard) -> None:
        job_that_prints(dashboard, {0: start_message(node(1)), 1: packed(ANSWER), END: END_MESSAGE})
        with run(dashboard) as collected:
            assert len(collected.nodes) == 1
            assert dashboard.stopped == []  # the report comes before cleaning up
        assert dashboard.stopped == [job_id(dashboard)]

    @pytest.mark.slow
    def test_job_that_does_not_stop(self, dashboard: FakeDashboard) -> None:
        dashboard.overrides["POST JOB/stop"] = Reply(body='{"stopped": true}')
        job_that_prints(dashboard, {0: start_message(node(1))})
        warnings: list[str] = []
        assert "gave no answer: status RUNNING" in failure(dashboard, warn=warnings.append)
        (warning,) = warnings
        assert warning.endswith(f"job {job_id(dashboard)} does not stop")

    def test_trouble_at_the_end_changes_no_report(self, dashboard: FakeDashboard) -> None:
        job_that_prints(dashboard, {0: start_message(node(1)), 1: packed(ANSWER), END: END_MESSAGE})
        warnings: list[str] = []
        with run(dashboard, warn=warnings.append) as collected:
            assert collected.nodes[0].status is NodeStatus.OK
            dashboard.overrides["GET JOB/"] = Reply(500, "GCS is gone", "text/plain")
        (warning,) = warnings
        assert "GCS is gone" in warning
        assert f"job {job_id(dashboard)} may still run" in warning

    def test_answers_that_are_there_are_told_when_time_is_up(
        self, dashboard: FakeDashboard
    ) -> None:
        job_that_prints(dashboard, {0: start_message(node(1), node(2)), 1: packed(ANSWER)})
        with run(dashboard) as collected:
            assert [report.status.value for report in collected.nodes] == ["ok", "timeout"]
            assert collected.nodes[1].reason.startswith("its answer was lost")
        assert dashboard.stopped == [job_id(dashboard)]

    @pytest.mark.parametrize(("late_s", "runs"), [(-60, True), (0, True), (60, False)])
    def test_a_job_that_starts_too_late_does_nothing(
        self, dashboard: FakeDashboard, monkeypatch: pytest.MonkeyPatch, late_s: float, runs: bool
    ) -> None:
        sent = time.time() - submission.START_LIMIT_S - late_s + 1
        dashboard.date = formatdate(sent, usegmt=True)
        api = JobsApi(dashboard.url)
        api.version()
        submission.SubmittedJob(api, Package("echo began", "_ray_pkg_0.zip", b""), "probe")
        assert dashboard.submitted is not None
        command = dashboard.submitted["entrypoint"]
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        assert (done.stdout == "began\n") is runs
        assert ("nobody waits" in done.stdout) is not runs
        without_date = {"PATH": "/nonexistent"}
        assert subprocess.check_output(["/bin/sh", "-c", command], env=without_date) == b"began\n"

    def test_old_jobs_of_ours_leave_the_list_of_jobs(self, dashboard: FakeDashboard) -> None:
        def row(submission_id: str, status: str, **more: object) -> dict[str, Any]:
            return {"submission_id": submission_id, "status": status, **more}

        limit = {"raydiag_longest_s": "90"}
        dashboard.jobs = [
            row("raydiag-probe-old", "SUCCEEDED", start_time=1000, end_time=2000),
            row("raydiag-probe-just-now", "SUCCEEDED", start_time=190_000, end_time=199_000),
            row("raydiag-probe-waits", "PENDING", start_time=1000, metadata=limit),
            row("raydiag-probe-beside", "RUNNING", start_time=150_000, metadata=limit),
            row("raydiag-hotfix-long", "RUNNING", start_time=1000, metadata={}),
            row("raysubmit_1", "SUCCEEDED", start_time=1000),
        ]
        job_that_prints(dashboard, {0: start_message(), END: END_MESSAGE})
        ends(dashboard, "SUCCEEDED")
        dashboard.start_time = 200_000
        with run(dashboard):
            pass
        assert dashboard.forgotten == ["raydiag-probe-old"]
        assert dashboard.stopped == ["raydiag-probe-waits"]

    def test_our_own_entry_leaves_the_list_too(
        self, dashboard: FakeDashboard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs_api, "do_afterwards", do_afterwards)
        monkeypatch.setattr(jobs_api, "_MONITORED_S", 0.1)
        job_that_prints(dashboard, {0: start_message(), END: END_MESSAGE})
        ends(dashboard, "SUCCEEDED")
        dashboard.token = "planted-secret"
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # no proxy reaches it
        api, address = JobsApi(dashboard.url, dashboard.token), Address(dashboard.url, "--address")
        with collect(api, address, asking(), lambda *_: None, lambda _: None):
            pass
        assert eventually(lambda: len(dashboard.forgotten) == 2)  # the monitor may be late
        assert set(dashboard.forgotten) == {job_id(dashboard)}

    def test_a_ray_that_forgets_nothing_costs_no_report(self, dashboard: FakeDashboard) -> None:
        dashboard.jobs = [{"submission_id": "raydiag-probe-old", "status": "SUCCEEDED"}]
        dashboard.start_time = 200_000
        dashboard.overrides["DELETE JOB/"] = Reply(405, "no", "text/plain")
        job_that_prints(dashboard, {0: start_message(node(1)), 1: packed(ANSWER), END: END_MESSAGE})
        ends(dashboard, "SUCCEEDED")
        with run(dashboard) as collected:
            assert {report.status.value for report in collected.nodes} <= {"ok"}
        assert dashboard.forgotten == []

    def test_dashboard_that_goes_away(self, dashboard: FakeDashboard) -> None:
        dashboard.overrides["GET JOB/"] = Reply(500, "GCS is gone", "text/plain")
        assert "HTTP 500: GCS is gone" in failure(dashboard)

    @pytest.mark.slow
    def test_the_agent_of_the_head_dies(self, dashboard: FakeDashboard) -> None:
        trace = (
            "Traceback (most recent call last):\n aiohttp.client_exceptions.ClientConnectorError: "
        )
        trace += "Cannot connect to host 10.1.0.1:52365 ssl:default [Connect call failed]\n"
        reply = Reply(500, trace, "text/plain")
        dashboard.overrides.update({"GET JOB/logs": reply, "POST JOB/stop": reply})
        warnings: list[str] = []
        message = failure(dashboard, warn=warnings.append)
        assert message.startswith("the Ray agent at 10.1.0.1:52365 is dead, or the raylet above it")
        assert "ray-node-dead" in message and "raylet.out" in message
        assert "Traceback" not in message + warnings[0]

    @pytest.mark.parametrize("state", ["DEAD", "ALIVE"])
    def test_a_head_that_died_before_the_job_began(
        self, dashboard: FakeDashboard, monkeypatch: pytest.MonkeyPatch, state: str
    ) -> None:
        monkeypatch.setattr(collect_module, "_SLOW_START_S", 0.0)
        monkeypatch.setattr(submission, "START_LIMIT_S", 3.0)
        row = {"is_head_node": True, "state": state, "state_message": "health check failed"}
        nodes = {"data": {"result": {"result": [{"is_head_node": False, "state": "DEAD"}, row]}}}
        dashboard.overrides["GET /api/v0/nodes"] = Reply(body=json.dumps(nodes))
        message = failure(dashboard)
        is_told = message.startswith("the raylet of the head node is dead: health check failed")
        assert is_told is (state == "DEAD")

    def test_a_slow_dashboard_is_asked_for_its_nodes_less_and_less(
        self, dashboard: FakeDashboard
    ) -> None:
        """With a thousand nodes the list is its dearest reply, and it is late already."""
        clock: Any = vars(collect_module)["time"]
        asked_at: list[float] = []
        take = dashboard.handle

        def handle(http: BaseHTTPRequestHandler) -> None:
            if http.path.startswith("/api/v0/nodes"):
                asked_at.append(clock.now)
            take(http)

        dashboard.handle = handle  # type: ignore[method-assign]
        assert "gave no answer" in failure(dashboard)
        assert clock.now >= submission.START_LIMIT_S
        assert 2 <= len(asked_at) <= 5 and 10 <= asked_at[0] < 13
        waits = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
        assert waits == sorted(waits) and waits[-1] > 2 * waits[0]

    @pytest.mark.parametrize("reply", [Reply(body="{}"), Reply(body='{"status": null}')])
    @pytest.mark.slow
    def test_details_without_a_status(self, dashboard: FakeDashboard, reply: Reply) -> None:
        dashboard.overrides["GET JOB/"] = reply
        warnings: list[str] = []
        assert "gave no answer" in failure(dashboard, warn=warnings.append)
        assert "does not stop" in warnings[0]

    def test_refused_submission(self, dashboard: FakeDashboard) -> None:
        dashboard.overrides["POST /api/jobs/"] = Reply(400, "no such field", "text/plain")
        assert "HTTP 400: no such field" in failure(dashboard)


class TestTimeOfCalls:
    """Beside what is asked of the nodes, a command calls the dashboard before and afterwards."""

    def test_a_run_does_not_inherit_the_limit_of_the_one_before(
        self, dashboard: FakeDashboard
    ) -> None:
        limits = []

        class Watched(JobsApi):
            def version(self) -> dict[str, Any]:
                limits.append(self.limit)
                return super().version()

        job_that_prints(dashboard, {0: start_message(), END: END_MESSAGE})
        ends(dashboard, "SUCCEEDED")
        api, address = Watched(dashboard.url), Address(dashboard.url, "--address")
        for _ in range(2):
            with collect(api, address, asking(), lambda *_: None, lambda _: None):
                pass
        assert limits == [math.inf] * 2

    @pytest.mark.parametrize("is_whole", [True, False])
    def test_after_the_last_answer_of_slow_nodes_there_is_time_for_a_call(
        self, dashboard: FakeDashboard, is_whole: bool
    ) -> None:
        """Not where the dashboard has fallen silent: that would cost what nobody waits for."""
        clock: Any = vars(collect_module)["time"]
        messages = {0: start_message(node(1)), 1: packed(ANSWER)}
        job_that_prints(dashboard, messages)
        early = dashboard.log

        def late(request: Mapping[str, Any]) -> str:
            clock.now += DEADLINE_S
            job_that_prints(dashboard, {**messages, END: END_MESSAGE} if is_whole else messages)
            return dashboard.log(request)

        def first(request: Mapping[str, Any]) -> str:
            dashboard.log = late
            return early(request)

        dashboard.log = first
        api, address = JobsApi(dashboard.url), Address(dashboard.url, "--address")
        with collect(api, address, asking(), lambda *_: None, lambda _: None):
            assert (api.limit - clock.monotonic() >= 1.0) is is_whole


class TestWhichCluster:
    def test_job_that_joined_another_session(self, dashboard: FakeDashboard) -> None:
        start = start_message(node(1), session_name="session_of_somebody_else")
        job_that_prints(dashboard, {0: start, 1: packed(ANSWER), END: END_MESSAGE})
        message = failure(dashboard)
        assert f"belongs to {SESSION}, but its job joined session_of_somebody_else" in message
        assert dashboard.stopped == [job_id(dashboard)]

    def test_old_dashboard_without_a_session(self, dashboard: FakeDashboard) -> None:
        dashboard.overrides["GET /api/version"] = Reply(body='{"ray_version": "2.9.0"}')
        job_that_prints(dashboard, {0: start_message(), END: END_MESSAGE})
        ends(dashboard, "SUCCEEDED")
        with run(dashboard) as collected:
            assert collected.cluster["session_name"] is None

    def test_ray_address_names_another_cluster(self, dashboard: FakeDashboard) -> None:
        job_that_prints(dashboard, {0: start_message(node(1)), END: END_MESSAGE})
        named = Address(dashboard.url, "RAY_ADDRESS", "10.0.0.9:6379")
        message = failure(dashboard, address=named)
        assert message.startswith("RAY_ADDRESS names the cluster 10.0.0.9:6379, but the dashboard")
        assert "--address" in message

    def test_ray_address_names_this_cluster(self, dashboard: FakeDashboard) -> None:
        job_that_prints(dashboard, {0: start_message(), END: END_MESSAGE})
        ends(dashboard, "SUCCEEDED")
        with run(dashboard, address=Address(dashboard.url, "RAY_ADDRESS", GCS)) as collected:
            assert collected.cluster["gcs_address"] == GCS


class TestInterrupted:
    def test_while_waiting(self, dashboard: FakeDashboard) -> None:
        def interrupt(answered: int, asked: int) -> None:
            raise KeyboardInterrupt

        job_that_prints(
            dashboard, {0: start_message(node(1)), 1_000_400: {"answered": 0, "asked": 1}}
        )
        with pytest.raises(KeyboardInterrupt), run(dashboard, progress=interrupt):
            raise AssertionError("it collected something")
        assert dashboard.stopped == [job_id(dashboard)]

    def test_while_the_report_is_written(self, dashboard: FakeDashboard) -> None:
        job_that_prints(dashboard, {0: start_message(node(1)), 1: packed(ANSWER), END: END_MESSAGE})
        with pytest.raises(KeyboardInterrupt), run(dashboard):
            raise KeyboardInterrupt
        assert dashboard.stopped == [job_id(dashboard)]

    def test_while_submitting(
        self, dashboard: FakeDashboard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        submit = JobsApi.submit

        def interrupted(self: JobsApi, *arguments: Any) -> None:
            submit(self, *arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(JobsApi, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt), run(dashboard):
            raise AssertionError("it collected something")
        assert dashboard.stopped == [job_id(dashboard)]


def test_every_probe_s_records_can_be_decoded() -> None:
    """An empty list of records is an answer that every probe's type takes."""
    names = probes.names()
    answer = {**ANSWER, "probes": {name: {**RESULT, "records": []} for name in names}}
    report = reported(packed(answer), names)
    assert report.status is NodeStatus.OK
    assert set(report.probes) == set(names)
