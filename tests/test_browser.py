"""`--open`: a report in a browser, and what is said where there is none."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from urllib.request import url2pathname

import pytest

from raydiag.cli import main

KERNEL_LINE = "[   14.0] amdgpu 0000:c1:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1\n"


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "dmesg"
    path.write_text(KERNEL_LINE)
    return str(path)


def test_the_browser_gets_a_file(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")

    def opens(url: str) -> bool:
        shown.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", opens)
    report = tmp_path / "a report.html"
    assert main(["kmsg", log, "--open", "-o", str(report)]) == 1
    assert main(["kmsg", log, "--open"]) == 1
    assert capsys.readouterr() == ("", "")
    own, temporary = (Path(url2pathname(url.removeprefix("file://"))) for url in shown)
    assert own == report
    for page in (own, temporary):
        assert "amdgpu-ring-timeout" in page.read_text("utf-8")
    assert temporary.parent.stat().st_mode & 0o777 == 0o700
    temporary.unlink()
    temporary.parent.rmdir()


@pytest.mark.parametrize("reason", ["no screen", "no browser", "error"])
def test_without_a_browser_it_is_said_where_the_report_is(
    reason: str,
    log: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(url: str) -> bool:
        if reason == "error":
            raise webbrowser.Error("could not locate runnable browser")
        return False

    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if reason != "no screen":
        monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", fails)
    report = tmp_path / "report.html"
    assert main(["kmsg", log, "--open", "-o", str(report)]) == 1
    told = capsys.readouterr().err
    assert told == f"raydiag: there is no browser here: the report is {report}\n"
    assert report.read_text("utf-8").startswith("<!doctype html>")
