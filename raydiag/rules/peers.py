"""Hosts compared with each other: GPUs that are missing, versions and variables that differ.

The odd one out is judged against a strict majority (more than half of the hosts that can be
compared). Where there is none, a difference is reported without saying which host is wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from raydiag.model import Evidence, Finding, Severity, Snapshot, Status
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.pcie import PcieFunction
from raydiag.probes.processes import RayProcess
from raydiag.probes.versions import Version
from raydiag.rules.grades import warning_if
from raydiag.rules.machines import Machine, machines

_Value = TypeVar("_Value", bound=Hashable)
_Addresses = frozenset[str]  # PCI addresses of GPUs

_DRIVER_DIRECTORY = "/sys/bus/pci/drivers"
_GIB = 1 << 30
_NOT_COMPARED = frozenset({"os", "python", "glibc"})
_GPU_DRIVERS = frozenset({"amdgpu", "nvidia"})


def missing_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    """Hosts with fewer GPUs than most of those that have any, or have the driver for them.

    Only hosts with the same model of GPU are compared.
    """
    gpus: dict[str, _Addresses] = {}
    models: dict[str, str | None] = {}
    for machine in machines(snapshot):
        addresses = _gpu_addresses(machine)
        if addresses is not None:
            gpus[machine.name] = addresses
            models[machine.name] = _gpu_model(machine)
    for hosts in _groups_by_model(models):
        yield from _hosts_with_fewer({host: gpus[host] for host in hosts}, snapshot.time)


def _groups_by_model(models: Mapping[str, str | None]) -> Iterable[list[str]]:
    """Hosts grouped by the model of their GPUs; those that do not say it go with the most."""
    usual = _most_common(filter(None, models.values()))
    groups: dict[str | None, list[str]] = {}
    for host, model in models.items():
        groups.setdefault(model or usual, []).append(host)
    return groups.values()


def _gpu_model(machine: Machine) -> str | None:
    """What most GPUs of a host are: by their memory, of NVIDIA's the PCI id; None when unknown."""
    totals = filter(None, map(attrgetter("vram_total_bytes"), machine.records(GpuSensors)))
    size_gib = _most_common(round(total / _GIB) for total in totals)
    if size_gib is not None:
        return f"{size_gib} GiB"
    return _most_common(filter(None, map(attrgetter("model"), _nvidia_gpus(machine))))


def _hosts_with_fewer(gpus: Mapping[str, _Addresses], time: float) -> Iterator[Finding]:
    """Findings for hosts with the same model of GPU, of which these are the GPUs by host."""
    usual = _majority(map(len, gpus.values()))
    if usual is None:
        yield from _differing_counts(gpus)
        return
    hosts_like_most = [addresses for addresses in gpus.values() if len(addresses) == usual]
    # Which one is missing is known only where the others sit at the same addresses.
    layouts = set(hosts_like_most)
    shared = layouts.pop() if len(layouts) == 1 else frozenset()
    for host, addresses in gpus.items():
        if len(addresses) >= usual:
            continue
        missing = sorted(shared - addresses) if addresses < shared else []
        count, hosts = len(addresses), f"{len(hosts_like_most)} of {len(gpus)} hosts"
        text = f"{count} GPUs here, {usual} on {hosts}"
        yield Finding(
            "gpu-missing",
            host=host,
            device=",".join(missing) or None,
            severity=Severity.CRITICAL,
            evidence=(Evidence(_DRIVER_DIRECTORY, text, float(count), time),),
        )


def _differing_counts(gpus: Mapping[str, _Addresses]) -> Iterator[Finding]:
    counts = {host: str(len(addresses)) for host, addresses in gpus.items()}
    if len(set(counts.values())) > 1:
        evidence = _hosts_of_each_value("GPUs:", counts, _DRIVER_DIRECTORY)
        yield Finding("gpu-missing", severity=Severity.WARNING, evidence=(evidence,))


@dataclass(frozen=True)
class _Comparison:
    """One quantity on all hosts that report it."""

    name: str
    source: str  # the file that it was read from
    values: Mapping[str, str]  # by host


def version_skew(snapshot: Snapshot) -> Iterator[Finding]:
    """Kernel, driver, ROCm and NIC driver versions that differ between hosts that report them."""
    gpu_hosts = set()
    values: dict[str, dict[str, str]] = {}  # by component and host
    files: dict[str, str] = {}
    for machine in machines(snapshot):
        versions = _versions(machine)
        if versions.keys() & _GPU_DRIVERS or machine.records(GpuSensors):
            gpu_hosts.add(machine.name)
        for component, version in versions.items():
            values.setdefault(component, {})[machine.name] = version
        files.update(_version_files(machine))
    comparisons = [_Comparison(name, files[name], values[name]) for name in sorted(values)]
    yield from _differences("version-skew", comparisons, gpu_hosts)


def _versions(machine: Machine) -> dict[str, str]:
    """Compared components of one host; several versions of one are joined."""
    versions: dict[str, set[str]] = {}
    for record in machine.records(Version):
        if record.component not in _NOT_COMPARED:
            versions.setdefault(record.component, set()).add(record.version)
    return {component: ", ".join(sorted(several)) for component, several in versions.items()}


def _version_files(machine: Machine) -> dict[str, str]:
    files: dict[str, str] = {}
    for record in machine.records(Version):
        files.setdefault(record.component, record.source)
    return files


def environment_mismatch(snapshot: Snapshot) -> Iterator[Finding]:
    """Network variables that a program has on some hosts and not, or otherwise, on others.

    Different programs may be meant for different networks.
    """
    programs: dict[str, list[tuple[Machine, list[RayProcess]]]] = {}
    for machine in machines(snapshot):
        for program, processes in _by_program(machine.working_processes()).items():
            programs.setdefault(program, []).append((machine, processes))
    programs.pop("", None)  # commands that could not be read are not alike
    for program, runs in programs.items():
        yield from _differences("env-mismatch", _variables(program, runs), ())


def _by_program(processes: Iterable[RayProcess]) -> dict[str, list[RayProcess]]:
    programs: dict[str, list[RayProcess]] = {}
    for process in processes:
        programs.setdefault(_program(process), []).append(process)
    return programs


def _variables(
    program: str, runs: Sequence[tuple[Machine, Sequence[RayProcess]]]
) -> Iterator[_Comparison]:
    """The network variables of one program, by name."""
    names: set[str] = set()
    for _, processes in runs:
        names.update(*map(attrgetter("environment"), processes))
    for name in sorted(names):
        values = {}
        for machine, processes in runs:
            settings = {
                process.environment[name] for process in processes if name in process.environment
            }
            if settings or _environment_was_read(machine):
                values[machine.name] = ", ".join(sorted(settings)) or "unset"
        yield _Comparison(name, f"/proc/<pid>/environ of {program}", values)


def _differences(
    failure_class: str, comparisons: Iterable[_Comparison], gpu_hosts: Collection[str]
) -> Iterator[Finding]:
    """One finding for each odd host, and one without a host for what has no majority."""
    differences: dict[str | None, list[_Difference]] = {}
    for comparison in comparisons:
        if len(set(comparison.values.values())) > 1:
            for difference in _odd_values(comparison, gpu_hosts):
                differences.setdefault(difference.host, []).append(difference)
    for host, differences_of_host in differences.items():
        yield Finding(
            failure_class,
            host=host,
            severity=max(map(attrgetter("severity"), differences_of_host), key=attrgetter("rank")),
            evidence=tuple(map(attrgetter("evidence"), differences_of_host)),
        )


@dataclass(frozen=True)
class _Difference:
    host: str | None  # None: without a majority no host is the odd one
    severity: Severity
    evidence: Evidence


def _odd_values(comparison: _Comparison, gpu_hosts: Collection[str]) -> Iterator[_Difference]:
    """Who differs from the majority.

    Where there are hosts with GPUs, their majority counts, and a host without, such as a head node,
    that differs is worth no more than info.
    """
    name, source, values = comparison.name, comparison.source, comparison.values
    judging = [value for host, value in values.items() if host in gpu_hosts]
    usual = _majority(judging or values.values())
    if usual is None:
        matters = len(set(judging)) > 1 or not gpu_hosts
        evidence = _hosts_of_each_value(name, values, source)
        yield _Difference(None, warning_if(matters), evidence)
        return
    agreeing = list(values.values()).count(usual)
    for host, value in values.items():
        if value != usual:
            text = f"{name} {value} here, {usual} on {agreeing} others"
            matters = not gpu_hosts or host in gpu_hosts
            severity = warning_if(matters)
            yield _Difference(host, severity, Evidence(source, text))


def _hosts_of_each_value(name: str, values: Mapping[str, str], source: str) -> Evidence:
    """The hosts of each value, the largest group first."""
    groups: dict[str, list[str]] = {}
    for host, value in values.items():
        groups.setdefault(value, []).append(host)
    parts = []
    for value, hosts in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        parts.append(f"{value} on {', '.join(sorted(hosts))}")
    return Evidence(source, f"{name} {'; '.join(parts)}")


def _majority(values: Iterable[_Value]) -> _Value | None:
    """The value that more than half of at least two hosts share; None when there is none."""
    counts = Counter(values)
    if counts.total() < 2:
        return None
    value, count = counts.most_common(1)[0]
    return value if count * 2 > counts.total() else None


def _most_common(values: Iterable[_Value]) -> _Value | None:
    """None when there is no value at all."""
    return next(iter(Counter(values).most_common(1)), (None, 0))[0]


def _gpu_addresses(machine: Machine) -> _Addresses | None:
    """PCI addresses of a host's GPUs; None where there is nothing to compare, or it is unknown.

    NVIDIA's are those that its driver has on the PCI bus: nvidia-smi shows a container its own.
    """
    if nvidia := _nvidia_gpus(machine):
        return frozenset(map(attrgetter("address"), nvidia))
    statuses = set(map(attrgetter("status"), machine.results("gpu_sensors")))
    if not statuses or not statuses <= {Status.OK, Status.NO_DATA}:
        return None
    sensors = machine.records(GpuSensors)
    if not sensors and "amdgpu" not in _versions(machine):
        return None
    return frozenset(map(attrgetter("address"), sensors))


def _nvidia_gpus(machine: Machine) -> list[PcieFunction]:
    return [function for function in machine.records(PcieFunction) if function.name == "nvidia"]


def _environment_was_read(machine: Machine) -> bool:
    """False when a refused read may be why a variable does not show."""
    unread = machine.unread("processes")
    return not any(source.source.endswith("environ") for source in unread)


def _program(process: RayProcess) -> str:
    """What makes two processes alike: the actor's class or task of a worker, or the command."""
    if process.command.startswith("ray::"):
        return process.command.split()[0].partition(".")[0]
    # Programs that differ in nothing but numbers, such as a rank, are alike.
    return re.sub(r"\d+", "0", process.command)
