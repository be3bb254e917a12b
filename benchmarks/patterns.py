"""What each regular expression of the package takes for the texts that are hardest for it.

    python benchmarks/patterns.py [N]      the N worst (30), in milliseconds of CPU time per KB

The texts are those of `tests/test_slow_patterns.py`, as long as a line is (4,096 characters; 1,024
of the kernel, which writes none longer). The least of three searches counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from raydiag import catalog
from raydiag.catalog.kernel_table import _LONGEST
from raydiag.masking import masked_line
from raydiag.render.secrets import masked_text
from tests import package_patterns
from tests.package_patterns import Found
from tests.test_slow_patterns import _LINE, catalog_examples, texts_for

_SHORTEST = 500  # characters: below that, starting a search is most of it
_QUICK_MS = 0.1  # per KB: not worth a second search
_LINES = (
    "NVRM: knvlinkx: success " * 170,
    "ionic" + "a" * 4000 + "fw error",
    "metrics_exporter: " + "a_plugin" * 500 + " exited",
    "Training: 5%|" + " " * 4000 + "| 1/2 [",
    "a_" * 2048,
    "-" * 4096,
)


def ms_per_kb(search: Callable[[Any], object], text: Any) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.thread_time()
        search(text)
        best = min(best, (time.thread_time() - start) * 1000 / len(text) * 1024)
        if best < _QUICK_MS:
            break
    return best


def worst_ms(found: Found, examples: list[str], longest: int) -> float:
    search: Any = found.pattern.match if found.in_place else found.pattern.search
    is_bytes = isinstance(found.pattern.pattern, bytes)
    worst = 0.0
    for text in dict.fromkeys(texts_for(found, examples, longest)):
        if len(text) >= _SHORTEST:
            line: Any = text.encode("latin-1", "replace") if is_bytes else text
            worst = max(worst, ms_per_kb(search, line))
    return worst


def main(shown: int) -> None:
    examples = catalog_examples()
    of_kernel = {event.pattern.pattern for event in catalog.kernel_table().events}
    rows = []
    for found in package_patterns.all_patterns():
        source = found.pattern.pattern
        longest = _LONGEST if source in of_kernel else _LINE
        row = worst_ms(found, examples.get(str(source), []), longest)
        rows.append((row, found.place, f"{source!r:.60}"))
    rows.sort(reverse=True)
    print(f"{len(rows)} patterns, {sum(row[0] > 1 for row in rows)} over 1 ms per KB")
    for taken_ms, place, source in rows[:shown]:
        print(f"{taken_ms:6.2f} ms/KB  {place:28} {source}")
    print("whole functions, on lines that once were slow:")
    for function in (catalog.kernel_table().match, masked_line, masked_text):
        taken_ms = max(ms_per_kb(function, line) for line in _LINES)
        print(f"{taken_ms:6.2f} ms/KB  {function.__name__}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
