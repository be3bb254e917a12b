from __future__ import annotations

from pathlib import Path

import pytest

from raydiag.tsdb import live as finder
from raydiag.tsdb.connection import connect, open_directory
from tests.tsdb.conftest import Live

pytestmark = pytest.mark.slow


def port(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_the_server_that_writes_the_jobs_directory_is_its_own(live: Live) -> None:
    assert finder.find(live.data, [port(live.url)]) == live.url


def test_it_is_known_also_by_the_path_inside_its_container(live: Live, tmp_path: Path) -> None:
    elsewhere = tmp_path / live.data.parent.name / "prometheus"
    elsewhere.mkdir(parents=True)
    assert finder.find(elsewhere, [port(live.url)]) == live.url


def test_another_jobs_server_is_not(live: Live, tmp_path: Path) -> None:
    assert finder.find(tmp_path / "67-other" / "prometheus", [port(live.url)]) is None


def test_a_viewer_over_the_same_directory_scrapes_nothing_and_lives_on(blocks: Path) -> None:
    with open_directory(str(blocks)) as viewer:
        flags = viewer.client.metadata("status/flags").data
        served = Path(flags["storage.tsdb.path"])
        assert finder.find(served, [port(viewer.client.url)]) is None
        assert connect(viewer.client.url)


def test_nobody_listens(tmp_path: Path) -> None:
    assert finder.find(tmp_path / "1-a" / "prometheus", [9]) is None
