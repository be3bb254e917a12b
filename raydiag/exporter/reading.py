"""In a guarded reader: run one plugin on one source, with what spares the node work.

A reader lives across cycles, so it keeps the files of /sys open and reads them again from their
start, which costs a tenth of opening them, and the names in directories of devices, which change
with the hardware only.

A counter that a card or a driver does not support is refused with EINVAL, often with a line in the
kernel log each time. A path that has given it once is not read again; what was refused travels with
each answer and comes back with each request, so that it outlives the reader.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from raydiag.errors import NoData, ParseError, ReadError
from raydiag.exporter.metrics import Sample
from raydiag.exporter.plugins import Plugin, State
from raydiag.exposition import MOST_SAMPLES
from raydiag.host import READ_ONLY, TEXT_LIMIT_BYTES, Host, as_read_error
from raydiag.model import Status, Unread

_MOST_OPEN = 512
_PAGE_BYTES = 4096
_DEVICES = ("/sys/bus/pci/", "/sys/class/infiniband")
_LISTING_LIFE_S = 60.0
_WHAT_TO_YIELD = """yield Sample(name, labels, value), as in: \
from raydiag.exporter.metrics import Sample; yield Sample("site_queue_depth", {"queue": "a"}, 3)"""
_GONE = (errno.ENODEV, errno.ENOTCONN, errno.ESTALE)  # what an open file says of a lost device


class NodeFiles(Host):
    """A `Host` that keeps files of /sys open, and leaves alone what has answered EINVAL."""

    def __init__(self, root: str = "/", left_alone: Iterable[str] = ()) -> None:
        super().__init__(root)
        self.left_alone = set(left_alone)  # paths on the node, of files and directories
        self._open: dict[str, int] = {}  # descriptors
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = _MOST_OPEN if limit < 0 else min(_MOST_OPEN, limit // 2)
        self._listings: dict[str, tuple[float, list[str]]] = {}  # monotonic, names

    def read_bytes(self, path: str, limit: int = TEXT_LIMIT_BYTES) -> bytes:
        """As of `Host`. Raises NoData for a path that is left alone, itself or its directory."""
        alone = self.left_alone
        if alone and (path in alone or path.rpartition("/")[0] in alone):
            raise NoData(f"{path}: left alone, it has answered {os.strerror(errno.EINVAL)}")
        if path[:5] != "/sys/":
            return super().read_bytes(path, limit)
        try:
            return self._read_again(path, limit)
        except OSError as error:
            self.failed(path, error)
            raise as_read_error(error, path) from None

    def listdir(self, path: str) -> list[str]:
        """As of `Host`; up to a minute old for directories of devices."""
        if not path.startswith(_DEVICES):
            return super().listdir(path)
        now = time.monotonic()
        listed_s, names = self._listings.get(path, (-_LISTING_LIFE_S, []))
        if now - listed_s >= _LISTING_LIFE_S:
            self._listings.pop(path, None)
            names = super().listdir(path)
            self._listings[path] = (now, names)
        return list(names)

    def failed(self, path: str, error: OSError) -> None:
        """Take note of an error of that path: after EINVAL it is left alone."""
        if error.errno == errno.EINVAL:
            self.left_alone.add(path)

    def _read_again(self, path: str, limit: int) -> bytes:
        """The content, through the descriptor that is open already. Raises OSError."""
        fd = self._open.get(path)
        if fd is not None:
            try:
                if os.fstat(fd).st_nlink:  # 0: another file is there by now
                    return _content(fd, limit)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
            os.close(self._open.pop(path))
        fd = os.open(self.path(path), READ_ONLY)
        if len(self._open) >= self._most_open:
            try:
                return _content(fd, limit)
            finally:
                os.close(fd)
        self._open[path] = fd
        return _content(fd, limit)

    def close(self) -> None:
        """Close what is open."""
        while self._open:
            os.close(self._open.popitem()[1])


def _content(fd: int, limit: int) -> bytes:
    content = os.pread(fd, limit, 0)
    # What a driver shows in /sys is a page at most, and comes whole.
    while _PAGE_BYTES <= len(content) < limit:
        rest_of_page = os.pread(fd, limit - len(content), len(content))
        if not rest_of_page:
            break
        content += rest_of_page
    return content


def _collect(items: Any, answer: dict[str, Any]) -> None:
    """Sort what a plugin yields into its answer. Raises ParseError for what is none of it."""
    if not isinstance(items, Iterable):
        raise ParseError(f"collect returned {items!r:.40}: {_WHAT_TO_YIELD}")
    samples: list[Sample] = answer["samples"]
    for item in items:
        if isinstance(item, Sample):
            samples.append(item)
            if len(samples) > MOST_SAMPLES:
                samples.clear()
                raise ParseError(f"more than {MOST_SAMPLES} samples")
        elif isinstance(item, Unread):
            answer["unread"].append([item.source, item.status.value, item.reason])
        elif isinstance(item, State):
            answer["state"] = item.values
        else:
            raise ParseError(f"collect yielded a {type(item).__name__}: {_WHAT_TO_YIELD}")


def run(
    plugin: Plugin, source: Optional[str], files: NodeFiles, state: Mapping[str, Any]
) -> dict[str, Any]:
    """Run a plugin on a source; returns its answer as plain JSON values.

    "samples": lists in the order of `Sample`; "unread": [source, status, reason] each; "state":
    what to give it the next time, None: as before; "failed": [status, reason], None: it went well.
    "left_alone": all paths of this reader that are.
    """
    answer: dict[str, Any] = {"samples": [], "unread": [], "state": None, "failed": None}
    arguments = [files] if plugin.sources is None else [files, source]
    options = {"state": state} if plugin.keeps_state else {}
    try:
        _collect(plugin.function(*arguments, **options), answer)
    except ReadError as error:
        answer["failed"] = [error.status.value, str(error)]
    except Exception as error:
        # A plugin that breaks costs its own series and no other.
        answer["failed"] = [Status.ERROR.value, f"{type(error).__name__}: {error}"]
    answer["left_alone"] = sorted(files.left_alone)
    return answer
