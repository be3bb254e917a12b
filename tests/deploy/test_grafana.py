"""The dashboard: every query of every panel finds data in a real Prometheus.

No Grafana runs here. What it would put into a query is put there by us: variables, intervals.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import requests

from raydiag.cli import command_line
from raydiag.exporter import metrics
from raydiag.tsdb import connection
from tests.incidents.generate import generate
from tests.incidents.job import Options
from tests.tsdb import promtool

pytestmark = pytest.mark.slow

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "raydiag-job.json"
SMALL = Options(nodes=2, gpus=2, ports=2, minutes=20, interval_s=15)
VARIABLES = {"job": "node_hw", "host": ".*", "session": ".*"}
BUILT_IN = {"__rate_interval": "60s", "__range": "1200s"}
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@cache
def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard()["panels"]
    return found


def queries() -> list[tuple[str, str, str]]:
    """Panel, kind and expression of each query."""
    return [(one["title"], one["type"], q["expr"]) for one in panels() for q in one["targets"]]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, float]]:
    """A server over a generated job with the exporter's own series, and the job's last moment."""
    with pytest.MonkeyPatch.context() as patch:
        promtool.provide(patch)
        made = generate("rdma-degraded", 4, tmp_path_factory.mktemp("job") / "out", SMALL)
        times = [made.now - 1200 + 15 * n for n in range(80)]
        own: list[promtool.OneSeries] = []
        for host in made.hosts:
            labels = {"host": host, "instance": f"{host}:9400", "job": "node_hw"}
            for name in ("page_age_seconds", "abandoned_readers"):
                own.append((f"raydiag_exporter_{name}", labels, [(at, 0.0) for at in times]))
            up = {**labels, "plugin": "gpu_sensors"}
            own.append(("raydiag_exporter_plugin_up", up, [(at, 1.0) for at in times]))
        extra = promtool.write_blocks(own, Path(made.job_dir).parent / "own")
        for block in extra.iterdir():
            block.rename(Path(made.job_dir) / "prometheus" / block.name)
        with connection.open_directory(made.job_dir) as opened:
            yield opened.client.url, made.now


def filled_in(expression: str) -> str:
    return _VARIABLE.sub(lambda found: {**VARIABLES, **BUILT_IN}[found[1]], expression)


@pytest.mark.parametrize(("title", "kind", "expression"), queries())
def test_every_query_finds_data(
    job: tuple[str, float], title: str, kind: str, expression: str
) -> None:
    url, now = job
    asked: dict[str, Any] = {"query": filled_in(expression)}
    if kind == "stat":
        path, asked = "query", {**asked, "time": now - 30}
    else:
        path, asked = "query_range", {**asked, "start": now - 1200, "end": now, "step": 15}
    answer = requests.get(f"{url}/api/v1/{path}", asked, timeout=60).json()
    assert answer["status"] == "success", answer
    series = answer["data"]["result"]
    values = [value for one in series for _, value in one.get("values", [one.get("value")])]
    assert values
    assert any(math.isfinite(float(value)) for value in values)


def test_the_sick_port_is_the_first_of_its_panel(job: tuple[str, float]) -> None:
    """Not only is there data: what the panel is for can be seen in it."""
    (expression,) = (q for title, _, q in queries() if title.startswith("RDMA packets sent again"))
    url, now = job
    asked: dict[str, Any] = {
        "query": f"max_over_time(({filled_in(expression)})[20m:15s])",
        "time": now,
    }
    found = requests.get(f"{url}/api/v1/query", asked, timeout=60).json()["data"]["result"]
    assert len(found) > 1
    assert sum(float(one["value"][1]) > 0 for one in found) == 1


def test_variables_are_those_that_are_used(job: tuple[str, float]) -> None:
    listed = {one["name"]: one for one in dashboard()["templating"]["list"]}
    used = {name for _, _, query in queries() for name in _VARIABLE.findall(query)}
    assert used - set(BUILT_IN) == set(VARIABLES)
    assert set(listed) == {"datasource", *VARIABLES}
    url, now = job
    for name in VARIABLES:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", listed[name]["query"]["query"])
        assert found is not None
        query: dict[str, Any] = {
            "query": f"count by ({found[2]}) ({filled_in(found[1])})",
            "time": now - 30,
        }
        result = requests.get(f"{url}/api/v1/query", query, timeout=60).json()["data"]["result"]
        assert all(one["metric"].get(found[2]) for one in result)
        assert result


def test_every_panel_takes_the_chosen_data_source() -> None:
    for panel in panels():
        sources = [panel["datasource"], *(one["datasource"] for one in panel["targets"])]
        assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in sources)


def test_every_panel_says_what_to_make_of_it() -> None:
    assert [one["title"] for one in panels() if not one.get("description")] == []


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_it_shows_the_commands_for_the_chosen_time() -> None:
    (panel,) = (panel for panel in panels() if panel["type"] == "text")
    text = panel["options"]["content"].replace("${__to:date:seconds}", "1790000000")
    assert "$" not in text
    commands = [line for line in text.splitlines() if line.startswith("raydiag ")]
    for command in commands:
        command_line().parse_args(command.split()[1:])
    assert sum("--now 1790000000" in command for command in commands) == 2


def test_queries_ask_for_metrics_that_exist() -> None:
    rays = {"ray_node_mem_used", "ray_node_mem_total", "ray_node_gpus_utilization"}
    names = {name for _, _, q in queries() for name in re.findall(r"\b(?:hw|tb|ray\w*)_\w+", q)}
    assert names - set(metrics.REGISTRY) == rays
