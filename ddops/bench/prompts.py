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

from ddops.config.files import read_regular, reason
from ddops.config.schema import MAX_FAULTS
from ddops.config.words import kind, quote
from ddops.errors import ConfigError, Problem

#: A set of long contexts is as large as this; what is larger is not one that somebody chose.
MAX_BYTES = 256 << 20


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
    data = _bytes_of(path, name)
    items: dict[str, Prompt] = {}
    wrong: list[Problem] = []
    # By line feeds alone: a text may hold other characters that Python would end a line at.
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        found = _prompt(line)
        if isinstance(found, Prompt) and found.id in items:
            found = f"the id {quote(found.id)} came before"
        if isinstance(found, str):
            wrong.append(Problem(name, number, "", f"not a prompt: {found}"))
        else:
            items[found.id] = found
    if not items and not wrong:
        wrong.append(Problem(name, 0, "", "no prompts in it"))
    if len(wrong) > MAX_FAULTS:
        more = Problem(name, 0, "", f"and {len(wrong) - MAX_FAULTS} faults more")
        wrong = [*wrong[:MAX_FAULTS], more]
    if wrong:
        raise ConfigError(wrong, next='one object a line: {"id": "a", "text": "..."}')
    return Prompts(name, hashlib.sha256(data).hexdigest(), tuple(items.values()))


def _bytes_of(path: Path, name: str) -> bytes:
    try:
        data, _ = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError([Problem(name, 0, "", f"cannot be read: {reason(error)}")]) from None
    if len(data) > MAX_BYTES:
        words = f"larger than {MAX_BYTES >> 20} MiB: all of it is held, and sent to each host"
        raise ConfigError([Problem(name, 0, "", words)], next="measure with fewer prompts")
    return data


def _prompt(line: bytes) -> Prompt | str:
    """One line's prompt, or what is wrong with it. What is asked is never guessed: the number of a
    run that asked for `None` would be as good as any other."""
    try:
        raw = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return "not UTF-8 text"
    except RecursionError:
        return "lists or objects are nested too deeply"
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(raw, dict):
        return f"expected an object, got {_kind(raw)}"
    for key in ("id", "text"):
        if key not in raw:
            return f"`{key}` is missing"
    name, text = raw["id"], raw["text"]
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    if not isinstance(name, str):
        return f"id: expected text or a whole number, got {_kind(name)}"
    if not isinstance(text, str):
        return f"text: expected text, got {_kind(text)}"
    for key, value in (("id", name), ("text", text)):
        if not value.strip():
            return f"{key}: empty text"
        if any("\ud800" <= c <= "\udfff" for c in value):
            return f"{key}: holds half of a character"
    return Prompt(name, text)


def _kind(value: object) -> str:
    return "null" if value is None else "an object" if isinstance(value, dict) else kind(value)


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
