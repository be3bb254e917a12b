"""Who wrote a line, and where an exception was raised, in whole logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raydiag.joblog import find, read
from raydiag.triage import judge
from raydiag.triage.signatures import Classifier, make_selector
from raydiag.triage.verdict import Moment, Verdict

_STEPS = [f"[rank0]: step: {step} loss: 3.1 step_time: 2.0s" for step in range(1, 12)]
_DEATH = [
    "[rank5]: Traceback (most recent call last):",
    '[rank5]:   File "/w/train.py", line 3, in step',
    "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "[rank2]: lost the peer",
]


def judged(path: Path, lines: list[str]) -> Verdict:
    log = path / "41-demo.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    facts = read.read(find.resolve(str(log)), make_selector, Classifier())
    return judge(facts, Moment(None, alive=False, source="--job-state"))


@pytest.mark.parametrize(
    "wrapped",
    [
        "{}".format,
        "[pod/llama-worker-0/pytorch] {}".format,
        "gpu17: {}".format,
        "2026-03-10T08:09:57.1Z stderr F {}".format,
        "2026-03-10T08:09:57.123456789Z {}".format,
        "[2026-03-10 08:09:57] {}".format,
        "[2026-03-10 08:09:57] gpu17: {}".format,
        "\x1b[32m{}\x1b[0m".format,
    ],
)
def test_what_a_launcher_puts_before_lines_hides_no_rank(
    wrapped: Callable[[str], str], tmp_path: Path
) -> None:
    finding = judged(tmp_path, [*map(wrapped, [*_STEPS, *_DEATH])]).diagnosis.findings[0]
    assert (finding.failure_class, finding.task) == ("oom-gpu", "5")


def test_a_host_that_only_the_decisive_lines_name(tmp_path: Path) -> None:
    lines = [f"gpu{n % 9}: [rank{n % 9}]: epoch 1 going on" for n in range(100)]
    lines += [f"gpu31: {line}" for line in _DEATH[:3]]
    finding = judged(tmp_path, lines).diagnosis.findings[0]
    assert (finding.failure_class, finding.task, finding.host) == ("oom-gpu", "5", "gpu31")


@pytest.mark.parametrize(
    ("file", "failure_class"),
    [
        ("/opt/megatron/core/datasets/odd_set.py", "data-error"),
        ("/venv/lib/python3.12/site-packages/webdataset/pipeline.py", "data-error"),
        ("/w/my_dataset.py", "data-error"),
        ("/usr/lib/python3.12/argparse.py", "config-error"),
        ("/venv/lib/python3.12/site-packages/omegaconf/base.py", "config-error"),
        ("/w/model_config.py", "config-error"),
        ("/datasets/me/train.py", "python-exception"),
        ("/w/train.py", "python-exception"),
    ],
)
def test_an_exception_by_where_it_was_raised(file: str, failure_class: str, tmp_path: Path) -> None:
    raised = [
        "Traceback (most recent call last):",
        '  File "/w/main.py", line 3, in <module>',
        f'  File "{file}", line 30, in odd',
        "AssertionError: nobody knows this",
    ]
    assert judged(tmp_path, [*_STEPS, *raised]).primary == failure_class


_FAILED_REQUEST = [
    "ERROR 10-02 08:05:11 [chat.py:145] Traceback (most recent call last):",
    'ERROR 10-02 08:05:11 [chat.py:145]   File "/w/chat.py", line 3, in answer',
    "ERROR 10-02 08:05:11 [chat.py:145] ValueError: so long a question",
]


@pytest.mark.parametrize(
    ("then", "primary"),
    [
        ('INFO:     10.9.1.2:44 - "POST /v1/completions HTTP/1.1" 200 OK', "unknown-death"),
        ("INFO 10-02 [l.py:1] Avg generation throughput: 80.0 tokens/s", "unknown-death"),
        (
            "[10-02 TP0] Decode batch. #running-req: 1, gen throughput (token/s): 81.2,",
            "unknown-death",
        ),
        ("INFO 10-02 [l.py:1] Avg generation throughput: 0.0 tokens/s", "python-exception"),
        ('INFO:     10.9.1.2:44 - "GET /health HTTP/1.1" 200 OK', "python-exception"),
        ("INFO:     Application shutdown complete.", "python-exception"),
    ],
)
def test_a_server_that_answered_afterwards_got_over_a_request_that_failed(
    then: str, primary: str, tmp_path: Path
) -> None:
    start = "INFO 10-02 08:00:01 [api_server.py:1289] vLLM API server version 0.10.2"
    assert judged(tmp_path, [start, *_FAILED_REQUEST, then]).primary == primary


def test_a_barrier_accuses_whom_it_waited_for(tmp_path: Path) -> None:
    lines = [
        "Original error: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all::0.",
        "The first task at the barrier: /job:w/replica:0/task:0. Some timed out task names:",
        "/job:w/replica:0/task:19",
    ]
    finding = judged(tmp_path, lines).diagnosis.findings[0]
    assert (finding.failure_class, finding.task) == ("rendezvous-fail", "19")


def test_a_rank_by_the_launcher_of_the_same_pod(tmp_path: Path) -> None:
    lines = [
        "HW Exception by GPU node-3 (Agent handle: 0x55dc6e221990) reason :GPU Hang",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-03-10_10:22:19",
        "  host      : llama-worker-0",
        "  rank      : 2 (local_rank: 2)",
        "  exitcode  : -6 (pid: 4412)",
        "  traceback : Signal 6 (SIGABRT) received by PID 4412",
    ]
    in_pod = [f"[pod/llama-worker-0/main] {line}" for line in [*_STEPS[:6], *lines]]
    finding = judged(tmp_path, in_pod).diagnosis.findings[0]
    assert (finding.host, finding.task) == ("llama-worker-0", "2")
