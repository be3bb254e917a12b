"""Figures on how readable a Python package is, to set side by side with others.

    python tools/figures.py raydiag [OTHER_PACKAGE ...] [--each]

Per 1,000 lines means lines that are not blank. A filler name says nothing about what it holds; a
nested comprehension stands inside another one, or has more than one `for`. Complexity is McCabe's:
one, and one more for each branch, loop, handler, `with`, comprehension clause and boolean operator.
`--each` prints one line for each part of the package, the worst first.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# fmt: off
FILLER_NAMES = frozenset({
    "any_", "all_", "asked", "been", "both", "came", "come", "done", "every", "found", "gave",
    "given", "goes", "gone", "got", "had", "has", "have", "heard", "here", "it", "its", "kept",
    "knew", "known", "left", "less", "made", "many", "meant", "more", "most", "much", "none",
    "nothing", "one", "ones", "other", "others", "own", "put", "rest", "said", "same", "seen",
    "shown", "some", "something", "stood", "such", "taken", "that", "them", "then", "there",
    "these", "thing", "things", "this", "those", "told", "took", "two", "wanted", "way", "ways",
    "went", "what", "where", "which", "whole", "why",
})
# fmt: on
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert),
    *(ast.comprehension, ast.With, ast.AsyncWith, ast.match_case),
)
_NOT_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)


@dataclass
class Figures:
    """Counts over some files; ratios are derived from them."""

    lines: int = 0  # not blank
    code_lines: int = 0  # neither blank, comment nor docstring
    bindings: int = 0
    comprehensions: int = 0
    nested: int = 0
    conditionals: int = 0  # `a if b else c`
    public: int = 0  # functions and methods
    undocumented: int = 0  # of these, without a docstring
    filler: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    complexities: list[int] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Count one module. Raises SyntaxError."""
        tree = ast.parse(text)
        self.lines += sum(bool(line.strip()) for line in text.splitlines())
        self.code_lines += _code_lines(text, tree)
        for node in ast.walk(tree):
            self._add_node(node)

    def _add_node(self, node: ast.AST) -> None:
        name = _bound_name(node)
        if name not in (None, "self", "cls", "_"):
            self.bindings += 1
            self.filler[name or ""] += name in FILLER_NAMES
        if isinstance(node, _COMPREHENSIONS):
            self.comprehensions += 1
            self.nested += _nested_in(node) + (len(node.generators) > 1)
        elif isinstance(node, ast.IfExp):
            self.conditionals += 1
        elif isinstance(node, ast.ClassDef):
            self.classes[node.name] += 1
        elif isinstance(node, _FUNCTIONS):
            self.complexities.append(complexity(node))
            if not node.name.startswith("_"):
                self.public += 1
                self.undocumented += ast.get_docstring(node) is None

    @property
    def filler_percent(self) -> float:
        return 100.0 * self.filler.total() / max(self.bindings, 1)

    @property
    def duplicate_classes(self) -> list[str]:
        return sorted(name for name, count in self.classes.items() if count > 1)

    @property
    def undocumented_percent(self) -> float:
        return 100.0 * self.undocumented / max(self.public, 1)

    def per_thousand_lines(self, count: int) -> float:
        return 1000.0 * count / max(self.lines, 1)

    def complexity_at(self, share: float) -> int:
        """The complexity that this share of all functions does not exceed."""
        ordered = sorted(self.complexities) or [0]
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def measured(files: Iterable[Path]) -> Figures:
    """Figures over these files together."""
    figures = Figures()
    for path in files:
        figures.add(path.read_text(encoding="utf-8"))
    return figures


def complexity(function: ast.AST) -> int:
    """McCabe's, with comprehension clauses and boolean operators."""
    score = 1
    for node in ast.walk(function):
        score += isinstance(node, _BRANCHES)
        if isinstance(node, ast.BoolOp):
            score += len(node.values) - 1
    return score


def _bound_name(node: ast.AST) -> str | None:
    """The name that a node binds, if it binds one."""
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return None


def _nested_in(outer: ast.AST) -> int:
    inner = (node for node in ast.walk(outer) if node is not outer)
    return sum(isinstance(node, _COMPREHENSIONS) for node in inner)


def _code_lines(text: str, tree: ast.Module) -> int:
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for docstring in _docstrings(tree):
        numbers.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(numbers)


def _docstrings(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)):
            continue
        if ast.get_docstring(node) is not None:
            yield node.body[0]


def _rows(figures: Figures) -> list[tuple[str, str]]:
    per_thousand = figures.per_thousand_lines
    return [
        ("code lines", f"{figures.code_lines:,}"),
        ("filler names, % of bindings", f"{figures.filler_percent:.1f}"),
        ("nested comprehensions per 1,000 lines", f"{per_thousand(figures.nested):.1f}"),
        ("comprehensions per 1,000 lines", f"{per_thousand(figures.comprehensions):.0f}"),
        ("conditional expressions per 1,000 lines", f"{per_thousand(figures.conditionals):.0f}"),
        ("class names defined twice or more", f"{len(figures.duplicate_classes)}"),
        ("complexity, median", f"{statistics.median(figures.complexities or [0]):g}"),
        ("complexity, p90", f"{figures.complexity_at(0.9)}"),
        ("public functions without a docstring, %", f"{figures.undocumented_percent:.0f}"),
    ]


def _print_table(packages: Sequence[Path]) -> None:
    columns = [_rows(measured(sorted(package.rglob("*.py")))) for package in packages]
    print(f"{'':42}" + "".join(f"{package.name:>14}" for package in packages))
    for rows in zip(*columns, strict=True):
        print(f"{rows[0][0]:42}" + "".join(f"{value:>14}" for _, value in rows))


def _print_parts(package: Path) -> None:
    parts = {path for path in package.rglob("*.py") if path.parent == package}
    parts |= {path for path in package.rglob("*") if path.is_dir() and list(path.glob("*.py"))}
    print(
        f"{'code':>6} {'filler':>6} {'compr':>6} {'cond':>6} {'nested':>6} {'p90':>4} {'undoc':>6}"
    )
    for part in sorted(parts):
        part_figures = measured([part] if part.is_file() else sorted(part.glob("*.py")))
        print(
            f"{part_figures.code_lines:6} {part_figures.filler_percent:6.1f}"
            f" {part_figures.per_thousand_lines(part_figures.comprehensions):6.0f}"
            f" {part_figures.per_thousand_lines(part_figures.conditionals):6.0f}"
            f" {part_figures.nested:6} {part_figures.complexity_at(0.9):4}"
            f" {part_figures.undocumented:6}  {part.relative_to(package)}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("packages", nargs="+", type=Path, metavar="PACKAGE")
    parser.add_argument("--each", action="store_true", help="a line for each part of the first one")
    arguments = parser.parse_args()
    _print_table(arguments.packages)
    if arguments.each:
        _print_parts(arguments.packages[0])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
