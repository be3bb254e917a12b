"""A course as a drawing in SVG, by matplotlib, for `html.py`.

matplotlib writes colours; the page has names for them, which mean something else in the dark and on
paper. So each line is drawn in a colour that stands for a name, and the name takes its place.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from datetime import timezone
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raydiag.render.escape import terminal
from raydiag.timeline.courses import SAVE, STALL, Course
from raydiag.tsdb.series import Floats

_SIZE_INCHES = (5.2, 2.5)
_LETTERS, _HANDLE = 62, 7  # of a legend that fit side by side; a line's sign takes as many
# What stands for what in the page's style sheet.
_NAMES = {
    "#010101": "--ink",
    "#020202": "--muted",
    "#030303": "--line",
    "#040404": "--bad",
    "#050505": "--peers",
    "#070707": "--stall",
    "#080808": "--accent",
    "#090909": "--doubtful",
    "#0a0a0a": "--save-tint",
    "#0b0b0b": "--stall-tint",
}
_COLOURS = {name: colour for colour, name in _NAMES.items()}
_STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be read, searched and scaled
    "text.parse_math": False,  # names of hosts are no formulas
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": _COLOURS["--ink"],
    "axes.labelcolor": _COLOURS["--muted"],
    "axes.edgecolor": _COLOURS["--line"],
    "xtick.color": _COLOURS["--line"],
    "ytick.color": _COLOURS["--line"],
    "xtick.labelcolor": _COLOURS["--muted"],
    "ytick.labelcolor": _COLOURS["--muted"],
    "grid.color": _COLOURS["--line"],
    "hatch.linewidth": 0.6,
    "path.simplify_threshold": 0.3,
}
# Fill, hatching and its colour: shades differ by more than their colour.
_SHADES = {SAVE: ("--save-tint", "--save-tint", ""), STALL: ("--stall-tint", "--stall", "///")}
_LINES = (("--bad", "-"), ("--accent", (0, (4, 1.5))), ("--doubtful", (0, (1, 1))))
_PROLOGUE = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>\s*", re.DOTALL)
_DIMENSIONS = re.compile(r'(<svg[^<>]{0,999}?) width="[^"<>]{0,20}" height="[^"<>]{0,20}"')
# Both ways in which matplotlib's versions name a font.
_FONTS = re.compile(
    r"font: (?:\d+ )?([\d.]+px) [^;\"]*|font-size: ([\d.]+px); font-family: [^;\"]*"
)


def svg(course: Course, number: int) -> str:
    """The drawing; `number` keeps its ids apart from those of other drawings on the page."""
    style: Any = _STYLE | {"svg.hashsalt": str(number)}
    with mpl.rc_context(style):
        figure = Figure(_SIZE_INCHES, layout="constrained")
        _draw(course, figure.subplots(), figure)
        written = io.StringIO()
        with warnings.catch_warnings():
            # The browser has the letters that matplotlib's own font lacks.
            warnings.simplefilter("ignore", UserWarning)
            figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(written.getvalue(), f"p{number}-")


def _for_page(drawing: str, prefix: str) -> str:
    """As a part of an HTML page: of any width, in its colours and fonts, with ids of its own."""
    drawing = _DIMENSIONS.sub(r"\1", _PROLOGUE.sub("", drawing), count=1)
    drawing = re.sub(r'\bid="', f'id="{prefix}', drawing)
    drawing = re.sub(r'((?:href="|url\()#)', rf"\g<1>{prefix}", drawing)
    for colour, name in _NAMES.items():
        drawing = drawing.replace(colour, f"var({name})")
    return _FONTS.sub(r"font-size: \1\2", drawing)


def _draw(course: Course, axes: Axes, figure: Figure) -> None:
    place = _place(course)
    at = place(course.at)
    for stretch_name, start, end in _first_named(course):
        fill, edge, hatch = _SHADES[stretch_name.lstrip("_")]
        first, last = place(np.array([start, end]))
        colours = {"facecolor": _COLOURS[fill], "edgecolor": _COLOURS[edge], "hatch": hatch}
        span = axes.axvspan(first, last, linewidth=0, zorder=0, label=stretch_name)
        span.set(**colours)
    if course.others is not None:
        others, shade = course.others, _COLOURS["--peers"]
        name = terminal(f"median of {others.name}")
        dashes = (5, 2) if course.curves else (1, 0)
        axes.fill_between(at, others.low, others.high, color=shade, alpha=0.35, lw=0)
        axes.plot(at, others.median, color=shade, lw=1.4, dashes=dashes, label=name)
    for curve, (colour, style) in zip(course.curves, cycle(_LINES)):
        drawn = axes.step if curve.lasting else axes.plot
        drawn(at, curve.values, c=_COLOURS[colour], lw=1.6, ls=style, label=terminal(curve.name))
    if course.onset is not None:
        onset = place(np.array([course.onset]))[0]
        axes.axvline(onset, color=_COLOURS["--ink"], lw=1.2, ls=(0, (2, 2)), label="onset")
    if course.extent is not None:
        axes.set_xlim(*place(np.array(course.extent)))
    _finish(course, axes, figure)


def _place(course: Course) -> Callable[[Floats], Floats]:
    """From `at` to the axis: steps are numbers, times matplotlib's days."""
    return np.asarray if course.over_steps else lambda times: times / 86400.0


def _first_named(course: Course) -> Iterator[tuple[str, float, float]]:
    """Stretches; of each kind the legend names the first one only."""
    named: set[str] = set()
    for stretch in course.stretches:
        yield "_" * (stretch.name in named) + stretch.name, stretch.start, stretch.end
        named.add(stretch.name)


def _finish(course: Course, axes: Axes, figure: Figure) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=3)
    axes.margins(x=0.01)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set_ylabel(terminal(course.unit))
    if course.at.size:
        low, _ = axes.get_ylim()
        axes.set_ylim(bottom=min(low, 0.0) if low < 0 else 0.0)
    if course.over_steps:
        axes.set_xlabel("step")
    else:
        locator = dates.AutoDateLocator(maxticks=6, tz=timezone.utc)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        formatter = dates.ConciseDateFormatter(locator, tz=timezone.utc)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(formatter)
    _, names = axes.get_legend_handles_labels()
    columns = min(4, max(1, _LETTERS // max(map(len, [*names, ""]), default=1)))
    if sum(map(len, names)) + _HANDLE * len(names) <= _LETTERS:
        columns = max(len(names), 1)
    figure.legend(loc="outside upper left", ncols=columns, frameon=False, handlelength=2.2)
