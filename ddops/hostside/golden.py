#!/usr/bin/env python3
"""Asks the engine the golden prompts, greedily, and prints what it answered as JSON.

    golden.py SERVICE_DIR PORT GOLDEN_FILE TIMEOUT_S

The judgement is the controller's; this only measures. Every answer carries the
`weight_version` of the server that gave it. A prompt that fails is a row with `error`.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time

KEEP = (
    "weight_version", "prompt_tokens", "completion_tokens", "spec_verify_ct",
    "spec_accept_length", "finish_reason",
)  # fmt: skip


def main(argv):
    service_dir, port, golden_file, timeout = argv[0], int(argv[1]), argv[2], float(argv[3])
    with open(golden_file, encoding="utf-8") as f:
        golden = json.load(f)
    key = api_key(service_dir)
    rows = []
    for prompt in golden["prompts"]:
        rows.append(ask(port, prompt, timeout, key))
        if "error" in rows[-1]:
            break  # one failed answer decides; an engine that hangs would hang on each of them
    json.dump({"schema": "ddops.golden-answers/1", "rows": rows}, sys.stdout)
    return 0


def ask(port, prompt, timeout, key):
    body = {
        "input_ids": prompt["input_ids"],
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": len(prompt["output_ids"]),
            "ignore_eos": True,
        },
    }
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = "Bearer " + key
    row = {"id": prompt["id"]}
    began = time.monotonic()
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        client.request("POST", "/generate", json.dumps(body), headers)
        answer = client.getresponse()
        text = answer.read(1 << 22)
        if answer.status != 200:
            row["error"] = "HTTP %d: %s" % (answer.status, text[:200].decode("utf-8", "replace"))
            return row
        value = json.loads(text)
        meta = value.get("meta_info") or {}
        row["output_ids"] = value.get("output_ids")
        row["text"] = value.get("text")
        row["meta"] = {k: meta[k] for k in KEEP if k in meta}
    except (OSError, ValueError, http.client.HTTPException, AttributeError) as error:
        row["error"] = "%s: %s" % (type(error).__name__, error)
    finally:
        client.close()
        row["s"] = round(time.monotonic() - began, 3)
    return row


def api_key(service_dir):
    try:
        with open(os.path.join(service_dir, "current", "secret-args.yaml"), encoding="utf-8") as f:
            return json.load(f).get("api-key")
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
