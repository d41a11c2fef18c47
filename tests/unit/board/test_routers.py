"""What is said of a router, and for how long: up only on evidence, UNKNOWN in silence.

To see it fail: let `now_of` in ddops/board/routers.py answer the last look whatever its age.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from ddops.board.fleet import Fleet, Heard, Kind
from ddops.board.model import EVERY_S
from ddops.board.recording import Recorder, read_recording
from ddops.board.router_show import RouterRow, router_page
from ddops.board.routers import (
    PATIENCE_S,
    RouterSpec,
    RouterState,
    document,
    head,
    in_need,
    look_document,
    now_of,
    rows,
    served,
    spec_of_router,
)
from ddops.board.show import COLUMNS, Tone
from ddops.cli.watching import watched_routers
from ddops.deploy.router import RouterSeen
from ddops.deploy.router_view import judge_router
from ddops.errors import UsageError
from ddops.inventory.merge import Inventory
from ddops.inventory.model import RouterTable
from ddops.model import State
from tests.unit.board.looks import NOW, SPEC
from tests.unit.test_router import behind, host, seen, service

ROUTED = behind()
ROUTER = spec_of_router(ROUTED)
KEPT = ("http://a:1", "http://b:1")


def look(state: State = State.UP, kept: tuple[str, ...] = KEPT, **healthy: bool | None) -> Any:
    one = seen(state, True, **healthy)
    full = RouterSeen(one.state, one.ready, one.replicas, kept, "no answer" * (state != State.UP))
    return json.loads(json.dumps(look_document(full, judge_router(ROUTED, full))))


def heard(*answers: tuple[float, Kind, Any]) -> Fleet:
    made = Fleet.of([SPEC], [ROUTER])
    for after, kind, payload in answers:
        made.apply(Heard(NOW + after, ROUTER.key, kind, payload))
    return made


def state(*answers: tuple[float, Kind, Any]) -> RouterState:
    return heard(*answers).routers[ROUTER.key]


def healths(one: RouterState, after: float = 1) -> list[str]:
    return [r.health for r in now_of(one, NOW + after).replicas]


def test_a_router_that_answers_shows_what_it_serves() -> None:
    one = state((0, Kind.LOOK, look(a=True, b=False)))
    assert head(one, NOW + 1) == "k.router on a at 127.0.0.1:30080 is up"
    assert [r[:2] for r in rows(one, NOW + 1)] == [("a", "ok"), ("b", "unhealthy")]
    assert served(now_of(one, NOW)) == "1/2 ok"
    assert document(one, NOW + 1) | {"replicas": []} == {
        "host": "a", "origin": "project", "service": "k.router", "router_of": "k",
        "url": "http://127.0.0.1:30080", "state": "up", "why": "", "age_s": 1.0, "replicas": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "a", "health", "note"),
    [
        (KEPT, True, "ok", ""),
        (KEPT, None, "left out", "taken out by somebody else"),
        (KEPT[1:], None, "left out", "drained, or never put in: ddops deploy puts it back"),
        (KEPT[1:], True, "ok", "not in the router's file: it is gone when the router starts"),
    ],
)
def test_what_it_serves_is_held_against_its_file(
    kept: tuple[str, ...], a: bool | None, health: str, note: str
) -> None:
    one = now_of(state((0, Kind.LOOK, look(kept=kept, a=a, b=True))), NOW).replicas[0]
    assert one.health == health and note in one.note and bool(one.note) is bool(note)
    assert one.in_file is ("http://a:1" in kept)


def test_a_router_that_is_down_or_does_not_tell_says_nothing_of_its_file() -> None:
    for how, word in ((State.DOWN, "DOWN"), (State.UNKNOWN, "UNKNOWN")):
        one = now_of(state((0, Kind.LOOK, look(how, kept=(), a=None, b=None))), NOW)
        assert one.state == word
        assert {(r.health, r.note) for r in one.replicas} == {("?", "")}
        assert served(one) == "?"


GOOD = (0, Kind.LOOK, look(a=True, b=True))


@pytest.mark.parametrize(
    ("answers", "after", "why"),
    [
        ((), 1, "not asked yet"),
        (((0, Kind.ERROR, {"error": "no login"}),), 1, "no login"),
        ((GOOD, (5, Kind.ERROR, {"error": "no login"})), 6, "up 6s ago, no answer since: no login"),
        ((GOOD,), 2.5 * PATIENCE_S + 1, "up 26s ago, no answer since"),
        ((GOOD,), 9999, "up 3h ago, no answer since"),
        (((0, Kind.LOOK, {}),), 1, "is not readable: KeyError"),
        ((GOOD, (5, Kind.LOOK, {"schema": "x", "state": "up"})), 6, "not readable"),
        ((GOOD, (5, Kind.LOOK, {**GOOD[2], "state": "fine"})), 6, "not readable"),
        ((GOOD, (5, Kind.LOOK, {**GOOD[2], "replicas": [{"name": "a"}]})), 6, "not readable"),
        ((GOOD, (5, Kind.LOOK, {**GOOD[2], "replicas": 7})), 6, "not readable"),
    ],
)
def test_what_is_not_known_reads_unknown_and_never_healthy(
    answers: tuple[Any, ...], after: float, why: str
) -> None:
    one = state(*answers)
    table = rows(one, NOW + after)
    line = head(one, NOW + after)
    assert line.startswith("k.router on a at 127.0.0.1:30080 is UNKNOWN: ")
    assert why in line
    assert [r[:2] for r in table] == [("a", "?"), ("b", "?")]
    entry = document(one, NOW + after)
    assert entry["state"] == "unknown"
    assert {r["health"] for r in entry["replicas"]} == {"?"}
    cells = RouterRow(one, NOW + after).cells(COLUMNS)
    assert not [c for c in cells if c.tone is Tone.GOOD]
    page = [c for line in router_page(one, NOW + after) for c in line]
    assert not [c for c in page if c.tone is Tone.GOOD]
    assert in_need([one], NOW + after) == 1


def test_it_is_patient_enough_for_a_replica_that_is_silent() -> None:
    assert healths(state(GOOD), 2.5 * EVERY_S + 6) == ["ok", "ok"]


def test_an_answer_ends_the_silence() -> None:
    one = state(GOOD, (5, Kind.ERROR, {"error": "x"}), (9, Kind.LOOK, GOOD[2]))
    assert now_of(one, NOW + 10).state == "up" and one.failures == 0
    assert in_need([one], NOW + 10) == 0


def test_a_look_for_drift_is_no_look() -> None:
    one = state(GOOD, (9, Kind.DRIFT, {"rows": []}))
    assert one.look_at == NOW


def test_changes_are_told_on_the_routers_host() -> None:
    made = heard(
        GOOD, (5, Kind.LOOK, look(a=True, b=None)), (6, Kind.LOOK, look(a=False, b=None)),
        (7, Kind.ERROR, {"error": "lost"}), (8, Kind.ERROR, {"error": "lost"}),
    )  # fmt: skip
    assert [(e.host, e.text, e.bad) for e in made.events] == [
        ("a", "k.router: b is left out", True),
        ("a", "k.router is DOWN: up with no healthy replica, 1 known", True),
        ("a", "k.router: a is unhealthy", True),
        ("a", "k.router is not known: lost", True),
    ]


def test_its_line_and_its_page() -> None:
    row = RouterRow(state((0, Kind.LOOK, look(kept=KEPT[:1], a=True, b=None))), NOW + 1)
    said = {c.head: x for c, x in zip(COLUMNS, row.cells(COLUMNS), strict=True)}
    assert (said["HOST"].text, said["REACH"].text, said["SERVICE"].text) == ("a", "up", "k.router")
    assert (said["GATE"].text, said["GATE"].tone, said["MEM"].text) == ("1/2 ok", Tone.WARN, "-")
    assert row.matches("K.ROUTER up") and not row.matches("down")
    assert row.trouble > RouterRow(state(GOOD), NOW + 1).trouble == 0
    page = "\n".join("".join(c.text for c in line) for line in router_page(row.state, NOW + 1))
    assert "k.router up on a, 127.0.0.1:30080, seen 1s ago" in page
    assert "drained, or never put in" in page


def test_a_recording_keeps_routers_and_older_ones_have_none(tmp_path: Path) -> None:
    path = tmp_path / "fleet.jsonl"
    made = Recorder(path, [SPEC], NOW, [ROUTER])
    made(Heard(NOW + 1, ROUTER.key, Kind.LOOK, GOOD[2]))
    made.close()
    back = read_recording(path)
    assert back.routers == (ROUTER,)
    fleet = Fleet.of(back.hosts, back.routers)
    for one in back.heard:
        fleet.apply(one)
    assert now_of(fleet.routers[ROUTER.key], NOW + 2).state == "up"
    head, rest = path.read_text().split("\n", 1)
    old = {k: v for k, v in json.loads(head).items() if k != "routers"}
    path.write_text(f"{json.dumps(old)}\n{rest}")
    assert read_recording(path).routers == ()


@pytest.mark.parametrize(
    ("watched", "target", "found"),
    [
        ([("b", True)], [], ["router:k"]),  # a replica's host
        ([("a", False)], ["a"], ["router:k"]),  # the router's host, with no service of its own
        ([("c", False)], ["c"], []),
        ([("a", True)], ["other"], []),  # another service was named: it stands alone
    ],
)
def test_whose_routers_are_shown(
    watched: list[tuple[str, bool]], target: list[str], found: list[str]
) -> None:
    one = service()
    known = {"k": one, "other": service()}
    known["other"] = SimpleNamespace(name="other", router=None)  # type: ignore[assignment]
    hosts = {n: host(n, vars={"address": "127.0.0.1"}) for n in ("a", "b", "c")}
    app: Any = SimpleNamespace(
        inventory=SimpleNamespace(services=known, hosts=hosts), transport=lambda h: None,
        lookup=None, redactor=None,
    )  # fmt: skip
    watches: Any = [
        SimpleNamespace(name=n, services=(one,) if serves else ()) for n, serves in watched
    ]
    import ddops.inventory.router as inventory_router

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inventory_router, "routed", lambda _i, _s: ROUTED)
        made = watched_routers(app, watches, target, once=True)
    assert [w.name for w in made] == found


def test_a_router_that_is_misplaced_is_unknown_and_hides_no_other() -> None:
    far = structs.replace(service(), router=RouterTable(host="nowhere"))
    inventory = Inventory(Path(), services={"k": far}, hosts={n: host(n) for n in ("a", "b")})
    app: Any = SimpleNamespace(inventory=inventory, transport=None)
    watches: Any = [SimpleNamespace(name="a", services=(far,))]
    (lost,) = watched_routers(app, watches, [], once=True)
    with pytest.raises(UsageError, match="no host `nowhere`"):
        lost.look()
    made = Fleet.of([], [lost.spec])
    made.apply(Heard(NOW, lost.name, Kind.ERROR, {"error": "there is no host"}))
    words = "k.router on nowhere at 127.0.0.1:30080 is UNKNOWN: there is no host"
    assert head(made.routers[lost.name], NOW) == words
    assert rows(made.routers[lost.name], NOW) == []


def test_a_routers_key_is_no_hosts_name() -> None:
    from ddops.inventory.checks import name_fault

    assert name_fault(RouterSpec("k", "a", "u").key, "host")
