"""One source of one plugin: what the collector knows of it, and what a reader does with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from raydiag import sandbox
from raydiag.errors import ReadError
from raydiag.exporter import plugins, reading
from raydiag.exporter.plugin_record import PluginRecord
from raydiag.exporter.readers import Key
from raydiag.model import Status

if TYPE_CHECKING:
    from raydiag.exporter.external_plugins import Ask


@dataclass(eq=False)
class SourceTask:
    """One source of one plugin, from queue to outcome."""

    record: PluginRecord
    key: Key
    kind: str  # of its reader
    timeout_s: float
    request: dict[str, Any]
    tag: str
    is_last: bool = False
    ask: Optional[Ask] = None  # of a foreign plugin, or of a look at a directory of them
    outcome: tuple[Status, str] = (Status.ERROR, "the guarded reader gave no answer")
    started: float = 0.0
    due: float = 0.0  # when it is abandoned
    not_before: float = 0.0
    waiting_since: float = 0.0
    reader: Optional[sandbox.Reader] = None

    @property
    def name(self) -> str:
        """What people call it: the source, or else the plugin."""
        return self.key[1] or self.key[0]

    def at_work(self) -> sandbox.Reader:
        """Its reader, which is at work on it."""
        assert self.reader is not None
        return self.reader

    @property
    def is_foreign(self) -> bool:
        """It runs what somebody else has written."""
        return self.ask is not None and bool(self.ask.plugin)


_files: dict[str, reading.NodeFiles] = {}  # in a reader: by root


def serve(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In the reader: run one plugin on one source, or list a plugin's sources."""
    if "ask" in request:
        from raydiag.exporter import external_run  # with what starts programs

        yield {"answer": external_run.answer(request["ask"])}
        return
    plugin = plugins.load(request["plugin"])
    root = request["root"]
    files = _files.get(root) or _files.setdefault(root, reading.NodeFiles(root))
    files.left_alone = set(request["left_alone"])  # what is not in it any more is tried again
    if not request["listing"]:
        yield {"answer": reading.run(plugin, request["source"], files, request["state"])}
        return
    try:
        assert plugin.sources is not None
        yield {"sources": list(plugin.sources(files))}
    except ReadError as error:
        yield {"failed": [error.status.value, str(error)]}
    except Exception as error:
        yield {"failed": [Status.ERROR.value, f"{type(error).__name__}: {error}"]}
