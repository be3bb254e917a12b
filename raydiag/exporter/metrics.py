"""Every metric that the exporter knows: name, type, unit, labels, help and where it comes from.

The list itself is `metrics.json`, beside this file.

The names are those of the shell exporter that jobs have run so far, so that dashboards and stored
series go on. Where a value differs from the shell exporter's on purpose:

| metric | difference | why |
|---|---|---|
| hw_tcp_estab_resets_total | from Tcp in /proc/net/snmp | in netstat it is missing, so 0 for ever |
| hw_gpu_ras_*, hw_gpu_pcie_* | GPUs of every PCI domain | the others were passed over |
| hw_gpu_ras_* | <block>_err_count where there is no aca_<block> | older drivers' name of it |
| hw_gpu_power_watts | power1_average where there is no power1_input | other models' name of it |
| hw_dmesg_gpu_errors_total | never falls while the node is up | records leave the ring buffer |
| hw_dmesg_gpu_errors_total | goes on where records were overwritten | there the others stop |
| hw_io_pressure_full_total_us | untyped | its name is none for a counter |
| hw_rdma_* of mlx5, bnxt_re | by the names of these drivers, where they mean the same | no series |
| hw_rdma_rx_bytes_total and its like | no sample where the card refuses or counts not | 0 before |
| hw_scrape_duration_seconds | of the whole last cycle, of all plugins together | they run apart |

A GPU is its position among the sorted PCI addresses, a host its short name. Runs on Python 3.9.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Optional, Union

GAUGE, COUNTER, UNTYPED = "gauge", "counter", "untyped"
OWN_PREFIX = "raydiag_exporter_"
TENSORBOARD_PREFIX = "tb_"


@dataclass(frozen=True)
class Metric:
    """One metric family."""

    name: str
    type: str  # GAUGE, COUNTER, UNTYPED; of foreign plugins also "histogram" and "summary"
    unit: str  # of the value, in words; "" for a plain number
    labels: tuple[str, ...]  # names, "host" included
    help: str
    source: str  # file on the node and key in it


class Sample(NamedTuple):
    """One value of one series; as JSON a list in this order."""

    name: str
    labels: Mapping[str, str]  # without `host`, which the page adds
    value: Union[int, float]
    timestamp_ms: Optional[int] = None  # None: now, which is right for all but tb_*


_UNTYPED = frozenset({"hw_io_pressure_full_total_us"})


def _metrics() -> Iterator[Metric]:
    """As `metrics.json` lists them: by their labels, then name, unit, source and help of each."""
    table = json.loads(pkgutil.get_data("raydiag.exporter", "metrics.json") or b"")
    for group in table["groups"]:
        for name, unit, source, text in group["metrics"]:
            yield Metric(name, _type(name), unit, tuple(group["labels"]), text, source)


def _type(name: str) -> str:
    """What ends in _total is a counter, what is not in _UNTYPED a gauge."""
    if name.endswith("_total"):
        return COUNTER
    return UNTYPED if name in _UNTYPED else GAUGE


REGISTRY: Mapping[str, Metric] = {metric.name: metric for metric in _metrics()}


def metric_of(name: str) -> Optional[Metric]:
    """The metric of a sample of ours; any other tb_ name is a tag that training writes."""
    if name in REGISTRY or not name.startswith(TENSORBOARD_PREFIX):
        return REGISTRY.get(name)
    text = "A scalar that training writes for TensorBoard."
    return Metric(name, GAUGE, "", ("host",), text, "TensorBoard event file")
