"""Tokens of the stand-in: text to ids and back, and the rule that says which id comes next.

The next id is a pure function of all ids before it, so a continuation is the same however it
is asked for: in one call, in two, batched, streamed, or with any speculative setting.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

MASK = (1 << 64) - 1
EOS = 2
FIRST = 3  # 0, 1 and 2 are padding, begin and end, as in many vocabularies
PIECE = 4  # characters of prompt text in one token
HEADS = (
    "ka", "ve", "lo", "mi", "ru", "tan", "sel", "por",
    "din", "gar", "fen", "hol", "bri", "cla", "sto", "wen",
)  # fmt: skip
TAILS = (
    "ra", "ne", "to", "li", "mus", "der", "vin", "sa",
    "lor", "ket", "ban", "dy", "fu", "gen", "pis", "wo",
)  # fmt: skip


def encode(text: str, vocab: int) -> list[int]:
    """Ids of a text: one for each piece of up to four characters."""
    pieces = (text[i : i + PIECE] for i in range(0, len(text), PIECE))
    return [FIRST + crc32(p.encode("utf-8", "surrogatepass")) % (vocab - FIRST) for p in pieces]


def decode(ids: Iterable[int]) -> str:
    """Readable nonsense; ids of anyone's tokenizer become words, the end token nothing."""
    return "".join(f" {HEADS[i >> 4 & 15]}{TAILS[i & 15]}" for i in ids if i != EOS)


def mix(x: int) -> int:
    """The finalizer of splitmix64: 64 well-stirred bits from any whole number."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def extend(state: int, token: int) -> int:
    """The state after one more token."""
    return ((state ^ (token + 1)) * 0x100000001B3 + 0x9E37) & MASK


def state_of(ids: Iterable[int]) -> int:
    """The state after all these tokens."""
    state = 0xCBF29CE484222325
    for token in ids:
        state = extend(state, token)
    return state


def next_token(state: int, vocab: int, salt: int = 0) -> int:
    """The id that follows; a salt other than 0 gives another, equally plausible one."""
    return FIRST + mix(state ^ mix(salt) if salt else state) % (vocab - FIRST)


def natural_length(state: int) -> int:
    """Where an answer to this prompt ends by itself: 256 to 1023 tokens."""
    return 256 + mix(state ^ EOS) % 768


@dataclass(frozen=True)
class Golden:
    """Prompts whose greedy answer is known. Both maps lead to the same entries."""

    by_ids: Mapping[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    by_text: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def ids_of(self, text: str) -> list[int] | None:
        """The recorded prompt ids of a listed text."""
        ids = self.by_text.get(text)
        return None if ids is None else list(ids)

    def answer(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The recorded continuation, empty for a prompt that is not listed."""
        return self.by_ids.get(tuple(ids), ())


def find_golden(model_path: str, told: str) -> Golden:
    """From the file the option names, else golden.json in the model's folder or beside it."""
    if told:
        return read_golden(Path(told))
    folder = Path(model_path).absolute()
    for path in (folder / "golden.json", folder.parent / "golden.json"):
        if path.is_file():
            return read_golden(path)
    return Golden()


def read_golden(path: Path) -> Golden:
    """ValueError when the file is not of the schema `ddops.golden/1`."""
    value: Any = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict) or value.get("schema") != "ddops.golden/1":
        raise ValueError(f"{path}: the schema is not ddops.golden/1")
    by_ids: dict[tuple[int, ...], tuple[int, ...]] = {}
    by_text: dict[str, tuple[int, ...]] = {}
    for prompt in value["prompts"]:
        ids = tuple(int(i) for i in prompt["input_ids"])
        by_ids[ids] = tuple(int(i) for i in prompt["output_ids"])
        if prompt.get("text") is not None:
            by_text[prompt["text"]] = ids
    return Golden(by_ids, by_text)
