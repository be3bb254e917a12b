"""Plugins that are not ours: which there are, which version of each runs, what each answer means.

The collector's side, which touches no file but `/proc/<pid>/stat` and starts nothing: it says what
to ask a guarded reader (`Ask`), and takes the answers of `external_run`. In each cycle the
directories are looked at first. A file whose content has changed is tried: syntax, then one run
whose output parses. Until it passes the last version that did goes on, from a copy in memory, and
`plugin_outdated` is 1.

A plugin of the shell protocol may say that nothing is new, and its last values stand in again. That
has a limit: values without a time of their own are repeated for five minutes, those with one for an
hour, and meanwhile the time of the last success stays that of the measurement.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from raydiag.exporter import external_run, program
from raydiag.exporter.metrics import OWN_PREFIX, Metric, Sample
from raydiag.exporter.plugin_files import PYTHON
from raydiag.exporter.plugin_versions import ExternalPlugin, PluginVersion, consistent
from raydiag.model import Status
from raydiag.probes import FILES

REPLAY_S, DATED_REPLAY_S = 300.0, 3600.0
_LOOK_S = 5.0  # for one directory
_SLACK_S = 2.0  # after its own limit a program is ended, which may take a second
_NO_STATE = "__NONE__"

Answer = Mapping[str, Any]  # of `external_run`


class Ask(NamedTuple):
    """What to ask a guarded reader of kind `reader`; it holds the lock of `source` meanwhile."""

    plugin: str  # its name; of a look at a directory ""
    source: str  # path
    reader: str
    timeout_s: float
    request: dict[str, Any]  # for `external_run.answer`


class PluginOutcome(NamedTuple):
    """What an answer means."""

    status: Status
    reason: str = ""  # unless status is ok; of a trial that failed also then, for the log
    samples: Optional[list[Sample]] = None  # replace those on the page; None: leave them to age
    declared: Mapping[str, Metric] = {}
    measured_at: Optional[float] = None  # Unix s; None: nothing was measured in this run
    refused: Sequence[str] = ()  # samples that broke with what their metric was, and why
    is_new: bool = False  # first answer of a new version: its metrics may have changed
    missed_deadline: bool = False  # it was a trial of new content, which was not in time
    then: Optional[Ask] = None  # to be asked in this cycle still: the version that ran before


def request(
    path: str, entry: Mapping[str, Any], host: str, root: str, check: bool, in_place: bool = True
) -> dict[str, Any]:
    """To run the version that `entry` (of plugin_files) tells of, for `external_run.answer`.

    `check` its syntax first; not `in_place`: from the copy of its content.
    """
    content = entry["content"] if entry["kind"] == PYTHON or not in_place else None
    place = {"path": path, "host": host, "root": root, "in_place": in_place}
    return {**entry, **place, "check": check, "state": None, "content": content, "left_alone": []}


class ExternalPlugins:
    """All plugins of some directories."""

    def __init__(
        self,
        directories: Sequence[str],
        host: str,
        reserved: Collection[str] = (),
        root: str = "/",
        allow_unsafe: bool = False,
    ) -> None:
        """`reserved`: names of our own plugins; `root`: what Python plugins see as the node.

        `allow_unsafe`: also run what others than root and we could change.
        """
        self.directories = [os.path.abspath(directory) for directory in directories]
        self.host = host
        self.root = root
        self.allow_unsafe = allow_unsafe
        self.taken = frozenset(reserved)
        self.passed_over: dict[str, str] = {}  # path -> why it is no plugin
        self.blind: dict[str, str] = {}  # directory -> why it could not be looked at
        self._plugins: dict[str, ExternalPlugin] = {}
        self._seen: set[str] = set()  # directories that have been looked at before
        self._left_alone: dict[str, list[str]] = {}

    # ---- which there are

    def looks(self) -> Iterator[Ask]:
        """A look at each directory: the first thing in a cycle."""
        for directory in self.directories:
            plugins = self._plugins_in(directory)
            signatures = {os.path.basename(plugin.path): plugin.signature for plugin in plugins}
            settle = directory in self._seen
            looking = {"scan": directory, "known": signatures, "settle": settle}
            looking["allow_unsafe"] = self.allow_unsafe
            yield Ask("", directory, FILES, _LOOK_S, looking)

    def looked(self, ask: Ask, answer: Optional[Answer], reason: str = "") -> list[str]:
        """Take the answer to a look; None: none came, and why. Returns plugins that are gone."""
        if answer is not None and "failed" in answer:
            reason = answer["failed"][1]
        if answer is None or "files" not in answer:
            self.blind[ask.source] = reason
            return []  # what ran goes on, from its copies
        self.blind.pop(ask.source, None)
        self._seen.add(ask.source)
        for path in list(self.passed_over):
            if ask.source in (path, os.path.dirname(path)):
                del self.passed_over[path]
        for name, passed_over in answer["passed_over"].items():
            self.passed_over[os.path.join(ask.source, name)] = passed_over
        removed = {plugin.name for plugin in self._plugins_in(ask.source)}
        for name, entry in answer["files"].items():
            removed.discard(self._offer(os.path.join(ask.source, name), entry))
        for name in removed:
            del self._plugins[name]
        return sorted(removed)

    def _plugins_in(self, directory: str) -> list[ExternalPlugin]:
        plugins = self._plugins.values()
        return [plugin for plugin in plugins if os.path.dirname(plugin.path) == directory]

    def _offer(self, path: str, entry: Mapping[str, Any]) -> str:
        """Take note of one file; the name of its plugin."""
        name = os.path.splitext(os.path.basename(path))[0]
        plugin = self._plugins.get(name)
        if plugin is not None and plugin.path != path:
            self.passed_over[path] = f"there is a plugin {name} already: {plugin.path}"
            return name
        if name in self.taken:
            self.passed_over[path] = f"there is a plugin {name} already: raydiag's own"
            return ""
        if plugin is None:
            plugin = self._plugins[name] = ExternalPlugin(name, path)
        plugin.look_at(entry)
        return name

    # ---- what runs

    def asks(self) -> Iterator[Ask]:
        """One run of each plugin: the new version where there is one to try, else the last good.

        None of a plugin whose children hang in the kernel: it would leave one more.
        """
        for plugin in self._plugins.values():
            plugin.left = {pid: at for pid, at in plugin.left.items() if program.hangs(pid, at)}
            if plugin.left:
                continue
            if plugin.offered is not None and plugin.pause == 0:
                plugin.was_asked = True
                yield self._ask(plugin, plugin.offered, check=True)
                continue
            plugin.pause = max(0, plugin.pause - 1)
            if plugin.current is not None and not plugin.current.is_not_here:
                yield self._ask(plugin, plugin.current, check=False)

    def _ask(self, plugin: ExternalPlugin, version: PluginVersion, check: bool) -> Ask:
        entry = version.entry
        is_seen = os.path.dirname(plugin.path) not in self.blind and not plugin.is_unsettled
        in_place = is_seen and plugin.signature == list(entry["signature"])
        run_request = request(plugin.path, entry, self.host, self.root, check, in_place)
        run_request.update(state=plugin.state, left_alone=self._left_alone.get(plugin.name, []))
        limit_s = entry["timeout_s"] + _SLACK_S * (entry["kind"] != PYTHON)
        return Ask(plugin.name, plugin.path, entry["reader"], limit_s, run_request)

    def took(
        self, ask: Ask, answer: Optional[Answer], now_s: float, reason: str = ""
    ) -> PluginOutcome:
        """Take the answer to a run; None: none came, and why. `now_s` is Unix time."""
        plugin = self._plugins.get(ask.plugin)
        if answer is None:
            answer = {"samples": [], "failed": [Status.TIMEOUT.value, reason]}
        if plugin is None or answer.get("changed"):
            return PluginOutcome(Status.OK)  # nothing of it counts
        self._left_alone[plugin.name] = list(answer.get("left_alone", ()))
        remaining = tuple(answer.get("left", ()))
        plugin.left, plugin.left_since = {pid: program.started(pid) for pid in remaining}, now_s
        digest, offered, is_new = ask.request["digest"], plugin.offered, False
        if offered is None or offered.digest == digest:
            plugin.is_late = external_run.status_of(answer) is Status.TIMEOUT
        if offered is not None and offered.digest == digest:
            if answer["failed"] is not None and not self._is_better_than_none(plugin, answer):
                return self._refused(plugin, answer)
            plugin.current, plugin.offered, plugin.problem, is_new = offered, None, "", True
        version = plugin.current
        if version is None or version.digest != digest:
            return PluginOutcome(Status.OK)
        return self._meaning(plugin, version, answer, now_s)._replace(is_new=is_new)

    def _is_better_than_none(self, plugin: ExternalPlugin, answer: Answer) -> bool:
        """Nothing that has ever worked is lost to a version that fails, but can be read."""
        proved = plugin.current is not None and plugin.current.is_proved
        return not proved and not answer.get("syntax")

    def _refused(self, plugin: ExternalPlugin, answer: Answer) -> PluginOutcome:
        plugin.refuse(answer["failed"][1], for_good=bool(answer.get("syntax")))
        reason = f"the new version is broken: {plugin.problem}"
        if plugin.current is None or plugin.current.is_not_here:
            return PluginOutcome(external_run.status_of(answer), reason)
        # Whether the plugin is healthy depends on the version that runs next.
        then = self._ask(plugin, plugin.current, check=False)
        return PluginOutcome(Status.OK, reason, missed_deadline=plugin.is_late, then=then)

    def _meaning(
        self, plugin: ExternalPlugin, version: PluginVersion, answer: Answer, now_s: float
    ) -> PluginOutcome:
        """Of an answer of the version that runs."""
        plugin.repeats = False
        if answer["failed"] is not None:
            return PluginOutcome(external_run.status_of(answer), answer["failed"][1])
        if answer.get("not_here"):
            version.is_not_here = True
            plugin.kept = []
            return PluginOutcome(Status.OK, samples=[])
        state = answer.get("state")
        is_void = state is not None and state.startswith(_NO_STATE)
        if is_void:
            plugin.state = None
        elif state is not None:
            plugin.state = state
            if not answer["samples"]:
                return self._repeated(plugin, now_s)
        samples = [Sample(*values) for values in answer["samples"]]
        declared = external_run.metrics(answer.get("declared", {}), answer["samples"])
        samples, refused = consistent(samples, declared, version)
        version.is_proved = True
        plugin.measured_at, plugin.declared = now_s, declared
        plugin.kept = [] if is_void else samples
        return PluginOutcome(Status.OK, "", samples, declared, now_s, refused)

    def _repeated(self, plugin: ExternalPlugin, now_s: float) -> PluginOutcome:
        """Nothing is new: what was measured before, as long as it may stand in."""
        plugin.repeats = True
        if plugin.measured_at is None:
            reason = "printed a state, and has printed no sample before"
            return PluginOutcome(Status.NO_DATA, reason)
        age_s = now_s - plugin.measured_at
        recent = []
        for sample in plugin.kept:
            if age_s <= (REPLAY_S if sample.timestamp_ms is None else DATED_REPLAY_S):
                recent.append(sample)
        if plugin.kept and not recent:
            reason = f"has repeated for {age_s:.0f} s what it measured once"
            return PluginOutcome(Status.ERROR, reason, [])
        return PluginOutcome(Status.OK, "", recent, plugin.declared)

    # ---- what there is to say about them

    def samples(self, now_s: float) -> Iterator[Sample]:
        """Of the plugins themselves; `now_s` is Unix time."""
        for name, plugin in sorted(self._plugins.items()):
            for fact, value in plugin.facts(now_s).items():
                yield Sample(OWN_PREFIX + fact, {"plugin": name}, value)
            if plugin.left:
                labels = {"plugin": name, "source": plugin.path}
                age_s = max(0.0, now_s - plugin.left_since)
                yield Sample(f"{OWN_PREFIX}stuck_source_seconds", labels, age_s)

    def problems(self) -> dict[str, str]:
        """Path -> why its content does not run, or is no plugin; for people."""
        plugins = self._plugins.values()
        broken = {plugin.path: plugin.problem for plugin in plugins if plugin.problem}
        return {**self.passed_over, **self.blind, **broken}
