#!/usr/bin/env python3
"""Starts SGLang's router in its own environment, in front of the replicas that are kept for it.

    router_start.py SERVICE_DIR [OPTIONS of sglang_router]

The replicas are those of SERVICE_DIR/run/replicas.json: a router that is started again, by its
supervisor or by a boot, goes on with what it had. The API key comes from the file that --config
names, so that it shows in no process list. Its list is changed with a key of its own that never
leaves the host: without it whoever reaches the router's port could add and remove replicas.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import sys


def main(argv):
    folder, words, config = argv[0], [], None
    rest = iter(argv[1:])
    for word in rest:
        if word == "--weight-version":
            next(rest)  # the guard's name for this start; a router has none to tell
        elif word == "--config":
            config = next(rest)
        else:
            words.append(word)
    words += ["--control-plane-api-keys", "ddops:ddops:admin:" + control_key(folder)]
    if urls := kept(folder):
        words += ["--worker-urls", *urls]
    launcher = importlib.import_module("sglang_router.launch_router")
    args = launcher.parse_router_args(words)
    if config is not None:
        with open(config, encoding="utf-8") as f:
            args.api_key = json.load(f)["api-key"]
    launcher.launch_router(args)
    return 0


def control_key(folder):
    """Made at the first start, and read by router.py beside this."""
    path = os.path.join(folder, "run", "control.key")
    if not os.path.exists(path):
        temp = "%s.%d" % (path, os.getpid())
        with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write(secrets.token_hex(32))
        os.replace(temp, path)
    with open(path, encoding="ascii") as f:
        return f.read()


def kept(folder):
    try:
        with open(os.path.join(folder, "run", "replicas.json"), encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
