"""A line of a log, who wrote it, and what selects and classifies lines."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Prefix:
    """Who wrote a line, from what launchers put before it. Fields are None where nothing says."""

    task: int | None = None  # of `srun -l`: index into the job's node list with one task a node
    rank: int | None = None  # global, `[rank3]:`
    local_rank: int | None = None  # `[default0]:`, the same number on every node
    host: str | None = None  # where the prefix names it
    actor: str | None = None  # Ray class or actor name, `(TrainerActor pid=12, ip=10.0.0.2)`
    pid: int | None = None  # of the actor
    ip: str | None = None  # of the actor's node; Ray leaves it out on the driver's own node

    @property
    def where(self) -> str:
        """Shortest name of one writer: the rank, else the task, else the actor's process; or ""."""
        if self.rank is not None:
            return str(self.rank)
        if self.task is not None:
            return f"{self.task}.{self.local_rank}" if self.local_rank else str(self.task)
        if self.local_rank is not None:
            return f"local {self.local_rank}"
        if self.pid is None:
            return ""
        return f"{self.actor or 'pid'} {self.pid}" + (f" {self.ip}" if self.ip else "")


@dataclass(frozen=True)
class JobLogLine:
    """One decoded line: what a signature is matched against."""

    file: str  # path as it was found
    number: int  # from 1; segments between lone carriage returns share their line's number
    text: str  # without prefixes, their timestamps kept, ANSI, NUL and line end; 64 KiB at most
    raw: str  # verbatim but for the line end, invalid UTF-8 as U+FFFD
    prefix: Prefix
    time: float | None  # printed on this very line
    near_time: float | None  # the newest time printed on this line or above it: a lower bound
    training: bool  # a step line stands above, in the same file
    complete: bool = True  # False: the log ends within it, so its last word may be cut

    @property
    def about_time(self) -> float | None:
        """The time printed on it, else the newest one above."""
        return self.near_time if self.time is None else self.time

    @property
    def whole_words(self) -> str:
        """`text` without a last word that may be cut: 13 of 137 is a wrong number."""
        if self.complete:
            return self.text
        return self.text[: max(self.text.rfind(" "), 0)]


@dataclass(frozen=True)
class Hit:
    """One signature row that matches one line."""

    row: str  # id in signatures.yaml
    failure_class: str  # "" where the row is harmless
    role: str  # root, consequence, either, harmless
    stage: str  # of the job, as the row says; "" when the row does not
    groups: Mapping[str, str] = field(default_factory=dict)  # named groups of the pattern


# Finds candidate lines fast: never misses a line that a signature or an anchor could match. It
# gives offsets into a chunk, ascending, each inside a candidate line; repeats are allowed. A chunk
# begins at a line start and ends at a line end, or is a piece of one overlong line. Which line an
# offset belongs to (LF, CRLF, lone CR) is decided by the caller.
Selector = Callable[[bytes], Iterable[int]]
# Builds one for the catalog's signatures and the anchors of this package, case-sensitive literals.
MakeSelector = Callable[[Sequence[bytes]], Selector]
# Decides which rows match a line. A harmless row is reported like any other.
Classify = Callable[[JobLogLine], Sequence[Hit]]
