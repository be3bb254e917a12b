"""How far start-up came, and where the job said that its dashboards are.

Source: MaxText's Ray and Prometheus scripts; TorchSpec's controller and its actors; tunnel commands
in the form `ssh -J LOGIN -L 8265:localhost:8265 -L 9190:localhost:9190 root@HEAD` and the older
`ssh -L 8265:HEAD:8265`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from raydiag.joblog.log_line import JobLogLine
from raydiag.joblog.script_facts import Dashboards, PhaseMark

# phase, event, anchor, pattern; `value`: percent of the shards that are loaded
_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("dataset", "done", "samples to controller", r"Added [\d,]+ samples to controller"),
    ("dataset", "done", "Controller loaded", r"Controller loaded dataset: [\d,]+ samp"),
    ("gpus", "progress", "Waiting for ", r"Waiting for \d+ GPUs \(currently"),
    ("gpus", "progress", "Ray cluster GPUs:", r"Ray cluster GPUs: \d+/\d+"),
    ("gpus", "done", " GPUs available", r"All \d+ GPUs available"),
    ("gpus", "error", "Timed out waiting for GPUs", r"Timed out waiting for GPUs: \d+"),
    ("placement", "reached", "actual_bundle_index", r"bundle +\d+, actual_bundle_index"),
    ("mooncake", "reached", "Auto-resolved mooncake", r"Auto-resolved mooncake master_server_addr"),
    ("trainer-init", "reached", "Device mesh (1D)", r"Device mesh \(1D\)"),
    ("trainer-init", "done", "Draft model:", r"Draft model: [\d,]+ trainable"),
    (
        "engine-init",
        "progress",
        "hread loading shards",
        r"Multi-thread loading shards: +(?P<value>\d+)%",
    ),
    ("engine-init", "progress", "checkpoint shards:", r"checkpoint shards: +(?P<value>\d+)%"),
    ("engine-graphs", "reached", "Capture cuda graph begin", r"Capture cuda graph begin"),
    ("engine-graphs", "done", "Capture cuda graph end", r"Capture cuda graph end"),
    ("queues", "reached", "set_train_queue", r"\bset_train_queue\b"),
    ("init-done", "done", "Initialization timing:", r"Initialization timing:"),
    ("training", "progress", "Training:", r"\bTraining: +\d+%"),
    ("training", "done", "Training completed", r"Training completed: \d+ steps in [\d.]+s"),
    ("ray-head", "reached", "[Ray] Starting HEAD", r"\[Ray\] Starting HEAD on"),
    ("ray-cluster", "error", "Ray cluster failed", r"Ray cluster failed, falling back to non-Ray"),
    ("barrier", "reached", "Synchronizing hosts", r"Synchronizing hosts before training loop"),
)
_PHASES = tuple(
    (phase, event, anchor, re.compile(pattern)) for phase, event, anchor, pattern in _ROWS
)
_DONE = re.compile(
    r"Training completed|Early stopping|^FINISHED\b|QUEUE DONE|\[after training is done\]"
    r"|'train_runtime':|`Trainer\.fit` stopped: `max_(?:steps|epochs)=\d+` reached"
    r"|^(?!.{0,512}(?:ERROR|FATAL|[Tt]ime(?:d |)out)).{0,256}\b[Ee]xiting (?:program )?"
    r"(?:at iteration \d|after [\d.]{1,16} (?:minutes|hours)\b(?! (?:of|with|wait)))"
    r"|Time limit reached\. Elapsed time is|\bJob '[^']{1,100}' succeeded"
    r"|\"key\": \"run_stop\".{0,512}\"status\": \"success\""  # MLPerf
)
_FORWARD = re.compile(
    r"-L\s*(?:[\w.*]{1,255}:)?(\d{1,5}):(\[[^\]]{1,64}\]|[^:\s]{1,255}):(\d{1,5})"
)
_TARGET = re.compile(r"\s(?:[\w.-]+@)([A-Za-z0-9][\w.-]*)\s*$")
_STARTED = re.compile(r"\[Prometheus\] Started on port (\d{1,5})")
_OCCUPIED = re.compile(r"\[Prometheus\] WARNING: port \d+ was occupied; using (\d{1,5}) instead")
_TSDB = re.compile(r"\[Prometheus\] TSDB -> (\S+)")
_TENSORBOARD = re.compile(r"\[TensorBoard\] Started on port (\d{1,5})")
_KNOWN_PORTS = {8265, 6006}  # of Ray's dashboard and of TensorBoard
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
TUNNELS, WRITERS, DONE = 8, 16384, 16

# "Waiting for " alone is in too many lines.
_PHASE_ANCHORS = dict.fromkeys(anchor for _, _, anchor, _ in _ROWS if anchor != "Waiting for ")
ANCHORS = (
    *map(str.encode, _PHASE_ANCHORS),
    b" GPUs (currently",
    b"ssh -",
    b"[Prometheus]",
    b"[TensorBoard]",
    b"Early stopping",
    b"xiting ",
    b"Time limit reached. ",
    b"' succeeded",
    b"FINISHED",
    b"QUEUE DONE",
    b"[after training is done]",
    b"'train_runtime':",
    b"`Trainer.fit` stopped",
    b'"run_stop"',
)


@dataclass
class StartTally:
    """Phase marks, dashboards, the barrier before training and markers of the end."""

    phases: dict[str, PhaseMark] = field(default_factory=dict)
    boards: Dashboards = field(default_factory=Dashboards)
    barrier: dict[str, int] = field(default_factory=dict)  # where -> line
    done_markers: list[tuple[int, str]] = field(default_factory=list)

    def take(self, line: JobLogLine) -> None:
        """One line that may be of start-up or of the end."""
        text = line.text
        for phase, event, anchor, pattern in _PHASES:
            if anchor in text and (match := pattern.search(text)):
                self._mark(phase, event, match, line)
                if phase == "barrier" and len(self.barrier) < WRITERS:
                    self.barrier.setdefault(line.prefix.where, line.number)
        if _DONE.search(text):
            del self.done_markers[DONE - 1 :]
            self.done_markers.append((line.number, text[:512]))
        if "ssh -" in text and "-L" in text:
            self._tunnel(line)
        elif "[" in text:
            self._board(line)

    def _mark(self, phase: str, event: str, match: re.Match[str], line: JobLogLine) -> None:
        if phase == "engine-init" and match.groupdict().get("value") == "100":
            event = "done"
        mark = self.phases.get(f"{phase} {event}")
        if mark is None:
            self.phases[f"{phase} {event}"] = PhaseMark(
                phase=phase,
                event=event,
                first_line=line.number,
                last_line=line.number,
                first_time=line.time,
                last_time=line.time,
                first_near_time=line.near_time,
                last_near_time=line.near_time,
                raw=line.raw[:4096],
                file=line.file,
            )
            return
        self.phases[f"{phase} {event}"] = replace(
            mark,
            last_line=line.number,
            last_time=line.time,
            last_near_time=line.near_time,
            raw=line.raw[:4096],
        )

    def _tunnel(self, line: JobLogLine) -> None:
        boards = self.boards
        forwards = _FORWARD.findall(line.text)
        if not forwards or len(boards.tunnels) >= TUNNELS:
            return
        text = line.text.strip()
        target = _TARGET.search(text)
        heads = [host for _, host, _ in forwards if host not in _LOOPBACK]
        heads += target.groups() if target else ()
        self.boards = replace(
            boards,
            tunnels=(*boards.tunnels, text[text.find("ssh -") :][:2048]),
            head=boards.head or next(iter(heads), None),
        )
        for _, _, port in forwards:
            if int(port) not in _KNOWN_PORTS and self.boards.prometheus_source != "tunnel":
                self._port(port, "tunnel")

    def _port(self, port: str, source: str) -> None:
        self.boards = replace(self.boards, prometheus_port=int(port), prometheus_source=source)

    def _board(self, line: JobLogLine) -> None:
        """A line on where a dashboard or an exporter is."""
        text, boards = line.text, self.boards
        if "[Prometheus]" in text:
            self._prometheus(text)
        elif match := _TENSORBOARD.search(text):
            self.boards = replace(boards, tensorboard_port=int(match[1]))
        elif "Ray cluster failed, falling back" in text:
            line_number = boards.ray_fallback_line or line.number
            self.boards = replace(boards, ray_fallback_line=line_number)

    def _prometheus(self, text: str) -> None:
        """A tunnel's port counts most, then the one that was taken instead of an occupied one."""
        source = self.boards.prometheus_source
        if match := _OCCUPIED.search(text):
            if source != "tunnel":
                self._port(match[1], "occupied")
        elif match := _STARTED.search(text):
            if source == "":
                self._port(match[1], "started")
        elif match := _TSDB.search(text):
            self.boards = replace(self.boards, prometheus_dir=match[1])
