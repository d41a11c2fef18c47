"""Finding the program in a reply: prose, fences of all kinds, halves, bodies."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddops.bench.coding_extract import MOST, Rule, extract
from ddops.bench.coding_tasks import Task, humaneval

PROMPT = (
    "from typing import List\n\n\ndef helper(x):\n    return x + 1\n\n\n"
    'def total(xs: List[int]) -> int:\n    """ Sum of xs.\n    >>> total([1])\n    1\n    """\n'
)
TASK = Task(
    "T/1", PROMPT, "total", "def check(f):\n    assert f([1, 2]) == 3\n", "    return sum(xs)\n"
)
BODY = "    out = 0\n    for x in xs:\n        out += x\n    return out\n"
HEAD = "def total(xs: List[int]) -> int:\n"
CODE = (HEAD + BODY).rstrip()


def margin(text: str, with_: str) -> str:
    return "\n".join(with_ + line for line in text.split("\n"))


def works(reply: str, task: Task = TASK) -> Rule:
    """The rule that found a program which solves the task. Runs our own texts only."""
    found = extract(reply, task)
    space: dict[str, object] = {}
    exec(found.program, space)  # noqa: S102
    exec(task.test, space)  # noqa: S102
    space["check"](space[task.entry])  # type: ignore[operator]
    return found.rule


@pytest.mark.parametrize(
    ("reply", "rule"),
    [
        (f"Sure! Here it is:\n\n```python\n{CODE}\n```\n\nIt adds.", Rule.FENCE),  # E6
        (f"```\n{CODE}\n```", Rule.FENCE),  # a bare fence
        (f"```py\n{CODE}\n```", Rule.FENCE),
        (f"~~~python3\n{CODE}\n~~~", Rule.FENCE),
        (f"````python\n{CODE}\n````", Rule.FENCE),
        (f"1. Code:\n   ```python\n{margin(CODE, '   ')}\n   ```", Rule.FENCE),
        (f"> ```python\n{margin(CODE, '> ')}\n> ```", Rule.FENCE),
        (f"```python\n{HEAD}    return 0\n```\nBetter:\n```python\n{CODE}\n```", Rule.FENCE),
        (f"```python\n{CODE}\n```\nUse:\n```python\nprint(total([1]))\n```", Rule.FENCE),
        (f"```python\n{CODE}\n```\n```text\ntotal of xs\n```", Rule.FENCE),
        (f"```python\n{CODE}", Rule.UNCLOSED),  # cut off
        (f"```python\n{CODE}\n\nprint(total([1", Rule.UNCLOSED),
        (f"{CODE}\n```\nDone.", Rule.HALF_FENCE),  # the prompt opened the fence
        (CODE, Rule.PLAIN),
        (f"Here you go:\n\n{CODE}\n\nThis adds all numbers.", Rule.PLAIN),
        (f"import math\n{CODE}\n", Rule.PLAIN),
        (BODY, Rule.BODY),
        (BODY.lstrip(), Rule.BODY),  # the first line lost its indentation
        ("out = 0\nfor x in xs:\n    out += x\nreturn out", Rule.BODY),  # all of it did
        (f"{CODE}<|im_end|>", Rule.PLAIN),  # E11
        (f"```python\n{CODE}\n```<|eot_id|></s>", Rule.FENCE),
        (f"```python\r\n{CODE.replace(chr(10), chr(13) + chr(10))}\r\n```", Rule.FENCE),
        ("```python\ntotal = lambda xs: sum(xs)\n```", Rule.FENCE),
        ("\ufeff```python\n" + CODE + "\n```", Rule.FENCE),
    ],
)  # fmt: skip
def test_the_program_is_found(reply: str, rule: Rule) -> None:
    assert works(reply) is rule


def test_a_fence_within_a_docstring_does_not_end_the_block() -> None:
    code = CODE.replace(
        "    out = 0\n", '    """\n    ```\n    total([1])\n    ```\n    """\n    out = 0\n'
    )
    assert works(f"```python\n{code}\n```") is Rule.FENCE


def test_the_prompts_imports_and_helpers_are_kept() -> None:
    reply = f"```python\n{HEAD}    return sum(helper(x) - 1 for x in xs)\n```"
    assert works(reply) is Rule.FENCE


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "   \n",
        "I cannot help with that.",
        "```python\n```",
        "```python\ndef other():\n    return 1\n```",
        'def total(xs):\n    """ Sum. """\n',
        "def total(xs:\n```",
        "\x00" * 100,
        "```\n" * 3000,
        "total " * 30_000,
        "(" * 100_000 + "total",
    ],
)
def test_no_program_is_no_program(reply: str) -> None:
    found = extract(reply, TASK)
    assert (found.program, found.rule) == ("", Rule.NONE)


@given(st.text(alphabet="`~>\n def total(xs):return sum#\t\"'", max_size=400))
@settings(deadline=None, max_examples=300)
def test_any_reply_gives_a_program_that_parses_or_none(reply: str) -> None:
    found = extract(reply, TASK)
    assert (found.rule is Rule.NONE) == (found.program == "")
    ast.parse(found.program)


def test_a_huge_reply_is_cut() -> None:
    found = extract("x\n" * MOST + f"```python\n{CODE}\n```", TASK)
    assert found.rule is Rule.NONE


SHAPES = {
    "fence": "Sure:\n```python\n{whole}\n```\nDone.",
    "plain": "{whole}",
    "unclosed": "```python\n{whole}",
    "half": "{whole}\n```",
    "body": "{gold}",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_task_of_humaneval_survives(shape: str) -> None:
    """What is found does what was written: the same program, statement by statement."""
    for task in humaneval().tasks:
        whole = task.prompt + task.gold.rstrip()
        found = extract(SHAPES[shape].format(whole=whole, gold=task.gold), task)
        assert function(found.program, task) == function(task.prompt + task.gold, task), task.id


def function(program: str, task: Task) -> str:
    """The last definition of the task's function, as a tree."""
    nodes = [n for n in ast.parse(program).body if isinstance(n, ast.FunctionDef)]
    return ast.dump([n for n in nodes if n.name == task.entry][-1])
