"""PCIe links of GPUs and RDMA devices: narrowed or slow ones, and errors that are growing now.

A fault is that of the device, also where only the bridge above shows it. Totals since boot decide
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from raydiag.model import Evidence, Finding, Severity, Snapshot
from raydiag.probes.pcie import ALL_ONES, PcieFunction
from raydiag.rules.gpu_outliers import every_gpu
from raydiag.rules.grades import confirmed_if, growth, known, warning_if
from raydiag.rules.machines import Machine, Samples, machines

_ROOT_PORT_FILES = {"correctable": "cor", "nonfatal": "nonfatal", "fatal": "fatal"}
_CLASSES = {"correctable": "pcie-degraded", "nonfatal": "pcie-degraded", "fatal": "pcie-fatal"}

_Samples = Samples[PcieFunction]


@dataclass(frozen=True)
class _GrownErrors:
    """AER errors of one kind that one function counted between the samples."""

    function: PcieFunction
    source: str
    count: int
    seconds: float


class _MachineLink(NamedTuple):
    """A PCIe link with its machine."""

    machine: Machine
    paths: PciePaths
    link: PcieLink

    @property
    def bearer(self) -> PcieFunction:
        """The device whose fault a fault of this link is."""
        return self.paths.bearer(self.link.lower)


def growing_link_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """AER counters that grew between the two samples of this run.

    One corrected error is a note: in a large cluster somewhere there is always one. Both ends of a
    link, and all functions of a card, may count the same one.
    """
    for machine in machines(snapshot):
        samples = machine.samples(PcieFunction)
        paths = PciePaths(list(map(attrgetter("first"), samples)))
        for kind in _CLASSES:
            by_bearer: dict[str, list[_GrownErrors]] = {}
            for errors in _grown_errors(samples, paths, kind):
                bearer = paths.bearer(errors.function).address
                by_bearer.setdefault(bearer, []).append(errors)
            for address, errors_of_bearer in by_bearer.items():
                yield _growth_finding(machine, paths, address, kind, errors_of_bearer)


def _growth_finding(
    machine: Machine, paths: PciePaths, address: str, kind: str, all_errors: Sequence[_GrownErrors]
) -> Finding:
    link_names = paths.link_names()
    per_link: dict[str, int] = {}
    evidence = []
    for errors in all_errors:
        link = link_names[errors.function.address]
        per_link[link] = max(errors.count, per_link.get(link, 0))
        text = f"{errors.count} {kind} errors within {errors.seconds:.1f} s"
        evidence.append(machine.evidence(errors.source, text, float(errors.count)))
    severity = None
    if kind == "correctable" and sum(per_link.values()) == 1:
        severity = Severity.INFO
    bearer = paths.functions[address]
    return _finding(machine, _CLASSES[kind], bearer, paths, *evidence, severity=severity)


def _finding(
    machine: Machine,
    failure_class: str,
    bearer: PcieFunction,
    paths: PciePaths,
    *evidence: Evidence,
    **fields: Any,
) -> Finding:
    fields.update(gpu=bearer.gpu, device=bearer.address)
    return machine.finding(failure_class, *evidence, *_device_evidence(bearer, paths), **fields)


def _grown_errors(
    samples: Sequence[_Samples], paths: PciePaths, kind: str
) -> Iterator[_GrownErrors]:
    """What has grown. A root port also counts the messages from below it.

    Those are the same errors once more, so they count only where no other counter shows them.
    """
    grown_addresses = set()
    for pair in samples:
        for errors in _growth_of(pair, kind, f"aer_dev_{kind}"):
            grown_addresses.add(pair.first.address)
            yield errors
    for pair in samples:
        file = f"aer_rootport_total_err_{_ROOT_PORT_FILES[kind]}"
        for errors in _growth_of(pair, f"received_{kind}", file):
            if paths.addresses_below(pair.first).isdisjoint(grown_addresses):
                yield errors


def _growth_of(samples: _Samples, field: str, file: str) -> Iterator[_GrownErrors]:
    function = samples.first
    if count := growth(getattr(function, field), getattr(samples.later, field)):
        yield _GrownErrors(function, f"{file} of {function.address}", count, samples.seconds)


def degraded_links(snapshot: Snapshot) -> Iterator[Finding]:
    """Links that are dead, or run with fewer lanes, or more slowly, than both of their ends can.

    Not where every link like it does the same: then it is wired or set so. A GPU may lower the
    speed of its link while it idles, never the width: its speed counts under load alone.
    """
    all_paths = [(each, PciePaths(each.records(PcieFunction))) for each in machines(snapshot)]
    yield from _dead_links(all_paths)
    links = list(_shown_links(all_paths))
    widths, speeds = _LinkComparison(links, "width"), _LinkComparison(links, "speed_gts")
    loaded_gpus = {gpu.key for gpu in every_gpu(snapshot) if gpu.loaded}
    for each in links:
        width, max_width = each.link.least("width"), each.link.least("max_width")
        if width is not None and max_width is not None and width < max_width:
            text = f"x{width}, x{max_width} is possible"
            yield _link_finding(each, text, width, widths.alike(each.link))
        speed, max_speed = each.link.least("speed_gts"), each.link.least("max_speed_gts")
        if speed is None or max_speed is None or speed >= max_speed:
            continue
        alike = speeds.alike(each.link)
        works = (each.machine.name, each.bearer.address) in loaded_gpus and max(alike) > speed
        if works or each.bearer.kind != "gpu":
            text = f"{speed:g} GT/s, {max_speed:g} GT/s is possible"
            yield _link_finding(each, text, speed, alike)


def _shown_links(all_paths: Iterable[tuple[Machine, PciePaths]]) -> Iterator[_MachineLink]:
    for machine, paths in all_paths:
        for link in paths.links():
            if link.is_shown:
                yield _MachineLink(machine, paths, link)


def _dead_links(all_paths: Sequence[tuple[Machine, PciePaths]]) -> Iterator[Finding]:
    """Devices that show no lanes, where their like do: of the model, or in the slot elsewhere.

    0 and 255 lanes are also what all devices of a model show in a virtual machine.
    """
    linked: Counter[Hashable] = Counter()
    for machine, paths in all_paths:
        for function in paths.functions.values():
            model, address = function.model, function.address
            if function.width is not None and model:
                linked.update((model, (model, machine.name), (model, address)))
    for machine, paths in all_paths:
        for function in paths.functions.values():
            if function.odd_width is None or function.virtual_function:
                continue
            alike = linked[function.model, machine.name] + linked[function.model, function.address]
            if alike or (function.odd_width == ALL_ONES and linked[function.model]):
                text = f"{function.odd_width}: no lanes; others of its model ({function.model})"
                file = f"current_link_width of {function.address}"
                evidence = machine.evidence(file, f"{text} have some")
                known = {"variant": "no-lanes"}
                yield _finding(machine, "pcie-link-down", function, paths, evidence, **known)


class _LinkComparison:
    """Widths or speeds of all links, by what makes links alike."""

    def __init__(self, links: Iterable[_MachineLink], quantity: str) -> None:
        self._values: dict[Hashable, list[float]] = {}
        for each in links:
            for key in self._keys(each.link):
                values = self._values.setdefault(key, [])
                values += known([each.link.least(quantity)])

    def alike(self, link: PcieLink) -> list[float]:
        """What the links that are like this one, itself among them, run at.

        The same slot of other machines knows best; where there is none, links of the same model.
        """
        same_slot, same_model = map(self._values.__getitem__, self._keys(link))
        return same_slot if len(same_slot) > 1 else same_model

    @staticmethod
    def _keys(link: PcieLink) -> tuple[Hashable, Hashable]:
        model = (link.level, link.models)
        return (*model, link.lower.address), model


def _link_finding(each: _MachineLink, text: str, value: float, alike: list[float]) -> Finding:
    """A warning where others like it do better, or nothing else can be the reason."""
    link, reason = each.link, ""
    if len(alike) > 1 and max(alike) <= value:
        reason = f"All {len(alike)} links like it run no better: it is wired or set so."
    elif len(alike) == 1 and not link.upper_end_is_known:
        reason = "What it is connected to cannot be seen here, and may not be able to do more."
    ends = " below ".join(map(attrgetter("address"), link.ends))
    evidence = each.machine.evidence(f"link of {ends}", text, float(value))
    fields = {
        "severity": warning_if(not reason),
        "confidence": confirmed_if(link.upper_end_is_known),
        "title": "PCIe link narrower or slower than both ends support",
        "explanation": reason,
    }
    return _finding(each.machine, "pcie-degraded", each.bearer, each.paths, evidence, **fields)


def _device_evidence(bearer: PcieFunction, paths: PciePaths) -> Iterator[Evidence]:
    """The name of a device, or what lies behind a bridge that several devices share."""
    if bearer.kind == "rdma":
        yield Evidence(f"/sys/class/infiniband of {bearer.address}", f"RDMA device {bearer.name}")
    elif bearer.kind == "bridge":
        devices = paths.devices.get(bearer.address, [])
        behind = ", ".join(f"{device.name} {device.address}" for device in devices)
        yield Evidence(f"PCI devices below {bearer.address}", behind)


# ---- which links lie between a device and the root port, and whose their faults are


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
