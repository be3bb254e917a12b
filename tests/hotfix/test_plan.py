"""What a rollout would do, from what nodes say of themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from raydiag.hotfix import plan
from raydiag.hotfix.messages import (
    Directory,
    Inspection,
    ProcessInfo,
    ServedPage,
    TargetFile,
    Watchdog,
)
from raydiag.hotfix.plan import HostState, NewFile, Plan, Wishes

GPU, EXPORTER = "gpu_metrics_plugin.sh", "metrics_exporter.sh"
OLD, NEW = "0" * 64, "1" * 64
FILE = NewFile(GPU, NEW, 100)
SCRIPT = NewFile(EXPORTER, NEW, 100)


def target(name: str = GPU, sha256: str = OLD, refused: str = "") -> TargetFile:
    return TargetFile(name, sha256, refused, restart=name == EXPORTER)


def inspection(number: int, *files: TargetFile, place: str = "", **changed: Any) -> Inspection:
    exporter = ProcessInfo(100 + number, 1, ("bash", "/a/metrics_exporter.sh"), "exporter")
    server = ProcessInfo(200 + number, 1, ("python3", "-c"), "server")
    whole = Inspection(
        host=f"node{number:03}",
        time=0.0,
        exporter=exporter,
        ends_on_restart=(exporter, server),
        directory=Directory(
            "/a", "/a", 1, number, "ext4", "/dev/sda", False, place or f"d{number}"
        ),
        files=files or (target(),),
        watchdog=Watchdog("/job/log", 0, 3, 47),
        served=ServedPage("ok", metrics={"hw_gpu_power_watts": 8}),
        plugin_log_bytes=0,
        driver_fault="",
        unfinished=(),
        leftovers=(),
        refuse_replace=(),
        refuse_restart=(),
    )
    return dataclasses.replace(whole, **changed)


def host(number: int, **changed: Any) -> HostState:
    name = f"node{number:03}"
    return dataclasses.replace(HostState(f"id{number}", name, f"10.0.0.{number}"), **changed)


def made(
    *seen: Inspection,
    files: tuple[NewFile, ...] = (FILE,),
    hosts: tuple[HostState, ...] = (),
    **wishes: Any,
) -> Plan:
    given = hosts or tuple(host(int(one.host[4:])) for one in seen)
    by_id = {f"id{int(one.host[4:])}": one for one in seen}
    return plan.make(given, by_id, files, Wishes(**wishes))


def states(found: Plan) -> dict[str, str]:
    return {one.host: one.state for one in found.hosts}


def reasons(found: Plan, node: str = "id1") -> str:
    return "; ".join(found.host(node).reasons)


def test_every_host_changes_after_the_canary() -> None:
    found = made(*(inspection(number) for number in range(1, 5)))
    assert set(states(found).values()) == {"change"}
    assert found.canary == "id1"
    assert found.batches == (("id1",), ("id2",), ("id3",), ("id4",))
    assert found.hosts[0].changes == (plan.FileChange(GPU, f"/a/{GPU}", OLD, NEW, False),)
    assert found.hosts[0].ends == ()


def test_batches_grow_to_a_tenth() -> None:
    found = made(*(inspection(number) for number in range(1, 41)))
    assert [len(batch) for batch in found.batches] == [1, 1, *[4] * 9, 2]
    assert sorted(node for batch in found.batches for node in batch) == sorted(
        one.node_id for one in found.hosts
    )


def test_batches_of_a_given_size() -> None:
    found = made(*(inspection(number) for number in range(1, 8)), batch=3)
    assert [len(batch) for batch in found.batches] == [1, 3, 3]


def test_a_host_that_has_it_already_is_left_alone() -> None:
    found = made(inspection(1, target(sha256=NEW)), inspection(2))
    assert states(found) == {"node001": "same", "node002": "change"}
    assert found.batches == (("id2",),)


def test_nothing_to_do() -> None:
    found = made(inspection(1, target(sha256=NEW)))
    assert (found.canary, found.batches, found.reason) == ("", (), "")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"refuse_replace": ("no exporter runs here",)}, "no exporter runs here"),
        ({"files": (target(refused="leads out of the directory"),)}, f"{GPU}: leads out"),
        ({"unfinished": ("r7",)}, "raydiag hotfix rollback r7"),
        ({"files": ()}, "does not say"),
    ],
)
def test_a_host_that_must_not_change(changed: dict[str, Any], words: str) -> None:
    found = made(inspection(1, **changed), inspection(2))
    assert states(found) == {"node001": "refused", "node002": "change"}
    assert words in reasons(found)
    assert found.canary == "id2"


def test_the_exporter_comes_last_and_says_whom_it_ends() -> None:
    one = inspection(1, target(EXPORTER), target(GPU))
    found = made(one, files=(SCRIPT, FILE)).hosts[0]
    assert [change.name for change in found.changes] == [GPU, EXPORTER]
    assert [process.role for process in found.ends] == ["exporter", "server"]
    assert (found.restarts, found.restarts_left) == (3, 47)


def test_few_restarts_left_refuse_an_exporter_and_no_plugin() -> None:
    few: dict[str, Any] = {"refuse_restart": ("the watchdog has 1 of 50 restarts left",)}
    one = inspection(1, target(EXPORTER), target(GPU), **few)
    assert "1 of 50 restarts left" in reasons(made(one, files=(SCRIPT,)))
    assert states(made(one, files=(FILE,))) == {"node001": "change"}


def test_no_exporter_to_restart() -> None:
    one = inspection(1, target(EXPORTER), exporter=None, ends_on_restart=())
    assert "no exporter was found" in reasons(made(one, files=(SCRIPT,)))


# ---- the canary


def test_the_canary_is_none_that_shows_the_driver_fault() -> None:
    found = made(inspection(1, driver_fault="amdgpu_cper_ring_write"), inspection(2))
    assert found.canary == "id2"
    assert states(found)["node001"] == "change"


def test_only_hosts_with_the_driver_fault() -> None:
    found = made(inspection(1, driver_fault="amdgpu_cper_ring_write"))
    assert (found.canary, found.batches) == ("", ())
    assert "amdgpu_cper_ring_write" in found.reason


def test_a_canary_by_name() -> None:
    both = inspection(1), inspection(2)
    for name in ("node002", "10.0.0.2", "id2"):
        assert made(*both, canary=name).canary == "id2"
    assert "not one of the hosts" in made(*both, canary="node009").reason
    sick = inspection(2, driver_fault="amdgpu_cper_ring_write")
    refused = made(inspection(1), sick, canary="node002")
    assert refused.canary == ""
    assert "driver fault" in refused.reason
    done = made(inspection(1), inspection(2, target(sha256=NEW)), canary="node002")
    assert "nothing is to be changed there" in done.reason


def test_the_canary_serves_what_the_plugin_makes() -> None:
    name = "tb_metrics_plugin.sh"
    quiet = inspection(1, target(name))
    rank_0 = inspection(2, target(name), served=ServedPage("ok", metrics={"tb_learning_loss": 1}))
    assert made(quiet, rank_0, files=(NewFile(name, NEW, 1),)).canary == "id2"


# ---- shared directories


def test_a_shared_directory_is_written_once() -> None:
    found = made(inspection(1), *(inspection(number, place="nfs") for number in (2, 3)))
    assert found.batches == (("id1",), ("id2", "id3"))
    assert [one.writer for one in found.hosts] == ["id1", "id2", "id2"]


def test_one_host_that_must_not_change_keeps_its_neighbours() -> None:
    held = inspection(1, place="nfs", refuse_replace=("some doubt",))
    found = made(held, inspection(2, place="nfs"), inspection(3))
    assert states(found) == {"node001": "refused", "node002": "refused", "node003": "change"}
    assert "shared with node001, which must not change" in reasons(found, "id2")


def test_a_neighbour_that_was_not_named() -> None:
    hosts = (host(1), host(2, asked=False), host(3, asked=False))
    seen = inspection(1, place="nfs"), inspection(2, place="nfs"), inspection(3)
    found = made(*seen, hosts=hosts)
    assert "shared with node002, not named" in reasons(found)
    assert "id3" not in {one.node_id for one in found.hosts}
    assert found.batches == ()


def test_neighbours_that_see_different_contents() -> None:
    found = made(inspection(1, place="nfs"), inspection(2, target(sha256="2" * 64), place="nfs"))
    assert set(states(found).values()) == {"refused"}
    assert "do not see the same content" in reasons(found)


def test_a_network_directory_that_a_silent_host_may_see() -> None:
    place = Directory("/a", "/a", 1, 1, "nfs4", "server:/a", True, "nfs")
    hosts = host(1), host(2, unseen="no answer within 30 s")
    found = made(inspection(1, directory=place), hosts=hosts)
    assert "node002, which may see it too, did not answer" in reasons(found)
    dead = host(1), host(2, unseen="dead: its raylet ended")
    assert states(made(inspection(1, directory=place), hosts=dead))["node001"] == "change"


def test_a_silent_host_is_unseen_and_holds_nobody_up() -> None:
    found = made(inspection(1), hosts=(host(1), host(2, unseen="no answer")))
    assert states(found) == {"node001": "change", "node002": "unseen"}
    assert found.host("id2").reasons == ("no answer",)
