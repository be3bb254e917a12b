"""Why a file of a job's directory, or the answer to a query, could not be read."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Union

from raydiag.model import HostUnread, Status, Unread
from raydiag.tsdb.series import QueryResult


def unread_file(path: Union[str, Path], error: OSError) -> Unread:
    """What `coverage.unread` says of it."""
    status = Status.DENIED if isinstance(error, PermissionError) else Status.ERROR
    return Unread(str(path), status, error.strerror or str(error))


def unanswered(results: Iterable[QueryResult]) -> Iterator[HostUnread]:
    """The queries that failed, as sources that could not be read."""
    for result in results:
        if not result.ok:
            yield HostUnread("", result.query.id, result.status, result.reason)
