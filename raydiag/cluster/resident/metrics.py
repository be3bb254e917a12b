"""The resident agent's own metrics, on a port of loopback, where one was asked for.

Numbers alone, no names: whoever is on the head can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Status = Callable[[], Mapping[str, Any]]

# Name, what it is, whether it only grows, how it is taken from the status.
_ROWS: tuple[tuple[str, str, bool, Callable[[Mapping[str, Any]], Any]], ...] = (
    ("nodes", "Nodes that have an actor of the agent", False, lambda s: s["nodes"]),
    ("late_nodes", "Nodes that owe the answer of a round", False, lambda s: s["late"]),
    ("stuck_readers", "Readers that hang on nodes", False, lambda s: s["stuck_readers"]),
    ("rounds", "Rounds over the nodes", True, lambda s: s["rounds"]),
    ("own_rounds", "Rounds that nobody asked for", True, lambda s: s["own_rounds"]),
    ("callers", "Callers that proved the secret", True, lambda s: s["callers"]),
    ("refused", "Callers that were refused", True, lambda s: s["refused"]),
    ("actor_restarts", "Actors placed anew", True, lambda s: s["actor_restarts"]),
    ("cpu_seconds", "CPU time of the agent on the head", True, lambda s: s["cpu_s"]),
    ("resident_bytes", "Memory of the agent on the head", False, lambda s: s["rss_bytes"]),
    ("start_time_seconds", "When it was started", False, lambda s: s["started_at"]),
    ("last_round_time_seconds", "End of the last round", False, lambda s: _last(s, "at")),
    ("last_round_seconds", "Length of the last round", False, lambda s: _last(s, "seconds")),
    ("last_round_asked", "Nodes asked in it", False, lambda s: _last(s, "asked")),
    ("last_round_answered", "Nodes that answered", False, lambda s: _last(s, "answered")),
)


def _last(status: Mapping[str, Any], name: str) -> float:
    return float((status["last_round"] or {}).get(name, 0))


def serve(status: Status, port: int) -> None:
    """Serve them from a thread; port 0 serves nothing. Raises OSError for a port that is taken."""
    if not port:
        return
    # Ray's dashboard needs it, so it is on the head; only who asks for metrics pays for it.
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(status))
    start_http_server(port, addr="127.0.0.1", registry=registry)


class _Collector:
    """As prometheus_client wants it."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Any]:
        """One family for each row."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status()
        for name, words, grows, value_of in _ROWS:
            family = CounterMetricFamily if grows else GaugeMetricFamily
            yield family(f"raydiag_agent_{name}", words, value=float(value_of(status)))
