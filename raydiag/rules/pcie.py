"""PCIe links of GPUs and RDMA devices: narrowed or slow ones, and errors that are growing now.

A fault is that of the device, also where only the bridge above shows it. Totals since boot decide
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from raydiag.model import Confidence, Evidence, Finding, Severity, Snapshot
from raydiag.probes.pcie import ALL_ONES, PcieFunction
from raydiag.rules.gpu_readings import every_gpu
from raydiag.rules.grades import confirmed_if, warning_if
from raydiag.rules.growth import growth, known
from raydiag.rules.machines import Machine, Samples, machines
from raydiag.rules.pcie_paths import PcieLink, PciePaths

_KINDS = ("correctable", "nonfatal", "fatal")
_ROOT_PORT_FILES = {"correctable": "cor", "nonfatal": "nonfatal", "fatal": "fatal"}

_Samples = Samples[PcieFunction]


@dataclass(frozen=True)
class _GrownErrors:
    """AER errors of one kind that one function counted between the samples."""

    function: PcieFunction
    source: str
    count: int
    seconds: float


@dataclass(frozen=True)
class _MachineLink:
    """A PCIe link with its machine."""

    machine: Machine
    paths: PciePaths
    link: PcieLink

    @property
    def bearer(self) -> PcieFunction:
        """The device whose fault a fault of this link is."""
        return self.paths.bearer(self.link.lower)


@dataclass(frozen=True)
class _Alike:
    """Links that are alike, one of them the one to judge."""

    count: int
    best: float  # what the best of them runs at


def growing_link_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """AER counters that grew between the two samples of this run.

    One corrected error is a note: in a large cluster somewhere there is always one. Both ends of a
    link, and all functions of a card, may count the same one.
    """
    for machine in machines(snapshot):
        samples = machine.samples(PcieFunction)
        paths = PciePaths(list(map(attrgetter("first"), samples)))
        for kind in _KINDS:
            by_bearer: dict[str, list[_GrownErrors]] = {}
            for errors in _grown_errors(samples, paths, kind):
                bearer = paths.bearer(errors.function).address
                by_bearer.setdefault(bearer, []).append(errors)
            for address, errors_of_bearer in by_bearer.items():
                bearer_function = paths.functions[address]
                yield _growth_finding(machine, paths, bearer_function, kind, errors_of_bearer)


def _growth_finding(
    machine: Machine,
    paths: PciePaths,
    bearer: PcieFunction,
    kind: str,
    all_errors: Sequence[_GrownErrors],
) -> Finding:
    link_names = paths.link_names()
    per_link: dict[str, int] = {}
    evidence = []
    for errors in all_errors:
        link = link_names[errors.function.address]
        per_link[link] = max(errors.count, per_link.get(link, 0))
        text = f"{errors.count} {kind} errors within {errors.seconds:.1f} s"
        evidence.append(machine.evidence(errors.source, text, float(errors.count)))
    is_single = kind == "correctable" and sum(per_link.values()) == 1
    return Finding(
        "pcie-fatal" if kind == "fatal" else "pcie-degraded",
        host=machine.name,
        gpu=bearer.gpu,
        device=bearer.address,
        severity=Severity.INFO if is_single else None,
        evidence=(*evidence, *_device_evidence(bearer, paths)),
    )


def _grown_errors(
    samples: Sequence[_Samples], paths: PciePaths, kind: str
) -> Iterator[_GrownErrors]:
    """What has grown. A root port also counts the messages from below it.

    Those are the same errors once more, so they count only where no other counter shows them.
    """
    grown_addresses = set()
    for pair in samples:
        count = _growth_of(pair, kind)
        if count:
            address = pair.first.address
            grown_addresses.add(address)
            yield _GrownErrors(pair.first, f"aer_dev_{kind} of {address}", count, pair.seconds)
    for pair in samples:
        count = _growth_of(pair, f"received_{kind}")
        if count and paths.addresses_below(pair.first).isdisjoint(grown_addresses):
            name = f"aer_rootport_total_err_{_ROOT_PORT_FILES[kind]}"
            yield _GrownErrors(pair.first, f"{name} of {pair.first.address}", count, pair.seconds)


def _growth_of(samples: _Samples, field: str) -> int | None:
    return growth(getattr(samples.first, field), getattr(samples.later, field))


def degraded_links(snapshot: Snapshot) -> Iterator[Finding]:
    """Links that are dead, or run with fewer lanes, or more slowly, than both of their ends can.

    Not where every link like it does the same: then it is wired or set so. A GPU may lower the
    speed of its link while it idles, never the width: its speed counts under load alone.
    """
    all_paths = []
    for machine in machines(snapshot):
        all_paths.append((machine, PciePaths(machine.records(PcieFunction))))
    yield from _dead_links(all_paths)
    links = list(_shown_links(all_paths))
    widths, speeds = _LinkComparison(links, "width"), _LinkComparison(links, "speed_gts")
    loaded_gpus = {gpu.key for gpu in every_gpu(snapshot) if gpu.loaded}
    for each in links:
        width, max_width = each.link.width, each.link.max_width
        if width is not None and max_width is not None and width < max_width:
            text = f"x{width}, x{max_width} is possible"
            yield _link_finding(each, text, width, widths.alike(each.link))
        speed, max_speed = each.link.speed_gts, each.link.max_speed_gts
        if speed is None or max_speed is None or speed >= max_speed:
            continue
        alike = speeds.alike(each.link)
        works = (each.machine.name, each.bearer.address) in loaded_gpus and alike.best > speed
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
                yield _dead_link_finding(machine, paths, function)


def _dead_link_finding(machine: Machine, paths: PciePaths, function: PcieFunction) -> Finding:
    text = f"{function.odd_width}: no lanes; others of its model ({function.model}) have some"
    evidence = machine.evidence(f"current_link_width of {function.address}", text)
    return Finding(
        "pcie-link-down",
        host=machine.name,
        gpu=function.gpu,
        device=function.address,
        severity=Severity.CRITICAL,
        confidence=Confidence.LIKELY,
        title="A PCIe device does not answer",
        evidence=(evidence, *_device_evidence(function, paths)),
        explanation="A device that is switched off to save power looks the same.",
    )


class _LinkComparison:
    """Widths or speeds of all links, by what makes links alike."""

    def __init__(self, links: Iterable[_MachineLink], quantity: str) -> None:
        self._values: dict[Hashable, list[float]] = {}
        for each in links:
            for key in self._keys(each.link):
                values = self._values.setdefault(key, [])
                values += known([getattr(each.link, quantity)])

    def alike(self, link: PcieLink) -> _Alike:
        """The links that are like this one.

        The same slot of other machines knows best; where there is none, links of the same model.
        """
        same_slot, same_model = (self._values[key] for key in self._keys(link))
        values = same_slot if len(same_slot) > 1 else same_model
        return _Alike(len(values), max(values))

    @staticmethod
    def _keys(link: PcieLink) -> tuple[Hashable, Hashable]:
        model = (link.level, link.models)
        return (*model, link.lower.address), model


def _link_finding(each: _MachineLink, text: str, value: float, alike: _Alike) -> Finding:
    """A warning where others like it do better, or nothing else can be the reason."""
    link, bearer, reason = each.link, each.bearer, ""
    if alike.count > 1 and alike.best <= value:
        reason = f"All {alike.count} links like it run no better: it is wired or set so."
    elif alike.count == 1 and not link.upper_end_is_known:
        reason = "What it is connected to cannot be seen here, and may not be able to do more."
    ends = " below ".join(map(attrgetter("address"), link.ends))
    evidence = each.machine.evidence(f"link of {ends}", text, float(value))
    return Finding(
        "pcie-degraded",
        host=each.machine.name,
        gpu=bearer.gpu,
        device=bearer.address,
        severity=warning_if(not reason),
        confidence=confirmed_if(link.upper_end_is_known),
        title="PCIe link narrower or slower than both ends support",
        evidence=(evidence, *_device_evidence(bearer, each.paths)),
        explanation=reason,
    )


def _device_evidence(bearer: PcieFunction, paths: PciePaths) -> Iterator[Evidence]:
    """The name of a device, or what lies behind a bridge that several devices share."""
    if bearer.kind == "rdma":
        yield Evidence(f"/sys/class/infiniband of {bearer.address}", f"RDMA device {bearer.name}")
    elif bearer.kind == "bridge":
        devices = paths.devices.get(bearer.address, [])
        behind = ", ".join(f"{device.name} {device.address}" for device in devices)
        yield Evidence(f"PCI devices below {bearer.address}", behind)
