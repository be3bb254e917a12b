"""Whatever a log holds, there is an answer that keeps to the contract."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from raydiag.cli import main
from tests import schemas
from tests.triage.logs import HARMLESS
from tests.triage.test_scenarios import (
    CASCADES,
    ERRORS,
    HANGS,
    HEARTBEATS,
    LOG_END,
    SERIES,
    SOFT,
    STATUS,
)

LINES = sorted(
    {
        line
        for row in [*STATUS, *SOFT, *HANGS, *HEARTBEATS, *CASCADES, *SERIES]
        for line in row.lines
    }
    | {line for line, _ in ERRORS.values()}
    | set(HARMLESS)
)
NOISE = ["", "\x00" * 9, "\ufffd\x1b[31m", "x" * 5000, "99999999999: ", "step: nan", "\r\r", "0:"]
ARGUMENTS: Sequence[Sequence[str]] = (
    LOG_END,
    ("--job-state", "running"),
    ("--job-state", "ended"),
    ("--now", "0"),
    ("--now", "99999999999"),
    (),
)

Answer = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Answer:
    def run(text: bytes, *arguments: str) -> tuple[int, dict[str, Any]]:
        log = tmp_path / "41-demo.log"
        log.write_bytes(text)
        code = main(["triage", str(log), "--format", "json", *arguments])
        out, err = capsys.readouterr()
        assert err == ""
        document: dict[str, Any] = json.loads(out)
        schemas.fits(document, "triage")
        return code, document

    return run


def keeps_to_the_contract(code: int, told: dict[str, Any]) -> None:
    if told["status"] in ("completed", "running"):
        assert told["primary"] is None
    if told["status"] in ("failed", "cancelled", "hanging"):
        assert told["primary"] is not None and told["cascade"][0] == told["primary"]
    if told["primary"] is not None:
        assert told["findings"][0]["class"] == told["primary"]
    loud = any(one["severity"] != "info" for one in told["findings"])
    assert (code == 1) is loud
    assert told["rule"] and told["what_happened"]
    classes = [one["class"] for one in told["findings"]]
    assert len(classes) == len(set(classes))
    assert sorted(place for chain in told["chains"] for place in chain) == list(range(len(classes)))
    percent = told["progress"]["percent"]
    assert percent is None or 0 <= percent <= 100


@pytest.mark.parametrize("seed", range(60))
def test_lines_in_any_order(seed: int, answer: Answer) -> None:
    dice = random.Random(seed)
    lines = dice.choices([*LINES, *NOISE], k=dice.choice([1, 3, 20, 200]))
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    keeps_to_the_contract(*answer(text, *ARGUMENTS[seed % len(ARGUMENTS)]))


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\n", b"\n" * 5000, b"\x00" * 4096, b"\xff\xfe\xfd" * 100, b"\x1f\x8b\x08broken"),
        *(b"no line end", b"a\r\nb\r\n", b"\r" * 100),
        bytes(range(256)) * 64,
    ],
    ids=range(10),
)
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=" ".join)
def test_no_log_at_all(text: bytes, arguments: Sequence[str], answer: Answer) -> None:
    code, told = answer(text, *arguments)
    keeps_to_the_contract(code, told)
    assert told["progress"]["last_step"] is None
    assert told["status"] in ("unknown", "running")
    if told["status"] == "running":
        assert arguments in (LOG_END, ("--job-state", "running"))


def test_a_file_without_text_is_not_running(answer: Answer) -> None:
    for text in (b"", b"\x00" * 4096):
        code, told = answer(text, *LOG_END)
        assert (told["status"], told["primary"], code) == ("unknown", None, 3)
