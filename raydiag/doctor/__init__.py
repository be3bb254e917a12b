"""JUDGE: is a set-up safe, and is everything there that a diagnosis will need?

Pure functions of what was collected. Each check answers: well, a problem, an advice, or not
checked, with why; none is left out silently.
"""

from collections.abc import Iterator, Sequence

from raydiag.doctor.exposure import exposure_checks
from raydiag.doctor.job_settings import job_setting_checks
from raydiag.doctor.metrics import metrics_checks
from raydiag.doctor.privileges import privilege_checks
from raydiag.doctor.set_up import CheckResult, CheckStatus, SetUp
from raydiag.doctor.versions import version_checks


def examined(set_up: SetUp) -> list[CheckResult]:
    """Every check, in the order of a report."""
    return list(_all_checks(set_up))


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
