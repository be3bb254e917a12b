"""PCIe links of GPUs and RDMA devices, and of the bridges above them up to the root port.

Either end of a link may count its errors, and only the smaller of the two maxima can be reached, so
the device alone shows only half. A bridge that several devices share is read once.

Source: /sys/bus/pci/drivers/{amdgpu,nvidia}/<address>, /sys/class/infiniband/<name>/device, there
{current,max}_link_{speed,width} and aer_dev_{correctable,nonfatal,fatal}; of a root port also
aer_rootport_total_err_{cor,nonfatal,fatal} (kernel ABI, sysfs-bus-pci and
sysfs-bus-pci-devices-aer_stats). Sample of aer_dev_correctable, cut:

    RxErr 0
    BadTLP 3
    TOTAL_ERR_COR 3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional, Union

from raydiag import amdgpu
from raydiag.amdgpu import DRIVER, hwmon_directories, is_pci_address, pci_addresses
from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.host import Host, OptionalFiles, as_unread, is_digits
from raydiag.model import Status, Unread
from raydiag.probes import probe

_NVIDIA_DRIVER = "/sys/bus/pci/drivers/nvidia"
_INFINIBAND = "/sys/class/infiniband"
# The kernel shows 0, 63 or 255 lanes for virtual functions and for devices that do not answer: 63
# is all ones, which a read gives that nothing answers.
ALL_ONES = 63
_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
_ODD_WIDTHS = frozenset({0, ALL_ONES, 255})


@dataclass(frozen=True)
class PcieFunction:
    address: str  # PCI address, e.g. "0000:c5:00.0"
    kind: str  # "gpu", "rdma" or "bridge" (what lies above those)
    name: str  # "amdgpu" or "nvidia"; names of its RDMA devices, joined by commas; "" of a bridge
    gpu: Optional[int]  # index of an AMD GPU, as in gpu_sensors; NVIDIA's are numbered elsewhere
    model: str  # vendor and device, e.g. "1002:75a0"; "" unknown, and of a bridge
    above: str  # PCI address of the bridge above; "" directly below the host bridge
    speed_gts: Optional[float]  # gigatransfers per second, current_link_speed
    max_speed_gts: Optional[float]  # the same, max_link_speed: what this end of the link can do
    width: Optional[int]  # lanes, current_link_width
    max_width: Optional[int]  # lanes, max_link_width: what this end of the link can do
    correctable: Optional[int]  # AER errors seen at this end since boot; None: no AER
    nonfatal: Optional[int]  # the same, uncorrectable that were survived
    fatal: Optional[int]  # the same, uncorrectable that broke the link
    received_correctable: Optional[int]  # messages from below since boot; None: no root port
    received_nonfatal: Optional[int]  # the same, uncorrectable that were survived
    received_fatal: Optional[int]  # the same, uncorrectable that broke the link
    virtual_function: bool = False  # one that SR-IOV makes of another: it has no link of its own
    odd_width: Optional[int] = None  # current_link_width where it is no width: 0, 63 or 255


def has_counted(function: PcieFunction) -> bool:
    """Whether it has seen AER errors since boot: then they are watched for longer."""
    at_this_end = function.correctable or function.nonfatal or function.fatal
    from_below = function.received_correctable or function.received_nonfatal
    return bool(at_this_end or from_below or function.received_fatal)


@probe(PcieFunction, identity=("address",), timeout_s=4, samples=2, watch=has_counted)
def pcie(host: Host) -> Iterator[Union[PcieFunction, Unread]]:
    """One record per function: GPUs, RDMA devices, then the bridges above them as they are met.

    A file that does not exist leaves its field None; an Unread for each that gave no value. Raises
    NoData without any such device, Denied when they may not be listed.
    """
    listed = _Devices(host)
    if not listed.devices:
        for unread in listed.unread:
            raise Denied(f"{unread.source}: {unread.reason}")
        raise NoData("no GPU and no RDMA device on the PCI bus")
    yield from listed.unread
    files = _FunctionFiles(host)
    bridges: dict[str, str] = {}  # address -> the one above it
    directories: dict[str, str] = {}
    functions = []
    for address, device in listed.devices.items():
        path = pci_addresses(device.path)[:-1]
        for above, below in zip(["", *path], path):
            bridges[below] = above
            directories[below] = device.path[: device.path.index(f"/{below}/") + len(below) + 1]
        functions.append(_function(files, address, device, path[-1] if path else ""))
        yield functions[-1]
    for address, above in bridges.items():
        yield _function(files, address, _Device("bridge", "", None, directories[address]), above)
    yield from files.unread
    yield from _unanswered(functions, listed.devices)


def _unanswered(
    functions: Sequence[PcieFunction], devices: Mapping[str, _Device]
) -> Iterator[Unread]:
    """Devices that show no lanes because they do not answer.

    In a virtual machine virtual functions are not marked; but there all of a model show none.
    """
    linked_models = {function.model for function in functions if function.width is not None}
    for function in functions:
        if function.odd_width is None or function.virtual_function:
            continue
        is_like_linked = function.model and function.model in linked_models
        if function.odd_width == ALL_ONES or is_like_linked:
            path = f"{devices[function.address].path}/current_link_width"
            reason = f"{path}: {function.odd_width} lanes: the device does not answer"
            yield Unread(path, Status.ERROR, reason)


def link_speed_gts(text: str) -> Optional[float]:
    """`32.0 GT/s PCIe` or `8 GT/s` -> 32.0, 8.0; None for "Unknown", which virtual functions say.

    Raises ParseError.
    """
    number, _, unit = text.partition(" ")
    if text.startswith("Unknown"):
        return None
    is_decimal = number[:1].isdigit() and is_digits(number.replace(".", "", 1))
    if not unit.startswith("GT/s") or not is_decimal:
        raise ParseError(f"not a link speed: {text[:80]!r}")
    return float(number)


def aer_total(text: str) -> int:
    """The total in the last line of an aer_dev file; it can differ from the sum of the others.

    Raises ParseError.
    """
    for line in text.split("\n"):
        name, _, count = line.strip().rpartition(" ")
        if name.startswith("TOTAL_ERR_") and is_digits(count):
            return int(count)
    raise ParseError(f"no TOTAL_ERR_ line: {text[-80:]!r}")


class _Device(NamedTuple):
    kind: str
    name: str
    gpu: Optional[int]
    path: str  # its directory, links resolved


class _Devices:
    """GPUs and RDMA devices by PCI address, and what was refused on the way."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.devices: dict[str, _Device] = {}
        self.unread: list[Unread] = []
        for add in (self._amd, self._nvidia, self._rdma):
            try:
                add()
            except ReadError as error:
                self.unread += as_unread("PCI devices", error)

    def _amd(self) -> None:
        addresses = amdgpu.amdgpu_addresses(self.host)
        hwmon = {} if self.host.exists(DRIVER) else hwmon_directories(self.host)
        for gpu, address in enumerate(addresses):
            link = f"{hwmon[address]}/device" if address in hwmon else f"{DRIVER}/{address}"
            self.devices[address] = _Device("gpu", "amdgpu", gpu, self.host.realpath(link))

    def _nvidia(self) -> None:
        for address in filter(is_pci_address, self.host.listdir(_NVIDIA_DRIVER)):
            path = self.host.realpath(f"{_NVIDIA_DRIVER}/{address}")
            self.devices[address] = _Device("gpu", "nvidia", None, path)

    def _rdma(self) -> None:
        for name in self.host.listdir(_INFINIBAND):
            path = self.host.realpath(f"{_INFINIBAND}/{name}/device")
            addresses = pci_addresses(path)
            if not addresses:
                continue  # made by software, or not on PCI
            address = addresses[-1]
            path = path[: path.rindex(address) + len(address)]
            other = self.devices.get(address)
            names = f"{other.name},{name}" if other else name  # one function may be several devices
            self.devices[address] = _Device("rdma", names, None, path)


def _function(files: _FunctionFiles, address: str, device: _Device, above: str) -> PcieFunction:
    path, is_bridge = device.path, device.kind == "bridge"
    received: list[Optional[int]] = [None, None, None]
    if is_bridge and not above:
        kinds = ("cor", "nonfatal", "fatal")
        received = [files.count(f"{path}/aer_rootport_total_err_{kind}") for kind in kinds]
    return PcieFunction(
        address=address,
        kind=device.kind,
        name=device.name,
        gpu=device.gpu,
        model="" if is_bridge else files.model(path),
        above=above,
        speed_gts=files.value(f"{path}/current_link_speed", link_speed_gts),
        max_speed_gts=files.value(f"{path}/max_link_speed", link_speed_gts),
        width=_width(lanes := files.count(f"{path}/current_link_width")),
        max_width=_width(files.count(f"{path}/max_link_width")),
        correctable=files.value(f"{path}/aer_dev_correctable", aer_total),
        nonfatal=files.value(f"{path}/aer_dev_nonfatal", aer_total),
        fatal=files.value(f"{path}/aer_dev_fatal", aer_total),
        received_correctable=received[0],
        received_nonfatal=received[1],
        received_fatal=received[2],
        virtual_function=not is_bridge and files.host.exists(f"{path}/physfn"),
        odd_width=lanes if lanes in _ODD_WIDTHS else None,
    )


class _FunctionFiles(OptionalFiles):
    """Reads single values of PCI functions."""

    def model(self, path: str) -> str:
        """Vendor and device, e.g. "1002:75a0"; empty when unknown."""
        vendor, device = self.value(f"{path}/vendor", str), self.value(f"{path}/device", str)
        return f"{vendor[2:]}:{device[2:]}" if vendor and device else ""

    def count(self, path: str) -> Optional[int]:
        """A plain number."""
        return self.value(path, _count)


def _width(lanes: Optional[int]) -> Optional[int]:
    return lanes if lanes in _WIDTHS else None


def _count(text: str) -> int:
    if not is_digits(text):
        raise ParseError(f"not a count: {text[:80]!r}")
    return int(text)
