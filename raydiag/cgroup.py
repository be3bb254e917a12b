"""Control groups: where our own one is, and its control files.

Source: cgroups(7); kernel documentation, cgroup-v1, cgroup-v2, accounting/psi
"""

from __future__ import annotations

from typing import Optional

from raydiag.errors import ParseError
from raydiag.host import OptionalFiles, is_digits

ROOT = "/sys/fs/cgroup"


class ControlFiles(OptionalFiles):
    """Values of control groups; a file that does not exist is empty."""

    def text(self, path: str) -> str:
        """The file's text; empty when there is no such file."""
        return self.value(path, str) or ""

    def integer(self, path: str, unlimited: str = "") -> Optional[int]:
        """The number in a file; None where there is none, or where it says `unlimited`."""
        text = self.text(path)
        if is_number(text):
            return int(text)
        if text not in ("", unlimited):
            self.malformed(path, ParseError(f"not a number: {text[:80]!r}"))
        return None

    def numbers(self, path: str) -> dict[str, int]:
        """The numbers in a file, see `parse_numbers`."""
        return parse_numbers(self.text(path))

    def pressure(self, paths: dict[str, str]) -> dict[str, float]:
        """All averages of files by resource; none where the kernel has PSI switched off."""
        averages: dict[str, float] = {}
        for resource, path in paths.items():
            try:
                averages.update(parse_pressure(resource, self.text(path)))
            except ParseError as error:
                self.malformed(path, error)
        return averages

    def unified(self, controller: str) -> str:
        """Where version 2 is mounted with a controller; on hybrid hosts it is there without any."""
        for mount in (ROOT, f"{ROOT}/unified"):
            if controller in self.text(f"{mount}/cgroup.controllers").split():
                return mount
        return ""

    def levels(self, mount: str, controller: str) -> list[str]:
        """Directories of our group and of its visible ancestors, innermost first.

        `controller` is "" for version 2. In a container the mount root usually is our group, while
        the path is the host's (or starts with `..`, outside of our cgroup namespace): a path that
        does not exist means the mount root.
        """
        path = own_path(self.text("/proc/self/cgroup"), controller)
        parts = list(filter(None, path.split("/")))
        if ".." in parts or not self.host.exists("/".join([mount, *parts])):
            parts = []
        return ["/".join([mount, *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def own_path(text: str, controller: str) -> str:
    """Our group as /proc/self/cgroup names it: `4:memory:/path` in version 1, `0::/path` in 2."""
    for line in text.split("\n"):
        controllers, _, path = line.partition(":")[2].partition(":")
        if path and controller in controllers.split(","):  # version 2 names none
            return path
    return "/"


def parse_numbers(text: str) -> dict[str, int]:
    """`key number` and `key: number unit` lines; other lines are left out."""
    numbers = {}
    for line in text.split("\n"):
        words = line.split()
        if len(words) > 1 and is_number(words[1]):
            numbers[words[0].rstrip(":")] = int(words[1])
    return numbers


def parse_pressure(resource: str, text: str) -> dict[str, float]:
    """Percentages of `some avg10=0.89 avg60=...` lines, keyed "<resource>_some_avg10".

    Raises ParseError when an average is not a number.
    """
    averages = {}
    for line in text.split("\n"):
        words = line.split()
        for word in words[1:]:
            key, _, value = word.partition("=")
            if key.startswith("avg"):
                if not is_number(value.replace(".", "", 1)):
                    raise ParseError(f"not a percentage: {line[:80]!r}")
                averages[f"{resource}_{words[0]}_{key}"] = float(value)
    return averages


def parse_pressure_totals(text: str) -> dict[str, int]:
    """Microseconds since boot of `some ... total=4308932` lines, keyed "some" and "full"."""
    totals = {}
    for line in text.split("\n"):
        kind, _, values = line.partition(" ")
        value = values.rpartition(" total=")[2]
        if is_number(value):
            totals[kind] = int(value)
    return totals


def is_number(text: str) -> bool:
    """Whether a text is a plain number of at most 20 digits."""
    return len(text) <= 20 and is_digits(text)
