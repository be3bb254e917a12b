"""In a guarded reader: run one plugin on one source, and leave alone what has answered EINVAL.

A counter that a card or a driver does not support is refused with EINVAL, often with a line in the
kernel log each time. A path that has given it once is not opened again; what was refused travels
with each answer and comes back with each request, so that it outlives the reader.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from raydiag.errors import NoData, ReadError
from raydiag.exporter.metrics import Sample
from raydiag.exporter.plugins import Plugin, State
from raydiag.host import TEXT_LIMIT_BYTES, Host
from raydiag.model import Status, Unread


class NodeFiles(Host):
    """A `Host` that does not open again what has answered EINVAL."""

    def __init__(self, root: str = "/", left_alone: Iterable[str] = ()) -> None:
        super().__init__(root)
        self.left_alone = set(left_alone)  # paths on the node, of files and directories

    def read_bytes(self, path: str, limit: int = TEXT_LIMIT_BYTES) -> bytes:
        """As of `Host`. Raises NoData for a path that is left alone, itself or its directory."""
        if self.left_alone and (
            path in self.left_alone or path.rpartition("/")[0] in self.left_alone
        ):
            raise NoData(f"{path}: left alone, it has answered {os.strerror(errno.EINVAL)}")
        try:
            return super().read_bytes(path, limit)
        except ReadError as error:
            if str(error) == f"{path}: {os.strerror(errno.EINVAL)}":
                self.left_alone.add(path)
            raise


def run(
    plugin: Plugin, source: Optional[str], files: NodeFiles, state: Mapping[str, Any]
) -> dict[str, Any]:
    """Run a plugin on a source; returns its answer as plain JSON values.

    "samples": lists in the order of `Sample`; "unread": [source, status, reason] each; "state":
    what to give it the next time, None: as before; "failed": [status, reason], None: it went well.
    "left_alone": all paths of this reader that are.
    """
    samples: list[Sample] = []
    unread: list[list[str]] = []
    answer: dict[str, Any] = {"samples": samples, "unread": unread, "state": None, "failed": None}
    arguments = [files] if plugin.sources is None else [files, source]
    options = {"state": state} if plugin.keeps_state else {}
    try:
        for item in plugin.function(*arguments, **options):
            if isinstance(item, Sample):
                samples.append(item)
            elif isinstance(item, Unread):
                unread.append([item.source, item.status.value, item.reason])
            elif isinstance(item, State):
                answer["state"] = item.values
            else:
                raise TypeError(f"a plugin yields no {type(item).__name__}")
    except ReadError as error:
        answer["failed"] = [error.status.value, str(error)]
    except Exception as error:
        # A plugin that breaks costs its own series and no other.
        answer["failed"] = [Status.ERROR.value, f"{type(error).__name__}: {error}"]
    answer["left_alone"] = sorted(files.left_alone)
    return answer
