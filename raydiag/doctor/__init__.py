"""JUDGE: is a set-up safe, and is everything there that a diagnosis will need?

Pure functions of what was collected. Each check answers: well, a problem, an advice, or not
checked, with why; none is left out silently.
"""

from collections.abc import Iterator, Sequence

from raydiag.doctor.exposure import exposure_checks
from raydiag.doctor.job_settings import job_setting_checks
from raydiag.doctor.metrics import metrics_checks
from raydiag.doctor.privileges import privilege_checks
from raydiag.doctor.set_up import CheckResult, CheckStatus, SetUp, not_checked
from raydiag.doctor.versions import version_checks

# Checks for which it does not matter whether every node has answered.
_NOT_OF_NODES = frozenset(
    {
        "node-addresses",
        "token-authentication",
        "ray-version",
        "ray-advisories",
        "prometheus-program",
        "prometheus-server",
        "scrape-targets",
        "scrape-interval",
    }
)


def examined(set_up: SetUp) -> list[CheckResult]:
    """Every check, in the order of a report; none is well on nodes that did not answer."""
    blind = set_up.without(lambda _: True)
    checks = []
    for check in _all_checks(set_up):
        is_guess = check.status is CheckStatus.OK and check.id not in _NOT_OF_NODES
        checks.append(not_checked(check, blind) if blind and is_guess else check)
    return checks


def _all_checks(set_up: SetUp) -> Iterator[CheckResult]:
    yield from exposure_checks(set_up)
    yield from version_checks(set_up)
    yield from privilege_checks(set_up)
    yield from metrics_checks(set_up)
    yield from job_setting_checks(set_up)


def exit_code(checks: Sequence[CheckResult], everything_seen: bool) -> int:
    """1: a problem; 3: none, but something was not checked; 0: all well."""
    statuses = {check.status for check in checks}
    if CheckStatus.PROBLEM in statuses:
        return 1
    return 3 if CheckStatus.UNKNOWN in statuses or not everything_seen else 0
