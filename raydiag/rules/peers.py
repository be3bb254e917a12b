"""Hosts compared with each other: GPUs that are missing, versions and variables that differ.

The odd one out is judged against a strict majority (more than half of the hosts that can be
compared). Where there is none, a difference is reported without saying who is wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Optional, TypeVar

from raydiag.model import Evidence, Finding, NodeReport, Severity, Snapshot, Status
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.pcie import PcieFunction
from raydiag.probes.processes import RayProcess
from raydiag.probes.versions import Version
from raydiag.rules.nodes import by_host, distinct

_Value = TypeVar("_Value", bound=Hashable)

_DRIVER_DIRECTORY = "/sys/bus/pci/drivers"
_GIB = 1 << 30
_NOT_COMPARED = frozenset({"os", "python", "glibc"})
_GPU_DRIVERS = frozenset({"amdgpu", "nvidia"})


def missing_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts with fewer GPUs than most of those that have any, or have the driver for them.

    Only hosts with the same model of GPU are compared.
    """
    hosts = by_host(snapshot)
    gpus = {
        host: addresses
        for host, reports in hosts.items()
        if (addresses := _gpu_addresses(reports)) is not None
    }
    for alike in _by_model({host: hosts[host] for host in gpus}):
        yield from _fewer({host: gpus[host] for host in alike}, snapshot.time)


def _by_model(hosts: Mapping[str, Sequence[NodeReport]]) -> Iterable[list[str]]:
    """Hosts grouped by the model of their GPUs; those that do not say it go with the most."""
    models = {host: _gpu_model(reports) for host, reports in hosts.items()}
    usual = _most_common(model for model in models.values() if model is not None)
    groups: dict[Optional[str], list[str]] = {}
    for host, model in models.items():
        groups.setdefault(usual if model is None else model, []).append(host)
    return groups.values()


def _gpu_model(reports: Sequence[NodeReport]) -> Optional[str]:
    """What most GPUs of a host are: by their memory, of NVIDIA's the PCI id; None when unknown."""
    sensors: list[GpuSensors] = distinct(reports, "gpu_sensors", "address")
    totals = (sensor.vram_total_bytes for sensor in sensors)
    size = _most_common(round(total / _GIB) for total in totals if total)
    if size is not None:
        return f"{size} GiB"
    return _most_common(function.model for function in _nvidia_gpus(reports) if function.model)


def _fewer(gpus: Mapping[str, frozenset[str]], time: float) -> Iterator[Finding]:
    """Findings for hosts with the same model of GPU; `gpus` are PCI addresses by host."""
    usual = _majority(len(addresses) for addresses in gpus.values())
    if usual is None:
        counts = {host: str(len(addresses)) for host, addresses in gpus.items()}
        if len(set(counts.values())) > 1:
            pieces = (_groups("GPUs:", counts, _DRIVER_DIRECTORY),)
            yield Finding("gpu-missing", severity=Severity.WARNING, evidence=pieces)
        return
    like_most = {addresses for addresses in gpus.values() if len(addresses) == usual}
    shared = next(iter(like_most)) if len(like_most) == 1 else frozenset()
    peers = sum(len(addresses) == usual for addresses in gpus.values())
    for host, addresses in gpus.items():
        if len(addresses) >= usual:
            continue
        # Which one is missing is known only where the others sit at the same addresses.
        missing = sorted(shared - addresses) if addresses < shared else []
        yield Finding(
            "gpu-missing",
            host=host,
            device=",".join(missing) or None,
            severity=Severity.CRITICAL,
            evidence=(
                Evidence(
                    _DRIVER_DIRECTORY,
                    f"{len(addresses)} GPUs here, {usual} on {peers} of {len(gpus)} hosts",
                    value=float(len(addresses)),
                    time=time,
                ),
            ),
        )


def version_skew(snapshot: Snapshot) -> Iterator[Finding]:
    """Kernel, driver, ROCm and NIC driver versions that differ between hosts that report them."""
    hosts = by_host(snapshot)
    versions = {host: _versions(reports) for host, reports in hosts.items()}
    with_gpus = {
        host
        for host, reports in hosts.items()
        if versions[host].keys() & _GPU_DRIVERS or distinct(reports, "gpu_sensors", "address")
    }
    components = sorted({name for values in versions.values() for name in values})
    compared = {
        component: {
            host: values[component] for host, values in versions.items() if component in values
        }
        for component in components
    }
    files = {
        version.component: version.source
        for reports in hosts.values()
        for version in distinct(reports, "versions", "component")
    }
    yield from _differences("version-skew", compared, files, with_gpus)


def environment_mismatch(snapshot: Snapshot) -> Iterator[Finding]:
    """Network variables that a program has on some hosts and not, or otherwise, on others.

    Different programs may well be meant for different networks.
    """
    hosts = by_host(snapshot)
    programs: dict[str, dict[str, list[RayProcess]]] = {}
    for host, reports in hosts.items():
        for process in _workers(reports):
            programs.setdefault(_program(process), {}).setdefault(host, []).append(process)
    programs.pop("", None)  # commands that could not be read are not alike
    for program, runs in programs.items():
        names = sorted({name for some in runs.values() for p in some for name in p.environment})
        compared: dict[str, dict[str, str]] = {name: {} for name in names}
        for host, some in runs.items():
            for name in names:
                values = {p.environment[name] for p in some if name in p.environment}
                if values or _environment_was_read(hosts[host]):
                    compared[name][host] = ", ".join(sorted(values)) or "unset"
        files = dict.fromkeys(names, f"/proc/<pid>/environ of {program}")
        yield from _differences("env-mismatch", compared, files, frozenset())


def _differences(
    failure_class: str,
    compared: Mapping[str, Mapping[str, str]],
    files: Mapping[str, str],
    with_gpus: Iterable[str],
) -> Iterator[Finding]:
    """One finding for each odd host, and one without a host for what has no majority.

    `compared` is {what: {host: value}}, `files` says where each was read. Where there are hosts
    with GPUs, their majority counts, and a host without, such as a head node, that is another one
    is worth no more than info.
    """
    with_gpus = frozenset(with_gpus)
    found: dict[Optional[str], list[tuple[Severity, Evidence]]] = {}
    for what, values in compared.items():
        if len(set(values.values())) < 2:
            continue
        gpu_hosts_differ = len({values[host] for host in values if host in with_gpus}) > 1
        judging = [values[host] for host in values if host in with_gpus] or values.values()
        usual = _majority(judging)
        if usual is None:
            severity = Severity.WARNING if gpu_hosts_differ or not with_gpus else Severity.INFO
            found.setdefault(None, []).append((severity, _groups(what, values, files[what])))
            continue
        agreeing = sum(value == usual for value in values.values())
        for host, value in values.items():
            if value == usual:
                continue
            harmless = with_gpus and host not in with_gpus
            text = f"{what} {value} here, {usual} on {agreeing} others"
            severity = Severity.INFO if harmless else Severity.WARNING
            found.setdefault(host, []).append((severity, Evidence(files[what], text)))
    for odd, pieces in found.items():
        yield Finding(
            failure_class,
            host=odd,
            severity=max((severity for severity, _ in pieces), key=lambda one: one.rank),
            evidence=tuple(evidence for _, evidence in pieces),
        )


def _groups(what: str, values: Mapping[str, str], source: str) -> Evidence:
    """The hosts of each value, the largest group first."""
    groups: dict[str, list[str]] = {}
    for host, value in values.items():
        groups.setdefault(value, []).append(host)
    parts = []
    for value, hosts in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        parts.append(f"{value} on {', '.join(sorted(hosts))}")
    return Evidence(source, f"{what} {'; '.join(parts)}")


def _majority(values: Iterable[_Value]) -> Optional[_Value]:
    """The value that more than half of at least two hosts share; None when there is none."""
    counts = Counter(values)
    total = sum(counts.values())
    if total < 2:
        return None
    value, count = counts.most_common(1)[0]
    return value if count * 2 > total else None


def _most_common(values: Iterable[_Value]) -> Optional[_Value]:
    """None when there is no value at all."""
    counts = Counter(values).most_common(1)
    return counts[0][0] if counts else None


def _gpu_addresses(reports: Sequence[NodeReport]) -> Optional[frozenset[str]]:
    """PCI addresses of a host's GPUs; None where there is nothing to compare, or it is unknown.

    NVIDIA's are those that its driver has on the PCI bus: nvidia-smi shows a container its own.
    """
    if nvidia := _nvidia_gpus(reports):
        return frozenset(function.address for function in nvidia)
    statuses = [
        report.probes["gpu_sensors"].status for report in reports if "gpu_sensors" in report.probes
    ]
    if not statuses or not set(statuses) <= {Status.OK, Status.NO_DATA}:
        return None
    sensors: list[GpuSensors] = distinct(reports, "gpu_sensors", "address")
    if not sensors and "amdgpu" not in _versions(reports):
        return None
    return frozenset(sensor.address for sensor in sensors)


def _nvidia_gpus(reports: Sequence[NodeReport]) -> list[PcieFunction]:
    functions: list[PcieFunction] = distinct(reports, "pcie", "address")
    return [function for function in functions if function.name == "nvidia"]


def _versions(reports: Sequence[NodeReport]) -> dict[str, str]:
    """Compared components of one host; several versions of one are joined."""
    found: dict[str, set[str]] = {}
    records: list[Version] = distinct(reports, "versions", "component", "version")
    for record in records:
        if record.component not in _NOT_COMPARED:
            found.setdefault(record.component, set()).add(record.version)
    return {component: ", ".join(sorted(values)) for component, values in found.items()}


def _workers(reports: Sequence[NodeReport]) -> list[RayProcess]:
    """Ray workers with work to do, and what they started."""
    processes: list[RayProcess] = distinct(reports, "processes", "pid", "start_time_s")
    return [p for p in processes if p.role in ("worker", "child") and p.command != "ray::IDLE"]


def _environment_was_read(reports: Sequence[NodeReport]) -> bool:
    """False when a refused read may be why a variable does not show."""
    results = [report.probes["processes"] for report in reports if "processes" in report.probes]
    return not any(item.source.endswith("environ") for one in results for item in one.unread)


def _program(process: RayProcess) -> str:
    """What makes two processes alike: the actor's class or task of a worker, or the command."""
    if process.command.startswith("ray::"):
        return process.command.split()[0].partition(".")[0]
    # Programs that differ in nothing but numbers, such as a rank, are alike.
    return re.sub(r"\d+", "0", process.command)
