"""Text without what looks like a secret. Too much is hidden rather than too little."""

from __future__ import annotations

import re

# Names of values that open something: HF_TOKEN, aws_secret_access_key, api-key, password. Not the
# tokens of a language model, nor Python's KeyError.
_WORDS = (
    r"[\w-]*(?:token|secret|password|passwd|passphrase|authorization|credentials?)"
    r"|[\w-]*(?:api|access|private|secret|ssh|auth)[_-]?key(?:[_-]id)?"
)
_CAPITALS = r"\b[A-Z][A-Z0-9_]*_KEY"
NAME = rf"(?:{_WORDS}|{_CAPITALS})"
# Compiled by `re` when first used: a node pays for that only where there is a line to show.
# A name is looked at from its beginning only, or a long run of letters would take very long.
_ASSIGNED = rf"(?i)((?:(?<![\w-])(?:{_WORDS})|{_CAPITALS})[\"']?\s*[=:]\s*).+"
_OPTION = rf"(?i)((?<![\w-])--?{NAME}\s+)\S+"
_BEARER = r"(?i)(\bbearer\s+)\S+"
_URL_USER = r"(://)[^/@\s\0]+@"


def masked_line(line: str) -> str:
    """One line of a log: values after such a name (to the line's end), users in URLs, headers."""
    for pattern in (_ASSIGNED, _OPTION, _BEARER):
        line = re.sub(pattern, r"\1***", line)
    return re.sub(_URL_USER, r"\1***@", line)
