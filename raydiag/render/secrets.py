"""Secrets are taken out of reports and errors, in every format and on both streams.

Source: the documented forms of GitHub's, GitLab's, Hugging Face's, OpenAI's, AWS's, Google's,
Slack's and npm's tokens; RFC 7519 (JSON web tokens), 6750 (bearer), 3986 (users in URLs).
"""

import re
from collections.abc import Mapping
from typing import Any

from raydiag.masking import NAME

MASK = "***"
_TOKENS = (
    r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abeoprs]-|npm_|AKIA|ASIA|AIza)[\w-]{8,}"
    r"|\beyJ[\w-]{6,}(?:\.[\w-]*){0,2}"
)
# A language model's tokens open nothing.
_NO_SECRET = r"(?<![\w-])(?:pad|eos|bos|unk|mask|cls|sep|image|stop|next|special)_token"
_VALUE = r"\"[^\"]*\"?|'[^']*'?|[^\s,;&\"'<>)}\]]{3,}"
_FORMS = re.compile(
    rf"(?P<token>{_TOKENS})"
    r"|(?P<header>(?i:\b(?:bearer|authorization[\"']?\s*[:=]\s*[\"']?\w+)\s+))[\w.~+/=-]{6,}"
    r"|(?P<url>://)[^/@\s]+@"
    rf"|(?P<model>{_NO_SECRET})"
    rf"|(?P<name>(?i:(?<![\w-])(?:--?)?{NAME})(?:[\"']?\s{{0,8}}[=:]\s{{0,8}}))(?:{_VALUE})"
    rf"|(?P<option>(?i:(?<![\w-])--?{NAME})\s{{1,8}})(?:{_VALUE})"
    r"|(?P<pem>-----BEGIN [A-Z ]*PRIVATE KEY-----).*",
    re.DOTALL,
)
_NAMED = re.compile(rf"(?i:[\"']?{NAME}[\"']?)")
# Text without any of these holds no secret: looking for them costs a tenth of the forms.
_SIGNS = (
    *("token", "secret", "passw", "passphrase", "authorization", "credential", "key", "bearer"),
    *("://", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "hf_", "sk-"),
    *("xox", "npm_", "akia", "asia", "aiza", "eyj"),
)


def masked_text(text: str) -> str:
    """The text with `***` for each secret in it; the rest stays as it is."""
    lower = text.lower()
    if not any(map(lower.__contains__, _SIGNS)):
        return text
    return _FORMS.sub(_masked, text)


def masked_value(value: Any) -> Any:
    """The same for all strings of a document's value, and for what stands under such a name."""
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, Mapping):
        return {key: _masked_entry(key, held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(masked_value, value))
    return value


def _masked_entry(key: str, value: Any) -> Any:
    is_secret = isinstance(value, str) and value and _NAMED.fullmatch(key)
    return MASK if is_secret else masked_value(value)


def _masked(match: re.Match[str]) -> str:
    kind = match.lastgroup or ""
    if kind == "model":
        return match[0]
    lead = "" if kind == "token" else match[kind]
    return f"{lead}{MASK}{'@' if kind == 'url' else ''}"
