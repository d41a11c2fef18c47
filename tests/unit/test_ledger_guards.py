# ruff: noqa: S608  (SQL is put together from the names of tables on purpose)
"""Append-only for any tool, and a chain that shows what was done by force."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils import Database

from ddops.command import Redactor
from ddops.ledger import (
    Cell,
    Device,
    Identity,
    Ledger,
    NewCondition,
    NewRun,
    NewSample,
    NewTask,
    Outcome,
    RawData,
    Scope,
    Status,
    chain,
    guards,
    verify,
)
from ddops.ledger.chain import quoted
from ddops.ledger.schema import STEPS, Step, migrate
from ddops.ledger.store import utc_now
from ddops.model import GateResult, Verdict

A, B = "a" * 64, "b" * 64
CHAINED = verify.TABLES
ALL = (*CHAINED, *guards.UNCHAINED)
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "ledger.md"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A ledger with two rows or more in every table."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    with Ledger.open(path, redactor=Redactor()) as ledger:
        for n, digest in enumerate((A, B)):
            ledger.add_host("b300", {"n": n})
            ledger.add_facts("b300", {"n": n}, digest=digest, simulated=False)
            ledger.add_release(digest, service="k26", spec={"n": n})
            op = f"op{n}"
            ledger.add_deployment(op, service="k26", release=digest, host="b300", by="ann")
            ledger.add_transition(op, "locked", Outcome.OK)
            ledger.add_launch(f"n{n}", deployment=op, host="b300", release=digest)
            ledger.add_snapshot(digest, host="b300", tree="t" * 40, release=A, manifest={"n": n})
            ledger.add_copy(digest, place="git:x", state="verified")
            ledger.add_drill(digest, place="git:x", verdict="PASS")
            task = NewTask(step="look", content="Look", priority="high")
            ledger.add_runbook_run(
                f"r{n}", runbook=f"book{n}", source="x", params={}, hosts=["b300"], by="ann",
                tasks=[task],
            )  # fmt: skip
            result = GateResult("G0", Verdict.PASS, "up")
            gate = ledger.add_gate(result, deployment=op, launch=f"n{n}")
            measure(ledger, f"n{n}", gate, digest)
    return path.read_bytes()


def measure(ledger: Ledger, nonce: str, gate: str, tree: str) -> None:
    """A run with all that can go with it, cited and withdrawn."""
    ledger.add_tree(tree, upstream="sglang-0.5.23")
    cell = Cell(suite="smoke", vary={"tree": tree}, fix={"concurrency": 1})
    run = NewRun(
        cell=ledger.add_cell(cell),
        launch=nonce,
        gates=(gate,),
        tree=tree,
        status=Status.VALID,
        identity=Identity.PROVEN,
        device_class=Device.SIM,
        started=utc_now(),
        ended=utc_now(),
        requests=1,
    )
    looks = [NewCondition(n=0, at_ns=0, device="GPU-1")]
    raw = [RawData(kind="events", data=b"\0\1", text=False)]
    run_id = ledger.add_run(run, [NewSample(n=0, prompt="p")], looks, raw)
    ledger.add_finding("report", "k26", "it runs", [run_id], by="ann")
    ledger.retract(Scope.RUN, run_id, reason="only a test", by="ann")


@pytest.fixture
def path(tmp_path: Path, template: bytes) -> Path:
    copy = tmp_path / "ledger.db"
    copy.write_bytes(template)
    return copy


@pytest.fixture
def foreign(path: Path) -> Iterator[sqlite3.Connection]:
    """Another tool's connection, with SQLite's default pragmas."""
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        yield conn


def dump(conn: sqlite3.Connection) -> dict[str, list[sqlite3.Row]]:
    return {t: conn.execute(f'SELECT * FROM "{t}"').fetchall() for t in ALL}


def problems(path: Path) -> list[str]:
    with Ledger.open(path, redactor=Redactor(), readonly=True) as ledger:
        return ledger.verify()


SAME_ROWS = 'INSERT INTO "{t}" SELECT * FROM "{t}" WHERE true'
CHANGES = {
    "update": 'UPDATE "{t}" SET {c} = {c}',
    "update or replace": 'UPDATE OR REPLACE "{t}" SET {c} = {c}',
    "update or ignore": 'UPDATE OR IGNORE "{t}" SET {c} = {c}',
    "delete": 'DELETE FROM "{t}"',
    "delete where": 'DELETE FROM "{t}" WHERE {c} IS {c}',
    "insert or replace": 'INSERT OR REPLACE INTO "{t}" SELECT * FROM "{t}" LIMIT 1',
    "replace": 'REPLACE INTO "{t}" SELECT * FROM "{t}"',
    "insert or rollback": 'INSERT OR ROLLBACK INTO "{t}" SELECT * FROM "{t}" LIMIT 1',
    "insert or fail": 'INSERT OR FAIL INTO "{t}" SELECT * FROM "{t}" LIMIT 1',
    "upsert": SAME_ROWS + " ON CONFLICT DO UPDATE SET {c} = {c}",
    "upsert nothing": SAME_ROWS + " ON CONFLICT DO NOTHING",
}


@pytest.mark.parametrize("table", ALL)
def test_no_tool_can_change_a_row(foreign: sqlite3.Connection, table: str) -> None:
    before = dump(foreign)
    assert before[table], "a table without rows proves nothing"
    column = guards.columns(foreign, table)[-1]
    for name, change in CHANGES.items():
        with pytest.raises(sqlite3.DatabaseError, match="append-only"):
            foreign.execute(change.format(t=table, c=f'"{column}"'))
        assert dump(foreign) == before, name


@pytest.mark.parametrize("table", CHAINED)
def test_a_well_linked_row_cannot_replace_by_another_key(
    foreign: sqlite3.Connection, table: str
) -> None:
    """The next sequence and the right prev and hash, but a key that is taken."""
    conn = foreign
    old = dict(conn.execute(f'SELECT * FROM "{table}" ORDER BY seq LIMIT 1').fetchone())
    head = chain.head(conn, CHAINED, old["ledger"])
    new = {**old, "seq": head.seq + 1, "prev": head.hash}
    new["hash"] = chain.row_hash(table, new)
    before = dump(foreign)
    marks = ", ".join("?" * len(new))
    with pytest.raises(sqlite3.IntegrityError, match="a row has this key already"):
        foreign.execute(f'INSERT OR REPLACE INTO "{table}" VALUES ({marks})', tuple(new.values()))
    assert dump(foreign) == before


def test_rowid_is_no_way_round(foreign: sqlite3.Connection) -> None:
    before = dump(foreign)
    for table in ALL:
        for name in ("rowid", "_rowid_", "oid"):
            columns = guards.columns(foreign, table)
            marks = ", ".join("?" * (len(columns) + 1))
            names = ", ".join([name, *(f'"{c}"' for c in columns)])
            values = (1, *before[table][0])
            with pytest.raises(sqlite3.DatabaseError):
                foreign.execute(f'REPLACE INTO "{table}" ({names}) VALUES ({marks})', values)
    assert dump(foreign) == before


@pytest.mark.parametrize(
    ("seq", "prev"),
    [(1, 0), (+1, 1), (0, 0), (-5, 0)],
    ids=["gap", "wrong prev", "taken", "before"],
)
def test_a_row_out_of_order_is_refused(foreign: sqlite3.Connection, seq: int, prev: int) -> None:
    conn = foreign
    ledger = conn.execute("SELECT value FROM meta WHERE key = 'ledger'").fetchone()[0]
    head = chain.head(conn, CHAINED, ledger)
    at = head.seq + 1 + (seq if prev == 0 else 0) - (1 if seq == 0 else 0)
    link = A if prev else head.hash
    with pytest.raises(sqlite3.IntegrityError, match="not the next row"):
        foreign.execute(
            "INSERT INTO host (ledger, seq, prev, hash, id, name, pins) VALUES (?,?,?,?,?,?,?)",
            (ledger, at, link, A, "new", "n", "{}"),
        )


def test_another_chain_can_stand_beside(foreign: sqlite3.Connection, path: Path) -> None:
    """What a merge does: whole rows of another ledger, in order; same release, same host."""
    conn = foreign
    last: dict[str, str] = {}
    for link in conn.execute("SELECT * FROM chain ORDER BY seq").fetchall():
        table = link["tbl"]
        row = dict(
            conn.execute(f'SELECT * FROM "{table}" WHERE seq = ?', (link["seq"],)).fetchone()
        )
        row["ledger"] = "other"
        row["prev"] = last.get("hash", chain.ROOT)
        row["hash"] = last["hash"] = chain.row_hash(table, row)
        marks = ", ".join("?" * len(row))
        foreign.execute(f'INSERT INTO "{table}" VALUES ({marks})', tuple(row.values()))
    with Ledger.open(path, redactor=Redactor()) as ledger:
        assert ledger.verify() == []
        assert len(ledger.deployments()) == 4
        release = ledger.release(A[:12])
        assert release is not None and release.ledger == ledger.ledger_id
        ledger.add_transition("op1", "committed", Outcome.OK)
        last_one = ledger.last_committed("k26", "b300")
        assert last_one is not None and last_one.ledger == ledger.ledger_id
        assert [d.op_id for d in ledger.open_deployments("b300")] == ["op0", "op0"]
        assert ledger.verify() == []


def test_every_table_is_guarded_strict_and_without_rowid(foreign: sqlite3.Connection) -> None:
    """Asks the file, not our lists: a table that a later migration forgets fails here."""
    conn = foreign
    triggers = conn.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'")
    have: dict[str, set[str]] = {}
    for name, table, _ in triggers:
        have.setdefault(table, set()).add(name.removeprefix(f"{table}_"))
    listed = conn.execute("PRAGMA table_list").fetchall()
    kinds = {r["name"]: r for r in listed if r["type"] == "table" and r["schema"] == "main"}
    found = {n for n in kinds if not n.startswith("sqlite_")}
    assert found == set(ALL)
    for table in found - {"_sqlite_migrations"}:
        assert (kinds[table]["strict"], kinds[table]["wr"]) == (1, 1), table
    for table in found:
        wanted = {"no_update", "no_delete", "no_replace"}
        if table not in guards.UNCHAINED:
            wanted.add("in_order")
            assert guards.columns(conn, table)[:4] == list(chain.COLUMNS)
            assert guards.keys(conn, table)[0] == ["ledger", "seq"]
        assert have[table] == wanted, table


def test_foreign_keys_stay_within_the_ledger(foreign: sqlite3.Connection) -> None:
    conn = foreign
    for table in CHAINED:
        parts = conn.execute(f'PRAGMA foreign_key_list("{table}")').fetchall()
        for key in {p["id"] for p in parts}:
            assert ("ledger", "ledger") in {(p["from"], p["to"]) for p in parts if p["id"] == key}


def test_a_new_table_gets_its_guards_by_itself(path: Path) -> None:
    def add(db: Database) -> None:
        db.conn.execute(
            "CREATE TABLE later (ledger TEXT NOT NULL, seq INTEGER NOT NULL, prev TEXT NOT NULL, "
            "hash TEXT NOT NULL, digest TEXT, UNIQUE (ledger, digest), "
            "PRIMARY KEY (ledger, seq)) STRICT, WITHOUT ROWID"
        )

    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        migrate(conn, path, utc_now(), (*STEPS, Step("9999_later", "9.9.9", add)))
        assert "later" in guards.chained(conn)
        assert guards.missing(conn) == []
        with pytest.raises(sqlite3.IntegrityError, match="not the next row"):
            conn.execute("INSERT INTO later VALUES ('l', 2, ?, ?, 'd')", (A, A))
        head = conn.execute("SELECT ledger, max(seq) AS seq FROM chain").fetchone()
        with pytest.raises(sqlite3.IntegrityError, match="not the next row"):
            conn.execute(
                "INSERT INTO later VALUES (?, ?, ?, ?, 'd')", (head["ledger"], head["seq"], A, A)
            )


# Tampering: by force, with the triggers dropped.


@pytest.fixture
def forced(foreign: sqlite3.Connection) -> sqlite3.Connection:
    foreign.execute("PRAGMA synchronous = OFF")  # only speed: no power cut comes
    triggers = foreign.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
    drops = "".join(f'DROP TRIGGER "{name}";' for (name,) in triggers.fetchall())
    foreign.executescript(f"BEGIN; {drops} COMMIT")
    return foreign


def without_triggers(found: list[str]) -> list[str]:
    """What else is wrong. All triggers are gone, which are more than `verify` lists of a kind."""
    rest = [p for p in found if not p.startswith("trigger ")]
    return rest[1:] if rest[:1] == ["and more of this kind"] else rest


def test_dropped_and_changed_triggers_are_named(path: Path, foreign: sqlite3.Connection) -> None:
    foreign.execute("DROP TRIGGER gate_no_delete")
    foreign.execute("DROP TRIGGER meta_no_update")
    foreign.execute("CREATE TRIGGER meta_no_update BEFORE UPDATE ON meta BEGIN SELECT 1; END")
    assert problems(path) == [
        "trigger gate_no_delete is missing or changed",
        "trigger meta_no_update is missing or changed",
    ]


@pytest.mark.parametrize("table", CHAINED)
def test_an_edited_row_is_named(path: Path, forced: sqlite3.Connection, table: str) -> None:
    texts = (
        "evidence",
        "started",
        "pins",
        "json",
        "at",
        "text",
        "kind",
        "throttle",
        "prompt",
        "of",
    )
    columns = guards.columns(forced, table)
    column = quoted(next(c for c in (*texts, "gate") if c in columns))
    forced.execute("PRAGMA foreign_keys = OFF")
    ledger, seq = forced.execute(f'SELECT ledger, seq FROM "{table}" ORDER BY seq').fetchone()
    forced.execute(f'UPDATE "{table}" SET {column} = ? WHERE seq = ?', ('{"n":7}', seq))
    found = [p for p in without_triggers(problems(path)) if not p.endswith("is missing")]
    assert found == [f"{table} seq {seq} of ledger {ledger}: content does not match its hash"]


def test_every_column_is_hashed(path: Path, forced: sqlite3.Connection) -> None:
    other = {"INTEGER": 99, "REAL": 9.5, "BLOB": b"other", "TEXT": "f" * 64}
    forced.execute("PRAGMA foreign_keys = OFF")
    forced.execute("PRAGMA ignore_check_constraints = ON")
    for table in CHAINED:
        for info in forced.execute(f'PRAGMA table_info("{table}")').fetchall():
            column, value = info["name"], other[info["type"]]
            if column in chain.COLUMNS:
                continue
            row = forced.execute(f'SELECT seq, "{column}" FROM "{table}" ORDER BY seq').fetchone()
            forced.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE seq = ?', (value, row[0]))
            found = [p for p in problems(path) if "match its hash" in p]
            assert [p.split(" of ")[0] for p in found] == [f"{table} seq {row[0]}"], column
            forced.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE seq = ?', (row[1], row[0]))
    assert without_triggers(problems(path)) == []


def test_an_edited_row_with_a_fresh_hash_breaks_the_next_link(
    path: Path, forced: sqlite3.Connection
) -> None:
    conn = forced
    row = dict(conn.execute("SELECT * FROM transition ORDER BY seq").fetchone())
    row["state"] = "committed"
    forced.execute(
        "UPDATE transition SET state = ?, hash = ? WHERE seq = ?",
        (row["state"], chain.row_hash("transition", row), row["seq"]),
    )
    [found] = without_triggers(problems(path))
    assert (
        f"seq {row['seq'] + 1} " in found
        and f"does not follow transition seq {row['seq']}" in found
    )


def last_table(conn: sqlite3.Connection) -> str:
    """The table of the chain's newest row."""
    return str(conn.execute("SELECT tbl FROM chain ORDER BY seq DESC LIMIT 1").fetchone()[0])


def test_a_removed_row_leaves_a_gap(path: Path, forced: sqlite3.Connection) -> None:
    seq = forced.execute("SELECT seq FROM gate ORDER BY seq").fetchone()[0]
    forced.execute("PRAGMA foreign_keys = OFF")
    forced.execute("DELETE FROM gate WHERE seq = ?", (seq,))
    [found] = [p for p in without_triggers(problems(path)) if "its gate is missing" not in p]
    assert f"sequence {seq} before it is missing" in found


def test_rows_cut_off_the_end_are_seen_from_a_noted_head(
    path: Path, forced: sqlite3.Connection
) -> None:
    with Ledger.open(path, redactor=Redactor(), readonly=True) as ledger:
        head = ledger.head()
    table = last_table(forced)
    forced.execute("PRAGMA foreign_keys = OFF")
    forced.execute(f'DELETE FROM "{table}" WHERE seq = ?', (head.seq,))
    with Ledger.open(path, redactor=Redactor(), readonly=True) as ledger:
        assert without_triggers(ledger.verify()) == []
        assert without_triggers(ledger.verify(head)) == [
            f"sequence {head.seq} of ledger {head.ledger} was noted earlier and is gone"
        ]


def test_a_rewritten_chain_is_seen_from_a_noted_head(
    path: Path, foreign: sqlite3.Connection
) -> None:
    with Ledger.open(path, redactor=Redactor(), readonly=True) as ledger:
        head = ledger.head()
        found = ledger.verify(type(head)(ledger=head.ledger, seq=head.seq, hash=A))
    assert found == [
        f"{last_table(foreign)} seq {head.seq} of ledger {head.ledger}: "
        "its hash is not the one noted earlier"
    ]


def test_a_broken_foreign_key_names_the_row(path: Path, forced: sqlite3.Connection) -> None:
    forced.execute("PRAGMA foreign_keys = OFF")
    seq = forced.execute("SELECT seq FROM launch ORDER BY seq").fetchone()[0]
    forced.execute("UPDATE launch SET deployment = 'none' WHERE seq = ?", (seq,))
    found = " ".join(problems(path))
    assert f"launch seq {seq} of ledger" in found and "its deployment is missing" in found


def test_foreign_tables_and_lost_tables_are_named(path: Path, forced: sqlite3.Connection) -> None:
    forced.execute("CREATE TABLE notes (a)")
    forced.execute("PRAGMA foreign_keys = OFF")
    forced.execute("DROP TABLE raw")
    found = without_triggers(problems(path))
    assert "table raw is missing" in found
    assert "table notes is not one of the ledger's" in found


def test_damaged_pages_are_reported_not_raised(path: Path) -> None:
    content = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as conn:
        sql = "SELECT rootpage - 1 FROM sqlite_master WHERE tbl_name = 'gate' AND rootpage > 0"
        pages = [r[0] for r in conn.execute(sql)]
    for page in pages:
        content[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    path.write_bytes(content)
    assert any("integrity" in p or "cannot read on" in p for p in problems(path))


def test_a_truncated_file_is_an_error_or_a_report(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 5 * 4096])
    assert verify.run(path, [])


# The reference page says what the schema is.


def documented() -> dict[str, list[tuple[str, str, str]]]:
    out: dict[str, list[tuple[str, str, str]]] = {}
    for section in re.split(r"^## ", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0].strip()
        cells = [
            [c.strip() for c in line.strip("|").split("|")]
            for line in section.splitlines()
            if line.startswith("| ") and not line.startswith("| column")
        ]
        assert all(len(c) == 4 and c[3] for c in cells), title
        out[title] = [(c[0], c[1], c[2]) for c in cells]
    return out


def test_reference_page_matches_the_schema(foreign: sqlite3.Connection) -> None:
    docs = documented()
    link = docs.pop("The chain")
    for table in ALL:
        info = foreign.execute(f'PRAGMA table_info("{table}")').fetchall()
        real = [(r["name"], r["type"], "no" if r["notnull"] else "yes") for r in info]
        assert (link if table in CHAINED else []) + docs.pop(table) == real
    assert docs == {}


def test_reference_pages_hash_is_ours(foreign: sqlite3.Connection) -> None:
    text = DOCS.read_text(encoding="utf-8")
    code = re.search(r"^    import hashlib.*?(?=^\S)", text, re.MULTILINE | re.DOTALL)
    assert code
    space: dict[str, Callable[[str, dict[str, object]], str]] = {}
    exec("\n".join(line[4:] for line in code.group().splitlines()), space)  # noqa: S102
    for table in CHAINED:
        for row in foreign.execute(f'SELECT * FROM "{table}"'):
            assert space["row_hash"](table, dict(row)) == row["hash"]
