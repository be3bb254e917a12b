from __future__ import annotations

import pytest

from raydiag.tsdb.rewriting import Matcher, Unit, rewritten, selector, units


def marked(text: str) -> str:
    """With each unit of `ours`, or of what may be it, in angle brackets."""

    def mark(unit: Unit, whole: str) -> str:
        return f"<{whole}>" if unit.of(["ours"]) else ""

    return rewritten(text, mark)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ours", "<ours>"),
        ("max by (host) (ours)", "max by (host) (<ours>)"),
        ("max by (ours_not) (hours)", "max by (ours_not) (hours)"),
        ('ours{host="a{b}"} > 1', '<ours{host="a{b}"}> > 1'),
        ('label_replace(x, "ours", "ours", "", "")', 'label_replace(x, "ours", "ours", "", "")'),
        ("sum(rate(ours[5m])) / 2", "sum(<rate(ours[5m])>) / 2"),
        ("increase(ours{gpu='1'}[5m]) > 0", "<increase(ours{gpu='1'}[5m])> > 0"),
        ("quantile_over_time(0.5, ours[5m])", "<quantile_over_time(0.5, ours[5m])>"),
        ("predict_linear(ours[5m], (60 * 2))", "<predict_linear(ours[5m], (60 * 2))>"),
        ("rate(ours[5m] offset 1h)", "<rate(ours[5m] offset 1h)>"),
        ("ours offset 5m + 1", "<ours offset 5m> + 1"),
        ("timestamp(ours) or timestamp(x)", "<timestamp(ours)> or timestamp(x)"),
        ("min_over_time(timestamp(ours)[1h:15s])", "min_over_time(<timestamp(ours)>[1h:15s])"),
        ("max_over_time(ours[1h:15s])", "max_over_time(<ours>[1h:15s])"),
        ('{__name__=~"a|ours"} > 0', '<{__name__=~"a|ours"}> > 0'),
        ('{__name__!="ours"}', '{__name__!="ours"}'),
        ('{host="a"}', '{host="a"}'),
        ("rate(x[5m]) + rate(ours[5m])", "rate(x[5m]) + <rate(ours[5m])>"),
    ],
)
def test_a_unit_is_a_selector_and_the_function_of_its_raw_samples(text: str, expected: str) -> None:
    assert marked(text) == expected


def test_samples_as_they_are_are_raw() -> None:
    _, _, unit = next(units("ours[5m]"))
    assert unit.raw and unit.applied_to("theirs") == "theirs[5m]"
    _, _, unit = next(units("ours[5m:1m]"))
    assert not unit.raw


def test_matchers_are_read_with_their_escapes() -> None:
    unit = selector(r'ours{host=~"a\\.b|\"c\"", gpu!="1",}')
    assert unit.matchers == (Matcher("host", "=~", r'a\.b|"c"'), Matcher("gpu", "!=", "1"))
    assert unit.matchers[0].text == r'host=~"a\\.b|\"c\""'
    assert unit.matchers[0].fits("a.b") and not unit.matchers[0].fits("aXb")
    assert unit.selects({"__name__": "ours", "host": "a.b", "gpu": "2"})
    assert not unit.selects({"__name__": "ours", "host": "a.b", "gpu": "1"})
