"""The same for a target with latent attention (MLA): DDTREE says what the model alone says.

Kimi K2 and DeepSeek keep one row a token for all heads (latent, then rotary key), which a tree
writes, and the accepted path is moved in. Real SGLang, device=cpu, float32, a toy pair of models.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.ddtree_support import (
    REPO,
    TOKENS,
    Answer,
    Server,
    compare,
    faults,
    judge,
    serving,
    texts,
    waves,
)

pytestmark = pytest.mark.engine

#: Each size of a batch once.
MODEL, PROMPTS = "tiny-mla", 36
#: Budget, and the options of its server: the second pages its cache and cuts its prefills.
SERVERS: dict[int, dict[str, str | int]] = {
    8: {},
    15: {"page-size": 16, "chunked-prefill-size": 64},
}


@dataclass(frozen=True, slots=True)
class Reference:
    """What the model alone answers: to prompts, whose tokens these are, and to the golden ones."""

    prompts: list[list[int]]
    answers: list[Answer]
    golden: list[Answer]


def golden() -> list[dict[str, Any]]:
    """Answers of the library that trained the model, whose attention keeps keys and values."""
    prompts: list[dict[str, Any]] = json.loads((REPO / "lab/models/golden-mla.json").read_text())[
        "prompts"
    ]
    return prompts


@dataclass(frozen=True, slots=True)
class Tree:
    """A DDTREE server, and the folder where a file puts a fault into it."""

    budget: int
    server: Server
    faults: Path


@pytest.fixture(scope="module")
def reference(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("mla-reference")
    with serving(engine_python, folder, "tiny-ar", model=MODEL) as server:
        answers: list[Answer] = []
        for wave in waves(8, PROMPTS):
            answers += server.batch([texts()[i] for i in wave], [TOKENS] * len(wave))
        tokens = [
            server.post("/tokenize", {"prompt": t, "model": MODEL}) for t in texts()[:PROMPTS]
        ]
        asked = [prompt["input_ids"] for prompt in golden()]
        said = server.batch(asked, [len(prompt["output_ids"]) for prompt in golden()])
    return Reference([t["tokens"] for t in tokens], answers, said)


@pytest.fixture(scope="module", params=SERVERS, ids=lambda b: f"budget{b}")
def tree(
    request: pytest.FixtureRequest,
    engine_python: Path,
    tmp_path_factory: pytest.TempPathFactory,
    reference: Reference,
) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp(f"mla-budget{request.param}")
    off = faults(folder / "faults")
    with serving(
        engine_python, folder, "tiny-ddtree", budget=request.param, model=MODEL,
        launch=SERVERS[request.param], env={"PYTHONPATH": str(off)},
    ) as server:  # fmt: skip
        yield Tree(request.param, server, off)


def test_the_pair_is_what_this_is_about() -> None:
    """Latent attention, turned as Kimi K2's is, and no width of it equal to another."""
    config = json.loads((REPO / f"lab/models/{MODEL}/config.json").read_text())
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert config["rope_parameters"]["rope_type"] == "yarn"
    widths = [config[f"qk_{part}_head_dim"] for part in ("nope", "rope")]
    widths += [sum(widths), config["v_head_dim"], config["kv_lora_rank"], config["q_lora_rank"]]
    assert len(set(widths)) == len(widths)


def test_the_reference_is_right_by_another_library(reference: Reference) -> None:
    """The lab engine's latent attention is no invention of its own: six prompts, 48 tokens each."""
    for prompt, answer in zip(golden(), reference.golden, strict=True):
        assert answer["output_ids"] == prompt["output_ids"], prompt["id"]


def test_every_token_is_the_models_own(tree: Tree, reference: Reference) -> None:
    """36 prompts in batches of 1 to 8, requests of unequal length that leave one by one."""
    found = []
    for wave in waves(1, PROMPTS):
        lengths = [TOKENS - (i * 5) % 17 for i in wave]
        answers = tree.server.batch([texts()[i] for i in wave], lengths)
        for i, answer in zip(wave, answers, strict=True):
            found.append(compare(f"prompt {i}", answer, reference.answers[i]))
            assert_logprobs(answer, reference.answers[i])
    judge(f"MLA, budget {tree.budget}", found)
    assert_trees_were_needed(tree)


def assert_logprobs(answer: Answer, reference: Answer) -> None:
    """The verify pass gives the log-probabilities of decoding, as far as the answers agree."""
    pairs = zip(
        answer["meta_info"]["output_token_logprobs"],
        reference["meta_info"]["output_token_logprobs"],
        strict=False,
    )
    for (one, token, _), (two, other, _) in pairs:
        if token != other:
            return  # a near-tie, judged elsewhere
        assert math.isclose(one, two, abs_tol=1e-3), (one, two)


def assert_trees_were_needed(tree: Tree) -> None:
    """Several tokens a step, and some of them by nodes that no chain would have held."""
    steps = tree.server.steps()
    pairs = [p for step in steps for p in zip(step["commit"], step["spine"], strict=True)]
    assert {step["width"] for step in steps} == {tree.budget + 1}
    assert max(len(step["commit"]) for step in steps) == 8
    assert all(commit >= spine >= 1 for commit, spine in pairs)
    mean, spine = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    off = sum(commit > spine for commit, spine in pairs)
    # Node n's row is the n-th after the root's: any other path is moved to lie behind the root.
    moved = sum(path != list(range(1, len(path) + 1)) for step in steps for path in step["path"])
    print(
        f"MLA, budget {tree.budget}, device=cpu, toy model: {mean:.2f} tokens a step, its own "
        f"spine {spine:.2f}; {off} of {len(pairs)} steps off the spine, {moved} paths moved"
    )
    assert mean > 1.3
    assert off > len(pairs) // 50
    assert moved > len(pairs) // 50


def test_every_token_is_the_models_own_on_a_cached_path(tree: Tree, reference: Reference) -> None:
    """Prompt and half an answer, which a tree wrote: its latent rows were moved and kept."""
    half, found, cached = TOKENS // 2, [], 0
    for wave in waves(4, PROMPTS):
        prompts = [reference.prompts[i] + reference.answers[i]["output_ids"][:half] for i in wave]
        answers = tree.server.batch(prompts, [half] * len(wave))
        for i, answer in zip(wave, answers, strict=True):
            found.append(compare(f"prompt {i}", answer, reference.answers[i], skip=half))
            cached += answer["meta_info"]["cached_tokens"] > len(reference.prompts[i])
    judge(f"MLA, budget {tree.budget} through the radix cache", found)
    assert cached > PROMPTS // 2, "few answers reused what a tree had written"


def test_a_wrong_mask_and_a_path_left_behind_are_found_out(
    tree: Tree, reference: Reference
) -> None:
    """Siblings that see each other, and latent rows that are not moved: each changes tokens."""
    wrong = {"none": wrong_answers(tree, reference)}
    for fault in ("mask", "move"):
        switch = tree.faults / fault
        switch.touch()
        wrong[fault] = wrong_answers(tree, reference)
        switch.unlink()
    tree.server.forget()
    print(f"MLA, budget {tree.budget}, wrong answers of 8 by fault: {wrong}")
    assert wrong["none"] == 0
    assert wrong["mask"] > 0, "the comparison would not notice a wrong mask"
    assert wrong["move"] > 0, "the comparison would not notice rows that were left behind"


def wrong_answers(tree: Tree, reference: Reference) -> int:
    """Of eight prompts, each answered from an empty cache."""
    tree.server.forget()
    answers = tree.server.batch(texts()[:8], [TOKENS] * 8)
    found = [compare(f"{i}", a, reference.answers[i]) for i, a in enumerate(answers)]
    return sum(bool(one.wrong) for one in found)
