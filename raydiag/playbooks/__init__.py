"""JUDGE: series -> observations, rows and findings; one file per question.

The order of a run: `plan` says what to ask first; with those answers `drill` says what to ask about
the hosts that stand out; `run` judges. Nothing here talks to a server:

    answers = Answers(ask(plan(context)), context.discovery)
    answers = Answers([*answers, *ask(drill(context, answers))], context.discovery)
    outcome = run(context, answers)
"""

from __future__ import annotations

from raydiag.playbooks.answers import Answers, Table, Where
from raydiag.playbooks.context import Context, Job, Mask, Save
from raydiag.playbooks.observed import Exclusion, Observation, Outcome, Report, Row, RuledOut

__all__ = [
    "Answers",
    "Context",
    "Exclusion",
    "Job",
    "Mask",
    "Observation",
    "Outcome",
    "Report",
    "Row",
    "RuledOut",
    "Save",
    "Table",
    "Where",
]
