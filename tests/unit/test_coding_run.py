"""`ddops bench coding` above a server in memory: what is asked, stored and concluded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddops.bench import coding_run
from ddops.bench.answer import Load, Look, Sample
from ddops.bench.coding import GRADES
from ddops.bench.coding_run import MAX_TOKENS, CodingBench, Outcome
from ddops.bench.coding_tasks import Task, TaskSet
from ddops.bench.plan import LoadPlan, Where
from ddops.bench.target import Proof, Target
from ddops.command import Redactor
from ddops.errors import RefusedError
from ddops.inventory.model import Profile
from ddops.ledger import Device, Ledger, Scope, Status
from ddops.model import Verdict, digest
from tests.unit.bench.inventory import HOST, SERVICE, profile

N = 40
TASKS = TaskSet(
    "own",
    "0" * 64,
    tuple(
        Task(
            f"T/{n}",
            f'def f_{n}():\n    """ Gives {n}. """\n',
            f"f_{n}",
            f"def check(f):\n    assert f() == {n}\n",
            f"    return {n}\n",
        )
        for n in range(N)
    ),
)


def verdicts_by_text(job: Mapping[str, object]) -> Mapping[str, object]:
    """A grader that reads instead of running: what is under test here is around it."""
    from ddops.bench.coding_probe import HOSTILE

    hostile = {f"hostile: {name}": verdict for name, _, verdict, _ in HOSTILE}
    rows = []
    for case in cast("list[dict[str, str]]", job["cases"]):
        right = f"return {case['id'].partition('/')[2]}\n" in case["solution"] + "\n"
        verdict = hostile.get(case["id"], "passed" if right or case["id"] == "stubs" else "wrong")
        rows.append(
            {"id": case["id"], "verdict": verdict, "detail": "", "wall_ms": 10.0, "ms": 1.0}
        )
    return {"schema": GRADES, "python": "3.11.7", "grades": rows}


def right(task: Task) -> str | None:
    return f"```python\n{task.prompt}{task.gold}```"


def wrong_from(n: int) -> Callable[[Task], str | None]:
    return lambda t: right(t) if int(t.id[2:]) < n else f"def {t.entry}():\n    return -1"


@dataclass
class Server:
    """Stands for a target: answers plans from a function."""

    reply: Callable[[Task], str | None] = right
    version: str = "v"
    algorithm: str = "none"
    plans: list[LoadPlan] = field(default_factory=list)
    changed: bool = False

    service, host, model = SERVICE, HOST, "m"

    @property
    def profile(self) -> Profile:
        return profile("p", algorithm=self.algorithm)

    def where(self, version: str | None) -> Where:
        return Where(host="127.0.0.1", port=1, model="m", weight_version=version)

    def run(self, plan: LoadPlan) -> Load:
        self.plans.append(plan)
        known = TASKS.by_id()
        samples = []
        for n, request in enumerate(plan.requests):
            text = self.reply(known[request.id])
            sample = Sample(
                n=n, prompt=request.id, slot=0, versions=(self.version,), text=text or "",
                outcome="ok" if text is not None else "reset", finish="stop", sent=1, end=2,
            )  # fmt: skip
            samples.append(sample)
        look = Look(weight_version=self.version, info={"device": "cuda"})
        after = replace(look, weight_version="another") if self.changed else look
        return Load(samples=tuple(samples), before=look, after=after, t0_unix_ns=10**18, end=10)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", redactor=Redactor()) as opened:
        opened._conn.execute("PRAGMA synchronous = OFF")
        opened.add_host("h", {})
        yield opened


@pytest.fixture
def ask(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run the gate on a server, each time on a start of its own."""
    count = iter(range(1000))

    def go(server: Server, route: str = "generate", known: bool = True) -> Outcome:
        n = next(count)
        release = digest(server.algorithm)
        nonce, op = f"n{n}", f"op{n}"
        at = datetime(2026, 1, 1, 0, n, tzinfo=UTC)
        if known:
            ledger.add_release(release, service="tiny", spec={}, at=at)
            ledger.add_deployment(op, service="tiny", release=release, host="h", by="ann", at=at)
            ledger.add_launch(nonce, deployment=op, host="h", release=release, started=at)
        seen = cast("Any", SimpleNamespace(server_info=None))
        proof = Proof("v", nonce, release, ledger.launch(nonce), seen)
        monkeypatch.setattr(coding_run, "prove", lambda *_: proof)
        target = cast("Target", server)
        return CodingBench(target, ledger, TASKS, route, verdicts_by_text).run()

    return go


def test_an_autoregressive_start_is_the_measure(
    ask: Callable[..., Outcome], ledger: Ledger
) -> None:
    done = ask(Server())
    assert done.gate.verdict is Verdict.PASS
    run = ledger.run(done.run)
    assert (run.valid, run.status, run.device_class) == (True, Status.VALID, Device.GPU)
    assert run.metrics["pass_rate"] == 1.0
    assert [s.verdict for s in ledger.samples(run)] == ["passed"] * N
    assert [g.name for g in ledger.gates(str(run.launch))] == ["coding"]
    assert ledger.verify() == []


def test_a_candidate_is_compared_with_it_task_by_task(
    ask: Callable[..., Outcome], ledger: Ledger
) -> None:
    base = ask(Server())
    same = ask(Server(algorithm="DDTREE"))
    assert (same.gate.verdict, same.reference) == (Verdict.UNKNOWN, base.run)
    assert "not excluded" in same.gate.message, "40 tasks are too few to exclude 3 points"
    worse = ask(Server(wrong_from(20), algorithm="DDTREE"))
    assert worse.gate.verdict is Verdict.FAIL and "20 tasks lost" in worse.gate.message
    assert worse.gate.evidence["reference_run"] == base.run
    run = ledger.run(worse.run)
    assert not run.valid and run.status is Status.INVALID and "FAIL" in run.reason


def test_a_withdrawn_reference_is_none(ask: Callable[..., Outcome], ledger: Ledger) -> None:
    base = ask(Server())
    ledger.retract(Scope.RUN, base.run, reason="wrong model", by="ann")
    done = ask(Server(algorithm="DDTREE"))
    assert done.gate.verdict is Verdict.UNKNOWN and done.reference is None
    assert "no autoregressive start" in done.gate.message


def test_another_way_of_asking_is_no_reference(ask: Callable[..., Outcome]) -> None:
    ask(Server(), "chat")
    assert ask(Server(algorithm="DDTREE"), "generate").reference is None


@pytest.mark.parametrize(
    "server",
    [
        Server(lambda t: None if t.id == "T/7" else right(t)),
        Server(version="of another start"),
        Server(changed=True),
    ],
    ids=["lost", "another server", "changed on the way"],
)
def test_what_is_not_proven_to_be_its_answer_is_none(
    ask: Callable[..., Outcome], ledger: Ledger, server: Server
) -> None:
    """A lost reply, or one of a stranger, is no wrong answer: the gate is inconclusive."""
    done = ask(server)
    assert done.gate.verdict is Verdict.UNKNOWN and "no_answer" in done.gate.message
    assert not ledger.run(done.run).valid
    lost = [s for s in ledger.samples(ledger.run(done.run)) if s.verdict == "no_answer"]
    assert lost and "wrong" not in done.result.counts


def test_a_weak_reference_has_no_power(ask: Callable[..., Outcome], ledger: Ledger) -> None:
    done = ask(Server(wrong_from(3)))
    assert done.gate.verdict is Verdict.UNKNOWN and "no_power" in done.gate.message
    assert ledger.query("SELECT count(*) AS n FROM valid_run") == [{"n": 0}]


def test_an_unknown_start_is_stored_unbound(ask: Callable[..., Outcome], ledger: Ledger) -> None:
    done = ask(Server(), known=False)
    run = ledger.run(done.run)
    assert (run.status, run.launch, run.valid) == (Status.UNBOUND, None, False)


@pytest.mark.parametrize("route", coding_run.ROUTES)
def test_what_is_asked(ask: Callable[..., Outcome], route: str) -> None:
    server = Server()
    ask(server, route)
    [plan] = server.plans
    assert plan.route == route and [r.id for r in plan.requests] == [t.id for t in TASKS.tasks]
    body = json.dumps({**plan.common, **plan.requests[0].body})
    assert str(MAX_TOKENS) in body and "Gives 0." in body and '"temperature": 0' in body
    assert "stop" not in json.dumps(plan.common), "no stop sequences: they cut good answers"
    assert plan.keep == {"text": True}


def test_a_refused_plan_stores_nothing(ask: Callable[..., Outcome], ledger: Ledger) -> None:
    class Busy(Server):
        def run(self, plan: LoadPlan) -> Load:
            return Load(refused="another server answers")

    with pytest.raises(RefusedError, match="not asked"):
        ask(Busy())
    assert ledger.query("SELECT count(*) AS n FROM run") == [{"n": 0}]
