from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from raydiag.model import Window
from raydiag.tsdb.connection import Connection, open_directory
from raydiag.tsdb.discovery import discover
from raydiag.tsdb.identity import Belief, Logged, TsdbIdentity, check
from tests.tsdb import promtool, samples

STEPS = tuple(range(len(samples.LOSSES)))
RAN = Window(samples.START, samples.END)


@pytest.fixture(scope="module")
def opened(blocks: Path) -> Iterator[Connection]:
    with pytest.MonkeyPatch.context() as patch:
        promtool.provide(patch)
        with open_directory(str(blocks)) as found:
            yield found


def checked(
    opened: Connection, logged: Logged, expected: Sequence[str] = samples.HOSTS
) -> TsdbIdentity:
    return check(opened.client, discover(opened, time.time(), expected), logged)


def printed(losses: Sequence[float], decimals: int = 3) -> list[float]:
    """As a log prints them."""
    return [round(loss, decimals) for loss in losses]


def test_the_jobs_own_series(opened: Connection) -> None:
    found = checked(opened, Logged(STEPS, printed(samples.LOSSES), samples.HOSTS, RAN))
    assert found.belief is Belief.VERIFIED
    assert (found.compared, found.agreeing) == (40, 40)
    assert found.examples[-1].step == 39
    assert found.examples[-1].time == samples.START + 120.25 + 390  # not the fill after it
    assert found.findings("here") == []


def test_rounded_losses_are_equal(opened: Connection) -> None:
    found = checked(opened, Logged(STEPS, printed(samples.LOSSES, 1), samples.HOSTS, RAN))
    assert found.belief is Belief.VERIFIED


def test_another_jobs_series_with_the_same_steps_and_hosts(opened: Connection) -> None:
    other = [loss + 0.004 for loss in samples.LOSSES]
    found = checked(opened, Logged(STEPS, printed(other), samples.HOSTS, RAN))
    assert found.belief is Belief.WRONG and found.agreeing == 0
    assert "another job's" in found.reason
    (finding,) = found.findings("/data/prometheus")
    assert finding.failure_class == "tsdb-wrong-job"
    assert finding.evidence[0].source == "/data/prometheus"


def test_steps_that_were_done_twice_may_have_either_loss(opened: Connection) -> None:
    steps, losses = [*STEPS, *STEPS], [*(1.5 for _ in STEPS), *printed(samples.LOSSES)]
    assert checked(opened, Logged(steps, losses, samples.HOSTS, RAN)).belief is Belief.VERIFIED


def test_a_log_that_has_one_step_only(opened: Connection) -> None:
    found = checked(opened, Logged([7], [printed(samples.LOSSES)[7]], samples.HOSTS, RAN))
    assert found.belief is Belief.VERIFIED and found.compared == 1


def test_neither_proved_nor_refuted(opened: Connection) -> None:
    mixed = printed(samples.LOSSES)
    mixed[:12] = [1.0] * 12
    found = checked(opened, Logged(STEPS, mixed, samples.HOSTS, RAN))
    assert found.belief is Belief.UNVERIFIED and found.agreeing == 28


@pytest.mark.parametrize(
    ("logged", "words"),
    [
        (Logged(STEPS, [math.nan] * 40, samples.HOSTS), "no step that both"),
        (Logged([500, 501], [1.0, 2.0], samples.HOSTS), "no step that both"),
        (Logged((), (), samples.HOSTS), "3 of the job's 3 hosts have series in it"),
        (Logged(), "the log names no hosts"),
    ],
)
def test_nothing_to_compare(opened: Connection, logged: Logged, words: str) -> None:
    found = checked(opened, logged)
    assert found.belief is Belief.UNVERIFIED and words in found.reason


def test_hosts_of_another_job(opened: Connection) -> None:
    found = checked(opened, Logged((), (), ("zz1", "zz2")), ("zz1", "zz2"))
    assert found.belief is Belief.WRONG
    assert "none of its hosts (mi10, mi11, mi12)" in found.reason


def test_steps_prove_more_than_names(opened: Connection) -> None:
    logged = Logged(STEPS, printed(samples.LOSSES), ("alias1", "alias2"), RAN)
    assert checked(opened, logged, ("alias1", "alias2")).belief is Belief.VERIFIED


def test_hosts_that_are_addresses_contradict_nothing(tmp_path: Path) -> None:
    when = [(t, 1.0) for t in samples.times()]
    series = [("hw_procs_running", {"host": "10.0.0.1"}, when)]
    with pytest.MonkeyPatch.context() as patch:
        promtool.provide(patch)
        data = promtool.write_blocks(series, tmp_path / "prometheus")
        with open_directory(str(data)) as found:
            told = checked(found, Logged((), (), ("zz1",)), ("zz1",))
    assert told.belief is Belief.UNVERIFIED


def test_a_time_that_no_time_zone_explains(opened: Connection) -> None:
    day = 86400.0
    near = Window(samples.START + 12 * 3600, samples.END + 12 * 3600)
    far = Window(samples.START + day, samples.END + day)
    assert checked(opened, Logged((), (), samples.HOSTS, near)).belief is Belief.UNVERIFIED
    found = checked(opened, Logged((), (), samples.HOSTS, far))
    assert found.belief is Belief.WRONG and "before the job" in found.reason
    early = Window(samples.START - 2 * day, samples.START - day)
    assert "after the job" in checked(opened, Logged((), (), samples.HOSTS, early)).reason


def test_training_series_that_cannot_be_read_prove_nothing(opened: Connection) -> None:
    seen = discover(opened, time.time(), samples.HOSTS)
    client = replace(opened).client
    deadline, client.deadline_s = client.deadline_s, 0.0
    try:
        found = check(client, seen, Logged(STEPS, printed(samples.LOSSES), samples.HOSTS))
    finally:
        client.deadline_s = deadline
    assert found.belief is Belief.UNVERIFIED and "cannot be read" in found.reason
