"""How much a terminal shows at once, 80 x 25: the answer has to stand there."""

import math

ROWS = 24  # one is the pager's
COLUMNS = 72  # less than 80, by what an indent and the cut between words take


def rows_of(text: str) -> int:
    """How many rows a text takes."""
    return math.ceil(len(text) / COLUMNS)
