"""A host that a router runs on: what is judged of it, and that no GPU chain is pretended.

To see it fail: let `_port` in ddops/compat/router_host.py pass a port that a stranger holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddops.cli.router_checks import router_findings
from ddops.compat import beside
from ddops.compat.host import judge_host, refusal_of
from ddops.compat.router_host import RouterOnCheck, about, judge_router_host
from ddops.errors import DeadlineExceeded
from ddops.gates import Observation, parse_observation
from ddops.inventory.merge import Inventory
from ddops.inventory.router import router_alone
from ddops.model import Result, State, Verdict
from ddops.probe import parse_facts
from ddops.transport import LocalTransport
from tests.guards.source import ROOT
from tests.unit.test_router import host, service

CAPTURE = (ROOT / "tests/fixtures/captures/h200-1.json").read_text()


def seen(tmp_path: Path, port: int = 1, **changes: Any) -> Observation:
    """What the host's own script says of a folder where nothing was ever started."""
    script = ROOT / "ddops" / "hostside" / "observe.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(port)],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    one = parse_observation(done.stdout)
    port_changes = {k: changes.pop(k) for k in ("listening", "owned", "owner") if k in changes}
    return replace(one, port=replace(one.port, **port_changes), **changes)


def found(one: RouterOnCheck) -> dict[str, Any]:
    return {f.check: f for f in judge_router_host(one)}


def test_what_is_found_and_what_is_written_of_it_are_the_same_rows() -> None:
    one = RouterOnCheck("k", "127.0.0.1", 1, why="nobody asked")
    severities = {f.check: f.severity for f in (about(["k"], alone=True), *judge_router_host(one))}
    assert severities == {c.id: c.severity for c in beside() if c.group == "router"}


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, Verdict.PASS, "127.0.0.1:30080 is free; the router does not run"),
        ({"listening": True, "owned": True}, Verdict.PASS, "the router itself listens"),
        ({"listening": True, "owner": "pid 7 nginx"}, Verdict.FAIL, "held by pid 7 nginx"),
        ({"listening": True, "owner": None}, Verdict.FAIL, "a process that is not ours"),
        ({"engine": State.UP}, Verdict.WARN, "the router runs, and nothing listens"),
        ({"engine": State.UNKNOWN, "engine_why": "no /proc"}, Verdict.UNKNOWN, "no /proc"),
    ],
)
def test_its_port(tmp_path: Path, changes: Any, verdict: Verdict, words: str) -> None:
    look = seen(tmp_path, **{"engine": State.DOWN, **changes})
    one = found(RouterOnCheck("k", "127.0.0.1", 30080, look, 0, "0.3.2"))["ROUTER-PORT"]
    assert one.verdict is verdict and words in one.seen
    assert one.refuses is (verdict is Verdict.FAIL)


@pytest.mark.parametrize(
    ("rc", "said", "verdict", "words"),
    [
        (0, "0.3.2\n", Verdict.PASS, "sglang-router 0.3.2 can be imported"),
        (127, "not found", Verdict.INFO, "not built yet"),
        (1, "x" * 999 + "ImportError: no rust", Verdict.FAIL, "ImportError: no rust"),
        (None, "", Verdict.UNKNOWN, "did not answer in time"),
    ],
)
def test_its_environment(rc: int | None, said: str, verdict: Verdict, words: str) -> None:
    one = found(RouterOnCheck("k", "127.0.0.1", 1, None, rc, said))["ROUTER-ENV"]
    assert one.verdict is verdict and words in one.seen
    assert len(one.seen) < 300


def test_what_was_not_looked_at_is_unknown() -> None:
    both = found(RouterOnCheck("k", "::", 1, why="kept facts hold nothing of it"))
    assert {(f.verdict, f.seen) for f in both.values()} == {
        (Verdict.UNKNOWN, "kept facts hold nothing of it")
    }


def test_a_host_for_a_router_alone_has_no_chain_and_says_so() -> None:
    gpu = host("a", host_class="nvlink")
    facts, day = parse_facts(CAPTURE), date(2027, 1, 1)
    chain = {f.check: f for f in judge_host(facts, gpu, None, (), day)}
    alone = {f.check: f for f in judge_host(facts, gpu, None, (), day, router=True)}
    assert chain["DRV-03"].verdict is Verdict.PASS
    assert (alone["DRV-03"].verdict, alone["DRV-03"].seen) == (Verdict.SKIP, "a router's host")
    assert {n for n, f in alone.items() if f.verdict is Verdict.PASS} == {
        "HOST-PY", "HOST-DISK", "HOST-01",
    }  # fmt: skip
    assert refusal_of(gpu, list(alone.values())) is None
    assert "no GPU chain to judge" in about(["k"], alone=True).seen
    assert "beside an engine" in about(["k"], alone=False).seen


def test_a_router_wants_less_space_and_an_older_c_library_than_an_engine() -> None:
    raw = json.loads(CAPTURE)
    raw["disk"]["free_bytes"], raw["os"]["glibc"] = 1 << 30, "2.28"
    facts, day = parse_facts(json.dumps(raw)), date(2027, 1, 1)
    for router, bad in ((True, set()), (False, {"HOST-DISK", "HOST-01"})):
        findings = judge_host(facts, host("a"), None, (), day, router=router)
        assert {f.check for f in findings if f.verdict is Verdict.FAIL} == bad


def app(services: dict[str, Any], transport: Any) -> Any:
    def reach(_host: Any, work: Any) -> Any:
        with closing(transport) as one:
            return work(one)

    return SimpleNamespace(
        inventory=Inventory(Path(), services=services, hosts={}), reach=reach,
        lookup=lambda name: ROOT / name,
    )  # fmt: skip


class Hanging(LocalTransport):
    """Answers, but for the environment's own Python."""

    def run(self, command: Any, **more: Any) -> Result:
        if "sglang_router" in str(command.argv):
            raise DeadlineExceeded("here: no answer in time")
        return super().run(command, **more)


def test_a_host_is_asked_though_nothing_is_provisioned_there(tmp_path: Path) -> None:
    """Really: this machine, with an engine folder that is empty."""
    here = host("a", engine_dir=str(tmp_path), python=sys.executable)
    asked = app({"k": service()}, LocalTransport("here"))
    about_it, env, port = router_findings(asked, here, kept=False)
    assert about_it.verdict is Verdict.INFO
    assert (env.verdict, env.seen) == (Verdict.INFO, "not built yet")
    assert port.verdict in (Verdict.PASS, Verdict.FAIL)  # as this machine's port is
    assert port.seen.startswith("127.0.0.1:30080 is ")
    late = router_findings(app({"k": service()}, Hanging("here")), here, kept=False)[1]
    assert (late.verdict, late.seen) == (Verdict.UNKNOWN, "its Python did not answer in time")
    kept = router_findings(asked, here, kept=True)
    assert [f.verdict for f in kept[1:]] == [Verdict.UNKNOWN, Verdict.UNKNOWN]
    assert router_findings(asked, host("b"), kept=False) == []


def test_a_host_with_a_service_too_is_not_a_routers_alone() -> None:
    one = service()  # on a and b, its router on a
    far = replace_router(one, "c")
    hosts = {n: host(n) for n in "abc"}
    known = Inventory(Path(), services={"k": one}, hosts=hosts)
    assert not router_alone(known, hosts["a"])
    known = Inventory(Path(), services={"k": far}, hosts=hosts)
    assert router_alone(known, hosts["c"])
    assert not router_alone(known, hosts["b"])


def replace_router(one: Any, where: str) -> Any:
    from msgspec import structs

    return structs.replace(one, router=structs.replace(one.router, host=where))
