"""Ranks that NCCL's or RCCL's own service (RAS) calls behind, missing or dead.

One thread in each process of the job answers there, and asks those of the other nodes. So one node
is asked, that of rank 0, where processes tell their rank. A service that is not RAS gets one line.

Source: TCP port NCCL_RAS_ADDR (default localhost:28028), NCCL's src/ras/client.cc. Sample:

    #0-0 (78db921d1c117b4a) MISMATCH
      Communicator ranks have different AllReduce operation counts
      7 ranks have launched up to operation 64
      Rank 7 has launched up to operation 60 -- GPU 3 managed by process 4242 on node 10.0.0.2
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional, Union

from raydiag.errors import Denied, NoData, ParseError, ReadError
from raydiag.host import Host
from raydiag.model import Unread
from raydiag.probes import SOCKETS, probe
from raydiag.probes.processes import RayProcess, processes

PORT = 28028
_RAS_TIMEOUT_S = 2  # that the service waits for other nodes
_HELLO_S = 1.0  # each answer of one line
_LIMIT_S = 4.0
_LIMIT_BYTES = 1 << 20
_MOST_RANKS = 64
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", "[::]")
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")

_HEAD = re.compile(r"#\d{1,9}-\d{1,9} \(([0-9a-f]{1,32})\) \w")
_COUNTS = re.compile(r"\s*Communicator ranks have different (\w{1,40}) operation counts")
_MANY = re.compile(
    r"\s*(\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)"
)
_PLACE = r"-- GPU (\S{1,40}) managed by process (\d{1,9}) on node (\S{1,80})"
_ONE = re.compile(
    r"\s*Rank (\d{1,9}) has (?:launched up to operation (\d{1,18})|not launched any operations) "
    + _PLACE
)
_LISTED = re.compile(rf"\s*Rank (\d{{1,9}}) {_PLACE}")
_PROCESS = re.compile(r"\s*Process (\d{1,9}) on node (\S{1,80}) managing GPUs? (\S{1,40})")


@dataclass(frozen=True)
class RasRank:
    state: str  # "behind", "missing" (it did not answer), "dead" (as RAS judges)
    communicator: str  # its hash; "" of a process
    rank: Optional[int]  # in that communicator; None: of a process RAS tells none
    gpu: str  # as RAS has it: CUDA's number, perhaps with NVML's
    pid: int  # on its node
    node: str  # address or name
    operation: str  # "AllReduce"; "collective" where RAS counts all kinds together; "" not behind
    launched: Optional[int]  # the last one that it entered; None: not behind
    most: Optional[int]  # the last one that most others entered; None: not behind
    line: str  # verbatim


def _is_behind(record: RasRank) -> bool:
    """Whether a second look, later, tells more."""
    return record.state == "behind"


@probe(
    RasRank,
    identity=("state", "communicator", "rank", "pid", "node", "operation"),
    timeout_s=5,
    reader=SOCKETS,
    samples=2,
    watch=_is_behind,
)
def nccl_ras(host: Host) -> Iterator[Union[RasRank, Unread]]:
    """One record for each rank that is behind, missing or dead; none where all is well.

    Raises NoData where nothing listens, where what listens is no RAS, or another node is asked;
    ParseError for an answer that has no status.
    """
    port = _port(host)
    text = ask(port)
    if "=====" not in text and "RUNNING" not in text:
        raise ParseError(f"127.0.0.1:{port}: RAS gave no status: {text[:100]!r}")
    yield from parse_status(text)[:_MOST_RANKS]


def _port(host: Host) -> int:
    """Where to ask. Raises NoData where another node is the one to ask."""
    port, ranks = PORT, set()
    try:
        of_ray = [item for item in processes(host) if isinstance(item, RayProcess)]
    except ReadError:
        of_ray = []
    for process in of_ray:
        told = filter(None, map(process.place.get, _RANK_VARIABLES))
        ranks.update([next(told, "")])
        address, _, number = process.settings.get("NCCL_RAS_ADDR", "").rpartition(":")
        if address in _LOOPBACK and number.isdigit() and int(number) < 65536:
            port = int(number)
    ranks.discard("")
    if "0" not in ranks:
        raise NoData("only the node of rank 0 is asked, which speaks for all")
    return port


def ask(port: int) -> str:
    """What RAS says of the job. Raises NoData without RAS, ReadError when it does not answer."""
    deadline = time.monotonic() + _LIMIT_S
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_HELLO_S) as connection:
            hello = _exchange(connection, b"CLIENT PROTOCOL 2\n")
            if not hello.upper().startswith(b"SERVER PROTOCOL "):
                raise NoData(f"what listens on 127.0.0.1:{port} is no RAS")
            answer = _exchange(connection, b"TIMEOUT %d\n" % _RAS_TIMEOUT_S)
            if answer.strip().upper() != b"OK":
                raise ParseError(f"127.0.0.1:{port}: RAS refused a time limit: {answer[:80]!r}")
            connection.sendall(b"STATUS\n")
            return _rest(connection, deadline).decode("utf-8", "replace")
    except ConnectionRefusedError:
        raise NoData(f"nothing listens on 127.0.0.1:{port}") from None
    except PermissionError as error:
        raise Denied(f"127.0.0.1:{port}: {error.strerror}") from None
    except socket.timeout:
        raise ReadError(f"127.0.0.1:{port}: no whole answer in time") from None
    except OSError as error:
        raise ReadError(f"127.0.0.1:{port}: {error}") from None


def _exchange(connection: socket.socket, line: bytes) -> bytes:
    """One line there, one line back."""
    connection.sendall(line)
    answer = b""
    while not answer.endswith(b"\n") and len(answer) < 1024:
        part = connection.recv(1024)
        if not part:
            break
        answer += part
    return answer


def _rest(connection: socket.socket, deadline: float) -> bytes:
    """All that comes until the end. Raises socket.timeout, which is an OSError."""
    data = bytearray()
    while len(data) < _LIMIT_BYTES:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(1 << 16)
        if not part:
            break
        data += part
    return bytes(data)


def parse_status(text: str) -> list[RasRank]:
    """The ranks that an answer names; of counts those below what most ranks have."""
    reader = _StatusReader()
    for line in text.splitlines():
        reader.read(line[:400])
    reader.end_of_counts()
    return reader.ranks


class _StatusReader:
    """Reads an answer line by line; what is no line of those above is passed over."""

    def __init__(self) -> None:
        self.ranks: list[RasRank] = []
        self._communicator = ""
        self._section = ""  # "behind", "missing", "dead"
        self._operation = ""
        self._groups: dict[int, int] = {}  # ranks by the last operation that they launched
        self._listed_at = 0  # operation of the ranks that the next lines list
        self._counted: list[tuple[int, RasRank]] = []

    def read(self, line: str) -> None:
        """One line more."""
        head, counts = _HEAD.match(line), _COUNTS.match(line)
        if head or not line.strip():
            self.end_of_counts()
            self._section = ""
            if head:
                self._communicator = head[1]
        elif counts:
            self.end_of_counts()
            self._section, self._operation = "behind", counts[1]
        elif "Missing communicator data" in line or "The missing process" in line:
            self._section = "missing"
        elif "considered dead" in line:
            self._section = "dead"
        elif self._section:
            self._read_rank(line)

    def _read_rank(self, line: str) -> None:
        many, one = _MANY.match(line), _ONE.match(line)
        listed, process = _LISTED.match(line), _PROCESS.match(line)
        if many:
            self._listed_at = int(many[2] or 0)
            self._groups[self._listed_at] = int(many[1])
        elif one and self._section == "behind":
            at = int(one[2] or 0)
            self._groups[at] = self._groups.get(at, 0) + 1
            self._counted.append((at, self._record(line, int(one[1]), one[3], one[4], one[5])))
        elif listed:
            record = self._record(line, int(listed[1]), listed[2], listed[3], listed[4])
            if self._section == "behind":
                self._counted.append((self._listed_at, record))
            else:
                self.ranks.append(record)
        elif process and self._section != "behind":
            record = self._record(line, None, process[3], process[1], process[2])
            self.ranks.append(record)

    def _record(self, line: str, rank: Optional[int], gpu: str, pid: str, node: str) -> RasRank:
        communicator = self._communicator * (rank is not None)
        known = (self._section, communicator, rank, gpu, int(pid), node)
        return RasRank(*known, operation="", launched=None, most=None, line=line.strip())

    def end_of_counts(self) -> None:
        """All counts of one operation are known: who is below what most have is behind."""
        if self._groups:
            most = max(self._groups, key=lambda at: (self._groups[at], at))
            for at, record in self._counted:
                if at < most:
                    counts = {"operation": self._operation, "launched": at, "most": most}
                    self.ranks.append(RasRank(**{**vars(record), **counts}))
        self._groups, self._counted = {}, []
