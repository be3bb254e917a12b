"""The observability stack, symptom by symptom: planted in the series of three hosts and in logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raydiag.model import Observation, Severity, Status, Window
from raydiag.playbooks import observability
from raydiag.playbooks.observability import coverage, judge
from raydiag.playbooks.observability.stack import Stack
from raydiag.timeline import masks
from raydiag.timeline.answers import Answers
from raydiag.timeline.context import Context, TrainingJob
from raydiag.timeline.steps import MetricSteps
from raydiag.tsdb import stack_logs
from raydiag.tsdb.discovery_types import (
    Discovery,
    Family,
    HostSeries,
    SampleRange,
    SpokenDialect,
    Target,
)
from raydiag.tsdb.series import Query, QueryResult, Series
from raydiag.tsdb.stack_logs import StackLogs

HOSTS = ("node1", "node2", "node3")
START, END, EVERY = 1_795_000_000.0, 1_795_003_600.0, 10.0
GRID = np.arange(START, END + 1, EVERY)
Seen = Callable[[str, str], np.ndarray]  # host, "hw" or "ray" -> newest sample at each grid time


def always(host: str, source: str) -> np.ndarray:
    return np.array(GRID)


def until(sick: str, end: float, sources: Iterable[str] = ("hw",)) -> Seen:
    """One host's samples of some sources stop; the server repeats the last one for 15 minutes."""

    def seen(host: str, source: str) -> np.ndarray:
        last = START + end if host == sick and source in sources else END
        return np.where(last >= GRID, GRID, np.where(last + 900 >= GRID, last, np.nan))

    return seen


def without(sick: str, *sources: str) -> Seen:
    def seen(host: str, source: str) -> np.ndarray:
        gone = host == sick and source in sources
        return np.full(GRID.size, np.nan) if gone else np.array(GRID)

    return seen


def answer(name: str, series: list[Series]) -> QueryResult:
    return QueryResult(
        Query(name, name, Window(START, END, EVERY)), Status.OK, series=tuple(series)
    )


def stack(
    seen: Seen = always,
    cycles: Mapping[str, np.ndarray] | None = None,
    logs: StackLogs | None = None,
    steps: MetricSteps | None = None,
    last_step: int | None = None,
    families: Mapping[str, tuple[str, ...]] | None = None,
    is_ray: bool = True,
) -> Stack:
    """Three hosts over an hour; what is not given is well."""
    rng = np.random.default_rng(5)
    alive, driver = [], []
    for host in HOSTS:
        hw, ray = seen(host, "hw"), seen(host, "ray")
        if not np.isnan(hw).all():
            alive.append(Series.of({"host": host}, GRID[~np.isnan(hw)], hw[~np.isnan(hw)]))
            values = 0.1 + 0.02 * rng.random(GRID.size)
            values = (cycles or {}).get(host, values)
            labels = {"__name__": "hw_scrape_duration_seconds", "host": host}
            driver.append(Series.of(labels, GRID, values))
        if not np.isnan(ray).all():
            labels = {"instance": f"{host}:55080", "ip": "10.0.0.1"}
            alive.append(Series.of(labels, GRID[~np.isnan(ray)], ray[~np.isnan(ray)]))
    known = {"hw_gpu_": HOSTS, "hw_procs_": HOSTS, "ray_node_": HOSTS, **(families or {})}
    found = Discovery(
        "test",
        ("hw_scrape_duration_seconds",),
        tuple(
            Family(prefix, (prefix,), prefix, hosts, START, END, EVERY, EVERY, 0.0)
            for prefix, hosts in known.items()
        ),
        tuple(
            HostSeries(host, instances=(f"{host}:9400", f"{host}:55080"), labels=(host,))
            for host in HOSTS
        ),
        tuple(Target("node_hw", f"{host}:9400", host, True, END, 1.0) for host in HOSTS),
        Window(START, END),
        HOSTS,
        len(HOSTS),
    )
    answers = Answers([answer("alive", alive), answer("driver", driver)], found)
    context = Context(TrainingJob(first_step=0), Window(START, END), END, found, HOSTS)
    steps = steps if steps is not None else trained()
    context = replace(context, masks=masks.of_job(context, answers, steps))
    return Stack(context, answers, logs or StackLogs(), steps, last_step, is_ray)


def trained(first: int = 0, last: int = 350) -> MetricSteps:
    numbers = np.arange(first, last + 1, dtype=float)
    return MetricSteps(numbers, START + EVERY * (numbers + 5))


def found(made: Stack) -> list[tuple[str, str | None]]:
    return [(one.finding.failure_class, one.finding.host) for one in judge(made)[0]]


def only(made: Stack) -> Observation:
    (one,) = judge(made)[0]
    return one


def test_a_well_stack_has_no_symptom_and_is_seen() -> None:
    made = stack()
    observations, report = judge(made)
    assert observations == []
    assert report.verdict == "The observability stack is healthy."
    assert len(report.rows) == 10 and not any(row.holds for row in report.rows)
    seen = coverage(made)
    assert seen.complete and (seen.asked, seen.answered) == (3, 3)


def test_a_server_that_does_not_answer_lacks_nothing() -> None:
    made = stack()
    window = Window(START, END, EVERY)
    late = QueryResult(Query("alive", "alive", window), Status.TIMEOUT, "no answer in time")
    made = replace(made, answers=Answers([late], made.context.discovery))
    observations, report = judge(made)
    assert observations == []
    undecided = [row.row for row in report.rows if row.holds is None]
    assert {"ray-metrics", "hosts-missing", "exporter-down", "gap"} <= set(undecided)


def test_an_exporter_that_stops_while_ray_goes_on() -> None:
    made = stack(until("node2", 2000))
    one = only(made)
    assert (one.finding.failure_class, one.finding.host) == ("exporter-down", "node2")
    assert one.finding.onset == START + 2000
    assert [(u.host, u.source) for u in coverage(made).unread] == [("node2", "hw_*")]


@pytest.mark.parametrize(("every_s", "down"), [(EVERY, True), (15.0, False)])
def test_so_many_scrapes_without_an_answer_are_enough(every_s: float, down: bool) -> None:
    made = stack(until("node2", 3510))
    families = tuple(
        replace(family, resolution_s=every_s) for family in made.context.discovery.families
    )
    seldom = replace(made.context.discovery, families=families)
    made = replace(made, context=replace(made.context, discovery=seldom))
    assert (found(made) == [("exporter-down", "node2")]) is down


def test_a_node_that_stops_altogether_is_no_matter_of_its_exporter() -> None:
    made = stack(until("node2", 2000, ("hw", "ray")))
    assert found(made) == []
    assert {u.host for u in coverage(made).unread} == {"node2"}
    assert coverage(made, dead=["node2"]).complete


def test_an_exporter_that_never_came_and_one_that_has_nothing_to_say() -> None:
    made = stack(without("node2", "hw"))
    assert ("exporter-plugin-skipped", "node2") in found(replace_families(made, ()))
    gone = replace(made.context.discovery, targets=())
    made = replace(made, context=replace(made.context, discovery=gone))
    assert ("exporter-down", "node2") in found(replace_families(made, ()))


def replace_families(made: Stack, hosts: tuple[str, ...]) -> Stack:
    """Discovery as it is when node2 has no hw_* of any family."""
    families = tuple(
        replace(one, hosts=tuple(h for h in one.hosts if h != "node2" or h in hosts))
        if one.prefix.startswith("hw_")
        else one
        for one in made.context.discovery.families
    )
    seen = replace(made.context.discovery, families=families)
    return replace(made, context=replace(made.context, discovery=seen))


def test_a_family_that_one_host_lacks() -> None:
    one = only(stack(families={"hw_gpu_": ("node1", "node3")}))
    assert (one.finding.failure_class, one.finding.host) == ("exporter-plugin-skipped", "node2")
    assert "hw_gpu_*" in one.finding.evidence[0].text


def test_cycles_that_take_as_long_as_a_plugin_may() -> None:
    slow = np.where(GRID >= START + 1500, 12.1, 0.1)
    slow[::2] = 0.11  # every other cycle is fast: the sign of a driver that hangs its readers
    one = only(stack(cycles={"node3": slow}))
    assert one.finding.failure_class == "exporter-plugin-timeout"
    assert one.finding.onset == pytest.approx(START + 1500, abs=EVERY)
    assert "others fast" in one.finding.evidence[0].text
    assert not one.recovered


@pytest.mark.parametrize("peak", [7.9, 8.0])
def test_cycles_up_to_eight_seconds_are_none(peak: float) -> None:
    assert found(stack(cycles={"node3": np.full(GRID.size, peak) - 0.001 * (GRID % 3)})) == []


def test_repeated_samples() -> None:
    rng = np.random.default_rng(1)
    values = 0.1 + 0.02 * rng.random(GRID.size)
    values[(GRID >= START + 1200) & (GRID <= START + 2400)] = 0.1111
    made = stack(cycles={"node1": values})
    one = only(made)
    assert (one.finding.failure_class, one.finding.host) == ("ghost-data", "node1")
    assert one.finding.onset == START + 1200
    assert one.recovered
    assert not coverage(made).complete


def test_what_the_server_repeats_of_a_host_that_stopped_is_no_ghost() -> None:
    assert ("ghost-data", "node2") not in found(stack(until("node2", 2000, ("hw", "ray"))))


def gap(host: str, source: str) -> np.ndarray:
    away = (GRID > START + 1000) & (GRID < START + 1400)
    return np.where(away, START + 1000, GRID)


def test_a_hole_in_everything_is_the_servers() -> None:
    one = only(stack(gap))
    assert one.finding.failure_class == "tsdb-gap"
    assert (one.finding.onset, one.until) == (START + 1000, START + 1400)
    assert one.recovered


def test_samples_that_end_long_before_the_window() -> None:
    made = stack()
    later = replace(made.context, window=Window(START, END + 900))
    (one,) = judge(replace(made, context=later))[0]
    assert (one.finding.failure_class, one.finding.onset) == ("tsdb-gap", END)
    assert not coverage(replace(made, context=later)).complete


def test_steps_that_the_bridge_lost() -> None:
    whole = trained()
    keep = (whole.numbers < 100) | (whole.numbers > 160)
    one = only(stack(steps=MetricSteps(whole.numbers[keep], whole.ended_at[keep])))
    assert one.finding.failure_class == "tb-bridge-gap"
    assert one.finding.severity is Severity.WARNING
    assert "100 to 160" in one.finding.evidence[0].text


def test_a_bridge_that_leaves_out_single_steps_or_lags_is_well() -> None:
    whole = trained()
    assert found(stack(steps=MetricSteps(whole.numbers[::3], whole.ended_at[::3]))) == []
    assert found(stack(steps=trained(last=330), last_step=350)) == []
    lost = stack(steps=trained(last=150), last_step=350)
    assert found(lost) == [("tb-bridge-gap", None)]
    assert found(stack(steps=MetricSteps(), last_step=350)) == [("tb-bridge-gap", None)]
    assert found(stack(steps=MetricSteps(), last_step=None)) == []


def test_rays_metrics_missing_on_one_host_on_all_or_ending_early() -> None:
    assert found(stack(without("node2", "ray"))) == [("ray-metrics-missing", "node2")]
    assert found(stack(until("node2", 2000, ("ray",)))) == [("ray-metrics-missing", "node2")]

    def none(host: str, source: str) -> np.ndarray:
        return np.full(GRID.size, np.nan) if source == "ray" else GRID.copy()

    assert found(stack(none)) == [("ray-metrics-missing", None)]
    assert found(stack(none, is_ray=False)) == []


def test_a_host_that_was_never_scraped() -> None:
    made = stack(without("node2", "hw", "ray"))
    targets = [replace(one, up=False, share_up=0.0) for one in made.context.discovery.targets]
    discovery = replace(made.context.discovery, targets=tuple(targets[1:2]))
    made = replace(made, context=replace(made.context, discovery=discovery))
    assert ("host-missing", "node2") in found(made)
    assert [one.host for one in coverage(made).blind] == ["node2"]


def test_a_host_that_once_answered_is_not_missing() -> None:
    assert ("host-missing", "node2") not in found(stack(without("node2", "hw", "ray")))


@pytest.mark.parametrize(("share_up", "missing"), [(0.001, True), (0.9, False)])
def test_a_host_that_hardly_ever_answered_is_missing(share_up: float, missing: bool) -> None:
    made = stack(without("node2", "hw", "ray"))
    targets = made.context.discovery.targets
    node2 = replace(targets[1], up=False, share_up=share_up)
    discovery = replace(made.context.discovery, targets=(targets[0], node2, *targets[2:]))
    made = replace(made, context=replace(made.context, discovery=discovery))
    assert (("host-missing", "node2") in found(made)) is missing


def test_a_plugin_is_skipped_also_where_the_last_scrape_failed() -> None:
    made = stack(families={"hw_gpu_": ("node1", "node3")})
    targets = made.context.discovery.targets
    node2 = replace(targets[1], up=False)
    discovery = replace(made.context.discovery, targets=(targets[0], node2, *targets[2:]))
    made = replace(made, context=replace(made.context, discovery=discovery))
    assert ("exporter-plugin-skipped", "node2") in found(made)


# ---- the stack's own logs

SERVER = """\
ts=2026-11-18T11:06:40.000Z level=info msg="Server is ready to receive web requests."
[2026-11-18T11:10:00Z] [Prometheus] Watchdog: exited with code 2, restart #1
ts=2026-11-18T11:20:00Z caller=scrape.go msg="Error on ingesting samples that are too old" num=3
level=debug target=http://node2:9400/metrics msg="Scrape failed" err="context deadline exceeded"
"""
EXPORTER = """\
[metrics_exporter] Starting on port 9400 (poll every 10s) on node3
[2026-11-18T11:10:00Z] [Metrics Exporter] Watchdog: exited with code 137, restart #1
OSError: [Errno 98] Address already in use
[2026-11-18T11:15:00Z] [Metrics Exporter] Watchdog: exited with code 137, restart #2
[metrics_exporter] gpu_metrics_plugin timed out after 10s
[metrics_exporter] tb_metrics_plugin exited 99 - permanently skipped
"""


def write(directory: Path) -> Path:
    (directory / "prometheus").mkdir()
    (directory / "prometheus" / "prometheus.log").write_text(SERVER)
    (directory / "metrics_exporter").mkdir()
    (directory / "metrics_exporter" / "node3.log").write_text(EXPORTER)
    return directory


def test_what_the_logs_say(tmp_path: Path) -> None:
    logs = stack_logs.read(write(tmp_path))
    assert not logs.unread
    restarts = logs.of("restart", "node3")
    assert [(one.number, one.code) for one in restarts] == [(1, 137), (2, 137)]
    assert restarts[0].time == 1_795_000_200.0
    assert [one.host for one in logs.of("scrape-failed")] == ["node2"]
    assert len(logs.of("too-old", "")) == 1
    assert [one.plugin for one in logs.of("plugin-skipped")] == ["tb_metrics_plugin"]


def test_an_exporter_that_restarts_again_and_again(tmp_path: Path) -> None:
    one = only(stack(logs=stack_logs.read(write(tmp_path))))
    assert (one.finding.failure_class, one.finding.host) == ("exporter-restarting", "node3")
    assert one.finding.severity is None  # the catalog's: a warning
    first = EXPORTER.splitlines()[1]
    log = tmp_path / "metrics_exporter" / "node3.log"
    log.write_text(first + "\n")
    assert only(stack(logs=stack_logs.read(tmp_path))).finding.severity is Severity.INFO


def test_an_exporter_that_was_given_up_and_is_gone_is_down(tmp_path: Path) -> None:
    write(tmp_path)
    log = tmp_path / "metrics_exporter" / "node3.log"
    stamp = EXPORTER.splitlines()[1].split("]")[0]
    log.write_text(f"{stamp}] [Metrics Exporter] Watchdog: too many restarts (50), giving up\n")
    logs = stack_logs.read(tmp_path)
    assert only(stack(until("node3", 2000), logs=logs)).finding.failure_class == "exporter-down"
    assert only(stack(logs=logs)).finding.failure_class == "exporter-restarting"


def test_logs_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    assert stack_logs.read(tmp_path / "nowhere") == StackLogs()
    (tmp_path / "metrics_exporter").mkdir()
    (tmp_path / "metrics_exporter" / "node1.log").write_bytes(b"\xff\x00" * 5000 + b"\n")
    (tmp_path / "metrics_exporter" / "node2.log").mkdir()
    logs = stack_logs.read(tmp_path)
    assert logs.lines == ()
    assert [Path(one.source).name for one in logs.unread] == ["node2.log"]


def test_no_samples_and_another_jobs_samples() -> None:
    assert observability.empty("nothing", ()).finding.failure_class == "tsdb-empty"
    assert observability.wrong_job("url", "other loss").finding.failure_class == "tsdb-wrong-job"


@pytest.mark.parametrize(
    ("ahead_s", "late_s", "seen"),
    [(40.0, 0.0, True), (-60.0, 0.0, True), (0.0, 900.0, False), (0.0, 0.0, False)],
)
def test_a_clock_that_differs_and_an_exporter_that_hangs(
    ahead_s: float, late_s: float, seen: bool
) -> None:
    rows = []
    for host in HOSTS:
        ages = np.resize([2.0, 6.0, 11.0], GRID.size)
        if host == HOSTS[1]:
            ages = ages - ahead_s + np.where(GRID > START + 1800, late_s, 0.0)
        rows.append(Series.of({"host": host}, GRID, ages))
    well = stack()
    skewed = replace(well, answers=well.answers.also([answer("cycle-age", rows)]))
    assert found(skewed) == ([("clock-skew", HOSTS[1])] if seen else [])


def test_a_clock_that_runs_off_is_dated_from_where_it_left() -> None:
    ages = {host: np.resize([2.0, 6.0, 11.0], GRID.size) for host in HOSTS}
    ages[HOSTS[1]] = ages[HOSTS[1]] - np.clip((GRID - START - 1200) / 30, 0.0, None)
    rows = [Series.of({"host": host}, GRID, row) for host, row in ages.items()]
    well = stack()
    skewed = replace(well, answers=well.answers.also([answer("cycle-age", rows)]))
    (told,) = observability.judge(skewed)[0]
    assert (told.finding.failure_class, told.finding.host) == ("clock-skew", HOSTS[1])
    assert told.finding.onset is not None and 0 <= told.finding.onset - START - 1200 < 600


def test_an_exporter_that_is_down_has_skipped_no_plugin() -> None:
    made = replace_families(stack(until("node2", 2000)), ())
    assert found(made) == [("exporter-down", "node2")]


# ---- where other exporters are, and ours never was


def translated(seen: Seen = always, families: Mapping[str, tuple[str, ...]] | None = None) -> Stack:
    """Hosts with dcgm-exporter and node_exporter."""
    made = stack(seen, families=families)
    dialects = tuple(SpokenDialect(name, HOSTS, {}, ()) for name in ("dcgm", "node"))
    hosts = []
    for host in made.context.discovery.hosts:
        ranges: dict[str, SampleRange] = {}
        for source, prefixes in (("hw", ("hw_gpu_", "hw_procs_")), ("ray", ("ray_node_",))):
            times = seen(host.name, source)
            if not np.isnan(times).all():
                newest = SampleRange(START, float(np.nanmax(times)))
                ranges |= dict.fromkeys(prefixes, newest)
        hosts.append(replace(host, sample_ranges=ranges))
    found = replace(made.context.discovery, dialects=dialects, hosts=tuple(hosts), targets=())
    context = replace(made.context, discovery=found)
    answers = Answers([part for part in made.answers if part.query.id != "driver"], found)
    return replace(made, context=context, answers=answers, steps=MetricSteps(), last_step=300)


def test_what_was_never_installed_is_not_missing() -> None:
    def without_ray(host: str, source: str) -> np.ndarray:
        return np.full(GRID.size, np.nan) if source == "ray" else np.array(GRID)

    made = translated(without_ray)
    observations, report = judge(made)
    assert observations == []
    undecided = {row.row for row in report.rows if row.holds is None}
    assert undecided == {
        *("plugin-timeout", "plugin-skipped", "clock-skew", "ghost-data"),
        *("bridge-gap", "ray-metrics"),
    }
    assert coverage(made).complete


def test_no_exporter_anywhere_is_no_fault_of_one() -> None:
    def ray_alone(host: str, source: str) -> np.ndarray:
        return np.full(GRID.size, np.nan) if source == "hw" else np.array(GRID)

    made = stack(ray_alone)
    bare = replace(made.context.discovery, targets=())
    observations, report = judge(replace(made, context=replace(made.context, discovery=bare)))
    assert not any(found.finding.failure_class == "exporter-down" for found in observations)
    (row,) = (row for row in report.rows if row.row == "exporter-down")
    assert row.holds is None and "ever there" in row.interpretation


def test_another_exporter_that_stops_is_down() -> None:
    observations, _ = judge(translated(until("node2", 1800)))
    assert {found.finding.failure_class for found in observations} == {"exporter-down"}
    assert {found.finding.host for found in observations} == {"node2"}
    assert {found.finding.onset for found in observations} == {START + 1800}


@pytest.mark.parametrize(
    ("without", "addresses", "accused"),
    [
        ("123", ("10.0.0.1", "10.0.0.2", "10.0.0.3"), []),
        ("123", ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9"), []),
        ("12", ("10.0.0.1", "10.0.0.2"), []),
        ("12", ("10.0.0.1",), ["node1", "node2"]),
        ("12", (), ["node1", "node2"]),
    ],
)
def test_ray_that_has_addresses_alone_is_not_missing(
    without: str, addresses: tuple[str, ...], accused: list[str]
) -> None:
    """Some hosts have no series of Ray by their names, and so many addresses have some."""
    hosts = [f"node{number}" for number in without]
    made = translated(lambda host, source: without_ray_on(host, source, hosts))
    found_hosts = made.context.discovery.hosts
    samples = {"ray_node_": SampleRange(START, float(GRID[-1]))}
    by_address = [HostSeries(address, sample_ranges=samples) for address in addresses]
    wider = replace(made.context.discovery, hosts=(*found_hosts, *by_address))
    made = replace(made, context=replace(made.context, discovery=wider))
    observations, _ = judge(made)
    assert sorted(str(seen.finding.host) for seen in observations) == accused
    assert coverage(made).complete is (not accused)


def without_ray_on(host: str, source: str, hosts: Sequence[str]) -> np.ndarray:
    is_silent = source == "ray" and host in hosts
    return np.full(GRID.size, np.nan) if is_silent else np.array(GRID)
