"""Processes that use GPUs: KFD's own list, and who holds the device files.

KFD names process ids of the whole machine, which a container does not share: they are a count, and
are not to be joined with the others. Only the names in its directory are read: the files inside
have been raced against by processes that ended. Neither file that the kernel answers by way of a
task's memory map (cmdline, environ) is touched.

Source: names in /sys/class/kfd/kfd/proc; links in /proc/<pid>/fd, /proc/<pid>/comm (proc(5))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Optional, Union

from raydiag.errors import NoData, ReadError
from raydiag.host import Host, is_digits
from raydiag.model import Status, Unread
from raydiag.probes import PROCESSES, probe

KFD_LIST = "/sys/class/kfd/kfd/proc"
_KFD_DEVICE = "/dev/kfd"
_NVIDIA_DEVICE = "/dev/nvidia"  # and a number; /dev/nvidiactl and others say nothing of a GPU
MOST_LINKS = 12_000  # looked at, some 5 microseconds each


@dataclass(frozen=True)
class GpuUser:
    pid: int  # of the whole machine where `devices` is empty, else in the reader's PID namespace
    devices: tuple[str, ...]  # GPU device files that it holds open; empty: an entry of KFD's list
    comm: str  # name of its main thread, at most 15 characters; "" of an entry of KFD's list


@probe(GpuUser, timeout_s=4, reader=PROCESSES)
def gpu_users(host: Host) -> Iterator[Union[GpuUser, Unread]]:
    """First KFD's list by pid, then the holders of device files by pid; often none at all.

    Processes of other containers are in KFD's list and not among the holders. Raises NoData without
    a GPU driver, Denied when KFD's list may not be read.
    """
    kfd = kfd_pids(host)
    nvidia = any(_is_nvidia_gpu(f"/dev/{name}") for name in host.names_or_empty("/dev"))
    if kfd is None and not nvidia:
        raise NoData("neither KFD nor an NVIDIA GPU")
    for pid in kfd or ():
        yield GpuUser(pid, (), "")
    if not nvidia and not (kfd and host.exists(_KFD_DEVICE)):
        return  # nobody anywhere uses KFD, or nobody here can
    # With NVIDIA GPUs beside them, KFD's list says nothing of who else is a user.
    expected = [] if nvidia else list(kfd or ())
    scan = _HolderScan(host)
    holders = scan.holders(expected)
    yield from holders
    # What may not be looked into matters only where a user is missing.
    if nvidia or len(holders) < len(expected):
        yield from scan.unread()


def is_gpu_device(path: str) -> bool:
    """Whether a device file gives access to a GPU: /dev/kfd, or /dev/nvidia and a number."""
    return path == _KFD_DEVICE or _is_nvidia_gpu(path)


def _is_nvidia_gpu(path: str) -> bool:
    return path.startswith(_NVIDIA_DEVICE) and is_digits(path[len(_NVIDIA_DEVICE) :])


def kfd_pids(host: Host) -> Optional[Sequence[int]]:
    """None where there is no KFD. Raises Denied."""
    try:
        return sorted(host.numbers(KFD_LIST))
    except NoData:
        return None


class _HolderScan:
    """Open files of every process that is visible here, as far as they may be looked at."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.links = 0
        self.left_out = 0
        self.refused = 0
        self.refusal = ""

    def holders(self, expected: Sequence[int]) -> Sequence[GpuUser]:
        """By pid. Where `expected`, in order, is right, nobody else needs to be looked into."""
        pids = {int(name) for name in self.host.names_or_empty("/proc") if name.isdigit()}
        users = list(self._among(pids.intersection(expected)))
        if not expected or [user.pid for user in users] != list(expected):
            users += self._among(pids.difference(expected))
        return sorted(users, key=attrgetter("pid"))

    def _among(self, pids: Iterable[int]) -> Iterator[GpuUser]:
        for pid in sorted(pids):
            devices = sorted(set(self._devices(f"/proc/{pid}/fd")))
            if devices:
                comm = self.host.text_or_empty(f"/proc/{pid}/comm", 256)
                yield GpuUser(pid, tuple(devices), comm)

    def _devices(self, directory: str) -> Iterator[str]:
        try:
            names = self.host.listdir(directory)  # of a kernel thread: empty
        except NoData:
            return  # it has ended
        except ReadError as error:
            self.refused += 1
            self.refusal = self.refusal or str(error)
            return
        if self.links + len(names) > MOST_LINKS:
            self.left_out += 1
            return
        self.links += len(names)
        for name in names:
            try:
                target = self.host.readlink(f"{directory}/{name}")
            except ReadError:
                continue  # closed since it was listed
            if is_gpu_device(target):
                yield target

    def unread(self) -> Iterator[Unread]:
        """Processes that could not be, or were not, looked into."""
        if self.refused:
            reason = f"{self.refused} processes, the first: {self.refusal}"
            yield Unread("/proc/<pid>/fd", Status.DENIED, reason)
        if self.left_out:
            reason = f"{self.left_out} processes were not looked into, after {MOST_LINKS} files"
            yield Unread("/proc/<pid>/fd", Status.ERROR, reason)
