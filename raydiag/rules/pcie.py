"""PCIe links of GPUs and RDMA devices: narrowed or slow ones, and errors that are growing now.

A fault is that of the device, also where only the bridge above shows it. Totals since boot decide
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydiag.model import Confidence, Evidence, Finding, NodeReport, Severity, Snapshot
from raydiag.probes.pcie import ALL_ONES, PcieFunction
from raydiag.rules.gpu_readings import gpu_readings
from raydiag.rules.growth import growth, pairs
from raydiag.rules.nodes import by_host, distinct
from raydiag.rules.pcie_paths import PcieLink, PciePaths

_KINDS = ("correctable", "nonfatal", "fatal")
_ROOT_PORT_FILES = {"correctable": "cor", "nonfatal": "nonfatal", "fatal": "fatal"}


def growing_link_errors(snapshot: Snapshot) -> Iterator[Finding]:
    """AER counters that grew between the two samples of this run.

    One corrected error is a remark: in a large cluster somewhere there is always one. Both ends of
    a link, and all functions of a card, may count the same one.
    """
    for host, reports in by_host(snapshot).items():
        samples = pairs(reports, "pcie", "address")
        paths = PciePaths([first for first, _, _ in samples])
        links = paths.link_names()
        for kind in _KINDS:
            found: dict[str, list[Evidence]] = {}
            errors: dict[str, dict[str, int]] = {}  # by bearer and link
            for function, source, count, seconds in _growth(samples, paths, kind):
                text = f"{count} {kind} errors within {seconds:.1f} s"
                seen = Evidence(source, text, float(count), _time(reports))
                bearer = paths.bearer(function).address
                found.setdefault(bearer, []).append(seen)
                counts, link = errors.setdefault(bearer, {}), links[function.address]
                counts[link] = max(count, counts.get(link, 0))
            for address, evidence in found.items():
                bearer_function = paths.functions[address]
                few = kind == "correctable" and sum(errors[address].values()) == 1
                yield Finding(
                    "pcie-fatal" if kind == "fatal" else "pcie-degraded",
                    host=host,
                    gpu=bearer_function.gpu,
                    device=address,
                    severity=Severity.INFO if few else None,
                    evidence=(*evidence, *_named(bearer_function, paths)),
                )


def _growth(
    samples: Sequence[tuple[Any, Any, float]], paths: PciePaths, kind: str
) -> Iterator[tuple[PcieFunction, str, int, float]]:
    """Function, file, growth, seconds. A root port also counts the messages from below it.

    Those are the same errors once more, so they count only where nothing else tells of them.
    """
    grown = set()
    for first, later, seconds in samples:
        count = growth(getattr(first, kind), getattr(later, kind))
        if count:
            grown.add(first.address)
            yield first, f"aer_dev_{kind} of {first.address}", count, seconds
    for first, later, seconds in samples:
        count = growth(getattr(first, f"received_{kind}"), getattr(later, f"received_{kind}"))
        if count and not any(one.address in grown for one in paths.below(first)):
            name = f"aer_rootport_total_err_{_ROOT_PORT_FILES[kind]}"
            yield first, f"{name} of {first.address}", count, seconds


def degraded_links(snapshot: Snapshot) -> Iterator[Finding]:
    """Links that are dead, or run with fewer lanes, or more slowly, than both of their ends can.

    Not where every link like it does the same: then it is wired or set so. A GPU may lower the
    speed of its link while it idles, never the width: its speed counts under load alone.
    """
    nodes = {
        host: (PciePaths(distinct(reports, "pcie", "address")), _time(reports))
        for host, reports in by_host(snapshot).items()
    }
    yield from _dead_links(nodes)
    places = [
        _Place(host, link, paths, time)
        for host, (paths, time) in nodes.items()
        for link in paths.links()
        if link.is_shown
    ]
    readings = gpu_readings(snapshot).values()
    loaded = {(gpu.host, gpu.address) for gpus in readings for gpu in gpus if gpu.loaded}
    widths = _Usual((place.link, place.link.width) for place in places)
    speeds = _Usual((place.link, place.link.speed_gts) for place in places)
    for place in places:
        link, bearer = place.link, place.paths.bearer(place.link.lower)
        width, most = link.width, link.max_width
        if width is not None and most is not None and width < most:
            text = f"x{width}, x{most} is possible"
            yield _finding(place, bearer, text, width, *widths.of(link))
        speed, fastest = link.speed_gts, link.max_speed_gts
        if speed is None or fastest is None or speed >= fastest:
            continue
        alike, best = speeds.of(link)
        works = (place.host, bearer.address) in loaded and best > speed
        if works or bearer.kind != "gpu":
            text = f"{speed:g} GT/s, {fastest:g} GT/s is possible"
            yield _finding(place, bearer, text, speed, alike, best)


def _dead_links(nodes: Mapping[str, tuple[PciePaths, float | None]]) -> Iterator[Finding]:
    """Devices that show no lanes, where their like do: of the model, or in the slot elsewhere.

    0 and 255 lanes are also what all devices of a model show in a virtual machine.
    """
    linked: Counter[Hashable] = Counter()
    for host, (paths, _) in nodes.items():
        for one in paths.functions.values():
            if one.width is not None and one.model:
                linked.update((one.model, (one.model, host), (one.model, one.address)))
    for host, (paths, time) in nodes.items():
        for one in paths.functions.values():
            if one.odd_width is None or one.virtual_function:
                continue
            alike = linked[one.model, host] + linked[one.model, one.address]
            if not (alike or (one.odd_width == ALL_ONES and linked[one.model])):
                continue
            text = f"{one.odd_width}: no lanes; others of its model ({one.model}) have some"
            seen = Evidence(f"current_link_width of {one.address}", text, time=time)
            yield Finding(
                "pcie-link-down",
                host=host,
                gpu=one.gpu,
                device=one.address,
                severity=Severity.CRITICAL,
                confidence=Confidence.LIKELY,
                title="A PCIe device does not answer",
                evidence=(seen, *_named(one, paths)),
                explanation="A device that is switched off to save power looks the same.",
            )


def _time(reports: Sequence[NodeReport]) -> float | None:
    return reports[0].collected_at or None


@dataclass(frozen=True)
class _Place:
    host: str
    link: PcieLink
    paths: PciePaths
    time: float | None


class _Usual:
    """How many links are alike, and what the best of them runs at."""

    def __init__(self, values: Iterable[tuple[PcieLink, float | None]]) -> None:
        seen: dict[Hashable, list[float]] = {}
        for link, value in values:
            for key in self._keys(link):
                if value is not None:
                    seen.setdefault(key, []).append(value)
        self._best = {key: (len(some), max(some)) for key, some in seen.items()}

    def of(self, link: PcieLink) -> tuple[int, float]:
        """Number of links, this one among them, and the best value.

        The same slot of other machines knows best; where there is none, links of the same model.
        """
        slot, model = (self._best[key] for key in self._keys(link))
        return slot if slot[0] > 1 else model

    @staticmethod
    def _keys(link: PcieLink) -> tuple[Hashable, Hashable]:
        model = (link.level, link.models)
        return (*model, link.lower.address), model


def _finding(
    place: _Place, bearer: PcieFunction, text: str, value: float, alike: int, best: float
) -> Finding:
    """A warning where others like it do better, or nothing else can be the reason."""
    link, why = place.link, ""
    if alike > 1 and best <= value:
        why = f"All {alike} links like it run no better: it is wired or set so."
    elif alike == 1 and not link.upper_end_is_known:
        why = "What it is connected to cannot be seen here, and may not be able to do more."
    ends = " below ".join(end.address for end in link.ends)
    seen = Evidence(f"link of {ends}", text, float(value), place.time)
    return Finding(
        "pcie-degraded",
        host=place.host,
        gpu=bearer.gpu,
        device=bearer.address,
        severity=Severity.INFO if why else Severity.WARNING,
        confidence=Confidence.CONFIRMED if link.upper_end_is_known else Confidence.LIKELY,
        title="A PCIe link is narrower or slower than it can be",
        evidence=(seen, *_named(bearer, place.paths)),
        explanation=why,
    )


def _named(bearer: PcieFunction, paths: PciePaths) -> Iterator[Evidence]:
    """What a device is called, or what lies behind a bridge that several devices share."""
    if bearer.kind == "rdma":
        yield Evidence(f"/sys/class/infiniband of {bearer.address}", f"RDMA device {bearer.name}")
    elif bearer.kind == "bridge":
        devices = paths.devices.get(bearer.address, [])
        behind = ", ".join(f"{one.name} {one.address}" for one in devices)
        yield Evidence(f"PCI devices below {bearer.address}", behind)
