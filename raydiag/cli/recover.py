"""`raydiag recover`: what to do about a job that has ended, and why. It acts on nothing.

examples:
  raydiag recover 7877 --ended
  raydiag recover 7877 --ended --policy policy.yaml --journal 7877.journal
  raydiag recover raysubmit_x --ssh me@head --journal llama.journal --format jsonl

One diagnosis decides, with the policy and the journal of what was decided before:
  NOOP       nothing is wrong, or it runs       REATTEMPT  start it again on the same nodes
  DIAGNOSE   a person has to look first         EVICT      start it again without some hosts
  STOP       a new attempt is of no use, or the policy allows no more

An error in a log does not prove that a job has ended, and two attempts at once damage checkpoints:
only with --ended is a new attempt decided, and once for each. One journal for all attempts at a
job. Each REATTEMPT and EVICT counts as followed, against the policy's budgets. After a STOP move
the journal away to begin anew. Attempts are told apart by the time of their last step: logs
without times get DIAGNOSE. docs/recovery.md has the policy's keys, their defaults and what those
are worth.

exit codes:
  0 NOOP    1 REATTEMPT, EVICT or STOP    2 usage    3 DIAGNOSE    4 no diagnosis, no journal
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from raydiag.cli import options
from raydiag.errors import CannotRun

if TYPE_CHECKING:
    from raydiag.recovery.decision import EndedAttempt
    from raydiag.recovery.journal import JournalEntry, RecoveryJournal
    from raydiag.recovery.policy import RecoveryPolicy

HELP = "what to do about a job that has ended, by its diagnosis and a policy; acts on nothing"
_DIAGNOSE_LIMIT_S = 300.0
_CODES = {"NOOP": 0, "DIAGNOSE": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    words = "job directory, log file, job id below --outputs, or a job of Ray's"
    parser.add_argument("job", metavar="JOB", help=words)
    parser.add_argument("--outputs", metavar="DIR", help="where to look up job ids")
    words = "what was decided before (default: one for each job below ~/.raydiag/recover)"
    parser.add_argument("--journal", metavar="FILE", help=words)
    words = (
        "you have made sure that nothing of the job runs any more; without this nothing is started"
    )
    parser.add_argument("--ended", action="store_true", help=words)
    parser.add_argument("--policy", metavar="FILE", help="budgets and limits, in YAML")
    options.add_way_in(parser)
    parser.set_defaults(reaches_cluster=True)
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=("text", "jsonl"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Diagnose, decide, write down, say; returns the exit code."""
    from raydiag.recovery.journal import RecoveryJournal, usual_path
    from raydiag.recovery.policy import RecoveryPolicy, read_policy

    policy = RecoveryPolicy()
    if arguments.policy is not None:
        policy = read_policy(arguments.policy)
    journal_path = arguments.journal or usual_path(_name(arguments))
    with contextlib.closing(RecoveryJournal(journal_path)) as journal:
        entry = _entry(journal, arguments.job, _attempt(arguments), policy)
    line = json.dumps(asdict(entry)) if arguments.format == "jsonl" else _line(entry)
    options.write_report([f"{line}\n"], None)
    return _CODES.get(entry.action, 1)


def _name(arguments: argparse.Namespace) -> str:
    """By which the job is known again from any directory: its path, or its id and the cluster."""
    job = os.path.abspath(arguments.job) if os.path.exists(arguments.job) else arguments.job
    ways = [str(getattr(arguments, name) or "") for name in (*options.WAY_IN, "outputs")]
    return "\n".join([job, *ways])


def _attempt(arguments: argparse.Namespace) -> EndedAttempt:
    """The newest attempt, by a diagnosis of now. Raises CannotRun."""
    from raydiag.own_command import answer_of
    from raydiag.recovery.decision import attempt_of

    words = ["diagnose", arguments.job]
    for name in (*options.WAY_IN, "outputs"):
        value = getattr(arguments, name)
        if value is not None:
            words.append(f"--{name.replace('_', '-')}={value}")
    answer = answer_of(words, _DIAGNOSE_LIMIT_S)
    if not answer.document:
        raise CannotRun(f"no diagnosis, so nothing is decided: {answer.complaint}")
    made = str(answer.document["generated_at"]).replace("Z", "+00:00")
    diagnosed = datetime.fromisoformat(made).timestamp()
    attempt = attempt_of(answer.document, _ended(answer.document), diagnosed)
    return replace(attempt, is_over=arguments.ended)


def _ended(document: Mapping[str, Any]) -> float | None:
    """When its last step was, by which an attempt is known again: a time that no call changes."""
    progress = (document["triage"] or {}).get("progress") or {}
    last_step_time = progress.get("last_step_time")
    return None if last_step_time is None else float(last_step_time)


def _entry(
    journal: RecoveryJournal, job: str, attempt: EndedAttempt, policy: RecoveryPolicy
) -> JournalEntry:
    """What was decided about this attempt before, or is now."""
    from raydiag.recovery.decision import decide
    from raydiag.recovery.journal import JournalEntry
    from raydiag.render.secrets import masked_text

    earlier = journal.decided(attempt)
    past, now = journal.history(), time.time()
    if earlier is not None and attempt.status == "failed" and not past.stopped:
        # Of a newer attempt that came to no step the log tells the same last step.
        reason = f"decided before: {earlier.action}: {earlier.reason}; if it was started again "
        reason += "since, it came to no step, and a person has to look"
        return JournalEntry(now, masked_text(job), attempt, "DIAGNOSE", reason)
    decision = decide(attempt, policy, past, now)
    name = masked_text(job)
    if decision.action.value in ("REATTEMPT", "EVICT", "STOP") and not past.stopped:
        return journal.add(name, attempt, decision, now)
    return JournalEntry(now, name, attempt, decision.action.value, decision.reason)


def _line(entry: JournalEntry) -> str:
    from raydiag.render.escape import terminal
    from raydiag.render.formats import utc
    from raydiag.render.secrets import masked_text

    line = f"{entry.job}: {entry.action}: {entry.reason}"
    if entry.hosts:
        line += f"; leave out {', '.join(entry.hosts)}"
    if entry.not_before:
        line += f"; not before {utc(entry.not_before)}"
    return terminal(masked_text(line))
