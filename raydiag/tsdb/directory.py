"""A Prometheus data directory as it lies on disk: its blocks, its write-ahead log, what is broken.

Nothing in it is opened for writing. What a live server removes meanwhile is not there: read again.

Source: Prometheus storage format (tsdb/docs/format): meta.json, index.md, chunks.md, tombstones.md.
"""

import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Optional

from raydiag.errors import CannotRun, Denied, NoData, ParseError, ReadError
from raydiag.event_file import crc32c
from raydiag.model import Status, Unread, Window
from raydiag.untrusted import parsed, regular

ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_SEGMENT = re.compile(r"\d{6,8}")
_CHECKPOINT = re.compile(r"checkpoint\.\d{6,8}")
LOGS = ("wal", "wbl")  # the log of late samples beside the log of samples

_INDEX_MAGIC = 0xBAAAD700
_CHUNKS_MAGIC = 0x85BD40DD
_TOC_BYTES = 6 * 8 + 4
_EARLIEST_S, _LATEST_S = 1e9, 1e11  # a head that is empty has the extremes of int64


@dataclass(frozen=True)
class Block:
    """A block of samples that never changes any more."""

    ulid: str
    path: Path
    start: float
    end: float  # of its last sample
    samples: int
    size_bytes: int


@dataclass(frozen=True)
class TsdbDirectory:
    """What a directory holds. `blocks` can be opened, by time; what cannot is in `unread`."""

    path: Path
    blocks: tuple[Block, ...]
    logs: tuple[Path, ...]  # files of the write-ahead logs, checkpoints included
    log_bytes: int
    unread: tuple[Unread, ...] = ()
    files: tuple[str, ...] = field(default=())  # names of all entries, for those who ask why

    @property
    def empty(self) -> bool:
        """Nothing was ever stored: no block, and no log with a byte in it."""
        return not self.blocks and not self.log_bytes

    @property
    def window(self) -> Optional[Window]:
        """From the first to the last sample of the blocks; the log's samples are not known here."""
        if not self.blocks:
            return None
        start = min(map(attrgetter("start"), self.blocks))
        return Window(start, max(map(attrgetter("end"), self.blocks)))


def locate(path: str) -> Path:
    """The data directory that `path` means: itself, or `prometheus` in a job's directory.

    Raises CannotRun when neither is there.
    """
    directory = Path(path)
    if not os.path.isdir(directory):  # Path.is_dir raises where it may not look
        raise CannotRun(f"{path}: there is no such directory")
    inside = directory / "prometheus"
    if os.path.isdir(inside) and not looks_like_data(directory):
        return inside
    if looks_like_data(directory) or directory.name == "prometheus":
        return directory
    raise CannotRun(
        f"{path}: no Prometheus data in it (neither prometheus/, nor blocks, nor wal/): "
        "was the job started without Ray?"
    )


def looks_like_data(path: Path) -> bool:
    """Whether a server has stored something in it, or began to."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return any(name in LOGS or ULID.fullmatch(name) for name in names)


def read(path: Path) -> TsdbDirectory:
    """Raises CannotRun when the directory itself cannot be listed."""
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise CannotRun(f"{path}: cannot be listed: {error.strerror}") from None
    unread: list[Unread] = []
    blocks = _blocks(path, filter(ULID.fullmatch, names), unread)
    log_sizes = _log_sizes(path, unread)
    return TsdbDirectory(
        path=path,
        blocks=tuple(sorted(blocks, key=attrgetter("start", "ulid"))),
        logs=tuple(log_sizes),
        log_bytes=sum(log_sizes.values()),
        unread=tuple(unread),
        files=tuple(names),
    )


def _blocks(path: Path, names: Iterable[str], unread: list[Unread]) -> list[Block]:
    blocks = []
    for name in names:
        try:
            blocks.append(_block(path / name))
        except ReadError as error:
            unread.append(Unread(str(path / name), error.status, str(error)))
    return blocks


def _log_sizes(path: Path, unread: list[Unread]) -> dict[Path, int]:
    """The files of the write-ahead logs that can be copied, in their order."""
    sizes = {}
    for name in LOGS:
        try:
            files = _log_files(path / name)
        except NoData:
            continue
        except ReadError as error:
            unread.append(Unread(str(path / name), error.status, str(error)))
            continue
        for file in files:
            size = _size_of_log(file, unread)
            if size is not None:
                sizes[file] = size
    return sizes


def _block(path: Path) -> Block:
    """Raises Denied, NoData, ParseError: then no server could open it."""
    meta = _meta(path / "meta.json")
    try:
        start, end = meta["minTime"] / 1000, (meta["maxTime"] - 1) / 1000
        samples = int(meta.get("stats", {}).get("numSamples", 0))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise ParseError("meta.json does not say which time the block holds") from None
    if not _EARLIEST_S < start <= end + 0.001 < _LATEST_S:
        raise ParseError(f"meta.json: {start:g} to {end:g} s is no time")
    size = _check_index(path / "index")
    for segment in segments(path):
        size += _check_segment(segment)
    return Block(path.name, path, start, end, samples, size)


def _meta(path: Path) -> dict[str, Any]:
    try:
        meta = parsed(_content(path, 0, 1 << 24))
    except ValueError:
        raise ParseError("meta.json is cut short or no JSON") from None
    if not isinstance(meta, dict):
        raise ParseError("meta.json is no JSON object")
    if meta.get("version") != 1:
        raise ParseError(f"meta.json has the unknown version {meta.get('version')!r}")
    return meta


def segments(block: Path) -> list[Path]:
    """The chunk files of a block, in order. Raises NoData without any, Denied."""
    try:
        files = _segments_in((block / "chunks").iterdir())
    except OSError as error:
        raise _as_read_error("chunks", error) from None
    if not files:
        raise NoData("chunks has no file in it")
    return sorted(files)


def _segments_in(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if _SEGMENT.fullmatch(path.name)]


def _check_segment(path: Path) -> int:
    """Size of the file. A server refuses the whole block for one with a wrong head."""
    head = _content(path, 0, 8)
    if len(head) < 8 or struct.unpack_from(">I", head)[0] != _CHUNKS_MAGIC:
        raise ParseError(f"chunks/{path.name} is empty or not a chunk file")
    return path.stat().st_size


def _check_index(path: Path) -> int:
    head = _content(path, 0, 5)
    if len(head) < 5 or struct.unpack_from(">I", head)[0] != _INDEX_MAGIC:
        raise ParseError("index is empty or not an index file")
    size = path.stat().st_size
    tail = _content(path, max(0, size - _TOC_BYTES), _TOC_BYTES)
    if len(tail) < _TOC_BYTES or crc32c(tail[:-4]) != struct.unpack_from(">I", tail, 48)[0]:
        raise ParseError("index is cut short or damaged at its end")
    return size


def _log_files(path: Path) -> list[Path]:
    """The files of one write-ahead log, checkpoints first. Raises NoData, Denied."""
    files: list[Path] = []
    for entry in _entries(path):
        if _CHECKPOINT.fullmatch(entry.name) and os.path.isdir(entry):
            files += _segments_in(_entries(entry))
        elif _SEGMENT.fullmatch(entry.name) and os.path.isfile(entry):
            files.append(entry)
    return files


def _entries(path: Path) -> Iterator[Path]:
    try:
        return iter(sorted(path.iterdir()))
    except OSError as error:
        raise _as_read_error(path.name, error) from None


def _size_of_log(path: Path, unread: list[Unread]) -> Optional[int]:
    """None for a file that cannot be copied, which then is in `unread`."""
    if not os.access(path, os.R_OK):
        unread.append(Unread(str(path), Status.DENIED, "no permission to read it"))
        return None
    try:
        return path.stat().st_size
    except OSError as error:
        unread.append(Unread(str(path), Status.ERROR, f"cannot be read: {error.strerror}"))
        return None


def _content(path: Path, offset: int, size: int) -> bytes:
    try:
        with open(path, "rb", opener=regular) as handle:
            handle.seek(offset)
            return handle.read(size)
    except OSError as error:
        raise _as_read_error(path.name, error) from None


def _as_read_error(name: str, error: OSError) -> ReadError:
    if isinstance(error, FileNotFoundError):
        return NoData(f"{name} is missing")
    if isinstance(error, PermissionError):
        return Denied(f"{name}: no permission to read it")
    return ReadError(f"{name}: {error.strerror}")
