"""Whatever bytes come: an answer or an error of ours, and never another exception or a hang.

`make fuzz` looks for longer; RAYDIAG_FUZZ is how many texts each target gets here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fuzzing import COMMANDS, CORPUS, DEEP, TARGETS, check

pytestmark = pytest.mark.slow

PIECES = st.sampled_from(CORPUS)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Pieces of the corpus, some of them cut, repeated, or with bytes changed."""
    parts = []
    for piece in draw(st.lists(PIECES | st.binary(max_size=64), min_size=1, max_size=6)):
        part = bytearray(piece[: draw(st.integers(0, len(piece)))] or piece)
        for _ in range(draw(st.integers(0, 3))):
            part[draw(st.integers(0, len(part) - 1)) if part else 0 : 1] = draw(
                st.binary(max_size=4)
            )
        parts.append(bytes(part) * draw(st.sampled_from([1, 1, 1, 2, 50])))
    return b"".join(parts)


COUNT = int(os.environ.get("RAYDIAG_FUZZ", "60"))
fuzzed = settings(
    max_examples=COUNT,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=COUNT <= 60,
)


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    signal.alarm(60 + COUNT * 5)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("target", [*COMMANDS, *TARGETS])
def test_any_bytes(
    target: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYDIAG_TRACEBACK", "1")  # an internal error fails with its own traceback
    place = tmp_path_factory.mktemp("fuzz")

    @fuzzed
    @given(texts())
    @example(DEEP)
    @example(b"")
    def run(data: bytes) -> None:
        check(target, data, place)

    run()
