"""Text without what looks like a secret. Too much is hidden rather than too little."""

from __future__ import annotations

import functools
import re

# Names of values that open something: HF_TOKEN, aws_secret_access_key, api-key, password. Not the
# tokens of a language model, nor Python's KeyError.
_WORDS = (
    r"[\w-]*(?:token|secret|password|passwd|_pwd|passphrase|authorization|credentials?|jwt|cookie)"
    r"|[\w-]*(?:api|access|private|secret|ssh|auth|account)[_-]?key(?:[_-]id)?"
)
_CAPITALS = r"\b[A-Z][A-Z0-9_]*_KEY"
NAME = rf"(?:{_WORDS}|{_CAPITALS})"
# What begins as the tokens of well-known services do.
TOKENS = (
    r"\b(?:gh[pousr]_|hf_|npm_|r8_|gsk_)[A-Za-z0-9]{12,}"  # unlike hf_hub_download
    r"|\b(?:github_pat_|glpat-|sk-|sk_live_|xox[abeoprs]-|xapp-|pypi-|nvapi-|dckr_pat_|wandb_v1_"
    r"|ya29\.|AKIA|ASIA|AIza)[\w-]{8,}|\beyJ[\w-]{6,}(?:\.[\w-]*){0,2}"
)
# Compiled by `re` when first used: a node pays for that only where there is a line to show.
# A name is looked at from its beginning only, or a long run of letters would take very long.
_ASSIGNED = rf"(?i)((?:(?<![\w-])(?:{_WORDS})|{_CAPITALS})[\"']?\s*[=:]\s*).+"
_OPTION = rf"(?i)((?<![\w-])--?{NAME}\s+)\S+"
_BEARER = r"(?i)(\bbearer\s+)\S+"
_URL_USER = r"(://)[^/@\s\0]+@"


@functools.lru_cache(maxsize=1024)
def names_secret(name: str) -> bool:
    """Whether a variable of that name holds one."""
    return re.fullmatch(f"(?i){NAME}", name) is not None


def masked_line(line: str) -> str:
    """One line of a log: values after such a name (to its end), users in URLs, headers, tokens."""
    for pattern in (_ASSIGNED, _OPTION, _BEARER):
        line = re.sub(pattern, r"\1***", line)
    return re.sub(TOKENS, "***", re.sub(_URL_USER, r"\1***@", line))
