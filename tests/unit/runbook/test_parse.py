"""Malformed runbooks: every fault at once, with file, line, key and the nearest right word."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ddops.config import data_root
from ddops.errors import ConfigError
from ddops.runbook.parse import parse_runbook, read_runbook
from tests.unit.runbook.support import HEAD

STEP = '[[steps]]\nid = "a"\ncontent = "c"\n'
OK = STEP + 'do = { step = "prompt", ask = "x" }\n'
HOST = '[params.hosts]\ntype = "hosts"\nabout = "h"\n'


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_runbook(text, "book")
    return [str(p) for p in caught.value.problems]


CASES = {
    HEAD + STEP + 'do = { step = "depoly", host = "b" }\n': (
        "runbooks/book.toml:6: steps[0].do.step: unknown step `depoly`, nearest is `deploy`"
    ),
    HEAD + STEP + 'do = { ask = "x" }\n': "required key `step` is missing",
    HEAD + OK + "skip = []\n": "steps[0].skip: unknown key `skip`, nearest is `skip_if`",
    HEAD + STEP + 'do = { step = "bench", host = "b", suit = "smoke" }\n': (
        "steps[0].do.suit: unknown key `suit`, nearest is `suite`"
    ),
    HEAD + STEP + 'do = { step = "bench", host = "b", repeats = "two" }\n': (
        "steps[0].do.repeats: expected a whole number from 1 to 1000, got text"
    ),
    HEAD + STEP + 'do = { step = "deploy", host = "${hosst}" }\n' + HOST: "unknown parameter",
    HEAD + OK + 'require = [{ facct = "os.arch" }]\n': (
        "runbooks/book.toml:7: steps[0].require[0].facct: unknown condition `facct`,"
        " nearest is `fact`"
    ),
    HEAD + OK + 'require = [{ fact = "a", host = "b", equals = 1, at_least = 2 }]\n': (
        "expected exactly one of `equals`"
    ),
    HEAD + OK + 'require = [{ fact = "a", host = "b" }]\n': "expected exactly one of `equals`",
    HEAD + OK + 'require = [{ check = "DRV-3", host = "b" }]\n': (
        "unknown check `DRV-3`, nearest is `DRV-03`"
    ),
    HEAD + OK + 'require = [{ state = "servin", host = "b" }]\n': 'nearest is "serving"',
    HEAD + OK + 'require = [{ state = "serving" }]\n': "required key `host` is missing",
    HEAD + OK + 'require = [{ state = "trusted", host = "b", profile = "p" }]\n': (
        "`trusted` knows no profile"
    ),
    HEAD + OK + 'require = [{ ledger = "runs", host = "b" }]\n': "`suite` goes with `runs`",
    HEAD + OK + 'require = [{ file = "../x" }]\n': "without `..`",
    HEAD + OK + 'require = [{ file = "x", host = "b" }]\n': "by its absolute path",
    HEAD + OK + 'require = [{ file = "x", fact = "y" }]\n': "one kind of condition at a time",
    HEAD + OK + OK: "step 1 has this id too",
    HEAD + OK + 'each = "hosts"\n': "unknown parameter `hosts`",
    HEAD + STEP + 'do = { step = "wait" }\n': "`wait` waits for what `verify` says",
    HEAD + STEP + 'do = { step = "shell", argv = ["x"], effects = ["files"] }\n': (
        "a shell step that has effects needs `verify`"
    ),
    HEAD + STEP + 'do = { step = "shell", argv = ["x"] }\n': "required key `effects` is missing",
    HEAD + STEP + 'do = { step = "shell", argv = "rm -rf x", effects = ["none"] }\n': (
        "expected a list, got text"
    ),
    HEAD + OK + 'on_failure = [{ step = "prompt", ask = "x" }]\n': "can be a remedy",
    HEAD + OK + HOST: "params.hosts: no step uses it",
    HEAD + OK + '[params.n]\ntype = "int"\nabout = "n"\ndefault = "3"\n': "expected int, got text",
    HEAD + OK + '[params.s]\ntype = "secret"\nabout = "n"\ndefault = "env:X"\n': "no default",
    HEAD + OK + '[params.n]\ntype = "intt"\nabout = "n"\n': 'nearest is "int"',
    HEAD + STEP + 'do = { step = "prompt", ask = "${s}" }\n[params.s]\ntype = "secret"\n'
    'about = "s"\n': "can only be the `stdin` of a shell step",
    "": "required key `steps` is missing",
    "title = \x07": "not valid TOML",
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), CASES.items(), ids=range(len(CASES)))
def test_a_fault_is_named_with_its_place(text: str, words: str) -> None:
    found = faults(text)
    assert any(words in f for f in found), found
    assert all(f.startswith("runbooks/book.toml") for f in found)


def test_all_faults_are_told_at_once() -> None:
    text = HEAD + OK.replace("prompt", "promt") + OK
    text += 'require = [{ check = "nope", host = "${x}" }]\nverify = [{ stat = "up" }]\n'
    assert len(faults(text)) == 5


@pytest.mark.parametrize("data", [b"title = '\xff", b"\0\1", b"a" * (2 << 20), b"\xef\xbb\xbfx=1"])
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "book.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError):
        read_runbook(path, "book", tmp_path)


def test_every_shipped_runbook_is_good_and_a_test_runs_it() -> None:
    tests = Path(__file__).parents[2] / "lab"
    said = "".join(p.read_text(encoding="utf-8") for p in tests.glob("test_runbook*.py"))
    shipped = sorted((data_root() / "runbooks").glob("*.toml"))
    assert shipped
    for path in shipped:
        book = read_runbook(path, path.stem)
        assert len(book.table.title) <= 70
        assert all(s.time_limit_s <= 86400 for s in book.table.steps)
        assert f'"{path.stem}"' in said, f"{path.stem}: no test runs it"


def test_a_damaged_file_is_a_fault_and_never_a_crash() -> None:
    """Shipped runbooks, cut and spliced: good, or a ConfigError; the seed is fixed."""
    draw = random.Random(7)
    texts = [p.read_text(encoding="utf-8") for p in (data_root() / "runbooks").glob("*.toml")]
    bits = ("${", "}", "[[steps]]", "{", '"', "[", "\n", "${host}", "1979-05-27", "nan", "\u2603")
    good = 0
    for _ in range(400):
        text = draw.choice(texts)
        for _ in range(draw.randint(1, 4)):
            at, to = sorted(draw.randrange(len(text)) for _ in range(2))
            text = draw.choice(
                (text[:at] + draw.choice(bits) + text[at:], text[:at] + text[at + 9 :],
                 text[:at] + text[to : to + 40] + text[at:])
            )  # fmt: skip
        try:
            parse_runbook(text, "book")
            good += 1
        except ConfigError as error:
            assert error.problems
    assert 0 < good < 400
