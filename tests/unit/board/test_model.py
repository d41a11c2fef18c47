"""What the board says of a host: fresh, stale, gone; down only on evidence; figures with a source.

To see them fail: let `HostState.fresh` ignore `error`, or `speed` answer a gauge of an idle engine.
"""

from __future__ import annotations

from typing import Any

import pytest

from ddops.board import show
from ddops.board.fleet import Fleet, Kind
from ddops.board.glyphs import ASCII, UNICODE, bar, sparkline
from ddops.board.judge import drift_word, reach_word
from ddops.board.lists import events, runs, tasks
from ddops.board.model import LOST_S, STALE_S, Fresh, HostState, RunSeen
from ddops.board.show import Row, Tone, columns_for
from tests.unit.board.looks import NOW, RELEASE, down, fleet, gpu, launch, look, samples, service


def row(made: Fleet, after: float = 0.0) -> Row:
    return Row(made.hosts["box1"], "k26", made.books, NOW + after)


def state(made: Fleet) -> HostState:
    return made.hosts["box1"]


def texts(one: Row) -> dict[str, str]:
    return {c.head: c.make(one).text for c in show.COLUMNS}


def test_a_host_that_answers_shows_what_it_answered() -> None:
    seen = texts(row(fleet((0, Kind.LOOK, look())), 2))
    assert seen | {"HOST": "", "RUN": "", "SNAP": "", "DRILL": ""} == {
        "HOST": "", "REACH": "up", "AGE": "2s", "SERVICE": "k26", "UNIT": "up",
        "RELEASE": RELEASE[:8], "GATE": "ok", "QUEUE": "0+0", "TOK/S": "idle", "COMMIT": "3.5i",
        "DRIFT": "", "GPU": "8x 50%", "MEM": "50%", "POWER": "5604W", "THROTTLE": "no",
        "RUN": "", "SNAP": "", "DRILL": "",
    }  # fmt: skip


def test_a_value_gets_old_and_then_is_not_known() -> None:
    made = fleet((0, Kind.LOOK, look()))
    for after, fresh, gate, reach in (
        (STALE_S - 1, Fresh.NOW, "ok", "up"),
        (STALE_S + 1, Fresh.STALE, "~ok", "silent"),
        (LOST_S + 1, Fresh.LOST, "?", "silent"),
    ):
        assert state(made).fresh(NOW + after) is fresh
        assert show.gate(row(made, after)).text == gate
        assert show.busy(row(made, after)).text == {"ok": "8x 50%", "~ok": "~8x 50%"}.get(gate, "?")
        assert reach_word(state(made), NOW + after) == reach
    assert show.gate(row(made, STALE_S + 1)).tone is Tone.DIM


def test_a_failed_try_makes_a_value_stale_at_once_and_never_down() -> None:
    made = fleet((0, Kind.LOOK, look()), (5, Kind.ERROR, {"error": "no login within 4 s"}))
    assert show.reach(row(made, 6)).text == "no answer"
    assert show.unit(row(made, 6)).text == "~up", "what is not seen is not down"
    assert show.gate(row(made, 6)).text == "~ok"
    assert show.unit(row(made, 6 + LOST_S)).text == "?"
    assert [e.text for e in made.events] == ["no answer: no login within 4 s"]


def test_a_host_that_comes_back_is_whole_again() -> None:
    tries = [(t, Kind.ERROR, {"error": "no route"}) for t in (5, 15, 35)]
    made = fleet((0, Kind.LOOK, look()), *tries)
    assert (state(made).failures, state(made).since) == (3, NOW + 5)
    made = fleet((0, Kind.LOOK, look()), *tries, (50, Kind.LOOK, look()))
    assert (state(made).failures, state(made).error) == (0, "")
    assert made.events[-1].text == "answers again, after 45 s"
    assert show.gate(row(made, 51)).text == "ok"


def test_a_host_that_was_never_heard_of() -> None:
    made = fleet()
    assert (show.reach(row(made)).text, show.age(row(made)).text) == ("asking", "never")
    assert {show.unit(row(made)).text, show.gate(row(made)).text, show.busy(row(made)).text} == {
        "?"
    }


def test_a_killed_engine_is_down_and_said_to_be() -> None:
    made = fleet((0, Kind.LOOK, look()), (5, Kind.LOOK, look(down())))
    one = row(made, 6)
    assert (show.unit(one).text, show.gate(one).text, show.gate(one).tone) == (
        "down", "down", Tone.BAD,
    )  # fmt: skip
    assert show.tokens(one).text == "-", "a dead engine has no speed"
    assert made.events[-1].text == "k26 is down: the process is gone"
    assert made.events[-1].bad


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"health": {"status": None, "error": "timed out", "s": 6.0}}, "no answer"),
        ({"health": {"status": 503, "s": 0.1}}, "503"),
        ({"committed": None}, "ungated"),
        ({"model_info": {"status": 200, "values": {"weight_version": "other"}}}, "wrong id"),
        ({"model_info": None}, "wrong id"),
        ({"health": None, "port": {"port": 1, "listening": True, "owned": False,
                                   "owner": "x"}}, "foreign"),
        ({"health": None, "port": {"port": 1, "listening": False, "owned": False,
                                   "owner": None}}, "no port"),
    ],
)  # fmt: skip
def test_a_gate_that_does_not_hold_is_named(change: dict[str, Any], word: str) -> None:
    cell = show.gate(row(fleet((0, Kind.LOOK, look(service(**change))))))
    assert cell.text == word
    assert cell.tone is not Tone.GOOD


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"ddops_simulated": True}, "up sim"),
        ({"device": "cpu"}, "up cpu"),
        ({"device": "cuda"}, "up"),
    ],
)
def test_a_stand_in_is_never_taken_for_a_gpu(values: dict[str, Any], word: str) -> None:
    seen = service(server_info={"status": 200, "s": 0.1, "values": values})
    assert show.unit(row(fleet((0, Kind.LOOK, look(seen))))).text == word


def test_speed_is_counted_between_two_looks_of_one_start() -> None:
    def at(t: float, decoded: float, **more: Any) -> dict[str, Any]:
        values = samples(at=NOW + t, num_running_reqs=2.0, num_queue_reqs=1.0,
                         gen_throughput=1.0, realtime_tokens_total=decoded)  # fmt: skip
        return look(service(metrics=values, **more), at=NOW + t)

    made = fleet((0, Kind.LOOK, at(0, 1000)), (5, Kind.LOOK, at(4, 1400)))
    assert show.tokens(row(made, 5)).text == "100c", "the host's own seconds, not ours"
    assert show.queue(row(made, 5)).text == "2+1"
    again = launch(nonce="ffffffffffff")
    made = fleet((0, Kind.LOOK, at(0, 1000)), (5, Kind.LOOK, at(4, 1400, launch=again)))
    assert show.tokens(row(made, 5)).text == "1m", "another start counts from zero"
    made = fleet((0, Kind.LOOK, at(0, 1000)), (5, Kind.LOOK, at(4, 10)))
    assert show.tokens(row(made, 5)).text == "1m"


def test_gauges_count_only_while_the_engine_works() -> None:
    busy = samples(num_running_reqs=1.0, gen_throughput=812.4, spec_accept_length=4.21)
    made = fleet((0, Kind.LOOK, look(service(metrics=busy))))
    assert (show.tokens(row(made)).text, show.commit(row(made)).text) == ("812m", "4.2m")
    idle = fleet((0, Kind.LOOK, look()))
    assert (show.tokens(row(idle)).text, show.commit(row(idle)).text) == ("idle", "3.5i")
    bare = fleet((0, Kind.LOOK, look(service(metrics={"status": 404, "samples": []}))))
    assert (show.tokens(row(bare)).text, show.queue(row(bare)).text) == ("700i", "-")


def test_ranks_that_tell_the_same_are_not_added_up() -> None:
    rows = [["gen_throughput", {"dp_rank": d, "tp_rank": t}, 10.0] for d in "01" for t in "0123"]
    rows.append(["num_running_reqs", {"dp_rank": "0"}, 1.0])
    made = fleet((0, Kind.LOOK, look(service(metrics={"status": 200, "samples": rows}))))
    assert show.tokens(row(made)).text == "20m"


def a_run(**more: Any) -> dict[str, Any]:
    return {
        "id": "r1", "at": NOW - 2 * 86400, "host": "box1", "release": RELEASE, "status": "valid",
        "counts": True, "device_class": "gpu", "label": "c1", "family": "f", "suite": "smoke",
        "concurrency": 1, "output_tps": 150.2, "commit": 4.4, **more,
    }  # fmt: skip


def test_the_ledger_tells_only_of_what_runs_now_and_still_counts() -> None:
    quiet = look(service(metrics={"status": 404}, states=[]))

    def said(*found: dict[str, Any]) -> str:
        made = fleet((0, Kind.LOOK, quiet), (0, Kind.BOOKS, {"runs": list(found)}))
        return show.tokens(row(made)).text

    assert said(a_run()) == "150r 2d"
    assert said(a_run(device_class="sim")) == "150r 2d sim"
    assert said(a_run(counts=False)) == "-"
    assert said(a_run(release="cd" * 32)) == "-"
    assert said(a_run(host="box2")) == "-"
    assert said(a_run(), a_run(id="r2", at=NOW - 60, output_tps=99.0)) == "99r 1m"


def test_a_run_that_does_not_count_shows_no_number() -> None:
    withdrawn = a_run(id="r2", counts=False, reason="")
    made = fleet((0, Kind.BOOKS, {"runs": [a_run(), withdrawn]}))
    shown = dict(runs(made, NOW, 120, UNICODE).rows)
    assert "150.2" in [c.text for c in shown["r1"]]
    assert not {"150.2", "4.40"} & {c.text for c in shown["r2"]}
    assert "withdrawn" in [c.text for c in shown["r2"]]
    assert RunSeen(**a_run()).counts


def test_what_a_gpu_does_not_tell_is_not_zero() -> None:
    rows = [gpu(0), gpu(1, **{"utilization.gpu": "[N/A]", "power.draw": "[Unknown Error]"})]
    made = fleet((0, Kind.LOOK, look(gpus={"rows": rows, "why": ""})))
    assert (show.busy(row(made)).text, show.power(row(made)).text) == ("2x ?", "?")
    gone = fleet((0, Kind.LOOK, look(gpus={"rows": None, "why": "nvidia-smi hangs"})))
    assert show.busy(row(gone)).text == "?"
    none = fleet((0, Kind.LOOK, look(gpus={"rows": None, "why": "no nvidia-smi on PATH"})))
    assert show.busy(row(none)).text == "-"


@pytest.mark.parametrize(
    ("mask", "word"),
    [("0x1", "no"), ("0x4", "power cap"), ("0x60", "sw thermal, hw thermal"), ("[N/A]", "?")],
)
def test_throttling_is_told_from_resting(mask: str, word: str) -> None:
    rows = [gpu(0, **{"clocks_event_reasons.active": mask})]
    made = fleet((0, Kind.LOOK, look(gpus={"rows": rows, "why": ""})))
    assert show.throttle(row(made)).text == word


def test_drift_has_an_age_of_its_own() -> None:
    def rows(verdict: str) -> dict[str, Any]:
        one = {"service": "k26", "what": "argv", "recorded": "a", "observed": "b"}
        return {"rows": [{**one, "verdict": verdict}]}

    made = fleet((0, Kind.LOOK, look()), (1, Kind.DRIFT, rows("drift")))
    assert (show.drift(row(made, 6)).text, show.drift(row(made, 6)).tone) == ("drift 5s", Tone.BAD)
    assert "drifted: argv" in [e.text for e in made.events]
    made = fleet((0, Kind.LOOK, look()), (1, Kind.DRIFT, rows("same")))
    assert show.drift(row(made, 6)).text == "same 5s"
    assert not made.events
    made = fleet((0, Kind.LOOK, look()), (1, Kind.DRIFT, {"error": "no python there"}))
    assert (drift_word(state(made)), show.drift(row(made, 6)).text) == ("?", "?")
    made = fleet((0, Kind.LOOK, look()), (1, Kind.DRIFT, {"rows": [{"what": "cut off"}]}))
    assert drift_word(state(made)) == "?"


@pytest.mark.parametrize(
    "raw",
    [
        {}, {"schema": "ddops.look/9"}, {"schema": "ddops.look/1"}, look(services=[]),
        look(gpus=None), look(gpus={"rows": [1], "why": ""}), look({"schema": "x"}), look(lock=3),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_read_is_no_answer(raw: dict[str, Any]) -> None:
    made = fleet((0, Kind.LOOK, look()), (5, Kind.LOOK, raw))
    assert "not readable" in state(made).error
    assert show.gate(row(made, 6)).text == "~ok"


def test_a_lock_and_a_restart_are_events() -> None:
    held = {"owner": {"who": "ann", "where": "desk", "pid": 7, "purpose": "deploy", "at": "now"},
            "age_s": 3.0}  # fmt: skip
    after = look(service(launch=launch(nonce="ffffffffffff")), lock=held)
    made = fleet((0, Kind.LOOK, look()), (5, Kind.LOOK, after), (10, Kind.LOOK, look()))
    said = [e.text for e in made.events]
    assert said[0].startswith("locked by ann@desk pid 7 (deploy)")
    assert "k26 was started: abababababab, nonce ffffffffffff" in said
    assert "lock released" in said


def test_books_that_are_torn_are_an_error_that_shows() -> None:
    made = fleet((0, Kind.BOOKS, {"runs": [{"id": "r1"}]}))
    assert "not readable" in made.books.error
    assert runs(made, NOW, 80, ASCII).note == made.books.error


def test_tasks_come_in_the_order_of_their_urgency() -> None:
    def task(n: int, status: str, priority: str) -> dict[str, Any]:
        return {"id": n, "run": "", "content": f"t{n}", "priority": priority, "status": status,
                "owner": "", "evidence": "", "at": "2027-01-15T08:00:00Z"}  # fmt: skip

    some = [task(1, "completed", "high"), task(2, "pending", "low"), task(3, "pending", "high"),
            task(4, "blocked", "low"), task(5, "in_progress", "low")]  # fmt: skip
    made = fleet((0, Kind.BOOKS, {"tasks": some}))
    assert [key for key, _ in tasks(made, NOW, 80, UNICODE).rows] == ["5", "4", "3", "2", "1"]
    none = fleet((0, Kind.BOOKS, {"tasks": None}))
    assert tasks(none, NOW, 80, UNICODE).note == "no tasks recorded"


def test_filtering_wants_every_word() -> None:
    made = fleet((0, Kind.LOOK, look()), (5, Kind.ERROR, {"error": "gone"}))
    listing = events(made, NOW + 6, 80, UNICODE)
    assert len(listing.filtered("BOX1 gone").rows) == 1
    assert listing.filtered("box1 elsewhere").rows == []
    one = row(made, 6)
    assert show.matches(one, "nvlink no") and not show.matches(one, "nvlink up2")


@pytest.mark.parametrize("width", range(60, 240, 7))
def test_columns_fit_whatever_the_width(width: int) -> None:
    columns = columns_for(width, ["a-rather-long-name-of-a-host"])
    assert sum(c.width + 1 for c in columns) <= width
    assert [c.head for c in columns[:3]] == ["HOST", "REACH", "AGE"]


def test_bars_and_lines_say_how_much() -> None:
    assert bar(0.5, 4, ASCII) == "##.."
    assert bar(0.375, 4, ASCII) == "#=.."
    assert bar(2.0, 4, ASCII) == "####"
    assert bar(None, 4, ASCII) == "?   "
    assert sparkline([1.0, 8.0], UNICODE) == "▂█"
    assert sparkline([0.0, 0.0], ASCII) == "__"
    assert sparkline([], ASCII) == ""
