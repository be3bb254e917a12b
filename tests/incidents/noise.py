"""What happens on any cluster beside the incident, and means nothing."""

from __future__ import annotations

from tests.incidents.baseline import lose_scrapes
from tests.incidents.job import Job
from tests.incidents.signals import Series, Signals


def disturb(job: Job, signals: Signals) -> None:
    """Each with a chance of its own; never the kind's own series in a way that hides it."""
    if job.chance(0.5):
        lose_scrapes(signals, 0.002)
    for _ in range(2):
        if job.chance(0.4):
            _burst(job, signals, "hw_tcp_retransmits_total", 20, 1500, 300)
    if job.chance(0.3):
        _burst(job, signals, "hw_rdma_rx_cnp_pkts_total", 50, 300, 45)
    if job.chance(0.3):
        _old_counters(job, signals)
    if job.chance(0.3):
        _blip(job, signals, "hw_procs_running", 40)
    if job.chance(0.3):
        _blip(job, signals, "hw_io_pressure_full_pct", 18)
    if job.chance(0.2):
        _blip(job, signals, "hw_scrape_duration_seconds", 2.1)


def _any(job: Job, signals: Signals, metric: str) -> Series | None:
    """One series of this metric, wherever it is."""
    found = list(signals.of(metric=metric))
    return found[int(job.rng.integers(len(found)))] if found else None


def _burst(job: Job, signals: Signals, metric: str, low: float, high: float, most_s: float) -> None:
    """A counter that goes up for a while."""
    series = _any(job, signals, metric)
    start = job.moment(0.1, 0.9, 0)
    if series is not None:
        series.rate(start, start + job.uniform(10, most_s), job.uniform(low, high))


def _old_counters(job: Job, signals: Signals) -> None:
    """One machine has been up for a year."""
    host = job.host()
    for metric, amount in (
        ("hw_rdma_tx_retx_pkts_total", 90_000_000),
        ("hw_rdma_tx_ack_timeout_total", 31_000),
        ("hw_tcp_abort_on_timeout_total", 4_000),
        ("hw_dmesg_gpu_errors_total", 17),
        ("hw_oom_kills_total", 3),
    ):
        for series in signals.of(host, metric):
            series.values += amount


def _blip(job: Job, signals: Signals, metric: str, amount: float) -> None:
    """One scrape sees something, the next one does not."""
    series = _any(job, signals, metric)
    if series is not None:
        at = job.moment(0.1, 0.9, 0)
        seen = series.within(at, at + job.interval_s)
        series.values[seen] += amount
