"""One training job: its machines, its settings, and what a fault does to it.

A kind (see kinds/) edits a `Job` before its timeline is built, then the series that follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.incidents.timeline import Plan, Timeline, build


@dataclass(frozen=True)
class GpuModel:
    """What one accelerator draws and holds. Source: fleet figures of idle, waiting and training."""

    name: str  # as in Ray's GpuDeviceName
    idle_watts: float
    wait_watts: float  # every wave spins in a collective
    active_watts: float
    clock_mhz: float
    vram_bytes: float


MODELS = (
    GpuModel("AMD_Instinct_MI355X_OAM", 260, 302, 900, 2050, 309_220_868_096),
    GpuModel("AMD_Instinct_MI300X_OAM", 172, 218, 655, 2050, 206_141_652_992),
    GpuModel("AMD_Instinct_MI325X_OAM", 195, 240, 820, 2060, 274_877_906_944),
    GpuModel("AMD_Instinct_MI999_OAM", 220, 262, 780, 1900, 309_220_868_096),  # nobody's profile
)
NICS = ("ionic_{}", "rdma{}", "bnxt_re{}", "mlx5_{}")
NAMES = ("mi{}", "node{:04d}", "gpu-r{}", "tw{:03d}", "useocpm2m-{}")
TRAINED = ("llama3.1-405b", "deepseek3-671b", "mixtral-8x22b", "grok-1", "llama2-70b")
MOE = {"deepseek3-671b", "mixtral-8x22b", "grok-1"}


@dataclass(frozen=True)
class Override:
    """In this window the GPUs of a host are in another phase than the job."""

    host: str
    start: float
    end: float
    gpus: tuple[int, ...] | None  # None: all
    phase: int | None = None
    load: float | None = None


@dataclass(frozen=True)
class Options:
    """How large and how long; smaller is cheaper to build."""

    nodes: int | None = None  # None: 3 to 8
    gpus: int = 8
    ports: int = 8
    minutes: float | None = None  # of training; None: 35 to 65
    interval_s: float | None = None  # None: 10 or 15
    wal_s: float = 0.0  # the newest of it lies in the write-ahead log, not in blocks
    ray_refresh_s: float | None = None  # None: with every scrape, mostly
    noise: bool = False  # what happens beside, see noise.py
    start: float | None = None  # of the first scrape; None: some day of November 2026
    dialect: str = ""  # dcgm, amd: other exporters' series instead of ours, see exporters.py


@dataclass
class Job:
    """All that is decided before anything is simulated. Times are Unix seconds."""

    rng: np.random.Generator
    options: Options
    job_id: int
    trained: str
    hosts: list[str]
    ips: list[str]
    model: GpuModel
    nic: str
    interval_s: float
    ray_refresh_s: float
    start: float  # of the first scrape
    plan: Plan
    total_steps: int | None  # None: as many as fit, so that the job completes
    tokens: int  # of one device and step
    framework: str = "maxtext"  # maxtext, megatron: whose log it is
    ending: str = "success"  # success, live, cancelled, failed
    exit_code: int = 0
    reason: str = ""  # in the summary, after the dash
    ended_at: float | None = None  # None: right after the last step
    ray: bool = True
    all_tasks: bool = False  # every task prints its step lines
    restored: bool = False
    full_families: bool = True
    waiting_clock: bool = True  # sclk stays up while GPUs spin
    save_util: float = 5.0
    save_power: float = 0.06  # share of the way from idle to active
    save_traffic: float = 0.0  # share of RDMA traffic that flows on in a save
    heartbeat_s: int = 900
    overrides: list[Override] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # of the log, after the last step
    early_lines: list[str] = field(default_factory=list)  # before the first step
    worker_lines: dict[str, list[str]] = field(default_factory=dict)
    exporter_lines: dict[str, list[str]] = field(default_factory=dict)
    prometheus_lines: list[str] = field(default_factory=list)
    log_until: float | None = None  # step lines after this never reached the log
    event_file: bool = False

    @property
    def name(self) -> str:
        return f"{'JAX' if self.framework == 'maxtext' else 'pretrain'}-{self.trained}"

    @property
    def head(self) -> str:
        return self.hosts[0]

    @property
    def train_end(self) -> float:
        return self.plan.train_end

    @property
    def writers(self) -> list[str]:
        """Hosts of data-parallel replica 0, which write checkpoints."""
        return self.hosts[: max(1, len(self.hosts) // 4)]

    @property
    def ports(self) -> list[str]:
        return [self.nic.format(index) for index in range(self.options.ports)]

    def timeline(self) -> Timeline:
        noise = np.clip(self.rng.normal(0, 0.003, 4096), -0.008, 0.008)
        return build(self.plan, noise)

    # ---- what a kind draws

    def host(self, *besides: str) -> str:
        """Any host but these."""
        left = [host for host in self.hosts if host not in besides]
        return left[int(self.rng.integers(len(left)))]

    def worker(self, *besides: str) -> str:
        """Any host but the head and these."""
        return self.host(self.head, *besides)

    def gpu(self) -> int:
        return int(self.rng.integers(self.options.gpus))

    def port(self) -> str:
        return self.ports[int(self.rng.integers(len(self.ports)))]

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def moment(self, low: float = 0.4, high: float = 0.7, clear_s: float = 100.0) -> float:
        """A time in this part of training with no save within `clear_s` before or after it."""
        saves = build(self.plan, np.zeros(1)).saves
        begin = self.plan.train_start + self.plan.compile_s
        span = self.plan.train_end - begin
        for _ in range(200):
            at = begin + span * self.uniform(low, high)
            if all(at < s.start - clear_s or at > s.end + clear_s for s in saves):
                return round(at, 3)
        return round(begin + span * low, 3)

    def hang(self, at: float, for_s: float) -> None:
        """Training stands still from `at`; the job ends, or is looked at, `for_s` later."""
        self.plan.stop_at = at
        self.ended_at = at + for_s
        self.total_steps = 5000

    def fail(self, code: int, reason: str, *lines: str) -> None:
        self.ending, self.exit_code, self.reason = "failed", code, reason
        self.lines += lines

    def cancel(self) -> None:
        self.ending, self.exit_code = "cancelled", 143
        self.reason = "CANCELLED (scancel / SIGTERM)"


def draw(seed: int, options: Options) -> Job:
    """A well job with settings that follow from the seed."""
    rng = np.random.default_rng(seed)
    count = options.nodes or int(rng.integers(3, 9))
    first = int(rng.integers(1, 3000))
    pattern = NAMES[int(rng.integers(len(NAMES)))]
    minutes = options.minutes or float(rng.uniform(35, 65))
    some_day = 1_795_000_000.0 + float(rng.integers(0, 800_000))
    start = some_day if options.start is None else options.start
    step_s = float(rng.uniform(8, 16))
    mode = rng.choice(["blocking", "async", "off"], p=[0.6, 0.25, 0.15])
    restored = bool(mode != "off" and rng.random() < 0.3)
    save_s = float(rng.uniform(110, 260)) * min(1.0, minutes / 40)
    # At least two saves in the time there is.
    period = max(20, int(minutes * 60 / step_s * float(rng.uniform(0.25, 0.4)) / 10) * 10)
    begin = start + float(rng.uniform(200, 420))
    plan = Plan(
        train_start=begin,
        train_end=begin + minutes * 60,
        first_step=period * int(rng.integers(1, 9)) + 1 if restored else 0,
        step_s=step_s,
        compile_s=float(rng.uniform(40, 120)),
        period=None if mode == "off" else period,
        asynchronous=bool(mode == "async"),
        save_s=save_s,
        save_first=bool(rng.random() < 0.5),
    )
    # Ray's figures are as fresh as its reporter, which may be slower than the scrape.
    refresh = float(rng.choice([0.0, 60.0], p=[0.8, 0.2]))
    return Job(
        rng=rng,
        options=options,
        job_id=int(rng.integers(1000, 99_999)),
        trained=TRAINED[int(rng.integers(len(TRAINED)))],
        hosts=[pattern.format(first + index) for index in range(count)],
        ips=[f"10.{first % 200}.0.{index + 1}" for index in range(count)],
        model=MODELS[int(rng.choice(len(MODELS), p=[0.4, 0.35, 0.15, 0.1]))],
        nic=NICS[int(rng.choice(2))],
        interval_s=options.interval_s or float(rng.choice([10.0, 15.0])),
        ray_refresh_s=refresh if options.ray_refresh_s is None else options.ray_refresh_s,
        start=start,
        plan=plan,
        total_steps=None,
        tokens=int(rng.choice([16_384, 24_576, 32_768])),
        all_tasks=bool(rng.random() < 0.3),
        restored=restored,
        full_families=bool(rng.random() < 0.5),
        waiting_clock=bool(rng.random() < 0.5),
        save_util=float(rng.uniform(3, 45)),
        save_power=float(rng.uniform(0.04, 0.25)),
        save_traffic=float(rng.choice([0.0, 1.0], p=[0.7, 0.3])),
        heartbeat_s=int(rng.choice([300, 900, 1800])),
    )
