"""Strict reading of the catalog's YAML: what is not understood is refused, with file and row."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

import yaml

from raydiag.errors import CatalogError
from raydiag.model import Confidence, Severity

_Entry = TypeVar("_Entry")
_Kind = TypeVar("_Kind", Severity, Confidence)

FAMILIES = {"xid": "Xid", "sxid": "SXid"}
# What a repetition in a pattern spans at most, so that no line takes quadratic time.
_BOUNDED = {
    r"(?<!\\)\.\*": ".{0,300}",
    r"(?<![\\\[\w])\\d\+": r"\\d{1,20}",
    r"(?<![\\\[])\\S\*": r"\\S{0,200}",
}
_DIGITS = "0123456789"
GROUPS = frozenset({"device", "pid", "process", "ring", "block", "count", "code"})


class CatalogRow:
    """One mapping of a table; every key must be taken by the time `end` is called."""

    def __init__(self, data: object, file: str, name: str) -> None:
        self.file, self.name = file, name
        if not isinstance(data, dict) or not _are_texts(data):
            raise self.error("not a mapping of names")
        self.data: dict[str, Any] = dict(data)

    def error(self, problem: str) -> CatalogError:
        """An error that names file and row."""
        place = self.file if self.name == self.file else f"{self.file}: {self.name}"
        return CatalogError(f"{place}: {problem}")

    def take(self, key: str) -> Any:
        """The value of a required key. Raises CatalogError, as all readers here."""
        if key not in self.data:
            raise self.error(f"{key} is missing")
        return self.data.pop(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not blank; the default, if there is one, where the key is missing."""
        if default is not None and key not in self.data:
            return default
        value = self.take(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"{key} must be a text")
        return value.strip()

    def texts(self, key: str, least: int = 1) -> tuple[str, ...]:
        """A list of different texts, at least `least`."""
        value = self.take(key) if least else self.data.pop(key, [])
        if not isinstance(value, list) or not (_are_texts(value) and all(value)):
            raise self.error(f"{key} must be a list of texts")
        if len(value) < least:
            raise self.error(f"{key} is empty")
        if len(set(value)) < len(value):
            raise self.error(f"{key} names something twice")
        return tuple(value)

    def rest(self, kind: type[_Entry], **read: Any) -> _Entry:
        """A `kind` of what was `read`, and of its other fields, each as its type says.

        What has no default must be there, and nothing else may be.
        """
        types = get_type_hints(kind)
        for entry in fields(kind):  # type: ignore[arg-type]
            if entry.name not in read:
                is_needed = entry.default is MISSING
                read[entry.name] = _READERS[types[entry.name]](self, entry.name, is_needed)
        self.end()
        return kind(**read)

    def mapping(self, key: str) -> Mapping[str, str]:
        """A mapping of texts to texts; empty if the key is missing."""
        value = self.data.pop(key, {})
        if not isinstance(value, dict) or not _are_texts((*value, *value.values())):
            raise self.error(f"{key} must map texts to texts")
        return MappingProxyType(dict(value))

    def table(self, key: str) -> Mapping[str, object]:
        """A mapping of names to anything; empty where the key is missing."""
        value = self.data.pop(key, {})
        if not isinstance(value, dict) or not _are_texts(value):
            raise self.error(f"{key} must be a mapping of names")
        return MappingProxyType(dict(value))

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of `choices`; the default where the key is missing."""
        value = self.text(key, default)
        if value not in choices and value != default:
            raise self.error(f"{key} must be one of {', '.join(filter(None, choices))}")
        return value

    def flag(self, key: str) -> bool:
        """True or false; false if the key is missing."""
        value = self.data.pop(key, False)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false")
        return value

    def number(self, key: str) -> int | None:
        """A whole number above zero; None if the key is missing."""
        value = self.data.pop(key, None)
        if value is not None and (type(value) is not int or value < 1):
            raise self.error(f"{key} must be a whole number above zero")
        return value

    def numbers(self, key: str) -> list[tuple[str, int]]:
        """Pairs of family and number."""
        value, pairs = self.take(key), []
        if isinstance(value, dict) and value.keys() <= FAMILIES.keys():
            pairs = [(family, code) for family, codes in value.items() for code in codes or ()]
        if not pairs or any(type(code) is not int for _, code in pairs):
            raise self.error(f"{key} must map {' or '.join(FAMILIES)} to numbers")
        return pairs

    def severity(self, key: str = "severity") -> Severity:
        """The severity of the row."""
        return self._member(key, Severity)

    def confidence(self, key: str = "confidence") -> Confidence:
        """The confidence of the row."""
        return self._member(key, Confidence)

    def _member(self, key: str, kind: type[_Kind]) -> _Kind:
        value = self.text(key)
        try:
            return kind(value)
        except ValueError:
            raise self.error(f"no {key} {value!r}") from None

    def pattern(
        self, key: str, groups: frozenset[str] = GROUPS, numbered: bool = False
    ) -> re.Pattern[str]:
        """A regular expression, or a list of them any of which may match; see `_BOUNDED`.

        `numbered`: a digit at the end keeps alternatives apart, the group code2 is a code.
        """
        is_list = isinstance(self.data.get(key), list)
        try:
            source = "|".join(self.texts(key)) if is_list else self.text(key)
            for repeated, bounded in _BOUNDED.items():
                source = re.sub(repeated, bounded, source)
            compiled = re.compile(source)
        except re.error as error:
            raise self.error(f"{key}: {error}") from None
        names = compiled.groupindex.keys()
        unknown = {name.rstrip(_DIGITS) if numbered else name for name in names} - groups
        if unknown:
            raise self.error(f"{key}: no meaning for group {min(unknown)!r}")
        if compiled.search(""):
            raise self.error(f"{key} matches the empty line")
        return compiled

    def end(self) -> None:
        """Refuse keys that nobody has taken."""
        if self.data:
            raise self.error(f"unknown key {min(self.data)!r}")


_READERS: Mapping[object, Callable[[CatalogRow, str, bool], object]] = {
    str: lambda row, key, is_needed: row.text(key, None if is_needed else ""),
    tuple[str, ...]: lambda row, key, is_needed: row.texts(key, least=int(is_needed)),
    bool: lambda row, key, _: row.flag(key),
    int | None: lambda row, key, _: row.number(key),
    Mapping[str, str]: lambda row, key, _: row.mapping(key),
}


def rows(data: object, file: str, key: str) -> Iterator[CatalogRow]:
    """The rows of a list, each named by its value of `key`. Raises CatalogError.

    Where `key` is "id", no two may have the same.
    """
    ids: set[str] = set()
    if not isinstance(data, list) or not data:
        raise CatalogError(f"{file}: not a list of rows")
    for number, item in enumerate(data, 1):
        row = CatalogRow(item, file, f"row {number}")
        row.name = row.text(key)
        if key == "id" and row.name in ids:
            raise row.error("the id is there twice")
        ids.add(row.name)
        yield row


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def require_class(name: str, classes: Iterable[str], place: str) -> None:
    """Raises CatalogError, which names `place`, unless the failure class exists."""
    if name not in classes:
        raise CatalogError(f"{place}: no failure class {name!r}")


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]
    """YAML keeps the last of two equal keys in silence; a table must not lose a row that way."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is there twice", node.start_mark
                )
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def loaded(text: str, file: str) -> object:
    """What a YAML text holds. Raises CatalogError."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # a SafeLoader  # nosec B506
    except yaml.YAMLError as error:
        raise CatalogError(f"{file}: {' '.join(str(error).split())}") from None
