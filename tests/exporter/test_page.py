"""The page: what stands on it, what is refused, what grows old."""

from __future__ import annotations

import math
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from raydiag.exporter.metrics import COUNTER, GAUGE, UNTYPED, Metric, Sample
from raydiag.exporter.page import OWN, MetricsPage

PROMTOOL = shutil.which("promtool")
OOM, DIRTY = "hw_oom_kills_total", "hw_mem_dirty_bytes"


def page(interval_s: float = 10.0) -> MetricsPage:
    return MetricsPage("node001", interval_s)


def foreign(name: str, kind: str = GAUGE, text: str = "Help.") -> dict[str, Metric]:
    return {name: Metric(name, kind, "", (), text, "plugin")}


def others(one: MetricsPage, now_s: float = 0.0) -> str:
    return one.render(now_s).plugin_lines.decode()


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples, as prometheus_client reads them; a series that comes twice fails."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def test_a_sample_is_a_line_below_its_help_and_type() -> None:
    one = page()
    assert one.put("oom", "", [Sample(OOM, {}, 7)], 0.0) == []
    assert others(one) == (
        f"# HELP {OOM} Processes killed for lack of memory, on the whole node.\n"
        f"# TYPE {OOM} counter\n"
        f'{OOM}{{host="node001"}} 7\n'
    )


def test_labels_are_sorted_and_escaped_and_times_are_in_milliseconds() -> None:
    one = page()
    labels = {"z": 'a"b\\c\nd', "a": "ü"}
    sample = Sample("tp_x", labels, 0.5, 1_700_000_000_123)
    assert one.put("mine", "f", [sample], 0.0, foreign("tp_x")) == []
    line = others(one).split("\n")[2]
    assert line == r'tp_x{a="ü",host="node001",z="a\"b\\c\nd"} 0.5 1700000000123'


def test_a_plugins_samples_replace_those_before() -> None:
    one = page()
    one.put("net", "", [Sample(OOM, {}, 1), Sample(DIRTY, {}, 2)], 0.0)
    one.put("net", "", [Sample(OOM, {}, 3)], 1.0)
    assert list(read(others(one, 1.0)).values()) == [3]
    assert one.series("net") == 1


def test_each_source_has_a_life_of_its_own() -> None:
    one = page(interval_s=10.0)
    name = "hw_gpu_power_watts"
    for cycle in range(3):
        now_s = 10.0 * cycle
        one.put("gpu", "0", [Sample(name, {"gpu": "0"}, 100 + cycle)], now_s)
        if cycle == 0:
            one.put("gpu", "1", [Sample(name, {"gpu": "1"}, 200)], now_s)
        shown = read(others(one, now_s))
        assert shown[name, (("gpu", "0"), ("host", "node001"))] == 100 + cycle
        # The cycle after may be late; in the second one the values are two intervals old.
        assert ((name, (("gpu", "1"), ("host", "node001"))) in shown) == (cycle < 2)
    assert one.series("gpu") == 1


def test_what_has_grown_old_belongs_to_nobody() -> None:
    one = page(interval_s=10.0)
    one.put("a", "", [Sample(OOM, {}, 1)], 0.0)
    assert others(one, 30.0) == ""
    assert one.put("b", "", [Sample(OOM, {}, 2)], 30.0) == []


def test_lines_of_one_metric_stand_together_whoever_gave_them() -> None:
    one = page()
    name = "hw_gpu_power_watts"
    one.put("amd", "", [Sample(name, {"gpu": "0"}, 1), Sample(OOM, {}, 1)], 0.0)
    one.put("nvidia", "", [Sample(name, {"gpu": "1"}, 2)], 0.0)
    text = others(one)
    assert text.count(f"# TYPE {name} ") == 1
    assert [line[:18] for line in text.split("\n")[2:4]] == [name, name]


def test_lines_about_the_exporter_stand_apart() -> None:
    one = page()
    one.put(OWN, "", [Sample("raydiag_exporter_cycles_total", {}, 4)], 0.0)
    lost = "raydiag_exporter_kernel_log_records_lost_total"
    one.put(
        "kernel_log", "", [Sample(lost, {}, 5), Sample("hw_dmesg_gpu_errors_total", {}, 6)], 0.0
    )
    text = one.render(0.0)
    assert sorted(read(text.own.decode()).values()) == [4, 5]
    assert list(read(text.plugin_lines.decode()).values()) == [6]


def test_a_series_of_another_plugin_is_refused_and_stays_as_it_was() -> None:
    one = page()
    one.put("oom", "", [Sample(OOM, {}, 1)], 0.0)
    samples = [Sample(OOM, {"host": "node001"}, 99), Sample("tp_own", {}, 2)]
    declared = {**foreign(OOM, COUNTER), **foreign("tp_own")}
    (reason,) = one.put("shell", "x.sh", samples, 0.0, declared)
    assert OOM in reason
    assert "series of oom" in reason
    assert sorted(read(others(one)).values()) == [1, 2]
    # Its owner may give it again, of course.
    assert one.put("oom", "", [Sample(OOM, {}, 3)], 0.0) == []


@pytest.mark.parametrize("kind", [COUNTER, GAUGE, UNTYPED])
def test_our_own_plugin_takes_its_series_back_from_a_foreign_one(kind: str) -> None:
    one = page()
    samples = [Sample(OOM, {}, 99), Sample("tp_own", {}, 2)]
    declared = {**foreign(OOM, kind), **foreign("tp_own")}
    assert one.put("shell", "", samples, 0.0, declared) == []
    assert one.put("oom", "", [Sample(OOM, {}, 1)], 0.0) == []
    assert sorted(read(others(one)).values()) == [1, 2]
    assert f"# TYPE {OOM} counter\n" in others(one)
    (reason,) = one.put("shell", "", samples, 1.0, declared)
    assert OOM in reason
    assert one.put("oom", "", [Sample(OOM, {}, 3)], 1.0) == []
    assert sorted(read(others(one, 1.0)).values()) == [2, 3]
    one.drop("shell")
    assert list(read(others(one, 1.0)).values()) == [3]


def test_a_foreign_series_that_changed_hands_in_a_late_cycle_comes_back() -> None:
    one, declared = page(interval_s=10.0), foreign("tp_x")
    assert one.put("first", "", [Sample("tp_x", {}, 1)], 0.0, declared) == []
    assert others(one, 30.0) == ""  # its run is late
    assert one.put("second", "", [Sample("tp_x", {}, 2)], 30.0, declared) == []
    one.drop("first", is_gone=False)  # a rollout has replaced its file meanwhile
    assert one.put("first", "", [Sample("tp_x", {}, 3)], 31.0, declared) == []
    assert list(read(others(one, 31.0)).values()) == [3]
    (reason,) = one.put("second", "", [Sample("tp_x", {}, 4)], 32.0, declared)
    assert "series of first" in reason
    assert list(read(others(one, 32.0)).values()) == [3]


def test_a_foreign_plugin_that_is_gone_has_no_claim_any_more() -> None:
    one, declared = page(), foreign("tp_x")
    one.put("first", "", [Sample("tp_x", {}, 1)], 0.0, declared)
    one.drop("first")
    assert one.put("second", "", [Sample("tp_x", {}, 2)], 0.0, declared) == []
    (reason,) = one.put("first", "", [Sample("tp_x", {}, 3)], 0.0, declared)
    assert "series of second" in reason


def test_a_series_that_comes_twice_is_refused() -> None:
    one = page()
    (reason,) = one.put("oom", "", [Sample(OOM, {}, 1), Sample(OOM, {}, 2)], 0.0)
    assert "twice" in reason
    assert list(read(others(one)).values()) == [1]


def test_a_metric_keeps_its_type_until_its_plugin_is_dropped() -> None:
    one = page()
    assert one.put("a", "", [Sample("tp_x", {}, 1)], 0.0, foreign("tp_x", GAUGE)) == []
    (reason,) = one.put("a", "", [Sample("tp_x", {}, 2)], 1.0, foreign("tp_x", COUNTER))
    assert reason == "tp_x: is a gauge, and not a counter"
    assert others(one, 1.0) == ""
    one.drop("a")
    assert one.put("a", "", [Sample("tp_x", {}, 3)], 2.0, foreign("tp_x", COUNTER)) == []
    assert "# TYPE tp_x counter\n" in others(one, 2.0)


def test_a_dropped_plugin_leaves_nothing() -> None:
    one = page()
    one.put("a", "1", [Sample(OOM, {}, 1)], 0.0)
    one.put("a", "2", [Sample(DIRTY, {}, 1)], 0.0)
    one.drop("a")
    assert (others(one), one.series("a")) == ("", 0)


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (Sample("hw_unheard_of", {}, 1), "hw_unheard_of: not a metric of ours"),
        (Sample(OOM, {"gpu": "0"}, 1), f"{OOM}: has the labels host"),
        (Sample(OOM, {}, "7"), f"{OOM}: not a number: '7'"),  # type: ignore[arg-type]
        (Sample(OOM, {}, True), f"{OOM}: not a number: 'True'"),
        (Sample(OOM, {}, None), f"{OOM}: not a number: 'None'"),  # type: ignore[arg-type]
        (Sample(OOM, {}, 1 << 1100), f"{OOM}: not a number: "),
        (Sample(OOM, {}, 1, -5), f"{OOM}: not a time in milliseconds: '-5'"),
        (Sample(OOM, ["x"], 1), f"{OOM}: malformed labels"),  # type: ignore[arg-type]
    ],
)
def test_a_malformed_sample_is_refused_and_the_others_stand(sample: Sample, reason: str) -> None:
    one = page()
    (refused,) = one.put("a", "", [sample, Sample(DIRTY, {}, 5)], 0.0)
    assert refused.startswith(reason)
    assert list(read(others(one)).values()) == [5]


@pytest.mark.parametrize(
    "sample",
    [
        Sample("1x", {}, 1),
        Sample("x y", {}, 1),
        Sample("x", {"a-b": "1"}, 1),
        Sample("x", {"a": 1}, 1),  # type: ignore[dict-item]
        Sample("x", {"a": "\ud800"}, 1),
        Sample("raydiag_exporter_cycles_total", {}, 1),
    ],
)
def test_a_foreign_sample_that_would_break_the_page_is_refused(sample: Sample) -> None:
    one = page()
    assert len(one.put("a", "", [sample], 0.0, foreign(sample.name))) == 1
    assert one.render(0.0) == (b"", b"")


@given(
    st.one_of(st.floats(), st.integers(-(2**70), 2**70)),
    st.dictionaries(
        st.from_regex(r"[a-z]{1,5}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")),
        max_size=3,
    ),
)
def test_values_and_labels_come_back_as_they_were(value: float, labels: dict[str, str]) -> None:
    one = page()
    assert one.put("a", "", [Sample("tp_x", labels, value)], 0.0, foreign("tp_x", UNTYPED)) == []
    ((series, found),) = read(others(one)).items()
    assert series == ("tp_x", tuple(sorted({"host": "node001", **labels}.items())))
    assert float(found) == float(value) or (math.isnan(found) and math.isnan(value))


_SERIES: list[tuple[str, dict[str, str]]] = [
    (OOM, {}),
    (DIRTY, {}),
    ("hw_gpu_power_watts", {"gpu": "0"}),
]
_SERIES += [("hw_gpu_power_watts", {"gpu": "1"}), (OOM, {"host": "node001"}), (OOM, {"gpu": "0"})]
_SAMPLES = st.lists(
    st.builds(
        lambda series, value: Sample(series[0], series[1], value),
        st.sampled_from(_SERIES),
        st.sampled_from([0, 1, 2.5, "x"]),
    ),
    min_size=1,
    max_size=3,
)


@given(st.lists(_SAMPLES, min_size=1, max_size=5), st.booleans())
def test_a_page_rests_on_the_last_samples_and_on_none_before(
    cycles: list[list[Sample]], same_shape: bool
) -> None:
    grown = page()
    for cycle in cycles:
        refused = grown.put("a", "", cycle, 0.0)
        if same_shape:
            refused = grown.put("a", "", cycle, 0.0)
    fresh = page()
    assert refused == fresh.put("a", "", cycles[-1], 0.0)
    assert grown.render(0.0) == fresh.render(0.0)
    assert grown._owners.keys() == fresh._owners.keys()


def test_a_histogram_keeps_its_parts_below_one_type() -> None:
    one = page()
    whole = Metric("tp_wait", "histogram", "", (), "Wait.", "plugin")
    declared = dict.fromkeys(("tp_wait_bucket", "tp_wait_sum", "tp_wait_count"), whole)
    samples = [
        Sample("tp_wait_bucket", {"le": "1"}, 2),
        Sample("tp_wait_bucket", {"le": "+Inf"}, 3),
        Sample("tp_wait_sum", {}, 1.5),
        Sample("tp_wait_count", {}, 3),
    ]
    assert one.put("a", "", samples, 0.0, declared) == []
    text = others(one)
    assert text.startswith("# HELP tp_wait Wait.\n# TYPE tp_wait histogram\ntp_wait_bucket{")
    assert len(read(text)) == 4


def test_names_that_change_all_the_time_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raydiag.exporter.page._MOST_REMEMBERED", 50)
    one = page()
    for number in range(500):
        name = f"tp_{number}"
        assert one.put("a", "", [Sample(name, {}, number)], 0.0, foreign(name)) == []
    assert list(read(others(one)).values()) == [499]
    assert len(one._metrics) <= 51
    assert len(one._beginnings) <= 51
    assert len(one._first_owners) <= 51


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_accepts_a_page() -> None:
    one = page()
    one.put("oom", "", [Sample(OOM, {}, 1), Sample(DIRTY, {}, math.inf)], 0.0)
    text = one.render(0.0).plugin_lines
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
