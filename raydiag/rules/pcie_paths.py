"""Which links lie between a device and the root port, and which device their faults belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from raydiag.probes.pcie import PcieFunction
from raydiag.rules.grades import known


@dataclass(frozen=True)
class PcieLink:
    """A link with its lower and, where it can be seen, its upper end; what it runs at and could."""

    lower: PcieFunction
    upper: PcieFunction | None
    level: int  # steps from the device up to its lower end: 0, 2, ...
    models: tuple[str, ...]  # of the devices that it serves

    def least(self, quantity: str) -> float | None:
        """The smaller one of what both ends say: `width`, `max_width` (lanes), `speed_gts`, ...

        A wide card in a narrow slot runs at its best.
        """
        return min(known(map(attrgetter(quantity), self.ends)), default=None)

    @property
    def ends(self) -> list[PcieFunction]:
        """The lower end, and the upper one where it can be seen."""
        return [self.lower, self.upper] if self.upper else [self.lower]

    @property
    def is_shown(self) -> bool:
        """Whether the lower end shows it: what its bridge shows alone need not be its own."""
        return not _shows_no_link(self.lower)

    @property
    def upper_end_is_known(self) -> bool:
        """Whether the upper end says what it supports."""
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

    def addresses_below(self, top: PcieFunction) -> set[str]:
        """Of the function itself and of every one that is reached through it."""
        functions = self.functions.items()
        return {address for address, function in functions if top in self.path(function)}

    def bearer(self, function: PcieFunction) -> PcieFunction:
        """The device to blame: the only one behind it, or the only GPU, else the function."""
        devices = self._devices_behind(function)
        cards = {_slot(device): device for device in devices}
        if len(cards) == 1:
            return devices[0]
        gpus = [device for device in cards.values() if device.kind == "gpu"]
        return gpus[0] if len(gpus) == 1 else function

    def _devices_behind(self, function: PcieFunction) -> list[PcieFunction]:
        if function.kind != "bridge":
            return [function]
        return self.devices.get(function.address, [])

    def links(self) -> Iterator[PcieLink]:
        """Every link once, those of devices first.

        Two bridges in a row are the two sides of one switch, with no link between them: so from
        the device up, every other step is a link. Of the functions of one card one shows its
        link: another than a virtual one, where there is another.
        """
        seen_ends = set()
        for device in sorted(self.functions.values(), key=_shows_no_link):
            path = self.path(device)
            for level in range(0, len(path), 2):
                lower, *above = path[level : level + 2]
                if device.kind == "bridge" or _end(lower) in seen_ends:
                    continue
                seen_ends.add(_end(lower))
                models = set(map(attrgetter("model"), self._devices_behind(lower)))
                yield PcieLink(lower, next(iter(above), None), level, tuple(sorted(models)))

    def link_names(self) -> Mapping[str, str]:
        """By address of a function, the name of the link that it is an end of."""
        name_of_end = {}
        for link in self.links():
            for end in link.ends:
                name_of_end[_end(end)] = _end(link.lower)
        functions = self.functions.items()
        return {address: name_of_end.get(_end(end), address) for address, end in functions}


def _end(function: PcieFunction) -> str:
    """What functions at the end of one link have in common: the slot of a card.

    Each function of a bridge has a link of its own.
    """
    return function.address if function.kind == "bridge" else _slot(function)


def _slot(function: PcieFunction) -> str:
    """The PCI address without the function's number."""
    return function.address.rpartition(".")[0]


def _shows_no_link(function: PcieFunction) -> bool:
    """Virtual functions, marked or (in a virtual machine) not, and devices that do not answer."""
    unknown = function.width is None and function.max_width is None
    return function.virtual_function or function.odd_width is not None or unknown
