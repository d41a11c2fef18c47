"""Public faults and healthy oddities: each must get its right verdict, whatever its wording.

To see it fail: let `covers` in ddops/compat/coverage.py take an `a` target for a family target.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ddops.compat import Finding, Launch, Subject, checks, judge_all
from ddops.model import Verdict
from tests.unit.compat import hosts

FOLDER = Path(__file__).parents[2] / "fixtures" / "cases"
#: Every public case we know of; families and healthy oddities come on top.
PUBLIC = [
    "A01",
    "A02",
    "A04",
    "A05",
    "A07",
    "A08",
    "A09",
    "A11",
    "A13",
    "A14",
    "A15",
    "A16",
    "A17",
    "B01",
    "B02",
    "B03",
    "B05",
    "B06",
    "B07",
    "D01",
    "D02",
    "D04",
    "D05",
    "D06",
    "D07",
    "D08",
    "F01",
    "F02",
    "F03",
    "F04",
    "F06",
    "F08",
    "F09",
    "F10",
    "F11",
    "F12",
    "P01",
    "P02",
    "P04",
    "P06",
    "S01",
    "S02",
    "S03",
    "S05",
    "S06",
    "S07",
    "S09",
    "S10",
    "S11",
    "S13",
    "S14",
    "W01",
    "W03",
]


def cases() -> list[dict[str, Any]]:
    return [
        case
        for path in sorted(FOLDER.glob("*.toml"))
        for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]
    ]


def judged(case: dict[str, Any]) -> dict[str, Finding]:
    raw = hosts.changed(hosts.host(case["base"]), case.get("change", {}))
    launch = None
    if "launch" in case:
        launch = Launch(
            ("python", "-m", "sglang.launch_server", *case["launch"].split()),
            {},
            case.get("engine", "sglang-0.5.23"),
            case["model"],
            tuple(case.get("plugins", ())),
        )
    subject = Subject(
        hosts.facts(raw), hosts.KINDS[case["base"]]["host_class"], "sglang", launch=launch
    )
    return {f.check: f for f in judge_all(subject)}


@pytest.mark.parametrize("case", cases(), ids=lambda c: f"{c['id']}-{c['base']}")
def test_the_right_verdict(case: dict[str, Any]) -> None:
    findings = judged(case)
    got = {k: (findings[k].verdict.value, findings[k].seen) for k in case["expect"]}
    assert {k: v[0] for k, v in got.items()} == case["expect"], got
    if case.get("clean"):
        assert not [f for f in findings.values() if f.refuses]
    for finding in findings.values():
        assert finding.seen
        assert (finding.verdict is Verdict.FAIL) <= bool(finding.mend)


def test_every_public_case_is_here() -> None:
    have = Counter(c["id"] for c in cases())
    assert not [i for i in PUBLIC if not have[i]]
    assert len(PUBLIC) == 53
    assert sum(c.get("clean", False) for c in cases()) >= 20, "healthy oddities weigh as much"


@pytest.mark.parametrize("kind", [k for k in hosts.KINDS if k not in ("cpu", "gb10")])
def test_a_healthy_host_is_fit(kind: str) -> None:
    findings = judged({"base": kind})
    bad = {k: f.seen for k, f in findings.items() if f.refuses or f.verdict is Verdict.WARN}
    assert not bad


def test_every_check_can_fail_or_warn() -> None:
    """No check that cannot fail: each is seen answering something else than PASS somewhere."""
    seen: dict[str, set[str]] = {}
    for case in cases():
        for check, finding in judged(case).items():
            seen.setdefault(check, set()).add(finding.verdict.value)
    never = [
        c.id
        for c in checks()
        if c.severity in ("B", "E") and "FAIL" not in seen[c.id] and c.id not in ELSEWHERE
    ]
    assert not never


#: Seen failing in test_checks.py.
ELSEWHERE = ("HOST-PY", "HOST-DISK", "GPU-CLASS", "GPU-PINS")
