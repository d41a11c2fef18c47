"""The coding gate: replies to verdicts, in the sandbox, after the gold solutions passed there.

A server that answers wrong more often than its autoregressive self is corrupt, whatever its speed.
The gate can also say that it does not know: with answers missing, or without power.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from ddops import hostside
from ddops.bench import coding_probe
from ddops.bench.coding_extract import Rule, extract
from ddops.bench.coding_tasks import Task, TaskSet
from ddops.errors import DdopsError, RefusedError
from ddops.ledger import NewSample

JOB, GRADES = "ddops.coding-job/1", "ddops.coding-grades/1"
MEMORY_MB = 1024
#: A task's limit: at least 2 s, and 20 times what its gold solution took on this machine.
LEAST_S, TIMES = 2.0, 20.0
GOLD_S = 20.0
#: Verdicts that say something about the model; the others about us.
MODELS = (
    *("passed", "wrong", "runtime_error", "syntax_error", "no_code", "timeout"),
    "sandbox_violation",
)
OURS = ("infra_error", "no_answer")

Job = Mapping[str, object]
Grade = Mapping[str, object]
Runner = Callable[[Job], Mapping[str, object]]
#: Limits by task in seconds, and the Python that grades.
Preflight = tuple[Mapping[str, float], str]


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's reply. None is "no answer": the transport failed, the model said nothing."""

    task: str
    text: str | None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Graded:
    """One task's outcome. `rule` says how the program was found in the reply."""

    task: str
    verdict: str
    detail: str
    rule: Rule
    truncated: bool


@dataclass(frozen=True, slots=True)
class CodingResult:
    """All tasks of a run. `limits_s` came from the gold solutions; `python` graded."""

    tasks: str
    sha256: str
    graded: tuple[Graded, ...]
    python: str
    limits_s: Mapping[str, float] = field(repr=False)

    @property
    def counts(self) -> Mapping[str, int]:
        return Counter(g.verdict for g in self.graded)

    @property
    def rules(self) -> Mapping[str, int]:
        return Counter(g.rule.value for g in self.graded)

    @property
    def solved(self) -> Mapping[str, bool]:
        """By task, of those that say something about the model."""
        return {g.task: g.verdict == "passed" for g in self.graded if g.verdict in MODELS}

    @property
    def conclusive(self) -> bool:
        """Whether every task was answered and graded."""
        return bool(self.graded) and all(g.verdict in MODELS for g in self.graded)

    @property
    def pass_rate(self) -> float | None:
        return sum(self.solved.values()) / len(self.solved) if self.solved else None


def grade(
    tasks: TaskSet,
    answers: Sequence[Answer],
    run: Runner | None = None,
    ready: Preflight | None = None,
) -> CodingResult:
    """Grade replies; those that are missing are "no answer". Runs untrusted code, sandboxed.

    The preflight comes first, on this machine: every gold solution passes, every stub fails,
    every hostile program is contained. Raises RefusedError when it does not, or where namespaces
    are missing. `ready` is its answer, when it was done just before.
    """
    run = run or local
    limits, python = ready or preflight(tasks, run)
    known, given = tasks.by_id(), {a.task: a for a in answers}
    strange = sorted(set(given) - set(known))
    if strange:
        raise DdopsError("answers to unknown tasks", why=", ".join(strange[:5]))
    found = {a.task: extract(a.text, known[a.task]) for a in given.values() if a.text is not None}
    cases = [
        _case(known[t], t, x.program, limits[t])
        for t, x in found.items()
        if x.rule is not Rule.NONE
    ]
    grades = {str(g["id"]): g for g in _run(run, cases)}
    graded = []
    for task in tasks.tasks:
        answer, x = given.get(task.id), found.get(task.id)
        cut = answer is not None and answer.truncated
        if x is None:
            graded.append(Graded(task.id, "no_answer", "", Rule.NONE, cut))
        elif x.rule is Rule.NONE:
            graded.append(Graded(task.id, "no_code", "no program in the reply", x.rule, cut))
        else:
            g = grades[task.id]
            graded.append(Graded(task.id, str(g["verdict"]), str(g["detail"]), x.rule, cut))
    return CodingResult(tasks.name, tasks.sha256, tuple(graded), python, limits)


def preflight(tasks: TaskSet, run: Runner) -> Preflight:
    """Show that this machine can grade, and how long it takes. Raises RefusedError."""
    gold = [_case(t, t.id, t.prompt + t.gold, GOLD_S) for t in tasks.tasks]
    probes = coding_probe.cases(tasks)
    answer = run(_job([*gold, *probes]))
    refused = answer.get("refused")
    if refused:
        raise RefusedError(
            "model code cannot be graded on this machine",
            why=f"no sandbox: {refused}",
            next="grade where user namespaces are allowed: sysctl user.max_user_namespaces",
        )
    grades = {str(g["id"]): g for g in _grades(answer)}
    wrong = [
        f"gold {t.id}: {grades[t.id]['verdict']} ({grades[t.id]['detail']})"
        for t in tasks.tasks
        if grades[t.id]["verdict"] != "passed"
    ]
    wrong += coding_probe.judge(grades)
    if wrong:
        raise RefusedError(
            f"the coding preflight failed: {wrong[0]}",
            why=f"{len(wrong)} of {len(gold) + len(probes)}; " + "; ".join(wrong[1:4]),
            next="nothing was graded: mend the grader's Python or sandbox first",
        )
    walls = {t.id: float(str(grades[t.id]["wall_ms"])) / 1000 for t in tasks.tasks}
    limits = {t: max(LEAST_S, TIMES * wall) for t, wall in walls.items()}
    return limits, str(answer.get("python", ""))


def local(job: Job) -> Mapping[str, object]:
    """Run the grader here, in a process of its own. Raises DdopsError when it gives no answer."""
    script = Path(hostside.__file__).with_name("coding.py")
    cases = cast("Sequence[Mapping[str, float]]", job["cases"])
    # Each timeout is tried twice, the second time alone; a sandbox may take a while to start.
    deadline = 120 + 2 * sum(c["limit_s"] + 5 for c in cases)
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(script)],
            input=json.dumps(job).encode(),
            capture_output=True,
            timeout=deadline,
            check=False,
            env={"PATH": os.defpath},
        )
    except subprocess.TimeoutExpired as e:
        raise DdopsError("the grader did not end", why=f"it had {deadline:.0f} s") from e
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if done.returncode != 0 or not isinstance(answer, dict) or answer.get("schema") != GRADES:
        last = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise DdopsError("the grader failed", why=last or f"it ended with {done.returncode}")
    return answer


def to_samples(result: CodingResult) -> list[NewSample]:
    """Rows for the ledger, to be stored with the run that asked for the answers."""
    return [
        NewSample(
            n=n,
            prompt=g.task,
            outcome="no_answer" if g.verdict == "no_answer" else "ok",
            verdict=g.verdict,
            detail={"rule": g.rule.value, "why": g.detail, "truncated": g.truncated},
        )
        for n, g in enumerate(result.graded)
    ]


def _case(task: Task, ident: str, program: str, limit_s: float) -> dict[str, object]:
    return {
        "id": ident,
        "solution": program,
        "test": task.test,
        "entry": task.entry,
        "limit_s": limit_s,
    }


def _job(cases: Sequence[Mapping[str, object]]) -> Job:
    return {
        "schema": JOB,
        "harness": hostside.source("coding_case"),
        "jobs": max(1, len(os.sched_getaffinity(0))),
        "memory_mb": MEMORY_MB,
        "cases": list(cases),
    }


def _run(run: Runner, cases: Sequence[Mapping[str, object]]) -> Sequence[Grade]:
    return _grades(run(_job(cases))) if cases else []


def _grades(answer: Mapping[str, object]) -> Sequence[Grade]:
    found = answer.get("grades")
    if not isinstance(found, list):
        raise DdopsError("the grader gave no grades", why=str(answer.get("refused", "")))
    return cast("Sequence[Grade]", found)
