"""The JSON that Prometheus answers with, read into series; what is something else is said so.

Sample: {"status":"success","data":{"resultType":"vector","result":[
         {"metric":{"__name__":"up","job":"ray"},"value":[1795309540,"1"]}]}}

Source: Prometheus documentation, "HTTP API".
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from raydiag.errors import ParseError, ReadError
from raydiag.tsdb.series import Floats, Series
from raydiag.untrusted import parsed

_SHOWN = 300  # characters of a foreign body or a server's words


class QueryRefused(ReadError):
    """Prometheus understood and did not answer; the message is its own text."""


class BadQuery(QueryRefused):
    """Prometheus calls the query wrong: PromQL that does not parse, or a bad parameter."""


def data(status: int, content_type: str, body: bytes) -> tuple[Any, tuple[str, ...]]:
    """What stands under "data", and the server's warnings.

    Raises BadQuery, Refused, and ParseError for what is not Prometheus's answer.
    """
    try:
        document = parsed(body, len(body))  # the client has a limit
    except ValueError:
        raise _foreign(status, content_type, body) from None
    if not isinstance(document, dict) or document.get("status") not in ("success", "error"):
        raise _foreign(status, content_type, body)
    if document["status"] == "error":
        words = f"{document.get('errorType', 'error')}: {document.get('error', '')}"
        kind = BadQuery if document.get("errorType") == "bad_data" else QueryRefused
        raise kind(" ".join(words.split())[:2000])
    warnings = document.get("warnings") or []
    if not isinstance(warnings, list):
        warnings = []
    return document.get("data"), tuple(map(str, warnings))


def _foreign(status: int, content_type: str, body: bytes) -> ReadError:
    start = body[:_SHOWN].decode(errors="replace").strip()
    if status in (401, 403):
        return QueryRefused(f"HTTP {status}: the server wants a login that raydiag does not have")
    if "html" in content_type.lower() or start.lower().startswith(("<!doctype", "<html")):
        return ParseError(f"HTTP {status} with a web page instead of Prometheus's JSON")
    words = f": {' '.join(start.split())}" if start else ""
    return ParseError(f"HTTP {status} and not Prometheus's JSON{words}")


def series(data: Any) -> tuple[Series, ...]:
    """The series of a query's result, whatever its type. Raises ParseError."""
    try:
        kind, result = data["resultType"], data["result"]
        if kind in ("scalar", "string"):
            value = float(result[1]) if kind == "scalar" else math.nan
            return (Series.of({}, [float(result[0])], [value]),)
        if kind == "vector":
            return tuple(map(_instant, result))
        if kind == "matrix":
            return tuple(map(_range, result))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        raise ParseError("a result that is not in Prometheus's format") from None
    raise ParseError(f"a result of type {kind!r}, which raydiag does not know")


# How Prometheus itself writes the answer to a range query. The pieces hold bare quotes, which
# nothing inside of a label's value can.
_HEAD = b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{'
_VALUES, _NEXT, _TAIL = b'},"values":[[', b']]},{"metric":{', b"]]}]}}"


def matrix(body: bytes) -> Optional[tuple[Series, ...]]:
    """The same as `data` and `series` together for the bulk of all answers, in a third of the time.

    None for what is not written in just that way, with warnings or histograms or by another server.
    """
    body = body.strip()
    if not body.startswith(_HEAD) or not body.endswith(_TAIL):
        return None
    first_labels, *pieces = body[len(_HEAD) : -len(_TAIL)].split(_VALUES)
    if not pieces:
        return None
    # A piece is a series' samples, then the labels of the next one.
    samples, separators, labels_of_next = zip(*(piece.partition(_NEXT) for piece in pieces))
    if separators[-1] or not all(separators[:-1]):
        return None
    sizes = [text.count(b"[") + 1 for text in samples]
    flat = b",".join(samples).translate(None, b'[]"').split(b",")
    try:
        numbers = np.fromiter(map(float, flat), dtype=np.float64, count=2 * sum(sizes))
        of_all = b"[{" + b"},{".join((first_labels, *labels_of_next[:-1])) + b"}]"
        labels = parsed(of_all, len(of_all))
    except ValueError:
        return None
    if len(flat) != numbers.size or len(labels) != len(sizes):
        return None
    return tuple(_slices(labels, sizes, numbers))


def _slices(
    labels: Sequence[dict[str, str]], sizes: Sequence[int], numbers: Floats
) -> Iterator[Series]:
    """Series of these sizes from the times and values of all, one after the other."""
    times, values = numbers[0::2].copy(), numbers[1::2].copy()
    ends = np.cumsum(sizes)
    falls = np.flatnonzero(np.diff(times) < 0) + 1
    plain = not np.isnan(values).any() and np.isin(falls, ends).all()
    no_times = np.empty(0)
    start = 0
    for series_labels, end in zip(labels, ends.tolist(), strict=True):
        if plain:
            yield Series(series_labels, times[start:end], values[start:end], no_times)
        else:
            yield Series.of(series_labels, times[start:end], values[start:end])
        start = end


def _labels(item: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in item["metric"].items()}


def _instant(item: Mapping[str, Any]) -> Series:
    if "value" not in item:  # a native histogram
        return Series.of(_labels(item), [], [])
    time, value = item["value"]
    return Series.of(_labels(item), [float(time)], [float(value)])


def _range(item: Mapping[str, Any]) -> Series:
    pairs = item.get("values", ())
    times = np.fromiter((pair[0] for pair in pairs), dtype=np.float64, count=len(pairs))
    values = np.fromiter((float(pair[1]) for pair in pairs), dtype=np.float64, count=len(pairs))
    return Series.of(_labels(item), times, values)
