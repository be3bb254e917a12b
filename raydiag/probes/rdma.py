"""Ports of RDMA network cards: link state, rate, and counters of ionic, mlx5 and bnxt_re.

A read may query the card's firmware, so only useful counters are read, and
those of one port in a row: the kernel answers hw_counters from one query for some milliseconds.
After the first file that fails nothing more of a device is read. Some cards, such as those that a
fabric manager has taken over, refuse every query, and their driver logs each refusal.

Source: /sys/class/infiniband/<device>/ports/<port>/{state,phys_state,rate,link_layer},
{counters,hw_counters}/*, gid_attrs/ndevs/0; <device>/device/{driver,physfn,net} (kernel
documentation, ABI sysfs-class-infiniband). Samples:

    4: ACTIVE
    5: LinkUp
    400 Gb/sec (4X NDR)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional, TypeVar, Union

from raydiag.amdgpu import pci_addresses
from raydiag.errors import NoData, ParseError, ReadError
from raydiag.host import Host, is_digits
from raydiag.model import Status, Unread
from raydiag.probes import probe
from raydiag.rdma_names import HARDWARE_COUNTERS, STANDARD_COUNTERS, UNITS_OF_4_BYTES

_T = TypeVar("_T")

DIRECTORY = "/sys/class/infiniband"

_STATES = frozenset(("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"))
_UNSUPPORTED = 1 << 63  # and above: the firmware's -1, printed without its sign


@dataclass(frozen=True)
class RdmaPort:
    device: str  # "ionic_0", "mlx5_0", "bnxt_re0"
    port: int  # from 1
    driver: str  # of the PCI device: "ionic", "mlx5_core", "bnxt_en"; "" software, or hidden
    address: str  # PCI address, e.g. "0000:06:00.0"; "" without one
    virtual_function: bool  # one of the cards that SR-IOV makes of one
    netdev: str  # its network interface; "" none, or in another network namespace
    link_layer: str  # "Ethernet" (RoCE), "InfiniBand"; "" unknown
    state: str  # "ACTIVE", "DOWN", "INIT", ... (logical); "" unknown
    phys_state: str  # "LinkUp", "Disabled", "Polling", ...; "" unknown
    rate_gbits_per_s: Optional[float]  # 10^9 bits a second; of a port that is down it means nothing
    width: str  # lanes and speed of a lane, "4X NDR"; "" unknown
    counters: dict[str, int]  # since the driver was loaded; port_*_data_bytes are 4 x port_*_data

    @property
    def key(self) -> tuple[str, int]:
        """Device and port."""
        return self.device, self.port


def rdma_devices(host: Host) -> Sequence[str]:
    """The directory of each RDMA device, by name. Raises NoData without any."""
    devices = [f"{DIRECTORY}/{name}" for name in host.listdir(DIRECTORY)]
    if not devices:
        raise NoData("no RDMA device")
    return devices


def has_counted(port: RdmaPort) -> bool:
    """Whether it has lost or refused anything since the driver was loaded; traffic aside."""
    return any(count and not _is_traffic(name) for name, count in port.counters.items())


def _is_traffic(name: str) -> bool:
    notice = "cnp" in name or "ecn" in name  # how congestion control works
    return notice or (name.endswith(("_bytes", "_pkts", "_packets")) and "retx" not in name)


@probe(RdmaPort, identity=("device", "port"), sources=rdma_devices, samples=2, watch=has_counted)
def rdma(host: Host, source: str) -> Iterator[Union[RdmaPort, Unread]]:
    """One record per port of one device, by number; a counter that is not there is not in it.

    One Unread for a device that refuses, another one for what does not hold what it should. Raises
    NoData for a device without ports.
    """
    files = PortFiles(host)
    ports = sorted(host.numbers(f"{source}/ports"))
    if not ports:
        raise NoData(f"{source}: no ports")
    address, driver = _pci_address(host, source), ""
    with contextlib.suppress(ReadError):
        driver = host.readlink(f"{source}/device/driver").rsplit("/", 1)[-1]
    virtual = host.exists(f"{source}/device/physfn")
    for port in ports:
        directory = f"{source}/ports/{port}"
        state = files.state(f"{directory}/state")
        if files.failure is not None:
            break
        rate, width = files.rate(f"{directory}/rate")
        yield RdmaPort(
            device=source.rsplit("/", 1)[-1],
            port=port,
            driver=driver,
            address=address,
            virtual_function=virtual,
            netdev=_netdev(host, source, port, len(ports)),
            link_layer=files.text(f"{directory}/link_layer"),
            state=state if state in _STATES else "",
            phys_state=files.state(f"{directory}/phys_state"),
            rate_gbits_per_s=rate,
            width=width,
            counters=files.counters(directory),
        )
    unread = list(files.unread(source))
    yield from unread
    if files.failure is not None:
        # Only a source that ends well is read again for the second sample.
        raise NoData(unread[-1].reason)


class PortFiles:
    """Reads files of one device until one fails."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.failure: Optional[ReadError] = None
        self.malformed: list[str] = []

    def text(self, path: str) -> str:
        """Empty for a file that is not there, and after a failure."""
        return self._read(self.host.read_text, path, 4096) or ""

    def _read(self, read: Callable[..., _T], *arguments: Any) -> Optional[_T]:
        if self.failure is None:
            try:
                return read(*arguments)
            except NoData:
                pass
            except ReadError as error:
                self.failure = error
        return None

    def state(self, path: str) -> str:
        """The word in `4: ACTIVE`."""
        text = self.text(path)
        number, _, word = text.partition(":")
        if text and not (number.isdigit() and word.strip()):
            self.malformed.append(f"{path}: not a state: {text[:80]!r}")
            return ""
        return word.strip()

    def rate(self, path: str) -> tuple[Optional[float], str]:
        """Gbit/s and width of `400 Gb/sec (4X NDR)`."""
        text = self.text(path)
        try:
            return parse_rate(text) if text else (None, "")
        except ParseError as error:
            self.malformed.append(f"{path}: {error}")
            return None, ""

    def counters(self, directory: str) -> dict[str, int]:
        """What the port counts, of the names above."""
        counts: dict[str, int] = {}
        for kind, useful in (("hw_counters", HARDWARE_COUNTERS), ("counters", STANDARD_COUNTERS)):
            names = self.names(f"{directory}/{kind}")
            counts.update(self.counts(f"{directory}/{kind}", useful.intersection(names)))
        return counts

    def counts(self, directory: str, names: Iterable[str]) -> dict[str, int]:
        """What some files of a directory count, by name; `port_*_data_bytes` for `port_*_data`."""
        counts: dict[str, int] = {}
        for name in sorted(names):
            try:
                count = parse_count(self.text(f"{directory}/{name}"))
            except ParseError as error:
                self.malformed.append(f"{directory}/{name}: {error}")
                continue
            if count is not None and name in UNITS_OF_4_BYTES:
                counts[f"{name}_bytes"] = 4 * count
            elif count is not None:
                counts[name] = count
        return counts

    def names(self, directory: str) -> Sequence[str]:
        """Sorted names in a directory; none where it is not there, and after a failure."""
        return self._read(self.host.listdir, directory) or []

    def unread(self, source: str) -> Iterator[Unread]:
        """What is to be said of the device: what was malformed, and what ended the reading."""
        if self.malformed:
            yield Unread(source, Status.ERROR, "; ".join(self.malformed[:3]))
        if self.failure is not None:
            reason = f"{self.failure}; nothing more of this device was read"
            yield Unread(source, self.failure.status, reason)


def parse_count(text: str) -> Optional[int]:
    """A counter; None for the ways to say that it does not count: -1 and `N/A (no PMA)`.

    Raises ParseError for anything else that is no number.
    """
    if is_digits(text) and len(text) <= 20:
        return int(text) if int(text) < _UNSUPPORTED else None
    if not text or text.startswith("N/A") or (text[0] == "-" and text[1:].isdigit()):
        return None
    raise ParseError(f"not a count: {text[:80]!r}")


def parse_rate(text: str) -> tuple[float, str]:
    """Gbit/s and width of `400 Gb/sec (4X NDR)`. Raises ParseError."""
    number, _, unit_and_width = text.partition(" ")
    unit, _, width = unit_and_width.partition(" (")
    digits = number.replace(".", "", 1)
    if unit != "Gb/sec" or not is_digits(digits) or len(digits) > 9:
        raise ParseError(f"not a rate: {text[:80]!r}")
    return float(number), width.rstrip(")")


def _pci_address(host: Host, source: str) -> str:
    """Of the device itself, which is the last one in its path; those of bridges stand before it."""
    with contextlib.suppress(ReadError):
        return "".join(pci_addresses(host.realpath(f"{source}/device"))[-1:])
    return ""


def _netdev(host: Host, source: str, port: int, ports: int) -> str:
    """The interface of a port; an empty table of addresses is EINVAL, and no failure."""
    with contextlib.suppress(ReadError):
        names = host.listdir(f"{source}/device/net")
        if len(names) == ports == 1:
            return names[0]
    return host.text_or_empty(f"{source}/ports/{port}/gid_attrs/ndevs/0", 256)
