"""The lab in a short form: a training on four hosts, one rank of which is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.conftest import wanted_or_skip
from tests.cluster.live.__main__ import run
from tests.cluster.live.lab import unavailable
from tests.cluster.live.plantings import PLANTINGS

pytestmark = pytest.mark.cluster


def test_a_rank_that_was_just_stopped_is_named(tmp_path: Path) -> None:
    wanted_or_skip(unavailable())
    (planting,) = [planting for planting in PLANTINGS if planting.name == "stopped just now"]
    assert run([planting], tmp_path) == []
