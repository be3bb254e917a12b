"""Stand-ins for names and addresses: found in any value, replaced alike wherever they stand.

Findings are looked up by identity, so what is one object before is one object after.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar, cast

T = TypeVar("T")

# The order matters: what is longer and more certain comes first.
_FOUND = re.compile(
    r"""
      (?P<session>\bsession_\d{4}(?:-\d\d){2}_\d\d(?:-\d\d){2}_\d+_\d+)
    | (?P<job>\b(?:raysubmit_\w+|raydiag-[a-z]+-[0-9a-f]{12}\b))
    | (?P<id>(?<![0-9A-Za-z])[0-9a-f]{32,}(?![0-9A-Za-z]))
    | (?:(?<=/home/)|(?<=/Users/))(?P<home>[\w.+-]+)
    | (?P<login>(?<![\w.+/@-])[A-Za-z_][\w.+-]*)(?=@[\w\[])
    | (?P<iphost>(?<![0-9A-Za-z-])ip(?:-\d{1,3}){4}(?![\w-]))
    | (?P<ip>(?<![0-9A-Za-z.])(?:\d{1,3}\\*\.){3}\d{1,3}(?![0-9A-Za-z-])(?!\\*\.\d))
    | (?P<colons>(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,}[0-9a-fA-F]{0,4}(?![\w:]|\.\w))
    """,
    re.VERBOSE,
)
_HARDWARE = re.compile(
    r"(?:[0-9a-fA-F]{2}:){5,}[0-9a-fA-F]{2}|(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}"
)
_SYSTEM_PATH = re.compile(r"/(?:sys|proc|dev)/[^\s,;]*")
_WORD = re.compile(r"[A-Za-z0-9]+")

_NOBODY = ("root", "ray", "ubuntu", "localhost")  # these say nothing about anybody
_SHORTEST_WORD = 3  # a shorter user name is replaced in /home and before @ only
_VERBATIM = frozenset(  # fields
    ("failure_class", "event_class", "finding", "probe", "component", "fs_type", "wchan")
)
_HOST_FIELDS = frozenset(("host", "hostname"))
_NUMBERS = frozenset((int, float, bool, type(None)))


class Names:
    """What is known to be a name, and what stands for it."""

    verbatim = _VERBATIM  # fields that hold words of raydiag's own

    def __init__(self, hosts: Iterable[str], commands: Iterable[str], everything: Any) -> None:
        self._stand_ins: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._texts: dict[str, str] = {}
        self._hosts: dict[str, str] = {}  # lower-case name: stand-in
        self._domains: set[str] = set()
        for name in hosts:
            self._learn_host(name)
        self._domain = None
        if self._domains:
            tails = "|".join(map(re.escape, sorted(self._domains, key=len, reverse=True)))
            self._domain = re.compile(
                rf"(?<![\w.-])([\w-]+(?:\.[\w-]+)*)\.(?:{tails})(?![\w-])", re.I
            )

        self._commands: dict[str, list[str]] = defaultdict(list)  # by first word and a blank
        for command in sorted(commands, key=len, reverse=True):
            self._commands[command.partition(" ")[0] + " "].append(command)
        self._words = dict(self._hosts)
        for name in self._user_names(everything):
            if len(name) >= _SHORTEST_WORD and _WORD.match(name):
                self._words.setdefault(name.lower(), self._stand_in("user", name))
        # First alphanumeric run of a name: the names, longest first. One scan finds all of them.
        self._by_run: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self._words, key=len, reverse=True):
            self._by_run[_WORD.findall(name)[0]].append(name)

    def _learn_host(self, name: str) -> None:
        name = name.lower()
        short, _, domain = name.partition(".")
        if not _WORD.search(short) or short in _NOBODY or _is_address(name):
            return
        stand_in = self._stand_in("host", short)
        if not short.isdigit():
            self._hosts[short] = stand_in
        if domain:
            self._hosts[name] = stand_in
            if "." in domain:
                self._domains.add(domain)

    def _user_names(self, value: Any) -> Iterator[str]:
        """Users with a directory under /home anywhere: others places bear their names as well."""
        for text in strings(value):
            if "/home/" in text or "/Users/" in text:
                found = [match["home"] for match in _FOUND.finditer(text)]
                yield from (name for name in found if name and name not in _NOBODY)

    def _stand_in(self, kind: str, name: str) -> str:
        key = kind, name.lower()
        if key not in self._stand_ins:
            self._counts[kind] += 1
            self._stand_ins[key] = f"{kind}-{self._counts[kind]}"
        return self._stand_ins[key]

    def know(self, text: str, told: str) -> None:
        """What a whole string is to be replaced by."""
        self._texts[text] = told

    # ---- values

    def value(self, value: T) -> T:
        """`value` with every string in it redacted; classes and names of probes are no strings."""
        changed: Any = value
        if isinstance(value, str):
            changed = value if isinstance(value, Enum) else self.text(value)
        elif isinstance(value, Mapping):
            changed = {self._key(key): self.value(item) for key, item in value.items()}
        elif isinstance(value, (list, tuple)):
            changed = type(value)(self.value(item) for item in value)
        elif is_dataclass(value):
            changed = self._record(value)
        return cast(T, changed)

    def _key(self, key: Any) -> Any:
        """Keys are names of fields and variables."""
        return key

    def _record(self, record: Any) -> Any:
        changes: dict[str, Any] = {}
        for one in fields(record):
            old = getattr(record, one.name)
            if type(old) in _NUMBERS or (one.name in self.verbatim and isinstance(old, str)):
                continue
            if one.name in _HOST_FIELDS:
                new = self._host(old)
            else:
                new = self.value(_first_word(old) if one.name == "command" else old)
            if new is not old:
                changes[one.name] = new
        return replace(record, **changes) if changes else record

    def _host(self, name: Any) -> Any:
        """A field that holds a host name and nothing else, so it may be a number as well."""
        short = name.partition(".")[0] if isinstance(name, str) else ""
        if short.isdigit() and name.count(".") != 3:
            return self._stand_in("host", short)
        return self.value(name)

    # ---- texts

    def text(self, text: str) -> str:
        """One string. Long clusters say the same over and over, so it is remembered."""
        known = self._texts.get(text)
        if known is None:
            known = _FOUND.sub(self._found, self._without_arguments(text))
            known = _outside_system_paths(known, self._named)
            self._texts[text] = known = known if known != text else text
        return known

    def _without_arguments(self, text: str) -> str:
        """Findings quote commands of the processes that they are about."""
        for first, commands in self._commands.items():
            if first in text:
                for command in commands:
                    text = text.replace(command, _first_word(command))
        return text

    def _found(self, match: re.Match[str]) -> str:
        kind, whole = match.lastgroup, match[0]
        if kind in ("session", "job", "id"):
            return self._stand_in(kind, whole)
        if kind in ("home", "login"):
            if whole in _NOBODY:
                return whole
            return self._stand_in("user", whole)
        if kind == "iphost":
            return self._stand_in("host", whole)
        if kind == "ip":
            whole = whole.replace("\\", "")  # in a regular expression its dots are escaped
            return self._stand_in("addr", whole) if _is_address(whole) else match[0]
        if kind == "colons" and _HARDWARE.fullmatch(whole):
            return self._stand_in("addr", whole)
        # A colon behind an address belongs to the sentence.
        end = ":" if whole.endswith(":") and not whole.endswith("::") else ""
        plain = whole.removesuffix(end) if end else whole
        return self._stand_in("addr", plain) + end if _is_address(plain) else whole

    def _named(self, text: str) -> str:
        if self._domain:
            text = self._domain.sub(self._in_domain, text)
        parts, done = [], 0
        for run in _WORD.finditer(text):
            if run.start() < done:
                continue
            for name in self._by_run.get(run[0].lower(), ()):
                end = run.start() + len(name)
                if text[run.start() : end].lower() == name and not text[end : end + 1].isalnum():
                    parts += [text[done : run.start()], self._words[name]]
                    done = end
                    break
        return "".join([*parts, text[done:]]) if parts else text

    def _in_domain(self, match: re.Match[str]) -> str:
        return self._hosts.get(match[0].lower()) or self._stand_in("host", match[1])


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)
    elif is_dataclass(value):
        for item in vars(value).values():
            if type(item) not in _NUMBERS:
                yield from strings(item)


def _is_address(text: str) -> bool:
    """Whether it is an IP address that tells something."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def _first_word(command: str) -> str:
    first, blank, _ = command.partition(" ")
    return f"{first} (arguments left out)" if blank else command


def _outside_system_paths(text: str, change: Any) -> str:
    """`change` applied to what is no path of the kernel's: those have no names of ours in them."""
    parts, done = [], 0
    for path in _SYSTEM_PATH.finditer(text):
        parts += [change(text[done : path.start()]), path[0]]
        done = path.end()
    return "".join([*parts, change(text[done:])]) if parts else str(change(text))
