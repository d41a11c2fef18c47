# ruff: noqa: S608
"""Free SQL: it reads, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddops.command import Redactor
from ddops.errors import DdopsError, UsageError
from ddops.ledger import Ledger, Outcome

A = "a" * 64
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    path = tmp_path_factory.mktemp("query") / "ledger.db"
    with Ledger.open(path, redactor=Redactor()) as opened:
        opened.add_host("b300", {"key": "SHA256:x"})
        opened.add_release(A, service="k26", spec={"argv": ["--tp-size", "8"]})
        opened.add_deployment("op1", service="k26", release=A, host="b300", by="ann")
        opened.add_transition("op1", "locked", Outcome.OK, {"seconds": 1.5})
        yield opened


def test_answers_are_dicts(ledger: Ledger) -> None:
    sql = 'SELECT op_id, "by", previous FROM deployment WHERE service = :s'
    assert ledger.query(sql, {"s": "k26"}) == [{"op_id": "op1", "by": "ann", "previous": None}]
    assert ledger.query("SELECT ? AS a, x'00ff' AS b, 1.5 AS c", (7,)) == [
        {"a": 7, "b": b"\0\xff", "c": 1.5}
    ]


def test_text_that_is_damaged_is_shown_as_well_as_it_can_be(ledger: Ledger) -> None:
    sql = "SELECT 'é' AS t UNION ALL SELECT CAST(x'41ff42' AS TEXT) UNION ALL SELECT ?"
    assert ledger.query(sql, ("ü",)) == [{"t": "é"}, {"t": "A\ufffdB"}, {"t": "ü"}]


def test_columns_of_one_name_are_all_kept(ledger: Ledger) -> None:
    assert ledger.query("SELECT 1 AS n, 2 AS n, 3 AS n_2, 4 AS n") == [
        {"n": 1, "n_2": 2, "n_2_2": 3, "n_3": 4}
    ]


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT json_extract(evidence, '$.seconds') AS s FROM transition", {"s": 1.5}),
        (
            "SELECT j.value AS v FROM \"release\", json_each(spec, '$.argv') j LIMIT 1",
            {"v": "--tp-size"},
        ),
        ("SELECT count(*) AS n FROM chain", {"n": 4}),
        ("SELECT name FROM sqlite_master WHERE name = 'gate'", {"name": "gate"}),
        ("WITH x AS (SELECT 1 AS n) SELECT n FROM x", {"n": 1}),
        ("VALUES (1)", {"column1": 1}),
        ("  -- a remark\nSELECT 1 AS n;  ", {"n": 1}),
    ],
)
def test_what_people_ask(ledger: Ledger, sql: str, answer: dict[str, object]) -> None:
    assert ledger.query(sql) == [answer]


def test_schema_can_be_asked(ledger: Ledger) -> None:
    assert [r["name"] for r in ledger.query("PRAGMA table_info(host)")][4:] == [
        "id",
        "name",
        "pins",
    ]
    assert len(ledger.query("PRAGMA foreign_key_list(launch)")) == 6
    assert ledger.query("EXPLAIN QUERY PLAN SELECT * FROM host")


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO meta VALUES ('a', 'b')",
        "INSERT INTO meta VALUES ('a', 'b') RETURNING key",
        "UPDATE meta SET value = ''",
        "DELETE FROM gate",
        "DROP TABLE gate",
        "DROP TRIGGER gate_no_delete",
        "CREATE TABLE x (a)",
        "CREATE TEMP TABLE x (a)",
        "CREATE VIRTUAL TABLE x USING fts5(a)",
        "ALTER TABLE gate ADD COLUMN x",
        "ATTACH '{tmp}/new.db' AS x",
        "VACUUM INTO '{tmp}/new.db'",
        "VACUUM",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "SAVEPOINT a",
        "COMMIT",
        "PRAGMA query_only = OFF",
        "PRAGMA writable_schema = ON",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA user_version = 7",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA temp_store_directory = '/'",
        "SELECT load_extension('x')",
        "SELECT writefile('{tmp}/new.db', 'x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT 1; SELECT 2",
        "SELECT 1; DELETE FROM gate",
        "",
        "-- nothing",
        "SELECT",
        "SELECT nope FROM gate",
        "SELECT 1 \0",
        "SELECT ?",
        "SELECT zeroblob(1000000000)",
    ],
)
def test_what_is_refused(ledger: Ledger, tmp_path: Path, sql: str) -> None:
    before = ledger.head(), ledger.path.read_bytes()
    with pytest.raises(UsageError) as e:
        ledger.query(sql.format(tmp=tmp_path))
    assert e.value.why and e.value.next
    assert list(tmp_path.iterdir()) == []
    assert (ledger.head(), ledger.path.read_bytes()) == before


def test_bad_parameters(ledger: Ledger) -> None:
    for params in ([2**70], ["\udc80"], {"a": 1}):
        with pytest.raises(UsageError):
            ledger.query("SELECT ?", params)


def test_too_many_rows_is_an_error_not_a_cut(ledger: Ledger) -> None:
    assert len(ledger.query("SELECT * FROM chain", max_rows=4)) == 4
    with pytest.raises(UsageError, match="more than 3 rows"):
        ledger.query("SELECT * FROM chain", max_rows=3)
    with pytest.raises(UsageError, match="more than 10000 rows"):
        ledger.query(ENDLESS + "SELECT x FROM n")


def test_too_long_is_stopped(ledger: Ledger) -> None:
    start = time.monotonic()
    with pytest.raises(DdopsError, match=r"stopped after 0\.2 s"):
        ledger.query(ENDLESS + "SELECT max(x) FROM n", timeout_s=0.2)
    assert time.monotonic() - start < 5


def test_a_readonly_ledger_answers_too(ledger: Ledger) -> None:
    with Ledger.open(ledger.path, redactor=Redactor(), readonly=True) as reader:
        assert reader.query("SELECT count(*) AS n FROM host") == [{"n": 1}]
