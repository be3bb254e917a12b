from __future__ import annotations

import contextlib
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydiag.plain_pickle import values

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner)
    | st.dictionaries(st.text() | st.integers(), inner)
    | st.tuples(inner, inner),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.parametrize("protocol", range(2, 6))
@given(value=st.lists(plain))
def test_reads_what_python_writes(protocol: int, value: Any) -> None:
    assert values(pickle.dumps(value, protocol)) == value


class _Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_runs_nothing(protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps({"entries": [_Runs(f"touch {tmp_path}/ran")]}, protocol)
    with pytest.raises(ValueError, match="more than data"):
        values(data)
    assert not list(tmp_path.iterdir())
    pickle.loads(data)
    assert (tmp_path / "ran").exists()  # so the pickle would have


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02.",
        b"\x80\x02}",
        b"\x80\x02K\x01.",  # a number alone
        b"\x80\x02(.",
        b"\x80\x02}u.",
        b"\x80\x02]q\xff" + b"h\x07.",  # from a place where nothing is
        b"\x80\x02](X\xff\xff\xff\x7fe.",  # a text of 2 GB that is not there
        b"\x80\x02]\x8d" + b"\xff" * 8 + b"a.",
        b"\x80\x02}(]K\x01u.",  # a list as key
        b"\x80\x02]K\x01s.",
        b"\x80\x02\x85.",
    ],
)
def test_refuses_what_is_none(data: bytes) -> None:
    with pytest.raises(ValueError):
        values(data)


def test_one_part_a_billion_times() -> None:
    nested: list[Any] = []
    for _ in range(30):
        nested = [nested] * 10
    with pytest.raises(ValueError, match="too many"):
        values(pickle.dumps(nested))
    within: list[Any] = []
    within.append(within)
    with pytest.raises(ValueError, match="too deeply"):
        values(pickle.dumps(within))


def test_a_high_place_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        assert values(b"\x80\x02]r\xff\xff\xff\xff.") == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        values(b"\x80\x02" + data)
