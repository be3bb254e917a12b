"""Every regular expression of the package, and how it is used; texts that are hard for one.

    python -m tests.package_patterns      prints them, as JSON: the source, flags, where it stands

Modules are imported and tables loaded under a recorder, so that patterns that are put together or
come from YAML are among them; what functions compile from constants is evaluated besides.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import raydiag
from tests.pattern_steps import AnyPattern, Tokens, parsed

ROOT = Path(raydiag.__file__).parent
_CALLS = frozenset(
    ["compile", "match", "search", "sub", "subn", "fullmatch", "findall", "finditer", "split"]
)
_PROGRAMS = ("__main__", "cluster.arrival")  # do their work when they are imported
_IN_PLACE = {"match", "fullmatch"}
# Made in a function from what is known there only, and where it is looked at instead.
_LOADED = "recorded when its module or table is loaded"
ELSEWHERE = {
    "catalog/kernel_table.py: _words_pattern(failures)": _LOADED,
    "catalog/kernel_table.py: _words_pattern(row.texts('words'))": _LOADED,
    "catalog/kernel_table.py: '|'.join(map(_spelt, begins))": _LOADED,
    "catalog/rows.py: source": _LOADED,
    "catalog/rows.py: repeated": _LOADED,
    "catalog/signatures.py: '|'.join((f'(?:{pattern})' for pattern in patterns))": _LOADED,
    "joblog/line_selection.py: _alternation(fewest(literals))": _LOADED,
    "joblog/line_selection.py: _alternation(fewest([*of_literals, *of_forms]))": _LOADED,
    "joblog/line_selection.py: b'|'.join(patterns)": _LOADED,
    "joblog/step_formats.py: values[name].encode()": _LOADED,
    "joblog/tables.py: row['pattern']": _LOADED,
    "tsdb/stack_logs.py: pattern": _LOADED,
    "triage/symptoms.py: '|'.join(patterns)": _LOADED,
    "step_formats.py: self.source": "recorded: each format is asked for its pattern",
    "step_formats.py: pattern + '(' + NUMBER + ')(?![A-Za-z0-9])'": "recorded: each field as well",
    "masking.py: pattern": "recorded: a line is masked",
    "render/job_names.py: '|'.join(parts) or '(?!)'": "alternatives of escaped names",
    "tsdb/rewriting.py: self.value": "the user's own PromQL, on values of labels",
}


@dataclass(frozen=True)
class Found:
    """A pattern, and where it was compiled."""

    pattern: AnyPattern
    place: str  # "joblog/steps.py"
    in_place: bool  # only ever tried where a text or a field begins


@functools.cache
def all_patterns() -> tuple[Found, ...]:
    """In a process of its own: here many modules are imported already."""
    argv = [sys.executable, "-m", "tests.package_patterns"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT.parent)
    in_place = _tried_in_place()
    found = []
    for source, flags, is_bytes, place in json.loads(done.stdout):
        pattern: Any = re.compile(source.encode("latin-1") if is_bytes else source, flags)
        found.append(Found(pattern, place, (source, is_bytes) in in_place))
    return tuple(found)


# ---- recording


def _recorded() -> Iterator[tuple[str, int, bool, str]]:
    original = re._compile  # type: ignore[attr-defined]
    seen: dict[tuple[Any, int], str] = {}

    def compile_(pattern: Any, flags: Any) -> Any:
        compiled = original(pattern, flags)
        caller = sys._getframe(2).f_code.co_filename  # of re.compile, re.sub ...
        place = caller[len(str(ROOT)) + 1 :] if caller.startswith(f"{ROOT}/") else ""
        if place:
            seen.setdefault((compiled.pattern, compiled.flags), place)
        return compiled

    re._compile = compile_  # type: ignore[attr-defined]
    try:
        _load_everything()
    finally:
        re._compile = original  # type: ignore[attr-defined]
    for (source, flags), place in seen.items():
        is_bytes = isinstance(source, bytes)
        text = source.decode("latin-1") if is_bytes else source
        yield text, flags & ~re.UNICODE if is_bytes else flags, is_bytes, place


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(raydiag.__path__, "raydiag."):
        if not found.name.endswith(_PROGRAMS):
            yield importlib.import_module(found.name)


def _load_everything() -> None:
    for module in list(modules()):
        for call in _calls(module):
            _evaluate(module, call)
    from raydiag import catalog, step_formats
    from raydiag.catalog import signatures
    from raydiag.joblog.step_formats import FORMATS
    from raydiag.masking import masked_line
    from raydiag.render import names
    from raydiag.triage.signatures import Classifier, make_selector

    catalog.kernel_table(), signatures.table(), make_selector([b"step:"]), Classifier()
    masked_line("HF_TOKEN=x")
    names._in_domains(["cluster.example.com"])
    for form in FORMATS:
        assert form.pattern
        fields = (form.seconds, form.loss, form.grad_norm, form.rate, form.balance)
        for field in filter(None, (*fields, form.tflops, form.tokens)):
            step_formats.field_pattern(field)


def _tree(module: ModuleType) -> ast.AST:
    return ast.parse(Path(module.__file__ or "").read_text("utf-8"))


def _calls(module: ModuleType) -> Iterator[ast.Call]:
    """Calls of `re` in it."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            if of_re and node.func.attr in _CALLS and node.args:
                yield node


def _evaluate(module: ModuleType, call: ast.Call) -> None:
    """Compile what it compiles; where that is known in the function only, say so once, loudly."""
    path = Path(module.__file__ or "")
    try:
        code = compile(ast.Expression(call.args[0]), str(path), "eval")
        source = eval(code, dict(vars(module)))
    except NameError:
        place = f"{path.relative_to(ROOT)}: {ast.unparse(call.args[0])}"
        if place not in ELSEWHERE and not place.startswith("render/names.py: f'(?<!"):
            raise LookupError(f"a pattern that no test looks at: {place}") from None
        return
    exec(compile("import re; re.compile(source)", str(path), "exec"), {"source": source})


def _tried_in_place() -> set[tuple[str, bool]]:
    """Patterns of which nothing but match() and fullmatch() is used."""
    loaded = list(modules())
    named = {module: _named_patterns(module) for module in loaded}
    methods: dict[tuple[str, bool], set[str]] = {}
    everywhere: dict[str, set[str]] = {}  # name of a pattern -> methods used of it in any module
    for module in loaded:
        for base, method in _methods(module):
            everywhere.setdefault(base, set()).add(method)
    for module, patterns in named.items():
        # What a pattern is handed on as may have any method called that others have here.
        of_others = {method for base, method in _methods(module) if base not in patterns}
        of_others.discard("split")  # of texts
        for name, key in patterns.items():
            near = {method for base, method in _methods(module) if base == name}
            used = near if name.startswith("_") else everywhere.get(name, set())
            if name in _handed_on(module):
                used = used | of_others
            methods.setdefault(key, set()).update(used or {"search"})
        for call in _calls(module):
            source = _source(module, call)
            if source is not None and isinstance(call.func, ast.Attribute):
                methods.setdefault(_key(source), set()).update({call.func.attr} - {"compile"})
    return {key for key, used in methods.items() if used and used <= _IN_PLACE}


def _source(module: ModuleType, call: ast.Call) -> Any:
    """What it compiles; None where that is known in the function only."""
    try:
        return eval(ast.unparse(call.args[0]), dict(vars(module)))
    except NameError:
        return None


def _key(source: Any) -> tuple[str, bool]:
    is_bytes = isinstance(source, bytes)
    return (source.decode("latin-1") if is_bytes else source), is_bytes


def _named_patterns(module: ModuleType) -> dict[str, tuple[str, bool]]:
    variables = vars(module).items()
    return {name: _key(v.pattern) for name, v in variables if isinstance(v, re.Pattern)}


def _methods(module: ModuleType) -> Iterator[tuple[str, str]]:
    """(what stands in front of it, method of a pattern)."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Attribute) and node.attr in _CALLS:
            base = node.value
            if isinstance(base, (ast.Name, ast.Attribute)):
                name = base.id if isinstance(base, ast.Name) else base.attr
                if name != "re":
                    yield name, node.attr


def _handed_on(module: ModuleType) -> set[str]:
    """Names that stand by themselves somewhere, not only in front of a method."""
    tree, before_dot = _tree(module), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            before_dot.add(id(node.value))
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Load) and id(n) not in before_dot}


# ---- hard texts


class Sample:
    """A text that a pattern matches, in which its n-th repetition is as long as is asked for."""

    def __init__(self, grown: int, chars: int) -> None:
        self.grown, self.chars, self.repetitions = grown, chars, 0

    def of(self, tokens: Tokens) -> str:
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
        if kind.endswith("_REPEAT"):
            return self._repeated(*value)
        if kind == "SUBPATTERN":
            return self.of(value[-1])
        if kind == "ATOMIC_GROUP":
            return self.of(value)
        return self.of(value[1][0]) if kind == "BRANCH" else ""

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
    tokens = parsed(pattern)
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


if __name__ == "__main__":
    sys.stdout.write(json.dumps(list(_recorded())))
