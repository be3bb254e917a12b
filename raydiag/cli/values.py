"""Values of options as the command line has them: numbers in limits, times, ports, names."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable

_LATEST_S = 1e11  # a time beyond it is not in seconds
_LONGEST_SPAN_S = 366 * 86_400.0
_MOST_PORT = 65535
_MOST_DIGITS = 9

LOG_END = "log-end"


def seconds(least: float, limit: float) -> Callable[[str], float]:
    """A reader of numbers of seconds from `least` to `limit`."""

    def _read(text: str) -> float:
        value = _number(text)
        if not least <= value <= limit:
            limits = f"{least:g} to {limit:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {limits}")
        return value

    return _read


def add_seconds(
    parser: argparse.ArgumentParser,
    name: str,
    limits: tuple[float, float],
    default: float | None,
    words: str,
) -> None:
    """An option that takes a number of seconds within limits."""
    kind = seconds(*limits)
    parser.add_argument(name, type=kind, default=default, metavar="S", help=words)


def time_span(text: str) -> float:
    """Seconds of `90`, `90s`, `10m`, `8h` or `1d`."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, unit = text.strip(), "s"
    if number[-1:] in units:
        number, unit = number[:-1], number[-1]
    value = _number(number) * units[unit]
    if not 0 < value <= _LONGEST_SPAN_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 10m or 8h")
    return value


def integer(least: int, limit: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` to `limit`."""

    def _read(text: str) -> int:
        if not _is_whole(text) or not least <= int(text) <= limit:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {limit}")
        return int(text)

    return _read


def port(text: str) -> int:
    """A TCP port."""
    if not _is_whole(text) or not 0 < int(text) <= _MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def listen_address(text: str) -> tuple[str, int]:
    """ADDR:PORT, [IPV6]:PORT or :PORT, which is every address."""
    address, colon, port_text = text.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address:
        raise argparse.ArgumentTypeError(f"{text!r}: write an IPv6 address as [ADDR]:PORT")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not ADDR:PORT")
    return address or "0.0.0.0", port(port_text)


def names(text: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def moment(text: str) -> float:
    """Unix seconds or ISO 8601 (UTC where it has no zone), as Unix seconds."""
    value = _number(text)
    if math.isnan(value):
        value = _iso_8601(text)
    if not 0 <= value < _LATEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in Unix seconds")
    return value


def moment_or_log_end(text: str) -> float | str:
    """As `moment`, or `log-end`."""
    if text == LOG_END:
        return text
    try:
        return moment(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or {LOG_END}") from None


def _iso_8601(text: str) -> float:
    from datetime import datetime, timezone

    try:
        # Python before 3.11 does not read Z, which stands for UTC.
        parsed = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: give Unix seconds or ISO 8601"
        ) from None
    return parsed.replace(tzinfo=parsed.tzinfo or timezone.utc).timestamp()


def _number(text: str) -> float:
    """NaN for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
