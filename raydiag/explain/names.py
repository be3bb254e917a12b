"""Under which names sources know machines and GPUs, so that one GPU is one GPU everywhere.

A series knows a GPU by its index, the kernel by its PCI address or by that of the bridge above it,
and a log often by none of them.
"""

from collections.abc import Iterable
from dataclasses import replace

from raydiag.model import Finding, Observation, Snapshot
from raydiag.probes.gpu_sensors import GpuSensors
from raydiag.probes.nvidia import NvidiaGpu
from raydiag.probes.pcie import PcieFunction
from raydiag.probes.ras import RasCount
from raydiag.rules.machines import Machine, machines
from raydiag.rules.pcie import PciePaths
from raydiag.tsdb.discovery_types import HostSeries, short_name


def by_name(observations: Iterable[Observation], hosts: Iterable[HostSeries]) -> list[Observation]:
    """With the short name of each host, where a log gives its name in full, or its address."""
    names: dict[str, str] = {}
    for host in hosts:
        names.update(dict.fromkeys((*host.ips, *map(short_name, host.instances)), host.name))
    named = []
    for observation in observations:
        if observation.finding.host is not None:
            short = short_name(observation.finding.host)
            finding = replace(observation.finding, host=names.get(short, short))
            observation = replace(observation, finding=finding)
        named.append(observation)
    return named


class Names:
    """Host names by address, and index and PCI address of each GPU of a snapshot.

    Machines are named as in `rules.machines.machine_names`.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._hosts: dict[str, str] = {}  # by address
        self._indexes: dict[tuple[str, str], int] = {}  # by machine and PCI address
        self._addresses: dict[tuple[str, int], str] = {}  # by machine and index
        for report in snapshot.nodes:
            for alias in (report.node.address, report.node.node_id):
                self._hosts.setdefault(alias, report.node.host)
        for machine in machines(snapshot):
            self._add_gpus(machine)
            self._add_bridges(machine.name, PciePaths(machine.records(PcieFunction)))

    def _add_gpus(self, machine: Machine) -> None:
        records: list[GpuSensors | RasCount | NvidiaGpu] = []
        records += machine.records(GpuSensors)
        records += machine.records(RasCount)
        records += machine.records(NvidiaGpu)
        for record in records:
            self._indexes.setdefault((machine.name, record.address), record.gpu)
            self._addresses.setdefault((machine.name, record.gpu), record.address)

    def _add_bridges(self, machine: str, paths: PciePaths) -> None:
        """The kernel blames the bridge above a GPU for what happens on the link to it."""
        for address, function in paths.functions.items():
            gpu = self._indexes.get((machine, paths.bearer(function).address))
            if gpu is not None:
                self._indexes.setdefault((machine, address), gpu)

    def named(self, finding: Finding) -> Finding:
        """The finding with its host's name and with both names of its GPU, where they are known."""
        if finding.host is None:
            return finding
        host = self._hosts.get(finding.host, finding.host)
        machine = f"{host} ({finding.address})" if finding.address else host
        gpu, device = finding.gpu, finding.device
        if gpu is None and device is not None:
            gpu = self._indexes.get((machine, device))
        elif gpu is not None and device is None:
            device = self._addresses.get((machine, gpu))
        return replace(finding, host=host, gpu=gpu, device=device)
