"""`raydiag hotfix` without a cluster: what is refused, what is shown, exit codes."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from raydiag.cli import main
from raydiag.errors import RaydiagError, UsageError
from raydiag.hotfix import head
from raydiag.hotfix.ledger import Ledger
from raydiag.hotfix.messages import CheckedFile, Statuses
from tests import schemas
from tests.fake_dashboard import END, GCS, SESSION, FakeDashboard, framed
from tests.hotfix.test_plan import GPU, NEW, OLD, inspection, target

pytestmark = pytest.mark.slow

SCRIPT = "#!/usr/bin/env bash\necho 'hw_gpu_power_watts{gpu=\"0\"} 1'\n"
Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("RAY_") or name.lower().endswith("_proxy") or name == "NO_COLOR":
            monkeypatch.delenv(name)
    monkeypatch.delenv("RAYDIAG_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    """`invoke("plan", ...)`: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(["hotfix", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    path = tmp_path / GPU
    path.write_text(SCRIPT)
    return str(path)


class Canned:
    """A cluster of hosts that say of themselves what the test says; None: no answer."""

    def __init__(self, *seen: Any, checks: bool = False) -> None:
        self.checks = checks  # the canary finds nothing wrong with the files
        self.seen = {f"id{number}": one for number, one in enumerate(seen, start=1)}

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "node_id": node,
                "hostname": f"node{int(node[2:]):03}",
                "address": f"10.0.0.{node[2:]}",
                "alive": True,
                "death_reason": "",
                "asked": True,
            }
            for node in self.seen
        ]

    def ask(
        self, requests: Mapping[str, Mapping[str, Any]], limit_s: float
    ) -> dict[str, dict[str, Any]]:
        return {node: self._answer(node, request) for node, request in requests.items()}

    def _answer(self, node: str, request: Mapping[str, Any]) -> dict[str, Any]:
        found = {
            "inspect": self.seen[node],
            "status": Statuses(()),
            "check": self._checked(request),
        }.get(str(request["operation"]))
        if found is None or self.seen[node] is None:
            return {"error": "no answer within 33 s", "lost": True}
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(found)))
        return plain

    def _checked(self, request: Mapping[str, Any]) -> CheckedFile | None:
        if not self.checks or "content" not in request:
            return None
        content = base64.b64decode(request["content"])
        return CheckedFile(True, "", "passed", hashlib.sha256(content).hexdigest())

    def faults(self, nodes: Sequence[str]) -> dict[str, str]:
        return {}


@pytest.fixture
def dashboard() -> Iterator[FakeDashboard]:
    server = FakeDashboard()
    yield server
    server.close()


def works(dashboard: FakeDashboard, cluster: Canned, *, ends: bool = True) -> None:
    """The job does what it does on a head, with the cluster's answers."""
    dashboard.status = "SUCCEEDED" if ends else "FAILED"

    def log(request: Mapping[str, Any]) -> str:
        start = {"gcs_address": GCS, "session_name": SESSION, "time": 0.0}
        said: list[Mapping[str, Any]] = []
        end: dict[str, Any]
        try:
            end = {"document": head.run(request["work"], cluster, said.append)}
        except UsageError as error:
            end = {"usage": str(error)}
        except RaydiagError as error:
            end = {"failed": str(error)}
        messages = {0: start, **dict(enumerate(said, start=1)), **({END: end} if ends else {})}
        return "".join(f"{line}\n" for line in framed(request["nonce"], messages))

    kept: list[str] = []

    def once(request: Mapping[str, Any]) -> str:
        kept.append(log(request)) if not kept else None
        return kept[0]

    dashboard.log = once


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "ACTION"),
        (["plan"], "required: FILE"),
        (["plan", "FILE"], "one of the arguments --all-nodes --node is required"),
        (["apply", "FILE"], "one of the arguments --all-nodes --node is required"),
        (["plan", "--node", "", "FILE"], "--node: no node is named"),
        (["plan", "--all-nodes", "--batch", "0", "FILE"], "'0' is not a number"),
        (["plan", "--all-nodes", "--port", "99999", "FILE"], "'99999' is not a number"),
        (["plan", "--all-nodes", "--verify-limit", "nan", "FILE"], "'nan' is not a number"),
        (["plan", "--all-nodes", "--exporter", "other", "FILE"], "invalid choice: 'other'"),
        (["plan", "--all-nodes", "FILE", "FILE"], "its name is given twice"),
        (["rollback"], "required: ROLLOUT"),
    ],
)
def test_usage(arguments: list[str], words: str, plugin: str, invoke: Invoke) -> None:
    code, out, err = invoke(*(plugin if word == "FILE" else word for word in arguments))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (GPU, b"", "the new file is empty"),
        (GPU, b" \n\n", "the new file is empty"),
        (GPU, b"\x7fELF\0\0", "binary"),
        (GPU, b"\xff\xfe\xfa", "binary"),
        (GPU, b"#!/bin/bash\n" + b"#" * (1 << 20), "more than 1048576"),
        ("train.py", b"#!/bin/bash\n", "not one of"),
        ("my_metrics_plugin.sh", b"#!/bin/bash\n", "not one of"),
    ],
)
def test_files_that_no_node_would_take(
    name: str, content: bytes, words: str, tmp_path: Path, invoke: Invoke
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    code, out, err = invoke("apply", "--all-nodes", str(path))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_files_that_are_not_there(tmp_path: Path, invoke: Invoke) -> None:
    os.mkfifo(tmp_path / GPU)
    for path, words in (
        (tmp_path / "nowhere" / GPU, "No such file"),
        (tmp_path, "is not a regular file"),
        (tmp_path / GPU, "is not a regular file"),
    ):
        code, _, err = invoke("plan", "--all-nodes", str(path))
        assert code == 2
        assert words in err


def test_a_plan(dashboard: FakeDashboard, plugin: str, invoke: Invoke) -> None:
    works(dashboard, Canned(inspection(1), inspection(2), checks=True))
    code, out, err = invoke("plan", "--all-nodes", "--address", dashboard.url, plugin)
    assert (code, err) == (0, "")
    assert out.startswith("Plan: 2 hosts to change; nothing has been changed yet.")
    assert "canary node001" in out
    assert f"/a/{GPU}  {OLD[:12]} -> " in out


def test_a_plan_as_json(dashboard: FakeDashboard, plugin: str, invoke: Invoke) -> None:
    refused = inspection(2, refuse_replace=("no exporter runs here",))
    works(dashboard, Canned(inspection(1), refused, None))
    code, out, _ = invoke(
        "plan", "--all-nodes", "--address", dashboard.url, "--format", "json", plugin
    )
    document = json.loads(out)
    schemas.fits(document, "hotfix")
    assert code == 1
    assert [host["state"] for host in document["hosts"]] == ["change", "refused", "unseen"]
    assert document["coverage"]["nodes"]["blind"] == [
        {"host": "node003", "reason": "no answer within 33 s"}
    ]


def test_hosts_that_could_not_be_seen(
    dashboard: FakeDashboard, plugin: str, invoke: Invoke
) -> None:
    works(dashboard, Canned(inspection(1), None, checks=True))
    code, out, _ = invoke("plan", "--all-nodes", "--address", dashboard.url, plugin)
    assert code == 3
    assert "not seen: node002: no answer within 33 s" in out


def test_no_host_could_be_seen(dashboard: FakeDashboard, plugin: str, invoke: Invoke) -> None:
    works(dashboard, Canned(None))
    code, out, err = invoke("plan", "--all-nodes", "--address", dashboard.url, plugin)
    assert (code, out) == (4, "")
    assert "none of the hosts asked for could be looked at" in err


def test_nothing_to_do(dashboard: FakeDashboard, plugin: str, invoke: Invoke) -> None:
    content = Path(plugin).read_bytes()
    there = target(sha256=hashlib.sha256(content).hexdigest())
    works(dashboard, Canned(inspection(1, there)))
    code, out, _ = invoke("apply", "--all-nodes", "--address", dashboard.url, plugin)
    assert code == 0
    assert "Nothing to do" in out


def test_an_apply_shows_its_plan_first_and_why_it_ended(
    dashboard: FakeDashboard, plugin: str, invoke: Invoke
) -> None:
    works(dashboard, Canned(inspection(1)))  # which answers no check
    code, out, err = invoke("plan", "--apply", "--all-nodes", "--address", dashboard.url, plugin)
    assert (code, err) == (1, "")
    plan, _, report = out.partition("\n\nRollout ")
    assert plan.startswith("Plan: 1 host to change")
    assert "refused, nothing was changed." in report
    assert f"why: node001: check of {GPU}: no answer within 33 s" in report
    assert len(list((Path.home() / ".raydiag" / "rollouts").glob("*.json"))) == 1


@pytest.mark.parametrize("command", ["status", "rollback"])
def test_a_roll_out_that_nobody_knows(
    command: str, dashboard: FakeDashboard, invoke: Invoke
) -> None:
    works(dashboard, Canned(inspection(1)))
    code, out, err = invoke(command, "20260101-000000-abcd", "--address", dashboard.url)
    assert (code, out) == (2, "")
    assert "no rollout '20260101-000000-abcd' on record" in err


def test_no_roll_out_at_all(dashboard: FakeDashboard, invoke: Invoke) -> None:
    works(dashboard, Canned(inspection(1)))
    code, out, _ = invoke("status", "--address", dashboard.url)
    assert (code, out) == (0, "No rollout is on record.\n")


def test_an_id_that_is_none(dashboard: FakeDashboard, invoke: Invoke) -> None:
    works(dashboard, Canned(inspection(1)))
    code, _, err = invoke("rollback", "../../etc/passwd", "--address", dashboard.url)
    assert code == 2
    assert "not the id of a rollout" in err


def test_a_driver_that_dies_leaves_the_way_to_look(
    dashboard: FakeDashboard, plugin: str, invoke: Invoke
) -> None:
    works(dashboard, Canned(inspection(1)), ends=False)
    code, _, err = invoke("apply", "--all-nodes", "--address", dashboard.url, plugin)
    assert code == 1
    assert "what it left is told by: raydiag hotfix status 2" in err
    assert dashboard.stopped == []


def test_a_damaged_record(dashboard: FakeDashboard, invoke: Invoke, tmp_path: Path) -> None:
    place = tmp_path / ".raydiag" / "rollouts"
    place.mkdir(parents=True)
    (place / "r1.json").write_bytes(b"\0\xff half")
    (place / "r2.json").write_text("[]")
    works(dashboard, Canned(inspection(1)))
    code, out, _ = invoke("status", "--address", dashboard.url)
    assert (code, out) == (0, "No rollout is on record.\n")


def test_no_cluster(plugin: str, invoke: Invoke) -> None:
    code, out, err = invoke("plan", "--all-nodes", "--address", "http://127.0.0.1:9", plugin)
    assert (code, out) == (4, "")
    assert "no Ray dashboard" in err


def test_a_ledger_that_cannot_be_written(
    dashboard: FakeDashboard, plugin: str, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / ".raydiag").write_text("a file stands here")
    works(dashboard, Canned(inspection(1)))
    code, _, err = invoke("apply", "--all-nodes", "--address", dashboard.url, plugin)
    assert code == 4
    assert "cannot keep a record of the rollout" in err


def test_a_markdown_report(dashboard: FakeDashboard, plugin: str, invoke: Invoke) -> None:
    works(dashboard, Canned(inspection(1, refuse_replace=("it's ```odd``` \x1b[31m",))))
    code, out, _ = invoke(
        "plan", "--all-nodes", "--address", dashboard.url, "--format", "markdown", plugin
    )
    assert code == 1
    assert out.startswith("**Plan: refused")
    assert r"it's \`\`\`odd\`\`\`" in out
    assert "\x1b" not in out


def test_the_ledger_holds_one_driver(tmp_path: Path) -> None:
    one, other = Ledger(str(tmp_path / "l")), Ledger(str(tmp_path / "l"))
    assert one.at_work() == ""
    with one.lock("r1"):
        assert other.at_work() == "r1"
        with pytest.raises(RaydiagError, match="r1 is at work"), other.lock("r2", 0.1):
            pytest.fail("two drivers at once")
    assert other.at_work() == ""
    with other.lock("r2"):
        assert one.at_work() == "r2"


def test_new_content_reaches_the_head_as_it_is(
    dashboard: FakeDashboard, tmp_path: Path, invoke: Invoke
) -> None:
    path = tmp_path / GPU
    path.write_bytes("#!/bin/bash\n# größer 🙂\r\necho 'a'\t\n".encode())
    works(dashboard, Canned(inspection(1)))
    _, out, _ = invoke(
        "plan", "--all-nodes", "--address", dashboard.url, "--format", "json", str(path)
    )
    (file,) = json.loads(out)["files"]
    assert file["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert file["sha256"] != NEW
