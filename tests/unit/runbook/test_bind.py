"""Parameters with types, loops over hosts, secrets by reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddops.errors import UsageError
from ddops.runbook.steps import Bench as BenchStep
from ddops.runbook.steps import Shell
from tests.unit.runbook.support import Bench

LOOP = """
[params.hosts]
type = "hosts"
about = "h"
[params.n]
type = "int"
about = "n"
default = 2
[[steps]]
id = "smoke"
content = "Measure ${host} ${n} times, literally $${host}"
each = "hosts"
require = [{ state = "unlocked" }]
do = { step = "bench", repeats = "${n}" }
[[steps]]
id = "end"
content = "All of ${hosts}"
do = { step = "prompt", ask = "?" }
"""
TYPED = """
[params.flag]
type = "bool"
about = "f"
[params.share]
type = "number"
about = "s"
[params.token]
type = "secret"
about = "t"
[[steps]]
id = "a"
content = "${flag} ${share}"
do = { step = "shell", argv = ["x", "${flag}"], effects = ["none"], stdin = "${token}" }
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_loop_is_laid_out_and_typed(bench: Bench) -> None:
    bound = bench.bound(LOOP, "n=3", hosts=["pair"])
    assert [s.id for s in bound.steps] == ["smoke", "smoke", "end"]
    one = bound.steps[0]
    assert isinstance(one.do, BenchStep)
    assert (one.do.host, one.do.repeats) == (one.host, 3)
    assert one.require[0].host == one.host
    assert one.content == f"Measure {one.host} 3 times, literally ${{host}}"
    assert set(bound.hosts) == {"box", "bay"}
    again = bench.bound(LOOP, *(f"{k}={v}" for k, v in bound.params.items()))
    assert again.steps == bound.steps, "what the ledger keeps makes the same steps"


def test_steps_that_loop_alike_are_done_host_by_host(bench: Bench) -> None:
    loop = '[[steps]]\nid = "{}"\ncontent = "c"\neach = "hosts"\ndo = {{ step = "probe" }}\n'
    alone = '[[steps]]\nid = "ask"\ncontent = "c"\ndo = { step = "prompt", ask = "?" }\n'
    text = '[params.hosts]\ntype = "hosts"\nabout = "h"\n'
    text += loop.format("a") + loop.format("b") + alone + loop.format("c")
    keys = [s.key for s in bench.bound(text, "hosts=box,bay").steps]
    assert keys == ["a@box", "b@box", "a@bay", "b@bay", "ask", "c@box", "c@bay"]


@pytest.mark.parametrize(
    ("values", "hosts", "words"),
    [
        ((), (), "needs the parameter hosts"),
        (("m=1",), ("box",), "unknown parameter `m`, known are `hosts`, `n`"),
        (("n=many",), ("box",), "of type int"),
        (("n",), ("box",), "NAME=VALUE"),
        (("n=1", "n=2"), ("box",), "twice"),
        (("n=0",), ("box",), "does not go with the parameters"),
        ((), ("bax",), "unknown target"),
        (("hosts=",), (), "empty"),
        (("hosts=a\x1b[2J",), (), "not printable"),
    ],
)
def test_wrong_values_are_refused(
    bench: Bench, values: tuple[str, ...], hosts: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        bench.bound(LOOP, *values, hosts=hosts)
    assert words in str(caught.value)


def test_a_secret_is_a_reference_and_never_repeated(bench: Bench) -> None:
    good = ("flag=true", "share=0.5")
    with pytest.raises(UsageError) as caught:
        bench.bound(TYPED, *good, "token=hunter2")
    assert "hunter2" not in str(caught.value)
    (step,) = bench.bound(TYPED, *good, "token=env:TOKEN").steps
    assert isinstance(step.do, Shell)
    assert (step.do.stdin, step.do.argv, step.content) == ("env:TOKEN", ("x", "true"), "true 0.5")


@pytest.mark.parametrize("value", ["flag=yes", "flag=1", "share=half"])
def test_types_are_kept_to(bench: Bench, value: str) -> None:
    rest = [v for v in ("flag=true", "share=1") if v.split("=")[0] != value.split("=")[0]]
    with pytest.raises(UsageError):
        bench.bound(TYPED, value, "token=env:T", *rest)
