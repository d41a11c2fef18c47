"""Judging a host's facts: pure functions, one a check."""

from ddops.compat.checks import CHECKS, Check, Finding, Subject, judge

__all__ = ["CHECKS", "Check", "Finding", "Subject", "judge"]
