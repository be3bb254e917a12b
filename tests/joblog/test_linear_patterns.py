"""No pattern that log lines are matched with takes more than linear time, whatever they hold."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Union

import pytest

import raydiag
from raydiag import exposition, step_formats
from raydiag.joblog import fast_step_lines, steps
from raydiag.joblog.step_formats import FORMATS
from raydiag.tsdb import rewriting

try:
    from re import _parser as sre_parse  # type: ignore[attr-defined]
except ImportError:
    import sre_parse

CHARS = 4096
# Only ever tried at the one place where a line, a field or a label begins.
MATCHED_IN_PLACE = {
    fast_step_lines._LINE.pattern,
    steps._BAR_LOSS.pattern,
    exposition._LABEL.pattern,
    rewriting._RANGE.pattern,
}
FAST_ENOUGH_S = 0.02  # below this, 8 KB at once: too short to be compared
MODULES = ("joblog", "tsdb", "event_file", "exposition", "nodeset", "step_formats", "worker_log")

AnyPattern = Union[re.Pattern[str], re.Pattern[bytes]]


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(raydiag.__path__, "raydiag."):
        if found.name.split(".")[1] in MODULES:
            yield importlib.import_module(found.name)


def patterns_in(value: Any, depth: int = 0) -> Iterator[AnyPattern]:
    """Compiled patterns in a module's value, and in what it is made of."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth > 4 or isinstance(value, (str, bytes, type)):
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from patterns_in(item, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from patterns_in(item, depth + 1)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from patterns_in(getattr(value, field.name), depth + 1)


def all_patterns() -> list[AnyPattern]:
    found: dict[tuple[Union[str, bytes], int], AnyPattern] = {}

    def add(patterns: Iterable[AnyPattern]) -> None:
        for pattern in patterns:
            found[pattern.pattern, pattern.flags] = pattern

    for module in modules():
        for value in vars(module).values():
            add(patterns_in(value))
    for form in FORMATS:
        add([form.pattern])
        fields = filter(
            None,
            (
                form.seconds,
                form.loss,
                form.grad_norm,
                form.rate,
                form.balance,
                form.tflops,
                form.tokens,
            ),
        )
        add(map(step_formats.field_pattern, fields))
    return list(found.values())


PATTERNS = all_patterns()


class Sample:
    """A text that a pattern matches, in which its n-th repetition is as long as is asked for."""

    def __init__(self, grown: int, chars: int) -> None:
        self.grown, self.chars, self.repetitions = grown, chars, 0

    def of(self, tokens: Iterable[tuple[Any, Any]]) -> str:
        return "".join(self._token(str(kind), value) for kind, value in tokens)

    def _token(self, kind: str, value: Any) -> str:
        if kind == "LITERAL":
            return chr(value)
        if kind == "NOT_LITERAL":
            return "x" if value != ord("x") else "y"
        if kind == "ANY":
            return " "
        if kind == "IN":
            return self._one_of(value)
        if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            return self._repeated(*value)
        if kind == "SUBPATTERN":
            return self.of(value[-1])
        if kind == "ATOMIC_GROUP":
            return self.of(value)
        if kind == "BRANCH":
            return self.of(value[1][0])
        return ""

    def _repeated(self, least: int, most: Any, inner: Any) -> str:
        self.repetitions += 1
        grows = self.repetitions == self.grown
        text = self.of(inner)
        times = least
        if grows and text:
            times = min(int(most), self.chars // len(text))
        elif int(most) > 0:
            times = max(least, 1)
        return text * times

    def _one_of(self, members: list[tuple[Any, Any]]) -> str:
        kind, value = str(members[0][0]), members[0][1]
        if kind == "LITERAL":
            return chr(value)
        if kind == "RANGE":
            return chr(value[0])
        if kind == "CATEGORY":
            names = {"DIGIT": "1", "SPACE": " ", "WORD": "a", "NOT_SPACE": "a", "NOT_DIGIT": " "}
            return names.get(str(value).replace("CATEGORY_", ""), "a")
        banned = {chr(item) for name, item in members[1:] if str(name) == "LITERAL"}
        return next(char for char in " a1:-" if char not in banned)


def hostile_texts(pattern: AnyPattern, chars: int) -> Iterator[str]:
    """Near-matches with one repetition grown, parts of them again and again, and plain noise."""
    source = pattern.pattern
    text = source.decode("latin-1") if isinstance(source, bytes) else source
    tokens = list(sre_parse.parse(text, pattern.flags & ~re.UNICODE & ~re.DEBUG))
    counting = Sample(0, chars)
    plain = counting.of(tokens)
    for grown in range(1, counting.repetitions + 1):
        near = Sample(grown, chars).of(tokens)[:chars]
        yield near[:-1] + "\x01"
        yield near[: len(near) // 2] * 2
        yield (near[: chars // 8] + " ") * 8
    for part in (plain, plain[:-1], plain[: len(plain) // 2], plain[:1]):
        for between in ("", " ", "\x01", "1", "  "):
            unit = part + between
            yield unit * (chars // len(unit)) if unit else ""
    for start in (plain, plain[:-1], plain[: len(plain) // 2], ""):
        for noise in (" ", "1", "a", "_", "a ", "1 ", "1,", ".", "=", ": ", "|", "(", "[", "/"):
            yield (start + noise * chars)[:chars]


def work_s(search: Callable[[Any], object], text: Any) -> float:
    start = time.thread_time()
    search(text)
    return time.thread_time() - start


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: repr(pattern.pattern)[:60])
def test_twice_the_text_is_at_most_twice_the_work(pattern: AnyPattern) -> None:
    binary = isinstance(pattern.pattern, bytes)
    search = pattern.match if pattern.pattern in MATCHED_IN_PLACE else pattern.search
    pairs = zip(hostile_texts(pattern, CHARS), hostile_texts(pattern, 2 * CHARS), strict=True)
    for text, longer in pairs:
        small: Any = text.encode("latin-1", "replace") if binary else text
        large: Any = longer.encode("latin-1", "replace") if binary else longer
        first_s = work_s(search, small)
        assert first_s < 0.5, f"{pattern.pattern!r} on {text[:80]!r}...{text[-10:]!r}"
        large_s = work_s(search, large)
        if large_s < FAST_ENOUGH_S:
            continue
        # The best of several, since other work of the machine only ever adds.
        small_s = min(work_s(search, small) for _ in range(5))
        large_s = min(large_s, *(work_s(search, large) for _ in range(4)))
        assert large_s < FAST_ENOUGH_S + 3 * small_s, f"{pattern.pattern!r} on {longer[:80]!r}..."


def test_there_are_patterns() -> None:
    assert len(PATTERNS) > 80
