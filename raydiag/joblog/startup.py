"""How far start-up came, and where the job said that its dashboards are.

Source: MaxText's Ray and Prometheus scripts; TorchSpec's controller and its actors; tunnel commands
in the form `ssh -J LOGIN -L 8265:localhost:8265 -L 9190:localhost:9190 root@HEAD` and the older
`ssh -L 8265:HEAD:8265`.
"""

import re
from dataclasses import dataclass, field, replace

from raydiag.joblog.facts import Dashboards, PhaseMark
from raydiag.joblog.log_line import JobLogLine
from raydiag.joblog.tables import anchors_of, line_patterns, table

_PHASES = line_patterns("phases")
_DONE = re.compile("|".join(table("done")["patterns"]))
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

ANCHORS = (
    *anchors_of(_PHASES),
    *map(str.encode, table("done")["anchors"]),
    b"ssh -",
    b"[Prometheus]",
    b"[TensorBoard]",
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
        for row in _PHASES:
            if match := row.search(text):
                self._mark(row.phase, row.event, match, line)
                if row.phase == "barrier" and len(self.barrier) < WRITERS:
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
        name = f"{phase} {event}"
        mark = PhaseMark(
            phase=phase,
            event=event,
            first_time=line.about_time,
            last_line=line.number,
            last_time=line.about_time,
            raw=line.raw[:4096],
            file=line.file,
        )
        if name in self.phases:
            mark = replace(mark, first_time=self.phases[name].first_time)
        self.phases[name] = mark

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
