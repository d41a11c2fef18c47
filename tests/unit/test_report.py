"""Documents rendered, hostile names in them, and reports of made-up ledgers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddops.command import MASK, Redactor, Secret
from ddops.ledger import Device, Ledger
from ddops.report import collect, compose, render_html, render_markdown
from ddops.report.document import Code, Document, Figure, Section, Table, Text, masked
from ddops.report.figures import undominated
from ddops.report.plots import Axis, Point, Series, lines
from ddops.report.words import revision, strategy
from tests.ledgers import make_ledger
from tests.unit.findings_support import candidate, config

HOSTILE = "<script>x</script>|`*_#[a](b)\n\x1b[31m"


def document(text: str) -> Document:
    return Document(
        text,
        text,
        [
            Section(
                text,
                [
                    Text(text, "warn"),
                    Table((text,), ((text,),), struck=frozenset({(0, 0)})),
                    Figure(text, text),
                    Code((text, "``` end")),
                ],
            )
        ],
    )


def test_hostile_names_are_no_markup() -> None:
    page = render_html(document(HOSTILE), "a { } </style><script>")
    assert page.count("</style>") == 1, "a style sheet cannot end itself"
    assert "<script" not in page.split("</style>")[1] and "\x1b" not in page
    assert "&lt;script&gt;" in page and page.count("<s>") == 1
    text = render_markdown(document(HOSTILE))
    assert "\\<script\\>" in text and "\x1b" not in text
    assert "<script>x</script>" in text.split("````")[1], "only inside the code block"
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 3, "no cell breaks its row"


def test_long_words_may_break_on_paper_and_are_not_changed() -> None:
    word = "a&" * 40
    page = render_html(Document("t", "", [Section("s", [Table(("h",), ((word,),))])]), "")
    cell = page.split("<td>")[1].split("</td>")[0]
    assert cell.count("<wbr>") == 3
    assert cell.replace("<wbr>", "") == word.replace("&", "&amp;")
    assert revision(f"m@sha256:{'ab' * 32}") == "m@sha256:abababababab"


def test_secrets_are_masked_in_every_block() -> None:
    canary = "xK9-canary/quiet+Otter7"
    clean = masked(document(f"saw {canary}"), Redactor([Secret(canary)]))
    for text in (render_html(clean, ""), render_markdown(clean)):
        assert "canary" not in text and text.replace("\\", "").count(MASK) >= 7


def test_the_same_numbers_give_the_same_picture() -> None:
    series = [Series("a", (Point(1, 2, 1.5, 2.5, "x"), Point(4, 3)), 0, (Point(0.5, 1),))]
    axes = Axis(label="x", log=True), Axis(label="y")
    one = lines(series, *axes)
    assert one == lines(series, *axes) and "<text" not in one and "$" not in one


def test_a_dollar_sign_in_a_name_is_no_formula() -> None:
    assert lines([Series("$\\frac{", (Point(1, 1),))], Axis(label="$x"), Axis(label="y"))


def test_letters_that_the_font_lacks_and_long_names_are_drawn() -> None:
    for name in ("模型 \U0001f600", "x" * 500, "_hidden", ""):
        assert lines([Series(name, (Point(1, 1), Point(2, 3)))], Axis(label="x"), Axis(label="y"))


def test_the_front_holds_what_nothing_beats() -> None:
    fast = candidate(config("fast"), 1, [100.0])
    both = candidate(config("both"), 8, [400.0])
    beaten = candidate(config("beaten"), 8, [300.0])
    gpus = {"fast": 8, "both": 8, "beaten": 8}
    assert undominated([beaten, both, fast], gpus) == [fast, both]


@pytest.mark.parametrize(
    ("launch", "algorithm", "says"),
    [
        ({"tp-size": 8}, "none", "TP8"),
        ({"tp-size": 8, "ep-size": 4}, "none", "EP4"),
        ({"pp-size": 8}, "none", "PP8"),
        ({"tp-size": 8}, "DDTREE", "DDTREE TP8"),
        ({"mem-fraction-static": 0.9}, "none", "TP1"),
        ({}, "none", "autoregressive, strategy not told"),
    ],
)
def test_strategies_have_the_names_people_use(
    launch: dict[str, object], algorithm: str, says: str
) -> None:
    assert strategy(config("c", algorithm, launch=launch)) == says


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "ledger.db"
    make_ledger(path, runs=192, samples=1920)
    return path


def test_a_report_of_a_sweep_has_every_part(made: Path) -> None:
    with Ledger.open(made, redactor=Redactor(), readonly=True) as book:
        found = collect(book, "sim")
    page = render_html(compose(found, draw=True), "")
    for title in (
        "Summary", "Concurrency and crossover", "Budget sweep", "Commit length", "Latency",
        "Throughput per GPU against per-user speed", "Strategies", "Correctness",
        "Runs that do not count", "Environment and provenance", "How to reproduce each number",
        "What to measure next",
    ):  # fmt: skip
        assert f">{title}</h" in page, title
    assert page.count("<svg") == 8, "crossover, budgets, commit length, Pareto, 4 distributions"
    assert page.count("simulated: no number here was measured on a GPU") >= 8
    crossing = found.answer.advice[0].crossovers[0]
    assert crossing.below.name == "ddtree-b8" and 6.5 < crossing.low < crossing.high < 8
    assert {s.level for s in found.spreads[0]} == {1, 128}
    assert all(s.n >= 20 and s.ttft == tuple(sorted(s.ttft)) for s in found.spreads[0])


def test_devices_are_never_in_one_table(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "gpu.db"
    make_ledger(other, runs=64, samples=64, device=Device.GPU, seed=2)
    with Ledger.open(other, redactor=Redactor()) as book:
        book.merge(made)
        found = collect(book)
    assert [a.population.device_class for a in found.answer.advice] == ["gpu", "sim"]
    for advice in found.answer.advice:
        own = {r.id for r in advice.population.runs}
        assert set(advice.run_ids) <= own
    text = render_markdown(compose(found, draw=False))
    assert text.index("sim on simulated (unknown, simulated)") < text.index("[sim\\]")
