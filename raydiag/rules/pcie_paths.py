"""Which links lie between a device and the root port, and whose faults theirs are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional, TypeVar

from raydiag.probes.pcie import PcieFunction

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class PcieLink:
    """A link with its lower and, where it can be seen, its upper end; what it runs at and could."""

    lower: PcieFunction
    upper: Optional[PcieFunction]
    level: int  # steps from the device up to its lower end: 0, 2, ...
    models: tuple[str, ...]  # of the devices that it serves

    @property
    def width(self) -> Optional[int]:
        """Lanes in use."""
        return _least([end.width for end in self.ends])

    @property
    def max_width(self) -> Optional[int]:
        """Lanes that both ends have: a wide card in a narrow slot runs at its best."""
        return _least([end.max_width for end in self.ends])

    @property
    def speed_gts(self) -> Optional[float]:
        return _least([end.speed_gts for end in self.ends])

    @property
    def max_speed_gts(self) -> Optional[float]:
        return _least([end.max_speed_gts for end in self.ends])

    @property
    def ends(self) -> list[PcieFunction]:
        return [self.lower, self.upper] if self.upper else [self.lower]

    @property
    def is_shown(self) -> bool:
        """Whether the lower end shows it: what its bridge shows alone need not be its own."""
        return not _shows_no_link(self.lower)

    @property
    def upper_end_is_known(self) -> bool:
        return self.upper is not None and self.upper.max_width is not None


class PciePaths:
    """The PCIe functions of one machine by address, and the devices that each leads to."""

    def __init__(self, functions: Sequence[PcieFunction]) -> None:
        self.functions = {function.address: function for function in functions}
        self.devices: dict[str, list[PcieFunction]] = {}
        for function in functions:
            if function.kind != "bridge":
                for above in self.path(function):
                    self.devices.setdefault(above.address, []).append(function)

    def path(self, function: PcieFunction) -> list[PcieFunction]:
        """From the function itself up to the root port."""
        path = [function]
        while (above := self.functions.get(path[-1].above)) and above not in path:
            path.append(above)
        return path

    def below(self, top: PcieFunction) -> list[PcieFunction]:
        """The function itself and every one that is reached through it."""
        return [one for one in self.functions.values() if top in self.path(one)]

    def bearer(self, function: PcieFunction) -> PcieFunction:
        """Whose fault it is to call: the only device behind it, or the only GPU, else its own."""
        devices = {one.address.rpartition(".")[0]: one for one in self._of(function)}
        if len(devices) == 1:
            return next(iter(self._of(function)))
        gpus = [one for one in devices.values() if one.kind == "gpu"]
        return gpus[0] if len(gpus) == 1 else function

    def _of(self, function: PcieFunction) -> list[PcieFunction]:
        if function.kind != "bridge":
            return [function]
        return self.devices.get(function.address, [])

    def links(self) -> Iterator[PcieLink]:
        """Every link once, those of devices first.

        Two bridges in a row are the two sides of one switch, with no link between them: so from
        the device up, every other step is a link. Of the functions of one card one shows its
        link: another than a virtual one, where there is another.
        """
        seen = set()
        for device in sorted(self.functions.values(), key=_shows_no_link):
            path = [] if device.kind == "bridge" else self.path(device)
            for level in range(0, len(path), 2):
                lower, upper = path[level], path[level + 1] if level + 1 < len(path) else None
                if _end(lower) not in seen:
                    seen.add(_end(lower))
                    models = tuple(sorted({one.model for one in self._of(lower)}))
                    yield PcieLink(lower, upper, level, models)

    def link_names(self) -> Mapping[str, str]:
        """By address of a function, what tells the link apart that it is an end of."""
        links = {_end(end): _end(link.lower) for link in self.links() for end in link.ends}
        return {
            address: links.get(_end(function), address)
            for address, function in self.functions.items()
        }


def _end(function: PcieFunction) -> str:
    """What functions at the end of one link have in common: the slot of a card.

    Each function of a bridge has a link of its own.
    """
    address = function.address
    return address if function.kind == "bridge" else address.rpartition(".")[0]


def _shows_no_link(function: PcieFunction) -> bool:
    """Virtual functions, marked or (in a virtual machine) not, and devices that do not answer."""
    unknown = function.width is None and function.max_width is None
    return function.virtual_function or function.odd_width is not None or unknown


def _least(values: Sequence[Optional[_Number]]) -> Optional[_Number]:
    return min((value for value in values if value is not None), default=None)
