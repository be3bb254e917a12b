"""Host: the only way files of a node are read.

All paths are absolute paths of the node; `root` puts them somewhere else for tests and for
examining a mounted image. Nothing here can write: files are opened O_RDONLY | O_NONBLOCK with a
size limit, and files whose mere reading changes the machine are refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import Any, Optional, TypeVar, Union

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.model import Unread

# Reading these acts on the hardware: amdgpu_gpu_recover resets the GPU, other debugfs files
# trigger firmware requests. Nothing that raydiag needs is in debugfs.
_FORBIDDEN = ("/sys/kernel/debug", "/sys/kernel/tracing")

_T = TypeVar("_T")

READ_ONLY = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
TEXT_LIMIT_BYTES = 256 * 1024


class Host:
    """The file tree of one node, rooted at `root`."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")

    def path(self, path: str) -> str:
        """The real path behind `path`. Raises Denied for files whose reading has side effects."""
        if path.startswith(_FORBIDDEN) or path.rsplit("/", 1)[-1] == "amdgpu_gpu_recover":
            raise Denied(f"{path}: raydiag never reads this file, reading it acts on the hardware")
        return self.root + path

    def read_bytes(self, path: str, limit: int = TEXT_LIMIT_BYTES) -> bytes:
        """At most `limit` bytes from the start of the file.

        Raises NoData (no such file, device or feature), Denied, ReadError (anything else: EIO,
        EINVAL, EBUSY). May hang in the kernel: call it in a guarded child only.
        """
        try:
            fd = os.open(self.path(path), READ_ONLY)
            try:
                chunks = []
                while limit > 0:
                    chunk = os.read(fd, min(limit, 1 << 16))
                    if not chunk:
                        break
                    chunks.append(chunk)
                    limit -= len(chunk)
                return b"".join(chunks)
            finally:
                os.close(fd)
        except OSError as error:
            self.failed(path, error)
            raise as_read_error(error, path) from None

    def failed(self, path: str, error: OSError) -> None:
        """Called when the content of a file could not be read; here it does nothing."""

    def read_text(self, path: str, limit: int = TEXT_LIMIT_BYTES) -> str:
        """Like `read_bytes`, decoded as UTF-8 (bad bytes as U+FFFD), surrounding blanks removed."""
        return self.read_bytes(path, limit).decode("utf-8", "replace").strip()

    def text_or_empty(self, path: str, limit: int = 4096) -> str:
        """Like `read_text`; empty for a file that cannot be read."""
        try:
            return self.read_text(path, limit)
        except ReadError:
            return ""

    def open(self, path: str) -> int:
        """A read-only, non-blocking file descriptor, for records and streams; the caller closes."""
        with _translated(path):
            return os.open(self.path(path), READ_ONLY)

    @contextlib.contextmanager
    def descriptor(self, path: str) -> Iterator[int]:
        """The descriptor of `open`, closed afterwards; errors of reading it are translated too."""
        with _translated(path):
            fd = self.open(path)
            try:
                yield fd
            finally:
                os.close(fd)

    def listdir(self, path: str) -> list[str]:
        """Sorted names in a directory. Raises NoData when there is none."""
        with _translated(path):
            return sorted(os.listdir(self.path(path)))

    def names_or_empty(self, path: str) -> list[str]:
        """Like `listdir`; empty for a directory that cannot be listed."""
        with contextlib.suppress(ReadError):
            return self.listdir(path)
        return []

    def numbers(self, path: str) -> list[int]:
        """The names in a directory that are numbers. Raises NoData when there is no directory."""
        return [int(name) for name in self.listdir(path) if is_digits(name)]

    def readlink(self, path: str) -> str:
        """Target of a symbolic link, as written."""
        with _translated(path):
            return os.readlink(self.path(path))

    def realpath(self, path: str) -> str:
        """The path with every symbolic link resolved, as a path of the node (root taken off)."""
        with _translated(path):
            real = os.path.realpath(self.path(path))
            root = os.path.realpath(self.root or "/")
            return real[len(root) :] if self.root and real.startswith(root + "/") else real

    def exists(self, path: str) -> bool:
        """Whether the path can be looked up; False also when it may not be."""
        return os.path.lexists(self.path(path))

    def statvfs(self, path: str) -> os.statvfs_result:
        """File system numbers; blocks on a hung mount."""
        with _translated(path):
            return os.statvfs(self.path(path))


def is_digits(text: str) -> bool:
    """Whether a text is nothing but ASCII digits."""
    return text.isascii() and text.isdigit()


def parse_int(text: str) -> int:
    """The integer in a text. Raises ParseError."""
    try:
        return int(text)
    except ValueError:
        raise ParseError(f"not an integer: {text[:80]!r}") from None


class OptionalFiles:
    """Reads files that need not exist; `unread` collects those that do and gave no value."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.unread: list[Unread] = []

    def value(
        self, path: str, parse: Callable[[str], _T], limit: int = TEXT_LIMIT_BYTES
    ) -> Optional[_T]:
        """What `parse` makes of the text; None without a file, or when there is no value in it."""
        try:
            return parse(self.host.read_text(path, limit))
        except NoData:
            return None
        except ReadError as error:
            self.malformed(path, error)
            return None

    def malformed(self, path: str, error: ReadError) -> None:
        """Note that a file exists and gave no value."""
        reason = str(error)
        if not reason.startswith(path):
            reason = f"{path}: {reason}"
        self.unread.append(Unread(path, error.status, reason))


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Turns OSError into the ReadError that says what it means for a reader."""
    try:
        yield
    except OSError as error:
        raise as_read_error(error, path) from None


def attempted(source: str, read: Callable[..., _T], *arguments: Any) -> Iterator[Union[_T, Unread]]:
    """What `read` gives; an Unread where it fails, nothing where there is nothing to read."""
    try:
        yield read(*arguments)
    except ReadError as error:
        yield from as_unread(source, error)


def as_unread(source: str, error: ReadError) -> list[Unread]:
    """What is to be said of an error: nothing of what is not there."""
    return [] if isinstance(error, NoData) else [Unread(source, error.status, str(error))]


# ENODEV, ENXIO and EOPNOTSUPP are how the kernel says that a feature is switched off; ESRCH is a
# process that ended while it was read.
_NOT_THERE = frozenset(
    getattr(errno, name) for name in ("ENOENT", "ENOTDIR", "ENODEV", "ENXIO", "EOPNOTSUPP", "ESRCH")
)


def as_read_error(error: OSError, path: str) -> ReadError:
    """The ReadError for an OSError on `path`.

    A file that is not there is NoData, see `_NOT_THERE`.
    """
    text = f"{path}: {os.strerror(error.errno or 0)}"
    if error.errno in _NOT_THERE:
        return NoData(text)
    if error.errno in (errno.EACCES, errno.EPERM):
        return Denied(text)
    return ReadError(text)
