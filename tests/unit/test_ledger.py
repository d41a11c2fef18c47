"""Opening, writing, reading."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from ddops.command import Redactor
from ddops.errors import DdopsError, RefusedError, UsageError
from ddops.ledger import Deployment, Ledger, Outcome
from ddops.model import GateResult, Verdict

A, B, C = "a" * 64, "b" * 64, "c" * 64
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Ticks:
    """A clock that goes on by one second at each look."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".ddops" / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.open(path, redactor=Redactor(), clock=Ticks()) as opened:
        opened._conn.execute("PRAGMA synchronous = OFF")  # only speed: no power cut comes
        yield opened


def deploy(ledger: Ledger, op_id: str, *states: str, release: str = A, host: str = "b300") -> None:
    """A deployment of k26 that went through `states`, all ok."""
    ledger.add_host(host, {})
    ledger.add_release(release, service="k26", spec={"argv": [release[:4]]})
    ledger.add_deployment(op_id, service="k26", release=release, host=host, by="ann")
    for state in states:
        ledger.add_transition(op_id, state, Outcome.OK)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_file_is_private_whatever_the_umask(path: Path) -> None:
    old = os.umask(0)
    try:
        with Ledger.open(path, redactor=Redactor()) as ledger:
            ledger.add_host("b300", {})
            names = {p.name: mode(p) for p in path.parent.iterdir()}
    finally:
        os.umask(old)
    assert names == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    assert mode(path.parent) == 0o700


def test_missing_folders_are_private_too(tmp_path: Path) -> None:
    deep = tmp_path / "x" / "y" / "ledger.db"
    Ledger.open(deep, redactor=Redactor()).close()
    assert mode(tmp_path / "x") == mode(tmp_path / "x" / "y") == 0o700


def test_existing_folder_and_file_keep_their_modes(path: Path) -> None:
    path.parent.mkdir(mode=0o755)
    Ledger.open(path, redactor=Redactor()).close()
    path.chmod(0o640)
    Ledger.open(path, redactor=Redactor()).close()
    assert (mode(path.parent), mode(path)) == (0o755, 0o640)


@pytest.mark.parametrize("name", ["a?b#c%41.db", "two words.db", "ü-ledger.db", "a&mode=memory"])
def test_odd_paths_are_taken_literally(tmp_path: Path, name: str) -> None:
    with Ledger.open(tmp_path / name, redactor=Redactor()) as ledger:
        ledger.add_host("b300", {})
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize("readonly", [False, True])
def test_pragmas_of_every_connection(path: Path, readonly: bool) -> None:
    want = {
        "journal_mode": "wal",
        "foreign_keys": 1,
        "recursive_triggers": 1,
        "busy_timeout": 10_000,
        "synchronous": 2,  # FULL
        "trusted_schema": 0,
    }
    Ledger.open(path, redactor=Redactor()).close()
    with Ledger.open(path, redactor=Redactor(), readonly=readonly) as ledger:
        got = {name: ledger._conn.execute(f"PRAGMA {name}").fetchone()[0] for name in want}
    assert got == want


def test_dangling_link_is_not_followed(tmp_path: Path) -> None:
    link = tmp_path / "ledger.db"
    link.symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(DdopsError):
        Ledger.open(link, redactor=Redactor())
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize(
    "content",
    [b"x", b"not a database\n" * 100, b"SQLite format 3\0" + b"\xff" * 4096, os.urandom(9000)],
    ids=["one byte", "text", "header and noise", "noise"],
)
@pytest.mark.parametrize("readonly", [False, True])
def test_what_is_no_ledger_is_left_alone(tmp_path: Path, content: bytes, readonly: bool) -> None:
    file = tmp_path / "ledger.db"
    file.write_bytes(content)
    with pytest.raises(DdopsError) as e:
        Ledger.open(file, redactor=Redactor(), readonly=readonly)
    assert e.value.what and e.value.why and e.value.next
    assert file.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.db"]


@pytest.mark.parametrize("readonly", [False, True])
def test_another_programs_database_is_refused(tmp_path: Path, readonly: bool) -> None:
    file = tmp_path / "ledger.db"
    other = sqlite3.connect(file)
    other.execute("CREATE TABLE moz_places (id)")
    other.close()
    before = file.read_bytes()
    with pytest.raises(DdopsError, match="not a ledger"):
        Ledger.open(file, redactor=Redactor(), readonly=readonly)
    assert file.read_bytes() == before


def test_folder_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(DdopsError):
        Ledger.open(tmp_path, redactor=Redactor())


def test_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(DdopsError, match="cannot create"):
        Ledger.open(tmp_path / "f" / "ledger.db", redactor=Redactor())


def test_readonly_never_creates_or_writes(path: Path) -> None:
    with pytest.raises(DdopsError, match="no ledger"):
        Ledger.open(path, redactor=Redactor(), readonly=True)
    assert not path.parent.exists()
    with Ledger.open(path, redactor=Redactor()) as ledger:
        deploy(ledger, "op1", "committed")
    before = path.read_bytes()
    with Ledger.open(path, redactor=Redactor(), readonly=True) as ledger:
        assert ledger.last_committed("k26", "b300") is not None
        assert ledger.verify() == []
        with pytest.raises(RefusedError):
            ledger.add_host("b300", {})
        with pytest.raises(sqlite3.OperationalError):
            ledger._conn.execute("CREATE TABLE t (a)")
    assert path.read_bytes() == before


def test_readonly_refuses_what_needs_migrating(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    with pytest.raises(RefusedError, match="older than this ddops"):
        Ledger.open(path, redactor=Redactor(), readonly=True)
    assert path.read_bytes() == b""


def test_readonly_on_a_folder_nobody_can_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(path, redactor=Redactor()) as ledger:
        deploy(ledger, "op1")
    path.parent.chmod(0o555)
    root = os.geteuid() == 0
    if root:  # no mode binds root, so be somebody else for a while
        for folder in (path.parent, *path.parents):
            if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
                folder.chmod(0o555)
        path.chmod(0o444)
        monkeypatch.setattr(os, "access", lambda p, m: not m & os.W_OK)
        os.seteuid(65534)
    try:
        with Ledger.open(path, redactor=Redactor(), readonly=True) as ledger:
            assert [d.op_id for d in ledger.deployments()] == ["op1"]
            assert ledger.verify() == []
    finally:
        if root:
            os.seteuid(0)
        path.parent.chmod(0o755)
    assert [p.name for p in path.parent.iterdir()] == ["ledger.db"]


def test_rows_come_back_as_they_went_in(ledger: Ledger) -> None:
    host_id = ledger.add_host("b300", {"host_fingerprint": "SHA256:x"})
    ledger.add_facts("b300", {"gpus": [{"uuid": "GPU-1"}]}, digest=C, simulated=True, at=START)
    ledger.add_release(
        A, service="k26", spec={"argv": ["x"]}, upstream="u", series="s", lock="l", plugin="p",
        model="m@1", draft="d@2",
    )  # fmt: skip
    ledger.add_deployment("op1", service="k26", release=A, host="b300", by="ann", previous=B)
    assert ledger.add_transition("op1", "locked", Outcome.OK, {"lock": 1}) == 1
    assert ledger.add_transition("op1", "soaked", Outcome.SKIP) == 2
    ledger.add_launch("n1", deployment="op1", host=host_id, release=A)
    gate = GateResult("G2", Verdict.UNKNOWN, "no answer", {"tries": 3})
    gate_id = ledger.add_gate(gate, deployment="op1", launch="n1")
    early = ledger.add_gate(GateResult("flags", Verdict.PASS, "ok"), deployment="op1")

    host = ledger.host("b300")
    assert host is not None
    assert (host.id, host.pins) == (host_id, {"host_fingerprint": "SHA256:x"})
    facts = ledger.facts_latest("b300")
    assert facts is not None
    assert (facts.at, facts.simulated, facts.digest, facts.host) == (START, True, C, "b300")
    assert facts.json == {"gpus": [{"uuid": "GPU-1"}]}
    release = ledger.release("aaaa")
    assert release is not None
    assert (release.digest, release.spec) == (A, {"argv": ["x"]})
    assert (release.upstream, release.series, release.lock) == ("u", "s", "l")
    assert (release.plugin, release.model, release.draft) == ("p", "m@1", "d@2")
    deployment = ledger.deployment("op1")
    assert deployment is not None
    assert (deployment.by, deployment.previous, deployment.host) == ("ann", B, "b300")
    assert [(t.n, t.state, t.verdict, t.evidence) for t in ledger.transitions("op1")] == [
        (1, "locked", Outcome.OK, {"lock": 1}),
        (2, "soaked", Outcome.SKIP, {}),
    ]
    launch = ledger.launch("n1")
    assert launch is not None
    assert (launch.host, launch.host_id, launch.release) == ("b300", host_id, A)
    assert ledger.launches("b300") == ledger.launches(host_id) == [launch]
    [stored] = ledger.gates("n1")
    assert (stored.id, stored.name, stored.verdict) == (gate_id, "G2", Verdict.UNKNOWN)
    assert (stored.message, stored.evidence) == ("no answer", {"tries": 3})
    assert [g.id for g in ledger.deployment_gates("op1")] == [gate_id, early]
    assert ledger.verify() == []


def test_nothing_there_is_none_or_empty(ledger: Ledger) -> None:
    for one in (
        ledger.host("x"),
        ledger.facts_latest("x"),
        ledger.release("abcd"),
        ledger.deployment("x"),
        ledger.launch("x"),
        ledger.last_committed("k", "x"),
    ):
        assert one is None
    for many in (
        ledger.deployments(),
        ledger.open_deployments("x"),
        ledger.transitions("x"),
        ledger.launches("x"),
        ledger.gates("x"),
    ):
        assert many == []
    assert ledger.head().seq == 0
    assert ledger.verify(ledger.head()) == []


def test_hosts_get_a_new_row_only_for_new_pins(ledger: Ledger) -> None:
    first = ledger.add_host("b300", {"a": 1, "b": 2})
    assert ledger.add_host("b300", {"b": 2, "a": 1}) == first
    second = ledger.add_host("b300", {"a": 2})
    assert second != first
    assert ledger.add_host("b300", {"a": 1, "b": 2}) not in (first, second)
    assert ledger.head().seq == 3


def test_facts_latest_looks_at_all_rows_of_a_host(ledger: Ledger) -> None:
    for n in range(3):
        ledger.add_host("b300", {"n": n})
        ledger.add_facts("b300", {"n": n}, digest=C, simulated=False)
    facts = ledger.facts_latest("b300")
    assert facts is not None and facts.json == {"n": 2}


def test_a_release_is_recorded_once(ledger: Ledger) -> None:
    assert ledger.add_release(A, service="k26", spec={"a": 1}, model="m") == A
    seq = ledger.head().seq
    assert ledger.add_release(A, service="k26", spec={"a": 1}, model="m") == A
    assert ledger.head().seq == seq
    with pytest.raises(DdopsError, match="other content") as e:
        ledger.add_release(A, service="k26", spec={"a": 2}, model="m", draft="d")
    assert "spec, draft differ" in e.value.why
    assert ledger.head().seq == seq
    assert ledger.verify() == []


def test_release_by_prefix(ledger: Ledger) -> None:
    one, two = "abcd1" + "0" * 59, "abcd2" + "0" * 59
    for digest in (one, two):
        ledger.add_release(digest, service="k26", spec={})
    found = ledger.release("abcd1")
    assert found is not None and found.digest == one
    assert ledger.release("abcd3") is None
    with pytest.raises(UsageError, match="not one release"):
        ledger.release("abcd")
    for bad in ("abc", "ABCD1", "%%%%", "abcd*", "", A + "a"):
        with pytest.raises(UsageError):
            ledger.release(bad)


def names(found: list[Deployment]) -> list[str]:
    return [d.op_id for d in found]


def test_deployments_newest_first_and_filtered(ledger: Ledger) -> None:
    for n in range(4):
        deploy(ledger, f"op{n}", host=f"h{n % 2}")
    assert names(ledger.deployments()) == ["op3", "op2", "op1", "op0"]
    assert names(ledger.deployments(host="h0")) == ["op2", "op0"]
    assert names(ledger.deployments(service="k26", limit=1)) == ["op3"]
    assert ledger.deployments(service="other") == ledger.deployments(limit=0) == []


def test_last_committed_takes_commits_alone(ledger: Ledger) -> None:
    deploy(ledger, "op1", "locked", "committed", release=A)
    deploy(ledger, "op2", "locked", "rolling_back", "restored", release=B)
    deploy(ledger, "op3", "locked", release=C)
    ledger.add_transition("op3", "committed", Outcome.FAIL)
    last = ledger.last_committed("k26", "b300")
    assert last is not None and (last.op_id, last.release) == ("op1", A)
    assert ledger.last_committed("k26", "other") is None
    assert ledger.last_committed("other", "b300") is None


def test_last_committed_goes_by_the_commit_not_the_beginning(ledger: Ledger) -> None:
    deploy(ledger, "early", "locked", release=A)
    deploy(ledger, "late", "committed", release=B)
    ledger.add_transition("early", "committed", Outcome.OK)
    last = ledger.last_committed("k26", "b300")
    assert last is not None and last.op_id == "early"


def test_last_committed_does_not_believe_a_clock_set_back(path: Path) -> None:
    times = iter(START - timedelta(hours=n) for n in range(100))
    with Ledger.open(path, redactor=Redactor(), clock=lambda: next(times)) as ledger:
        for n in range(3):
            deploy(ledger, f"op{n}", "committed")
        last = ledger.last_committed("k26", "b300")
    assert last is not None and last.op_id == "op2"


def test_open_deployments(ledger: Ledger) -> None:
    for state in ("committed", "restored", "stuck", "failed", "gated", "rolling_back"):
        deploy(ledger, state, "locked", state)
    deploy(ledger, "new")
    deploy(ledger, "elsewhere", host="h2")
    deploy(ledger, "uncommitted")
    ledger.add_transition("uncommitted", "committed", Outcome.UNKNOWN)
    ledger.add_transition("gated", "stuck", Outcome.FAIL)
    assert names(ledger.open_deployments("b300")) == ["uncommitted", "new", "rolling_back"]
    assert "elsewhere" in names(ledger.open_deployments())


@pytest.mark.parametrize(
    "add",
    [
        lambda x: x.add_facts("nobody", {}, digest=A, simulated=False),
        lambda x: x.add_deployment("o", service="k26", release=A, host="nobody", by="a"),
        lambda x: x.add_deployment("o", service="k26", release=B, host="b300", by="a"),
        lambda x: x.add_deployment("op1", service="k26", release=A, host="b300", by="a"),
        lambda x: x.add_transition("none", "locked", Outcome.OK),
        lambda x: x.add_launch("n", deployment="none", host="b300", release=A),
        lambda x: x.add_launch("n", deployment="op1", host="b300", release=B),
        lambda x: x.add_gate(GateResult("G0", Verdict.PASS, ""), deployment="none"),
        lambda x: x.add_gate(GateResult("G0", Verdict.PASS, ""), deployment="op1", launch="none"),
        lambda x: x.add_release("abc", service="k26", spec={}),
        lambda x: x.add_release(A.upper(), service="k26", spec={}),
        lambda x: x.add_host("", {}),
        lambda x: x.add_host("a\nb", {}),
        lambda x: x.add_host("a" * 300, {}),
        lambda x: x.add_transition("op1", "locked", Outcome.OK, {"f": object()}),
        lambda x: x.add_transition("op1", "locked", Outcome.OK, at=datetime(2026, 1, 1)),
    ],
)
def test_bad_rows_are_refused_and_leave_no_trace(
    ledger: Ledger, add: Callable[[Ledger], object]
) -> None:
    deploy(ledger, "op1")
    before = ledger.head()
    with pytest.raises(DdopsError) as e:
        add(ledger)
    assert e.value.why and e.value.next
    assert ledger.head() == before
    deploy(ledger, "op2")
    assert ledger.verify(before) == []


def test_a_batch_is_all_or_nothing(ledger: Ledger) -> None:
    deploy(ledger, "op1")
    before = ledger.head()
    with pytest.raises(ZeroDivisionError), ledger.batch():
        deploy(ledger, "op2", "locked")
        raise ZeroDivisionError
    assert ledger.head() == before
    with ledger.batch():
        deploy(ledger, "op3", "locked")
        with ledger.batch():
            ledger.add_transition("op3", "probed", Outcome.OK)
        with pytest.raises(DdopsError):
            ledger.add_transition("none", "locked", Outcome.OK)
    assert [t.state for t in ledger.transitions("op3")] == ["locked", "probed"]
    assert ledger.verify(before) == []


def test_a_batch_rolls_back_on_interrupt(ledger: Ledger) -> None:
    with pytest.raises(KeyboardInterrupt), ledger.batch():
        deploy(ledger, "op1")
        raise KeyboardInterrupt
    assert ledger.head().seq == 0
    deploy(ledger, "op1")


def test_threads_share_a_ledger(ledger: Ledger) -> None:
    deploy(ledger, "op1")

    def work() -> None:
        for _ in range(10):
            ledger.add_transition("op1", "locked", Outcome.OK)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [t.n for t in ledger.transitions("op1")] == list(range(1, 41))
    assert ledger.verify() == []


def test_readers_see_the_last_commit_while_a_writer_writes(path: Path, ledger: Ledger) -> None:
    deploy(ledger, "op1")
    with Ledger.open(path, redactor=Redactor(), readonly=True) as reader:
        with ledger.batch():
            deploy(ledger, "op2")
            assert names(reader.deployments()) == ["op1"]
            assert reader.verify() == []
            assert ledger.query("SELECT count(*) AS n FROM deployment") == [{"n": 1}]
        assert names(reader.deployments()) == ["op2", "op1"]


def test_a_writer_that_waits_too_long_says_so(
    path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(path, redactor=Redactor()) as other, ledger.batch():
        other._conn.execute("PRAGMA busy_timeout = 50")
        with pytest.raises(DdopsError, match="busy"):
            other.add_host("b300", {})


def test_a_full_disk_is_an_error_and_no_row(ledger: Ledger) -> None:
    deploy(ledger, "op1")
    before = ledger.head()
    pages = ledger._conn.execute("PRAGMA page_count").fetchone()[0]
    ledger._conn.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DdopsError, match="no room"):
        ledger.add_transition("op1", "locked", Outcome.OK, {"log": "x y " * 50_000})
    ledger._conn.execute(f"PRAGMA max_page_count = {pages * 1000}")
    assert ledger.head() == before
    ledger.add_transition("op1", "locked", Outcome.OK)
    assert ledger.verify(before) == []


def test_times_are_stored_in_utc(ledger: Ledger) -> None:
    deploy(ledger, "op1")
    east = datetime(2026, 6, 1, 2, 0, tzinfo=timezone(timedelta(hours=5)))
    ledger.add_transition("op1", "locked", Outcome.OK, at=east)
    assert ledger.transitions("op1")[0].at == east
    stored = ledger.query("SELECT at, datetime(at) AS t FROM transition")
    assert stored == [{"at": "2026-05-31T21:00:00.000000Z", "t": "2026-05-31 21:00:00"}]
