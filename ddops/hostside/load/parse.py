"""Events out of the bytes of one answer: when each came, and how many tokens it stood for.

Pure. An event's arrival is known as `[lo, hi]`: `hi` is the stamp of the read that brought its last
byte. A read that brought several events has one stamp, that of its last segment; only its last
event is exact then, for the others `lo` is the stamp of the read before.
Tokens are the server's own cumulative counts. Nothing is tokenised or guessed here.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_left

from .http1 import Malformed, body_pieces

#: What an event brought. A role, a count or an empty text is no token.
NOTHING, REASONING, ANSWER = 0, 1, 2
#: Bytes behind an event that are only framing: CRLF, and the last chunk.
TAIL = 7
MAX_TEXT, MAX_RAW = 20000, 200000
REPLACEMENT = "\ufffd"


def sample(exchange, request, route, t0, keep):
    """One request as plain data. Times are nanoseconds since t0; None is "never"."""
    out = {
        "n": exchange.n,
        "id": request["id"],
        "slot": exchange.slot,
        "connection": exchange.conn,
        "scheduled": exchange.scheduled - t0,
        "free_at": exchange.free_at - t0,
        "started": since(exchange.started, t0),
        "sent": since(exchange.sent, t0),
        "sent_by": since(exchange.sent_by, t0),
        "first_byte": since(exchange.stamps[0] if exchange.stamps else 0, t0),
        "end": since(exchange.ended, t0),
        "http": exchange.framing.status,
        "outcome": "ok",
        "why": "",
    }
    try:
        events, closed = sse_events(exchange)
        answer = READERS[route](events, t0)
    except (Malformed, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        answer, closed = {}, False
        out.update(outcome="malformed", why="%s: %s" % (type(error).__name__, error))
    out.update(answer)
    if out["outcome"] == "ok":
        outcome, why = judge(exchange, answer, closed)
        out.update(outcome=outcome, why=why)
    if not keep.get("ids"):
        out.pop("output_ids", None)
    text = out.pop("text", "")
    out["replacements"] = text.count(REPLACEMENT)
    if keep.get("text"):
        out["text"] = text[:MAX_TEXT]
    if out["outcome"] != "ok" or keep.get("raw") == "all":
        out["raw"] = base64.b64encode(zlib.compress(bytes(exchange.raw[:MAX_RAW]))).decode()
    return out


def since(at, t0):
    return at - t0 if at else None


def judge(exchange, answer, closed):
    """Outcome and reason: the first thing that keeps the answer from being whole."""
    status = exchange.framing.status
    if exchange.error:
        kind = exchange.error.partition(":")[0]
        classes = {"timeout": "timeout", "deadline": "unfinished", "connect": "refused"}
        return classes.get(kind, "truncated" if exchange.raw else "broken"), exchange.error
    if status != 200:
        return "http_%d" % status, bytes(exchange.raw[exchange.framing.head_end :][:300]).decode(
            "utf-8", "replace"
        )
    if answer.get("error"):
        return "error_event", str(answer["error"])[:300]
    if not closed:
        return "truncated", "the stream ended without [DONE]"
    if answer.get("finish") == "abort":
        return "aborted", "the server aborted the request"
    if answer.get("tokens") is None:
        return "no_usage", "the server gave no count of tokens"
    if answer["tokens"] > 0 and not any(k != NOTHING for k in answer["kinds"]):
        return "no_first_token", "tokens were counted, and none was seen to come"
    return "ok", ""


def sse_events(exchange):
    """`[(lo, hi, data)]` in order, and whether `[DONE]` came last."""
    raw, pieces = exchange.raw, body_pieces(exchange.raw, exchange.framing)
    starts, body = [], bytearray()
    for start, end in pieces:
        starts.append((len(body), start))
        body += raw[start:end]
    offsets = [s[0] for s in starts]
    found, pos = [], 0
    while True:
        end, after = event_end(body, pos)
        if end < 0:
            break
        # Where the event's last byte lies in the answer, and so in which read it came.
        piece = bisect_left(offsets, after) - 1
        place = starts[piece][1] + (after - 1 - offsets[piece])
        found.append((bytes(body[pos:end]), place))
        pos = after
    out, done = [], False
    for data, lo, hi in bounded(exchange, found):
        text = event_data(data)
        if text == b"[DONE]":
            done = True
        elif text:
            out.append((lo, hi, text))
    return out, done


def event_end(body, pos):
    """Ends of the next event without and with its empty line; -1 when there is no whole one."""
    lf, crlf = body.find(b"\n\n", pos), body.find(b"\r\n\r\n", pos)
    if lf >= 0 and (crlf < 0 or lf < crlf):
        return lf, lf + 2
    return (crlf, crlf + 4) if crlf >= 0 else (-1, -1)


def event_data(event):
    """The joined `data:` lines of one event; comments and other fields are dropped."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:].strip()
    lines = [x[5:].strip() for x in event.splitlines() if x.startswith(b"data:")]
    return b"\n".join(lines)


def bounded(exchange, found):
    """Each event with the earliest and the latest time its last byte can have come."""
    reads, stamps, lows = exchange.reads, exchange.stamps, exchange.lows
    which = [bisect_left(reads, place + 1) for _, place in found]
    for i, (data, place) in enumerate(found):
        k = which[i]
        hi = stamps[k]
        if lows[k]:
            yield data, min(lows[k], hi), hi  # no kernel stamp: between two looks
            continue
        shared = i + 1 < len(found) and which[i + 1] == k
        if shared or reads[k] - place - 1 > TAIL:
            yield data, (stamps[k - 1] if k else exchange.sent), hi
        else:
            yield data, hi, hi


def native(events, t0):
    """SGLang's `/generate`: cumulative `meta_info`, text and ids cumulative or in pieces."""
    out = empty()
    ids: list[int] = []
    text, texts, pieces, meta = "", [], [], {}
    versions = set()
    before = 0
    for lo, hi, data in events:
        value = json.loads(data)
        if "meta_info" not in value:
            out["error"] = value.get("error", value)
            break
        meta = value["meta_info"]
        versions.add(meta.get("weight_version"))
        count = meta.get("completion_tokens")
        text, ids = value.get("text") or "", value.get("output_ids") or []
        texts.append(text)
        pieces.append(ids)
        kind = NOTHING
        if count is not None and count > before:
            thought = meta.get("reasoning_tokens") or 0
            kind = REASONING if thought >= count else ANSWER
            before = count
        add(out, lo - t0, hi - t0, count, meta.get("spec_verify_ct"), kind)
    out["tokens"] = meta.get("completion_tokens")
    out["prompt_tokens"] = meta.get("prompt_tokens")
    out["cached_tokens"] = meta.get("cached_tokens")
    out["verify_ct"] = meta.get("spec_verify_ct")
    out["correct"] = meta.get("spec_num_correct_drafts")
    out["proposed"] = meta.get("spec_num_proposed_drafts")
    out["histogram"] = meta.get("spec_correct_drafts_histogram")
    out["accept_length"] = meta.get("spec_accept_length")
    out["retractions"] = meta.get("num_retractions")
    reason = meta.get("finish_reason")
    out["finish"] = reason.get("type") if isinstance(reason, dict) else reason
    if out["finish"] == "abort":
        out["error"] = reason.get("message") if isinstance(reason, dict) else None
        out["error"] = out["error"] or "aborted"
    whole = len(ids) == out["tokens"]
    out["output_ids"] = ids if whole else [i for piece in pieces for i in piece]
    out["text"] = text if whole else "".join(texts)
    if meta.get("input_token_logprobs"):
        out["read"] = [x[:2] for x in meta["input_token_logprobs"]]
    if meta.get("output_token_logprobs") is not None:
        out["top_logprobs"] = meta.get("output_top_logprobs")
    out["weight_versions"] = sorted(str(v) for v in versions)
    return out


def openai(events, t0):
    """OpenAI completions and chat. `usage` is asked for in every chunk and at the end."""
    out = empty()
    texts, usage, before = [], None, 0
    for lo, hi, data in events:
        value = json.loads(data)
        if value.get("error") or value.get("object") == "error":
            out["error"] = value.get("error") or value.get("message")
            break
        if value.get("usage"):
            usage = value["usage"]
        count = (value.get("usage") or {}).get("completion_tokens")
        answer, thought = "", ""
        for choice in value.get("choices") or []:
            delta = choice.get("delta") or choice
            answer += delta.get("content") or choice.get("text") or ""
            thought += delta.get("reasoning_content") or delta.get("reasoning") or ""
            out["finish"] = choice.get("finish_reason") or out["finish"]
        texts.append(answer)
        kind = ANSWER if answer else REASONING if thought else NOTHING
        if not value.get("choices"):
            count = None  # the closing count says how many, not when
        if count is not None:
            kind = (kind or ANSWER) if count > before else NOTHING
            before = max(before, count)
        add(out, lo - t0, hi - t0, count, None, kind)
        details = (value.get("sglext") or {}).get("spec_tokens_details") or {}
        out["verify_ct"] = details.get("spec_verify_ct", out["verify_ct"])
        out["correct"] = details.get("spec_num_correct_drafts", out["correct"])
        out["histogram"] = details.get("spec_correct_drafts_histogram", out["histogram"])
    if usage is not None:
        out["tokens"] = usage.get("completion_tokens")
        out["prompt_tokens"] = usage.get("prompt_tokens")
        details = usage.get("prompt_tokens_details") or {}
        out["cached_tokens"] = details.get("cached_tokens")
    out["text"] = "".join(texts)
    return out


READERS = {"generate": native, "completions": openai, "chat": openai}


def empty():
    return {
        "lo": [], "hi": [], "counts": [], "verify": [], "kinds": [], "error": None, "finish": None,
        "tokens": None, "prompt_tokens": None, "cached_tokens": None, "verify_ct": None,
        "correct": None, "proposed": None, "histogram": None, "accept_length": None,
        "retractions": None, "text": "", "output_ids": [], "weight_versions": [],
    }  # fmt: skip


def add(out, lo, hi, count, verify, kind):
    out["lo"].append(lo)
    out["hi"].append(hi)
    out["counts"].append(count)
    out["verify"].append(verify)
    out["kinds"].append(kind)
