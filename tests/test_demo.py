"""`raydiag demo`: an example, found and diagnosed; what is said where that cannot be."""

from __future__ import annotations

import json
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
def test_it_shows_the_verdict_and_writes_a_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    promtool.provide(monkeypatch)
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []

    def opens(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", opens)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for display, *more in (("",), (":0", "--no-open"), (":0",)):
        monkeypatch.setenv("DISPLAY", display)
        assert opened == []
        assert main(["demo", "straggler", *more]) == 0
        told = capsys.readouterr()
        page = tmp_path / "raydiag-demo-straggler.html"
        assert told.out.startswith("VERDICT  straggler  dgx-14  ")
        assert told.out.endswith(f"\nThe same with plots: {page}\n")
        assert told.err.startswith("$ raydiag diagnose ")
        assert told.err.endswith("examples/straggler\n")
        assert "dgx-14" in page.read_text(encoding="utf-8")
    assert opened == [page.as_uri()]


@pytest.mark.slow
def test_it_writes_in_any_format(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    promtool.provide(monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "straggler", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert (verdict["class"], verdict["hosts"]) == ("straggler", ["dgx-14"])
    assert main(["demo", "straggler", "--format", "html", "-o", "-", "-q"]) == 0
    assert capsys.readouterr().out.lower().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == []
