"""Hosts compared with each other: GPUs that are missing, versions and variables that differ.

The odd one out is judged against a strict majority (more than half of the hosts that can be
compared). Where there is none, a difference is reported without saying which host is wrong.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple, TypeVar

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
    gpus: list[tuple[str, str | None, _Addresses]] = []
    for machine in machines(snapshot):
        addresses = _gpu_addresses(machine)
        if addresses is not None:
            gpus.append((machine.name, _gpu_model(machine), addresses))
    # Hosts that do not say the model go with the most.
    usual = _most_common(filter(None, map(itemgetter(1), gpus)))
    groups: dict[str | None, dict[str, _Addresses]] = defaultdict(dict)
    for host, model, addresses_of_host in gpus:
        groups[model or usual][host] = addresses_of_host
    for gpus_of_model in groups.values():
        yield from _hosts_with_fewer(gpus_of_model, snapshot.time)


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


class _Comparison(NamedTuple):
    """One quantity on all hosts that report it."""

    name: str
    source: str  # the file that it was read from
    values: Mapping[str, str]  # by host


def version_skew(snapshot: Snapshot) -> Iterator[Finding]:
    """Kernel, driver, ROCm and NIC driver versions that differ between hosts that report them."""
    gpu_hosts = set()
    values: dict[str, dict[str, str]] = defaultdict(dict)  # by component and host
    files: dict[str, str] = {}
    for machine in machines(snapshot):
        versions = _versions(machine)
        if versions.keys() & _GPU_DRIVERS or machine.records(GpuSensors):
            gpu_hosts.add(machine.name)
        for component, version in versions.items():
            values[component][machine.name] = version
        for record in reversed(machine.records(Version)):
            files[record.component] = record.source
    comparisons = [_Comparison(name, files[name], values[name]) for name in sorted(values)]
    yield from _differences("version-skew", comparisons, gpu_hosts)


def _versions(machine: Machine) -> dict[str, str]:
    """Compared components of one host; several versions of one are joined."""
    versions: dict[str, set[str]] = {}
    for record in machine.records(Version):
        if record.component not in _NOT_COMPARED:
            versions.setdefault(record.component, set()).add(record.version)
    return {component: ", ".join(sorted(several)) for component, several in versions.items()}


def environment_mismatch(snapshot: Snapshot) -> Iterator[Finding]:
    """Network variables that a program has on some hosts and not, or otherwise, on others.

    Different programs may be meant for different networks.
    """
    programs: dict[str, dict[str, list[RayProcess]]] = {}
    unread = set()
    for machine in machines(snapshot):
        if not _environment_was_read(machine):
            unread.add(machine.name)
        for process in machine.working_processes():
            hosts = programs.setdefault(_program(process), defaultdict(list))
            hosts[machine.name].append(process)
    programs.pop("", None)  # commands that could not be read are not alike
    for program, processes in programs.items():
        yield from _differences("env-mismatch", _variables(program, processes, unread), ())


def _variables(
    program: str, processes: Mapping[str, Sequence[RayProcess]], unread: Collection[str]
) -> Iterator[_Comparison]:
    """The network variables of one program, whose processes these are by host, by name."""
    settings: dict[str, dict[str, set[str]]] = {}
    for host, processes_of_host in processes.items():
        for process in processes_of_host:
            for name, value in process.environment.items():
                settings.setdefault(name, defaultdict(set))[host].add(value)
    for name in sorted(settings):
        values = {}
        for host in processes:
            if host in settings[name] or host not in unread:
                values[host] = ", ".join(sorted(settings[name][host])) or "unset"
        yield _Comparison(name, f"/proc/<pid>/environ of {program}", values)


def _differences(
    failure_class: str, comparisons: Iterable[_Comparison], gpu_hosts: Collection[str]
) -> Iterator[Finding]:
    """One finding for each odd host, and one without a host for what has no majority."""
    severities: dict[str | None, list[Severity]] = defaultdict(list)
    evidence: dict[str | None, list[Evidence]] = defaultdict(list)
    for comparison in comparisons:
        if len(set(comparison.values.values())) > 1:
            for host, severity, odd_value in _odd_values(comparison, gpu_hosts):
                severities[host].append(severity)
                evidence[host].append(odd_value)
    for host, pieces in evidence.items():
        severity = max(severities[host], key=attrgetter("rank"))
        yield Finding(failure_class, host=host, severity=severity, evidence=tuple(pieces))


def _odd_values(
    comparison: _Comparison, gpu_hosts: Collection[str]
) -> Iterator[tuple[str | None, Severity, Evidence]]:
    """Who differs from the majority; without one no host (None) is the odd one.

    Where there are hosts with GPUs, their majority counts, and a host without, such as a head node,
    that differs is worth no more than info.
    """
    name, source, values = comparison
    judging = [value for host, value in values.items() if host in gpu_hosts]
    usual = _majority(judging or values.values())
    if usual is None:
        severity = warning_if(len(set(judging)) > 1 or not gpu_hosts)
        yield None, severity, _hosts_of_each_value(name, values, source)
        return
    agreeing = list(values.values()).count(usual)
    for host, value in values.items():
        if value != usual:
            text = f"{name} {value} here, {usual} on {agreeing} others"
            severity = warning_if(not gpu_hosts or host in gpu_hosts)
            yield host, severity, Evidence(source, text)


def _hosts_of_each_value(name: str, values: Mapping[str, str], source: str) -> Evidence:
    """The hosts of each value, the largest group first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for host in sorted(values):
        groups[values[host]].append(host)
    largest_first = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    parts = [f"{value} on {', '.join(hosts)}" for value, hosts in largest_first]
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
