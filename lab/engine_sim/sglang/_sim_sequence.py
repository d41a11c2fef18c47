"""One answer being made: which tokens each step commits, and when it is finished."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sglang._sim_args import ServerArgs
from sglang._sim_faults import Script
from sglang._sim_text import EOS, decode, extend, mix, natural_length, next_token, state_of

GARBAGE = 0x5EED
BAD_MASK = 0xBADA5C  # another salt, so that both faults together do not cancel out
#: Mean commit length of a chain; a tree's comes from its budget. Plausible, never evidence.
CHAIN = {"DFLASH": 2.0, "EAGLE": 2.5, "EAGLE3": 2.7, "NGRAM": 1.5}


@dataclass(frozen=True)
class Sampling:
    """The part of `sampling_params` that the stand-in acts on."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    no_stop_trim: bool = False
    min_new_tokens: int = 0
    n: int = 1
    seed: int | None = None

    @classmethod
    def of(cls, params: dict[str, Any]) -> Sampling:
        """From the native API's object. ValueError for a value no server takes."""
        stop = params.get("stop") or ()
        most = params.get("max_new_tokens", 128)
        out = cls(
            max_new_tokens=(1 << 30) if most is None else int(most),
            temperature=float(_or(params.get("temperature"), 1.0)),
            ignore_eos=bool(params.get("ignore_eos", False)),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(params.get("stop_token_ids") or ()),
            no_stop_trim=bool(params.get("no_stop_trim", False)),
            min_new_tokens=int(_or(params.get("min_new_tokens"), 0)),
            n=int(_or(params.get("n"), 1)),
            seed=params.get("sampling_seed"),
        )
        if out.temperature < 0:
            raise ValueError(f"temperature must be non-negative, got {out.temperature}.")
        if out.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must be at least 0, got {out.max_new_tokens}.")
        if out.n < 1:
            raise ValueError(f"n must be at least 1, got {out.n}.")
        return out


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


@dataclass(frozen=True)
class Drafting:
    """How a speculative profile commits: mean tokens a step, and the most one step can give."""

    mean: float
    most: int
    window: int

    @classmethod
    def of(cls, args: ServerArgs, script: Script) -> Drafting | None:
        """None without a speculative algorithm."""
        if not args.speculative:
            return None
        name, window = args["speculative_algorithm"], int(args["speculative_num_draft_tokens"])
        most = max(1, min(window, args.block))
        mean = CHAIN.get(name, 2.0)
        if name == "DDTREE" and int(args["speculative_eagle_topk"]) > 1:
            mean = 2.0 + 0.8 * math.log2(window)
        if script.on("commit"):
            mean = script.number("commit")
        if script.on("mask_bug"):
            mean = 1.7  # what a corrupt tree mask looked like: plausible text, short commits
        return cls(min(max(mean, 1.0), float(most)), most, window)

    def commits(self, state: int) -> int:
        """Tokens of the step at this state: the mean's floor or ceiling, by the state's bits."""
        low = int(self.mean)
        return low + (mix(state ^ 0xC0117) / (1 << 64) < self.mean - low)


class Sequence:
    """Mutable; one thread owns it."""

    def __init__(
        self,
        rid: str,
        prompt: list[int],
        sampling: Sampling,
        golden: tuple[int, ...],
        vocab: int,
        salt: int,
        script: Script,
        drafting: Drafting | None,
    ) -> None:
        self.rid = rid
        self.prompt = prompt
        self.sampling = sampling
        self.output: list[int] = []
        self.text = ""
        self.finish: dict[str, Any] | None = None
        self.verify_ct = 0
        self.correct_drafts = 0
        self.histogram: list[int] = []
        self.cached = 0
        self.drafting = drafting
        self._golden = golden if not salt else ()
        self._vocab = vocab
        self._salt = salt ^ GARBAGE if script.on("garbage") else salt
        self._mask_bug = script.on("mask_bug") and drafting is not None
        self._early = script.count("early_eos")
        self._state = state_of(prompt)
        self._end = natural_length(self._state)
        if sampling.max_new_tokens == 0:
            self.finish = {"type": "length", "length": 0}

    def step(self) -> int:
        """Commits one step's tokens; the first comes from the prefill. How many were kept."""
        if self.drafting is None or not self.output:
            return self._commit(1)
        kept = self._commit(self.drafting.commits(self._state))
        self.verify_ct += 1
        self.correct_drafts += kept - 1
        self.histogram += [0] * (kept - len(self.histogram))
        self.histogram[kept - 1] += 1
        return kept

    def _commit(self, count: int) -> int:
        kept = 0
        while kept < count and self.finish is None:
            token = self._next()
            self._state = extend(self._state, token)
            self.output.append(token)
            self.text += decode((token,))
            kept += 1
            self._judge(token)
        return kept

    def _next(self) -> int:
        place = len(self.output)
        if self._early and place >= self._early - 1:
            return EOS
        natural = place >= max(self._end, self.sampling.min_new_tokens)
        if natural and not self.sampling.ignore_eos:
            return EOS
        salt = self._salt
        if self._mask_bug and place >= 3:
            salt ^= BAD_MASK
        elif place < len(self._golden) and not salt:
            return self._golden[place]
        return next_token(self._state, self._vocab, salt)

    def _judge(self, token: int) -> None:
        """Sets `finish` when this token ends the answer."""
        early = self._early and len(self.output) >= self._early
        stops = self.sampling.stop_token_ids
        if token in stops or (token == EOS and (early or not self.sampling.ignore_eos)):
            self.finish = {"type": "stop", "matched": token}
            return
        for word in self.sampling.stop:
            at = self.text.find(word, max(0, len(self.text) - len(word) - 16))
            if word and at >= 0:
                end = at + len(word) if self.sampling.no_stop_trim else at
                self.text = self.text[:end]
                self.finish = {"type": "stop", "matched": word}
                return
        if len(self.output) >= self.sampling.max_new_tokens:
            self.finish = {"type": "length", "length": self.sampling.max_new_tokens}
