"""Secrets are taken out of reports and errors, in every format and on both streams.

Source: the documented forms of the tokens of GitHub, GitLab, Hugging Face, OpenAI, Anthropic, AWS,
Google, Azure, NVIDIA, Slack, Docker, PyPI and npm; RFC 7519 (JSON web tokens), 6750 (bearer), 3986
(users in URLs), 7468 (PEM); signed addresses of object stores; netrc(5); `wandb login`.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from raydiag.masking import NAME, TOKENS

MASK = "***"
_PEM_LINE = r"(?<!\S)(?![0-9a-f]{64})[A-Za-z0-9+/]{64}(?!\S)"  # and not the hash of a content
# A language model's tokens open nothing.
_NO_SECRET = r"(?<![\w-])(?:pad|eos|bos|unk|mask|cls|sep|image|stop|next|special)_token"
_VALUE = r"\"[^\"]*\"?|'[^']*'?|[^\s,;&\"'<>)}\]]{3,}"
# Between name and value; in JSON inside of JSON, and where a URL is quoted in another.
_IS = r"[\\\"']{0,3}\s{0,8}(?:[=:]>?|%3d)\s{0,8}\\{0,2}"
_FORMS = re.compile(
    rf"(?P<token>{TOKENS}|{_PEM_LINE})"
    r"|(?P<header>(?i:\b(?:bearer|authorization[\"']?\s*[:=]\s*[\"']?\w+)\s+))[\w.~+/=-]{6,}"
    r"|(?P<url>://)[^/?#\s]+@"
    r"|(?P<user>(?<![\w.@:/-])[\w.+-]{1,64}:)(?=[\d.:]{0,64}[^\d.:\s@])[^\s/@:]{8,128}(?=@[\w\[])"
    r"|(?P<curl>(?i:(?:\s-u|--(?:proxy-)?user)[ =]\s{0,8}[^\s:/]{1,64}:))\S+"
    r"|(?P<cookie>(?i:\b(?:set-)?cookie[\"']?:\s{0,8}))[^\n]+"
    r"|(?P<query>(?i:[?&](?:sig|signature|key|auth|code|x-amz-[a-z-]{1,24}|x-goog-[a-z-]{1,24})=))"
    r"[^&\s\"'<>]+"
    r"|(?P<login>(?i:\blogin\s{1,8}(?:--relogin\s{1,8})?))(?:[0-9a-f]{40}\b|\S+\s+password\s+\S+)"
    rf"|(?P<model>{_NO_SECRET})"
    rf"|(?P<name>(?i:(?<![\w-])(?:--?)?{NAME}{_IS}))(?:{_VALUE})"
    rf"|(?P<option>(?i:(?<![\w-])--?{NAME})\s{{1,8}})(?:{_VALUE})"
    r"|(?P<pem>-----BEGIN [A-Z ]*PRIVATE KEY-----).*",
    re.DOTALL,
)
_IN_PEM = re.compile(_PEM_LINE)
_NAMED = re.compile(rf"(?i:[\"']?(?:--?)?{NAME}[\"']?)")
_NAMING = ("name", "key", "what", "setting", "parameter")  # of rows: what they are about
# Text without any of these holds no secret: looking for them costs a tenth of the forms.
_HINTS = """
token secret passw passphrase authorization credential key bearer _pwd jwt cookie login :// sk_live_
ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- hf_ sk- xox xapp- npm_ pypi- nvapi- r8_ dckr_pat_ gsk_
wandb_v1_ ya29. @ akia asia aiza eyj -u -user sig= signature= code= auth= x-amz- x-goog-
"""
_SIGNS = tuple(_HINTS.split())
_SHORT = 256  # characters; what is longer is seldom said twice
_PLAIN = (int, float, type(None))
# Of a terminal, or without width: what may stand inside of a secret and hide it from its form.
_INVISIBLE = re.compile(
    r"\x1b\[[0-9;]{0,32}[A-Za-z]|[\x00-\x08\x0e-\x1f\x7f\xad\u200b-\u200f\u2060\ufeff]"
)


def masked_text(text: str) -> str:
    """The text with `***` for each secret in it; the rest stays as it is."""
    if not text.isprintable() and _INVISIBLE.search(text):
        plain = _INVISIBLE.sub("", text)
        masked = masked_text(plain)
        return text if masked == plain else masked
    lower = text.lower()
    if not any(map(lower.__contains__, _SIGNS)) and not (len(text) > 63 and _IN_PEM.search(text)):
        return text
    return _FORMS.sub(_masked, text)


def masked_value(value: Any) -> Any:
    """The same for all strings of a document's value, and for what stands under such a name."""
    if isinstance(value, str):
        return _masked_again(value) if len(value) < _SHORT else masked_text(value)
    if isinstance(value, (list, tuple)):
        return list(map(_masked_word, ("", *value), value))
    if isinstance(value, _PLAIN):
        return value
    return _masked_mapping(value) if isinstance(value, Mapping) else value


@functools.lru_cache(maxsize=1 << 14)
def _masked_again(text: str) -> str:
    """As `masked_text`: documents of many nodes say the same short things over and over."""
    return masked_text(text)


def masked_part(part: Any) -> Any:
    """The same for a part of a report, whatever it is made of; see `render.report`."""
    if isinstance(part, str):
        return masked_text(part)
    if isinstance(part, (list, tuple)):
        if part and isinstance(part[0], (int, float)):
            return part  # of a picture
        parts = list(map(masked_part, part))
        if parts and isinstance(part[0], str) and _key(part[0])[1]:  # a name and what it is
            parts[1:] = map(_hidden, parts[1:])
        return parts if isinstance(part, list) else tuple(parts)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        names = list(map(attrgetter("name"), dataclasses.fields(part)))
        shown = map(masked_part, map(functools.partial(getattr, part), names))
        return dataclasses.replace(part, **dict(zip(names, shown)))
    return part


def _hidden(words: Any) -> Any:
    if isinstance(words, str):
        return MASK
    return dataclasses.replace(words, text=MASK) if hasattr(words, "text") else words


def _masked_mapping(mapping: Mapping[str, Any]) -> dict[str, Any]:
    masked = {_key(key)[0]: _masked_entry(key, held) for key, held in mapping.items()}
    if any(
        map(_is_secret, map(mapping.get, _NAMING))
    ):  # a row of a table: a setting, and what it is here and there
        others = masked.items()
        return {k: MASK if isinstance(v, str) and k not in _NAMING else v for k, v in others}
    return masked


def _is_secret(name: Any) -> bool:
    return isinstance(name, str) and _key(name)[1]


def _masked_word(before: Any, value: Any) -> Any:
    """One of a list, which may be a command line: an option, and then its value."""
    is_option = isinstance(before, str) and before.startswith("-")
    return _masked_entry(before if is_option else "", value)


def _masked_entry(name: Any, value: Any) -> Any:
    is_secret = isinstance(value, str) and value and isinstance(name, str) and _key(name)[1]
    return MASK if is_secret else masked_value(value)


@functools.lru_cache(maxsize=4096)
def _key(key: str) -> tuple[str, bool]:
    """A name as it is shown, and whether what it names is a secret."""
    return masked_text(key), _NAMED.fullmatch(key) is not None


def _masked(match: re.Match[str]) -> str:
    kind = match.lastgroup or ""
    if kind == "model":
        return match[0]
    lead = "" if kind == "token" else match[kind]
    return f"{lead}{MASK}{'@' if kind == 'url' else ''}"
