"""What a job says about itself before training: environment, arguments, configuration.

    JOB_ID=4711
    NNODES=2
    JOB_NODELIST=node[07-08]
    PASSTHROUGH_ARGS="steps=1000 enable_checkpointing=true"
    Config param checkpoint_period: 100

Source: the batch script's header, MaxText's configuration dump, Slurm's `--comment` for automatic
restarts. The first value of a key counts, since later ones may be of something started by the job.
"""

import re
import shlex
from dataclasses import dataclass, field

from raydiag.joblog.facts import Header
from raydiag.joblog.log_line import JobLogLine
from raydiag.joblog.numbers import decimal_number, whole_number
from raydiag.joblog.tables import table
from raydiag.nodeset import expand_in_order
from raydiag.untrusted import parsed, regular

_VARIABLES = table("variables")
CONFIG_KEYS = tuple(table("config_keys"))
_KEY = re.compile(r"^\s*(?:export |declare -x )?([A-Z][A-Z_]{2,24})=(.*)$")
_CONFIG = re.compile(r"\bConfig param (\w+): (.*)$")
_COMMENT = re.compile(r"#SBATCH\s+--comment[= ]\s*'?(\{.{0,2000}\})'?")
_TITAN = re.compile(r"\btotal steps (\d{1,12})\b")
_MEGATRON = re.compile(r"^\s*(train_iters|save_interval) \.{3,64} (\d{1,12})\s*$")
_RAY = ("[Ray] ", "[Prometheus] ")
ANCHORS = (
    *(f"{key}=".encode() for key in _VARIABLES),
    *(f"Config param {key}:".encode() for key in CONFIG_KEYS),
    b"#SBATCH",
    b"[Ray] ",
    b"[Prometheus] ",
    b" total steps ",
    b"train_iters ....",
    b"save_interval ....",
)
MOST_NODES = 16384
_SCRIPT_BYTES = 64 * 1024


def arguments(text: str) -> dict[str, str]:
    """`key=value` words; a flag without a value is "true", `--` in front of a key is dropped."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    values = {}
    for word in words:
        key, sign, value = word.lstrip("-").partition("=")
        values[key] = value if sign else "true"
    values.pop("", None)
    return values


@dataclass
class HeaderTally:
    """What one file says, first come, first kept."""

    values: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    max_requeue: int | None = None
    total_steps: int | None = None
    save_interval: int | None = None
    ray: bool = False

    def take(self, line: JobLogLine) -> None:
        """One line that may be of the header."""
        text = line.text
        if match := _KEY.match(text):
            name, value = _VARIABLES.get(match[1]), _unquoted(match[2].strip())
            if name and value:
                self.values.setdefault(name, value)
        elif match := _CONFIG.search(text):
            if match[1] in CONFIG_KEYS:
                self.config.setdefault(match[1], match[2].strip())
        elif match := _COMMENT.search(text):
            self.take_comment(match[1])
        elif match := _MEGATRON.match(text):
            self._take_megatron(match[1], int(match[2]))
        elif match := _TITAN.search(text):
            self.total_steps = self.total_steps or int(match[1])
        elif text.lstrip().startswith(_RAY):
            self.ray = True

    def _take_megatron(self, argument: str, value: int) -> None:
        if argument == "train_iters":
            self.total_steps = self.total_steps or value
        else:
            self.save_interval = self.save_interval or value

    def take_comment(self, text: str) -> None:
        """The settings of automatic restarts from Slurm's comment, if it holds them."""
        try:
            settings = parsed(text)["APS"]
            times = settings.get("max_requeue_times")
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        self.max_requeue = times if isinstance(times, int) else None

    @property
    def nodes(self) -> str:
        """The node list as it stands in the log; "" without one."""
        return self.values.get("expanded") or self.values.get("nodelist", "")

    def take_script(self, path: str) -> None:
        """The comment from a batch script, where the log does not show it."""
        try:
            with open(path, "rb", opener=regular) as script:
                text = script.read(_SCRIPT_BYTES).decode("utf-8", "replace")
        except OSError:
            return
        comment = _COMMENT.search(text)
        if comment and self.max_requeue is None:
            self.take_comment(comment[1])

    def header(self, ray_logs: bool) -> Header:
        """What all lines say; `ray_logs`: the job has logs of Ray workers."""
        values, config = self.values, self.config
        passed = arguments(values.get("passthrough", ""))
        settings = {**config, **passed}
        period = {**passed, **config}.get("checkpoint_period")
        return Header(
            job_id=values.get("job_id"),
            job_name=values.get("job_name"),
            nnodes=whole_number(values.get("nnodes")),
            nodelist=expand_in_order(self.nodes, MOST_NODES),
            ray=self.ray or ray_logs or "ray_port" in values,
            model_name=values.get("model_name") or config.get("model_name"),
            model_alias=values.get("model_alias"),
            exp_tag=values.get("exp_tag"),
            passthrough=passed,
            config=dict(config),
            steps=whole_number(settings.get("steps")) or self.total_steps,
            checkpoint_period=whole_number(period) or self.save_interval,
            enable_checkpointing=_truth(settings.get("enable_checkpointing")),
            async_checkpointing=_truth(settings.get("async_checkpointing")),
            heartbeat_timeout_s=decimal_number(
                settings.get("jax_distributed_heartbeat_timeout_seconds")
            ),
            max_requeue_times=self.max_requeue,
        )


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


def _truth(text: str | None) -> bool | None:
    return {"true": True, "1": True, "false": False, "0": False}.get((text or "").lower())
