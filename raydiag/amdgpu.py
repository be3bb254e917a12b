"""Which amdgpu devices a node has, and in what order.

The PCI driver directory is the list; hwmon is only asked where that directory does not exist (some
containers hide it). Addresses sort as strings, in every PCI domain: that position is the GPU index
of the metrics and of ROCm.

Source: /sys/bus/pci/drivers/amdgpu/<address>, /sys/class/hwmon/hwmon*/{name,device}
"""

from __future__ import annotations

import contextlib
import functools

from raydiag.errors import NoData, ReadError
from raydiag.host import Host

DRIVER = "/sys/bus/pci/drivers/amdgpu"
HWMON = "/sys/class/hwmon"
_HEX_DIGITS = frozenset("0123456789abcdef")


def amdgpu_addresses(host: Host) -> list[str]:
    """PCI addresses of the GPUs, e.g. "0000:c5:00.0", in index order; empty when there is none.

    Raises Denied when the directory may not be listed: no GPU seen is not no GPU there.
    """
    try:
        return [name for name in host.listdir(DRIVER) if is_pci_address(name)]
    except NoData:
        return sorted(hwmon_directories(host))


def required_addresses(host: Host) -> list[str]:
    """As `amdgpu_addresses`. Raises NoData when there is none."""
    addresses = amdgpu_addresses(host)
    if not addresses:
        raise NoData("no amdgpu device on this node")
    return addresses


def gpu_index(host: Host, address: str) -> int:
    """The index of the GPU with that address. Raises NoData when it is gone."""
    try:
        return amdgpu_addresses(host).index(address)
    except ValueError:
        raise NoData(f"{address}: no longer an amdgpu device") from None


def gpu_files(host: Host, name: str, content: str) -> list[str]:
    """That file or directory of each GPU that has it, in index order.

    Raises NoData without any, with what is missing from its `content`.
    """
    addresses = amdgpu_addresses(host)
    present = list(filter(host.exists, [f"{DRIVER}/{gpu}/{name}" for gpu in addresses]))
    if not present:
        raise NoData(f"no GPU with {content} ({len(addresses)} amdgpu devices)")
    return present


def hwmon_directories(host: Host) -> dict[str, str]:
    """PCI address -> hwmon directory of each amdgpu device that has one.

    hwmon numbers follow the order in which drivers loaded, so they say nothing about the GPU.
    Raises Denied when /sys/class/hwmon may not be listed.
    """
    try:
        names = host.listdir(HWMON)
    except NoData:
        return {}
    directories = {}
    for directory in (f"{HWMON}/{name}" for name in names):
        if host.text_or_empty(f"{directory}/name", 256) == "amdgpu":
            with contextlib.suppress(ReadError):
                addresses = pci_addresses(host.realpath(f"{directory}/device"))
                directories.update(dict.fromkeys(addresses[-1:], directory))
    return directories


def hwmon_directory(host: Host, address: str) -> str:
    """The hwmon directory of one GPU; "" when it has none. Raises Denied."""
    try:
        names = host.listdir(f"{DRIVER}/{address}/hwmon")
    except NoData:
        return hwmon_directories(host).get(address, "")
    for name in names:
        if name.startswith("hwmon"):
            return f"{DRIVER}/{address}/hwmon/{name}"
    return ""


def device_directory(host: Host, address: str) -> str:
    """The directory of one GPU, also where a container hides that of the driver."""
    if host.exists(f"{DRIVER}/{address}"):
        return f"{DRIVER}/{address}"
    return f"{hwmon_directories(host).get(address, '')}/device"


def pci_addresses(path: str) -> list[str]:
    """Those in a path below /sys/devices: the root port first, the bridges below, the device."""
    return list(filter(is_pci_address, path.split("/")))


@functools.lru_cache(maxsize=4096)
def is_pci_address(name: str) -> bool:
    """Whether it has the form domain:bus:device.function, in lower-case hexadecimal."""
    slot, _, function = name.rpartition(".")
    parts = [*slot.split(":"), function]
    return len(parts) == 4 and all(part and _HEX_DIGITS.issuperset(part) for part in parts)
