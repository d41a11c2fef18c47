"""A replica's way out and back, what is told of a router, and what may stand in `[router]`."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddops.cli.routers import rolling
from ddops.cli.status import _by_host
from ddops.command import Redactor
from ddops.deploy.drain import NoDrain, ReplicaDrain
from ddops.deploy.drift import Same
from ddops.deploy.fleet import Rules
from ddops.deploy.host import Links
from ddops.deploy.router import ReplicaSeen, RouterOnHost, RouterSeen, parse_router
from ddops.deploy.router_release import router_release
from ddops.deploy.router_run import settle
from ddops.deploy.router_view import OK, OUT, SICK, SILENT, STRANGER, drift_rows, judge_router
from ddops.deploy.stop import Stop
from ddops.errors import (
    CommandFailed,
    DdopsError,
    GateFailed,
    Interrupted,
    RefusedError,
    UnreachableError,
    UsageError,
)
from ddops.hostside import router as hostside
from ddops.hostside import router_start
from ddops.inventory.merge import Inventory
from ddops.inventory.model import Host, Origin, RouterTable, Service
from ddops.inventory.router import Replica, Routed, routed
from ddops.model import State
from ddops.provision.build import Provision
from ddops.transport import LocalTransport
from tests.guards.source import ROOT

HERE = Origin("project", Path("x.toml"))
URLS = ("http://a:1", "http://b:1")


def host(name: str, **more: Any) -> Host:
    return Host(name=name, origin=HERE, ssh=f"me@{name}.example", **more)


def service(**more: Any) -> Service:
    table = RouterTable(host="a", drain_s=more.pop("drain_s", 2.0))
    return Service(
        name="k", origin=HERE, model="m", profile="p", hosts=("a", "b"), served_model_name="k",
        router=table, **more,
    )  # fmt: skip


def behind(**more: Any) -> Routed:
    made = service(**more)
    assert made.router is not None
    replicas = tuple(Replica(u[7], u) for u in URLS)
    return Routed(made, made.router, host("a"), replicas)


def seen(state: State = State.UP, ready: bool = True, **healthy: bool | None) -> RouterSeen:
    rows = tuple(ReplicaSeen(f"http://{n}:1", h, "abc-n1") for n, h in healthy.items())
    return RouterSeen(state, ready, rows, ())


def hanging(names: str, **healthy: bool | None) -> RouterSeen:
    """`names`: those that answer nobody, whatever the router has of them."""
    rows = tuple(
        ReplicaSeen(f"http://{n}:1", h, "", "timed out") if n in names
        else ReplicaSeen(f"http://{n}:1", h, "abc-n1")
        for n, h in healthy.items()
    )  # fmt: skip
    return RouterSeen(State.UP, True, rows, ())


@dataclass
class Router:
    """A router that answers as it is told; `log` is what it was asked."""

    routed: Routed = field(default_factory=behind)
    state: RouterSeen = field(default_factory=lambda: seen(a=True, b=True))
    removed: dict[str, object] = field(default_factory=lambda: {"removed": True, "others": 1})
    counts: list[object] = field(default_factory=lambda: [3, 2, 0, 0])
    added: bool = True
    answered: bool = True
    log: list[str] = field(default_factory=list)

    def remove(self, url: str) -> tuple[RouterSeen, Mapping[str, object]]:
        self.log.append(f"remove {url}")
        return self.state, self.removed

    def add(self, url: str, _seconds: float) -> tuple[RouterSeen, bool]:
        self.log.append(f"add {url}")
        return self.state, self.added

    def running(self, _url: str) -> Mapping[str, object]:
        now = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        if isinstance(now, BaseException):
            raise now
        return now if isinstance(now, dict) else {"running": now, "by": "/metrics"}

    def ask(self, version: str, _seconds: float) -> Mapping[str, object]:
        self.log.append(f"ask {version}")
        return {"answered": self.answered, "tries": 4, "others": {"old-1": 4}}


@dataclass
class Made:
    router: Router
    drain: ReplicaDrain
    said: list[str]


def make(**more: Any) -> Made:
    router, said, clock = Router(**more), list[str](), [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    drain = ReplicaDrain(router, "a", said.append, sleep, lambda: clock[0])  # type: ignore[arg-type]
    return Made(router, drain, said)


def test_out_is_a_look_at_what_runs_and_a_wait_for_it() -> None:
    made = make(counts=[3, 3, 1, 0, 1, 0, 0])
    way = made.drain.out(Stop())
    assert way.skipped == ""
    assert way.evidence == {
        "replica": URLS[0], "was_served": True, "in_flight": 3, "counted_by": "/metrics",
        "waited_s": 2.5, "left": 0, "others": 1,
    }, "a single count of none is not the end"  # fmt: skip
    assert made.router.log == [f"remove {URLS[0]}"]


def test_a_replica_that_is_down_has_nothing_to_finish() -> None:
    made = make(counts=[{"running": None, "refused": True, "why": "nobody listens there"}])
    assert made.drain.out(Stop()).evidence["left"] == 0


@pytest.mark.parametrize(
    ("more", "error", "words", "put_back"),
    [
        ({"removed": {"removed": False, "last": True}}, RefusedError, "last healthy", False),
        ({"state": seen(State.UNKNOWN)}, UnreachableError, "does not answer", False),
        ({"removed": {"removed": False, "stays": True}}, DdopsError, "does not let it go", True),
        ({"counts": [5]}, RefusedError, "5 requests still run 2 s after", True),
        ({"counts": [{"running": None, "why": "HTTP 404"}]}, RefusedError, "nobody can tell", True),
        ({"counts": [1, UnreachableError("lost")]}, UnreachableError, "lost", True),
    ],
)
def test_a_way_out_that_fails_leaves_it_where_it_was(
    more: dict[str, Any], error: type[DdopsError], words: str, put_back: bool
) -> None:
    made = make(**more)
    with pytest.raises(error, match=words):
        made.drain.out(Stop())
    assert (f"add {URLS[0]}" in made.router.log) is put_back
    assert bool(made.said) is put_back


def test_a_wish_to_stop_ends_the_wait_and_puts_it_back() -> None:
    made, stop = make(counts=[4]), Stop()
    stop.ask()
    with pytest.raises(Interrupted):
        made.drain.out(stop)
    assert made.router.log[-1] == f"add {URLS[0]}"


def test_no_router_is_no_way_out() -> None:
    down = make(state=seen(State.DOWN))
    assert down.drain.out(Stop()).skipped == "its router on a is not up"
    assert down.drain.back("v") == {"router": "not up"}
    assert NoDrain().out(Stop()).skipped == "no router stands before this service"
    assert NoDrain().back("v") == {}


def test_back_is_healthy_and_an_answer_of_the_new_start() -> None:
    made = make()
    assert made.drain.back("new-1") == {
        "router": {"replica": URLS[0], "answered_after": 4, "back_s": 0.0}
    }
    assert made.router.log == [f"add {URLS[0]}", "ask new-1"]
    with pytest.raises(GateFailed, match="does not call it healthy"):
        make(added=False).drain.back("new-1")
    with pytest.raises(GateFailed, match="has not answered through the router") as caught:
        make(answered=False).drain.back("new-1")
    assert "old-1" in caught.value.why


def test_nothing_keeps_a_way_back_from_going_on() -> None:
    made = make(counts=[UnreachableError("lost")])
    assert made.drain.leave() == {"drained": "lost"}
    assert "not drained on the way back: lost" in made.said
    assert make(counts=[7]).drain.leave()["drained"] != ""
    assert make().drain.leave() == {"drained": True}


# ---- what is told


def test_a_router_is_judged_against_the_inventory() -> None:
    word = judge_router(behind(), seen(a=True, b=False, c=True))
    assert word.state == "up"
    assert [(r.name, r.health) for r in word.replicas] == [
        ("a", OK), ("b", SICK), ("http://c:1", STRANGER),
    ]  # fmt: skip
    assert (word.replicas[0].release, word.replicas[0].nonce) == ("abc", "n1")
    left = judge_router(behind(), seen(a=True, b=None))
    assert [r.health for r in left.replicas] == [OK, OUT]


def test_a_replica_that_answers_nobody_is_not_ok_for_its_routers_sake() -> None:
    word = judge_router(behind(), hanging("b", a=True, b=True))
    assert word.state == "up", "the other one serves"
    assert [(r.health, r.note) for r in word.replicas] == [(OK, ""), (SILENT, "timed out")]
    (row,) = drift_rows(behind(), word, "b", "", None)
    assert (row.observed, row.verdict) == (SILENT, Same.UNKNOWN)
    assert hanging("b", a=True, b=True).healthy == (URLS[0],)


@pytest.mark.parametrize(
    ("look", "state", "why"),
    [
        (seen(), "DOWN", "up with no healthy replica, 0 known"),
        (seen(a=False, b=None), "DOWN", "up with no healthy replica, 1 known"),
        (hanging("b", a=False, b=True), "unknown", "none of 1 replicas that it serves answers"),
        (hanging("ab", a=True, b=True), "unknown", "none of 2 replicas"),
        (hanging("a", a=False), "DOWN", "up with no healthy replica, 1 known"),
        (seen(ready=False, a=True), "DOWN", "/readiness does not answer 200"),
        (RouterSeen(State.DOWN, False, (), (), "nobody listens there"), "DOWN", "nobody listens"),
        (RouterSeen(State.UNKNOWN, False, (), (), "HTTP 401"), "unknown", "HTTP 401"),
    ],
)
def test_a_router_with_no_healthy_replica_is_down(look: RouterSeen, state: str, why: str) -> None:
    word = judge_router(behind(), look)
    assert word.state == state
    assert word.why.startswith(why)


def test_where_provision_never_was_the_router_is_looked_for_all_the_same(tmp_path: Path) -> None:
    """The script is not there: it goes with the look, and what it sees is told."""
    table = RouterTable(host="a", port=free_port())
    where = Host(name="a", origin=HERE, ssh="a", engine_dir=str(tmp_path), python=sys.executable)
    place = Routed(service(), table, where, ())
    router = RouterOnHost(LocalTransport("a"), place, lambda name: ROOT / name, Redactor())
    found = router.look()
    assert (found.state, found.why) == (State.DOWN, "not provisioned")
    assert judge_router(place, found).state == "DOWN"
    with pytest.raises(RefusedError, match="not provisioned for a router") as refused:
        router.remove("http://a:1")
    assert refused.value.next == "ddops provision a"
    with socket.create_server(("127.0.0.1", table.port)):  # somebody who says nothing
        mute = router.look()
    assert mute.state is State.UNKNOWN
    assert mute.why.startswith("not provisioned; ")


def test_a_host_is_counted_once_whatever_is_asked_of_it() -> None:
    lost, odd = UnreachableError("no"), CommandFailed("odd", rc=1)
    one, two, routing = (SimpleNamespace(name=n) for n in ("a", "b", "router:k"))

    def told(*outcomes: Any, on: str = "a") -> list[tuple[str, object]]:
        asked: Any = list(zip((one, two, routing), outcomes, strict=True))
        return _by_host(asked, {"router:k": on})

    assert told(1, lost, 3) == [("a", 3), ("b", lost)]
    assert told(1, 2, odd) == [("a", odd), ("b", 2)]
    assert told(lost, 2, odd) == [("a", lost), ("b", 2)]
    assert told(1, 2, odd, on="c") == [("a", 1), ("b", 2), ("c", odd)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_drift_names_who_is_left_out_and_who_is_a_stranger() -> None:
    word = judge_router(behind(), seen(a=True, b=None, c=True))
    first = drift_rows(behind(), word, "a", "aa" * 32, "bb" * 32)
    assert [(r.what, r.verdict) for r in first] == [
        ("behind router", Same.YES), ("router", Same.YES), ("router release", Same.NO),
        ("router replicas", Same.NO),
    ]  # fmt: skip
    (second,) = drift_rows(behind(), word, "b", "aa" * 32, "aa" * 32)
    assert (second.observed, second.verdict) == (OUT, Same.NO)
    lost = judge_router(behind(), RouterSeen(State.UNKNOWN, False, (), (), "late"))
    assert {r.verdict for r in drift_rows(behind(), lost, "b", "", None)} == {Same.UNKNOWN}


def test_an_answer_of_another_version_is_an_error() -> None:
    good = {"schema": "ddops.router/1", "state": "up", "ready": True, "kept": ["http://a:1"],
            "replicas": [{"id": "x", "url": "http://a:1", "healthy": True}],
            "said": {"http://a:1": {"weight_version": "v-1"},
                     "http://b:1": {"error": "late"}}}  # fmt: skip
    made = parse_router(good)
    assert made.healthy == ("http://a:1",)
    assert made.of("http://a:1").version == "v-1"
    assert made.of("http://b:1") == ReplicaSeen("http://b:1", None, "", "late")
    for bad in ({}, {**good, "schema": "x"}, {**good, "state": "odd"}, {**good, "replicas": 3},
                {**good, "replicas": [1]}, {**good, "replicas": [{}]}):  # fmt: skip
        with pytest.raises(CommandFailed, match="not readable"):
            parse_router(bad)


# ---- the router itself


@dataclass
class Place:
    """The router's folder on its host: its release is there, started and committed."""

    digest: str
    host: Host = field(default_factory=lambda: host("a"))

    def links(self) -> Links:
        return Links(self.digest, self.digest)

    def observe(self, *, http: bool) -> SimpleNamespace:
        return SimpleNamespace(launch=SimpleNamespace(nonce="r1"))


def standing(**more: Any) -> Any:
    router = Router(**more)
    digest = router_release(router.routed, lambda n: ROOT / n).digest
    return SimpleNamespace(
        routed=router.routed, place=Place(digest), look=lambda: router.state, add=router.add,
        ask=router.ask, remove=router.remove, log=router.log,
    )  # fmt: skip


TOOLS: Any = SimpleNamespace(lookup=lambda n: ROOT / n)


def test_a_router_in_step_is_left_alone() -> None:
    router = standing()
    done = settle(router, {"a": "v-1", "b": "v-2"}, TOOLS)
    assert (done.outcome.changed, done.outcome.nonce, done.added, done.removed) == (
        False, "r1", (), (),
    )  # fmt: skip
    assert router.log == []


def test_who_was_deployed_is_put_back_and_who_is_unknown_is_taken_out() -> None:
    router = standing(state=seen(a=True, b=None, c=True))
    done = settle(router, {"a": "v-1", "b": "v-2"}, TOOLS)
    assert (done.added, done.removed) == (("http://b:1",), ("http://c:1",))
    assert router.log == ["add http://b:1", "ask v-2", "remove http://c:1"]
    other = standing(state=seen(a=True, b=None))
    assert settle(other, {"a": "v-1"}, TOOLS).added == (), "b may be out because somebody wants it"


def test_one_late_answer_of_a_busy_replica_is_not_taken_for_its_end() -> None:
    router = standing()
    looks = [hanging("a", a=True, b=True), seen(a=True, b=True)]
    router.look = lambda: looks.pop(0) if len(looks) > 1 else looks[0]
    done = settle(router, {"a": "v-1", "b": "v-2"}, TOOLS)
    assert (done.added, done.removed, router.log) == ((), (), [])
    late = standing(state=hanging("b", a=True, b=True))
    assert settle(late, {"b": "v-2"}, TOOLS).added == (), "it was there all the time"
    assert late.log == ["add http://b:1", "ask v-2"], "and has answered through the router"


@pytest.mark.parametrize(
    ("more", "versions", "error", "words"),
    [
        ({"state": seen()}, {"a": "v"}, GateFailed, "up with no healthy replica"),
        ({"state": seen(a=False), "added": False}, {"a": "v"}, GateFailed, "does not serve"),
        ({"state": seen(a=None), "answered": False}, {"a": "v"}, GateFailed, "does not serve"),
        ({"state": hanging("ab", a=True, b=True)}, {"a": "v"}, GateFailed, "no healthy"),
        (
            {"state": hanging("a", a=True, b=True), "answered": False},
            {"a": "v"},
            GateFailed,
            "does not serve",
        ),
        ({"state": seen(State.UNKNOWN)}, {"a": "v"}, UnreachableError, "does not answer"),
        ({}, {}, RefusedError, "no replica of k is there for a router"),
    ],
)
def test_a_router_that_would_serve_nobody_is_no_success(
    more: dict[str, Any], versions: dict[str, str], error: type[DdopsError], words: str
) -> None:
    with pytest.raises(error, match=words):
        settle(standing(**more), versions, TOOLS)


# ---- where a router finds its replicas


def test_a_replica_is_reached_where_it_listens() -> None:
    hosts = {"a": host("a"), "b": host("b", vars={"address": "10.0.0.2", "port": 31000})}
    inventory = Inventory(Path(), hosts=hosts)
    found = routed(inventory, service(listen="::", api_key="env:K"))
    assert found is not None
    assert [r.url for r in found.replicas] == ["http://a.example:30000", "http://10.0.0.2:31000"]
    with pytest.raises(UsageError, match="router on a cannot reach b"):
        routed(inventory, service())
    lab = {n: host(n, vars={"address": f"127.0.1.{i}"}) for i, n in enumerate(("a", "b"), 1)}
    one_machine = routed(Inventory(Path(), hosts=lab), service())
    assert one_machine is not None
    assert {r.url for r in one_machine.replicas} == {"http://127.0.0.1:30000"}
    with pytest.raises(UsageError, match="no host `a`"):
        routed(Inventory(Path(), hosts={"b": hosts["b"]}), service())


def test_a_routers_release_is_its_settings_and_not_its_replicas() -> None:
    one, other = behind(), behind()
    more = Routed(other.service, other.table, other.host, other.replicas[:1])
    first = router_release(one, lambda n: ROOT / n)
    assert first.digest == router_release(more, lambda n: ROOT / n).digest
    table = RouterTable(host="a", policy="random")
    changed = Routed(one.service, table, one.host, one.replicas)
    assert first.digest != router_release(changed, lambda n: ROOT / n).digest
    argv = first.launch.argv
    assert (
        argv[argv.index("--host") + 1] == argv[argv.index("--prometheus-host") + 1] == "127.0.0.1"
    )
    assert "key" not in " ".join(argv), "it comes by a file"


# ---- on the host


def test_requests_at_work_are_all_ranks_running_and_waiting() -> None:
    body = {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1},
                      {"num_running_reqs": 0, "num_waiting_reqs": 4}]}  # fmt: skip
    assert hostside.counted(json.dumps(body)) == 7
    for odd in ("", "[]", "{}", '{"loads": [{}]}', '{"loads": 3}'):
        assert hostside.counted(odd) is None
    text = 'sglang:num_running_reqs{tp_rank="0"} 3.0\nsglang:num_queue_reqs 2\nsglang:x 9\n'
    assert [float(v) for _, v in hostside.GAUGE.findall(text)] == [3.0, 2.0]


def test_a_list_that_is_kept_survives_and_an_unknown_verb_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = hostside.Router(str(tmp_path), "127.0.0.1", 9)
    assert made.kept() == []
    with made.alone():
        made.keep(["http://a:1"])
    assert made.kept() == ["http://a:1"]
    assert made.members()["state"] == "down"
    with_it = made.add("http://b:1", 1)
    assert (with_it["added"], made.kept()) == (False, ["http://a:1", "http://b:1"])
    assert made.remove("http://a:1")["removed"] is False
    assert made.kept() == ["http://b:1"]
    assert hostside.main([str(tmp_path), "127.0.0.1", "9", "explode"]) == 64
    assert "no verb 'explode'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("silent", "last"),
    [((), False), (("http://b:1",), False), (("http://b:1", "http://c:1"), True)],
)
def test_the_last_that_answers_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: Sequence[str], last: bool
) -> None:
    """Whatever the router still thinks of the others."""
    (tmp_path / "run").mkdir()
    left = ["http://a:1", "http://b:1", "http://c:1"]

    def call(url: str, _key: str | None, method: str = "GET", *_: object) -> dict[str, object]:
        if method == "DELETE":
            left.remove(url.rpartition("/workers/")[2].replace("_", "/"))
        rows = [{"id": u.replace("/", "_"), "url": u, "is_healthy": True} for u in left]
        if url.removesuffix("/model_info") in silent:
            return {"status": None, "body": "", "error": "TimeoutError: timed out"}
        return {"status": 200, "body": json.dumps({"workers": rows, "weight_version": "v"})}

    monkeypatch.setattr(hostside, "call", call)
    done = hostside.Router(str(tmp_path), "127.0.0.1", 9).remove("http://a:1")
    if last:
        assert (done["removed"], done["last"]) == (False, True)
        assert done["why"] == "; ".join(f"{u}: TimeoutError: timed out" for u in silent)
        assert "http://a:1" in left
    else:
        assert (done["removed"], done["others"]) == (True, 2 - len(silent))
        assert "http://a:1" not in left


def test_rules_stay_as_they_are_without_a_router() -> None:
    plain = Service(name="k", origin=HERE, model="m", profile="p", hosts=("a",))

    class App:
        inventory = Inventory(Path(), hosts={"a": host("a")})

    pairs = [(host("a"), plain)]
    assert rolling(App(), pairs, Rules()) == (pairs, Rules())  # type: ignore[arg-type]


def test_a_start_takes_up_what_is_kept_and_shows_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sglang_router` is not here: what it would be given is."""
    given: list[SimpleNamespace] = []
    launcher = SimpleNamespace(
        parse_router_args=lambda words: SimpleNamespace(words=words, api_key=None),
        launch_router=given.append,
    )
    monkeypatch.setitem(sys.modules, "sglang_router.launch_router", launcher)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/replicas.json").write_text('["http://a:1", "http://b:1"]')
    (tmp_path / "key.json").write_text('{"api-key": "hunter2"}')
    words = [str(tmp_path), "--port", "9", "--config", str(tmp_path / "key.json")]
    for _ in range(2):
        router_start.main([*words, "--weight-version", "x-1"])
    first, second = given
    key = (tmp_path / "run/control.key").read_text()
    assert first.words == second.words == [
        "--port", "9", "--control-plane-api-keys", f"ddops:ddops:admin:{key}",
        "--worker-urls", "http://a:1", "http://b:1",
    ]  # fmt: skip
    assert first.api_key == "hunter2"
    assert len(key) == 64
    assert (tmp_path / "run/control.key").stat().st_mode & 0o777 == 0o600


def test_a_host_for_a_router_alone_gets_no_engine(tmp_path: Path) -> None:
    there = host("a", engine_env="sim", supervisor="process", setup="none")

    def steps(services: list[Service], routes: bool) -> set[str]:
        made = Provision(
            LocalTransport("a"), there, services, lambda n: ROOT / n, tmp_path / "w", routes
        )
        shutil.rmtree(tmp_path / "w", ignore_errors=True)
        return {s.id for s in made.steps()}

    alone, both = steps([], True), steps([service()], True)
    assert {"router-inputs", "router-env"} <= alone & both
    assert "env" in both
    assert "env" not in alone
    assert {"env"} <= steps([], False)
    assert "router-env" not in steps([], False)


def test_the_unit_of_a_router_leaves_only_the_hosts_own_names_open() -> None:
    spec = router_release(behind(), lambda n: ROOT / n).content["spec"]
    assert isinstance(spec, dict)
    names = set(re.findall(r"\$\{(\w+)\}", str(spec["unit"])))
    assert names == {"engine_dir", "python", "user"}
    assert "guard.py ${engine_dir}/.ddops/services/k.router" in str(spec["unit"])
