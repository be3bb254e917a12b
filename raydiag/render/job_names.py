"""Stand-ins for what a job's own files say: its id and name, its places, its hosts and settings.

Replaced besides what `names` replaces: the job's id and name, also as parts of file names (job-1),
the directories that it lies in (dir-1), every other path that is no part of the system or of a
public package (path-1), folded lists of its hosts, and values of settings that are names or places.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Optional

from raydiag import nodeset
from raydiag.errors import UsageError
from raydiag.explain.job.words import own_words
from raydiag.render.names import Names
from raydiag.tsdb import promql

_PATH = re.compile(
    r"(?<![\w./:~-])(?:/[\w.@%+=,~-]+){2,}/?"
    r"|(?<![\w.-])~[A-Za-z][\w.-]*(?:/[\w.@%+=,~-]+)+/?"
    r"|(?<=\w:)(?:/[\w.@%+=,~-]+){2,}/?"  # behind the host of a file server
    r"|(?<![\w.-])(?!https?:)[a-z][a-z0-9+]{1,9}://[^\s'\"<>(){},;]+",  # of an object store
)
# A job or a host may be called like one of raydiag's own words, which have to stay.
_OWN_FIELDS = frozenset(
    ("id", "kind", "playbook", "primary", "question", "row", "rule", "sampled", "stage")
)
_OWN_KEYS = frozenset(("cluster", "counts", "dashboards", "facts", "sights", "sources", "values"))
_PUBLIC = re.compile(
    r"/(?:sys|proc|dev|usr|lib|lib64|opt|etc|bin|sbin|boot|run|var/log)/|/workspace/maxtext/"
)
_FOLDED = re.compile(r"[\w.-]*\w\[[\d,-]+\][\w.,\[\]-]*")
_LONG_ID = 4  # digits; a shorter number may be anything, unless the word job stands before it
_SHORTEST = 3
_NOTHING = ("", ".", "..", "/", "outputs", "tmp", "home", "data", "true", "false", "none")


class JobNames(Names):
    """All names of one report, be it about several jobs."""

    verbatim = Names.verbatim | _OWN_FIELDS

    def __init__(self, hosts: Iterable[str], everything: Any, numbered: bool = False) -> None:
        """`numbered`: an id by itself becomes a number, for reports that say "job" before it."""
        self._numbered = numbered
        known = [name for name in dict.fromkeys(hosts) if name]
        super().__init__(known, (), everything)
        self._same: dict[int, tuple[Any, Any]] = {}
        self._literals: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._pattern: Optional[re.Pattern[str]] = None
        for name in known:
            for escaped in (promql.literal(name), promql.literal(name).replace("\\", "\\\\")):
                if escaped != name and name.lower() in self._hosts:
                    self._literals[escaped] = self._hosts[name.lower()]

    def know_job(self, job_id: Optional[str], name: Optional[str], paths: Iterable[str]) -> None:
        """A job, and where its files are."""
        stand_in = self._stand_in("job", job_id or name or next(iter(paths), "job"))
        places = [one for path in paths for one in (path, os.path.abspath(path)) if path]
        if job_id and name:
            self._literals[f"{job_id}-{name}"] = stand_in
        for text in (name, *(_stem(path) for path in places)):
            if text and _tells(text):
                self._literals.setdefault(text, stand_in)
        for path in places:
            parent = os.path.dirname(path)
            if _tells(parent):
                self._literals.setdefault(parent, self._stand_in("dir", parent))
        if job_id:
            self._ids[job_id] = stand_in
        self._pattern = None

    def know_value(self, text: str) -> None:
        """A name, of whatever."""
        if _tells(text) and not text.replace(".", "").isdigit():
            self._literals.setdefault(text, self._stand_in("name", text))
            self._pattern = None

    # ---- values

    def _key(self, key: Any) -> Any:
        return self.text(key) if isinstance(key, str) else key

    def _record(self, record: Any) -> Any:
        known = self._same.get(id(record))
        if known is None:
            told = super()._record(record)
            for name in _OWN_KEYS:
                held = getattr(record, name, None)
                if isinstance(held, Mapping):
                    told = replace(told, **{name: {k: self.value(v) for k, v in held.items()}})
            self._same[id(record)] = known = (record, told)
        return known[1]

    def text(self, text: str) -> str:
        known = self._texts.get(text)
        if known is None and text in own_words():
            return text
        if known is None:
            plain = self._known_names().sub(self._literal, text)
            if plain in self._ids:
                plain = self._ids[plain].removeprefix("job-" if self._numbered else "")
            plain = _FOLDED.sub(self._folded, plain)
            told = super().text(_PATH.sub(self._path, plain))
            self._texts[text] = known = told
        return known

    def _known_names(self) -> re.Pattern[str]:
        """Literal names, longest first; ids as numbers of their own."""
        if self._pattern is None:
            words = sorted(self._literals, key=len, reverse=True)
            parts = [rf"(?<![A-Za-z0-9]){re.escape(one)}(?![A-Za-z0-9])" for one in words]
            for one in sorted(self._ids, key=len, reverse=True):
                plain = re.escape(one)
                parts.append(rf"\b(?P<job{len(parts)}>[Jj])ob[ _-]?{plain}(?![\w.]*\d)")
                parts.append(rf"(?:(?<=StepId=)|(?<=STEP )){plain}(?=\.\w)")  # as Slurm says it
                if len(one) >= _LONG_ID:
                    no_number = r"(?<![A-Za-z0-9])(?<!\d\.)(?<!step )(?<!step: )"
                    parts.append(rf"{no_number}{plain}(?![A-Za-z0-9]|\.\d)")
                else:
                    parts.append(rf"(?<=/){plain}(?=[-.])")
            self._pattern = re.compile("|".join(parts) or r"(?!)")
        return self._pattern

    def _literal(self, match: re.Match[str]) -> str:
        whole = match[0]
        if whole in self._literals:
            return self._literals[whole]
        number = next(one for one in sorted(self._ids, key=len, reverse=True) if one in whole)
        stand_in = self._ids[number]
        if match.lastgroup is None:
            return stand_in
        word = stand_in.replace("-", " ") if self._numbered else stand_in
        return whole[0] + word[1:]

    def _path(self, match: re.Match[str]) -> str:
        path = match[0]
        if _PUBLIC.match(path):
            return path
        return self._stand_in("path", path.rstrip("/"))

    def _folded(self, match: re.Match[str]) -> str:
        try:
            names = [one.partition(".")[0].lower() for one in nodeset.expand(match[0].rstrip(","))]
        except UsageError:
            return match[0]
        if not any(name in self._hosts for name in names):
            return match[0]
        return f"{len(names)} hosts"


def hosts_of(tunnels: Iterable[str]) -> Iterator[str]:
    """Machines that a command for ssh names."""
    for text in tunnels:
        yield from re.findall(r"@([A-Za-z][\w.-]*)", text)
        yield from re.findall(r":([A-Za-z][\w.-]*):\d+", text)


def hosts_of_urls(texts: Iterable[str]) -> Iterator[str]:
    """Machines that URLs and logins in a text name."""
    for text in texts:
        found = re.findall(r"https?://(?:[^\s/@]*@)?([A-Za-z][\w.-]*\w)", text)
        found += re.findall(r"\w@([A-Za-z][\w.-]*\w)", text)
        yield from (one for one in found if not one.isupper())  # as in --address http://HEAD:PORT


def is_name(setting: str) -> bool:
    """Whether a setting's value is a name or a place."""
    tells = re.compile(r"(?:^|_| )(?:name|user|tag|alias|dir|directory|path|file|bucket)$")
    return setting == "model" or tells.search(setting) is not None


def named(settings: Mapping[str, str]) -> Iterator[str]:
    return (value for key, value in settings.items() if is_name(key))


def _stem(path: str) -> str:
    """`4711-llama` of ".../4711-llama.log"; "" for what every job calls so."""
    base = os.path.basename(path.rstrip("/"))
    stem = re.sub(r"\.(?:log|out|txt|err)(?:\.\w+)*$", "", base)
    return stem if any(char.isdigit() for char in stem) and not stem.startswith("rank-") else ""


def _tells(text: str) -> bool:
    word = text.lower()
    return len(text) >= _SHORTEST and word not in _NOTHING and word not in own_words()
