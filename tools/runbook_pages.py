"""A runbook for each alert, from the alert rules; docs/runbooks.yaml has what no rule can say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from raydiag import catalog
from raydiag.render.escape import markdown
from tools.command_pages import inline

REPOSITORY = Path(__file__).resolve().parents[1]
RULES = REPOSITORY / "deploy" / "prometheus" / "alerts.yml"
NOTES = REPOSITORY / "docs" / "runbooks.yaml"
_INDEX = """# Runbooks for alerts

The alerts of `deploy/prometheus/alerts.yml`. `runbook_url` of each leads to its page here
([how](../deploy.md#prometheus-and-grafana)).

For all of them: look first, change later. None of these alerts is a reason to end a job by itself,
and what a job that hangs can tell is gone when it has ended. Note when the alert began, run the
command of its page, read [coverage before verdict](../answers.md), then do the next steps of the
report.

| alert | severity | what was seen |
|---|---|---|
"""


def rules() -> list[dict[str, Any]]:
    """The alert rules, in the order of their file."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def notes() -> dict[str, dict[str, Any]]:
    """What docs/runbooks.yaml says of each alert."""
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(NOTES.read_text(encoding="utf-8"))
    return loaded


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the index and of each alert's runbook."""
    yield "runbooks/index.md", _INDEX + "".join(map(_index_row, rules()))
    for rule in rules():
        yield f"runbooks/{rule['alert']}.md", _page(rule, notes()[rule["alert"]])


def _index_row(rule: Mapping[str, Any]) -> str:
    name, severity = rule["alert"], rule["labels"]["severity"]
    return f"| [{name}]({name}.md) | {severity} | {_words(rule['annotations']['summary'])} |\n"


def _page(rule: Mapping[str, Any], note: Mapping[str, Any]) -> str:
    name = rule["alert"]
    parts = [
        f"# {name}",
        f"**{_words(rule['annotations']['summary'])}** · {rule['labels']['severity']}",
        "## What to do",
        _words(rule["annotations"]["runbook"]),
        "## How urgent",
        inline(note["urgency"]),
        "## When it is no fault",
        inline(note["harmless"]),
        "## What it may be",
        "\n".join(map(_class_link, note["classes"])),
        "## When it fires",
        _comment(name),
        f"```promql\n{rule['expr'].strip()}\n```",
        f"For {rule['for']} without a break." if "for" in rule else "At once.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _class_link(name: str) -> str:
    return f"- [{name}](../classes/{name}.md): {markdown(catalog.failure(name).title)}"


def _words(template: str) -> str:
    """An annotation without its template: labels as words in capitals."""
    named = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: match[1].upper(), template)
    return inline(re.sub(r"\{\{ \$value \}\}", "N", named))


def _comment(alert: str) -> str:
    """What the rules' file says of a rule, above its expression."""
    text = RULES.read_text(encoding="utf-8")
    match = re.search(rf"- alert: {alert}\n((?: +# .*\n)*)", text)
    lines = match[1].splitlines() if match else []
    return inline(" ".join(line.strip().removeprefix("# ") for line in lines))
