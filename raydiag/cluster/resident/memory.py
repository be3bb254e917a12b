"""What the resident agent has seen of each node: its last answer, its kernel log, what was found.

It lives in memory, as an SQLite database of bounded size, and a copy of it in a file is replaced as
a whole: so a kill -9 costs what came since the last copy, and a full disk costs the copy and
nothing else. Nothing is judged here, the catalog being where commands run; what they found, they
hand in.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from raydiag import ownership
from raydiag.untrusted import inflated

_ANSWER_LIMIT_BYTES = 64 << 20
_MOST_ANSWER_BYTES = 1 << 20  # compressed; a longer one leaves its kernel log and nothing else
_MOST_LINES_OF_HOST = 300
_MOST_FOUND = 20_000
_MOST_JOBS = 20  # names of jobs that are kept of a finding
_FORGOTTEN_S = 14 * 86_400  # a node that was not seen for so long
_CLOCK_OFF_S = 5.0  # a node's clock may be ahead of the head's
_LAST_WORDS = 12  # lines of its kernel log

_TABLES = """
CREATE TABLE IF NOT EXISTS nodes (
  node_id TEXT PRIMARY KEY, host TEXT, address TEXT, first_seen REAL, last_seen REAL, asked INTEGER,
  silent INTEGER, stuck INTEGER, answer BLOB, is_read INTEGER);
CREATE TABLE IF NOT EXISTS kernel (
  address TEXT, host TEXT, time REAL, second INTEGER, level INTEGER, facility INTEGER, text TEXT,
  PRIMARY KEY (address, second, text)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS found (
  class TEXT, host TEXT, gpu TEXT, device TEXT, severity TEXT, first_seen REAL, last_seen REAL,
  times INTEGER, jobs TEXT, PRIMARY KEY (class, host, gpu, device)) WITHOUT ROWID;
"""

_COLUMNS = ("class", "host", "gpu", "device", "severity", "first_seen", "last_seen", "times")

_Said = tuple[list[Mapping[str, Any]], int]  # lines that matter, and stuck readers


class NodeMemory:
    """Calls come from several threads. `session`: Ray's name of it, by which the copy goes."""

    def __init__(self, session: str) -> None:
        self._directory = os.path.join(tempfile.gettempdir(), f"raydiag-agent-{os.geteuid()}")
        self.path = os.path.join(self._directory, f"{session}.sqlite")
        self.trouble = ""  # why there is no recent copy on disk
        self._is_removed = False
        self._lock = threading.RLock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._load()
        self._database.executescript(_TABLES)

    def _load(self) -> None:
        """What an earlier agent of this session has left; a damaged file is as good as none."""
        try:
            self._check_place()
            if os.path.exists(self.path):
                with contextlib.closing(sqlite3.connect(self.path)) as saved:
                    saved.backup(self._database)
                self._database.execute("SELECT COUNT(*) FROM nodes").fetchone()
        except (sqlite3.Error, OSError) as error:
            self.trouble = f"what an earlier agent has left is not read: {error}"
            self._database.close()
            self._database = sqlite3.connect(":memory:", check_same_thread=False)

    def _check_place(self) -> None:
        """Raises OSError for a directory in which others than root and we could change anything."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        changeable = ownership.changeable(self._directory)
        if changeable:
            raise OSError(changeable)

    def answered(self, row: Mapping[str, Any], answer: bytes) -> None:
        """A node has answered; `row` as in a start message, `answer` compressed."""
        node_id, now = row["node_id"], time.time()
        kept = answer if len(answer) <= _MOST_ANSWER_BYTES else b""
        with self._lock, self._database:
            self._database.execute(
                "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, 1, 0, 0, ?, 0) ON CONFLICT (node_id) "
                "DO UPDATE SET last_seen = excluded.last_seen, asked = asked + 1, silent = 0, "
                "answer = excluded.answer, is_read = 0",
                (node_id, row["hostname"], row["address"], now, now, kept),
            )
            if not kept:
                self._read(node_id, row["hostname"], row["address"], _said(answer))

    def was_silent(self, node_id: str) -> None:
        """A node that was asked did not answer."""
        with self._lock, self._database:
            self._database.execute(
                "UPDATE nodes SET asked = asked + 1, silent = silent + 1 WHERE node_id = ?",
                (node_id,),
            )

    def last_words(self, node_id: str) -> Optional[dict[str, Any]]:
        """When a node was last seen, and the end of its kernel log then; None for an unknown."""
        self._read_answers(node_id)
        with self._lock:
            asked_for = "SELECT address, host, last_seen FROM nodes WHERE node_id = ?"
            for address, host, last_seen in self._rows(asked_for, node_id):
                lines = self._rows(
                    "SELECT time, text FROM kernel WHERE address = ? AND host = ? AND time <= ? "
                    "ORDER BY time DESC LIMIT ?",
                    *(address, host, last_seen + _CLOCK_OFF_S, _LAST_WORDS),
                )
                return {"last_seen": last_seen, "kernel_log": lines[::-1]}
            return None

    def remember(self, found: Iterable[Mapping[str, Any]], jobs: Sequence[str]) -> None:
        """What a probe has found, as `known` returns it; with the jobs that ran meanwhile."""
        with self._lock, self._database:
            for finding in found:
                self._remember(finding, jobs)
            self._database.execute(
                "DELETE FROM found WHERE last_seen < (SELECT last_seen FROM found "
                "ORDER BY last_seen DESC LIMIT 1 OFFSET ?)",
                (_MOST_FOUND,),
            )

    def _remember(self, finding: Mapping[str, Any], jobs: Sequence[str]) -> None:
        key = [_text(finding.get(name)) for name in ("class", "host", "gpu", "device")]
        where = "class = ? AND host = ? AND gpu = ? AND device = ?"
        before = self._rows(f"SELECT jobs FROM found WHERE {where}", *key)
        known_jobs = json.loads(before[0][0]) if before else []
        named = list(dict.fromkeys([*known_jobs, *map(str, jobs)]))[-_MOST_JOBS:]
        now = time.time()
        self._database.execute(
            "INSERT INTO found VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?) ON CONFLICT DO UPDATE SET "
            "last_seen = excluded.last_seen, times = times + 1, jobs = excluded.jobs, "
            "severity = excluded.severity",
            (*key, _text(finding.get("severity")), now, now, json.dumps(named)),
        )

    def known(self) -> list[dict[str, Any]]:
        """Everything that probes have found: class, host, gpu, device, severity, times, jobs."""
        with self._lock:
            rows = self._rows(f"SELECT {', '.join(_COLUMNS)}, jobs FROM found ORDER BY first_seen")
        known = []
        for *values, jobs in rows:
            known.append({**dict(zip(_COLUMNS, values)), "jobs": json.loads(jobs)})
        return known

    def history(self) -> dict[str, Any]:
        """All of it, as `raydiag history` shows it."""
        columns = ("node_id", "host", "address", "first_seen", "last_seen", "asked", "silent")
        self._read_answers()
        with self._lock:
            nodes = self._rows(f"SELECT {', '.join(columns)} FROM nodes ORDER BY host, first_seen")
            lines = self._rows(
                "SELECT host, address, time, level, facility, text FROM kernel ORDER BY time"
            )
        return {
            "nodes": [dict(zip(columns, node)) for node in nodes],
            "kernel_log": lines,
            "found": self.known(),
        }

    def stuck_readers(self) -> int:
        """Readers that hung on the nodes when their answers were last read."""
        with self._lock:
            return int(self._rows("SELECT COALESCE(SUM(stuck), 0) FROM nodes")[0][0])

    def save(self) -> None:
        """Drop what is old, and replace the copy on disk; what fails is told by `trouble`."""
        self._read_answers()
        with self._lock:
            with self._database:
                old = (time.time() - _FORGOTTEN_S,)
                self._database.execute("DELETE FROM nodes WHERE last_seen < ?", old)
                self._database.execute("DELETE FROM found WHERE last_seen < ?", old)
                self._database.execute(
                    "DELETE FROM kernel WHERE address NOT IN (SELECT address FROM nodes)"
                )
            if self._is_removed:
                return
            new = f"{self.path}.new"
            try:
                self._check_place()
                _private(new)
                with contextlib.closing(sqlite3.connect(new)) as copy:
                    # Nobody reads it before it is whole, so no journal, which could be full too.
                    copy.execute("PRAGMA journal_mode = OFF")
                    self._database.backup(copy)
                os.replace(new, self.path)
                self.trouble = ""
            except (sqlite3.Error, OSError) as error:
                self.trouble = f"{self.path} could not be written: {error}"
                with contextlib.suppress(OSError):
                    os.remove(new)

    def remove(self) -> None:
        """Leave no file, and write none any more."""
        with self._lock:
            self._is_removed = True
        for path in (self.path, f"{self.path}.new"):
            with contextlib.suppress(OSError):
                os.remove(path)
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)  # unless agents of other clusters have a file there

    def _read_answers(self, node_id: Optional[str] = None) -> None:
        """Take the kernel logs out of answers that were only kept so far.

        Node by node, and inflated outside of the lock: a round must not wait for a thousand.
        """
        wanted = "SELECT node_id FROM nodes WHERE is_read = 0"
        with self._lock:
            unread = [row[0] for row in self._rows(wanted)]
        for unread_id in unread if node_id is None else [node_id]:
            with self._lock:
                answers = self._rows(
                    "SELECT host, address, answer, asked FROM nodes WHERE node_id = ? "
                    "AND is_read = 0",
                    unread_id,
                )
            for host, address, answer, asked in answers:
                said = _said(answer)
                with self._lock, self._database:
                    self._read(unread_id, host, address, said, asked)

    def _read(
        self, node_id: str, host: str, address: str, said: _Said, asked: Optional[int] = None
    ) -> None:
        """`asked`: how often the node had been by then; a later answer is still to be read."""
        lines, stuck = said
        for line in lines:
            values = (address, host, line["time_s"], int(line["time_s"]), line["level"])
            self._database.execute(
                "INSERT OR IGNORE INTO kernel VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*values, line["facility"], line["text"]),
            )
        self._database.execute(
            "DELETE FROM kernel WHERE address = ? AND time < (SELECT time FROM kernel "
            "WHERE address = ? ORDER BY time DESC LIMIT 1 OFFSET ?)",
            (address, address, _MOST_LINES_OF_HOST),
        )
        self._database.execute(
            "UPDATE nodes SET is_read = (asked = COALESCE(?, asked)), stuck = ? WHERE node_id = ?",
            (asked, stuck, node_id),
        )

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        return self._database.execute(statement, values).fetchall()


def _said(answer: bytes) -> _Said:
    """Lines of the kernel log that hold a word of the catalog, and how many readers are stuck."""
    lines: list[Mapping[str, Any]] = []
    try:
        content = inflated(answer, _ANSWER_LIMIT_BYTES)
        stuck = len(content["stuck"])
        for record in content["probes"]["kernel_log"]["records"]:
            if record["matched"] is True and _is_line(record):
                lines.append(record)
    except (ValueError, KeyError, TypeError):
        return [], 0  # an odd answer, or one without a kernel log
    return lines, stuck


def _is_line(record: Mapping[str, Any]) -> bool:
    numbers = [record["time_s"], record["level"], record["facility"]]
    if not isinstance(record["text"], str) or not record["text"].isprintable():
        return False
    return all(isinstance(number, (int, float)) and abs(number) < 1 << 40 for number in numbers)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _private(path: str) -> None:
    """An empty file that nobody else can read."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
