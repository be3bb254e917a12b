"""Pages in a real Chromium: silent, without requests, readable on a phone, and accessible."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from raydiag.cli import main
from raydiag.render.driver_fault import driver_fault_report
from raydiag.render.html import html_text
from raydiag.render.probe import probe_report
from raydiag.render.report import Report, Section
from tests.explain import driver_fault_samples
from tests.incidents.generate import generate
from tests.incidents.job import Options
from tests.render import cluster_samples
from tests.render import test_html as samples

pytestmark = pytest.mark.slow

_QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--no-first-run",
)
_PHONE, _DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
_EXAMPLES = Path(__file__).parents[2] / "examples"
_PAGES = ("sick", "wide", "blocks", "probe", "triage", "compare", "driver-fault")
_SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium on PATH (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=list(_QUIET), chromium_sandbox=False
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A diagnosis of a sick host, one of 64 nodes, every kind of block, the other commands'."""
    if not (shutil.which("promtool") and shutil.which("prometheus")):
        pytest.skip("promtool and prometheus are not on PATH")
    out = tmp_path_factory.mktemp("reports")
    pages = {}
    for name, kind, options in (
        ("sick", "rdma-degraded", Options()),
        ("wide", "gpu-memory-error", Options(nodes=64, ports=2, interval_s=60.0)),
    ):
        incident = generate(kind, 3, out / name, options)
        pages[name] = out / f"{name}.html"
        words = ["diagnose", *incident.arguments, "--format", "html", "-o", str(pages[name])]
        assert main(words) == 1
    for command, jobs in (("triage", ["oom-host"]), ("compare", ["rccl-hang", "straggler"])):
        pages[command] = out / f"{command}.html"
        words = [command, *(str(_EXAMPLES / job) for job in jobs)]
        assert main([*words, "--format", "html", "-o", str(pages[command])]) == 1
    for name, report in _made_reports().items():
        pages[name] = out / f"{name}.html"
        pages[name].write_text(html_text(report, f"raydiag {name}"), "utf-8")
    assert set(pages) == set(_PAGES)
    return pages


def _made_reports() -> dict[str, Report]:
    """Those of commands that ask a cluster, of samples of one."""
    investigation = driver_fault_samples.whole_cluster()
    return {
        "blocks": Report([Section("All", samples.EVERY_BLOCK)]),
        "probe": probe_report(*cluster_samples.sick_cluster(), cluster_samples.CLUSTER, False),
        "driver-fault": driver_fault_report(investigation, driver_fault_samples.NOW, False),
    }


@pytest.mark.parametrize("name", _PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [_PHONE, _DESK], ids=["phone", "desk"])
def test_in_chromium(
    browser: Browser, reports: dict[str, Path], name: str, scheme: str, viewport: dict[str, int]
) -> None:
    context = browser.new_context(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(reports[name].as_uri())
    assert asked == [reports[name].as_uri()]
    assert said == []
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= viewport["width"], "the page scrolls sideways"
    assert _violations(page) == []
    context.close()


def _violations(page: Page) -> list[str]:
    """What axe calls serious or critical, with the first place of each."""
    found = Axe().run(page).response["violations"]
    return [
        f"{rule['id']}: {rule['help']}: {rule['nodes'][0]['html'][:200]}"
        for rule in found
        if rule["impact"] in _SERIOUS
    ]


def test_64_nodes_take_little_room(reports: dict[str, Path]) -> None:
    assert reports["wide"].stat().st_size < 3_000_000
    assert reports["wide"].read_text("utf-8").count("<li") > 64


def test_paper_has_what_is_folded_on_the_screen(browser: Browser, reports: dict[str, Path]) -> None:
    page = browser.new_page()
    page.goto(reports["sick"].as_uri())
    aside = page.get_by_text("every host has series to the end of the window")
    assert not aside.first.is_visible()
    page.emulate_media(media="print")
    assert aside.first.is_visible()
    assert len(page.pdf()) > 10_000
    page.close()
