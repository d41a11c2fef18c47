"""Judging a host's facts: pure functions, one a check, and tables of what is known."""

from ddops.compat.judge import Check, beside, checks, judge_all
from ddops.compat.model import Finding, Launch, Subject
from ddops.compat.subject import launch_of, subject_of
from ddops.compat.waive import waive

__all__ = [
    "Check",
    "Finding",
    "Launch",
    "Subject",
    "beside",
    "checks",
    "judge_all",
    "launch_of",
    "subject_of",
    "waive",
]
