"""Stand-ins for names and addresses: found in any value, replaced alike wherever they stand.

Findings are looked up by identity, so what is one object before is one object after.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar, cast

_T = TypeVar("_T")

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

_NOBODY = ("root", "ray", "ubuntu", "localhost")  # names that identify no one
_SHORTEST_WORD = 3  # a shorter user name is replaced in /home and before @ only
_HOST_FIELDS = frozenset(("host", "hostname"))
_NUMBERS = frozenset((int, float, bool, type(None)))
_KINDS = {"home": "user", "login": "user", "iphost": "host"}  # of groups of _FOUND; others: alike


class Names:
    """What is known to be a name, and what stands for it."""

    # Fields that hold raydiag's own words.
    verbatim = frozenset(
        ("failure_class", "event_class", "finding", "probe", "component", "fs_type", "wchan")
    )

    def __init__(self, hosts: Iterable[str], commands: Iterable[str], everything: Any) -> None:
        """`everything` is searched for users; of `commands` the arguments are left out."""
        self._stand_ins: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._texts: dict[str, str] = {}
        self._hosts: dict[str, str] = {}  # lower-case name: stand-in
        self._domains: set[str] = set()
        for name in hosts:
            self._learn_host(name)
        self._in_domains = _in_domains(self._domains)
        self._commands: dict[str, list[str]] = defaultdict(list)  # by first word and a blank
        for command in sorted(commands, key=len, reverse=True):
            self._commands[command.partition(" ")[0] + " "].append(command)
        self._words = dict(self._hosts)
        self._learn_users(everything)
        # First alphanumeric run of a name: the names, longest first. One scan finds all of them.
        self._by_first_run: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self._words, key=len, reverse=True):
            self._by_first_run[_WORD.findall(name)[0]].append(name)

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

    def _learn_users(self, everything: Any) -> None:
        for name in _users(everything):
            if len(name) >= _SHORTEST_WORD and _WORD.match(name):
                self._words.setdefault(name.lower(), self._stand_in("user", name))

    def _stand_in(self, kind: str, name: str) -> str:
        """`host-1` for the first host, and the same each time it is asked for."""
        key = kind, name.lower()
        if key not in self._stand_ins:
            self._counts[kind] += 1
            self._stand_ins[key] = f"{kind}-{self._counts[kind]}"
        return self._stand_ins[key]

    def know(self, text: str, replacement: str) -> None:
        """What a whole string is to be replaced by."""
        self._texts[text] = replacement

    # ---- values

    def value(self, value: _T) -> _T:
        """`value` with every string in it redacted; classes and names of probes are no strings."""
        redacted: Any = value
        if isinstance(value, str) and not isinstance(value, Enum):
            redacted = self.text(value)
        elif isinstance(value, Mapping):
            redacted = {self._key(key): self.value(held) for key, held in value.items()}
        elif isinstance(value, (list, tuple)):
            redacted = type(value)(map(self.value, value))
        elif is_dataclass(value):
            redacted = self._record(value)
        return cast(_T, redacted)

    def _key(self, key: Any) -> Any:
        """Keys are names of fields and variables."""
        return key

    def _record(self, record: Any) -> Any:
        changes: dict[str, Any] = {}
        for field in fields(record):
            old = getattr(record, field.name)
            if type(old) in _NUMBERS or (field.name in self.verbatim and isinstance(old, str)):
                continue
            new = self._field(field.name, old)
            if new is not old:
                changes[field.name] = new
        return replace(record, **changes) if changes else record

    def _field(self, name: str, value: Any) -> Any:
        if name in _HOST_FIELDS:
            return self._host(value)
        return self.value(_without_arguments(value) if name == "command" else value)

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
            known = _FOUND.sub(self._found, self._without_known_arguments(text))
            known = _outside_system_paths(known, self._without_names)
            self._texts[text] = known = known if known != text else text
        return known

    def _without_known_arguments(self, text: str) -> str:
        """Findings quote commands of the processes that they are about."""
        for first_word, commands in self._commands.items():
            if first_word in text:
                for command in commands:
                    text = text.replace(command, _without_arguments(command))
        return text

    def _found(self, match: re.Match[str]) -> str:
        """The stand-in for what the pattern found; the match itself where it names no one."""
        kind, found = match.lastgroup or "", match[0]
        if kind not in ("ip", "colons"):
            if found in _NOBODY:
                return found
            return self._stand_in(_KINDS.get(kind, kind), found)
        # A colon behind an address belongs to the sentence.
        end = ":" if found.endswith(":") and not found.endswith("::") else ""
        # In a regular expression the dots of an address are escaped.
        plain = found.removesuffix(end).replace("\\", "")
        if _HARDWARE.fullmatch(found) or _is_address(plain):
            return self._stand_in("addr", plain) + end
        return found

    def _without_names(self, text: str) -> str:
        if self._in_domains:
            text = self._in_domains.sub(self._host_in_domain, text)
        pieces, end_of_last = [], 0
        for run in _WORD.finditer(text):
            name = self._name_at(text, run) if run.start() >= end_of_last else None
            if name is not None:
                pieces += [text[end_of_last : run.start()], self._words[name]]
                end_of_last = run.start() + len(name)
        return "".join([*pieces, text[end_of_last:]])

    def _name_at(self, text: str, run: re.Match[str]) -> str | None:
        """The longest name that stands as a whole where this run of characters starts."""
        for name in self._by_first_run.get(run[0].lower(), ()):
            end = run.start() + len(name)
            if text[run.start() : end].lower() == name and not text[end : end + 1].isalnum():
                return name
        return None

    def _host_in_domain(self, match: re.Match[str]) -> str:
        return self._hosts.get(match[0].lower()) or self._stand_in("host", match[1])


def strings(value: Any) -> Iterator[str]:
    """Every string in a value, however deep."""
    held: Iterable[Any] = ()
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        held = value.values()
    elif isinstance(value, (list, tuple)):
        held = value
    elif is_dataclass(value):
        held = vars(value).values()
    for inner in held:
        if type(inner) not in _NUMBERS:
            yield from strings(inner)


def _users(value: Any) -> Iterator[str]:
    """Users with a directory under /home anywhere: other places have their names as well."""
    for text in strings(value):
        if "/home/" in text or "/Users/" in text:
            for match in _FOUND.finditer(text):
                if match["home"] and match["home"] not in _NOBODY:
                    yield match["home"]


def _in_domains(domains: Iterable[str]) -> re.Pattern[str] | None:
    """Finds every name in the hosts' domains; None without a domain."""
    escaped = "|".join(map(re.escape, sorted(domains, key=len, reverse=True)))
    if not escaped:
        return None
    return re.compile(rf"(?<![\w.-])([\w-]+(?:\.[\w-]+)*)\.(?:{escaped})(?![\w-])", re.I)


def _is_address(text: str) -> bool:
    """Whether it is an IP address that identifies a machine."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def _without_arguments(command: str) -> str:
    first_word, blank, _ = command.partition(" ")
    return f"{first_word} (arguments left out)" if blank else command


def _outside_system_paths(text: str, change: Callable[[str], str]) -> str:
    """`change` applied to all but the kernel's paths: those have no names of ours in them."""
    pieces, end_of_last = [], 0
    for path in _SYSTEM_PATH.finditer(text):
        pieces += [change(text[end_of_last : path.start()]), path[0]]
        end_of_last = path.end()
    return "".join([*pieces, change(text[end_of_last:])])
