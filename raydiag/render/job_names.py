"""Stand-ins for what a job's own files say: its id and name, its places, its hosts and settings.

Replaced besides what `names` replaces: the job's id and name, also as parts of file names (job-1),
the directories that it lies in (dir-1), every other path that is no part of the system or of a
public package (path-1), folded lists of its hosts, and values of settings that are names or places.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from raydiag import nodeset
from raydiag.errors import UsageError
from raydiag.explain.job.ticket import own_words
from raydiag.render.names import Names
from raydiag.tsdb import promql

_PATH = re.compile(
    r"(?<![\w./:~-])(?:/[\w.@%+=,~-]+){2,}/?"
    r"|(?<![\w.-])~[A-Za-z][\w.-]*(?:/[\w.@%+=,~-]+)+/?"
    r"|(?<=\w:)(?:/[\w.@%+=,~-]+){2,}/?"  # behind the host of a file server
    r"|(?<![\w.-])(?!https?:)[a-z][a-z0-9+]{1,9}://[^\s'\"<>(){},;]+"  # of an object store
)
# A job or a host may be called like one of raydiag's own words, which have to stay.
_OWN_FIELDS = frozenset(
    ("id", "kind", "playbook", "primary", "query_id", "question", "row", "rule", "sampled", "stage")
)
_OWN_KEYS = frozenset(("cluster", "counts", "dashboards", "facts", "sights", "sources", "values"))
_PUBLIC = re.compile(
    r"/(?:sys|proc|dev|usr|lib|lib64|opt|etc|bin|sbin|boot|run|var/log)/|/workspace/maxtext/"
)
_FOLDED = re.compile(r"(?<![\w.-])[\w.-]*\w\[[\d,-]+\][\w.,\[\]-]*")
_NAME_SETTING = re.compile(r"(?:^|_| )(?:name|user|tag|alias|dir|directory|path|file|bucket)$")
_LONG_ID = 4  # digits; a shorter number may be anything, unless the word job stands before it
_SHORTEST = 3
_NOTHING = ("", ".", "..", "/", "outputs", "tmp", "home", "data", "true", "false", "none")


class JobNames(Names):
    """All names of one report, be it about several jobs."""

    verbatim = Names.verbatim | _OWN_FIELDS

    def __init__(self, hosts: Iterable[str], everything: Any, numbered: bool = False) -> None:
        """`numbered`: an id by itself becomes a number, for reports that say "job" before it."""
        self._numbered = numbered
        known = list(dict.fromkeys(filter(None, hosts)))
        super().__init__(known, (), everything)
        self._records: dict[int, tuple[Any, Any]] = {}  # by identity: the record, and its stand-in
        self._literals: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        for name in known:
            if name.lower() in self._hosts:
                self._know_escaped(name)

    def _know_escaped(self, name: str) -> None:
        """The host as it stands in PromQL, where its dots are escaped once or twice."""
        once = promql.literal(name)
        for escaped in (once, once.replace("\\", "\\\\")):
            if escaped != name:
                self._literals[escaped] = self._hosts[name.lower()]

    def know_job(self, job_id: str | None, name: str | None, paths: Iterable[str]) -> None:
        """A job, and where its files are."""
        stand_in = self._stand_in("job", job_id or name or next(iter(paths), "job"))
        places: list[str] = []
        for path in filter(None, paths):
            places += [path, os.path.abspath(path)]
        if job_id and name:
            self._literals[f"{job_id}-{name}"] = stand_in
        for text in (name, *map(_stem, places)):
            if text and _identifies(text):
                self._literals.setdefault(text, stand_in)
        for parent in map(os.path.dirname, places):
            if _identifies(parent):
                self._literals.setdefault(parent, self._stand_in("dir", parent))
        if job_id:
            self._ids[job_id] = stand_in
        self._pattern = None

    def know_value(self, text: str) -> None:
        """A name, of whatever."""
        if _identifies(text) and not text.replace(".", "").isdigit():
            self._literals.setdefault(text, self._stand_in("name", text))
            self._pattern = None

    # ---- values

    def _key(self, key: Any) -> Any:
        return self.text(key) if isinstance(key, str) else key

    def _record(self, record: Any) -> Any:
        known = self._records.get(id(record))
        if known is None:
            redacted = super()._record(record)
            for name in _OWN_KEYS:
                mapping = getattr(record, name, None)
                if isinstance(mapping, Mapping):
                    values = dict(zip(mapping, map(self.value, mapping.values()), strict=True))
                    redacted = replace(redacted, **{name: values})
            self._records[id(record)] = known = (record, redacted)
        return known[1]

    def text(self, text: str) -> str:
        """One string; raydiag's own words stay."""
        known = self._texts.get(text)
        if known is None and text in own_words():
            return text
        if known is None:
            plain = self._known_names().sub(self._literal, text)
            if plain in self._ids:
                plain = self._ids[plain].removeprefix("job-" if self._numbered else "")
            plain = _FOLDED.sub(self._folded, plain)
            self._texts[text] = known = super().text(_PATH.sub(self._path, plain))
        return known

    def _known_names(self) -> re.Pattern[str]:
        """Literal names, longest first; ids as numbers of their own."""
        if self._pattern is None:
            parts = []
            for literal in _longest_first(self._literals):
                parts.append(rf"(?<![A-Za-z0-9]){re.escape(literal)}(?![A-Za-z0-9])")
            for job_id in _longest_first(self._ids):
                parts += _id_patterns(job_id, group=f"job{len(parts)}")
            self._pattern = re.compile("|".join(parts) or r"(?!)")
        return self._pattern

    def _literal(self, match: re.Match[str]) -> str:
        found = match[0]
        if found in self._literals:
            return self._literals[found]
        job_id = next(known for known in _longest_first(self._ids) if known in found)
        stand_in = self._ids[job_id]
        if match.lastgroup is None:
            return stand_in
        words = stand_in.replace("-", " ") if self._numbered else stand_in
        return found[0] + words[1:]  # "Job" stays with its capital

    def _path(self, match: re.Match[str]) -> str:
        path = match[0]
        if _PUBLIC.match(path):
            return path
        return self._stand_in("path", path.rstrip("/"))

    def _folded(self, match: re.Match[str]) -> str:
        """A folded list of the job's hosts becomes their number."""
        try:
            names = nodeset.expand(match[0].rstrip(","))
        except UsageError:
            return match[0]
        shorts = [name.partition(".")[0].lower() for name in names]
        if self._hosts.keys().isdisjoint(shorts):
            return match[0]
        return f"{len(shorts)} hosts"


def hosts_of_tunnels(commands: Iterable[str]) -> Iterator[str]:
    """Machines that a command for ssh names."""
    for command in commands:
        yield from re.findall(r"@([A-Za-z][\w.-]*)", command)
        yield from re.findall(r":([A-Za-z][\w.-]*):\d+", command)


def hosts_of_urls(texts: Iterable[str]) -> Iterator[str]:
    """Machines that URLs and logins in a text name."""
    for text in texts:
        hosts = re.findall(r"https?://(?:[^\s/@]*@)?([A-Za-z][\w.-]*\w)", text)
        hosts += re.findall(r"\w@([A-Za-z][\w.-]*\w)", text)
        for host in hosts:
            if not host.isupper():  # as in --address http://HEAD:PORT
                yield host


def named_values(settings: Mapping[str, str]) -> Iterator[str]:
    """Values of settings that are a name or a place."""
    for setting, value in settings.items():
        if setting == "model" or _NAME_SETTING.search(setting):
            yield value


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted(texts, key=len, reverse=True)


def _id_patterns(job_id: str, group: str) -> Iterator[str]:
    """Where a job's id is meant: behind "job", as Slurm writes it, and by itself if it is long."""
    escaped = re.escape(job_id)
    yield rf"\b(?P<{group}>[Jj])ob[ _-]?{escaped}(?![\w.]*\d)"
    yield rf"(?:(?<=StepId=)|(?<=STEP )){escaped}(?=\.\w)"
    if len(job_id) >= _LONG_ID:
        no_number = r"(?<![A-Za-z0-9])(?<!\d\.)(?<!step )(?<!step: )"
        yield rf"{no_number}{escaped}(?![A-Za-z0-9]|\.\d)"
    else:
        yield rf"(?<=/){escaped}(?=[-.])"


def _stem(path: str) -> str:
    """`4711-llama` of ".../4711-llama.log"; "" for what every job calls so."""
    base = os.path.basename(path.rstrip("/"))
    stem = re.sub(r"\.(?:log|out|txt|err)(?:\.\w+)*$", "", base)
    is_own = any(map(str.isdigit, stem)) and not stem.startswith("rank-")
    return stem if is_own else ""


def _identifies(text: str) -> bool:
    word = text.lower()
    return len(text) >= _SHORTEST and word not in _NOTHING and word not in own_words()
