"""Make text that came from a node harmless for a terminal."""

from __future__ import annotations


def terminal(text: str) -> str:
    r"""`text` with every character that does not print shown as `\xNN`, `\uNNNN` or `\UNNNNNNNN`.

    That covers control characters (C0 with tab and newline, DEL, C1), bidirectional and other
    invisible formatting, line and paragraph separators, lone surrogates, and blanks other than the
    ASCII one: a log line can neither colour, move the cursor, start a line nor hide anything.
    A backslash stays as it is, so this is for the eye and not for reading back.
    """
    # isprintable() is false for Unicode's "Other" (Cc Cf Cs Co Cn) and "Separator" categories.
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
