"""All checks in their order: pure functions of a subject, rows of `data/checks.toml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import cast

from ddops.compat import tables
from ddops.compat.model import ROUTER_ALONE, Finding, Look, Outcome, Subject
from ddops.compat.router_host import ROUTER_RULES
from ddops.compat.rules import driver, fabric, gpu, host, launch, p2p, pcie, python, toolchain
from ddops.compat.waive import idle
from ddops.model import Verdict

Rule = Callable[[Look], Outcome]
_MODULES = (host, driver, fabric, gpu, pcie, toolchain, python, launch, p2p)


@dataclass(frozen=True, slots=True)
class Check:
    """A data row, and why it is there: the first lines of its function's docstring."""

    id: str
    group: str
    severity: str
    tier: int
    required: bool
    any_class: bool
    classes: tuple[str, ...]
    needs: tuple[str, ...]
    title: str
    probe: str
    rule: str
    mend: str
    sources: tuple[str, ...]
    why: str


@cache
def checks() -> tuple[Check, ...]:
    """Every check of the chain, in the order of judgement."""
    return tuple(_check(row, _rule(str(row["id"]))) for row in tables.table("checks").rows)


@cache
def beside() -> tuple[Check, ...]:
    """Rows that no chain holds: of a service's router, which may be there many times, and of the
    judgement itself."""
    rules: dict[str, Callable[..., object]] = {
        **ROUTER_RULES,
        "SIMULATED": simulated,
        "WAIVER": idle,
    }
    return tuple(_check(r, rules[str(r["id"])]) for r in tables.table("beside").rows)


def simulated() -> Finding:
    """A recorded host tries the machinery. What is found there proves nothing of a GPU."""
    words = "simulated: a recorded host, no hardware"
    return Finding("SIMULATED", "Facts", Verdict.INFO, words, "", "I", "host")


@cache
def _rule(id: str) -> Rule:
    name = id.lower().replace("-", "_")
    found = [getattr(m, name) for m in _MODULES if hasattr(m, name)]
    if len(found) != 1:
        raise LookupError(f"check {id}: {len(found)} functions called {name} in the rules")
    return cast("Rule", found[0])


def _check(row: Mapping[str, object], rule: Callable[..., object]) -> Check:
    many = {k: tuple(cast("list[str]", row.get(k, ()))) for k in ("classes", "needs", "sources")}
    return Check(
        str(row["id"]), str(row["group"]), str(row["severity"]), cast("int", row["tier"]),
        row.get("required") is True, row.get("any_class") is True, many["classes"], many["needs"],
        str(row["title"]), str(row["probe"]), str(row["rule"]), str(row["mend"]), many["sources"],
        " ".join((rule.__doc__ or str(row["title"])).split()),
    )  # fmt: skip


def judge_all(subject: Subject) -> list[Finding]:
    """A finding of every check. Pure. A failed need makes a SKIP that names it."""
    look, out, failed = Look(subject), list[Finding](), dict[str, str]()
    for check in checks():
        outcome = _outcome(check, look, failed)
        if outcome.verdict is Verdict.FAIL:
            failed[check.id] = check.id
        elif outcome.verdict is Verdict.SKIP and check.severity == "B":
            root = next((failed[n] for n in check.needs if n in failed), None)
            if root:
                failed[check.id] = root
        mend = outcome.mend or (check.mend if outcome.verdict in _MENDED else "")
        out.append(
            Finding(check.id, check.title, outcome.verdict, outcome.seen, mend, check.severity,
                    check.group, check.required)
        )  # fmt: skip
    return out


_MENDED = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)


def _outcome(check: Check, look: Look, failed: Mapping[str, str]) -> Outcome:
    host_class = look.subject.host_class
    if host_class == "cpu" and not check.any_class:
        alone = look.subject.engine_env == ROUTER_ALONE
        return Outcome(Verdict.SKIP, "a router's host" if alone else "a CPU host")
    if check.classes and host_class not in check.classes:
        return Outcome(Verdict.SKIP, f"not for a host of class {host_class}")
    root = next((failed[n] for n in check.needs if n in failed), None)
    if root:
        return Outcome(Verdict.SKIP, f"blocked by {root}")
    return _rule(check.id)(look)
