"""The text a trained pair learns: Python sources that lie on the machine, and their tokenizer."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
#: Packages read, in this order, until the wanted amount of text is there.
PACKAGES = ("transformers", "torch", "jax", "scipy", "sklearn", "pandas")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts to learn from, and files that no training step sees."""

    train: list[str]
    held_out: list[str]


def folders(packages: tuple[str, ...] = PACKAGES) -> list[Path]:
    """Where the sources lie; what is not installed is left out."""
    found = [Path(sysconfig.get_paths()["stdlib"])]
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            found.append(Path(spec.origin).parent)
    return found


def read(megabytes: float, held_out: int = 50, roots: list[Path] | None = None) -> Corpus:
    """Up to `megabytes` of text; one file in `held_out`, chosen by its own hash, is not learnt."""
    train: list[str] = []
    held: list[str] = []
    left = megabytes * 1e6
    for root in roots if roots is not None else folders():
        for path in sorted(root.rglob("*.py")):
            if left <= 0:
                return Corpus(train, held)
            if "site-packages" in path.relative_to(root).parts or path.stat().st_size > 300_000:
                continue
            text = path.read_text(encoding="utf-8", errors="ignore")
            if len(text) < 800:
                continue
            left -= len(text)
            digest = hashlib.sha256(text.encode()).digest()
            (held if digest[0] % held_out == 0 else train).append(text)
    return Corpus(train, held)


def tokenizer(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE whose first ids are the special tokens, trained on a sample of the texts."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    every = max(1, sum(map(len, texts)) // 12_000_000)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts[::every], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        mask_token=SPECIAL[3],
        model_max_length=2048,
    )


def encode(tok: PreTrainedTokenizerFast, texts: list[str]) -> list[int]:
    """All texts as one stream of ids, an <|endoftext|> after each."""
    stream: list[int] = []
    for piece in tok.backend_tokenizer.encode_batch(texts):
        stream.extend(piece.ids)
        stream.append(0)
    return stream
