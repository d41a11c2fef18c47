"""Judging a host's facts: pure functions, one a check, and tables of what is known."""

from ddops.compat.judge import Check, checks, judge, judge_all
from ddops.compat.model import Finding, Launch, Subject

__all__ = ["Check", "Finding", "Launch", "Subject", "checks", "judge", "judge_all"]
