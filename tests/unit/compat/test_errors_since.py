"""What counts as a new error of a GPU, on a real collection of two H200 with a made-up kernel log.

To see it fail: let `_new_xids` answer [] where no log was readable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddops.compat.errors_since import judge_errors
from ddops.model import GateResult, Verdict
from ddops.probe import Chain, Facts, parse_facts

CAPTURE = Path(__file__).resolve().parents[2] / "fixtures" / "captures" / "h200-2.json"
ECC = "ecc.errors.uncorrected.volatile.total"
OLD = "[   12.3] NVRM: Xid (PCI:0000:1b:00): 31, pid=77, name=python, MMU Fault"
NEW = "[  999.1] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
HINT = "Hint: You are currently not seeing messages from other users and the system."


def seen(dmesg: str | None = "", journal: str | None = None, hint: str = "", **ecc: Any) -> Facts:
    """The capture with these logs, and on each GPU of `ecc` by index this counter."""
    raw = json.loads(CAPTURE.read_text())
    for name, text in (("dmesg", dmesg), ("journal", journal)):
        rc = None if text is None else 0
        raw["commands"][name] = {"rc": rc, "out": text or "", "err": hint, "why": ""}
    raw["commands"]["nvlink_errors"] = {"rc": 0, "out": "", "err": "", "why": ""}
    for row in raw["gpus"]:
        row[ECC] = ecc.get(f"gpu{row['index']}", row[ECC])
    return parse_facts(json.dumps(raw))


def without_one() -> Facts:
    raw = json.loads(json.dumps(dict(seen().raw)))
    raw["gpus"].pop()
    return parse_facts(json.dumps(raw))


def blind() -> Facts:
    return parse_facts(json.dumps({**seen().raw, "gpus": None}))


def judged(before: Facts, after: Facts, verdict: Verdict, words: str) -> GateResult:
    found = judge_errors(before, after)
    assert found.verdict is verdict, found.message
    assert words in found.message
    json.dumps(dict(found.evidence))
    return found


def test_the_capture_as_it_is_says_nothing_of_the_kernel_log() -> None:
    raw = parse_facts(CAPTURE.read_text())
    judged(raw, raw, Verdict.UNKNOWN, "kernel log cannot be read")


@pytest.mark.parametrize(
    ("before", "after", "verdict", "words"),
    [
        (seen(), seen(), Verdict.PASS, "no new Xid on 2 GPUs; memory errors counted on 2"),
        (seen(OLD), seen(OLD), Verdict.PASS, "no new Xid"),
        (seen(f"{OLD}\nx"), seen("x"), Verdict.PASS, "no new Xid"),  # the ring went round
        (seen(OLD), seen(f"{OLD}\n{NEW}"), Verdict.FAIL, "Xid 79 on 0000:1b:00"),
        (seen(), seen(OLD), Verdict.FAIL, "Xid 31"),  # a program's fault: that of the new release
        (seen(None, ""), seen(None, NEW), Verdict.FAIL, "Xid 79"),
        (seen("", None), seen("", NEW), Verdict.PASS, "no new Xid"),  # not the same log
        (seen("", None), seen(None, ""), Verdict.UNKNOWN, "kernel log"),
        (seen(None, None), seen(None, None), Verdict.UNKNOWN, "kernel log"),
        (seen(None, "", HINT), seen(None, "", HINT), Verdict.UNKNOWN, "kernel log"),
        (seen(gpu1="2"), seen(gpu1="2"), Verdict.PASS, "none new"),
        (seen(gpu1="2"), seen(gpu1="5"), Verdict.FAIL, "3 new uncorrectable memory errors on GPU-"),
        (seen(gpu1=None), seen(gpu1=None), Verdict.PASS, "memory errors counted on 1"),
        (seen(gpu1="0"), seen(gpu1=None), Verdict.UNKNOWN, "were 0 and are None"),
        (seen(gpu1="0"), seen(gpu1="[Unknown Error]"), Verdict.UNKNOWN, "[Unknown Error]"),
        (seen(gpu1="[Unknown Error]"), seen(gpu1="[Unknown Error]"), Verdict.UNKNOWN, "are ["),
        (seen(), without_one(), Verdict.FAIL, "is gone"),
        (seen(), blind(), Verdict.UNKNOWN, "does not list the GPUs"),
        (seen(None, None), seen(None, None, gpu0="1"), Verdict.FAIL, "1 new uncorrectable"),
    ],
)  # fmt: skip
def test_new_errors(before: Facts, after: Facts, verdict: Verdict, words: str) -> None:
    judged(before, after, verdict, words)


def test_one_event_in_both_logs_is_one() -> None:
    same = "2026-11-30T01:00:00+00:00 box kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen"
    found = judge_errors(seen("", ""), seen(NEW, same))
    assert found.evidence["xids"] == [(79, "0000:1b:00")]


def test_a_journal_that_hides_the_system_is_no_kernel_log() -> None:
    assert Chain(seen(None, "", HINT)).kernel_log is None
    assert Chain(seen(None, "")).kernel_log == ""
