"""No pattern of the package is slow, whatever a line of 4 KB holds.

Compared with a pattern that is known to be linear on the same text and in the same moment, so that
a loaded machine fails nothing.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
import yaml

import raydiag
from raydiag import catalog, kernel_text, masking, nodeset
from raydiag.catalog import signatures
from raydiag.catalog.kernel_table import _LONGEST
from raydiag.probes import kernel_log
from raydiag.render import redact, secrets
from tests.joblog import test_linear_patterns as generated

pytestmark = pytest.mark.slow

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster: every run reads this
CHARS = 4096
# About 0.1 ms a KB where that one takes what it takes on an idle machine: 1 ms a KB is 10 times it.
LINEAR = re.compile(r"(?:\w|\s|[^\w\s])\x00")
MOST_TIMES = 60
ENOUGH_S = 0.004  # 1 ms a KB: no need to compare

# Tried only where a line, a name or a field begins.
IN_PLACE = {
    *generated.MATCHED_IN_PLACE,
    redact._FILE_SERVERS.pattern,
    secrets._NAMED.pattern,
}
for module in (kernel_text, kernel_log, nodeset):
    for value in vars(module).values():
        IN_PLACE |= {pattern.pattern for pattern in generated.patterns_in(value)}
IN_PLACE -= {kernel_text._ANY_HEADER.pattern}


def examples(file: str) -> dict[str, list[str]]:
    """Of each row: examples and near misses, all rows of one name together."""
    document = yaml.load(files("raydiag.catalog").joinpath(file).read_text("utf-8"), _LOADER)
    found: dict[str, list[str]] = {}
    for rows in document.values():
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and "examples" in row:
                texts = [*row["examples"], *row.get("near_misses", [])]
                name = row.get("event") or row["id"]
                found.setdefault(name, []).extend(filter(lambda one: isinstance(one, str), texts))
    return found


def worst_cases(texts: list[str]) -> Iterator[str]:
    """A beginning of an example again and again; and what follows it grown."""
    for text in texts[:6]:
        for cut in sorted({len(text), *range(3, min(len(text), 90), 9)}):
            for between in ("", " "):
                unit = text[:cut] + between
                yield (unit * (CHARS // len(unit) + 1))[:CHARS]
        for cut in (len(text) // 3, len(text) // 2, 2 * len(text) // 3):
            for filler in (" ", "a", "1", "_", "a ", "x: "):
                yield (text[:cut] + filler * CHARS)[:CHARS]


def check(pattern: Any, search: Any, texts: Iterator[str]) -> None:
    for text in texts:
        binary = isinstance(pattern.pattern, bytes)
        line: Any = text.encode("latin-1", "replace") if binary else text
        taken_s = generated.work_s(search, line)
        if taken_s < ENOUGH_S:
            continue
        taken_s = min(taken_s, *(generated.work_s(search, line) for _ in range(4)))
        linear_s = min(generated.work_s(LINEAR.search, text) for _ in range(5))
        times = taken_s / linear_s
        assert taken_s < ENOUGH_S or times < MOST_TIMES, f"{times:.0f} times: {text[:90]!r}..."


def rows() -> Iterator[Any]:
    kernel, logs = examples("kernel_events.yaml"), examples("signatures.yaml")
    cut = _LONGEST
    for event in catalog.kernel_table().events:
        search = event.pattern.search
        yield pytest.param(
            event.pattern, lambda text, search=search: search(text[:cut]), kernel[event.event],
            id=event.event,
        )  # fmt: skip
    for row in signatures.table().rows:
        for pattern in filter(None, (row.pattern, row.unless)):
            yield pytest.param(pattern, pattern.search, logs[row.id], id=row.id)


@pytest.mark.parametrize(("pattern", "search", "texts"), list(rows()))
def test_a_row_of_the_catalog(pattern: Any, search: Any, texts: list[str]) -> None:
    check(pattern, search, worst_cases(texts))


def of_code(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every pattern that a module holds, in tables as well."""
    parts = {
        found.name.split(".")[1] for found in pkgutil.iter_modules(raydiag.__path__, "raydiag.")
    }
    monkeypatch.setattr(generated, "MODULES", parts - {"__main__", "cluster", "entrypoints"})
    lazy = (masking._ASSIGNED, masking._OPTION, masking._BEARER, masking._URL_USER)
    return [*generated.all_patterns(), *map(re.compile, lazy)]


def test_every_pattern_in_code(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = of_code(monkeypatch)
    assert len(patterns) > 200
    slow = []
    for pattern in patterns:
        search = pattern.match if pattern.pattern in IN_PLACE else pattern.search
        try:
            check(pattern, search, generated.hostile_texts(pattern, CHARS))
        except AssertionError as error:
            slow.append(f"{pattern.pattern!r:.120}: {error}")
    assert slow == []


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: knvlinkx: success " * 170,
        "ionic" + "a" * 4000 + "fw error",
        "metrics_exporter: " + "a_plugin" * 500 + " exited",
        "Training: 5%|" + " " * 4000 + "| 1/2 [",
        "a_" * 2048,
        "-" * 4096,
    ],
    ids=lambda line: line[:20],
)
def test_lines_that_were_slow(line: str) -> None:
    def all_of_it(text: str) -> None:
        catalog.kernel_table().match(text)
        masking.masked_line(text)
        secrets.masked_text(text)

    linear_s = min(generated.work_s(LINEAR.search, line) for _ in range(5))
    taken_s = min(generated.work_s(all_of_it, line) for _ in range(3))
    assert taken_s < max(0.02, 10 * MOST_TIMES * linear_s)
