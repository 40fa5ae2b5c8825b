"""Edits of files that an answer holds: read out of its text, planned, made, and taken back."""

from satchel.agent.edits.apply import Applied, apply_plan, load_last, recover, undo
from satchel.agent.edits.edit import FileEdit, Hunk
from satchel.agent.edits.parse import parse_edits
from satchel.agent.edits.plan import Change, EditPlan, plan_edits

__all__ = [
    "Applied",
    "Change",
    "EditPlan",
    "FileEdit",
    "Hunk",
    "apply_plan",
    "load_last",
    "parse_edits",
    "plan_edits",
    "recover",
    "undo",
]
