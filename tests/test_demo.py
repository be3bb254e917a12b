"""`raydiag demo`: an example, found and diagnosed; what is said where that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydiag.cli import main
from tests.tsdb import promtool


def test_the_examples_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    examples = Path(__file__).parent.parent / "examples"
    assert names == sorted(path.parent.name for path in examples.glob("*/expected.json"))


def test_a_name_that_is_nearly_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "stragler"]) == 2
    said = capsys.readouterr().err
    assert said == "raydiag: no example 'stragler'; did you mean 'straggler'?\n"


def test_without_prometheus_it_says_where_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAYDIAG_PROMETHEUS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["demo", "-q"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "the program prometheus is needed" in line and "prometheus.io/download" in line


@pytest.mark.slow
def test_it_shows_the_verdict_and_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    promtool.provide(monkeypatch)
    monkeypatch.chdir(Path(__file__).parent.parent)
    assert main(["demo", "straggler"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("VERDICT  straggler  dgx-14  ")
    assert told.err == "$ raydiag diagnose examples/straggler\n"
