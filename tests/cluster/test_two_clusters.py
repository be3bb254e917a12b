"""Two Ray clusters on one host: the one that is meant answers, and says which it is."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.cluster import namespaces
from tests.cluster.conftest import probe, wanted_or_skip
from tests.cluster.simulated_hosts import Cluster
from tests.cluster.training import Plan, training

pytestmark = pytest.mark.cluster

OTHER_GCS, OTHER_DASHBOARD = 6400, 8266


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    """A cluster on node001, and a newer one beside it, which Ray takes when nobody says which."""
    wanted_or_skip(namespaces.unavailable())
    with Cluster(["node001"]) as cluster:
        ray = os.path.join(os.path.dirname(sys.executable), "ray")
        argv = [ray, "start", "--head", "--block", "--node-ip-address", "10.77.0.1"]
        argv += ["--num-cpus", "1", "--object-store-memory", "80000000", "--no-monitor"]
        argv += ["--port", str(OTHER_GCS), "--dashboard-port", str(OTHER_DASHBOARD)]
        argv += ["--dashboard-agent-listen-port", "52400", "--dashboard-host", "127.0.0.1"]
        argv += ["--temp-dir", str(cluster.directory / "other")]
        other = cluster.popen_on("node001", argv, cwd="/")
        end = time.monotonic() + 60
        while not namespaces.listens(cluster.hosts["node001"].pid, OTHER_DASHBOARD):
            assert other.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        yield cluster
        cluster.signal(other, signal.SIGTERM)
        other.wait(30)


@pytest.mark.parametrize(
    ("dashboard", "gcs"), [(8265, "10.77.0.1:6379"), (OTHER_DASHBOARD, f"10.77.0.1:{OTHER_GCS}")]
)
def test_the_cluster_that_is_meant_answers(two: Cluster, dashboard: int, gcs: str) -> None:
    with training(two, {"node001": Plan()}, address="10.77.0.1:6379"):
        found = probe(two, "--all-nodes", "--address", f"http://127.0.0.1:{dashboard}")
    assert found.document["cluster"]["gcs_address"] == gcs
    assert found.faults() == set()
    # Workers of the other cluster are on the machine too; their logs are no business of this one.
    logs = found.node("node001")["probes"]["ray_logs"]["records"]
    assert {log["session"] for log in logs} == {found.document["cluster"]["session_name"]}
    steps = [log["step"] for log in logs if log["step"] is not None]
    assert bool(steps) is (dashboard == 8265)
