"""Lines of a limited width."""

from __future__ import annotations

_LEAST_ROOM = 8  # columns of text beside an indent, however narrow the page is


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """`text` in lines of `width`, the first indented by `first`, the others by `rest`.

    Cut at double blanks, else blanks or commas, else anywhere; other blanks are kept.
    """
    lines: list[str] = []
    indent = first
    while True:
        room = max(width - len(indent), _LEAST_ROOM)
        if len(text) <= room:
            return [*lines, indent + text]
        cut = _cut(text, room)
        lines.append((indent + text[:cut]).rstrip())
        text, indent = text[cut:].lstrip(" "), rest


def _cut(text: str, room: int) -> int:
    # Double blanks part the fields of a heading, which are easier to read in one piece.
    between_fields = text.rfind("  ", room // 2, room + 2)
    if between_fields > 0:
        return between_fields
    between_words = max(text.rfind(" ", 0, room + 1), text.rfind(",", 0, room) + 1)
    return between_words if between_words > 0 else room
