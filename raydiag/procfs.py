"""Files of /proc that several readers understand in the same way.

Source: proc(5): /proc/stat, /proc/<pid>/stat
"""

from __future__ import annotations

from raydiag.errors import NoData, ParseError
from raydiag.host import Host


def boot_time_s(host: Host) -> float:
    """When the node booted, Unix seconds. Raises ParseError when /proc/stat does not say."""
    try:
        text = host.read_text("/proc/stat", 4 << 20)  # interrupt counts of many CPUs come first
    except NoData:
        text = ""
    for line in text.split("\n"):
        name, _, value = line.partition(" ")
        if name == "btime" and _is_integer(value):
            return float(value)
    raise ParseError("/proc/stat: no btime, so times of the kernel have no date")


def split_stat(text: str, path: str) -> tuple[str, list[str]]:
    """Name, and the fields after it (state first), of a stat file. Raises ParseError.

    `4242 (a) b) D 1 ...`: a name may hold anything, so only the last parenthesis ends it.
    """
    name, closed, rest = text.partition("(")[2].rpartition(")")
    values = rest.split()
    if not closed or len(values) < 22 or not all(_is_integer(value) for value in values[1:22]):
        raise ParseError(f"{path}: not a stat file: {text[:80]!r}")
    return name, values


def _is_integer(value: str) -> bool:
    return value.isascii() and value[value.startswith("-") :].isdigit()
