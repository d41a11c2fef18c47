"""What is asked: texts from a file, in an order and with a salt that come from seeds alone.

The salt stands before the text, so that no two requests of one server start share a prefix beyond
it and no cache can answer for the engine. It does not depend on the cell: the same request goes to
each configuration that is compared.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path

from ddops.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Prompt:
    """One text; `id` is what an interval is clustered by."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Prompts:
    """A file's prompts and the hash of its bytes."""

    name: str
    sha256: str
    items: tuple[Prompt, ...]


def read_prompts(path: Path, name: str) -> Prompts:
    """JSON lines with `id` and `text`. Raises ConfigError with every faulty line."""
    data = path.read_bytes()
    items: dict[str, Prompt] = {}
    wrong: list[Problem] = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
            prompt = Prompt(str(raw["id"]), str(raw["text"]))
            if not prompt.text.strip() or prompt.id in items:
                raise ValueError("empty text" if not prompt.text.strip() else "the id came before")
        except (ValueError, KeyError, TypeError) as error:
            words = f"not a prompt: {type(error).__name__}: {error}"
            wrong.append(Problem(name, number, "", words))
            continue
        items[prompt.id] = prompt
    if not items and not wrong:
        wrong.append(Problem(name, 0, "", "no prompts in it"))
    if wrong:
        raise ConfigError(wrong, next='one object a line: {"id": "a", "text": "..."}')
    return Prompts(name, hashlib.sha256(data).hexdigest(), tuple(items.values()))


def draw(prompts: Prompts, count: int, seed: int, *marks: object) -> list[tuple[str, str]]:
    """`count` (id, salted text), shuffled in rounds over all prompts."""
    rng = random.Random(_seed(seed, "order", *marks))  # noqa: S311 - an order, not a secret
    out: list[tuple[str, str]] = []
    while len(out) < count:
        batch = list(prompts.items)
        rng.shuffle(batch)
        out += [(p.id, p.text) for p in batch[: count - len(out)]]
    return [(i, f"{salt(seed, n, *marks)}\n{text}") for n, (i, text) in enumerate(out)]


def salt(seed: int, n: int, *marks: object) -> str:
    """A line that no other request of this server start begins with."""
    return f"# {_seed(seed, n, *marks):016x}"


def _seed(*parts: object) -> int:
    text = json.dumps([str(p) for p in parts])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def constant_schedule(rate: float, count: int) -> list[int]:
    """When each request is due, ns after t0: absolute times, so that lateness does not add up."""
    return [round(n * 1e9 / rate) for n in range(count)]


def poisson_schedule(rate: float, count: int, seed: int) -> list[int]:
    """The same with exponential gaps."""
    rng = random.Random(_seed(seed, "arrivals"))  # noqa: S311
    out, at = [], 0.0
    for _ in range(count):
        out.append(round(at * 1e9))
        at += rng.expovariate(rate)
    return out
