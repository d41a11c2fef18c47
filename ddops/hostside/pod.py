#!/usr/bin/env python3
"""What the container of a pod runs: the guard, with a service folder made for it.

    pod.py SERVICE_DIR SECRETS_DIR ENGINE_ARGV...

Beside this file lie `guard.py` and `release.json`, from the ConfigMap that was rendered with the
release. The folder is one that the pod has for itself, in memory. Each start of the container gets
a nonce of its own from the guard, which stays as the container's first process; the nonce is told
on standard output and stands in SERVICE_DIR/run/launch.json, as on a host.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time

#: Where a pod of several on as many nodes finds the first one; empty elsewhere.
LEADER = "LWS_LEADER_ADDRESS"
#: A name of the cluster is known some seconds after its pod is made.
RESOLVE_S = 300


def main(argv):
    service_dir, secrets_dir, command = argv[1], argv[2], argv[3:]
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "release.json"), encoding="utf-8") as f:
        release = json.load(f)
    # Python passes over a folder that is not there, and would run the code without its patches.
    missing = [p for p in os.environ.get("PYTHONPATH", "").split(":") if p and not os.path.isdir(p)]
    if missing:
        print("ddops pod: the image has no %s: it is not of this release" % missing[0], flush=True)
        return 78
    os.umask(0o077)
    current = os.path.join(service_dir, "current")
    os.makedirs(current, exist_ok=True)
    if release["spec"]["api_key"] is not None:
        command = [*command, "--config", key_file(current, secrets_dir)]
    launch = {
        "schema": "ddops.launch/1",
        "release": release["digest"],
        "argv": command,
        "env": {},
        "stop_grace_s": release["spec"]["stop_grace_s"],
    }
    sys.path.insert(0, here)
    guard = importlib.import_module("guard")
    guard.write_json(os.path.join(current, "launch.json"), launch)
    address = os.environ.get(LEADER, "")
    if address and not resolved(address):
        print("ddops pod: %s=%s is no name that is known here" % (LEADER, address), flush=True)
        return 75
    return guard.main(["guard", service_dir], on_start=tell)


def key_file(folder, secrets_dir):
    """SGLang reads options from a YAML file too; one on the command line would show to others."""
    with open(os.path.join(secrets_dir, "api-key"), encoding="utf-8") as f:
        key = f.read().strip()
    path = os.path.join(folder, "secret-args.yaml")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        json.dump({"api-key": key}, f)
    return path


def resolved(name, limit_s=RESOLVE_S, pause_s=1.0):
    """Wait until the cluster knows the name; False when it still does not after `limit_s`."""
    end = time.monotonic() + limit_s
    while True:
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            if time.monotonic() >= end:
                return False
            time.sleep(pause_s)
        else:
            return True


def tell(record):
    """So that the log of the container says which start it is of."""
    said = {k: record[k] for k in ("weight_version", "release", "nonce")}
    print("ddops pod: started %s" % json.dumps(said, sort_keys=True), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
