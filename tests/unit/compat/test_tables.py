"""The tables are whole, agree with each other, and say where they end.

To see it fail: take a key out of a row in ddops/compat/data, or call a check's function otherwise.
"""

from __future__ import annotations

import pytest

from ddops.compat import checks, rules, tables
from ddops.compat.judge import _MODULES
from ddops.errors import DdopsError
from ddops.probe.version import parse


@pytest.mark.parametrize("name", tables.NAMES)
def test_a_table_says_when_from_where_and_how_far(name: str) -> None:
    found = tables.table(name)
    assert found.as_of
    assert found.sources
    assert "table ends at" in found.ends("x")


def test_nothing_in_a_table_is_newer_than_its_end() -> None:
    for name, key in (("toolkits", "ctk"), ("torch", "version"), ("triton", "version"),
                      ("sglang", "version")):  # fmt: skip
        table = tables.table(name)
        assert not [r[key] for r in table.rows if table.beyond(str(r[key]))]
        assert table.beyond("99.9")
        assert table.beyond("what?")


def test_rows_name_what_other_tables_know() -> None:
    kits = {r["ctk"] for r in tables.table("toolkits").rows}
    for row in tables.table("drivers").rows:
        assert row["cuda"] in kits or parse(row["cuda"]) < parse("12.4")  # type: ignore[operator]
    ids = {c.id for c in checks()}
    assert {r["check"] for r in tables.table("errors").rows} <= ids


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('end = "1"\nsources = ["x"]', "no as_of"),
        (
            'as_of = "x"\nend = "1"\nsources = ["x"]\n[[row]]\nctk = "1"\n[[row]]\nctk = "1"',
            "twice",
        ),
        ('as_of = "x"\nend = "1"\nsources = ["x"]\n[[row]]\nptx = "1"', "row 1 has no ctk"),
    ],
)
def test_a_faulty_table_is_refused(text: str, words: str) -> None:
    with pytest.raises(DdopsError, match=words):
        tables.load("toolkits", text)


def test_every_row_has_its_function_and_every_function_its_row() -> None:
    assert rules.__doc__
    ids = {c.id.lower().replace("-", "_") for c in checks()}
    prefixes = tuple({i.partition("_")[0] + "_" for i in ids})
    functions = {n for m in _MODULES for n in vars(m) if n.startswith(prefixes)}
    assert functions == ids


def test_needs_stand_before_and_exist() -> None:
    seen: set[str] = set()
    for check in checks():
        assert set(check.needs) <= seen, check.id
        seen.add(check.id)
        assert check.severity in "BEWI"
        assert check.sources


def test_all_checks_are_there() -> None:
    assert sum(c.tier == 1 for c in checks()) >= 47 + 5
    assert len(checks()) == 66 + 5


@pytest.mark.parametrize("version", tables.flag_versions())
def test_option_tables(version: str) -> None:
    flags = tables.flags(version)
    assert flags is not None
    assert {"--model-path", "--tp-size", "--attention-backend"} <= flags.options
    assert flags.switches < flags.options
    assert ("--cuda-graph-max-bs" in flags.options) is (version == "0.5.19")
    assert "triton" in flags.choices["--attention-backend"]


def test_drivers_and_their_ptx() -> None:
    assert tables.cuda_of_driver(582) == "13.0"
    assert tables.cuda_of_driver(700) is None
    assert tables.ptx_of_driver(580) == (9, 0)
    assert tables.ptx_of_driver(None) is None
