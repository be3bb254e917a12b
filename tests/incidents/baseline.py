"""What the instruments of a well cluster show, from phases and load: noise, saves, old counters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.incidents.job import Job
from tests.incidents.signals import Signals
from tests.incidents.timeline import COMPILE, IDLE, SAVE, TRAIN, Timeline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HOST_MEMORY_BYTES = 2.434e12
_RAS = ("umc", "xgmi", "gfx", "mmhub", "sdma")
_RDMA_RATES = {  # per second and port, of a well job under full load
    "hw_rdma_tx_bytes_total": 9e9,
    "hw_rdma_rx_bytes_total": 9e9,
    "hw_rdma_tx_pkts_total": 2.2e6,
    "hw_rdma_rx_pkts_total": 2.2e6,
}
_RDMA_STILL = (
    "hw_rdma_tx_retx_bytes_total",
    "hw_rdma_tx_retx_pkts_total",
    "hw_rdma_tx_ack_timeout_total",
    "hw_rdma_req_rx_cqe_err_total",
    "hw_rdma_req_tx_retry_excd_err_total",
)
_RDMA_UPSTREAM = ("hw_rdma_ccl_tx_retx_pkts_total", "hw_rdma_rx_dup_response_total")
_HOST_STILL = {
    "hw_tcp_listen_overflows_total": 40,
    "hw_tcp_listen_drops_total": 40,
    "hw_tcp_estab_resets_total": 0,
    "hw_tcp_abort_on_timeout_total": 60,
    "hw_oom_kills_total": 3,
    "hw_dmesg_gpu_errors_total": 4,
}


def simulate(job: Job, timeline: Timeline, until: float) -> Signals:
    """Every series of every host from `job.start` to `until`."""
    signals = Signals(job.rng)
    for index in range(len(job.hosts)):
        _Host(job, timeline, signals, index, until).measure()
    return signals


class _Host:
    """One machine."""

    def __init__(
        self, job: Job, timeline: Timeline, signals: Signals, index: int, until: float
    ) -> None:
        self.job, self.timeline, self.signals, self.rng = job, timeline, signals, job.rng
        self.host, self.index, self.until = job.hosts[index], index, until
        self.times = self._scrapes()
        self.phase, self.load = self._activity(self.times)
        self.main = self.phase[0]
        self.saving = np.zeros(len(self.times), dtype=bool)
        for save in timeline.saves:
            self.saving |= (self.times >= save.start) & (self.times < save.end)
        self.saving &= self.times < timeline.plan.stop_at
        self.writer = self.host in job.writers

    def _scrapes(self) -> Floats:
        """Each target has its own offset; the server is a few milliseconds late now and then."""
        step = self.job.interval_s
        first = self.job.start + float(self.rng.uniform(0, step))
        times = np.arange(first, self.until, step)
        return np.round(times + self.rng.exponential(0.002, len(times)), 3)

    def _activity(self, times: Floats) -> tuple[Ints, Floats]:
        """Phase and load, one row for each GPU."""
        over = self.job.ended_at or (self.timeline.last.end if self.timeline.last else self.until)
        base = self.timeline.phase(times)
        if self.job.ending != "live":
            base[times > over + 1] = IDLE
        phase = np.tile(base, (self.job.options.gpus, 1))
        load = np.tile(self.timeline.load(times), (self.job.options.gpus, 1))
        for one in self.job.overrides:
            if one.host != self.host:
                continue
            inside = (times >= one.start) & (times < one.end)
            rows = range(self.job.options.gpus) if one.gpus is None else one.gpus
            for row in rows:
                if one.phase is not None:
                    phase[row, inside & (phase[row] != IDLE)] = one.phase
                if one.load is not None:
                    load[row, inside] = one.load
        return phase, load

    def measure(self) -> None:
        self._gpus()
        self._rdma()
        self._network()
        self._kernel()
        self._ray()
        self._up()

    # ---- GPUs

    def _noise(self, shape: tuple[int, ...], size: float) -> Floats:
        return self.rng.normal(0, size, shape)

    def _gpus(self) -> None:
        model, phase = self.job.model, self.phase
        shape = phase.shape
        each = self._noise((shape[0], 1), 0.006)
        train = model.wait_watts + (model.active_watts - model.wait_watts) * self.load
        save = model.idle_watts + (model.active_watts - model.idle_watts) * self.job.save_power
        watts = np.select(
            [phase == IDLE, phase == COMPILE, phase == TRAIN, phase == SAVE],
            [
                model.idle_watts + self._noise(shape, 1.5),
                model.idle_watts * (1.08 + self._noise(shape, 0.03)),
                train * (1 + each + self._noise(shape, 0.018)),
                save * (1 + self._noise(shape, 0.03)),
            ],
            model.wait_watts + self._noise(shape, 2.5),
        )
        fast = (phase == TRAIN) | ((phase != IDLE) & self.job.waiting_clock)
        clock = np.where(fast, model.clock_mhz, 132.0) + self._noise(shape, 16)
        used = np.where(phase == IDLE, 6e8, model.vram_bytes * float(self.rng.uniform(0.7, 0.9)))
        gauges = {
            "hw_gpu_power_watts": np.round(watts, 1),
            "hw_gpu_temperature_celsius": self._temperature(watts),
            "hw_gpu_vram_used_bytes": np.round(used),
            "hw_gpu_vram_total_bytes": np.full(shape, model.vram_bytes),
        }
        for metric, rows in gauges.items():
            self._per_gpu(metric, rows)
        self._per_gpu("hw_gpu_clock_mhz", np.round(clock), type="sclk")
        if self.job.full_families:
            memory = np.full(shape, 1900.0)
            self._per_gpu("hw_gpu_clock_mhz", memory, type="mclk")
        self._gpu_counters(shape)

    def _temperature(self, watts: Floats) -> Floats:
        """Junction: follows power within a minute."""
        model = self.job.model
        share = (watts - model.idle_watts) / (model.active_watts - model.idle_watts)
        goal = 40 + 28 * share + self._noise((watts.shape[0], 1), 1.8)
        keep = float(np.exp(-self.job.interval_s / 45.0))
        celsius = np.empty_like(goal)
        celsius[:, 0] = goal[:, 0]
        for column in range(1, goal.shape[1]):
            celsius[:, column] = keep * celsius[:, column - 1] + (1 - keep) * goal[:, column]
        return np.round(celsius + self._noise(goal.shape, 0.4), 1)

    def _gpu_counters(self, shape: tuple[int, ...]) -> None:
        for block in _RAS:
            self._per_gpu(f"hw_gpu_ras_{block}_ue_total", np.zeros(shape))
            old = np.zeros(shape)
            if self.rng.random() < 0.1:  # corrected once, before this job
                old[int(self.rng.integers(shape[0]))] = int(self.rng.integers(1, 200))
            self._per_gpu(f"hw_gpu_ras_{block}_ce_total", old)
        for severity in ("correctable", "nonfatal", "fatal"):
            old = np.zeros(shape)
            if severity == "correctable" and self.rng.random() < 0.2:
                old[int(self.rng.integers(shape[0]))] = int(self.rng.integers(1, 5000))
            self._per_gpu(f"hw_gpu_pcie_{severity}_total", old)

    def _per_gpu(self, metric: str, rows: Floats, **labels: str) -> None:
        for gpu, values in enumerate(rows):
            self._hw(metric, values.copy(), gpu=str(gpu), **labels)

    def _hw(self, metric: str, values: Floats, **labels: str) -> None:
        told = {"host": self.host, "instance": f"{self.host}:9400", "job": "node_hw", **labels}
        self.signals.add(metric, self.host, "node_hw", self.times, values, told)

    # ---- network

    def _rdma(self) -> None:
        counts = len(self.times)
        busy = np.where(self.main == TRAIN, self.load.mean(axis=0), 0.0)
        busy[self.main == SAVE] = self.job.save_traffic
        for port in self.job.ports:
            told = {"device": port, "port": "1"}
            for metric, rate in _RDMA_RATES.items():
                if not self.job.full_families and "rx" in metric:
                    continue
                since_boot = float(self.rng.uniform(1e11, 9e13)) if "bytes" in metric else 2e9
                noise = 1 + self._noise((counts,), 0.01)
                grown = np.cumsum(busy * rate * self.job.interval_s * noise)
                self._hw(metric, np.floor(since_boot + grown).astype(float), **told)
            for metric in (*_RDMA_STILL, *(_RDMA_UPSTREAM if self.job.full_families else ())):
                self._hw(metric, np.full(counts, self._since_boot()), **told)
            quiet = self.rng.poisson(0.5 * self.job.interval_s, counts) * (self.main == TRAIN)
            start = float(self.rng.integers(0, 2_000_000))
            self._hw("hw_rdma_rx_cnp_pkts_total", start + np.cumsum(quiet), **told)
            if self.job.full_families:
                self._hw("hw_rdma_tx_cnp_pkts_total", start + np.cumsum(quiet // 2), **told)
            self._hw("hw_rdma_port_state", np.ones(counts), **told)

    def _since_boot(self) -> float:
        """Mostly nothing, sometimes what a year of other jobs has left."""
        if self.rng.random() < 0.7:
            return 0.0
        return float(np.floor(10 ** self.rng.uniform(0, 7.96)))

    def _network(self) -> None:
        counts, step = len(self.times), self.job.interval_s
        sent = np.full(counts, 2e6 * step)
        if self.writer:
            sent = sent + self.saving * 1.4e9 * step
        for index in range(2 if self.job.full_families else 1):
            told = {"device": f"ens{9 + index}np0"}
            for way, rows in (("tx", sent), ("rx", np.full(counts, 2e6 * step))):
                noise = 1 + self._noise((counts,), 0.05)
                total = np.floor(np.cumsum(rows * noise)) + float(self.rng.integers(10**12))
                self._hw(f"hw_net_{way}_bytes_total", total, **told)
                for bad in ("errors", "drop"):
                    old = float(self.rng.integers(0, 3000)) if bad == "drop" else 0.0
                    self._hw(f"hw_net_{way}_{bad}_total", np.full(counts, old), **told)
        resent = self.rng.poisson(float(self.rng.uniform(0.02, 0.35)) * step, counts)
        if self.writer:
            burst = self.rng.uniform(500, 3000, counts) * step
            resent = resent + (self.saving * burst).astype(np.int64)
        boot = float(np.floor(10 ** self.rng.uniform(3, 7.96)))
        self._hw("hw_tcp_retransmits_total", boot + np.cumsum(resent).astype(float))
        for metric, most in _HOST_STILL.items():
            self._hw(metric, np.full(counts, float(self.rng.integers(0, most + 1))))

    # ---- kernel

    def _kernel(self) -> None:
        counts = len(self.times)
        busy = self.main != IDLE
        heavy = self.saving & self.writer
        light = self.saving & ~heavy
        full = np.select(
            [heavy, light],
            [self.rng.uniform(30, 80, counts), self.rng.uniform(0, 2.5, counts)],
            self.rng.exponential(0.09, counts),
        )
        dirty = np.where(heavy, self.rng.uniform(4e9, 2e10, counts), 0)
        dirty = dirty + self.rng.exponential(2e6, counts)
        ctx = np.where(busy, 2.5e5, 1.5e4) * self.job.interval_s
        ctx = ctx * (1 + self._noise((counts,), 0.04))
        blocked = np.where(heavy, self.rng.integers(8, 24, counts), self.rng.random(counts) < 0.05)
        rows = {
            "hw_io_pressure_full_pct": np.round(full, 2),
            "hw_io_pressure_some_pct": np.round(full * 1.1 + self.rng.random(counts) * 0.3, 2),
            "hw_mem_dirty_bytes": np.round(dirty),
            "hw_mem_writeback_bytes": np.round(np.where(heavy, dirty * 0.2, 0)),
            "hw_procs_blocked": blocked.astype(float),
            "hw_procs_running": np.where(busy, 47, 2) + self.rng.poisson(2, counts).astype(float),
            "hw_context_switches_total": np.floor(1e7 + np.cumsum(ctx)),
            "hw_gpu_user_processes": np.where(busy, float(self.job.options.gpus), 0.0),
            "hw_scrape_duration_seconds": np.round(0.06 + self.rng.gamma(2.0, 0.02, counts), 3),
        }
        if self.job.full_families:
            total = np.cumsum(full * 1e4 * self.job.interval_s)
            rows["hw_io_pressure_full_total_us"] = np.floor(total)
            smooth = np.convolve(full, np.full(20, 0.05), "full")[:counts]
            rows["hw_io_pressure_full_avg300_pct"] = np.round(smooth, 2)
        for metric, values in rows.items():
            self._hw(metric, values)

    # ---- Ray's own exporter: no host label

    def _ray(self) -> None:
        step = self.job.interval_s
        times = self._scrapes()
        refresh = self.job.ray_refresh_s
        seen = np.floor(times / refresh) * refresh if refresh > step else times
        phase, _ = self._activity(seen)
        shape = phase.shape
        util = np.select(
            [phase == IDLE, phase == COMPILE, phase == TRAIN, phase == SAVE],
            [
                np.zeros(shape),
                self.rng.uniform(0, 25, shape),
                100 - self.rng.exponential(1.1, shape),
                self.job.save_util + self._noise(shape, 2.5),
            ],
            100.0,
        )
        for gpu in range(shape[0]):
            told = {
                "GpuDeviceName": self.job.model.name,
                "GpuIndex": str(gpu),
                "GpuUuid": f"{self.index:04x}{gpu:02x}00ab54cd",
            }
            values = np.round(util[gpu].clip(0, 100))
            self._add_ray("ray_node_gpus_utilization", times, _held(values, seen), told)
        busy = phase[0] != IDLE
        cpu = np.where(busy, 26.0, 3.0) + self._noise((len(times),), 0.8)
        rows = {
            "ray_node_mem_used": self._memory(seen),
            "ray_node_mem_total": np.full(len(times), HOST_MEMORY_BYTES),
            "ray_node_cpu_utilization": np.round(cpu, 1),
            "ray_node_disk_usage": np.full(len(times), 2.1e11),
            "ray_node_disk_utilization_percentage": np.full(len(times), 24.0),
        }
        for metric, values in rows.items():
            self._add_ray(metric, times, _held(values, seen), {})

    def _add_ray(self, metric: str, times: Floats, values: Floats, labels: dict[str, str]) -> None:
        told = {
            "IsHeadNode": str(self.index == 0).lower(),
            "RayNodeType": "worker" if self.index else "head",
            "SessionName": f"session_{self.job.job_id}",
            "Version": "2.49.0",
            "instance": f"{self.host}:55080",
            "ip": self.job.ips[self.index],
            "job": "ray",
            **labels,
        }
        self.signals.add(metric, self.host, "ray", times, values, told)

    def _memory(self, times: Floats) -> Floats:
        """Bytes in use; writers keep a copy of their shard after the first save."""
        rng = np.random.default_rng(self.job.job_id)  # alike on all hosts
        training, copy = rng.uniform(1.5e11, 3e11), rng.uniform(2.5e11, 6e11)
        used = np.full(times.shape, 6e10)
        used[times >= self.timeline.plan.train_start] = training
        for save in self.timeline.saves if self.writer else ():
            used[times >= save.end] = training + 1.6 * copy
            used[(times >= save.start) & (times < save.end)] = training + 2 * copy
        over = self.job.ended_at
        if over and self.job.ending != "live":
            used[times > over + 5] = 6e10
        return np.round(used + self._noise(times.shape, 4e8))

    def _up(self) -> None:
        for source, port, metric in (
            ("node_hw", 9400, "hw_scrape_duration_seconds"),
            ("ray", 55080, "ray_node_mem_used"),
        ):
            times = self.signals.one(self.host, metric).times
            told = {"instance": f"{self.host}:{port}", "job": source}
            self.signals.add("up", self.host, "up", times, np.ones(len(times)), told)


def _held(values: Floats, seen: Floats) -> Floats:
    """Between two reports the first value of a report is shown."""
    first = np.concatenate(([True], np.diff(seen) > 0))
    return values[np.maximum.accumulate(np.where(first, np.arange(len(seen)), 0))]


def lose_scrapes(signals: Signals, share: float) -> None:
    """A scrape fails now and then: no samples, and `up` is 0."""
    lost: dict[tuple[str, str], NDArray[np.bool_]] = {}
    for one in signals.of(source="up"):
        misses = signals.rng.random(len(one.times)) < share
        one.values[misses] = 0
        lost[one.host, one.labels["job"]] = misses
    for series in signals.series.values():
        if (series.host, series.source) in lost:
            series.values[lost[series.host, series.source]] = np.nan
