"""The site: built strictly, its links lead somewhere, and it loads nothing from elsewhere."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from raydiag import catalog
from raydiag.cli import command_line
from tests.tsdb import promtool

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed: no site is built")
pytest.importorskip("material", reason="the extra `docs` is not installed: no site is built")
from tools import runbook_pages

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a page of the site refers to, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []  # pages and pictures
        self.loaded: list[str] = []  # scripts and style sheets
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag in ("img", "script", "iframe") and "src" in attributes:
            self.loaded.append(attributes["src"])
        if tag == "link" and attributes.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(attributes["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return directory


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    return {path: page for path, page in found.items() if path.name != "404.html"}


def test_links_lead_to_pages_and_headings(pages: dict[Path, Page]) -> None:
    lost = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target)
            if known is None or (parts.fragment and parts.fragment not in known.anchors):
                lost.append((path.name, link))
    assert lost == []
    assert sum(len(page.links) for page in pages.values()) > 1000


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for source in page.loaded:
            parts = urlsplit(source)
            assert not parts.netloc, (path.name, source)
            assert (path.parent / unquote(parts.path)).exists(), (path.name, source)


def test_each_command_class_and_alert_has_a_page(site: Path) -> None:
    (commands,) = (row.choices for row in command_line()._actions if row.dest == "command")
    alerts = {rule["alert"] for rule in runbook_pages.rules()}
    assert {path.stem for path in site.glob("commands/*.html")} == {"index", *(commands or ())}
    classes = {path.stem for path in site.glob("classes/*.html")}
    assert classes == {"index", "nvidia-numbers", *catalog.failures()}
    assert {path.stem for path in site.glob("runbooks/*.html")} == {"index", *alerts}
    assert set(runbook_pages.notes()) == alerts


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("xid 79", "classes/nvidia-numbers.html#xid-79"),
        ("without root", "faq.html#how-do-i-run-it-without-root"),
        ("unknown", "answers.html#why-is-my-verdict-unknown"),
        ("a line of a job's log", "extend.html#a-line-of-a-jobs-log"),
        ("uncorrectable gpu memory error", "classes/gpu-memory-error.html"),
        ("has fallen off the bus", "classes/nvidia-numbers.html#xid-79"),
    ],
)
def test_the_search_knows_what_people_ask(site: Path, words: str, page: str) -> None:
    """Each asked word stands in the heading or the text of the place that answers."""
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))[
        "docs"
    ]
    texts = {entry["location"]: f"{entry['title']} {entry['text']}".lower() for entry in entries}
    assert all(word in texts[page] for word in words.split())


def test_a_class_page_says_what_the_catalog_says(site: Path) -> None:
    text = (site / "classes" / "gpu-memory-error.html").read_text(encoding="utf-8")
    entry = catalog.failure("gpu-memory-error")
    assert entry.next_steps[0] in text
    assert 'href="gpu-memory-degrading.html"' in text
    assert "uncorrectable hardware errors detected in umc block" in text


@pytest.fixture
def prometheus(site: Path, tmp_path: Path) -> Iterator[str]:
    """A Prometheus that serves the site as its user's assets; yields its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    tmp_path.joinpath("empty.yml").write_text("global: {}\n")
    child = subprocess.Popen(
        [
            promtool.program("prometheus"),
            f"--config.file={tmp_path}/empty.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address={address}",
            f"--web.user-assets={site}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{address}"
    finally:
        child.kill()
        child.wait(10)


def test_runbook_urls_lead_to_pages_that_prometheus_serves(prometheus: str) -> None:
    for rule in runbook_pages.rules():
        url = rule["annotations"]["runbook_url"].replace("{{ $externalURL }}", prometheus)
        assert f'id="{rule["alert"].lower()}"' in answer(url), url


def answer(url: str) -> str:
    """The page, as soon as the server is there."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return str(reply.read(), "utf-8")
        except urllib.error.HTTPError:
            raise
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{url} did not answer")
