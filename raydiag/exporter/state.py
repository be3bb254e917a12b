"""What plugins remember from one exporter to the next, in one file that holds for one boot.

The file is read once, at the start, and written when something in it has changed: a new file under
another name, then a rename, so that it is old or new whenever the exporter is killed. Where it
cannot be written the exporter goes on without. It is small and of this boot only, so its right
place is a file system in memory, which cannot hang.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import Any, Optional

from raydiag.file_writing import write_file
from raydiag.untrusted import parsed

_LIMIT_BYTES = 4 << 20


def default_directory() -> str:
    """A place for state that ends with this boot and that only this user can write to."""
    if os.geteuid() == 0:
        return "/run/raydiag"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return f"{runtime}/raydiag" if os.path.isabs(runtime) else f"/tmp/raydiag-{os.geteuid()}"


class SavedState:
    """State of all plugins of one exporter.

    `problem` says why nothing could be read or is not written; "" while all is well.
    """

    def __init__(self, directory: Optional[str], host: str, boot: str, keep: bool = True) -> None:
        """`directory` None: only in memory. Not `keep`: what is there is read, never written."""
        self.problem = ""
        self._boot = boot
        self._keep = keep and directory is not None
        self._path = os.path.join(directory, f"exporter-{host}.json") if directory else ""
        self._plugins: dict[str, Mapping[str, Any]] = {}
        self._changed = False
        try:
            if directory is not None:
                self._prepare(directory)
                self._plugins = self._read()
        except (OSError, ValueError) as error:
            self.problem = f"{self._path}: not read: {_said(error)}"

    def get(self, plugin: str) -> Mapping[str, Any]:
        """What the plugin wanted to be given; {} at first."""
        return self._plugins.get(plugin, {})

    def put(self, plugin: str, values: Mapping[str, Any]) -> None:
        """Keep the plugin's state, for `save` and for its next run."""
        self._changed = self._changed or self._plugins.get(plugin) != values
        self._plugins[plugin] = values

    def save(self) -> None:
        """Write what has changed since the last time that this went well."""
        if not self._changed or not self._keep:
            return
        text = json.dumps({"boot_id": self._boot, "plugins": self._plugins})
        try:
            write_file(self._path, text.encode(), 0o644, to_disk=False)
        except OSError as error:
            self.problem = f"{self._path}: not written: {_said(error)}"
            return
        self._changed, self.problem = False, ""

    def _prepare(self, directory: str) -> None:
        """Make the directory. Raises ValueError for one that somebody else could write to."""
        if self._keep:
            os.makedirs(directory, 0o755, exist_ok=True)
        try:
            status = os.stat(directory)
        except FileNotFoundError:
            return
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid not in (0, os.geteuid()) or (others and not status.st_mode & stat.S_ISVTX):
            self._keep = False
            raise ValueError("others can write to its directory")

    def _read(self) -> dict[str, Mapping[str, Any]]:
        """State of this boot. Raises OSError, ValueError."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        with open(fd, "rb") as file:
            if os.fstat(fd).st_uid not in (0, os.geteuid()):
                raise ValueError("another user's file")
            content = file.read(_LIMIT_BYTES + 1)
        if len(content) > _LIMIT_BYTES:
            raise ValueError("too large")
        document = parsed(content)
        if not isinstance(document, dict) or not isinstance(document.get("plugins"), dict):
            raise ValueError("not a state of the exporter")
        if document.get("boot_id") != self._boot:
            return {}
        plugins = document["plugins"].items()
        return {name: values for name, values in plugins if isinstance(values, dict)}


def _said(error: Exception) -> str:
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return "not JSON"
    return getattr(error, "strerror", None) or str(error)
