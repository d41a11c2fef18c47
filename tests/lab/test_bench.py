"""Measuring deployed services through the real command line, on hosts with the stand-in engine."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from ddops.ledger import Ledger, Scalar
from ddops.model import Verdict
from tests.lab.harness import Done, HostView, Project
from tests.lab.looking import until

LIMITS = "\n[limits]\nsend_delay_ms = 500\nnoise = 1.0\nshort = 0.2\nbound_ms = 200\n"
BASE = "output_tokens = 16\nwaves = 3\nleast_requests = 3\nsample_s = 0.2\ntimeout_s = 20\n"
PACE = {"step_ms": 6, "prefill_ms": 6}


def suite(kind: str, more: str = "", levels: str = "[1, 2]", arms: str = "") -> str:
    return f'kind = "{kind}"\nlevels = {levels}\n{BASE}{more}{LIMITS}{arms}'


@pytest.fixture
def paced(lab: Project, serving: HostView) -> Iterator[HostView]:
    """A live host whose engine takes its time for a token; suites that take little."""
    lab.write("suites/tiny/smoke.toml", suite("smoke", levels="[1]"))
    lab.write("suites/tiny/concurrency.toml", suite("concurrency"))
    if failed_gates(lab, serving):  # the test before spoilt this start for good
        serving.forget()
        lab.ok("deploy", serving.name)
    serving.fault(**PACE)
    yield serving
    serving.fault()


def patiently(lab: Project, *args: str) -> Done:
    """A sweep is several deploys, each with gates before and behind."""
    done = lab.spawn(*args).end(400)
    assert done.rc == 0, done
    return done


def runs(lab: Project, *, since: int = 0) -> list[dict[str, Scalar]]:
    with lab.ledger() as book:
        return book.query(
            "SELECT id, status, reason, launch, identity, device_class, output_tps, commit_steps,"
            " seq FROM run WHERE seq > ? ORDER BY seq", [since],
        )  # fmt: skip


def mark(lab: Project) -> int:
    with lab.ledger() as book:
        found = book.query("SELECT max(seq) AS seq FROM run")
    return int(str(found[0]["seq"] or 0))


def valid(book: Ledger, since: int) -> int:
    rows = book.query("SELECT count(*) AS n FROM valid_run WHERE seq > ?", [since])
    return int(str(rows[0]["n"]))


def test_smoke_stores_a_valid_run_bound_to_this_start(lab: Project, paced: HostView) -> None:
    before = mark(lab)
    done = lab.ok("bench", "smoke", paced.name, "--json")
    assert isinstance(done.json, list)
    (shown,) = done.json
    assert shown["status"] == "valid"
    (row,) = runs(lab, since=before)
    launch = paced.launch()
    assert launch is not None
    assert row["launch"] == launch["nonce"]
    assert (row["identity"], row["device_class"]) == ("proven", "sim")
    assert shown["run"] == row["id"]
    with lab.ledger() as book:
        stored = book.run(str(row["id"]))
        samples = book.samples(stored)
        gates = book.gates(str(row["launch"]))
        assert book.verify() == []
    assert len(samples) == 4
    assert {s.phase for s in samples} == {"warmup", "window"}
    assert all(s.identity_ok for s in samples)
    assert [s.tokens for s in samples] == [16] * 4
    assert "exactness C=1" in {g.name for g in gates}
    assert 1.5 < stored.figures["commit_tokens"] / stored.figures["commit_steps"] < 2.5  # type: ignore[operator]


def test_levels_the_server_cannot_run_are_void(lab: Project, paced: HostView) -> None:
    before = mark(lab)
    done = lab.run("bench", "concurrency", paced.name, "--levels", "2,8")
    assert done.rc == 9, done
    found = runs(lab, since=before)
    assert [r["status"] for r in found] == ["valid", "void"]
    assert "runs 4 requests at once, not 8" in str(found[1]["reason"])


@pytest.mark.parametrize("fault", ["garbage", "mask_bug"])
def test_a_corrupt_engine_yields_no_valid_number(lab: Project, paced: HostView, fault: str) -> None:
    """It answers fluently, /health is 200, and the deploy's gates had passed."""
    before = mark(lab)
    paced.fault(**PACE, **{fault: True})
    done = lab.run("bench", "concurrency", paced.name)
    assert done.rc == 1, done
    found = runs(lab, since=before)
    assert found
    assert {r["status"] for r in found} == {"invalid"}
    assert all("exactness" in str(r["reason"]) for r in found)
    assert all(r["output_tps"] is None for r in found)
    assert "tok/s" not in done.err.lower().replace("tok/s  ", "")
    # It answers right again: this start is not believed any more.
    paced.fault(**PACE)
    again = lab.run("bench", "smoke", paced.name)
    assert again.rc == 1, again
    assert "failed on this start before" in again.err
    with lab.ledger() as book:
        assert valid(book, before) == 0


def test_an_engine_that_turns_corrupt_on_the_way_takes_its_numbers_with_it(
    lab: Project, paced: HostView
) -> None:
    before = mark(lab)
    lab.write("suites/tiny/concurrency.toml", suite("concurrency", "repeats = 3\n", "[2]"))
    run = lab.spawn("bench", "concurrency", paced.name)
    until(lambda: len(runs(lab, since=before)) >= 1, what="the first run")
    paced.fault(**PACE, garbage=True)
    done = run.end()
    assert done.rc == 1, done
    assert "afterwards" in done.err
    found = runs(lab, since=before)
    assert "valid" in {r["status"] for r in found}  # as it was measured
    with lab.ledger() as book:
        assert valid(book, before) == 0  # as it counts


def test_answers_of_another_start_are_no_valid_number(lab: Project, paced: HostView) -> None:
    before = mark(lab)
    paced.fault(**PACE, wrong_identity="meta")
    done = lab.run("bench", "smoke", paced.name)
    assert done.rc == 1, done
    assert {r["status"] for r in runs(lab, since=before)} == {"invalid"}
    paced.fault(**PACE, wrong_identity="info")
    done = lab.run("bench", "smoke", paced.name)
    assert done.rc == 4, done
    assert "is not the start that is on record" in done.err


def test_an_engine_that_dies_in_the_run_leaves_no_valid_number(
    lab: Project, paced: HostView
) -> None:
    before = mark(lab)
    lab.write("suites/tiny/smoke.toml", suite("smoke", levels="[2]").replace("16", "400"))
    run = lab.spawn("bench", "smoke", paced.name)
    until(lambda: "exactness" in gate_names(lab, paced), what="the gate")
    time.sleep(1.0)
    paced.fault(**PACE, die_after_s=0.01)
    done = run.end()
    assert done.rc != 0
    assert [r for r in runs(lab, since=before) if r["status"] == "valid"] == []


def failed_gates(lab: Project, host: HostView) -> list[str]:
    launch = host.launch()
    if launch is None:
        return []
    with lab.ledger() as book:
        return [g.name for g in book.gates(str(launch["nonce"])) if g.verdict is Verdict.FAIL]


def gate_names(lab: Project, host: HostView) -> str:
    launch = host.launch()
    if launch is None:
        return ""
    with lab.ledger() as book:
        return " ".join(g.name for g in book.gates(str(launch["nonce"])))


def test_a_strangers_port_is_refused_and_the_stranger_lives(
    lab: Project, clean_host: HostView
) -> None:
    lab.write("suites/tiny/smoke.toml", suite("smoke", levels="[1]"))
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", clean_host.port))
        stranger.listen()
        done = lab.run("bench", "smoke", clean_host.name)
        assert done.rc == 4, done
        assert stranger.getsockname()[1] == clean_host.port


def test_a_host_at_work_is_left_alone(lab: Project, paced: HostView) -> None:
    lab.profile("slow-load", "load_s=20")
    deploy = lab.spawn("deploy", paced.name, "--profile", "slow-load")
    until(lambda: paced.locked, what="the lock")
    try:
        done = lab.run("bench", "smoke", paced.name)
        assert done.rc in (4, 7), done
    finally:
        deploy.interrupt()
        deploy.end()


ARMS = '\n[[arms]]\nprofile = "sweep-a"\n\n[[arms]]\nprofile = "sweep-b"\n'


@pytest.fixture
def swept(lab: Project, paced: HostView) -> HostView:
    lab.profile("sweep-a", "commit=2")
    lab.profile("sweep-b", "commit=3")
    lab.write("suites/tiny/sweep.toml", suite("sweep", "launches = 2\n", "[1]", ARMS))
    return paced


def test_a_sweep_measures_every_cell_on_starts_of_its_own_and_comes_back(
    lab: Project, swept: HostView
) -> None:
    own, before = swept.serves(), mark(lab)
    done = patiently(lab, "bench", "sweep", swept.name)
    found = runs(lab, since=before)
    assert {r["status"] for r in found} == {"valid"}, done
    assert len(found) == 4  # two arms, two starts
    assert len({r["launch"] for r in found}) == 4
    assert swept.serves() == own
    again = lab.ok("bench", "sweep", swept.name)
    assert runs(lab, since=int(str(found[-1]["seq"]))) == []
    assert "RUN" not in again.out
    assert "nothing is left to measure" in again.err
    # A flag makes another cell: nothing of the old one is taken for it.
    lab.profile("sweep-b", "commit=4")
    plan = lab.ok("bench", "sweep", swept.name, "--dry-run", "--json").json
    assert isinstance(plan, dict)
    assert {s["arm"] for s in plan["starts"]} == {"sweep-b"}


def test_control_c_keeps_finished_cells_and_the_same_command_goes_on(
    lab: Project, swept: HostView
) -> None:
    lab.profile("sweep-a", "commit=2.5")
    lab.profile("sweep-b", "commit=3.5")
    before = mark(lab)
    run = lab.spawn("bench", "sweep", swept.name)
    until(lambda: len(runs(lab, since=before)) >= 1, what="the first run")
    run.interrupt()
    done = run.end()
    assert done.rc == 130, done
    assert f"ddops deploy {swept.name}" in done.err
    first = runs(lab, since=before)
    assert 1 <= len(first) < 4
    assert {r["status"] for r in first} == {"valid"}
    assert not swept.locked
    patiently(lab, "bench", "sweep", swept.name)
    cells = {(r["launch"], r["id"]) for r in runs(lab, since=before)}
    with lab.ledger() as book:
        assert valid(book, before) == len(cells) == 4
        assert book.verify() == []


def test_a_sweep_over_a_corrupt_arm_has_numbers_of_the_others_alone(
    lab: Project, swept: HostView
) -> None:
    lab.profile("sweep-a", "commit=2,step_ms=7")
    lab.profile("sweep-b", "garbage")
    lab.write("suites/tiny/sweep.toml", suite("sweep", "launches = 1\n", "[1]", ARMS))
    before = mark(lab)
    done = lab.spawn("bench", "sweep", swept.name).end(400)
    assert done.rc == 9, done
    found = runs(lab, since=before)
    assert sorted(str(r["status"]) for r in found) == ["valid", "void"]
    bad = [r for r in found if r["status"] == "void"]
    assert all("not deployed" in str(r["reason"]) for r in bad)
    assert all(r["output_tps"] is None for r in bad)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind = 3", "kind"),
        ('kind = "smoke"\nlevels = []', "levels"),
        ('kind = "smoke"\nlevels = [0]', "levels"),
        ('kind = "smoke"\nlevel = [1]', "levels"),
        ('kind = "sweep"\n[[arms]]\nprofile = "x"', "kind"),
        ("\0", "binary"),
    ],
)
def test_a_faulty_suite_names_its_fault(
    lab: Project, serving: HostView, text: str, words: str
) -> None:
    lab.write("suites/tiny/smoke.toml", text)
    done = lab.run("bench", "smoke", serving.name)
    assert done.rc == 2, done
    assert words in done.err
    assert "suites/tiny/smoke.toml" in done.err


def test_a_host_that_serves_nothing_is_refused(lab: Project, clean_host: HostView) -> None:
    lab.write("suites/tiny/smoke.toml", suite("smoke", levels="[1]"))
    done = lab.run("bench", "smoke", clean_host.name)
    assert done.rc == 4, done
    assert "does not run" in done.err
    assert "ddops deploy" in done.err
