"""The reported case, told by `recommend`, `report` and their JSON, and changed by one retraction.

To see it fail: let `pick.choose` ignore groups (150.2 and 113.8 meet), or read `run` instead of
`valid_run` in ddops/recommend/read.py (the withdrawn tree comes back).
"""

from __future__ import annotations

import html.parser
import re
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401 - its cache is made here, once, not in each test's home
import pytest

from tests.case_k26 import make_case
from tests.unit.cli_support import Run, runner

LEDGER = Path(".ddops") / "ledger.db"


@pytest.fixture
def case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[Run, dict[str, list[str]]]:
    run = runner(tmp_path, monkeypatch, capfd)
    LEDGER.parent.mkdir(mode=0o700)
    return run, make_case(LEDGER)


def told(run: Run) -> dict[str, Any]:
    (population,) = run("recommend", "--json").document["data"]["populations"]
    return population  # type: ignore[no-any-return]


def test_recommend_tells_the_story(case: tuple[Run, dict[str, list[str]]]) -> None:
    run, tables = case
    p = told(run)
    assert (p["basis"], p["host_class"], p["device_class"]) == ("reported", "pcie", "gpu")
    one, many = p["choices"]
    assert (one["concurrency"], one["chosen"]["budget"], one["chosen"]["topk"]) == (1, 8, 4)
    assert one["chosen"]["output_tps"] == 150.2 and one["chosen"]["low"] is None
    assert {c["output_tps"] for c in one["over"]} == {98.0, 101.4}
    assert (many["concurrency"], many["chosen"]["output_tps"]) == (128, 1449.0)
    assert many["chosen"]["name"] == "autoregressive EP4"
    assert {one["certainty"], many["certainty"]} == {"leads"}, "one number each proves nothing"
    (cross,) = p["crossovers"]
    assert cross["at"] == pytest.approx(2.593, abs=0.001)
    assert (cross["low"], cross["high"]) == (1, 128), "the spread is not known"
    (pair,) = p["not_comparable"]
    assert {pair["a"]["output_tps"], pair["b"]["output_tps"]} == {150.2, 113.8}
    assert pair["unlike"] == ["fix.told in: one user at a time against concurrency sweep"]
    withdrawn = tables["before the mask was mended"][0]
    assert withdrawn not in run("recommend", "--json").out, "the corrupt tree's run is nowhere"
    assert any("budget 7" in w for w in p["budgets"]["warnings"])
    assert p["next"][0]["command"] == "ddops bench sweep pcie"


def test_the_table_is_readable_at_eighty_columns(case: tuple[Run, dict[str, list[str]]]) -> None:
    done = case[0]("recommend")
    assert done.code == 0 and max(map(len, done.out.splitlines())) <= 80
    for word in ("150.2 (reported)", "1449 (reported)", "not comparable", "near 2.59", "leads"):
        assert word in done.out
    assert "1 withdrawn" in done.err


def test_the_report_tells_it_too(case: tuple[Run, dict[str, list[str]]]) -> None:
    run, _ = case
    text = run("report", "--service", "k26-pcie").out
    assert text.startswith("# Findings: k26-pcie\n\n**All numbers here are reported")
    for word in (
        "DDTREE budget 8 topk 4, 150.2 (reported)", "autoregressive EP4, 1449 (reported)",
        "150.2 (DDTREE budget 8 topk 4) and 113.8 (DDTREE, budget not told) are not comparable:"
        " told in: one user at a time against concurrency sweep",
        "~~trees hurt: DDTREE about 50 tok/s against 98 autoregressive~~ | fell",
        "corrupt attention mask", "1 conclusion no longer stands", "EP4", "4 to 5",
    ):  # fmt: skip
        assert word in text, word
    data = run("report", "--json").document["data"]
    (fallen,) = [c for c in data["conclusions"] if not c["stands"]]
    assert fallen["text"].startswith("trees hurt") and "corrupt" in fallen["reason"]
    assert [r["withdrawn"] for r in data["excluded"]] == [data["retractions"][0]["reason"]]


def test_retracting_one_run_changes_all_three(case: tuple[Run, dict[str, list[str]]]) -> None:
    run, tables = case
    best = tables["one user at a time"][1]
    assert run("report", "--out", "findings.md").code == 0
    before = run("recommend").out, run("report").out, run("report", "--json").out
    assert all("150.2" in text for text in before)
    done = run("ledger", "retract", "--run", best, "--reason", "another job on the GPU", "-y")
    assert done.code == 0 and "1 conclusions, 1 stood" in done.out, "the written report fell"
    p = told(run)
    assert p["choices"][0]["chosen"]["output_tps"] == 113.8
    table, text = run("recommend"), run("report").out
    assert "150.2" not in table.out and "2 withdrawn" in table.err
    assert "another job on the GPU" in text and "2 conclusions no longer stand" in text
    assert "At 1: DDTREE, budget not told, 113.8 (reported)" in text
    data = run("report", "--json").document["data"]
    assert best in [r["id"] for r in data["excluded"]]
    assert best not in str(data["recommendation"])


class Page(html.parser.HTMLParser):
    """What a page would load, and its names."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.pictures = 0
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.pictures += tag == "svg"
        if tag in ("script", "link", "img", "iframe", "object", "embed", "base"):
            self.loads.append(tag)
        for name in ("src", "href", "xlink:href"):
            if (value := given.get(name)) and not value.startswith("#"):
                self.loads.append(value)
        if given.get("id"):
            self.ids.append(str(given["id"]))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_stands_by_itself(case: tuple[Run, dict[str, list[str]]]) -> None:
    run, _ = case
    assert run("report", "--out", "findings.html").code == 0
    text = Path("findings.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.loads == [] and page.pictures == 4
    assert len(page.ids) == len(set(page.ids)), "names of pictures do not meet"
    assert not re.search(r"url\((?!#)|@import|<text\b", text), "letters are paths"
    every = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    assert {a or b for a, b in every} <= set(page.ids), "nothing points nowhere"
    assert "default-src 'none'" in text and "@page" in text
    assert text.count("reported by others, not measured here") >= 5
    again = run("report", "--out", "findings.html")
    assert again.code == 0, "a report is written over"


def test_what_cannot_be_is_refused(case: tuple[Run, dict[str, list[str]]]) -> None:
    run, _ = case
    for argv, code, word in (
        (("recommend", "--service", "other"), 4, "no valid run of other"),
        (("recommend", "--host-class", "nvlink"), 4, "on nvlink"),
        (("recommend", "--concurrency", "0"), 2, "0"),
        (("recommend", "--write", "x"), 2, "--concurrency"),
        (("recommend", "--concurrency", "1", "--write", "../x"), 2, "not a profile's name"),
        (("recommend", "--concurrency", "1", "--write", "x"), 4, "launch options were not told"),
        (("recommend", "--concurrency", "16", "--write", "x"), 4, "undecided"),
        (("report", "--service", "other"), 4, "no run of other"),
        (("report", "--out", "no/such/folder.md"), 1, "cannot be written"),
    ):  # fmt: skip
        done = run(*argv)
        assert done.code == code, argv
        assert word in done.err, argv
    assert not Path("inventory").exists()


def test_an_empty_ledger_says_what_to_do(case: tuple[Run, dict[str, list[str]]]) -> None:
    run, _ = case
    from ddops.command import Redactor
    from ddops.ledger import Ledger

    LEDGER.unlink()
    with Ledger.open(LEDGER, redactor=Redactor()):
        pass
    for argv in (("recommend",), ("report",)):
        done = run(*argv)
        assert done.code == 4 and "next: ddops bench" in done.err
