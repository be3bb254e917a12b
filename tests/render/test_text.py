"""The report for people: what it says, that it folds, and that nothing in it misleads."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from dataclasses import replace

import pytest

from raydiag.model import (
    Blind,
    Coverage,
    Diagnosis,
    Evidence,
    Finding,
    HostUnread,
    Node,
    NodeStatus,
    ProbeResult,
    Severity,
    Snapshot,
    Status,
    StuckReader,
)
from raydiag.render.probe import probe_report, summary
from raydiag.render.text import text as written
from tests.render import cluster_samples as samples

Golden = Callable[[str, str], None]
ATTACK = "x\x1b[2J\x1b]0;t\x07\r\n\u202egnitirw\u2028\udc9b\x9b1m"


def report(
    snapshot: Snapshot,
    diagnosis: Diagnosis,
    colour: bool = False,
    width: int = 80,
    verbose: bool = False,
) -> str:
    return written(probe_report(snapshot, diagnosis, samples.CLUSTER, verbose), width, colour)


def with_findings(findings: list[Finding], size: int = 4) -> tuple[Snapshot, Diagnosis]:
    snapshot, diagnosis = samples.all_well(size)
    return snapshot, replace(diagnosis, findings=findings)


def with_coverage(coverage: Coverage) -> tuple[Snapshot, Diagnosis]:
    snapshot, diagnosis = samples.all_well(4)
    return snapshot, replace(diagnosis, coverage=coverage)


@pytest.mark.parametrize("width", [80, 120])
def test_sick_cluster(golden: Golden, width: int) -> None:
    golden(f"sick-{width}.txt", report(*samples.sick_cluster(), width=width))


def test_sick_cluster_verbose(golden: Golden) -> None:
    golden("sick-verbose.txt", report(*samples.sick_cluster(), verbose=True))


def test_sick_cluster_in_colour(golden: Golden) -> None:
    golden("sick-colour.txt", report(*samples.sick_cluster(), colour=True))


def test_healthy_cluster_is_one_row(golden: Golden) -> None:
    text = report(*samples.all_well(64))
    assert text.count("node[001-064]") == 1
    golden("well-64.txt", text)


def test_hosts_without_gpus(golden: Golden) -> None:
    nodes = [replace(samples.healthy_node(i, gpus=0)) for i in (1, 2)]
    golden("no-gpus.txt", report(samples.snapshot(nodes), Diagnosis([], [], Coverage(2, 2))))


@pytest.mark.parametrize("width", [1, 60, 80, 100, 200])
def test_lines_keep_to_the_width(width: int) -> None:
    text = report(*samples.sick_cluster(), width=width)
    assert max(map(len, text.splitlines())) <= max(width, 75)


def test_colour_changes_no_character() -> None:
    plain, painted = (report(*samples.sick_cluster(), colour=c) for c in (False, True))
    assert "\x1b" not in plain
    assert "\x1b[31mCRITICAL\x1b[0m" in painted
    for code in ("\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"):
        painted = painted.replace(code, "")
    assert painted == plain


def test_summary_of_a_seen_and_well_cluster() -> None:
    assert summary(*samples.all_well(4)) == (
        "No problem found on 4 of 4 nodes, everything was seen."
    )


@pytest.mark.parametrize(
    ("coverage", "told"),
    [
        (Coverage(4, 3, [Blind("node004", "x")]), "3 of 4 nodes answered, 1 node not seen"),
        (
            Coverage(4, 4, (), [HostUnread(h, "/f", Status.DENIED, "") for h in ("a", "a", "b")]),
            "4 of 4 nodes answered, 2 nodes seen only in part",
        ),
        (Coverage(4, 3), "3 of 4 nodes answered"),
    ],
)
def test_summary_never_calls_the_unseen_well(coverage: Coverage, told: str) -> None:
    assert summary(*with_coverage(coverage)) == (
        f"No problem found, but not everything could be seen: {told}."
    )


def test_a_node_that_is_partial_is_not_everything_seen() -> None:
    nodes = [samples.healthy_node(1), replace(samples.healthy_node(2), status=NodeStatus.PARTIAL)]
    text = summary(samples.snapshot(nodes), Diagnosis([], [], Coverage(2, 2)))
    assert "not everything could be seen" in text
    assert "1 node seen only in part" in text


def test_nodes_that_are_gone_and_not_missed_are_neither_clean_nor_seen_in_part() -> None:
    nodes = [samples.healthy_node(number) for number in range(1, 6)]
    nodes += [samples.lost_node(number, NodeStatus.DEAD, "drained") for number in (6, 7, 8)]
    told = [Finding("ray-node-dead", f"node00{n}", severity=Severity.INFO) for n in (6, 7, 8)]
    covered = Coverage(5, 5)
    assert summary(samples.snapshot(nodes), Diagnosis(told, [], covered)) == (
        "No problem found on 5 of 5 nodes, everything was seen. 3 notes below."
    )
    told.append(Finding("disk-full", "node001", severity=Severity.CRITICAL))
    assert summary(samples.snapshot(nodes), Diagnosis(told, [], covered)) == (
        "1 problem on 1 of 5 nodes; 4 nodes clean. 3 notes below."
    )


def test_findings_of_machines_with_one_host_name_stay_apart() -> None:
    found = [
        Finding("disk-full", "node001", address=f"10.0.0.{n}", evidence=[Evidence("/", f"at {n}")])
        for n in (1, 2)
    ]
    text = report(*with_findings(found))
    assert "at 1" in text
    assert "at 2" in text
    nodes = [samples.rename(samples.healthy_node(number), "twin") for number in (1, 2)]
    one = Finding("disk-full", "twin", address=nodes[0].node.address)
    assert summary(samples.snapshot(nodes), Diagnosis([one], [], Coverage(2, 2))) == (
        "1 problem on 1 of 2 nodes; 1 node clean."
    )


def test_summary_of_nothing() -> None:
    assert summary(*samples.all_well(0)) == "No node was asked, so nothing is known."


def test_summary_counts_clean_nodes_without_the_half_seen() -> None:
    assert summary(*samples.sick_cluster()) == (
        "2 problems on 2 of 8 nodes; 4 nodes clean; 2 nodes not seen; 2 nodes seen only in part."
        " 1 note below."
    )


def test_summary_of_a_problem_of_the_whole_cluster() -> None:
    finding = Finding("version-skew", severity=Severity.WARNING)
    assert summary(*with_findings([finding])) == "1 problem; 4 nodes clean."


def test_notes_are_no_problems() -> None:
    finding = Finding("tcp-retransmits", "node001", severity=Severity.INFO)
    assert summary(*with_findings([finding])) == (
        "No problem found on 4 of 4 nodes, everything was seen. 1 note below."
    )


def test_an_unrated_finding_is_a_problem() -> None:
    text = report(*with_findings([Finding("straggler", "node001")]))
    assert text.startswith("1 problem on 1 of 4 nodes")
    assert "WARNING straggler  node001" in text


def hot(host: str, gpu: int, degrees: int, severity: Severity = Severity.WARNING) -> Finding:
    return Finding(
        "thermal-throttling",
        host,
        gpu=gpu,
        device=f"0000:c{gpu}:00.0",
        severity=severity,
        onset=samples.NOW + gpu,
        evidence=[Evidence("temp1_input", f"{degrees}000")],
        explanation=f"{host} GPU {gpu} is at {degrees} C.",
        title="Too hot",
    )


def test_like_findings_share_a_block() -> None:
    findings = [hot(f"node{i:03d}", gpu, 90 + gpu) for i in range(1, 5) for gpu in (2, 3)]
    text = report(*with_findings(findings), width=120)
    assert text.startswith("8 problems on 4 of 4 nodes")
    assert text.count("WARNING") == 1
    assert "node[001-004] gpus 2-3  since 2026-11-20 03:12:09Z (the first)" in text
    assert "the evidence is that of node001 gpu 2 (0000:c2:00.0):" in text
    assert "92000" in text
    assert "93000" not in text


def test_unlike_findings_stay_apart_and_the_worst_is_first() -> None:
    findings = [
        hot("node001", 0, 91),
        hot("node002", 0, 99, Severity.CRITICAL),
        replace(hot("node003", 0, 91), explanation="Its fan stands still."),
    ]
    text = report(*with_findings(findings))
    heads = [line.split()[0] for line in text.splitlines() if "thermal-throttling" in line]
    assert heads == ["CRITICAL", "WARNING", "WARNING"]


def test_verbose_keeps_findings_and_evidence_apart() -> None:
    many = replace(hot("node001", 0, 91), evidence=[Evidence("f", f"line-{i}") for i in range(9)])
    findings = [many, replace(many, host="node002", explanation="node002 GPU 0 is at 91 C.")]
    short, long = (report(*with_findings(findings), verbose=v) for v in (False, True))
    assert "(+4 more: -v shows all)" in short
    assert (short.count("line-4"), short.count("line-5")) == (1, 0)
    assert long.count("line-8") == 2


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        (Evidence("file", "words"), "file: words"),
        (Evidence("query", value=1.5), "query = 1.5"),
        (Evidence("file", "ue: 2", 2.0, samples.NOW), "file: ue: 2  (2026-11-20 03:12:07Z)"),
        (Evidence("file", "at", time=math.inf), "(no valid time: inf)"),
    ],
)
def test_evidence(item: Evidence, shown: str) -> None:
    assert shown in report(*with_findings([replace(hot("node001", 0, 91), evidence=[item])]))


def test_nothing_from_a_node_reaches_the_terminal_unescaped() -> None:
    finding = Finding(
        "hung-read",
        ATTACK,
        device=ATTACK,
        task=ATTACK,
        severity=Severity.CRITICAL,
        evidence=[Evidence(ATTACK, ATTACK)],
        explanation=ATTACK,
        title=ATTACK,
        next_steps=[ATTACK],
    )
    well = samples.healthy_node(1)
    versions = replace(well.records("versions")[0], version=ATTACK)
    mount = replace(well.records("storage")[0], mount_point=ATTACK)
    nodes = [
        replace(
            well,
            node=Node("1", ATTACK, ATTACK),
            status=NodeStatus.PARTIAL,
            reason=ATTACK,
            probes={
                **well.probes,
                ATTACK: ProbeResult(ATTACK, Status.ERROR, reason=ATTACK),
                "versions": ProbeResult("versions", Status.OK, records=[versions]),
                "storage": ProbeResult("storage", Status.OK, records=[mount]),
            },
            stuck=[StuckReader(ATTACK, ATTACK, 1, 1.0)],
            sandbox={ATTACK: {ATTACK: ATTACK}, "files": ATTACK},
        ),
        samples.rename(samples.healthy_node(2, kernel=ATTACK), ATTACK),
    ]
    unread = [HostUnread(ATTACK, ATTACK, Status.DENIED, ATTACK)]
    coverage = Coverage(3, 2, [Blind(ATTACK, ATTACK)], unread)
    cluster = dict.fromkeys(("address", "session_name", "ray_version"), ATTACK)
    for verbose in (False, True):
        diagnosis = Diagnosis([finding], [], coverage)
        text = written(probe_report(samples.snapshot(nodes), diagnosis, cluster, verbose), 80)
        acting = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert acting == {"\n"}
        assert not any(line.startswith("gnitirw") for line in text.splitlines())


def test_rows_part_where_versions_differ() -> None:
    nodes = [samples.healthy_node(i, kernel="5.15.0-1" if i == 2 else "6.8.0") for i in (1, 2, 3)]
    text = report(samples.snapshot(nodes), Diagnosis([], [], Coverage(3, 3)))
    assert "node[001,003]" in text
    assert "kernel 5.15.0-1, amdgpu" not in text
    assert "kernel 5.15.0-1; amdgpu 6.8.5" in text


def test_a_long_mount_point_moves_below_its_row() -> None:
    node = samples.healthy_node(1)
    mount = node.records("storage")[1]
    mount = replace(
        mount,
        mount_point="/mnt/" + "deep/" * 9,
        free_bytes=mount.total_bytes // 10,
        available_bytes=mount.total_bytes // 10,
    )
    storage = ProbeResult("storage", Status.OK, records=[mount])
    node = replace(node, probes={**node.probes, "storage": storage})
    text = report(samples.snapshot([node]), Diagnosis([], [], Coverage(1, 1)))
    row, below = text.splitlines()[4:6]
    assert row.endswith("90%")
    assert below == f"      fullest file system {mount.mount_point}"


def test_numbered_sources_share_a_line() -> None:
    unread = [
        HostUnread(f"node00{i}", f"/proc/{i}{pid}/stack", Status.DENIED, "not permitted")
        for i in (1, 2)
        for pid in range(10, 30)
    ]
    snapshot, diagnosis = with_coverage(Coverage(4, 4, (), unread))
    folded = "unread: /proc/*/stack (40 sources) on node[001-002]: denied, not permitted"
    text = " ".join(report(snapshot, diagnosis).split())
    assert folded in text
    assert "/proc/129/stack on node001" in report(snapshot, diagnosis, verbose=True)


def test_kernel_log_says_where_it_is_missing() -> None:
    nodes = [samples.healthy_node(i) for i in (1, 2, 3)]
    denied = {"kernel_log": ProbeResult("kernel_log", Status.DENIED)}
    nodes[1] = replace(nodes[1], probes=denied)
    text = report(samples.snapshot(nodes), Diagnosis([], [], Coverage(3, 3)))
    assert "reaches back to 2026-11-19 03:12:08Z on node001" in text
    assert "no record from node002" in text
    nodes[1] = replace(nodes[1], probes={})
    text = report(samples.snapshot(nodes), Diagnosis([], [], Coverage(3, 3)))
    assert "no record from" not in text


def test_sandbox_lines_tell_nodes_apart() -> None:
    nodes = [samples.healthy_node(i) for i in (1, 2, 3)]
    nodes[2] = replace(nodes[2], sandbox={"files": {"seccomp": False, "landlock_abi": 0}})
    text = report(samples.snapshot(nodes), Diagnosis([], [], Coverage(3, 3)), width=120)
    assert "files readers on node[001-002]: landlock-abi 4, no-new-privs, seccomp" in text
    assert "files readers on node003: no landlock-abi, no seccomp" in text
