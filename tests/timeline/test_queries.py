"""The plan: few questions, bounded cost at any size, PromQL that a real Prometheus understands."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raydiag.model import Status
from raydiag.playbooks import MAX_QUERIES, follow_up, plan
from raydiag.timeline.answers import Answers
from raydiag.timeline.follow_up import host_matcher
from raydiag.timeline.queries import TRAINING, rated_parts, template_ids, templates
from raydiag.timeline.training_series import TrainingSeries
from raydiag.tsdb.discovery_types import HostSeries
from raydiag.tsdb.series import Query, QueryResult, Series
from tests.playbooks.world import HOSTS, T0, World
from tests.tsdb import promtool


def troubled() -> World:
    """Everything at once, so that every second question is asked."""
    world = World()
    world.hang(4500)
    world.set("rdma-retransmits", 300.0, 2000, 2900, ["n2"])
    port = {"host": "n2", "device": "ionic_3", "port": "1"}
    world.only("rdma-ports-down", 0.0, 3000, 5400, **port)
    world.only(
        "gpu-errors", 1.0, 3000, 5400, host="n3", gpu="1", __name__="hw_gpu_ras_umc_ue_total"
    )
    world.only(
        "gpu-corrected", 9.0, 3000, 3300, host="n3", gpu="1", metric="hw_gpu_ras_umc_ce_total"
    )
    world.set("gpu-temperature", 104.0, 2000, 2600, ["n2"], "max")
    world.set("gpu-power", 700.0, 2000, 4000, ["n2"], "min")
    world.set("gpu-vram", 308e9, hosts=["n2"])
    world.only("oom-kills", 1.0, 3000, 3060, host="n1")
    world.set("storage", 70.0, 2000, 4000, ["n1"], "hw_io_pressure_full_pct")
    return world


def test_at_most_forty_questions() -> None:
    world = troubled()
    first = plan(world.context)
    second = follow_up(world.context, world.answers())
    asked = [one.id for one in (*first, *second)]
    assert len(set(asked)) == len(asked) <= MAX_QUERIES
    assert len(second) >= 8
    fewer = follow_up(world.context, world.answers(), 3)
    assert [one.id for one in fewer] == ["rdma-ports", "rdma-ports-down-fine", "gpu-errors-fine"]


def test_a_job_that_is_well_is_asked_about_once() -> None:
    world = World()
    assert follow_up(world.context, world.answers()) == []


def test_what_is_asked_together_is_answered_apart() -> None:
    world = World()
    asked = {one.id: one for one in plan(world.context)}
    joined = asked["driver+storage+tasks"]
    assert "hw_procs_blocked" in joined.promql and "tasks" not in asked
    alone = world.answers()
    series = [one for part in template_ids(joined.id) for one in alone.series(part)]
    told = Answers([QueryResult(joined, Status.OK, series=tuple(series))], world.context.discovery)
    for question in ("driver", "storage", "tasks"):
        assert {one.metric for one in told.table(question).subjects} == {
            one.metric for one in alone.table(question).subjects
        }
        assert told.promql(question) == joined.promql
    failed = Answers([QueryResult(joined, Status.TIMEOUT, "too slow")], world.context.discovery)
    assert failed.missing("tasks") == "too slow"
    some = [one for one in series if one.metric.startswith("hw_procs")]
    told = Answers([QueryResult(joined, Status.OK, series=tuple(some))], world.context.discovery)
    assert told.missing("storage") == "metric absent" and not told.missing("tasks")


def test_what_does_not_exist_is_not_asked() -> None:
    world = World()
    world.without("hw_rdma_rx_cnp_pkts_total")
    assert "rdma-cnp" not in {one.id for one in plan(world.context)}


@pytest.mark.parametrize("hosts", [4, 64, 1000])
@pytest.mark.parametrize("hours", [1, 24, 240])
def test_points_stay_bounded(hosts: int, hours: int) -> None:
    world = World()
    window = replace(world.context.window, end=T0 + 3600.0 * hours)
    names = tuple(f"n{index}" for index in range(hosts))
    context = replace(world.context, window=window, hosts=names)
    for one in plan(context):
        if not one.is_range:
            continue
        points = (one.window.end - one.window.start) / one.window.step
        assert points <= 11_000
        if one.id == "training":
            continue  # of one host
        assert points * hosts * 8 <= 2_500_000
        assert points * hosts <= 30_000 + hosts


def test_counters_are_read_as_rates_but_for_errors_that_count_at_any_age() -> None:
    absolute = {"gpu-errors", "driver"}
    for one in templates():
        for name in re.findall(r"hw_\w+_total\b(?!\|)", one.promql):
            if one.id not in absolute and f'"{name}"' not in one.promql:
                assert re.search(rf"(rate|increase|resets)\({name}\[", one.promql), one.id


def test_hosts_are_taken_literally() -> None:
    world = World()
    odd = HostSeries("a.b|c", ("a.b|c",), ("a.b|c:9400",))
    discovery = replace(world.context.discovery, hosts=(odd,))
    context = replace(world.context, discovery=discovery)
    assert host_matcher(context, ["a.b|c"]) == r'host=~"a\\.b\\|c"'


def test_a_real_prometheus_understands_every_question(tmp_path: Path) -> None:
    world = troubled()
    queries = [*plan(world.context), *follow_up(world.context, world.answers())]
    rules = [{"record": f"q{i}", "expr": _vector(one.promql)} for i, one in enumerate(queries)]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    command = [promtool.program("promtool"), "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _vector(promql: str) -> str:
    """Rules record vectors: raw samples are checked inside a function."""
    return f"count_over_time({promql})" if promql.endswith("]") else promql


def test_answers_say_what_is_missing_and_why() -> None:
    world = World()
    world.failed["gpu-power"] = "query timed out"
    answers = world.answers()
    assert answers.missing("gpu-power") == "query timed out"
    assert answers.missing("gpu-temperature") == ""
    assert Answers([], world.context.discovery).missing("gpu-power") == "metric absent"
    assert len(answers.table("gpu-power")) == 0


def test_later_answers_join_the_first_ones() -> None:
    world = World()
    first = world.answers()
    table = first.table("gpu-power")
    world.put("gpu-busy", world.times * 0 + 8, host="n1")
    later = world.answers().answer("gpu-busy")
    assert later is not None
    joined = first.also([later])
    assert joined.table("gpu-power") is table
    assert joined.table("gpu-busy").hosts == ("n1",)
    assert "gpu-busy" not in first


def test_a_server_that_repeats_the_last_sample_is_not_believed() -> None:
    world = World()
    world.die("n2", 3000)
    row = world.answers().table("gpu-power").row("n2", "avg")
    assert row is not None
    alive = world.times <= T0 + 3000
    assert (row[alive] == row[alive]).all()
    assert (row[world.times > T0 + 3100] != row[world.times > T0 + 3100]).all()
    assert world.answers().last_seen("n2") == {"hw": T0 + 3000, "ray": T0 + 3000}
    assert set(world.answers().table("gpu-power").hosts) == set(HOSTS)


def test_the_scalars_of_other_frameworks_are_asked_for_and_known() -> None:
    asked = re.findall(r"tb_\w+", TRAINING.promql)
    assert set(TRAINING.known_as) < set(asked)
    assert set(TRAINING.known_as.values()) < set(asked)
    times = np.array([1.0, 2.0, 3.0])
    values = {"tb_step": [1.0, 2.0, 3.0], "tb_lm_loss": [9.0, 8.0, 7.0]}
    series = [
        Series.of({"__name__": name, "host": "n1"}, times, np.array(numbers))
        for name, numbers in values.items()
    ]
    query = Query.at("training", TRAINING.promql, 3.0)
    answers = Answers(
        [QueryResult(query, Status.OK, series=tuple(series))], World().context.discovery
    )
    loss = TrainingSeries.of(answers).series("tb_learning_loss")
    assert loss is not None and loss.values.tolist() == [9.0, 8.0, 7.0]


def test_what_is_asked_with_or_differs_in_more_than_its_name() -> None:
    """Else the server drops all but the first."""
    told_apart = ('"of", "least"', '"of", "most"', '"metric", "hw_gpu_memory_clock_mhz"')
    for part, label in zip(rated_parts("host").split(" or "), told_apart, strict=True):
        assert part.startswith("label_replace(") and label in part
    assert 'type="mclk", host=~"n1"' in rated_parts("host, gpu", 'host=~"n1"')
