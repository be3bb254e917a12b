"""Which cluster is meant: from the command line and Ray's environment variables to one URL."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Optional
from urllib.parse import urlsplit

from raydiag.errors import UsageError

DEFAULT_URL = "http://127.0.0.1:8265"


@dataclass(frozen=True)
class Address:
    """Where to connect."""

    url: str  # of the dashboard; "" for a temporary local Ray
    origin: str  # where it was said, for messages
    gcs_address: Optional[str] = None  # the cluster must have this one, when it is known
    login: Optional[str] = None  # [USER@]HEAD: the URL is meant as seen from there, through ssh

    @property
    def is_local(self) -> bool:
        """A temporary Ray on this machine is meant."""
        return not self.url


@dataclass(frozen=True)
class Forward:
    """A port of this machine behind which the dashboard that another machine sees is."""

    url: str
    login: str  # [USER@]HEAD of the ssh that carries it
    to: Callable[[str], AbstractContextManager[Forward]]  # another URL of that machine


def resolve(option: Optional[str]) -> Address:
    """`--address`, else RAY_API_SERVER_ADDRESS, else RAY_ADDRESS, else this machine's dashboard.

    RAY_ADDRESS may name the global control store (HOST:PORT or ray://HOST:PORT): then the dashboard
    is looked for on that host, and the cluster behind it must be the one named. Raises UsageError.
    """
    for origin, value in (
        ("--address", option),
        ("RAY_API_SERVER_ADDRESS", os.environ.get("RAY_API_SERVER_ADDRESS")),
        ("RAY_ADDRESS", os.environ.get("RAY_ADDRESS")),
    ):
        if value:
            return _parse(value.strip(), origin)
    return Address(DEFAULT_URL, "the default")


def seen_from(login: str, host: str, option: Optional[str]) -> Address:
    """`--address` beside `--ssh`: the dashboard as the machine `host`, reached by `login`, sees it.

    The environment variables are not asked: they speak of this machine's clusters. The dashboard of
    a head listens on its loopback, so a URL with the head's own name means that. Raises UsageError.
    """
    address = _parse((option or "auto").strip(), "--address")
    if address.is_local:
        raise UsageError("--address local is this machine and --ssh another one: give one of them")
    parts = urlsplit(address.url)
    if parts.scheme == "https":
        raise UsageError("--ssh carries http only: give --address http://HOST:PORT as HEAD sees it")
    name = parts.hostname or ""
    is_head_itself = name in ("localhost", "127.0.0.1", host.lower())
    url_host = "127.0.0.1" if is_head_itself else f"[{name}]" if ":" in name else name
    url = f"http://{url_host}:{parts.port or 80}{parts.path}"
    return Address(url, "--ssh", login=login)


def _parse(value: str, origin: str) -> Address:
    if value == "local":
        return Address("", origin)
    if value == "auto":
        return Address(DEFAULT_URL, origin)
    try:
        parts = urlsplit(value if "://" in value else f"//{value}")
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if not host or scheme not in ("", "http", "https", "ray"):
        raise UsageError(
            f"{origin}: {value!r} is not an address: give http://HEAD:8265, or local for a "
            "temporary Ray on this machine"
        )
    if scheme in ("http", "https"):
        return Address(value, origin)
    url_host = f"[{host}]" if ":" in host else host
    if origin == "RAY_ADDRESS" or scheme == "ray":
        expected = f"{url_host}:{port}" if port and scheme != "ray" else None
        return Address(f"http://{url_host}:8265", origin, expected)
    return Address(f"http://{url_host}:{port or 8265}", origin)
