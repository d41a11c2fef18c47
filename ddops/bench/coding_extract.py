"""Finding the program in a model's reply. Pure; which rule found it is recorded with each answer.

A reply is prose with a fenced block, a bare fence, a block that never ends, code alone, or just the
function's body. Each rule proposes texts; the first that parses and defines the function is it.
A shift in the mix of rules between two servers is itself a sign that something changed.
"""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from ddops.bench.coding_tasks import Task

#: Replies are cut here: no solution is as long, and parsing is not linear.
MOST = 100_000
#: Proposals that are tried at most: a reply may hold thousands of fences.
MOST_TRIES = 200
_FENCE = re.compile(r"^([ \t>]*)(`{3,}|~{3,})[ \t]*([\w+#.-]*)[ \t]*$")
_LEAVES = (ast.Return, ast.Yield, ast.YieldFrom)
_BEGINS = re.compile(r"(?:import|from|def|async def|class) |@\w|\w+ = ")
#: An end-of-turn mark that a server let through.
_MARK = re.compile(r"(?:<\|[\w -]{1,40}\|>|</s>|<eos>)\s*\Z")


class Rule(StrEnum):
    """How the program was found."""

    FENCE = "fence"
    HALF_FENCE = "half_fence"
    UNCLOSED = "unclosed_fence"
    PLAIN = "plain"
    BODY = "body"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Extracted:
    """The whole program to run: the prompt's preamble with the function. Empty for NONE."""

    program: str
    rule: Rule


def extract(reply: str, task: Task) -> Extracted:
    """The program in a reply (of the answer channel alone: reasoning is another channel)."""
    text = _clean(reply)
    lines = text.split("\n")
    for rule, proposal in itertools.islice(_proposals(lines, text, task), MOST_TRIES):
        program = proposal if rule is Rule.BODY else _with_preamble(task, proposal)
        # Any word is a statement: a bare body must at least return something.
        if _defines(program, task.entry, returns=rule is Rule.BODY):
            return Extracted(program, rule)
    return Extracted("", Rule.NONE)


def _proposals(lines: list[str], text: str, task: Task) -> Iterator[tuple[Rule, str]]:
    fences = [i for i, line in enumerate(lines) if _FENCE.match(line)]
    # The last block that has the function: models show a draft first, or a usage after it.
    for start in reversed(fences):
        for end in (f for f in fences if f > start):
            yield Rule.FENCE, _block(lines, start, end)
    if fences and lines[fences[0]].strip(" \t>") in ("```", "~~~"):
        # The prompt ended in an open fence, so the reply holds its end alone.
        yield Rule.HALF_FENCE, "\n".join(lines[: fences[0]])
    for start in reversed(fences):
        yield from ((Rule.UNCLOSED, t) for t in _shorter(_block(lines, start, len(lines))))
    yield from ((Rule.PLAIN, t) for t in _plain(lines))
    body = text.strip("\n")
    if body.strip():
        for shape in (body, _levelled(body), _only_indented(body)):
            whole = shape if shape[:1].isspace() else textwrap.indent(shape, "    ")
            yield Rule.BODY, task.prompt.rstrip() + "\n" + whole + "\n"


def _block(lines: list[str], start: int, end: int) -> str:
    """A block's lines without the fence's own indentation or quote marks."""
    match = _FENCE.match(lines[start])
    margin = match[1] if match else ""
    body = lines[start + 1 : end]
    if margin and all(x.startswith(margin) or not x.strip() for x in body):
        body = [x[len(margin) :] for x in body]
    first = next((x for x in body if x.strip()), "")
    text = "\n".join(body)
    return textwrap.dedent(text) if first[:1].isspace() else text


def _shorter(text: str) -> Iterator[str]:
    """The text, then without its last lines: a reply that was cut ends in half a line."""
    yield text
    lines = text.split("\n")
    for end in range(len(lines) - 1, max(0, len(lines) - 12), -1):
        yield "\n".join(lines[:end])


def _plain(lines: list[str]) -> Iterator[str]:
    """From each line that may begin a program to the last line that may end one."""
    starts = [i for i, x in enumerate(lines) if _BEGINS.match(x)]
    ends = [len(lines)] + [
        i for i in range(len(lines) - 1, 0, -1) if lines[i].strip() and not lines[i][:1].isspace()
    ]
    for start in starts[:8]:
        for end in ends[:8]:
            if end > start:
                yield "\n".join(lines[start:end])


def _levelled(body: str) -> str:
    """A body whose first line lost its indentation: the rest says how much."""
    first, _, rest = body.partition("\n")
    margins = [len(x) - len(x.lstrip()) for x in rest.split("\n") if x.strip()]
    if not margins or min(margins) == 0:
        return body
    return first.lstrip() + "\n" + textwrap.dedent(rest)


def _only_indented(body: str) -> str:
    """A body up to what follows the function, at the margin: a call, prose."""
    lines = body.split("\n")
    ends = [i for i, x in enumerate(lines) if i and x.strip() and not x[:1].isspace()]
    return "\n".join(lines[: ends[0]]) if ends else body


def _with_preamble(task: Task, code: str) -> str:
    """The prompt's imports and helpers first, after any `from __future__` line of the reply."""
    return task.preamble + "\n" + code.strip("\n") + "\n" if task.preamble.strip() else code


def _defines(program: str, entry: str, *, returns: bool) -> bool:
    """Whether it parses and defines the function, with more than a docstring in it."""
    if entry not in program:
        return False
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == entry:
            if returns and not any(isinstance(n, _LEAVES) for n in ast.walk(node)):
                return False
            return any(not _is_text(x) for x in node.body)
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == entry for t in node.targets
        ):
            return True
    return False


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _clean(reply: str) -> str:
    text = reply[:MOST].replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    while match := _MARK.search(text):
        text = text[: match.start()]
    return text
