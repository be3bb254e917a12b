"""Ports of RDMA cards: state, traffic, retransmissions, congestion.

Where a port has the directory `counters`, that is where its traffic is taken from, and a counter
that is missing there stands at 0; hw_counters only have what the driver knows. Drivers differ in
names: those of mlx5 and bnxt_re stand beside ionic's where they mean the same.

A card that refuses the first counter of a directory refuses them all, and its driver logs each
refusal: then the directory is left alone.

Source: see `raydiag.probes.rdma`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from raydiag.exporter.metrics import REGISTRY
from raydiag.exporter.plugins import Collected, Sample, plugin
from raydiag.exporter.reading import NodeFiles
from raydiag.probes.rdma import PortFiles, rdma_devices
from raydiag.rdma_names import STANDARD_TRAFFIC, SYNONYMS, UNITS_OF_4_BYTES, all_files

_OTHERS = [quantity for quantity in SYNONYMS if quantity not in STANDARD_TRAFFIC]
_HARDWARE = [quantity for quantity in _OTHERS if f"hw_rdma_{quantity}_total" in REGISTRY]
_STANDARD_FILES = frozenset(STANDARD_TRAFFIC.values())
_TRAFFIC_FILES = all_files(STANDARD_TRAFFIC)
_HARDWARE_FILES = all_files(_HARDWARE)


@plugin(timeout_s=3.0, sources=rdma_devices)
def collect(host: NodeFiles, source: str) -> Collected:
    """The ports of one device. After a file that fails nothing more of it is read this time."""
    files = PortFiles(host)
    device = source.rpartition("/")[2]
    for port in files.names(f"{source}/ports"):
        if port.isascii() and port.isdigit():
            for quantity, value in _port(host, files, f"{source}/ports/{port}").items():
                yield Sample(f"hw_rdma_{quantity}", {"device": device, "port": port}, value)
    yield from files.unread(source)


def _port(host: NodeFiles, files: PortFiles, directory: str) -> dict[str, int]:
    """Values by what follows hw_rdma_ in the metric's name."""
    values: dict[str, int] = {}
    state = files.state(f"{directory}/state")
    if state:
        values["port_state"] = int("ACTIVE" in state)
    names = files.names(f"{directory}/counters")
    standard = _counts(host, files, f"{directory}/counters", _STANDARD_FILES.intersection(names))
    counter_names = _HARDWARE_FILES if names else _HARDWARE_FILES | _TRAFFIC_FILES
    present = counter_names.intersection(files.names(f"{directory}/hw_counters"))
    hardware = _counts(host, files, f"{directory}/hw_counters", present)
    for quantity, file in STANDARD_TRAFFIC.items():
        other_names = SYNONYMS[quantity]
        key = f"{file}_bytes" if file in UNITS_OF_4_BYTES else file
        value = standard.get(key, _first(hardware, other_names))
        # A file that is there and gave no number, or was not read, does not stand at 0.
        is_zero = files.failure is None and file not in names and present.isdisjoint(other_names)
        if value is not None or is_zero:
            values[f"{quantity}_total"] = value or 0
    for quantity in _HARDWARE:
        value = _first(hardware, SYNONYMS[quantity])
        if value is not None:
            values[f"{quantity}_total"] = value
    return values


def _counts(
    host: NodeFiles, files: PortFiles, directory: str, names: frozenset[str]
) -> dict[str, int]:
    before = len(host.left_alone)
    counts = files.counts(directory, names)
    if not counts and len(host.left_alone) > before:
        host.left_alone.add(directory)
    return counts


def _first(counts: Mapping[str, int], names: Sequence[str]) -> Optional[int]:
    return next((counts[name] for name in names if name in counts), None)
