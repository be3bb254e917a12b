"""Replace one file of an exporter so that at any moment it is the old one or the new one, whole.

The new content is written under a temporary name in the same directory, which no exporter takes for
a plugin, and renamed over the old one: the exporter's shell reads its script by offset and sources
plugins every cycle, so a file that changed in place would be executed half and half.

What is to happen stands in the journal before it happens, with the hashes of both contents, and the
old content is kept there. Whoever is killed in between leaves a file that is known by its hash, and
perhaps a temporary one, which the next replacement removes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

from raydiag.errors import ParseError
from raydiag.file_writing import write_all
from raydiag.hotfix import process
from raydiag.hotfix.journal import Journal, JournalError, sha256, short_host, sync_directory
from raydiag.hotfix.messages import SHELL, SHELL_TARGETS

CONTENT_LIMIT_BYTES = 1 << 20
_PREFIX, _SUFFIX = ".raydiag-hotfix.", ".tmp"
# Of another host's temporary file in a shared directory; no operation takes that long.
_ABANDONED_S = 600.0
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class ReplaceRefused(Exception):
    """Why the file is not replaced; nothing was changed."""


@dataclass(frozen=True)
class Current:
    """A target as it is now."""

    path: str  # every symbolic link resolved
    content: Optional[bytes]  # None: there is no such file
    status: Optional[os.stat_result] = None

    @property
    def sha256(self) -> str:
        """Hash of the content; "" where there is no file."""
        return "" if self.content is None else sha256(self.content)


def name_refusal(exporter: str, name: str) -> str:
    """Why no file of that name is ever replaced; "" when it may be."""
    if exporter == SHELL:
        return "" if name in SHELL_TARGETS else f"not one of {', '.join(SHELL_TARGETS)}"
    if not name or name[0] in "._-" or not set(name) <= _PLAIN or len(name) > 100:
        return "not the name of a plugin: letters, digits, '.', '_', '-'"
    return ""


def require_writable(exporter: str, name: str, content: bytes) -> None:
    """Raises ReplaceRefused where no file of that name is written with that content."""
    reason = name_refusal(exporter, name) or content_refusal(name, content)
    if reason:
        raise ReplaceRefused(reason)


def content_refusal(name: str, content: bytes) -> str:
    """Why that content is not written, whatever is there now; "" when it may be."""
    if not content.strip():
        return "the new file is empty"
    if len(content) > CONTENT_LIMIT_BYTES:
        return f"the new file has {len(content)} bytes, more than {CONTENT_LIMIT_BYTES}"
    try:
        if "\0" in content.decode("utf-8"):
            return "the new file is binary"
    except UnicodeDecodeError:
        return "the new file is binary, or not UTF-8"
    if name.endswith(".py"):
        return ""
    first = content.split(b"\n", 1)[0]
    if not first.startswith(b"#!"):
        return "the new file is not a script: it does not begin with #!"
    if first.endswith(b"\r"):
        return "the new file has Windows line ends"
    if name.endswith(".sh") and b"sh" not in first:
        return f"the new file is not a shell script: {first[:60].decode()!r}"
    return ""


def current(directory: str, name: str) -> Current:
    """The target as it is. Raises Refused when it is not a plain file of that directory."""
    base = os.path.realpath(directory)
    path = os.path.realpath(os.path.join(base, name))
    if os.path.dirname(path) != base:
        link = f"{name} is a symbolic link"
        raise ReplaceRefused(f"{link} that leads out of the directory, to {path}")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if os.path.islink(os.path.join(base, name)):
            raise ReplaceRefused(f"{name} is a symbolic link to nothing") from None
        return Current(path, None)
    except OSError as error:
        raise ReplaceRefused(f"{path}: {error.strerror}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ReplaceRefused(f"{path} is not a file")
        size = status.st_size
        if size > CONTENT_LIMIT_BYTES:
            raise ReplaceRefused(f"{path} has {size} bytes, which is no plugin of anybody's")
        with open(fd, "rb", closefd=False) as file:
            return Current(path, file.read(CONTENT_LIMIT_BYTES + 1), status)
    except OSError as error:  # such as ESTALE, of a file that another host has replaced
        raise ReplaceRefused(f"{path}: {error.strerror}") from None
    finally:
        os.close(fd)


def _read(path: str) -> Current:
    return current(*os.path.split(path))


@dataclass
class Replacement:
    """One file of one rollout, from what it is now to `content`; None removes it.

    `steps()` does the work and yields the name of each step when it is done: whoever stops in
    between leaves the file old or new. `at` is when it became new.
    """

    journal: Journal
    rollout: str
    who: str
    name: str
    old: Current
    content: Optional[bytes]
    events: tuple[str, str] = ("intent", "replaced")
    at: float = 0.0
    _temporary: str = field(default="", init=False)

    def run(self) -> None:
        """Raises Refused or JournalError; the old file is there then."""
        try:
            with self.journal.alone():
                for _ in self.steps():
                    pass
        except OSError as error:
            raise ReplaceRefused(f"{self.old.path}: {error.strerror}") from None
        finally:
            self._remove_temporary()

    def steps(self) -> Iterator[str]:
        """In this order, and each on the disk before the next."""
        if self.old.content is not None:
            self.journal.keep(self.old.content)
        if self.content is not None:
            self.journal.keep(self.content)
        yield "contents kept"
        self._record(self.events[0])
        yield "intent recorded"
        if self.content is not None:
            yield from self._write(self.content)
        if _read(self.old.path).sha256 != self.old.sha256:
            raise ReplaceRefused(f"{self.old.path} was changed by someone else a moment ago")
        if self.content is None:
            os.unlink(self.old.path)
        else:
            self._rename(sha256(self.content))
        self._temporary, self.at = "", time.time()
        yield "renamed"
        with contextlib.suppress(OSError):  # done is done; only a power cut could undo it
            sync_directory(os.path.dirname(self.old.path))
        yield "directory on disk"
        with contextlib.suppress(JournalError):  # the hash tells what the file is
            self._record(self.events[1])
        yield "outcome recorded"

    def _rename(self, new_sha256: str) -> None:
        """NFS may say that it failed when it did not: the answer was lost, and the name is gone."""
        try:
            os.rename(self._temporary, self.old.path)
        except OSError:
            if _read(self.old.path).sha256 != new_sha256:
                raise

    def _write(self, content: bytes) -> Iterator[str]:
        directory, base = os.path.split(self.old.path)
        self._temporary = os.path.join(directory, temporary_name(base))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._temporary, flags, 0o600)
        try:
            yield "temporary file made"
            half = len(content) // 2
            write_all(fd, content[:half])
            yield "half written"
            write_all(fd, content[half:])
            self._dress(fd)
            os.fsync(fd)
        finally:
            os.close(fd)
        yield "temporary file on disk"

    def _dress(self, fd: int) -> None:
        """Owner, mode and extended attributes of the old file; a new script can be executed."""
        old = self.old.status
        if old is None:
            os.fchmod(fd, 0o755 if not self.name.endswith(".py") else 0o644)
            return
        new = os.fstat(fd)
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            os.fchown(fd, old.st_uid, old.st_gid)
        with contextlib.suppress(OSError):
            for attribute in os.listxattr(self.old.path):
                # Others come with the directory, or are about the old content, as a signature is.
                if attribute.startswith(("user.", "system.", "security.selinux")):
                    self._copy_attribute(fd, attribute)
        os.fchmod(fd, stat.S_IMODE(old.st_mode))  # last: the others may clear bits of it

    def _copy_attribute(self, fd: int, attribute: str) -> None:
        try:
            os.setxattr(fd, attribute, os.getxattr(self.old.path, attribute))
        except OSError as error:
            # The file system's own and the security module's come with the directory.
            if attribute.startswith(("user.", "system.posix_acl")) and error.errno != errno.ENODATA:
                raise ReplaceRefused(f"{self.old.path}: {attribute} cannot be kept") from None

    def _record(self, event: str) -> None:
        fields: dict[str, object] = {"name": self.name, "path": self.old.path}
        fields["old_sha256"] = self.old.sha256
        fields["new_sha256"] = "" if self.content is None else sha256(self.content)
        fields["mode"] = stat.S_IMODE(self.old.status.st_mode) if self.old.status else None
        self.journal.append(self.rollout, self.who, event, **fields)

    def _remove_temporary(self) -> None:
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            self._temporary = ""


def temporary_name(base: str) -> str:
    """Says who made it, so that the next one knows whether he still lives."""
    start = process.see(os.getpid()).start_ticks
    return f"{_PREFIX}{short_host()}.{os.getpid()}.{start}.{base}{_SUFFIX}"


def leftovers(directory: str) -> list[str]:
    """Names of temporary files in the directory that nobody is at work on any more."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    found = [name for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    return sorted(name for name in found if _is_abandoned(directory, name))


def _is_abandoned(directory: str, name: str) -> bool:
    mine = f"{_PREFIX}{short_host()}."
    if name.startswith(mine):
        pid, start = (*name[len(mine) :].split(".", 2), "")[:2]
        if pid.isdigit() and start.isdigit():
            try:
                return process.see(int(pid)).start_ticks != int(start)
            except (OSError, ParseError):
                return True
    with contextlib.suppress(OSError):
        return time.time() - os.lstat(os.path.join(directory, name)).st_mtime > _ABANDONED_S
    return False


def clean(directory: str) -> list[str]:
    """Remove what rollouts left that died; returns the names."""
    removed = []
    for name in leftovers(directory):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, name))
            removed.append(name)
    return removed
