"""What is planted, and which answers are right."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import fake_node, fake_rdma
from tests.cluster.fake_node import KernelRecord
from tests.cluster.live.lab import HOSTS, HUNG_GPU, SAVES, VICTIM, Answer, Lab

_LOST = ("node-death", "node-unreachable", "ray-node-dead")
_DEAD = ("worker-stopped", "signal-kill", "actor-fail")
_STUCK = ("worker-stopped", "straggler", "hang", "rccl-hang")


def _nothing(lab: Lab) -> None:
    """Nothing is wrong."""


@dataclass(frozen=True)
class Planting:
    """One fault of a training that has run for some steps."""

    name: str
    plant: Callable[[Lab], None]
    classes: tuple[str, ...] = ("healthy",)  # any of them is right
    host: str = ""
    wait_s: float = 40.0  # from the planting to the question
    probe: tuple[str, ...] | None = None  # what a probe can know; None: the same
    directory: tuple[str, ...] | None = None  # what the directory can tell; None: the same
    before: Callable[[Lab], None] = _nothing  # what is done before the training starts
    steps: bool = True  # the training has made steps before the fault is planted
    alone: bool = False  # the job is not submitted through Ray
    children: bool = False  # ranks are child processes of Ray's workers
    patient: bool = False  # the driver waits for the other ranks
    ends: bool = False  # the training ends by the fault
    breaks: bool = False  # the cluster is of no use afterwards

    def expected(self, way: str) -> tuple[str, ...]:
        """Classes that are right when asked in this way."""
        chosen = {"probe": self.probe, "directory": self.directory}.get(way)
        return self.classes if chosen is None else chosen

    def is_right(self, answer: Answer) -> bool:
        """Whether class and host are those of the fault."""
        expected, said = self.expected(answer.way), summary(answer)
        if "any" in expected:
            return True
        return any(
            each.failure_class in expected
            and (each.failure_class == "unknown" or self.host in ("", *each.hosts))
            for each in said[: 1 if answer.way != "probe" else None]
        )


@dataclass(frozen=True)
class Said:
    """One claim of an answer."""

    failure_class: str
    hosts: tuple[str, ...]
    confidence: str
    text: str = ""


def summary(answer: Answer) -> list[Said]:
    """The verdict; of a probe its problems, or `healthy`."""
    document = answer.document
    if not document:
        return [Said(f"exit {answer.exit_code}", (), "", answer.complaint.strip()[-300:])]
    if answer.way != "probe":
        verdict = document["verdict"]
        hosts = tuple(verdict["hosts"])
        return [Said(verdict["class"], hosts, verdict["confidence"], verdict["summary"])]
    problems = [one for one in document["findings"] if one["severity"] != "info"]
    if not problems:
        return [Said("healthy", (), "")]
    return [
        Said(one["class"], (one["host"] or "",), one["confidence"], one["title"])
        for one in problems
    ]


def _signal(number: int) -> Callable[[Lab], None]:
    return lambda lab: lab.signal_rank(VICTIM, number)


def _steer(said: str) -> Callable[[Lab], None]:
    def plant(lab: Lab) -> None:
        (lab.steering / f"fault-{HOSTS.index(VICTIM)}").write_text(said)

    return plant


def _steered(name: str, text: str) -> Callable[[Lab], None]:
    def plant(lab: Lab) -> None:
        lab.steering.mkdir(parents=True, exist_ok=True)
        (lab.steering / name).write_text(text)

    return plant


def _kernel_says(lab: Lab, *records: KernelRecord) -> None:
    path = lab.cluster.hosts[VICTIM].spec.kmsg
    assert path is not None
    fake_node.write_kmsg(path, [*fake_node.quiet_records(time.time() - 30), *records])


def _out_of_memory(lab: Lab) -> None:
    """As the kernel ends a process of a node that is full."""
    rank = lab.ranks(VICTIM)[0]
    now = time.time()
    invoked = "ray::Trainer.tr invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER), order=0"
    killed = (
        f"Out of memory: Killed process {lab.own_pid(rank)} (ray::Trainer.tr) "
        "total-vm:91234567kB, anon-rss:61234567kB, file-rss:0kB, shmem-rss:0kB, UID:0"
    )
    _kernel_says(lab, KernelRecord(invoked, now, 4), KernelRecord(killed, now, 3))
    lab.watched.plant(VICTIM, f'hw_oom_kills_total{{host="{VICTIM}"}} 1\n')
    lab.signal_rank(VICTIM, signal.SIGKILL)


def _uncorrectable(lab: Lab) -> None:
    fake_node.set_ras(lab.hosts.gpus[2], "umc", (2, 0, 0))
    line = f'hw_gpu_ras_umc_ue_total{{gpu="2",host="{VICTIM}"}} 2\n'
    lab.watched.plant(VICTIM, line)


def _hung_counters(lab: Lab) -> None:
    """The driver crashes at a read of its counters, which never ends."""
    address = fake_node.DEFAULT_ADDRESSES[HUNG_GPU]
    _kernel_says(lab, *fake_node.cper_oops_records(time.time(), address))
    lab.hosts.counters.hang("aca_umc")


def _retransmits(lab: Lab) -> None:
    tree = lab.cluster.hosts[VICTIM].spec.sys
    assert tree is not None

    def climb(tree: Path) -> None:
        for number in range(1, 1200):
            fake_rdma.set_counter(tree, "ionic_3", "tx_rdma_retx_pkts", 400 * number)
            line = "hw_rdma_tx_retx_pkts_total"
            labels = f'{{device="ionic_3",host="{VICTIM}"}}'
            lab.watched.plant(VICTIM, f"{line}{labels} {400 * number}\n")
            time.sleep(0.1)

    threading.Thread(target=climb, args=(tree,), daemon=True).start()


def _fill_disk(lab: Lab) -> None:
    fill = f"head -c 100M /dev/zero > {SAVES}/other"
    lab.cluster.run_on(VICTIM, ["sh", "-c", fill])
    lab.wait_for_end()


def _clock_off(lab: Lab) -> None:
    lab.hosts.clock.write_text("+90\n")


def _hung_file_system(lab: Lab) -> None:
    lab.hosts.data.hang("index", "open")
    lab.hosts.data.hang(".", "statfs")


def _second_job(lab: Lab) -> None:
    lab.submit("toy-second")


def _finish(lab: Lab) -> None:
    lab.finish()


def _kill_driver_rank(lab: Lab) -> None:
    lab.signal_rank(VICTIM, signal.SIGKILL)
    lab.wait_for_end()
    time.sleep(60)


_CHATTER = """\
WARNING: transparent hugepages are not enabled, performance may suffer
UserWarning: The given NumPy array is not writable, errors may follow
W0101 retrying a failed request to the metadata server (attempt 1 of 5): timeout
NCCL WARN Could not find a faster path, using sockets"""

PLANTINGS = (
    Planting("nothing", _nothing, wait_s=20),
    Planting("stopped", _signal(signal.SIGSTOP), ("worker-stopped",), VICTIM,
             directory=("unknown", "straggler", "hang")),
    Planting("stopped just now", _signal(signal.SIGSTOP), ("worker-stopped",), VICTIM, wait_s=3,
             directory=("any",)),
    Planting("stopped, job not Ray's", _signal(signal.SIGSTOP), ("worker-stopped",), VICTIM,
             directory=("unknown", "straggler", "hang"), alone=True),
    Planting("nothing, job not Ray's", _nothing, wait_s=20, alone=True),
    Planting("children, nothing", _nothing, wait_s=20, children=True),
    Planting("children, stopped", _signal(signal.SIGSTOP), ("worker-stopped",), VICTIM,
             directory=("unknown", "straggler", "hang"), children=True),
    Planting("children, killed", _signal(signal.SIGKILL), _DEAD, VICTIM, wait_s=10,
             probe=("any",), ends=True, children=True),
    Planting("children, spins", _steer("spin"), _STUCK, VICTIM, children=True,
             directory=("unknown", "straggler", "hang")),
    Planting("killed", _signal(signal.SIGKILL), _DEAD, VICTIM, wait_s=10, probe=("any",),
             ends=True),
    Planting("killed, driver waits", _signal(signal.SIGKILL), _DEAD, VICTIM, wait_s=10,
             directory=("any",), patient=True),
    Planting("segfault", _signal(signal.SIGSEGV), (*_DEAD, "segfault"), VICTIM, wait_s=10,
             probe=("any",), ends=True),
    Planting("spins", _steer("spin"), _STUCK, VICTIM, directory=("unknown", "straggler", "hang")),
    Planting("slow 1.5", _steer("1.5"), ("tgs-degradation", "straggler"), wait_s=60,
             probe=("any",)),
    Planting("two jobs", _second_job, wait_s=10),
    Planting("finished", _finish, wait_s=5, ends=True),
    Planting("failed a minute ago", _kill_driver_rank, _DEAD, VICTIM, wait_s=1, probe=("any",),
             ends=True),
    Planting("prometheus dead", lambda lab: lab.watched.kill_server(), ("unknown",),
             probe=("healthy",), directory=("any",)),
    Planting("exporter stopped", lambda lab: lab.watched.stop_exporter(VICTIM), ("exporter-down",),
             VICTIM, wait_s=90, probe=("any",)),
    Planting("exporter frozen", lambda lab: lab.watched.freeze(VICTIM),
             ("exporter-down", "ghost-data", "unknown"), wait_s=100, probe=("any",)),
    Planting("agent of the head", lambda lab: lab.signal_agent(HOSTS[0], signal.SIGSTOP),
             ("any",), wait_s=5, directory=("any",), breaks=True),
    Planting("agent stopped", lambda lab: lab.signal_agent(VICTIM, signal.SIGSTOP), _LOST, VICTIM,
             wait_s=5, directory=("any",), breaks=True, ends=True),
    Planting("agent killed", lambda lab: lab.signal_agent(VICTIM, signal.SIGKILL), _LOST, VICTIM,
             wait_s=20, directory=("any",), breaks=True, ends=True),
    Planting("raylet killed", lambda lab: lab.cluster.kill_raylet(VICTIM), _LOST, VICTIM,
             wait_s=20, breaks=True, ends=True),
    Planting("raylet of the head", lambda lab: lab.cluster.kill_raylet(HOSTS[0]), ("any",),
             wait_s=20, breaks=True, ends=True),
    Planting("warnings", _steered("chatter", _CHATTER), wait_s=20),
    Planting("compiling", _nothing, wait_s=40, before=_steered("phase", "compile 150"),
             steps=False, directory=("any",)),
    # Its ranks make no step for so long that nothing is called healthy.
    Planting("evaluation", _steered("phase", "evaluate 120"), ("healthy", "unknown"), wait_s=60,
             directory=("any",)),
    # Nothing in the log tells of it before its end.
    Planting("long save", _steered("phase", "save 120"), ("healthy", "unknown"), wait_s=60,
             directory=("any",)),
    Planting("NaN loss", _steered("loss", "nan"), ("gradient-explosion", "loss-divergence"),
             wait_s=20),
    Planting("memory", _out_of_memory, ("oom-kill", "oom-host"), VICTIM, wait_s=10,
             directory=("oom-kill", "oom-host", "signal-kill", "actor-fail"), ends=True,
             breaks=True),
    Planting("full disk", _fill_disk, ("disk-full",), VICTIM, wait_s=5, ends=True, breaks=True),
    Planting("uncorrectable", _uncorrectable, ("gpu-memory-error",), VICTIM, wait_s=20,
             breaks=True),
    Planting("counters hang", _hung_counters, ("gpu-driver-fault",), VICTIM, wait_s=20,
             directory=("any",), breaks=True),
    Planting("retransmits", _retransmits, ("rdma-degraded",), VICTIM, wait_s=45, breaks=True),
    Planting("clock off", _clock_off, ("clock-skew",), VICTIM, wait_s=20, directory=("any",),
             breaks=True),
    Planting("file system hangs", _hung_file_system, ("hung-read", "storage-stall"), VICTIM,
             wait_s=45, directory=("any",), breaks=True),
    Planting("link cut", lambda lab: lab.cluster.cut_link(VICTIM), _LOST, VICTIM, breaks=True,
             ends=True),
)  # fmt: skip
