"""Which cluster is meant: from the command line and Ray's environment variables to one URL."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional
from urllib.parse import urlsplit

from raydiag.errors import UsageError

DEFAULT_URL = "http://127.0.0.1:8265"


@dataclass(frozen=True)
class Address:
    """Where to connect."""

    url: str  # of the dashboard; "" for a throw-away local Ray
    origin: str  # where it was said, for messages
    gcs_address: Optional[str] = None  # the cluster must have this one, when it is known

    @property
    def is_local(self) -> bool:
        return not self.url


def resolve(given: Optional[str]) -> Address:
    """`--address`, else RAY_API_SERVER_ADDRESS, else RAY_ADDRESS, else this machine's dashboard.

    RAY_ADDRESS may name the global control store (HOST:PORT or ray://HOST:PORT): then the dashboard
    is looked for on that host, and the cluster behind it must be the one named. Raises UsageError.
    """
    for origin, value in (
        ("--address", given),
        ("RAY_API_SERVER_ADDRESS", os.environ.get("RAY_API_SERVER_ADDRESS")),
        ("RAY_ADDRESS", os.environ.get("RAY_ADDRESS")),
    ):
        if value:
            return _parse(value.strip(), origin)
    return Address(DEFAULT_URL, "the default")


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
            "throw-away Ray on this machine"
        )
    if scheme in ("http", "https"):
        return Address(value, origin)
    shown = f"[{host}]" if ":" in host else host
    if origin == "RAY_ADDRESS" or scheme == "ray":
        expected = f"{shown}:{port}" if port and scheme != "ray" else None
        return Address(f"http://{shown}:8265", origin, expected)
    return Address(f"http://{shown}:{port or 8265}", origin)
