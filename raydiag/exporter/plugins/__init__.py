"""One file per plugin: a generator of samples, marked with `@plugin`, named `collect`.

It takes a `Host`, then the source it should read (only if it names `sources`), then `state`, a
mapping that it yielded before (only if it `keeps_state`). It yields `Sample`, `Unread` for a part
that could not be read, and `State`; it raises NoData, Denied, ParseError or ReadError when it has
nothing at all. The plugin's name is that of its file.

    @plugin(timeout_s=2.0)
    def collect(host: Host) -> Collected:
        yield Sample("hw_oom_kills_total", {}, parse_numbers(...)["oom_kill"])

Plugins run in guarded readers, which live across cycles, so a plugin may block, and may keep what
saves it work the next time. Standard library only, Python 3.9.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

from raydiag.exporter.metrics import Sample as Sample
from raydiag.host import Host
from raydiag.model import Unread
from raydiag.probes import FILES


class State(NamedTuple):
    """What a plugin wants to be given in the next cycle, also after a restart: plain JSON."""

    values: Mapping[str, Any]


Collected = Iterator[Union[Sample, Unread, State]]  # what a plugin yields
Collect = Callable[..., Iterator[Any]]


@dataclass(frozen=True)
class Plugin:
    """A plugin, with what the collector must know to run it."""

    name: str
    function: Collect
    timeout_s: float = 2.0  # for one source
    reader: str = FILES  # kind of guarded child, as of probes: FILES, PROCESSES, SOCKETS, COMMANDS
    last: bool = False  # touches what a driver fault hangs: after all others, to its first hang
    sources: Optional[Callable[[Host], Sequence[str]]] = None  # None: it is its own only source
    keeps_state: bool = False  # it is given its last `State` as the keyword `state`, {} at first


_registered: dict[str, Plugin] = {}


def plugin(**settings: Any) -> Callable[[Collect], Collect]:
    """Register the decorated generator under the name of its module; settings are as of `Plugin`.

    With `sources`, it is called once per source, each under its own deadline: a source that hangs
    costs its own series and no other.
    """

    def register(function: Collect) -> Collect:
        """Put it into the table of plugins."""
        name = function.__module__.rpartition(".")[2]
        _registered[name] = Plugin(name, function, **settings)
        return function

    return register


def names() -> list[str]:
    """Names of all plugins that the package carries, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Plugin:
    """The plugin of that name; imports its module only. Raises KeyError for an unknown name."""
    try:
        importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise KeyError(name) from None
    return _registered[name]
