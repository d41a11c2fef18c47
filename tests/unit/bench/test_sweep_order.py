"""Suites, arms, prompts, and the order of a sweep's starts. Pure."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from ddops.bench.plan import Point, common_body, text_body
from ddops.bench.prompts import draw, read_prompts
from ddops.bench.record import cell_of
from ddops.config.project import Project, lookup
from ddops.errors import ConfigError, UsageError
from ddops.inventory import load
from ddops.inventory.suites import KINDS, arms_of, find_suite, read_suite, variant
from ddops.sweep import remaining, starts
from tests.unit.bench.inventory import HOST, PROMPTS, SERVICE, SUITE, profile

ROOT = Path(__file__).resolve().parents[3]


def test_rounds_hold_every_arm_once_and_none_follows_itself() -> None:
    lack = {f"arm{n}": {1: 3, 4: 3} for n in range(5)}
    made = starts(lack, 7)
    assert len(made) == 15
    for number in (1, 2, 3):
        assert {s.arm for s in made if s.round == number} == set(lack)
    assert all(a.arm != b.arm for a, b in pairwise(made))
    assert made == starts(lack, 7)
    assert [s.arm for s in made] != [s.arm for s in starts(lack, 8)]
    rounds = [[s.arm for s in made if s.round == n] for n in (1, 2, 3)]
    assert not rounds[0] == rounds[1] == rounds[2]


def test_only_what_is_lacking_is_started() -> None:
    lack = remaining({"a": {1: 2, 4: 1}, "b": {1: 2, 4: 2}, "c": {}}, [1, 4], 2)
    assert lack == {"a": {1: 0, 4: 1}, "b": {1: 0, 4: 0}, "c": {1: 2, 4: 2}}
    made = starts(lack, 1)
    assert [(s.arm, s.levels) for s in made if s.arm == "a"] == [("a", (4,))]
    assert [s for s in made if s.arm == "b"] == []
    assert len([s for s in made if s.arm == "c"]) == 2
    assert starts(remaining({"a": {1: 9}}, [1], 2), 1) == []


def test_shipped_suites_are_right(tmp_path: Path) -> None:
    project = Project(tmp_path, explicit=False)
    inventory = load(project)
    find = lambda name: lookup(project, name)  # noqa: E731
    for name in ("tiny", "k26-pcie", "k26-b300"):
        for kind in KINDS:
            if kind == "sweep" and not (ROOT / f"suites/{name}/sweep.toml").exists():
                continue
            suite = find_suite(find, name, kind)
            assert suite.kind == kind
            prompts = read_prompts(find(suite.prompts), suite.prompts)
            assert len(prompts.items) >= 40
            if kind == "sweep":
                arms = arms_of(inventory, suite, inventory.services[name])
                assert len({a.name for a in arms}) == len(arms) >= 2
    assert find_suite(find, "tiny", "concurrency").levels == (1, 2, 4)
    assert find_suite(find, "nobody", "concurrency").levels == (
        1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128,
    )  # fmt: skip


def test_a_service_without_a_sweep_is_told_so(tmp_path: Path) -> None:
    project = Project(tmp_path, explicit=False)
    with pytest.raises(UsageError, match="sweep"):
        find_suite(lambda name: lookup(project, name), "nobody", "sweep")


def test_a_variant_changes_what_the_axis_names_and_nothing_else() -> None:
    base = profile(algorithm="DDTREE", budget=8, topk=4, block=8)
    made = variant(base, {"spec.budget": 16, "launch.chunked-prefill-size": 4096})
    assert (made.spec.budget, made.spec.topk, made.spec.block) == (16, 4, 8)
    assert made.launch == {"chunked-prefill-size": 4096}
    assert made.name == "p+budget=16,chunked-prefill-size=4096"
    assert variant(base, {}) is base
    keys = {cell_of(SERVICE, HOST, p, "0" * 64, SUITE, PROMPTS, Point(1)).key for p in (base, made)}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "kind"),
        ('kind = "sweep"', "at least one arm"),
        ('kind = "sweep"\nrates = [5.0]\n[[arms]]\nprofile = "a"', "rates"),
        ('kind = "sweep"\n[[arms]]\nprofile = "a"\naxes = { "spec.budgett" = [1] }', "spec.budget"),
        ('kind = "sweep"\n[[arms]]\nprofile = "a"\naxes = { "spec.budget" = [] }', "at least 1"),
        ('kind = "sweep"\nlevels = [1, 1]\n[[arms]]\nprofile = "a"', "twice"),
        ('kind = "sweep"\noutput_tokens = -1\n[[arms]]\nprofile = "a"', "output_tokens"),
        ('kind = "sweep"\nroute = "grpc"\n[[arms]]\nprofile = "a"', "generate"),
        ('kind = "sweep"\ntimeout_s = nan\n[[arms]]\nprofile = "a"', "timeout_s"),
        ('kind = "smoke"\n[[arms]]\nprofile = "a"', "expected `sweep`"),
    ],
)
def test_a_fault_in_a_suite_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"s\.toml") as caught:
        read_suite(file, "s.toml", "sweep", tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no prompts"),
        (b"\n\n", "no prompts"),
        (b"{}\n", ":1: not a prompt"),
        (b'{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n', "came before"),
        (b'{"id": "a", "text": "  "}\n', "empty text"),
        (b"\xff\xfe\n", "not a prompt"),
        (b"[1]\n", "not a prompt"),
    ],
)
def test_faulty_prompts_are_named_by_line(tmp_path: Path, data: bytes, words: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_prompts(file, "p.jsonl")
    assert words in str(caught.value)


def test_the_same_is_asked_of_every_cell_and_nothing_twice() -> None:
    first = draw(PROMPTS, 50, 1, "C=4", 1)
    assert first == draw(PROMPTS, 50, 1, "C=4", 1)
    assert len({text for _, text in first}) == 50
    others = [draw(PROMPTS, 50, 1, "C=4", 2), draw(PROMPTS, 50, 1, "C=8", 1),
              draw(PROMPTS, 50, 2, "C=4", 1)]  # fmt: skip
    texts = [{t for _, t in d} for d in (first, *others)]
    assert not any(a & b for i, a in enumerate(texts) for b in texts[i + 1 :])
    # No cache can help: past the two letters of a comment, every prompt begins in its own way.
    assert len({text[2:18] for _, text in first}) == 50
    assert {i for i, _ in first[:2]} == {"a", "b"}  # rounds over all prompts


@pytest.mark.parametrize("route", ["generate", "completions", "chat"])
def test_counts_are_asked_for_on_every_route(route: str) -> None:
    from msgspec.structs import replace

    body = common_body(replace(SUITE, route=route), "m")
    assert body["stream"] is True
    if route != "generate":
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "hello" in str(text_body(route, "hello"))


def test_a_cell_holds_nothing_that_changes_from_start_to_start() -> None:
    cell = cell_of(SERVICE, HOST, profile(), "ab" * 32, SUITE, PROMPTS, Point(4))
    text = str({**cell.vary, **cell.fix})
    for word in ("nonce", "repeat", "port", "time", "tmp"):
        assert word not in text
    assert cell.fix["concurrency"] == 4
    rate = cell_of(SERVICE, HOST, profile(), "ab" * 32, SUITE, PROMPTS, Point(rate=5.0))
    assert rate.fix["rate"] == 5.0
    assert rate.concurrency is None
    assert cell.comparable != rate.comparable
