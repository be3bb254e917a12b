"""A small job's series: three hosts, ten minutes, labels as the exporters and Ray write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.tsdb.promtool import OneSeries

START = 1_795_300_000.0
STEP_S = 10.0
COUNT = 61
END = START + STEP_S * (COUNT - 1)
HOSTS = ("mi10", "mi11", "mi12")
LOSSES = tuple(9.0 - 0.125 * step for step in range(40))


def times(count: int = COUNT, start: float = START, step_s: float = STEP_S) -> list[float]:
    return [start + step_s * index for index in range(count)]


def job(hosts: Sequence[str] = HOSTS, until: Mapping[str, int] | None = None) -> list[OneSeries]:
    """`until`: number of samples of a host that stopped early."""
    return [one for number, host in enumerate(hosts) for one in _host(number, host, until or {})]


def _host(number: int, host: str, until: Mapping[str, int]) -> Iterator[OneSeries]:
    when = times(until.get(host, COUNT))
    exporter = {"host": host, "instance": f"{host}:9400", "job": "node_hw"}
    ray = {"instance": f"{host}:55080", "ip": f"10.9.0.{number}", "job": "ray"}
    ray |= {
        "SessionName": "s",
        "Version": "2.49.0",
        "IsHeadNode": "true" if number == 0 else "false",
    }
    wave = [index % 7 for index in range(len(when))]
    flat = [(t, 1.0) for t in when]
    yield "up", {"instance": exporter["instance"], "job": "node_hw"}, flat
    yield "up", {"instance": ray["instance"], "job": "ray"}, flat
    yield "hw_scrape_duration_seconds", exporter, _paired(when, [0.1 + w / 100 for w in wave])
    for gpu in range(2):
        labels = exporter | {"gpu": str(gpu)}
        yield "hw_gpu_power_watts", labels, _paired(when, [800 + w for w in wave])
    yield "hw_tcp_retransmits_total", exporter, _paired(when, [9e7 + i for i in range(len(when))])
    # Scraped as often as the rest, renewed once a minute.
    yield "ray_node_mem_used", ray, _paired(when, [1e11 + i // 6 for i in range(len(when))])
    if number == 0:
        yield from training(exporter)


def training(labels: Mapping[str, str], losses: Sequence[float] = LOSSES) -> Iterator[OneSeries]:
    """Real steps every 10 s from the second minute on, then two fills that repeat the last one."""
    when = [START + 120.25 + 10 * step for step in range(len(losses))]
    fills = [when[-1] + 20, when[-1] + 40]
    last = len(losses) - 1
    steps = [*map(float, range(len(losses))), last, last]
    yield "tb_step", labels, _paired(when + fills, steps)
    yield "tb_learning_loss", labels, _paired(when + fills, [*losses, losses[-1], losses[-1]])
    flags = [0.0] * len(when) + [1.0, 1.0]
    yield "tb_metrics_plugin_staleness_fill", labels, _paired(when + fills, flags)


def _paired(when: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(when, values, strict=True))
