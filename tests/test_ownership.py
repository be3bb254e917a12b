"""Who could change a file: modes, owners, links, and directories above it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydiag.ownership import changeable

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user: needs root")


def plugin(tmp_path: Path) -> Path:
    directory = tmp_path / "above" / "plugins"
    directory.mkdir(parents=True)
    path = directory / "queue"
    path.write_text("#!/bin/sh\necho a 1\n")
    path.chmod(0o755)
    return path


def test_what_is_ours_alone_is_safe(tmp_path: Path) -> None:
    path = plugin(tmp_path)
    assert changeable(str(path)) == ""
    link = tmp_path / "link"
    link.symlink_to("above/plugins/../plugins/queue")
    assert changeable(str(link)) == ""


@pytest.mark.parametrize("place", ["above", "above/plugins", "above/plugins/queue"])
@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_who_may_write_to_the_file_or_above_it_is_told(
    tmp_path: Path, place: str, mode: int
) -> None:
    path = plugin(tmp_path)
    (tmp_path / place).chmod(mode)
    assert changeable(str(path)) == f"others may write to {tmp_path / place}"


@pytest.mark.parametrize("place", ["above", "above/plugins", "above/plugins/queue"])
def test_another_owner_is_told(tmp_path: Path, place: str) -> None:
    path = plugin(tmp_path)
    os.chown(tmp_path / place, 1234, 0)
    assert changeable(str(path)) == f"{tmp_path / place} belongs to user 1234"
    assert changeable(str(path), [1234]) == ""


def test_a_sticky_directory_is_safe_above_and_not_as_the_place_itself(tmp_path: Path) -> None:
    path = plugin(tmp_path)
    (tmp_path / "above").chmod(0o1777)
    assert changeable(str(path)) == ""
    assert changeable(str(tmp_path / "above")) == f"others may write to {tmp_path / 'above'}"
    os.chown(tmp_path / "above", 1234, 0)
    assert "belongs to user 1234" in changeable(str(path))


def test_each_link_on_the_way_is_followed(tmp_path: Path) -> None:
    path = plugin(tmp_path)
    open_directory = tmp_path / "open"
    open_directory.mkdir()
    (open_directory / "second").symlink_to(path)
    (tmp_path / "first").symlink_to("open/second")
    assert changeable(str(tmp_path / "first")) == ""
    open_directory.chmod(0o777)
    assert changeable(str(tmp_path / "first")) == f"others may write to {open_directory}"


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "too many links" in changeable(str(tmp_path / "a"))
