"""The strict parser against what prometheus_client writes, and against what nobody should."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from raydiag.errors import ParseError
from raydiag.exposition import ExpositionLine, parse

LABELS = st.dictionaries(
    st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,8}", fullmatch=True), st.text(max_size=12), max_size=3
)


def as_set(lines: list[ExpositionLine]) -> set[tuple[str, tuple[tuple[str, str], ...], str]]:
    return {(line.name, line.labels, repr(line.value)) for line in lines}


@settings(max_examples=50)
@given(labels=LABELS, value=st.floats(), text=st.text(max_size=40))
def test_whatever_prometheus_client_writes_is_understood(
    labels: dict[str, str], value: float, text: str
) -> None:
    registry = CollectorRegistry()
    reserved = {"le", "quantile"}
    labels = {name: word for name, word in labels.items() if name not in reserved}
    words = (text, list(labels))
    gauge = Gauge("a_gauge", *words, registry=registry)
    counter = Counter("a_counter", *words, registry=registry)
    histogram = Histogram("a_histogram", *words, buckets=(1, 2), registry=registry)
    summary = Summary("a_summary", *words, registry=registry)
    (gauge.labels(**labels) if labels else gauge).set(value)
    (counter.labels(**labels) if labels else counter).inc(3)
    (histogram.labels(**labels) if labels else histogram).observe(1.5)
    (summary.labels(**labels) if labels else summary).observe(0.5)
    page = generate_latest(registry).decode()
    printed = parse(page.encode())
    families = list(text_string_to_metric_families(page))
    expected = {
        (sample.name, tuple(sorted(sample.labels.items())), repr(float(sample.value)))
        for family in families
        for sample in family.samples
    }
    assert as_set(printed.lines) == expected
    assert printed.types["a_gauge"] == "gauge"
    assert printed.types[printed.metric_of("a_histogram_bucket")] == "histogram"
    assert printed.metric_of("a_summary_count") == "a_summary"
    theirs = next(family.documentation for family in families if family.name == "a_gauge")
    assert printed.helps["a_gauge"].strip() == theirs.strip()


@given(st.binary(max_size=200))
def test_any_bytes_are_understood_or_refused_in_a_line(data: bytes) -> None:
    try:
        printed = parse(data)
    except ParseError as error:
        assert "\n" not in str(error)
    else:
        assert all(line.name for line in printed.lines)


@given(st.text(alphabet='ab_{}"=,\\ \n#0.5eE+-NTYPE', max_size=60))
def test_near_misses_are_refused_where_prometheus_client_refuses(text: str) -> None:
    try:
        lines = parse(f"{text}\n".encode()).lines
    except ParseError:
        return
    theirs = [one for f in text_string_to_metric_families(f"{text}\n") for one in f.samples]
    assert {(one.name, repr(float(one.value))) for one in theirs} == {
        (line.name, repr(line.value)) for line in lines
    }


@pytest.mark.parametrize(
    "line",
    [
        'a{b="c} 1',
        "a b c",
        "a 1 soon",
        "a 1 12.5",
        "1a 2",
        'a{b="1",b="2"} 1',
        "a{b=c} 1",
        'a{b="c" d="e"} 1',
        'a{b="\\q"} 1',
        'a{__name__="b"} 1',
        "a{,} 1",
        "a 0x10",
        "a 1_000",
        "a 1,5",
        "a",
        "{} 1",
        "# TYPE a",
        "# TYPE a thing",
        "# TYPE 1a gauge",
        "a \u0661",
    ],
)
def test_what_is_not_the_format_is_refused(line: str) -> None:
    with pytest.raises(ParseError, match=r"^line 1: "):
        parse(f"{line}\n".encode())


def test_numbers_times_and_escapes() -> None:
    printed = parse(
        b'a NaN\nb -Inf 5\nc{d="x\\\\y\\"z\\n",} +1.5e-3\t-7  \r\n\n# any words\ne .5\n'
    )
    (nan, infinite, escaped, half) = printed.lines
    assert math.isnan(nan.value)
    assert infinite == ExpositionLine("b", (), -math.inf, 5)
    assert escaped == ExpositionLine("c", (("d", 'x\\y"z\n'),), 0.0015, -7)
    assert half.value == 0.5


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("a 1\n# STATE 5\n", "5"),
        ("a 1\n# STATE a|b  c\n\n \n", "a|b  c"),
        ("# STATE __NONE__ 3", "__NONE__ 3"),
        ("# STATE\n", ""),
        ("a 1\n# STATEMENT\n", None),
        ("a 1\n", None),
    ],
)
def test_state_is_what_the_last_line_says(text: str, state: str | None) -> None:
    assert parse(text.encode(), may_lack_end=True).state == state


def test_a_state_elsewhere_is_refused() -> None:
    with pytest.raises(ParseError, match="STATE is not on the last line"):
        parse(b"# STATE 1\na 1\n")


def test_a_page_of_ours_may_have_our_names() -> None:
    page = b"raydiag_exporter_plugin_up 1\n"
    assert parse(page, own=True).lines[0].value == 1
    with pytest.raises(ParseError, match="raydiag's own"):
        parse(page)
