"""What the scripts around training print: header, stages, start-up, dashboards, summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional


@dataclass(frozen=True)
class Header:
    """What the job said about itself before training; None where the log does not."""

    job_id: Optional[str] = None
    job_name: Optional[str] = None
    nnodes: Optional[int] = None
    nodelist: tuple[str, ...] = ()  # expanded; index = srun task id with one task a node
    ray: bool = False  # RAY_PORT, [Ray] or [Prometheus] lines, or a ray_logs directory
    model_name: Optional[str] = None
    model_alias: Optional[str] = None
    exp_tag: Optional[str] = None
    passthrough: Mapping[str, str] = field(default_factory=dict)  # PASSTHROUGH_ARGS as key=value
    config: Mapping[str, str] = field(default_factory=dict)  # `Config param KEY: VALUE`
    steps: Optional[int] = None  # passthrough first, then config, then what a step line says
    checkpoint_period: Optional[int] = None  # None: not printed; the default is the judge's matter
    enable_checkpointing: Optional[bool] = None
    async_checkpointing: Optional[bool] = None
    heartbeat_timeout_s: Optional[float] = None
    max_requeue_times: Optional[int] = None
    framework: Optional[str] = None  # whose step lines it prints: the id of their format


@dataclass(frozen=True)
class StageEvent:
    """One line of the stage grammar, or an opening line without BEGIN."""

    name: str  # as printed: Preflight, Docker pull, ECC check, Training
    event: str  # begin, end, timeout, failed
    line: int
    elapsed_s: Optional[float]
    exit_code: Optional[int]
    time: Optional[float]
    raw: str
    file: str = ""


@dataclass(frozen=True)
class Summary:
    """The JOB SUMMARY block. The last one counts where a log holds several."""

    line: int
    file: str
    word: Optional[str]  # SUCCESS or FAILED; None: a summary without status
    exit_code: Optional[int]
    reason: str  # what follows the dash; "" when nothing does
    status_line: Optional[int]
    status_text: str
    wall_s: Optional[float]
    time: Optional[float]
    count: int = 1  # summaries in this file


@dataclass(frozen=True)
class Dashboards:
    """Where the job said that its dashboards are."""

    tunnels: tuple[str, ...] = ()  # commands verbatim, at most 8
    head: Optional[str] = None  # host of the tunnel's target
    prometheus_port: Optional[int] = None  # from the tunnel, else from [Prometheus] lines
    prometheus_source: str = ""  # tunnel, started, occupied; "" when nothing says
    prometheus_dir: Optional[str] = None
    tensorboard_port: Optional[int] = None
    ray_fallback_line: Optional[int] = None  # "Ray cluster failed, falling back to non-Ray mode"


@dataclass(frozen=True)
class PhaseMark:
    """A line that shows how far start-up has come."""

    phase: str  # id: dataset, placement, mooncake, trainer-init, engine-init, queues, training, ...
    event: str  # reached, progress, done, error
    first_line: int
    last_line: int
    first_time: Optional[float]
    last_time: Optional[float]
    first_near_time: Optional[float]
    last_near_time: Optional[float]
    raw: str  # newest, verbatim
    file: str = ""
