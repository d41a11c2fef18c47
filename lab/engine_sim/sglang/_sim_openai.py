"""`/v1/completions` and `/v1/chat/completions`, whole and streamed."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from sglang._sim_engine import Engine
from sglang._sim_generate import DONE, Batch, dumps, event, make, steps, tokens_of
from sglang._sim_http import Answer, Reply, Request, Stream
from sglang._sim_sequence import Sampling, Sequence

COMPLETION_TOKENS = 16  # what the completions API makes when no limit is given


def problem(message: str, status: int = 400) -> Reply:
    """Upstream's error object for the OpenAI endpoints."""
    kind = "BadRequestError" if status == 400 else "ServiceUnavailable"
    value = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return Reply(status, dumps(value))


def complete(engine: Engine, request: Request, body: dict[str, Any], *, chat: bool) -> Answer:
    """Answers one OpenAI request."""
    engine.admit()
    try:
        batch = read_batch(engine, body, chat=chat)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return problem(str(error))
    if body.get("stream"):
        return Stream(_events(engine, request, body, batch, chat=chat))
    for _ in steps(engine, request, batch, stream=False):
        pass
    return Reply(200, dumps(_whole(engine, body, batch, chat=chat)))


def read_batch(engine: Engine, body: dict[str, Any], *, chat: bool) -> Batch:
    """Prompts and sampling as the OpenAI objects spell them."""
    limit = body.get("max_completion_tokens") if chat else None
    limit = body.get("max_tokens") if limit is None else limit
    params = {
        "max_new_tokens": limit if chat or limit is not None else COMPLETION_TOKENS,
        "temperature": body.get("temperature"),
        "stop": body.get("stop"),
        "n": body.get("n"),
        "sampling_seed": body.get("seed"),
        "ignore_eos": body.get("ignore_eos", False),
        "min_new_tokens": body.get("min_tokens"),
        "stop_token_ids": body.get("stop_token_ids"),
        "no_stop_trim": body.get("no_stop_trim", False),
    }
    sampling = Sampling.of(params)
    prompts = [_chat_ids(engine, body)] if chat else _prompt_ids(engine, body)
    sequences = [s for ids in prompts for s in make(engine, ids, sampling, body.get("rid"))]
    return Batch(sequences, single=True)


def _prompt_ids(engine: Engine, body: dict[str, Any]) -> list[list[int]]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [tokens_of(engine, prompt)]
    if not isinstance(prompt, list) or not prompt:
        raise ValueError("prompt must be a text, a list of texts, or token ids.")
    if all(isinstance(p, int) for p in prompt):
        return [prompt]
    return [p if isinstance(p, list) else tokens_of(engine, p) for p in prompt]


def _chat_ids(engine: Engine, body: dict[str, Any]) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list that is not empty.")
    text = ""
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        text += f"<|{message['role']}|>{content}"
    return tokens_of(engine, text + "<|assistant|>")


def _whole(engine: Engine, body: dict[str, Any], batch: Batch, *, chat: bool) -> dict[str, Any]:
    choices = []
    for i, one in enumerate(batch.sequences):
        choice: dict[str, Any] = {"index": i}
        if chat:
            message = {"role": "assistant", "content": one.text, "reasoning_content": None}
            choice["message"] = message
        else:
            choice["text"] = one.text
        choices.append({**choice, "logprobs": None, **_ending(one)})
    out = {
        "id": batch.sequences[0].rid,
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": body.get("model", "default"),
        "choices": choices,
        "usage": usage(engine, batch),
        "metadata": {"weight_version": engine.identity("meta")},
    }
    if engine.faults.now().on("missing_usage"):
        del out["usage"]
    return out


def _ending(one: Sequence) -> dict[str, Any]:
    finish = one.finish or {}
    return {"finish_reason": finish.get("type"), "matched_stop": finish.get("matched")}


def usage(engine: Engine, batch: Batch) -> dict[str, Any]:
    """Token counts of the whole answer; a prompt with `n` answers counts once."""
    prompts = {id(s.prompt): s for s in batch.sequences}.values()
    prompt = sum(len(s.prompt) for s in prompts)
    made = sum(len(s.output) for s in batch.sequences)
    cached = {"cached_tokens": sum(s.cached for s in prompts)}
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + made,
        "completion_tokens": made,
        "prompt_tokens_details": cached if engine.args["enable_cache_report"] else None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


def _events(
    engine: Engine, request: Request, body: dict[str, Any], batch: Batch, *, chat: bool
) -> Generator[bytes, None, None]:
    options = body.get("stream_options") or {}
    base = {
        "id": batch.sequences[0].rid,
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": int(time.time()),
        "model": body.get("model", "default"),
    }
    sent = [0] * len(batch.sequences)
    greeted: set[int] = set()
    endings = []
    for step in steps(engine, request, batch, stream=True):
        one, i = step.sequence, step.index
        fresh = one.text[sent[i] :]
        sent[i] = max(sent[i], len(one.text))
        counts = usage(engine, batch) if options.get("continuous_usage_stats") else None
        if chat and i not in greeted:
            greeted.add(i)
            delta = {"role": "assistant", "content": "", "reasoning_content": None}
            yield event(_chunk(base, {"index": i, "delta": delta}, None))
        if chat and one.finish is not None:
            endings.append(i)
        if chat and fresh:
            delta = {"role": None, "content": fresh, "reasoning_content": None}
            yield event(_chunk(base, {"index": i, "delta": delta}, counts))
        if not chat:
            choice = {"index": i, "text": fresh, "logprobs": None, **_ending(one)}
            yield event({**base, "choices": [choice], "usage": counts})
    for i in endings:
        delta = {"role": None, "content": None, "reasoning_content": None}
        end = {"index": i, "delta": delta, **_ending(batch.sequences[i])}
        yield event(_chunk(base, end, None))
    wanted = options.get("include_usage") or engine.args["stream_response_default_include_usage"]
    if wanted and not engine.faults.now().on("missing_usage"):
        yield event({**base, "choices": [], "usage": usage(engine, batch)})
    yield DONE


def _chunk(base: dict[str, Any], choice: dict[str, Any], counts: Any) -> dict[str, Any]:
    full = {"logprobs": None, "finish_reason": None, "matched_stop": None, **choice}
    return {**base, "choices": [full], "usage": counts}
