"""MEASURE: one file per probe, facts about one node, no opinion.

A probe is a generator over frozen dataclasses (its records), marked with `@probe`, in the file of
the same name. It takes a `Host`, then the source it should read (only if it names `sources`), then
keyword options that the caller may send. It may also yield `Unread` for a part that it could not
read, and raises NoData, Denied, ParseError or ReadError when it has nothing at all.

Probes run in guarded children (`sandbox`), so a probe may block; what it yielded before it blocked
is kept. They need the standard library only and run on Python 3.9.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Optional

from raydiag.host import Host

# The kinds of guarded child, see `confinement`: `files` is the tightest, `processes` can see other
# processes' wchan, stack, fd and environ, `sockets` may open TCP connections besides, `commands`
# may run a program.
FILES = "files"
PROCESSES = "processes"
SOCKETS = "sockets"
COMMANDS = "commands"

# When a probe runs. FIRST looks for a GPU driver fault without touching the driver. LAST touches
# what such a fault hangs: it is skipped when FIRST saw one, and stops after its first hang; what is
# LAST + 1 comes after the better evidence.
FIRST, NORMAL, LAST = 0, 1, 2


_Function = Callable[..., Iterator[Any]]


@dataclass(frozen=True)
class Probe:
    """A registered probe: what the runner must know to run it."""

    name: str
    function: _Function
    record: type
    timeout_s: float = 3.0  # for one source
    reader: str = FILES  # FILES, PROCESSES, SOCKETS or COMMANDS
    stage: int = NORMAL  # FIRST, NORMAL or LAST
    sources: Optional[Callable[[Host], Sequence[str]]] = None  # None: it is its own only source
    samples: int = 1  # 2: read once more at the end of the run, so that counters show what moves
    watch: Optional[Callable[[Any], bool]] = None  # a record that makes the second worth a wait
    identity: tuple[str, ...] = ()  # fields that make two records the same thing; (): all of them

    def identity_of(self, record: Any) -> Any:
        """Equal for two records of the same thing: of two samples, or of two Ray nodes."""
        return self._identity(record)

    @functools.cached_property
    def _identity(self) -> Callable[[Any], Any]:
        return attrgetter(*self.identity) if self.identity else repr


# Probes that run only when they are asked for by name.
OPT_IN = frozenset({"stacks"})

_registered: dict[str, Probe] = {}


def probe(record: type, **settings: Any) -> Callable[[_Function], _Function]:
    """Register the decorated generator under its own name, which is also its module's name.

    `settings` are further fields of `Probe`.

    With `sources`, the function is called once per source, each under its own deadline: a source
    that hangs costs its own value and no other.

    With two `samples`, the second comes soon, unless a record of the first is one to `watch`: a
    counter that has never counted hardly begins now, one that has may go on.

    `identity` names the fields by which a record is found again, in the second sample or in what
    another Ray node of the same machine reports.
    """

    def register(function: _Function) -> _Function:
        name = function.__name__
        _registered[name] = Probe(name, function, record, **settings)
        return function

    return register


def names() -> list[str]:
    """Names of all probes that the package carries, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def defaults() -> list[str]:
    """Names of the probes that run unless others are asked for; imports none of them."""
    return [name for name in names() if name not in OPT_IN]


def load(name: str) -> Probe:
    """The probe of that name; imports its module only. Raises KeyError for an unknown name."""
    try:
        importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError:
        raise KeyError(name) from None
    return _registered[name]


def of_record(record: type) -> Probe:
    """The probe that yields records of that type."""
    return next(probe for probe in _registered.values() if probe.record is record)
