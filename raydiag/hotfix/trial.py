"""The new files tried on the canary: syntax and a dry run, before anything changes."""

from __future__ import annotations

from collections.abc import Callable

from raydiag.hotfix import messages
from raydiag.hotfix.messages import CheckedFile
from raydiag.hotfix.node_requests import NodeRequests
from raydiag.hotfix.plan import FileChange, HostPlan, Plan
from raydiag.hotfix.process import SCRIPT

_CHECK_S = 15.0


class Stop(Exception):
    """The rollout must not go on; the message says why."""


def try_files(
    plan: Plan, nodes: NodeRequests, exporter: str, note: Callable[[str], object]
) -> dict[str, CheckedFile]:
    """What came of each file on the canary; `note` gets a line for each. Raises Stop."""
    canary = plan.host(plan.canary)
    checked_files: dict[str, CheckedFile] = {}
    for change in canary.changes:
        request = messages.Check(name=change.name, content=plan.content(change.name))
        answers = nodes.ask({canary.node_id: request}, CheckedFile, _CHECK_S)
        for missing in answers.missing.values():
            raise Stop(f"{canary.host}: check of {change.name}: {missing.reason}")
        checked = answers.given[canary.node_id]
        _require_checked(canary, change, checked, exporter)
        checked_files[change.name] = checked
        outcome = "dry run passed" if checked.dry_run == "passed" else "syntax checked"
        if checked.dry_run != "passed" and change.name != SCRIPT:
            outcome += ", to be tried by the exporter, which keeps the one before"
        note(f"{change.name} on {canary.host}: {outcome}")
    return checked_files


def _require_checked(
    canary: HostPlan, change: FileChange, checked: CheckedFile, exporter: str
) -> None:
    """Raises Stop for a file that did not pass, or that nothing would try."""
    if not checked.passed:
        output = checked.output.strip()[-300:]
        reason = f"check of {change.name} on {canary.host}: {checked.reason}"
        raise Stop(f"{reason}: {output}" if output else reason)
    if checked.sha256 != change.new_sha256:
        raise Stop(f"{canary.host}: {change.name} did not arrive whole")
    is_tried = checked.dry_run == "passed" or change.name == SCRIPT
    # Of such a plugin there is no dry run, and the exporter bears a broken one.
    runs_apart = exporter == messages.RAYDIAG and change.name.endswith(".py")
    if not is_tried and not runs_apart:
        raise Stop(f"{change.name} could not be tried on {canary.host}: {checked.reason}")
