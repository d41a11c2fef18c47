"""What servers must show: the tokens of no speculation, from graphs that read the tree."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from serve_fleet import Answer, Server

Prompts = Sequence[Sequence[int]]
#: bfloat16 logits near 16 lie 0.125 apart: two tokens this near are one rounding apart.
NEAR_TIE = 0.25


def greedy(tokens: int) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}


def reference(server: Server, prompts: Prompts, tokens: int, at_once: int) -> list[Answer]:
    """Greedy answers with the two best log-probabilities of each token."""
    return server.ask(prompts, greedy(tokens), at_once, return_logprob=True, top_logprobs_num=2)


def commit_length(answers: Sequence[Answer]) -> float | None:
    """Tokens committed a verify pass; the first token of an answer comes from its prefill."""
    steps = sum(a["meta_info"].get("spec_verify_ct", 0) for a in answers)
    tokens = sum(len(a["output_ids"]) - 1 for a in answers)
    return round(tokens / steps, 4) if steps else None


def compared(answers: Sequence[Answer], wanted: Sequence[Answer]) -> dict[str, Any]:
    """How many answers are the reference's token for token, and how near the others' first
    difference was to a tie: the gap between the reference's two best log-probabilities there."""
    gaps = []
    tokens = 0
    for got, want in zip(answers, wanted, strict=True):
        one, two = got["output_ids"], want["output_ids"]
        first = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), None)
        if first is None and len(one) == len(two):
            tokens += len(one)
            continue
        first = min(len(one), len(two)) if first is None else first
        tokens += first
        best, second = want["meta_info"]["output_top_logprobs"][first][:2]
        gaps.append(round(best[0] - second[0], 4))
    return {
        "answers": len(answers), "equal": len(answers) - len(gaps), "tokens_until_parting": tokens,
        "parted_near_tie": sum(g <= NEAR_TIE for g in gaps),
        "parted_elsewhere": sum(g > NEAR_TIE for g in gaps),
        "gaps": sorted(gaps, reverse=True)[:8],
    }  # fmt: skip


def lossless(
    server: Server, wanted: Sequence[Answer], prompts: Prompts, tokens: int, at_once: int
) -> dict[str, Any]:
    """Greedy answers against the reference, with what the probe counted meanwhile."""
    before = Counter(server.report()[0])
    answers = server.ask(prompts, greedy(tokens), at_once)
    passes = Counter(server.report()[0]) - before
    return {
        **compared(answers, wanted), "tokens_per_pass": commit_length(answers),
        "passes": dict(passes),
    }  # fmt: skip


def spine(server: Server, prompts: Prompts, tokens: int, at_once: int) -> dict[str, Any]:
    """Commit length of the tree and of its own spine, step by step, from DDTREE's step log."""
    log = server.probe / "steps.jsonl"
    log.unlink(missing_ok=True)
    server.switch("steps", True)
    try:
        server.ask(prompts, greedy(tokens), at_once)
    finally:
        server.switch("steps", False)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    pairs = [p for r in rows for p in zip(r["commit"], r["spine"], strict=True)]
    return {
        "steps": len(pairs),
        "tree": round(statistics.mean(c for c, _ in pairs), 4),
        "spine": round(statistics.mean(s for _, s in pairs), 4),
        "steps_below_spine": sum(c < s for c, s in pairs),
        "steps_above_spine": sum(c > s for c, s in pairs),
        "commit_histogram": dict(sorted(Counter(c for c, _ in pairs).items())),
    }


def eager_equals_graph(server: Server, prompts: Prompts, tokens: int) -> dict[str, Any]:
    """One request at a time, with the graphs and without them."""
    with_graphs = server.ask(prompts, greedy(tokens), 1)
    before = Counter(server.report()[0])
    server.switch("eager", True)
    try:
        without = server.ask(prompts, greedy(tokens), 1)
    finally:
        server.switch("eager", False)
    passes = Counter(server.report()[0]) - before
    same = sum(
        a["output_ids"] == b["output_ids"] for a, b in zip(with_graphs, without, strict=True)
    )
    return {"answers": len(prompts), "equal": same, "passes_without": dict(passes)}


def detector(server: Server, prompts: Prompts, tokens: int = 10) -> dict[str, Any]:
    """Sums of probe/ddtree_detect.py over steps at 1, 3 and 8 requests of unequal length."""
    log = server.probe / "detect.jsonl"
    log.unlink(missing_ok=True)
    server.switch("detect", True)
    try:
        for at_once in (1, 3, 8):
            ragged = [p[: len(p) - 7 * n] for n, p in enumerate(prompts[:at_once])]
            server.ask(ragged, greedy(tokens), at_once)
    finally:
        server.switch("detect", False)
    if not log.exists():
        return {"steps": 0, "reads_the_tree": False, "why": "no verify pass replayed a graph"}
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    names = ("rows_to_change", "rows_changed", "rows_changed_that_must_not", "leaves_changed",
             "other_rows_stirred")  # fmt: skip
    sums = {name: sum(r[name] for r in rows) for name in names}
    reads = (
        sums["rows_changed"] >= 0.9 * sums["rows_to_change"] > 0
        and not sums["rows_changed_that_must_not"]
        and not sums["other_rows_stirred"]
    )
    return {
        "steps": len(rows), "batch_sizes": sorted({r["bs"] for r in rows}), **sums,
        "leaves": sum(r["bs"] for r in rows), "not_restored": sum(not r["restored"] for r in rows),
        "reads_the_tree": reads,
    }  # fmt: skip


def pages(
    server: Server, wanted: Sequence[Answer], prompts: Prompts, tokens: int
) -> dict[str, Any]:
    """Twice: the second time the prompts come from the radix cache, with what was compacted."""
    first = lossless(server, wanted, prompts, tokens, 8)
    again = server.ask(prompts, greedy(tokens), 8)
    # The answers' own keys and values too: the first half of each answer becomes a prompt.
    half = tokens // 2
    longer = [[*p, *a["output_ids"][:half]] for p, a in zip(prompts, wanted, strict=True)]
    rest = server.ask(longer, greedy(tokens - half), 8)
    tails = [
        {**a, "output_ids": a["output_ids"][half:], "meta_info": {
            "output_top_logprobs": a["meta_info"]["output_top_logprobs"][half:]}}
        for a in wanted
    ]  # fmt: skip
    return {
        "first": first, "cached": compared(again, wanted), "answer_as_prompt": compared(rest, tails)
    }  # fmt: skip


def sampled(
    servers: dict[str, Server], judge: Server, prompts: Prompts, temperature: float, tokens: int
) -> dict[str, Any]:
    """Is what a server samples as probable to the target as what the target samples itself?

    The mean negative log-probability of an answer's tokens, at temperature 1, judged by one plain
    server. For exact samplers the means differ by chance only: z is their difference to the first
    server's in standard errors. Distinct answers are counted too.
    """
    found: dict[str, Any] = {}
    base: tuple[float, float] | None = None
    sampling = {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True}
    for name, server in servers.items():
        answers = server.ask(prompts, sampling, 16)
        losses = [_loss(judge, p, a["output_ids"]) for p, a in zip(prompts, answers, strict=True)]
        mean, error = statistics.mean(losses), statistics.stdev(losses) / math.sqrt(len(losses))
        base = base or (mean, error)
        found[name] = {
            "answers": len(answers), "distinct": len({tuple(a["output_ids"]) for a in answers}),
            "loss": round(mean, 4), "error": round(error, 4),
            "z": round((mean - base[0]) / (math.hypot(error, base[1]) or 1e-9), 2),
            "tokens_per_pass": commit_length(answers),
        }  # fmt: skip
    return found


def _loss(judge: Server, prompt: Sequence[int], said: Sequence[int]) -> float:
    answer = judge.generate(
        [*prompt, *said], {"temperature": 0, "max_new_tokens": 1}, return_logprob=True,
        logprob_start_len=len(prompt) - 1,
    )  # fmt: skip
    scores = [x[0] for x in answer["meta_info"]["input_token_logprobs"] if x[0] is not None]
    return -statistics.mean(scores[-len(said) :])


def joint(server: Server, prompt: Sequence[int], temperature: float, count: int) -> Counter[str]:
    """How often each triple of first tokens came: the second and third are the tree's."""
    sampling = {
        "temperature": temperature, "max_new_tokens": 3, "ignore_eos": True, "n": 32,
    }  # fmt: skip
    answers = server.ask([prompt] * (count // 32), sampling, 4)
    flat = [a for group in answers for a in (group if isinstance(group, list) else [group])]
    return Counter(" ".join(map(str, a["output_ids"][:3])) for a in flat)


def same_trees(server: Server) -> dict[str, Any]:
    """Whether all ranks drafted and accepted the same at every step (DDTREE_PROBE_TREES)."""
    time.sleep(0.5)  # a rank may still be writing its last line
    files = [server.probe / "trees.txt", *sorted(server.probe.glob("rank*/trees.txt"))]
    lines = [file.read_text().split() for file in files]
    steps = min(map(len, lines))
    differ = [n for n, row in enumerate(zip(*lines, strict=False)) if len(set(row)) > 1]
    return {
        "ranks": len(lines), "steps": steps, "longest": max(map(len, lines)),
        "steps_that_differ": len(differ), "first_that_differs": differ[:1],
    }  # fmt: skip
