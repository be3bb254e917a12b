"""No pattern of the package is slow, whatever a line of 4 KB holds.

Counted in steps of a backtracking engine (`tests.pattern_steps`), not in seconds, so that a loaded
machine fails nothing; `benchmarks/patterns.py` measures the same in milliseconds.
"""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import yaml

from raydiag import catalog
from raydiag.catalog import signatures
from raydiag.catalog.kernel_table import _LONGEST
from tests import package_patterns
from tests.package_patterns import Found, hostile_texts
from tests.pattern_steps import Node, TooManySteps, compiled, search_steps

pytestmark = pytest.mark.slow

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FIRST, _LINE = 512, 4096  # characters: all texts; what took many steps, again as long as a line is
_SUSPECT = 25  # steps for a character from which on a text is tried longer
# A step of `re` takes 1 to 4 ns, most often 3: so many for a character are 1 ms a KB.
MOST_STEPS = 300


def catalog_examples() -> dict[str, list[str]]:
    """Pattern -> its row's examples and near misses."""
    texts: dict[str, list[str]] = {}
    for file in ("kernel_events.yaml", "signatures.yaml"):
        document = yaml.load(files("raydiag.catalog").joinpath(file).read_text("utf-8"), _LOADER)
        for row in (row for rows in document.values() if isinstance(rows, list) for row in rows):
            if isinstance(row, dict) and "examples" in row:
                lines = [*row["examples"], *row.get("near_misses", [])]
                name = row.get("event") or row["id"]
                texts.setdefault(name, []).extend(line for line in lines if isinstance(line, str))
    found = {event.pattern.pattern: texts[event.event] for event in catalog.kernel_table().events}
    for row in signatures.table().rows:
        for pattern in filter(None, (row.pattern, row.unless)):
            found[pattern.pattern] = texts[row.id]
    return found


def of_examples(texts: list[str], chars: int) -> list[str]:
    """A beginning of an example again and again; and what follows it grown."""
    grown = []
    for text in texts[:3]:
        for cut in sorted({len(text), *range(3, min(len(text), 90), 18)}):
            grown.append((text[:cut] * chars)[:chars])
        for cut in (len(text) // 3, 2 * len(text) // 3):
            grown += [(text[:cut] + filler * chars)[:chars] for filler in (" ", "a", "1", "x: ")]
    return grown


def texts_for(found: Found, examples: list[str], chars: int) -> list[str]:
    return [*hostile_texts(found.pattern, chars), *of_examples(examples, chars)]


def steps_a_character(found: Found, node: Node, text: str) -> float:
    if isinstance(found.pattern.pattern, bytes):
        text = text.encode("latin-1", "replace").decode("latin-1")
    limit = MOST_STEPS * len(text) + 2000
    try:
        return search_steps(node, text, limit, found.in_place) / max(1, len(text))
    except TooManySteps:
        return float("inf")


def slow_text(found: Found, examples: list[str], longest: int) -> str:
    """One that takes too many steps; "" where there is none."""
    node = compiled(found.pattern)
    shorts = texts_for(found, examples, _FIRST)
    for index, text in enumerate(shorts):
        if text not in shorts[:index] and steps_a_character(found, node, text) > _SUSPECT:
            longer = texts_for(found, examples, longest)[index]
            if steps_a_character(found, node, longer) > MOST_STEPS:
                return longer
    return ""


_GROUPS = 8  # of tests, so that several workers share them


@pytest.mark.parametrize("group", range(_GROUPS))
def test_no_pattern_is_slow(group: int) -> None:
    examples = catalog_examples()
    of_kernel = {event.pattern.pattern for event in catalog.kernel_table().events}
    slow = {}
    for found in package_patterns.all_patterns()[group::_GROUPS]:
        source = found.pattern.pattern
        longest = _LONGEST if source in of_kernel else _LINE
        text = slow_text(found, examples.get(str(source), []), longest)
        if text:
            slow[f"{found.place}: {source!r:.100}"] = text[:60]
    assert slow == {}


def test_there_are_patterns_of_every_kind() -> None:
    places = {found.place for found in package_patterns.all_patterns()}
    assert len(package_patterns.all_patterns()) > 600
    assert {"catalog/rows.py", "joblog/steps.py", "exposition.py", "render/secrets.py"} <= places
    assert {"cli/tsdb.py", "hotfix/journal.py", "cluster/ssh.py", "exporter/names.py"} & places


@pytest.mark.parametrize(
    "source",
    [
        r"\w+_plugin\S* exited",  # every beginning of a word again
        r"NVRM: .*knvlink\w+: .*success",
        r"(?:[^|]{0,80}?)\s+\|\s+\d",
        r"(a+)+b",
        r"(?:a|aa)+b",
        r"\s+$",
        r"(?:x+x+)+y",
    ],
)
def test_a_slow_pattern_is_found(source: str) -> None:
    assert slow_text(Found(re.compile(source), "", False), [], _LINE)


@pytest.mark.parametrize(
    "source",
    [r"(?<!\w)\w+ exited", r"a{1,20}b", r"^\s*\d+:", r"\b[a-z]+ [a-z]+(?=\()", "(?i)foo|bar"],
)
def test_a_quick_one_is_not(source: str) -> None:
    assert slow_text(Found(re.compile(source), "", False), [], _LINE) == ""


@pytest.mark.parametrize(
    ("source", "text", "in_place"),
    [
        (r"abc", "xxabc", False),
        (r"(?i)AB+c?$", "zabbb", False),
        (r"(\w+) \1!", "no no!", False),
        (r"(?<=a)b|^c", "ab", False),
        (r"[^\s\d]+?x\b", "foox y", False),
        (r"(?:ab){2,3}c", "ababc", True),
        (r"a(?!b)", "abac", False),
    ],
)
def test_the_counting_engine_agrees_with_re(source: str, text: str, in_place: bool) -> None:
    pattern = re.compile(source)
    find = pattern.match if in_place else pattern.search
    node = compiled(pattern)
    steps_found = search_steps(node, text, 10_000, in_place)
    steps_missed = search_steps(node, text + "\x00", 10_000, in_place)
    assert find(text) is not None
    assert 0 < steps_found <= steps_missed + 2 * len(text)
