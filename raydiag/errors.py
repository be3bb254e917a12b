"""Every exception that raydiag raises on purpose.

RaydiagError
├── UsageError            the command line asks for something that does not exist      exit 2
├── CannotRun             no cluster, no such job, no access                           exit 4
│   ├── AuthenticationFailed   the cluster wants a token, or another one               exit 4
│   ├── AgentDead              Ray's agent on the head, or its raylet, has died        exit 4
│   └── NoSuchJob              neither a file here nor a known id                      exit 4
├── CatalogError          a YAML table of ours is wrong (a bug, caught by the tests)   exit 4
└── ReadError             one source on one node gave no value; `status` says why
    ├── NoData            it is not there, which is normal on many nodes
    ├── Denied            the kernel or the container refuses us
    └── ParseError        it is there and does not hold what it should

Each takes one string, so that it survives Ray's pickling.
"""

from __future__ import annotations

from raydiag.model import Status


class RaydiagError(Exception):
    """Root of the tree; `exit_code` is what the command line returns for it."""

    exit_code = 4


class UsageError(RaydiagError):
    """The request names something that does not exist; the message lists what does."""

    exit_code = 2


class CannotRun(RaydiagError):
    """The command could not do its work at all; the message says what to do next."""


class AuthenticationFailed(CannotRun):
    """The cluster refuses us: token missing or wrong."""


class AgentDead(CannotRun):
    """The dashboard answers, and the agent behind it that starts jobs and reads logs does not."""


class NoSuchJob(CannotRun):
    """A name that is neither a file nor the id of a job where was looked."""


class CatalogError(RaydiagError):
    """A table in `catalog/` breaks its own rules; names the file and the row."""


class ReadError(RaydiagError):
    """A source on a node that could not be read or understood."""

    status = Status.ERROR


class NoData(ReadError):
    """Nothing of the kind exists on this node (no such device, file or feature)."""

    status = Status.NO_DATA


class Denied(ReadError):
    """Permission is missing; the value is unknown, never zero."""

    status = Status.DENIED


class ParseError(ReadError):
    """The file exists and its content is not in the documented format."""
