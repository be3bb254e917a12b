"""Writes a kernel log of some size: mostly lines of a healthy node, some faults, no two alike.

    python benchmarks/kernel_log_text.py FILE BYTES SHARE

SHARE of the lines, 0 to 1, are examples of the catalog; of the rest, one in fifty is a near miss
that states nothing, half differ in their numbers, the others in hexadecimal names as well.
"""

from __future__ import annotations

import random
import sys

from raydiag import catalog

_NUMBERED = (
    "audit: type=1400 audit(%d.%03d:%d): apparmor=STATUS operation=profile_load",
    "perf: interrupt took too long (%d > %d), lowering kernel.perf_event_max_sample_rate to %d",
    "systemd[1]: run-%d-%d-%d.scope: Deactivated successfully.",
)
_NAMED = (
    "pci 0000:%02x:00.0: BAR 2 [mem 0x%08x-0x%08x 64bit pref]: assigned",
    "EXT4-fs (nvme%dn1p%d): mounted filesystem %08x r/w with ordered data mode",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth%x%x%04x: link becomes ready",
    "docker0: port %d(veth%x%04x) entered forwarding state",
)


def write(path: str, size_bytes: int, share: float) -> None:
    chance = random.Random(7)
    rows = catalog.kernel_table().events
    faults = [line for row in rows for line in row.examples]
    dull = [line for row in rows for line in row.near_misses if not catalog.kernel_event(line)]
    written, number = 0, 0
    with open(path, "w", encoding="utf-8") as stream:
        while written < size_bytes:
            number += 1
            if chance.random() < share:
                text = chance.choice(faults)
            elif chance.random() < 0.02:
                text = chance.choice(dull)
            else:
                kind = chance.choice(_NUMBERED if chance.random() < 0.5 else _NAMED)
                text = kind % tuple(chance.randrange(1 << 16) for _ in range(3))
            written += stream.write(f"[{number / 50:12.6f}] {text}\n")


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
