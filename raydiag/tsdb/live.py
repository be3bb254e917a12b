"""The Prometheus of a job that still runs, on this machine's loopback: its own, or a tunnel to it.

Who listens is asked what it is, whoever it is, and left alone whatever it answers. Nothing is
assumed from a port: the data directory that a server names must be the job's.
"""

from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any, Optional

from raydiag.tsdb import ports
from raydiag.tsdb.client import Client
from raydiag.tsdb.discovery_types import short_name

_PORTS = range(ports.FIRST, ports.FIRST + 10)
USUAL = (*range(ports.FIRST, ports.FIRST + 6), 9090)  # a job's own; a site's
_DEADLINE_S = 2.0


def find(data: Path, more_ports: Iterable[int] = ()) -> Optional[str]:
    """URL of a server that scrapes into `data`; None when no listener is one.

    The container of the job may know the directory by another path, so the names of the job and of
    the directory are compared. A viewer that somebody left over the directory scrapes nothing, and
    is none.
    """
    listening = ports.listening()
    for port in dict.fromkeys([*more_ports, *_PORTS]):
        if port in listening:
            url = f"http://127.0.0.1:{port}"
            if stores_in(url, data) and _active_targets(url):
                return url
    return None


def find_watching(hosts: Iterable[str], more_ports: Iterable[int] = ()) -> Optional[str]:
    """URL of a server on this machine that scrapes one of the hosts; None without one."""
    listening, hosts = ports.listening(), set(hosts)
    for port in dict.fromkeys([*more_ports, *USUAL]):
        url = f"http://127.0.0.1:{port}"
        if port in listening and watches(url, hosts):
            return url
    return None


def watches(url: str, hosts: Iterable[str]) -> bool:
    """Whether a server scrapes one of the hosts, which are names or addresses."""
    hosts = set(hosts)
    for target in _active_targets(url):
        labels = target.get("labels") or {}
        discovered = target.get("discoveredLabels") or {}
        names = (labels.get("instance"), discovered.get("__address__"), labels.get("host"))
        if not hosts.isdisjoint(map(short_name, map(str, filter(None, names)))):
            return True
    return False


def stores_in(url: str, data: Path) -> bool:
    """Whether a server stores into the directory of a job's metrics, by whatever path."""
    flags = Client(url, _DEADLINE_S).metadata("status/flags")
    if not flags.ok or not isinstance(flags.data, dict):
        return False
    named = PurePath(str(flags.data.get("storage.tsdb.path", "")))
    return named.parts[-2:] == data.resolve().parts[-2:]


def scrape_targets(url: str) -> list[dict[str, Any]]:
    """What a server says of its targets, as its API has them; empty when it does not answer."""
    return _active_targets(url)


def _active_targets(url: str) -> list[dict[str, Any]]:
    answer = Client(url, _DEADLINE_S).metadata("targets", {"state": "active"})
    if not answer.ok or not isinstance(answer.data, dict):
        return []
    return answer.data.get("activeTargets") or []
