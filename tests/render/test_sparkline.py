"""Plots in a terminal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raydiag.render import report as blocks
from raydiag.render.markdown import markdown_text
from raydiag.render.report import Paragraph, Report, Section
from raydiag.render.sparkline import BARS, DIGITS, plot_lines
from raydiag.render.text import text
from raydiag.timeline.courses import Course, Curve, Range

AT = 1.8e9 + np.arange(0.0, 160.0)
RISING = np.repeat([0.0, 700.0], 80)
COURSE = Course(
    "RDMA retransmits",
    "packets/s",
    AT,
    (Curve("mi263", RISING),),
    Range("2 others", RISING * 0, RISING * 0, RISING * 0),
    onset=float(AT[80]),
)


def test_a_row_for_each_line_on_one_scale() -> None:
    assert list(plot_lines(COURSE, 35, DIGITS)) == [
        "RDMA retransmits  0 to 700 packets/s",
        "mi263              1111111188888888",
        "median of 2 others 1111111111111111",
        "                           ^ onset",
        "                   2027-01-15 08:00:00Z to 2027-01-15 08:02:39Z",
    ]


def test_what_is_missing_is_blank_and_a_peak_is_not_lost() -> None:
    values = np.zeros(160)
    values[40:80] = np.nan
    values[133] = 9.0
    (_, row, _) = plot_lines(
        replace(COURSE, curves=(Curve("a", values),), others=None, onset=None), 18
    )
    assert row == "a ▁▁▁▁    ▁▁▁▁▁█▁▁"


def test_a_duration_fills_the_time_that_it_took() -> None:
    ended = np.array([0.0, 10.0, 20.0, 100.0, 110.0])
    lasted = np.array([10.0, 10.0, 10.0, 80.0, 10.0])
    course = Course("Step", "s", ended, (Curve("job", lasted, lasting=True),), over_steps=True)
    _, row, _ = plot_lines(course, 15)
    assert row == "job ▂▂▂████████"


@pytest.mark.parametrize(
    "course",
    [
        replace(COURSE, curves=(), others=None),
        replace(COURSE, curves=(Curve("a", np.full(160, np.nan)),), others=None),
        Course("x", "s", np.empty(0), (Curve("a", np.empty(0)),)),
    ],
)
def test_nothing_is_drawn_of_nothing(course: Course) -> None:
    assert list(plot_lines(course, 60)) == []


def test_a_level_below_zero() -> None:
    course = replace(COURSE, curves=(Curve("a", -RISING),), others=None, onset=None)
    assert list(plot_lines(course, 12, DIGITS))[1] == "a 8888811111"


def test_plots_are_drawn_on_demand_only() -> None:
    picture = Section("Around", [blocks.Plot(COURSE), blocks.HostGrid(())])
    report = Report([Section("Said", [Paragraph("x")]), picture])
    assert "AROUND" not in text(report, 80)
    assert "Around" not in markdown_text(report)
    drawn = text(report, 80, bars=BARS)
    assert "AROUND\n  RDMA retransmits" in drawn and "▁▁" in drawn and "^ onset" in drawn
