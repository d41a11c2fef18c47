#!/usr/bin/env python3
"""Asks the engine the golden prompts, greedily, and prints what it answered as JSON.

    golden.py SERVICE_DIR PORT GOLDEN_FILE TIMEOUT_S [--ties]

The judgement is the controller's; this only measures. Every answer carries the
`weight_version` of the server that gave it. A prompt that fails is a row with `error`.
With --ties, where an answer leaves the reference, the next token behind what both have in common
is asked for alone, with the scores of the best ones: `tie` holds `at` and `top`.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time

#: How many of the best tokens are asked for.
TOP = 5
KEEP = (
    "weight_version", "prompt_tokens", "completion_tokens", "spec_verify_ct",
    "spec_accept_length", "finish_reason",
)  # fmt: skip


class Refused(Exception):
    """An answer that is not 200."""


FAULTS = (Refused, OSError, ValueError, http.client.HTTPException, AttributeError)


def main(argv):
    service_dir, port, golden_file, timeout = argv[0], int(argv[1]), argv[2], float(argv[3])
    with open(golden_file, encoding="utf-8") as f:
        golden = json.load(f)
    key, ties = api_key(service_dir), "--ties" in argv[4:]
    rows = []
    for prompt in golden["prompts"]:
        rows.append(ask(port, prompt, timeout, key))
        if "error" in rows[-1]:
            break  # one failed answer decides; an engine that hangs would hang on each of them
        at = first_difference(prompt["output_ids"], rows[-1]["output_ids"]) if ties else None
        if at is not None:
            rows[-1]["tie"] = {"at": at, "top": scores(port, prompt, at, timeout, key)}
    json.dump({"schema": "ddops.golden-answers/1", "rows": rows}, sys.stdout)
    return 0


def ask(port, prompt, timeout, key):
    row = {"id": prompt["id"]}
    began = time.monotonic()
    try:
        value = generate(port, prompt["input_ids"], len(prompt["output_ids"]), timeout, key)
        meta = value.get("meta_info") or {}
        row["output_ids"] = value.get("output_ids")
        row["text"] = value.get("text")
        row["meta"] = {k: meta[k] for k in KEEP if k in meta}
    except FAULTS as error:
        row["error"] = said(error)
    row["s"] = round(time.monotonic() - began, 3)
    return row


def scores(port, prompt, at, timeout, key):
    """[[score, token], ...] of the best next tokens, or words for why there are none."""
    ids = [*prompt["input_ids"], *prompt["output_ids"][:at]]
    more = {"return_logprob": True, "top_logprobs_num": TOP}
    try:
        value = generate(port, ids, 1, timeout, key, more)
        best = value["meta_info"]["output_top_logprobs"][0]
        return [[float(one[0]), int(one[1])] for one in best]
    except (*FAULTS, KeyError, IndexError, TypeError) as error:
        return said(error)


def generate(port, input_ids, tokens, timeout, key, more=None):
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": input_ids, "sampling_params": sampling, **(more or {})}
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = "Bearer " + key
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        client.request("POST", "/generate", json.dumps(body), headers)
        answer = client.getresponse()
        text = answer.read(1 << 22)
    finally:
        client.close()
    if answer.status != 200:
        raise Refused("HTTP %d: %s" % (answer.status, text[:200].decode("utf-8", "replace")))
    return json.loads(text)


def first_difference(want, got):
    """Where an answer leaves the reference; None where it does not, or is no list."""
    if not isinstance(got, list) or want == got:
        return None
    for at, (one, other) in enumerate(zip(want, got)):
        if one != other:
            return at
    return None  # one is the beginning of the other: no token to compare


def said(error):
    return str(error) if isinstance(error, Refused) else "%s: %s" % (type(error).__name__, error)


def api_key(service_dir):
    try:
        with open(os.path.join(service_dir, "current", "secret-args.yaml"), encoding="utf-8") as f:
            return json.load(f).get("api-key")
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
