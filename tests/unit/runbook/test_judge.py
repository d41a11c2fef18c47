"""Conditions against what was seen: three answers, and unlike types are never compared."""

from __future__ import annotations

import pytest

from ddops.compat import Finding
from ddops.model import Verdict
from ddops.runbook.conditions import CheckIs, Fact, FileIs, LedgerHas, StateIs
from ddops.runbook.judge import (
    Judged,
    Truth,
    judge_check,
    judge_fact,
    judge_file,
    judge_ledger,
    judge_state,
    together,
)

FACTS: dict[str, object] = {
    "os": {"arch": "x86_64", "kernel": None},
    "gpus": [{"memory": 96, "name": "RTX"}, {"memory": 96, "name": "RTX"}],
    "disk": {"writable": True, "free": 7.5},
}


@pytest.mark.parametrize(
    ("asked", "truth"),
    [
        ({"fact": "os.arch", "equals": "x86_64"}, Truth.HOLDS),
        ({"fact": "os.arch", "equals": "aarch64"}, Truth.FAILS),
        ({"fact": "os.arch", "one_of": ("aarch64", "x86_64")}, Truth.HOLDS),
        ({"fact": "os.arch", "contains": "86"}, Truth.HOLDS),
        ({"fact": "gpus.#", "equals": 2}, Truth.HOLDS),
        ({"fact": "gpus.1.memory", "at_least": 96}, Truth.HOLDS),
        ({"fact": "gpus.1.memory", "at_most": 95.5}, Truth.FAILS),
        ({"fact": "gpus.7.memory", "at_least": 1}, Truth.UNKNOWN),
        ({"fact": "disk.writable", "equals": True}, Truth.HOLDS),
        # 1 is no True, and "96" is no number: nobody compares them.
        ({"fact": "disk.writable", "equals": 1}, Truth.UNKNOWN),
        ({"fact": "gpus.0.memory", "equals": "96"}, Truth.UNKNOWN),
        ({"fact": "os.arch", "at_least": 3}, Truth.UNKNOWN),
        ({"fact": "os.kernel", "equals": "6"}, Truth.UNKNOWN),
        ({"fact": "os.glibc", "equals": "2"}, Truth.UNKNOWN),
        ({"fact": "os.glibc", "exists": False}, Truth.HOLDS),
        ({"fact": "os.kernel", "exists": True}, Truth.FAILS),
    ],
)
def test_facts(asked: dict[str, object], truth: Truth) -> None:
    found = judge_fact(Fact(host="b300", **asked), FACTS)  # type: ignore[arg-type]
    assert found.truth is truth, found.line
    assert found.line.startswith("b300: fact ")


def finding(check: str, verdict: Verdict, severity: str = "B") -> Finding:
    return Finding(check, check, verdict, "seen", "mend", severity, "host")


@pytest.mark.parametrize(
    ("check", "verdict", "truth"),
    [
        ("A", ("PASS",), Truth.HOLDS),
        ("B", ("PASS",), Truth.FAILS),
        ("B", ("PASS", "FAIL"), Truth.HOLDS),
        ("C", ("PASS",), Truth.UNKNOWN),
        ("C", ("UNKNOWN",), Truth.HOLDS),
        ("D", ("PASS",), Truth.UNKNOWN),
        ("all", ("PASS",), Truth.FAILS),
    ],
)
def test_checks(check: str, verdict: tuple[str, ...], truth: Truth) -> None:
    findings = [finding("A", Verdict.PASS), finding("B", Verdict.FAIL),
                finding("C", Verdict.UNKNOWN, "W")]  # fmt: skip
    asked = CheckIs(check=check, host="h", verdict=verdict)  # type: ignore[arg-type]
    assert judge_check(asked, findings).truth is truth


def test_all_checks_hold_where_nothing_refuses() -> None:
    found = judge_check(CheckIs(check="all", host="h"), [finding("A", Verdict.PASS)])
    assert found.truth is Truth.HOLDS


@pytest.mark.parametrize(
    ("bounds", "count", "truth"),
    [
        ({}, 1, Truth.HOLDS),
        ({}, 0, Truth.FAILS),
        ({"at_least": 0}, 0, Truth.HOLDS),
        ({"at_most": 2}, 3, Truth.FAILS),
        ({"at_most": 2}, 0, Truth.HOLDS),
    ],
)
def test_counts(bounds: dict[str, int], count: int, truth: Truth) -> None:
    asked = LedgerHas(ledger="drill", host="h", **bounds)  # type: ignore[arg-type]
    assert judge_ledger(asked, count).truth is truth


@pytest.mark.parametrize(
    ("asked", "data", "truth"),
    [
        ({}, b"x", Truth.HOLDS),
        ({}, None, Truth.FAILS),
        ({"exists": False}, None, Truth.HOLDS),
        ({"exists": False}, b"", Truth.FAILS),
        ({"contains": "ell"}, b"hello", Truth.HOLDS),
        ({"contains": "\xff"}, b"\xff\0", Truth.FAILS),
        ({"sha256": "0" * 64}, b"x", Truth.FAILS),
    ],
)
def test_files(asked: dict[str, object], data: bytes | None, truth: Truth) -> None:
    found = judge_file(FileIs(file="f", **asked), data)  # type: ignore[arg-type]
    assert found.truth is truth


@pytest.mark.parametrize(("want", "is_so"), [(True, True), (False, False)])
def test_states(want: bool, is_so: bool) -> None:
    found = judge_state(StateIs(state="serving", host="h", holds=want), is_so, "seen")
    assert found.truth is Truth.HOLDS
    assert judge_state(StateIs(state="serving", host="h"), not want, "s").truth is not (
        found.truth if want else Truth.FAILS
    )


def test_one_that_fails_decides_and_unknown_comes_next() -> None:
    holds, fails, unknown = (Judged("a", t, "s") for t in Truth)
    assert together([]) is Truth.HOLDS
    assert together([holds, unknown, fails]) is Truth.FAILS
    assert together([holds, unknown]) is Truth.UNKNOWN
    assert together([holds]) is Truth.HOLDS
