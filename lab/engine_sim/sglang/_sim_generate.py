"""The native `/generate`: what is asked, and the objects that answer it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sglang._sim_engine import Engine, Step
from sglang._sim_http import Answer, DropConnection, Reply, Request, Stream
from sglang._sim_sequence import Sampling, Sequence
from sglang._sim_text import encode, mix, state_of

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Batch:
    """All answers of one request. `single`: the answer is an object rather than a list."""

    sequences: list[Sequence]
    single: bool
    logprobs: int = -1  # -1 none, 0 the chosen token's, k also the k best


def dumps(value: Any) -> bytes:
    """Compact UTF-8 JSON, as upstream's encoder writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + dumps(value) + b"\n\n"


def generate(engine: Engine, request: Request, body: dict[str, Any]) -> Answer:
    """Answers `/generate`. A prompt no server takes is upstream's 400."""
    engine.admit()
    try:
        batch = read_batch(engine, body)
    except (TypeError, ValueError) as error:
        return Reply(400, dumps({"error": {"message": str(error)}}))
    if body.get("stream"):
        return Stream(_events(engine, request, batch))
    started = time.perf_counter()
    for _ in steps(engine, request, batch, stream=False):
        pass
    out = [answer(engine, s, batch, time.perf_counter() - started) for s in batch.sequences]
    return Reply(200, dumps(out[0] if batch.single else out))


def _events(engine: Engine, request: Request, batch: Batch) -> Generator[bytes, None, None]:
    for step in steps(engine, request, batch, stream=True):
        value = answer(engine, step.sequence, batch, time.perf_counter() - step.started)
        yield event(value if batch.single else {**value, "index": step.index})
    yield DONE


def read_batch(engine: Engine, body: dict[str, Any]) -> Batch:
    """From the request's `text` or `input_ids`, one or many."""
    prompts, many = read_prompts(engine, body)
    rids = body.get("rid")
    params = body.get("sampling_params") or {}
    sequences: list[Sequence] = []
    sampling = Sampling()
    for i, ids in enumerate(prompts):
        rid = rids[i] if isinstance(rids, list) else rids if rids and not many else None
        sampling = Sampling.of(params[i] if isinstance(params, list) else params)
        sequences += make(engine, ids, sampling, rid)
    best = int(body.get("top_logprobs_num") or 0) if body.get("return_logprob") else -1
    return Batch(sequences, not many and sampling.n == 1, best)


def read_prompts(engine: Engine, body: dict[str, Any]) -> tuple[list[list[int]], bool]:
    """Prompt ids, and whether a list of prompts was asked for."""
    text: Any = body.get("text")
    ids: Any = body.get("input_ids")
    if (text is None) == (ids is None):
        raise ValueError("Either text, input_ids or input_embeds should be provided.")
    if text is not None:
        many = isinstance(text, list)
        return [tokens_of(engine, t) for t in (text if many else [text])], many
    many = bool(ids) and isinstance(ids[0], list)
    prompts = ids if many else [ids]
    for prompt in prompts:
        if not all(isinstance(i, int) and i >= 0 for i in prompt):
            raise ValueError("input_ids must be whole numbers, zero or more.")
    return prompts, many


def tokens_of(engine: Engine, text: Any) -> list[int]:
    """The ids of a text: as the golden file has them, else the stand-in's own."""
    if not isinstance(text, str):
        raise TypeError("text must be a string or a list of strings.")
    return engine.golden.ids_of(text) or encode(text, engine.vocab)


def make(engine: Engine, ids: list[int], sampling: Sampling, rid: str | None) -> list[Sequence]:
    """The answers to one prompt. ValueError when the prompt does not fit."""
    limit = int(engine.args["context_length"])
    if len(ids) >= limit:
        raise ValueError(
            f"The input ({len(ids)} tokens) is longer than the model's context length "
            f"({limit} tokens)."
        )
    return engine.sequences(rid or os.urandom(16).hex(), ids, sampling)


def steps(
    engine: Engine, request: Request, batch: Batch, *, stream: bool
) -> Generator[Step, None, None]:
    """Runs the batch; yields what is to be sent, and books each answer that finished."""
    script = engine.faults.now()
    every = max(int(engine.args["stream_interval"] or 1), script.count("chunk_tokens"))
    cut = script.count("truncate_stream") if stream else 0
    shown = [0] * len(batch.sequences)
    sent = 0
    done = 0
    with closing(engine.run(batch.sequences, request.gone)) as moving:
        try:
            for step in moving:
                made, over = len(step.sequence.output), step.sequence.finish is not None
                if over:
                    done += 1
                    book(engine, step, stream=stream)
                if not over and shown[step.index] and made - shown[step.index] < every:
                    continue
                if cut and sent >= cut:
                    raise DropConnection
                shown[step.index] = made
                sent += 1
                yield step
        finally:
            if done < len(batch.sequences):
                with engine.stats.lock:
                    engine.stats.aborted += len(batch.sequences) - done


def book(engine: Engine, step: Step, *, stream: bool) -> None:
    """Counts a finished answer, by upstream's label for streaming."""
    now, one, stats = time.perf_counter(), step.sequence, engine.stats
    label = "true" if stream else "false"
    made = len(one.output)
    with stats.lock:
        stats.requests[label] += 1
        stats.prompt_tokens[label] += len(one.prompt)
        stats.generation_tokens[label] += made
        stats.cached_tokens += one.cached
        stats.ttft[label].add(step.first - step.started)
        stats.e2e[label].add(now - step.started)
        if made > 1:
            stats.itl.add((now - step.first) / (made - 1), made - 1)


def answer(engine: Engine, one: Sequence, batch: Batch, latency: float) -> dict[str, Any]:
    """`text`, `output_ids` (both cumulative) and `meta_info`."""
    meta: dict[str, Any] = {
        "id": one.rid,
        "finish_reason": one.finish,
        "prompt_tokens": len(one.prompt),
        "weight_version": engine.identity("meta"),
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": len(one.output),
        "cached_tokens": one.cached,
    }
    if batch.logprobs >= 0:
        meta.update(logprobs(one, batch.logprobs))
    meta["dp_rank"] = None
    if one.finish is not None:
        meta["e2e_latency"] = latency
        meta.update(acceptance(one))
    return {"text": one.text, "output_ids": one.output, "meta_info": meta}


def acceptance(one: Sequence) -> dict[str, Any]:
    """Upstream's numbers on speculative decoding; none before the first verify step."""
    if one.drafting is None or not one.verify_ct or one.drafting.window < 2:
        return {}
    proposed = one.verify_ct * (one.drafting.window - 1)
    return {
        "spec_accept_rate": one.correct_drafts / proposed,
        "spec_accept_length": len(one.output) / one.verify_ct,
        "spec_num_correct_drafts": one.correct_drafts,
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": one.verify_ct,
        "spec_correct_drafts_histogram": one.histogram,
    }


def logprobs(one: Sequence, best: int) -> dict[str, Any]:
    """Made-up, repeatable values in upstream's shape; the chosen token is the most likely."""
    state = state_of(one.prompt)
    chosen, tops = [], []
    for place, token in enumerate(one.output):
        bits = mix(state ^ place) / (1 << 64)
        chosen.append([-0.01 - 0.2 * bits, token, None])
        others = [[-1.0 - rank - bits, token ^ rank, None] for rank in range(1, max(best, 1))]
        tops.append([chosen[-1], *others][:best])
    out: dict[str, Any] = {
        "input_token_logprobs": [],
        "output_token_logprobs": chosen,
        "output_token_logprobs_length": len(chosen),
    }
    if best > 0:
        out["output_top_logprobs"] = tops
    return out
