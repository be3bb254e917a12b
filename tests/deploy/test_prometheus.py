"""Scrape configuration and alert rules, by promtool; what the rules' words refer to, by us."""

from __future__ import annotations

import argparse
import re
import subprocess
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydiag import probes
from raydiag.cli import _parser
from raydiag.exporter import metrics
from tests.tsdb import promtool

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
CASES = sorted(Path(__file__).parent.joinpath("alerts").glob("*.yml"))
COMMANDS = {*_parser()[1], "hotfix"}


@cache
def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def alerts() -> list[dict[str, Any]]:
    return [rule for group in loaded(RULES)["groups"] for rule in group["rules"]]


def run(*arguments: str) -> str:
    command = [promtool.program("promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_is_valid_and_finds_its_rules() -> None:
    said = run("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    assert "1 rule files found" in said
    assert f"{len(alerts())} rules found" in said


def test_alerts_are_sent_where_the_example_says(tmp_path: Path) -> None:
    """The block is a comment, since not everybody has an Alertmanager."""
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    block = re.search(r"^# alerting:\n(?:#   .*\n)+", text, re.MULTILINE)
    assert block
    uncommented = re.sub("^# ", "", block[0], flags=re.MULTILINE)
    path = tmp_path / "prometheus.yml"
    path.write_text(uncommented)
    run("check", "config", str(path))
    (manager,) = loaded(path)["alerting"]["alertmanagers"]
    assert manager["static_configs"][0]["targets"]


def test_targets_are_addresses_as_rays_are() -> None:
    """NodeSilent sets a node's exporter beside its Ray, whose file names nodes by address."""
    (group,) = loaded(DEPLOY / "prometheus" / "targets" / "node_hw.json")
    for target in group["targets"]:
        ip_address(target.rpartition(":")[0])


def test_event_times_are_kept() -> None:
    (job,) = (
        one
        for one in loaded(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
        if one["job_name"] == "node_hw"
    )
    assert job["honor_timestamps"] is True


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_alerts_fire_and_stay_silent(path: Path) -> None:
    assert "SUCCESS" in run("test", "rules", str(path))


def expectations() -> list[tuple[str, list[str]]]:
    """What each question asks for, and the labels that it expects."""
    found = []
    for path in CASES:
        for case in loaded(path)["tests"]:
            for question in case["promql_expr_test"]:
                labels = [one["labels"] for one in question.get("exp_samples") or []]
                found.append((question["expr"], labels))
    return found


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_each_alert_fires_for_one_of_several_series_in_a_case(rule: dict[str, Any]) -> None:
    """The cases hold neighbours that are well: an alert that fires for all is not expected."""
    name = rule["alert"]
    fired = [text for _, labels in expectations() for text in labels if f'"{name}"' in text]
    assert fired
    for case in (one for path in CASES for one in loaded(path)["tests"]):
        asked = [q for q in case["promql_expr_test"] if re.search(rf'[|"~]{name}[|"]', q["expr"])]
        most = max((len(q.get("exp_samples") or []) for q in asked), default=0)
        assert most < len(case["input_series"])
    words = " ".join(rule["annotations"].values())
    for label in set(re.findall(r"\$labels\.(\w+)", words)):
        assert all(f'{label}="' in text for text in fired), label


def options_of(parser: argparse.ArgumentParser | None, words: list[str]) -> set[str]:
    """Options of a command, or of the action of it that is named first; fails where it has none."""
    if parser is None:
        return set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return options_of(action.choices[words[0]], words[1:])
    return set(parser._option_string_actions)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do_with_commands_that_exist(rule: dict[str, Any]) -> None:
    assert set(rule["annotations"]) == {"summary", "runbook", "runbook_url"}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    runbook = " ".join(rule["annotations"]["runbook"].split())
    quoted = re.findall(r"`raydiag ([^`]+)`", runbook)
    assert quoted or "see GpuHot" in runbook
    for text in quoted:
        words = text.split()
        assert words[0] in COMMANDS
        if "--only" in words and words[0] == "probe":
            asked = words[words.index("--only") + 1].split(",")
            assert set(asked) <= set(probes.names())
        options = {word for word in words if word.startswith("--")}
        assert options <= options_of(_parser()[1].get(words[0]), words[1:]) or words[0] == "hotfix"


def test_rules_ask_for_metrics_that_exist() -> None:
    """Of hw_ and of the exporter's own: those in the registry; of Ray and Prometheus: the known."""
    others = {"up", "ray_node_mem_used", "ray_node_mem_total"}
    pattern = r"\b(?:hw|tb|ray|raydiag)_\w+|\bup\b"
    asked = {name for rule in alerts() for name in re.findall(pattern, rule["expr"])}
    assert len(asked) > 20
    assert asked - set(metrics.REGISTRY) <= others
