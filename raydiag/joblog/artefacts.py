"""The newest thing that a job wrote besides its log: a checkpoint or an event file.

A log whose stdout is block-buffered stands still while training goes on; its checkpoints do not.
Source: mtimes below the job's directory and below the checkpoint directories that its log names.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from raydiag.joblog.facts import JobFacts

_DEPTH = 4
_ENTRIES = 4000  # looked at in all; a checkpoint may have a hundred thousand files
_KINDS = re.compile(
    r"events\.out\.tfevents\.|(?:^|/)(?:checkpoints?|ckpts?|saved_models?)/|"
    r"(?:^|/)(?:checkpoint|ckpt|global_step|iter|step)[-_]?\d+|\.(?:ckpt|safetensors|distcp)$"
)
# Keys of the configuration that hold a directory of checkpoints.
_KEYS = ("checkpoint_dir", "checkpoint_directory", "save_dir", "output_dir", "save")


@dataclass(frozen=True)
class Artefact:
    """A file or directory that only training writes."""

    path: str
    mtime: float


def newest(facts: JobFacts) -> Artefact | None:
    """The newest checkpoint or event file of the job; None when there is none to be seen."""
    settings = {**facts.header.config, **facts.header.passthrough}
    directories = [facts.resolved.job_dir or ""]
    directories += filter(os.path.isabs, (settings.get(key, "") for key in _KEYS))
    return max(_artefacts(filter(None, directories)), key=attrgetter("mtime"), default=None)


def _artefacts(directories: Iterable[str]) -> Iterator[Artefact]:
    entries_to_go = _ENTRIES
    for top in dict.fromkeys(directories):
        waiting = [(top, 0)]
        while waiting and entries_to_go > 0:
            directory, depth = waiting.pop()
            for name, kind, mtime in _entries(directory, entries_to_go):
                entries_to_go -= 1
                path = os.path.join(directory, name)
                if _KINDS.search(os.path.relpath(path, top)):
                    yield Artefact(path, mtime)
                if stat.S_ISDIR(kind) and depth < _DEPTH:
                    waiting.append((path, depth + 1))


def _entries(directory: str, limit: int) -> Iterator[tuple[str, int, float]]:
    """Name, mode and mtime; a directory that cannot be read is empty, a link is not followed."""
    try:
        with os.scandir(directory) as entries:
            for number, entry in enumerate(entries):
                if number >= limit:
                    return
                status = entry.stat(follow_symlinks=False)
                yield entry.name, status.st_mode, status.st_mtime
    except OSError:
        return
