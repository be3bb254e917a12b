"""Versions: Ray's and its weaknesses, differences between nodes, Python, clocks; clusters."""

import re
from collections import defaultdict
from collections.abc import Iterator

from raydiag.catalog.advisories import advisories, release_of
from raydiag.doctor.set_up import CheckResult, CheckStatus, SetUp, hosts_of, texts_of

_AREA = "versions"
_OLDEST_RAY = (2, 9, 0)
_OLDEST_PYTHON = (3, 9, 0)
_SESSION = re.compile(r"/(session_[\w-]{10,80})/")


def version_checks(set_up: SetUp) -> Iterator[CheckResult]:
    """Ray's release, what differs between nodes, clocks, and several clusters on one machine."""
    yield _ray(set_up)
    yield _advisories(set_up)
    yield _python(set_up)
    yield _same_everywhere(set_up)
    yield _clocks(set_up)
    yield _single_cluster(set_up)


def _ray(set_up: SetUp) -> CheckResult:
    version = str(set_up.cluster.get("ray_version") or "")
    release = release_of(version)
    if release is None:
        title = f"Ray's version could not be read: {version!r}"
        return CheckResult("ray-version", _AREA, CheckStatus.UNKNOWN, title)
    if release < _OLDEST_RAY:
        title = f"Ray {version} is older than what raydiag is tested with"
        fix = "upgrade to Ray 2.9 or newer"
        return CheckResult("ray-version", _AREA, CheckStatus.PROBLEM, title, fix=fix)
    return CheckResult("ray-version", _AREA, CheckStatus.OK, f"Ray {version}")


def _advisories(set_up: SetUp) -> CheckResult:
    """Weaknesses that only a token mends are an advice: a private loopback dashboard is common."""
    version = str(set_up.cluster.get("ray_version") or "")
    known = [row for row in advisories() if row.concerns(version, set_up.token_is_needed)]
    by_version = [row for row in known if not row.without_token]
    evidence = tuple(f"{row.id}: {row.summary} ({row.source})" for row in known)
    if by_version:
        newest = max(filter(None, (release_of(row.fixed_in) for row in by_version)))
        fix = f"upgrade to Ray {'.'.join(map(str, newest))} or newer"
        title = f"Ray {version} has published weaknesses"
        return CheckResult(
            "ray-advisories", _AREA, CheckStatus.PROBLEM, title, evidence=evidence, fix=fix
        )
    if known:
        title = "A published weakness of Ray is closed by token authentication only"
        return CheckResult("ray-advisories", _AREA, CheckStatus.ADVICE, title, evidence=evidence)
    title = f"No published weakness of Ray {version} is known here"
    return CheckResult("ray-advisories", _AREA, CheckStatus.OK, title)


def _python(set_up: SetUp) -> CheckResult:
    """Probes run on each node's Python."""
    old: dict[str, str] = {}
    for report in set_up.answered:
        for record in report.records("versions"):
            release = release_of(record.version)
            is_old = release is not None and release < _OLDEST_PYTHON
            if record.component == "python" and is_old:
                old[report.node.host] = record.version
    if not old:
        title = "Probes run on Python 3.9 or newer"
        return CheckResult("node-python", _AREA, CheckStatus.OK, title)
    evidence = tuple(f"{host}: Python {version}" for host, version in old.items())
    title = "Nodes run Ray on a Python that probes are not made for"
    fix = "run Ray on Python 3.9 or newer"
    return CheckResult(
        "node-python", _AREA, CheckStatus.PROBLEM, title, tuple(old), evidence[:4], fix
    )


def _same_everywhere(set_up: SetUp) -> CheckResult:
    differing = set_up.findings_of("version-skew", "env-mismatch")
    if not differing:
        title = "Kernel, drivers, ROCm, Python and the job's settings are the same on all nodes"
        return CheckResult("same-versions", _AREA, CheckStatus.OK, title)
    return CheckResult(
        "same-versions", _AREA, CheckStatus.PROBLEM, "Nodes of one cluster differ",
        hosts_of(differing), texts_of(differing), "give these nodes the image that the others have",
    )  # fmt: skip


def _clocks(set_up: SetUp) -> CheckResult:
    skewed = set_up.findings_of("clock-skew")
    if skewed:
        return CheckResult(
            "clocks", _AREA, CheckStatus.PROBLEM, "Clocks of nodes are off",
            hosts_of(skewed), texts_of(skewed), "start chrony or systemd-timesyncd on these nodes",
        )  # fmt: skip
    unmeasured = set_up.without(lambda report: report.clock_offset_s is not None)
    if unmeasured:
        title = "Clocks of some nodes could not be measured"
        return CheckResult("clocks", _AREA, CheckStatus.UNKNOWN, title, unmeasured)
    return CheckResult("clocks", _AREA, CheckStatus.OK, "Clocks of all nodes agree")


def _single_cluster(set_up: SetUp) -> CheckResult:
    """Raylets of several Ray sessions on one machine belong to several clusters."""
    crowded: dict[str, list[str]] = {}
    for report in set_up.answered:
        sessions: dict[str, list[int]] = defaultdict(list)
        for process in report.records("processes"):
            match = _SESSION.search(process.command)
            if process.role == "raylet" and match:
                sessions[match[1]].append(process.pid)
        if len(sessions) > 1:
            crowded[report.node.host] = sorted(sessions)
    if not crowded:
        title = "One Ray cluster on each machine"
        return CheckResult("single-cluster", _AREA, CheckStatus.OK, title)
    evidence = tuple(f"{host}: {', '.join(names)}" for host, names in crowded.items())
    return CheckResult(
        "single-cluster", _AREA, CheckStatus.PROBLEM,
        "Several Ray clusters run on one machine: `auto` may join the wrong one",
        tuple(crowded), evidence[:4],
        "name the cluster with --address, and set RAY_ADDRESS for jobs",
    )  # fmt: skip
