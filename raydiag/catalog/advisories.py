"""KNOW: published weaknesses of Ray, from `advisories.yaml`."""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml

from raydiag.errors import CatalogError

_FILE = "advisories.yaml"
_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?")


@dataclass(frozen=True)
class Advisory:
    """One weakness."""

    id: str
    summary: str
    source: str
    fixed_in: str = ""  # "2.8.1"
    without_token: bool = False  # in every release, unless token authentication is on

    def concerns(self, ray_version: str, token_is_needed: bool | None) -> bool:
        """Whether a cluster has it; one whose version cannot be read has none by its version."""
        if self.without_token:
            return token_is_needed is False
        release = release_of(ray_version)
        return release is not None and release < (release_of(self.fixed_in) or release)


@cache
def advisories() -> tuple[Advisory, ...]:
    """All of them. Raises CatalogError."""
    text = resources.files(__package__).joinpath(_FILE).read_text("utf-8")
    rows = []
    for fields in yaml.safe_load(text):
        try:
            advisory = Advisory(**fields)
        except TypeError as error:
            raise CatalogError(f"{_FILE}: {error}") from None
        if advisory.without_token == (release_of(advisory.fixed_in) is not None):
            raise CatalogError(f"{_FILE}: {advisory.id}: needs fixed_in, or without_token")
        rows.append(advisory)
    return tuple(rows)


def release_of(version: str) -> tuple[int, int, int] | None:
    """`2.52.0rc1` as (2, 52, 0); None for what is no release."""
    match = _RELEASE.match(version)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None
