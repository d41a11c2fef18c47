"""Weights and KV cache against memory: worked out by hand here, from published shapes."""

from __future__ import annotations

from typing import Any

import pytest

from ddops.compat import Launch, Subject, judge_all
from ddops.compat.fit import GIB, Split, fit, kv_bytes_per_token
from ddops.model import Verdict
from tests.unit.compat import hosts

GQA = {"num_hidden_layers": 36, "num_key_value_heads": 8, "num_attention_heads": 32,
       "head_dim": 128, "hidden_size": 4096}  # fmt: skip
MLA = {"num_hidden_layers": 61, "num_attention_heads": 64, "kv_lora_rank": 512,
       "qk_rope_head_dim": 64, "hidden_size": 7168}  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "split", "want"),
    [
        (GQA, Split(1, 1, 2), 2 * 36 * 8 * 128 * 2),
        (GQA, Split(8, 1, 2), 2 * 36 * 1 * 128 * 2),
        (GQA, Split(16, 1, 2), 2 * 36 * 1 * 128 * 2),  # a head is not cut
        (GQA, Split(1, 2, 1), 2 * 18 * 8 * 128),
        (MLA, Split(8, 1, 2), 61 * 576 * 2),  # the latent is on every GPU
        (MLA, Split(8, 8, 1), 8 * 576),
        ({k: v for k, v in GQA.items() if k != "head_dim"}, Split(1, 1, 2), 2 * 36 * 8 * 128 * 2),
        ({"num_hidden_layers": 4}, Split(1, 1, 2), None),
        ({}, Split(1, 1, 2), None),
    ],
)
def test_kv_bytes(sizes: dict[str, int], split: Split, want: int | None) -> None:
    assert kv_bytes_per_token(sizes, split) == want


def test_a_fit() -> None:
    one = fit(80 * GIB, 8 * GIB, 96 * 1024, 0.5, MLA, Split(4, 2, 2))
    assert (one.weights, one.memory) == (12 * GIB, 48 * GIB)
    assert one.room == 36 * GIB
    assert one.tokens == 36 * GIB // (31 * 576 * 2)


def run_07(models: object, argv: str) -> Any:
    raw = hosts.host("pcie")
    raw["probes"]["models"] = models
    launch = Launch(("--model-path", "/m/k", *argv.split()), engine="sglang-0.5.23")
    found = judge_all(Subject(hosts.facts(raw), "pcie", "sglang", launch=launch))
    return next(f for f in found if f.check == "RUN-07")


def weights(gib: float) -> dict[str, object]:
    return {"/m/k": {"bytes": int(gib * GIB), "config": MLA}}


@pytest.mark.parametrize(
    ("models", "argv", "verdict", "words"),
    [
        (weights(550), "--tp-size 8", Verdict.PASS, "tokens of KV cache"),
        (weights(800), "--tp-size 8", Verdict.FAIL, "weights alone do not fit"),
        (weights(550), "--tp-size 8 --mem-fraction-static 0.7", Verdict.FAIL, "alone"),
        (weights(550), "--tp-size 4", Verdict.FAIL, "alone"),
        (weights(550), "--tp-size 16", Verdict.FAIL, "needs 16 GPUs"),
        (weights(550), "--tp-size 8 --max-total-tokens 900000", Verdict.FAIL, "does not fit"),
        (weights(550), "--tp-size 8 --max-total-tokens 100000", Verdict.PASS, "tokens"),
        (weights(550), "--tp-size 8 --mem-fraction-static 1.5", Verdict.FAIL, "no share"),
        (weights(550), "--tp-size 8 --mem-fraction-static nan", Verdict.FAIL, "no share"),
        (weights(550), "--tp-size 0", Verdict.UNKNOWN, "not numbers"),
        ({}, "--tp-size 8", Verdict.UNKNOWN, "not on the host yet"),
        (None, "--tp-size 8", Verdict.UNKNOWN, "not on the host yet"),
        ([], "--tp-size 8", Verdict.UNKNOWN, "not on the host yet"),
        ({"/m/k": 7}, "--tp-size 8", Verdict.UNKNOWN, "not on the host yet"),
        ({"/m/k": {"bytes": None, "config": {}}}, "--tp-size 8", Verdict.UNKNOWN, "not on the"),
        ({"/m/k": {"bytes": 5, "config": {}}}, "--tp-size 8", Verdict.UNKNOWN, "config.json"),
    ],
)
def test_the_check(models: object, argv: str, verdict: Verdict, words: str) -> None:
    found = run_07(models, argv)
    assert (found.verdict, words in found.seen) == (verdict, True), found.seen
