"""`raydiag watch`: look at a job again and again, and say what changes.

examples:
  raydiag watch 7877                               a job directory, log or id: 120 looks, 90 s apart
  raydiag watch 7877 --every 60 --for 8h           for a night
  raydiag watch 7877 --slice 9m                    in pieces: the same command goes on where it was
  raydiag watch raysubmit_x --ssh me@head          a job of a Ray cluster, and its nodes
  raydiag watch 7877 --run ./page-me --notify-file ~/.raydiag-notify
  raydiag watch 7877 --format jsonl                a JSON object a line, for programs

Each look is one short `raydiag triage`; on a cluster the nodes are probed every --probe-every.
Progress goes by steps. On an alarm one `raydiag diagnose` says why, once. Alarms and what follows
from them go to the commands of --run (JSON on stdin) and to the addresses of --notify-file or
RAYDIAG_NOTIFY (those of apprise: Slack, Teams, Telegram, mail, webhooks; the extra `notify`).

exit codes:
  0 the job completed                   1 it failed or was cancelled, or looks are used up
  2 usage    3 the slice is over: call again    4 another watcher, or no such job
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from raydiag.cli import live, options, triage, values
from raydiag.errors import CannotRun

if TYPE_CHECKING:
    from raydiag.watch.following import JobLook
    from raydiag.watch.sinks import Sinks
    from raydiag.watch.watch_state import WatchState

HELP = "look at a job again and again: progress, alarms with their cause, notifications"
REMARK = " Needs no GPU, and Ray only for jobs of a cluster."

_TRIAGE_LIMIT_S, _PROBE_LIMIT_S, _DIAGNOSE_LIMIT_S = 180.0, 180.0, 300.0
_OLD_STATE_S = 86_400.0
_USUAL_LOOKS = 120
_LAST_SINKS_S = 80.0  # three tries of a notification
_GOOD_NEWS = ("resumed", "ended", "reachable")
_NO_APPRISE = "apprise is missing: pip install 'raydiag[notify]'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "job directory, log file, job id below --outputs, or a job of Ray's"
    parser.add_argument("job", metavar="JOB", help=words)
    parser.add_argument("--outputs", metavar="DIR", help="where to look up job ids")
    group = parser.add_argument_group("how often, how long")
    words = "time between looks (default 90s)"
    group.add_argument("--every", type=values.time_span, default=90.0, metavar="T", help=words)
    words = "looks at most (default 120)"
    group.add_argument("--ticks", type=values.integer(1, 10**6), metavar="N", help=words)
    words = "instead of --ticks: look for so long"
    group.add_argument("--for", dest="span", type=values.time_span, metavar="T", help=words)
    words = "end after so long with exit code 3; the same command goes on"
    group.add_argument("--slice", type=values.time_span, metavar="T", help=words)
    words = "on a cluster: probe the nodes so often (default 10m)"
    group.add_argument(
        "--probe-every", type=values.time_span, default=600.0, metavar="T", help=words
    )
    group = parser.add_argument_group("alarms")
    words = "silence that is no alarm in any job (default 120s)"
    group.add_argument("--patience", type=values.time_span, default=120.0, metavar="T", help=words)
    words = "time until the first step (default 30m)"
    group.add_argument("--start-up", type=values.time_span, default=1800.0, metavar="T", help=words)
    add_sinks(group)
    words = "where progress is remembered (default: below ~/.raydiag/watch)"
    parser.add_argument("--state", metavar="FILE", help=words)
    words = "begin anew, whatever is remembered"
    parser.add_argument("--restart", action="store_true", help=words)
    kind, words = triage.JOB_STATES, triage.STATE_WORDS
    parser.add_argument("--job-state", choices=kind, default="auto", help=words)
    options.add_way_in(parser)
    parser.set_defaults(reaches_cluster=True)
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=("text", "jsonl"), default="text")
    group.add_argument("-q", "--quiet", action="store_true", help="only what changed")


def add_sinks(group: argparse._ArgumentGroup) -> None:
    """--run and --notify-file: what `event_sinks` reads."""
    words = "a program that gets each alarm as JSON on stdin; may be given several times"
    group.add_argument(
        "--run", dest="programs", action="append", default=[], metavar="CMD", help=words
    )
    words = "file with addresses for apprise, one a line, readable by you alone"
    group.add_argument("--notify-file", metavar="FILE", help=words)


def run(arguments: argparse.Namespace) -> int:
    """Watch until the job, the looks or the slice end; returns the exit code."""
    from raydiag.watch.watch_state import WatchLock, usual_path

    sinks = event_sinks(arguments)
    way_in = [str(getattr(arguments, name) or "") for name in options.WAY_IN]
    is_local = not any(way_in) and not live.may_be_of_ray(arguments, arguments.job)
    name = os.path.abspath(arguments.job) if is_local else arguments.job
    path = Path(arguments.state or usual_path(" ".join([name, *way_in]))).absolute()
    with contextlib.closing(WatchLock(path)):
        state = _state(arguments, path)
        if is_local and not state.memory.looks:
            _check_there_is_a_job(arguments)
        watcher = _Watcher(arguments, path, state, sinks, probes=not is_local)
        patience_s = _LAST_SINKS_S
        try:
            return watcher.watch()
        except KeyboardInterrupt:
            patience_s = 0.0
            raise
        finally:
            sinks.finish(patience_s)


def _check_there_is_a_job(arguments: argparse.Namespace) -> None:
    """Raises CannotRun: a typo is not watched for a night."""
    from raydiag.joblog import find

    find.resolve(arguments.job, arguments.outputs or "outputs")


def _state(arguments: argparse.Namespace, path: Path) -> WatchState:
    """What an earlier call left off at, unless it is over or old."""
    from raydiag.watch.following import Memory
    from raydiag.watch.watch_state import WatchState, read_state

    words = [word for word in sys.argv[1:] if word != "--restart"]
    state = read_state(path)  # a file that is none is refused, also with --restart
    is_over = state is None or state.memory.ended or state.memory.gave_up
    if state is None or is_over or arguments.restart or _is_old(state):
        return WatchState(Memory(arguments.job, time.time()), words, os.getcwd())
    return replace(state, words=words, directory=os.getcwd())


def _is_old(state: WatchState) -> bool:
    return time.time() - state.written > _OLD_STATE_S


def event_sinks(arguments: argparse.Namespace) -> Sinks:
    """Where events go besides the terminal. Raises UsageError, CannotRun."""
    from importlib.util import find_spec

    from raydiag.cli.secret_files import private_lines
    from raydiag.watch.sinks import Sinks, checked_program

    addresses = os.environ.get("RAYDIAG_NOTIFY", "").split()
    if arguments.notify_file is not None:
        addresses += private_lines("--notify-file", arguments.notify_file)
    if addresses and find_spec("apprise") is None:
        raise CannotRun(_NO_APPRISE)
    programs = list(map(checked_program, arguments.programs))
    return Sinks(programs, addresses, options.ProgressLine(arguments.quiet).warn)


@dataclass
class _Watcher:
    arguments: argparse.Namespace
    path: Path
    state: WatchState
    sinks: Sinks
    probes: bool  # there is a cluster whose nodes can be asked
    probed_at: float = -math.inf  # by the monotonic clock

    def watch(self) -> int:
        """Look, tell, write down, wait."""
        from raydiag.watch.following import Patience, considered

        patience = Patience(self.arguments.patience, self.arguments.start_up)
        began = time.monotonic()
        while True:
            look_began = time.monotonic()
            look = self._look()
            self.state.memory, events = considered(self.state.memory, look, patience)
            self._tell_look(look)
            for event in events:
                self._tell_line(event.kind, event.text, event.is_alarm)
            self._write()
            if any(event.asks_why for event in events):
                self._tell_line("why", self._why(), is_alarm=True)
            code = self._ended(began)
            self._write()
            if code is not None:
                return code
            time.sleep(max(0.0, look_began + self.arguments.every - time.monotonic()))

    def _ended(self, began: float) -> int | None:
        """The exit code when watching is over."""
        memory = self.state.memory
        if memory.ended:
            return 0 if memory.ended == "completed" else 1
        if self._is_used_up():
            self.state.memory = replace(memory, gave_up=True)
            self._tell_line(
                "given-up", f"gave up at look {memory.looks}: no end of the job was seen"
            )
            return 1
        spent = time.monotonic() - began + self.arguments.every
        if self.arguments.slice is not None and spent > self.arguments.slice:
            self._tell_line("slice", "this slice is over: call again to go on")
            return 3
        return None

    def _is_used_up(self) -> bool:
        """By the clock with --for, else by the number of looks."""
        memory, span = self.state.memory, self.arguments.span
        if span is not None:
            is_over: bool = time.time() + self.arguments.every > memory.began + span
            return is_over
        return memory.looks >= self._most_looks()

    def _most_looks(self) -> int:
        ticks: int = self.arguments.ticks or _USUAL_LOOKS
        return ticks

    # ---- looking

    def _look(self) -> JobLook:
        from raydiag.own_command import answer_of
        from raydiag.watch import looks

        words = ["triage", *self._job_words(), "--job-state", self.arguments.job_state]
        answer, probe = answer_of(words, _TRIAGE_LIMIT_S), None
        if self.probes and time.monotonic() - self.probed_at >= self.arguments.probe_every:
            self.probed_at = time.monotonic()
            probe = answer_of(["probe", *self._way_in()], _PROBE_LIMIT_S)
        return looks.look(answer, probe, time.time())

    def _why(self) -> str:
        """What one diagnosis says."""
        from raydiag.own_command import answer_of
        from raydiag.watch import looks

        answer = answer_of(["diagnose", *self._job_words()], _DIAGNOSE_LIMIT_S)
        if not answer.document:
            return f"no diagnosis: {answer.complaint}"
        return looks.diagnosis_line(answer.document)

    def _job_words(self) -> list[str]:
        words = [self.arguments.job, *self._way_in()]
        if self.arguments.outputs is not None:
            words += ["--outputs", self.arguments.outputs]
        return words

    def _way_in(self) -> list[str]:
        words = []
        for name in options.WAY_IN:
            value = getattr(self.arguments, name)
            if value is not None:
                words.append(f"--{name.replace('_', '-')}={value}")
        return words

    # ---- telling

    def _limit(self) -> int | None:
        return None if self.arguments.span is not None else self._most_looks()

    def _tell_look(self, look: JobLook) -> None:
        from raydiag.render.watch import look_document, look_line

        if self.arguments.format == "jsonl":
            _print(json.dumps(look_document(self.state.memory, look)))
        elif not self.arguments.quiet:
            _print(look_line(self.state.memory, look, self._limit()))

    def _tell_line(self, kind: str, text: str, is_alarm: bool = False) -> None:
        from raydiag.render.watch import event_document, event_line

        document = event_document(self.arguments.job, kind, text, is_alarm, time.time())
        self.state.add(document)
        as_json = self.arguments.format == "jsonl"
        _print(json.dumps(document) if as_json else event_line(document))
        if is_alarm or kind in _GOOD_NEWS:
            self.sinks.send(document)

    def _write(self) -> None:
        from raydiag.watch.watch_state import write_state

        write_state(self.path, self.state)


def _print(line: str) -> None:
    options.write_report([f"{line}\n"], None)
