"""Folding and expanding host names."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raydiag import nodeset
from raydiag.errors import UsageError

# Few letters and digits, so that runs, paddings and duplicates are frequent.
HOSTNAMES = st.from_regex(r"[ab.\-]{0,3}[0-9]{0,4}[ab\-]{0,2}[0129]{0,20}[ab]{0,1}", fullmatch=True)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["head"], "head"),
        (["node007"], "node007"),
        ([f"node{i:03d}" for i in range(1, 64)], "node[001-063]"),
        (["b2", "a1", "b1", "a1", "login"], "a1,b[1-2],login"),
        (["n1", "n2", "n4", "n10", "n11"], "n[1-2,4,10-11]"),
        (["n1", "n01", "n2", "n02"], "n[01-02],n[1-2]"),
        (["n098", "n099", "n100", "n101"], "n[098-101]"),
        (["n999", "n1000"], "n[999-1000]"),
        (["gpu-3-rack1", "gpu-3-rack2"], "gpu-3-rack[1-2]"),
        (["gpu-1-r", "gpu-2-r", "gpu-3-s"], "gpu-[1-2]-r,gpu-3-s"),
        (["10.1.0.9", "10.1.0.10"], "10.1.0.[9-10]"),
        (["n[1]", "n[2]"], "n[1],n[2]"),
        (["n\u0661", "n\u0662"], "n\u0661,n\u0662"),
        (["x" + "9" * 30], "x" + "9" * 30),
    ],
)
def test_fold(names: list[str], folded: str) -> None:
    assert nodeset.fold(names) == folded


@given(st.lists(HOSTNAMES.filter(bool), max_size=30))
@example(["0", "00", "1", "01", "10", "010"])
@example(["a" + "1" * 19, "a" + "1" * 18])
def test_expand_undoes_fold(names: list[str]) -> None:
    assert nodeset.expand(nodeset.fold(names)) == sorted(set(names))


@given(st.sets(st.integers(0, 2000), min_size=1))
def test_fold_is_shorter_than_the_list(numbers: set[int]) -> None:
    names = [f"node{number}" for number in numbers]
    assert len(nodeset.fold(names)) <= len(",".join(names)) + 2


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", []),
        ("head", ["head"]),
        ("n[001-003,007], x", ["n001", "n002", "n003", "n007", "x"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("n[9-11]", ["n10", "n11", "n9"]),
        ("n[08-10]-ib", ["n08-ib", "n09-ib", "n10-ib"]),
        ("n[0-1],n1", ["n0", "n1"]),
    ],
)
def test_expand(expression: str, names: list[str]) -> None:
    assert nodeset.expand(expression) == names


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("n[1-3", "not closed"),
        ("n1-3]", "do not match"),
        ("n[[1]]", "do not match"),
        ("a,,b", "not a node name"),
        ("a b", "not a node name"),
        ("n[]", "not a number"),
        ("n[1,]", "not a number"),
        ("n[a-c]", "not a number"),
        ("n[1-2-3]", "not a number"),
        ("n[-3]", "not a number"),
        ("n[\u0661-\u0663]", "not a number"),
        ("n[1-99999999999999999999]", "not a number"),
        ("n[9-1]", "backwards"),
        ("n[1-010]", "zero padding"),
        ("n[1-100001]", "more than 100000"),
        ("a[1-1000]b[1-1000]", "more than 100000"),
        ("n[1-60000],m[1-60000]", "more than 100000"),
        ("n[" + ",".join(["1-90000"] * 2) + "]", "more than 100000"),
    ],
)
def test_bad_expressions_say_what_is_wrong(expression: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        nodeset.expand(expression)


def test_the_cap_itself_is_allowed() -> None:
    assert len(nodeset.expand("n[1-100000]")) == nodeset.MAX_NAMES


@given(st.text("n01-9[], ", max_size=20))
def test_expand_gives_names_or_a_usage_error(expression: str) -> None:
    try:
        names = nodeset.expand(expression)
    except UsageError as error:
        assert str(error)
    else:
        assert all(name and not set("[] ,") & set(name) for name in names)
        assert names == sorted(set(names))


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("node[1-4,7]", ("node1", "node2", "node3", "node4", "node7")),
        ("n[008-010]", ("n008", "n009", "n010")),
        ("a1,b[2-3],c", ("a1", "b2", "b3", "c")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("a b", ("a", "b")),
        ("n[1-x],m[1-2]", ("n[1-x]", "m1", "m2")),
        ("n[1", ("n[1",)),
        ("", ()),
    ],
)
def test_expand_in_order(nodelist: str, hosts: tuple[str, ...]) -> None:
    assert nodeset.expand_in_order(nodelist) == hosts


def test_a_node_list_cannot_fill_the_memory() -> None:
    assert len(nodeset.expand_in_order("n[1-999999999]", 16384)) == 16384
    assert len(nodeset.expand_in_order("n[1-9999]m[1-9999]", 16384)) == 16384


@given(st.text(alphabet="n[]-,019 ", max_size=40))
def test_expand_in_order_takes_any_text(text: str) -> None:
    assert len(nodeset.expand_in_order(text, 16384)) <= 16384
