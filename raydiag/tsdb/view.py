"""A private view of a Prometheus directory, for a server that believes that it owns it.

A server writes into its directory, and may remove or rewrite blocks. So it gets real directories
whose files are symbolic links to the blocks' (hard links would change the evidence's inodes), and a
real copy of the write-ahead log, whose newest records are in no block yet. The log is copied before
the blocks are linked: a block that is made of it meanwhile is then there twice, not missing.
"""

import os
import shutil
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from raydiag.errors import CannotRun, ParseError, ReadError
from raydiag.event_file import crc32c
from raydiag.model import Status, Unread
from raydiag.tsdb import salvage
from raydiag.tsdb.directory import LOGS, ULID, Block, TsdbDirectory, segments
from raydiag.untrusted import regular

# What the server adds while it reads the log: chunks of its own, as large as the log at most.
_ROOM_FACTOR = 2
_RESERVE_BYTES = 64 << 20
_TOMBSTONES_MAGIC = 0x0130BA30


class Changed(CannotRun):
    """A live server replaced blocks or log meanwhile: what was listed is incomplete by now."""


@dataclass(frozen=True)
class TsdbView:
    """What the server is going to see."""

    data: Path
    blocks: tuple[Block, ...]
    has_log: bool  # with the write-ahead log; False also where there is none
    unread: tuple[Unread, ...]


def build(
    source: TsdbDirectory,
    data: Path,
    without: Iterable[str] = (),
    with_log: bool = True,
    room: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> TsdbView:
    """Fill `data`, which is not there yet; leaves out the blocks whose ULID is in `without`.

    Raises Changed, and CannotRun when not even the links can be made.
    """
    unread: list[Unread] = []
    try:
        data.mkdir(mode=0o700)
        has_log = with_log and source.log_bytes > 0 and _copy_log(source, data, room, unread)
        left_out = set(without)
        blocks = [block for block in source.blocks if block.ulid not in left_out]
        for block in blocks:
            _link(block, data / block.ulid, unread)
        names_now = set(filter(ULID.fullmatch, os.listdir(source.path)))
        if names_now != set(filter(ULID.fullmatch, source.files)):
            raise Changed(f"{source.path}: its blocks were replaced while they were looked at")
    except OSError as error:
        raise CannotRun(
            f"no room for a private view in {data.parent}: {error.strerror}; TMPDIR names another "
            "place"
        ) from None
    return TsdbView(data, tuple(blocks), has_log, tuple(unread))


def _copy_log(
    source: TsdbDirectory, data: Path, room: Callable[[Path], int], unread: list[Unread]
) -> bool:
    """All of the log or nothing of it: half a log would look like an end of the samples."""
    lost = "the newest samples, up to three hours, are missing"
    needed = _ROOM_FACTOR * source.log_bytes + _RESERVE_BYTES
    free = room(data)
    if free < needed:
        reason = (
            f"no room for a copy in {data.parent}: {needed >> 20} MiB needed, {free >> 20} MiB "
            f"free; {lost}; TMPDIR names another place"
        )
        unread.append(Unread(str(source.path / "wal"), Status.ERROR, reason))
        return False
    try:
        for file in source.logs:
            target = data / file.relative_to(source.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    except FileNotFoundError:
        raise Changed(f"{source.path}: its log was cut while it was copied") from None
    except OSError as error:
        for name in LOGS:
            shutil.rmtree(data / name, ignore_errors=True)
        reason = f"could not be copied: {error.strerror}; {lost}"
        unread.append(Unread(str(source.path / "wal"), Status.ERROR, reason))
        return False
    return True


def _link(block: Block, target: Path, unread: list[Unread]) -> None:
    (target / "chunks").mkdir(parents=True)
    for name in ("meta.json", "index"):
        os.symlink((block.path / name).absolute(), target / name)
    try:
        files = segments(block.path)
    except ReadError as error:
        raise Changed(f"{block.path}: {error}") from None
    for segment in files:
        os.symlink(segment.absolute(), target / "chunks" / segment.name)
    tombstones = block.path / "tombstones"
    intact = _are_intact(tombstones)
    if not intact and os.path.exists(tombstones):
        reason = "damaged: samples that were deleted on purpose may appear again"
        unread.append(Unread(str(tombstones), Status.ERROR, reason))
    marks = _marks_of_loss(block, tombstones.read_bytes() if intact else b"", unread)
    if marks is not None:
        (target / "tombstones").write_bytes(marks)
    elif intact:
        os.symlink(tombstones.absolute(), target / "tombstones")


def _marks_of_loss(block: Block, existing: bytes, unread: list[Unread]) -> Optional[bytes]:
    """Tombstones for what a chunk file that is cut short has lost; None where nothing is."""
    try:
        if not salvage.is_cut_short(block.path):
            return None
        lost = salvage.loss(block.path)
    except (ParseError, struct.error, IndexError):
        return None  # the server will say what is wrong with the index
    extent = f"{len(lost.chunks)} of {lost.of_chunks} chunks, in {lost.series} of {lost.of_series}"
    reason = f"cut short: {extent} series, are missing; the others are read"
    unread.append(Unread(str(block.path / "chunks"), Status.ERROR, reason))
    return salvage.tombstones(lost, existing)


def _are_intact(path: Path) -> bool:
    try:
        with open(path, "rb", opener=regular) as file:
            content = file.read()
    except OSError:
        return False
    if len(content) < 9 or struct.unpack_from(">IB", content) != (_TOMBSTONES_MAGIC, 1):
        return False
    return bool(crc32c(content[5:-4]) == struct.unpack_from(">I", content, len(content) - 4)[0])
