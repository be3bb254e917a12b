"""NVIDIA GPUs as the driver lists them, and what nvidia-smi says of each.

nvidia-smi is asked once, for all GPUs; a second time only where this version knows a field by its
other name or not at all. It is not started where no GPU can be used.

Source: /proc/driver/nvidia/version, /proc/driver/nvidia/gpus/<address>/information,
nvidia-smi --query-gpu=... --format=csv,noheader,nounits, likewise --query-remapped-rows=... .
Sample of `information`, cut:

    Model:           NVIDIA H100 80GB HBM3
    GPU UUID:        GPU-1c0ffee5-0000-4000-8000-0123456789ab
    Device Minor:    0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from raydiag import sandbox
from raydiag.amdgpu import is_pci_address
from raydiag.errors import NoData, ReadError
from raydiag.host import Host, is_digits
from raydiag.model import Status, Unread
from raydiag.probes import COMMANDS, probe

_PROC = "/proc/driver/nvidia"
_DEVICE = "/dev/nvidiactl"
_PROGRAM = "nvidia-smi"
_TIMEOUT_S = 8.0  # without persistence mode every GPU is initialised first, a second each
_MIB = 1 << 20

# What nvidia-smi calls each reading: the field of the record, and of counts their unit.
_READINGS: dict[str, tuple[str, Optional[int]]] = {
    "temperature.gpu": ("temperature_c", None),
    "power.draw": ("power_w", None),
    "power.limit": ("power_cap_w", None),
    "clocks.sm": ("sm_clock_mhz", None),
    "clocks.max.sm": ("max_sm_clock_mhz", None),
    "memory.used": ("vram_used_bytes", _MIB),
    "memory.total": ("vram_total_bytes", _MIB),
    "utilization.gpu": ("utilisation_percent", None),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected", 1),
    "ecc.errors.corrected.volatile.total": ("ecc_corrected", 1),
    "pcie.link.gen.current": ("pcie_generation", 1),
    "pcie.link.gen.max": ("max_pcie_generation", 1),
    "pcie.link.width.current": ("pcie_width", 1),
    "pcie.link.width.max": ("max_pcie_width", 1),
}
# What stands behind a stroke is what other versions call the same.
_CLOCK_REASONS = "clocks_event_reasons.active|clocks_throttle_reasons.active"
# The name comes last, so that a comma in it does no harm.
_FIELDS = ("index", "pci.bus_id", "uuid", *_READINGS, _CLOCK_REASONS, "name")
_REMAP_FIELDS = tuple(
    f"remapped_rows.{name}" for name in ("correctable", "uncorrectable", "pending", "failure")
)
_MOST_TRIES = 4
_Row = dict[str, str]  # values by usual name of the field


@dataclass(frozen=True)
class NvidiaGpu:
    gpu: int  # index: nvidia-smi's, else the position among the addresses; both in PCI order
    address: str  # PCI address, e.g. "0000:1b:00.0"
    name: str  # model, e.g. "NVIDIA H100 80GB HBM3"; "" unknown
    uuid: str  # "GPU-..."; "" unknown
    driver_version: str  # e.g. "550.54.15"; "" unknown
    temperature_c: Optional[float]  # degrees Celsius, temperature.gpu
    power_w: Optional[float]  # watts, power.draw, of most models an average over a second
    power_cap_w: Optional[float]  # watts, power.limit
    sm_clock_mhz: Optional[float]  # MHz, clocks.sm
    max_sm_clock_mhz: Optional[float]  # MHz, clocks.max.sm
    vram_used_bytes: Optional[int]  # bytes, memory.used (in MiB)
    vram_total_bytes: Optional[int]  # bytes, memory.total (in MiB)
    utilisation_percent: Optional[float]  # percent of the last second in which a kernel ran
    ecc_uncorrected: Optional[int]  # memory errors since the driver was loaded
    ecc_corrected: Optional[int]  # the same, corrected
    clock_reasons: Optional[int]  # bits of clocks_event_reasons.active: why clocks are lowered
    pcie_generation: Optional[int]  # pcie.link.gen.current, lower while the GPU is idle
    max_pcie_generation: Optional[int]  # pcie.link.gen.max of GPU and slot together
    pcie_width: Optional[int]  # lanes, pcie.link.width.current
    max_pcie_width: Optional[int]  # lanes, pcie.link.width.max
    rows_remapped: Optional[int] = None  # of its memory, by spare ones; None: not asked for
    remap_pending: Optional[bool] = None  # some are to be remapped at the next reset
    remap_failed: Optional[bool] = None  # once at least there was no spare row left


@probe(NvidiaGpu, identity=("address",), timeout_s=10, reader=COMMANDS)
def nvidia(host: Host, remapped: bool = False) -> Iterator[Union[NvidiaGpu, Unread]]:
    """One record per GPU in index order, as nvidia-smi lists them; an Unread for what it refuses.

    `remapped`: ask for remapped rows as well, which takes a second call of nvidia-smi.
    Without its answer, the driver's own list stands in, and all readings are None. Raises NoData
    without the driver, or a GPU that is ours to use; ReadError when nothing says which there are.
    """
    # The driver's files show in every container of the machine; and without its device, nvidia-smi
    # would make it.
    if not host.exists(_DEVICE):
        raise NoData("no NVIDIA GPU can be used here")
    version = driver_version(host.text_or_empty(f"{_PROC}/version"))
    listed = _listed(host)
    rows: list[_Row] = []
    try:
        rows, refused = _query()
    except NoData as error:
        refused = ReadError(f"{error}; temperatures, clocks and errors are unknown")
    except ReadError as error:
        refused = error
    if not rows and not listed:
        raise refused or NoData("the NVIDIA driver has no GPU")
    if refused:
        yield Unread(_PROGRAM, refused.status, str(refused))
    if rows:
        for address in sorted(_addresses(listed) - _addresses(rows)):
            text = f"{_PROGRAM} does not list this GPU, though the driver has it"
            yield Unread(f"{_PROC}/gpus/{address}", Status.ERROR, text)
    remaps = _remapped_rows() if rows and remapped else {}
    for row in rows or listed:
        yield _gpu({**row, **remaps.get(row["pci.bus_id"], {})}, version)


def _addresses(rows: Sequence[_Row]) -> set[str]:
    return {row["pci.bus_id"] for row in rows}


def driver_version(text: str) -> str:
    """The number in /proc/driver/nvidia/version; "" where there is none.

    It is the first word of digits and dots: `... Kernel Module  550.54.15  Tue ...`.
    """
    for word in text.split():
        if "." in word and is_digits(word.replace(".", "")):
            return word
    return ""


def pci_address(text: str) -> str:
    """`00000000:1B:00.0` -> "0000:1b:00.0", as the kernel writes it; "" for anything else."""
    domain, _, rest = text.strip().lower().partition(":")
    address = f"{domain.lstrip('0'):0>4}:{rest}"
    return address if is_pci_address(address) else ""


def unknown_field(output: str) -> str:
    """The field that nvidia-smi does not know, "" when it complains of none."""
    if "is not a valid field" not in output:
        return ""
    return output.partition('"')[2].partition('"')[0]


def rows_of(text: str, fields: Sequence[str]) -> tuple[list[_Row], str]:
    """Values by field of each GPU, and the lines that are no GPU."""
    rows, other_lines = [], []
    for line in text.split("\n"):
        values = list(map(str.strip, line.split(",", len(fields) - 1)))
        row = dict(zip(fields, values))
        row["pci.bus_id"] = pci_address(row.get("pci.bus_id", ""))
        if len(values) == len(fields) and row["pci.bus_id"] and is_digits(row.get("index", "")):
            rows.append(row)
        elif line.strip():
            other_lines.append(line.strip())
    return rows, " ".join(other_lines)


def number(text: str) -> Optional[float]:
    """None for "[N/A]", "[Not Supported]", "ERR!" and whatever else is no plain number."""
    plain = text[:1] != "." and is_digits(text.replace(".", "", 1)) and len(text) < 19
    return float(text) if plain else None


def _query() -> tuple[list[_Row], Optional[ReadError]]:
    """Rows, and what kept some or all of them away. Raises NoData without nvidia-smi, ReadError."""
    fields = {field.partition("|")[0]: field.split("|") for field in _FIELDS}  # names left to try
    for _ in range(_MOST_TRIES):
        query = ",".join(names[0] for names in fields.values())
        argv = [_PROGRAM, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        status, stdout, stderr = sandbox.run_command(argv, _TIMEOUT_S)
        output = stdout.decode("utf-8", "replace")
        complaint = stderr.decode("utf-8", "replace").strip()
        refused = unknown_field(output + complaint)
        if not refused:
            break
        for usual_name, names in list(fields.items()):
            if refused in names:
                names.remove(refused)
            if not names:
                del fields[usual_name]
    rows, other_lines = rows_of(output, list(fields))
    if status == 0 and not other_lines:
        return rows, None
    reason = (other_lines or complaint)[:300]
    return rows, ReadError(f"{_PROGRAM} ended with {status}: {reason}")


def _remapped_rows() -> dict[str, _Row]:
    """By PCI address; nothing of GPUs without such rows, as before Ampere."""
    query = ",".join(("gpu_bus_id", *_REMAP_FIELDS))
    argv = [_PROGRAM, f"--query-remapped-rows={query}", "--format=csv,noheader,nounits"]
    try:
        _, stdout, _ = sandbox.run_command(argv, _TIMEOUT_S)
    except (NoData, ReadError):
        return {}
    remaps = {}
    for line in stdout.decode("utf-8", "replace").split("\n"):
        address, *values = map(str.strip, line.split(","))
        remaps[pci_address(address)] = dict(zip(_REMAP_FIELDS, values))
    return remaps


def _flag(text: str) -> Optional[bool]:
    return {"yes": True, "1": True, "no": False, "0": False}.get(text.lower())


def _listed(host: Host) -> list[_Row]:
    """GPUs of the driver's own list whose device file is here, as rows with what the list says."""
    rows = []
    names = host.names_or_empty(f"{_PROC}/gpus")
    for gpu, address in enumerate(filter(is_pci_address, names)):
        information = _information(host.text_or_empty(f"{_PROC}/gpus/{address}/information"))
        minor = information.get("Device Minor", "")
        if minor and not host.exists(f"/dev/nvidia{minor}"):
            continue  # the container has not been given this one
        named = {"uuid": information.get("GPU UUID", ""), "name": information.get("Model", "")}
        rows.append({"index": str(gpu), "pci.bus_id": address, **named})
    return rows


def _information(text: str) -> dict[str, str]:
    """`Device Minor:    0` -> {"Device Minor": "0"}."""
    pairs = (line.partition(":") for line in text.split("\n"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _gpu(row: Mapping[str, str], version: str) -> NvidiaGpu:
    readings: dict[str, Any] = {"clock_reasons": _bits(row.get("clocks_event_reasons.active", ""))}
    for name, (field, unit) in _READINGS.items():
        value = number(row.get(name, ""))
        readings[field] = int(value) * unit if unit and value is not None else value
    counts = [number(row.get(name, "")) for name in _REMAP_FIELDS[:2]]
    if None not in counts:
        readings["rows_remapped"] = int(sum(filter(None, counts)))
    pending, failed = (_flag(row.get(name, "")) for name in _REMAP_FIELDS[2:])
    readings.update(remap_pending=pending, remap_failed=failed)
    texts = (row["pci.bus_id"], row.get("name", ""), row.get("uuid", ""), version)
    return NvidiaGpu(int(row["index"]), *texts, **readings)


def _bits(text: str) -> Optional[int]:
    """A mask such as 0x0000000000000044; None for anything else."""
    digits = text[2:].lower()
    hexadecimal = text.startswith("0x") and 0 < len(digits) <= 16
    return int(digits, 16) if hexadecimal and not digits.strip("0123456789abcdef") else None
