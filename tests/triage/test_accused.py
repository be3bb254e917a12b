"""Whom a line accuses: the machine that it names, and never the one that printed it."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from raydiag.joblog import find, read
from raydiag.triage import judge
from raydiag.triage.signatures import Classifier, make_selector
from raydiag.triage.verdict import Moment

_HEADER = ["JOB_ID: 41", "NNODES=3", "JOB_NODELIST=n[1-3]"]
_STEPS = [f"0: completed step: {step}, seconds: 2.0, loss: 3.0" for step in range(9)]


@pytest.mark.parametrize(
    ("line", "failure_class", "host"),
    [
        (
            "0: (raylet, ip=10.0.0.1) The node with node id: 00aa and address: 10.0.0.3 and node "
            "name: 10.0.0.3 has been marked dead because the detector stopped.",
            "ray-node-dead",
            "10.0.0.3",
        ),
        ("0: (gcs) lost node 10.0.0.3", "ray-node-dead", "10.0.0.3"),
        ("0: Node 10.0.0.3 suddenly died", "ray-node-dead", "10.0.0.3"),
        ("0: the raylet on 10.0.0.3 has died", "ray-node-dead", "10.0.0.3"),
        ("0: (pid=7, ip=10.0.0.1) NodeDiedError: the node is gone", "ray-node-dead", None),
        (
            "0: (raylet) Raylet is terminated. Termination is unexpected. Its last lines:"
            "\n0:   [state-dump] nothing\n0:   [state-dump] nothing\n0:   [state-dump] nothing"
            "\n0: (raylet) The node with node id: 00aa and address: 10.0.0.3 and node name: n3 has "
            "been marked dead because the detector stopped.",
            "ray-node-dead",
            "10.0.0.3",
        ),
        (
            "1: torch.distributed.DistNetworkError: The client socket has timed out after 600s "
            "while trying to connect to (n1, 29500).",
            "rendezvous-fail",
            None,
        ),
    ],
)
def test_the_machine_that_is_named(
    line: str, failure_class: str, host: Optional[str], tmp_path: Path
) -> None:
    log = tmp_path / "41-demo.log"
    log.write_text("".join(f"{text}\n" for text in [*_HEADER, *_STEPS, line]))
    facts = read.read(find.resolve(str(log)), make_selector, Classifier())
    verdict = judge(facts, Moment(None, alive=False, source="--job-state"))
    finding = verdict.diagnosis.findings[0]
    assert (finding.failure_class, finding.host, finding.task) == (failure_class, host, None)


@pytest.mark.parametrize(
    "line",
    [
        "Task 2 heartbeat timeout. This indicates that the remote task has failed.",
        "Task /job:w/replica:0/task:2 heartbeat timeout. This indicates that the remote task died.",
        "coordinator detected missing heartbeats from task 2",
    ],
)
def test_the_task_that_a_heartbeat_names(line: str, tmp_path: Path) -> None:
    log = tmp_path / "41-demo.log"
    log.write_text("".join(f"{text}\n" for text in [*_HEADER, *_STEPS, f"0: {line}"]))
    facts = read.read(find.resolve(str(log)), make_selector, Classifier())
    finding = judge(facts, Moment(None, alive=False, source="--job-state")).diagnosis.findings[0]
    assert (finding.failure_class, finding.task, finding.host) == ("heartbeat-timeout", "2", "n3")


@pytest.mark.parametrize(
    ("writer", "peer", "host"),
    [
        ("(TrainWorker pid=7) ", "(TrainWorker pid=9, ip=10.0.0.3) ", "n1"),
        ("(TrainWorker pid=7) ", "(TrainWorker pid=9) ", None),  # another format may leave it out
        ("(TrainWorker pid=7, ip=10.0.0.2) ", "(TrainWorker pid=9) ", "10.0.0.2"),
    ],
)
def test_an_actor_without_an_address_is_on_the_drivers_node(
    writer: str, peer: str, host: Optional[str], tmp_path: Path
) -> None:
    log = tmp_path / "41-demo.log"
    failed = [f"{writer}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB."]
    missed = [f"{peer}ncclRemoteError: A call failed possibly due to a remote process exiting"]
    log.write_text("".join(f"{text}\n" for text in [*_HEADER, *_STEPS, *failed, *missed]))
    facts = read.read(find.resolve(str(log)), make_selector, Classifier())
    finding = judge(facts, Moment(None, alive=False, source="--job-state")).diagnosis.findings[0]
    assert (finding.failure_class, finding.host) == ("oom-gpu", host)
