"""Numbers and prompts that cannot be measured: refused by file, line and key, before any host."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ddops.bench.plan import MAX_PLAN, Point, refuse_oversize
from ddops.bench.prompts import Prompt, Prompts, read_prompts
from ddops.cli.bench import MOST_RUNS, levels_option
from ddops.config.project import Project
from ddops.config.schema import MAX_FAULTS
from ddops.errors import ConfigError, UsageError
from ddops.inventory import load
from ddops.inventory.suites import MAX_ARMS, MAX_LEVEL, MAX_REQUESTS, MAX_RUNS, arms_of, read_suite
from tests.unit.bench.inventory import PROMPTS, SUITE
from tests.unit.cli_support import Run, runner

HUGE = "1" + "0" * 400
LONG = '"spec.topk" = [1, 2, 3, 4], "spec.budget" = [' + ", ".join(map(str, range(1, 101))) + "]"


def suite_of(tmp_path: Path, *lines: str, kind: str = "concurrency") -> Path:
    file = tmp_path / "s.toml"
    file.write_text("\n".join((f'kind = "{kind}"', *lines, "")))
    return file


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("levels = [1, 9999999999999]", "levels[1]: expected a whole number from 1 to 4096, got"),
        (f"levels = [{HUGE}]", "levels[0]: a number of more than 64 bits"),
        ("levels = [nan]", "levels[0]: expected a whole number"),
        ("levels = [4096]\nwaves = 25", "levels[0]: 4096 under way for 1 + 25 waves are 106496"),
        (f"levels = {list(range(1, 258))}", "levels: expected at most 256 in the list, got 257"),
        ("waves = 9999999999999", "waves: expected a whole number from 1 to 100000"),
        ("warm_waves = 9999999999999", "warm_waves: expected a whole number from 1 to 100000"),
        ("least_requests = 1_000_000", "least_requests: expected a whole number from 1 to 100000"),
        ("rates = [1e9]", "rates[0]: expected a number above 0, at most 10000, got 1000000000.0"),
        ("rates = [5.0, 9e3]", "rates[1]: 9000 a second for 60 s are 540000 requests in one run"),
        ("rates = [inf]", "rates[0]: expected a number above 0, at most 10000, got inf"),
        ("rate_s = nan", "rate_s: expected a number above 0, at most 86400, got nan"),
        ("deadline_s = 1e300", "got 1e+300: a run does not last for days"),
        ("timeout_s = inf", "timeout_s: expected a number above 0, at most 86400, got inf"),
        ("sample_s = 1e-9", "sample_s: expected a number from 0.05 to 86400, got 1e-09"),
        ("repeats = 1000000000", "repeats: expected a whole number from 1 to 1000"),
        ("launches = 1000000000", "launches: expected a whole number from 1 to 1000"),
        ("output_tokens = 99999999999", "longer than any context"),
        (f"seed = {HUGE}", "seed: a number of more than 64 bits"),
        ("temperature = inf", "temperature: expected a number of at least 0, got inf"),
        ("limits = { bound_ms = nan }", "limits.bound_ms: expected a number above 0, got nan"),
    ],
)
def test_a_number_out_of_bounds_is_named_with_its_line(
    tmp_path: Path, line: str, words: str
) -> None:
    file = suite_of(tmp_path, "# a comment", line)
    with pytest.raises(ConfigError) as caught:
        read_suite(file, "s.toml", "concurrency", tmp_path)
    (problem,) = caught.value.problems
    assert words in str(problem)
    assert str(problem).startswith("s.toml:3: ")


def test_bounds_are_wide_enough_for_what_is_measured(tmp_path: Path) -> None:
    file = suite_of(tmp_path, f"levels = [1, {MAX_LEVEL}]", "waves = 20", "rates = [1e3, 0.01]")
    suite = read_suite(file, "s.toml", "concurrency", tmp_path)
    assert suite.requests(MAX_LEVEL) <= MAX_REQUESTS
    refuse_oversize(suite, PROMPTS, [Point(MAX_LEVEL), Point(rate=1e3)])


@pytest.mark.parametrize(
    "text",
    ["9" * 23, "1,10000000", "9" * 5000, "", "0", "-1", "1,1", "1,,2", "1.5", "nan", "1e3", "²"],
)
def test_levels_of_the_command_line_have_the_same_bounds(text: str) -> None:
    with pytest.raises(UsageError, match="--levels"):
        levels_option(text)


def test_levels_that_are_right_are_taken() -> None:
    assert levels_option("1, 8,4096") == (1, 8, 4096)
    assert levels_option(None) is None
    assert MOST_RUNS == MAX_RUNS


def test_a_level_of_the_command_line_meets_the_waves_of_the_suite() -> None:
    many = replace(SUITE, waves=1000)
    with pytest.raises(UsageError, match="C=4096 is too much of a load") as caught:
        refuse_oversize(many, PROMPTS, [Point(1), Point(4096)])
    assert "suites/x.toml" in caught.value.next
    refuse_oversize(many, PROMPTS, [Point(1), Point(64)])


def test_long_prompts_make_a_load_too_large() -> None:
    text = "x" * (1 << 20)
    prompts = Prompts("p", "ab" * 32, (Prompt("a", text), Prompt("b", text)))
    most = MAX_PLAN // (1 << 20) // 5
    refuse_oversize(replace(SUITE, least_requests=1), prompts, [Point(most - 1)])
    with pytest.raises(UsageError, match="MiB in one run"):
        refuse_oversize(replace(SUITE, least_requests=1), prompts, [Point(most + 1)])


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ('"spec.budget" = [4.5]', '"spec.budget"[0]: expected a whole number of at least 1'),
        ('"spec.budget" = ["8"]', '"spec.budget"[0]: expected a whole number of at least 1'),
        ('"spec.budget" = [8, -1]', '"spec.budget"[1]: expected a whole number of at least 1'),
        ('"spec.budget" = [true]', "got true"),
        ('"spec.budget" = [4, 4]', '"spec.budget"[1]: a value stands there twice'),
        ('"spec.algorithm" = ["FOO"]', '"spec.algorithm"[0]: expected one of'),
        ('"spec.algorithm" = [1]', '"spec.algorithm"[0]: expected one of'),
        ('"launch.tp-size" = [[1]]', '"launch.tp-size"[0]: expected text or a whole number'),
        ('"launch.tp-size" = [nan]', '"launch.tp-size"[0]: expected a number, got nan'),
        (LONG, "arms: they make 400 configurations, at most 256"),
    ],
)
def test_a_wrong_value_on_an_axis_is_named_with_its_line(
    tmp_path: Path, axes: str, words: str
) -> None:
    file = suite_of(
        tmp_path, "[[arms]]", 'profile = "tiny-ddtree"', f"axes = {{ {axes} }}", kind="sweep"
    )
    with pytest.raises(ConfigError) as caught:
        read_suite(file, "s.toml", "sweep", tmp_path)
    assert words in str(caught.value.problems[0])
    assert caught.value.problems[0].line in (2, 4)


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ('profile = "tiny-ddtre"', "s.toml:3: arms[0].profile: unknown profile `tiny-ddtre`, n"),
        (
            'profile = "tiny-ddtree"\naxes = { "spec.budget" = [8, 99999] }',
            's.toml:4: arms[0].axes."spec.budget"[1]: expected 1 to 512, got 99999',
        ),
        (
            'profile = "tiny-ddtree"\naxes = { "spec.algorithm" = ["DDTREE", "none"] }',
            's.toml:4: arms[0].axes."spec.algorithm"[1]: `budget` belongs to algorithm DDTREE',
        ),
        (
            'profile = "tiny-ar"\naxes = { "launch.port" = [1] }',
            's.toml:4: arms[0].axes."launch.port"[0]: `port` is decided by the service\'s port',
        ),
    ],
)
def test_an_arm_that_cannot_run_is_named_with_its_line(
    tmp_path: Path, arm: str, words: str
) -> None:
    file = suite_of(tmp_path, "[[arms]]", arm, kind="sweep")
    inventory = load(Project(tmp_path, explicit=False))
    suite = read_suite(file, "s.toml", "sweep", tmp_path)
    with pytest.raises(ConfigError) as caught:
        arms_of(inventory, suite, inventory.services["tiny"])
    assert str(caught.value.problems[0]).startswith(words)


def test_as_many_arms_as_are_allowed_are_made(tmp_path: Path) -> None:
    sizes = ", ".join(map(str, range(1, MAX_ARMS + 1)))
    arm = f'profile = "tiny-ddtree"\naxes = {{ "spec.budget" = [{sizes}] }}'
    suite = read_suite(suite_of(tmp_path, "[[arms]]", arm, kind="sweep"), "s.toml", "sweep")
    inventory = load(Project(tmp_path, explicit=False))
    assert len(arms_of(inventory, suite, inventory.services["tiny"])) == MAX_ARMS


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"id": "a", "text": null}', "text: expected text, got null"),
        (b'{"id": "a", "text": NaN}', "text: expected text, got a number"),
        (b'{"id": "a", "text": true}', "text: expected text, got true"),
        (b'{"id": "a", "text": 5}', "text: expected text, got a whole number"),
        (b'{"id": "a", "text": {"a": 1}}', "text: expected text, got an object"),
        (b'{"id": "a", "text": ["x"]}', "text: expected text, got a list"),
        (b'{"id": "a", "text": ""}', "text: empty text"),
        (b'{"id": "a"}', "`text` is missing"),
        (b'{"id": "a", "messages": []}', "`text` is missing"),
        (b'{"text": "x"}', "`id` is missing"),
        (b'{"id": null, "text": "x"}', "id: expected text or a whole number, got null"),
        (b'{"id": NaN, "text": "x"}', "id: expected text or a whole number"),
        (b'{"id": true, "text": "x"}', "id: expected text or a whole number, got true"),
        (b'{"id": "a", "text": "\\ud800"}', "text: holds half of a character"),
        (b'{"id": "a", "text": "\xff"}', "not UTF-8"),
        (b"7", "expected an object, got a whole number"),
        (b"null", "expected an object, got null"),
        (b'{"id": "a", "te', "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b"9" * 5000, "not JSON"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_prompt_is_named_by_its_line(tmp_path: Path, line: bytes, words: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"id": "good", "text": "x"}\n\n' + line + b"\n")
    with pytest.raises(ConfigError) as caught:
        read_prompts(file, "p.jsonl")
    assert [str(p).startswith("p.jsonl:3: not a prompt: ") for p in caught.value.problems] == [True]
    assert words in str(caught.value)


def test_prompts_of_any_language_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    text = "一\u2028二\u0085 \\ud83d\\ude00"
    file.write_text(f'{{"id": 1, "text": "{text}", "note": null}}\r\n', encoding="utf-8")
    (prompt,) = read_prompts(file, "p.jsonl").items
    assert prompt == Prompt("1", "一\u2028二\u0085 \U0001f600")


def test_a_file_of_faults_is_not_told_whole(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text("{}\n" * (MAX_FAULTS + 50))
    with pytest.raises(ConfigError) as caught:
        read_prompts(file, "p.jsonl")
    assert len(caught.value.problems) == MAX_FAULTS + 1
    assert "and 50 faults more" in str(caught.value.problems[-1])


def test_what_is_no_file_is_no_prompts(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe", "nothing"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_prompts(tmp_path / name, name)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """In a project whose one host cannot be reached: exit 3 would say that it was asked."""
    go = runner(tmp_path, monkeypatch, capfd)
    (tmp_path / "here/inventory").mkdir()
    host = '[hosts.far]\nssh = "far.invalid"\ngroups = ["lab"]\nengine_env = "sim"\n'
    (tmp_path / "here/inventory/hosts.toml").write_text(host)
    (tmp_path / "here/ddops.toml").write_text("")
    (tmp_path / "here/suites").mkdir()
    return go


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("concurrency", "far", "--levels", "9" * 23), "--levels"),
        (("concurrency", "far", "--levels", "2000"), "too much of a load"),
        (("concurrency", "far", "--repeats", "1001"), "--repeats"),
        (("smoke", "far"), "suites/p.jsonl:1: not a prompt"),
        (("sweep", "far", "--dry-run"), 'sweep.toml:4: arms[0].axes."spec.budget"[0]'),
    ],
)
def test_no_host_is_asked_for_what_cannot_be(
    run: Run, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    suites = tmp_path / "here/suites"
    (suites / "tiny").mkdir()
    (suites / "p.jsonl").write_text('{"id": "a", "text": null}\n')
    (suites / "tiny/smoke.toml").write_text('kind = "smoke"\nprompts = "suites/p.jsonl"\n')
    (suites / "tiny/concurrency.toml").write_text('kind = "concurrency"\nwaves = 100\n')
    arm = '[[arms]]\nprofile = "tiny-ddtree"\naxes = { "spec.budget" = [4.5] }\n'
    (suites / "tiny/sweep.toml").write_text(f'kind = "sweep"\n{arm}')
    done = run("bench", *words)
    assert done.code == 2, done
    assert says in done.err
    assert "a fault in ddops" not in done.err


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e9", "x"])
@pytest.mark.parametrize("command", ["deploy", "provision", "rollback"])
def test_a_wait_is_a_number_that_ends(run: Run, command: str, value: str) -> None:
    done = run(command, "far", "--lock-wait", value)
    assert done.code == 2
    assert "--lock-wait" in done.err
