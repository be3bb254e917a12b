"""Metrics: the Prometheus program, the server that scrapes the cluster, its targets, exporters."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from raydiag.doctor.set_up import CheckResult, CheckStatus, ScrapeTarget, SetUp, hosts_of, texts_of
from raydiag.model import NodeReport

_AREA = "metrics"
_LONGEST_INTERVAL_S = 30.0  # beyond it a hang and the saves around it cannot be told apart
_EXPORTERS = (
    "exporter-down",
    "exporter-plugin-timeout",
    "exporter-plugin-skipped",
    "exporter-restarting",
    "ghost-data",
)
_PROGRAM = "apt-get install prometheus, or unpack a release and name it in RAYDIAG_PROMETHEUS"


def metrics_checks(set_up: SetUp) -> Iterator[CheckResult]:
    """What `diagnose` and the playbooks need."""
    yield _program(set_up)
    yield _server(set_up)
    if set_up.prometheus.url:
        yield _targets(set_up)
        yield _interval(set_up)
    yield _exporters(set_up)


def _program(set_up: SetUp) -> CheckResult:
    if set_up.prometheus_program:
        title = f"The Prometheus program is here: {set_up.prometheus_program}"
        return CheckResult("prometheus-program", _AREA, CheckStatus.OK, title)
    title = "No Prometheus program here: metrics of jobs that are over cannot be read"
    return CheckResult("prometheus-program", _AREA, CheckStatus.PROBLEM, title, fix=_PROGRAM)


def _server(set_up: SetUp) -> CheckResult:
    server = set_up.prometheus
    if server.url:
        title = f"A Prometheus scrapes the cluster: {server.url}"
        return CheckResult("prometheus-server", _AREA, CheckStatus.OK, title)
    status = CheckStatus.PROBLEM
    if set_up.is_temporary:
        status = CheckStatus.ADVICE
    title = "No Prometheus scrapes the cluster: a diagnosis sees nothing of the time before it"
    fix = "scrape the exporters of all nodes (deploy/prometheus), or name a server: --prometheus"
    return CheckResult(
        "prometheus-server", _AREA, status, title, evidence=(server.reason,), fix=fix
    )


def _targets(set_up: SetUp) -> CheckResult:
    down = [target for target in set_up.prometheus.targets if target.health != "up"]
    if not set_up.prometheus.targets:
        title = "The Prometheus does not say what it scrapes"
        return CheckResult("scrape-targets", _AREA, CheckStatus.UNKNOWN, title)
    if not down:
        title = f"All {len(set_up.prometheus.targets)} scrape targets are up"
        return CheckResult("scrape-targets", _AREA, CheckStatus.OK, title)
    evidence = tuple(
        f"{target.job} {target.address}: {target.health} {target.error}" for target in down
    )
    title = f"{len(down)} of {len(set_up.prometheus.targets)} scrape targets are not up"
    fix = "start the exporters, or take targets that are gone from the configuration"
    return CheckResult(
        "scrape-targets", _AREA, CheckStatus.PROBLEM, title, evidence=evidence[:4], fix=fix
    )


def _interval(set_up: SetUp) -> CheckResult:
    slow = {}
    for target in set_up.prometheus.targets:
        if target.interval_s is not None and target.interval_s > _LONGEST_INTERVAL_S:
            slow[target.job] = target.interval_s
    if not slow:
        title = f"Targets are scraped every {_LONGEST_INTERVAL_S:.0f} s or more often"
        return CheckResult("scrape-interval", _AREA, CheckStatus.OK, title)
    evidence = tuple(f"{job}: every {seconds:g} s" for job, seconds in slow.items())
    title = "Targets are scraped too seldom for short stalls and onsets"
    fix = "set scrape_interval: 15s for these jobs"
    return CheckResult(
        "scrape-interval", _AREA, CheckStatus.PROBLEM, title, evidence=evidence[:4], fix=fix
    )


def _exporters(set_up: SetUp) -> CheckResult:
    unhealthy = set_up.findings_of(*_EXPORTERS)
    if unhealthy:
        return CheckResult(
            "exporters", _AREA, CheckStatus.PROBLEM, "Metrics exporters of nodes are unhealthy",
            hosts_of(unhealthy), texts_of(unhealthy), "see `raydiag exporter status` on the node",
        )  # fmt: skip
    scraped = {_host_of(target) for target in set_up.prometheus.targets if target.health == "up"}
    without = []
    for report in set_up.answered:
        # One that listens on the node's own address does not answer a probe, which asks loopback.
        is_scraped = not scraped.isdisjoint((report.node.address, report.node.host))
        if not is_scraped and not _has_exporter(report):
            without.append(report.node.host)
    if without:
        title = "Nodes without a metrics exporter on port 9400"
        fix = "run `raydiag exporter run` there (deploy has what starts it)"
        return CheckResult("exporters", _AREA, CheckStatus.ADVICE, title, tuple(without), fix=fix)
    return CheckResult("exporters", _AREA, CheckStatus.OK, "Metrics exporters serve fresh values")


def _host_of(target: ScrapeTarget) -> str:
    try:
        return urlsplit(target.address).hostname or ""
    except ValueError:  # what a server says of its targets need not be a URL
        return ""


def _has_exporter(report: NodeReport) -> bool:
    return any(record.answer != "refused" for record in report.records("exporter"))
