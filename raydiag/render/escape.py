"""Make text that came from a node harmless for a terminal, and for Markdown."""

import re
from collections.abc import Iterable

from raydiag.render.secrets import masked_text

# What means something in CommonMark, GitHub's tables and formulas, or HTML, anywhere in a line. An
# underscore inside a word means nothing, and names of probes would be hard to read with it.
_SPECIAL = re.compile(r"[\\`*\[\]~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# Of mentions, numbers of issues and addresses: what trackers make links of.
_LINKING = re.compile(r"@(?=\w)|[#!](?=\d)|:(?=//)|\b(?i:www)(?=\.)|\bGH(?=-\d)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}
# At the start of a line: headings, rules, lists.
_OPENING = re.compile(r"^()([#=]|[-+](?=[ -]|$))|^(\d{1,9})([.)])(?= |$)")


def terminal(text: str) -> str:
    r"""`text` with every character that does not print shown as `\xNN`, `\uNNNN` or `\UNNNNNNNN`.

    That covers control characters (C0 with tab and newline, DEL, C1), bidirectional and other
    invisible formatting, line and paragraph separators, lone surrogates, and blanks other than the
    ASCII one: a log line can neither colour, move the cursor, start a line nor hide anything.
    A backslash stays as it is, so this is for the eye and not for reading back. Secrets are masked.
    """
    text = masked_text(text)
    # isprintable() is false for Unicode's "Other" (Cc Cf Cs Co Cn) and "Separator" categories.
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def markdown(text: str) -> str:
    """`text` on one line as Markdown that shows it as it is, in a paragraph, list or table cell.

    A pipe becomes an entity, because a backslash does not protect it in every table. Trackers link
    names, numbers and addresses in what has been rendered, so a space without width parts them.
    """
    plain = " ".join(terminal(text).split())
    plain = _LINKING.sub("\\g<0>\u200b", plain)
    plain = _SPECIAL.sub(lambda match: f"\\{match[0]}", plain)
    for char, entity in _ENTITIES.items():
        plain = plain.replace(char, entity)
    return _OPENING.sub(r"\1\3\\\2\4", plain)


def fenced(lines: Iterable[str]) -> str:
    """The lines as a code block of Markdown, verbatim but for what `terminal` shows differently."""
    escaped = list(map(terminal, lines))
    longest = max(map(len, re.findall("`+", "\n".join(escaped))), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *escaped, fence])


def _escaped(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
