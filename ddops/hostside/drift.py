#!/usr/bin/env python3
"""What really runs and lies here of one service, to be held against its release. Changes nothing.

    drift.py SERVICE_DIR PID

Prints one JSON object: the running engine's words and those variables that the release sets (a
secret only as there or not), the hashes of the staged release's files, and the files of the
engine's packages that are not what their wheel's RECORD says. PID is 0 when nothing runs.
"""

from __future__ import annotations

import base64
import csv
import glob
import hashlib
import json
import os
import sys

SCHEMA = "ddops.drift/1"
#: Packages whose code decides what is served; their RECORD holds each file's hash.
CODE = ("sglang", "sglang_kernel", "sgl_kernel", "ddops", "ddops_sglang_cpu")
MOST = 200


def main(argv):
    service_dir, pid = argv[0], int(argv[1])
    current = os.path.join(service_dir, "current")
    launch = read_json(os.path.join(current, "launch.json")) or {}
    names = list(launch.get("env") or {})
    secret = list(read_json(os.path.join(current, "secrets.json")) or {})
    python = (launch.get("argv") or [""])[0]
    json.dump(
        {
            "schema": SCHEMA,
            "argv": words("/proc/%d/cmdline" % pid) if pid else None,
            "environ": environ(pid, names, secret) if pid else None,
            "launch": {"argv": launch.get("argv"), "env": launch.get("env")},
            "files": hashes(current),
            "code": code(python),
        },
        sys.stdout,
    )
    return 0


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def words(path):
    """NUL-separated words, or None when the process is gone or another user's."""
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError:
        return None
    return data.decode("utf-8", "surrogateescape").split("\0")[:-1] if data else None


def environ(pid, names, secret):
    """The release's variables as the process got them; of a secret only whether it is there."""
    found = words("/proc/%d/environ" % pid)
    if found is None:
        return None
    have = dict(item.partition("=")[::2] for item in found)
    out = {name: have.get(name) for name in names}
    out.update({name: name in have for name in secret})
    return out


def hashes(folder):
    """sha256 of the release's files, those with secrets left out."""
    out = {}
    for name in ("release.json", "launch.json", "gates.json", "golden.json"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, "rb") as f:
                out[name] = hashlib.sha256(f.read()).hexdigest()
    return out


def code(python):
    """Per package of the engine's environment: files that are not as their wheel brought them.

    None when the environment is not there. A package without RECORD (copied in) is not listed.
    """
    bin_dir = os.path.dirname(python)
    sites = glob.glob(os.path.join(os.path.dirname(bin_dir), "lib", "python3*", "site-packages"))
    if not sites:
        return None
    out = {}
    for info in glob.glob(os.path.join(sites[0], "*.dist-info")):
        name = os.path.basename(info).split("-")[0]
        if name in CODE:
            out[name] = package(sites[0], os.path.join(info, "RECORD"))
    return out


def package(site, record):
    """Counts and names. A file nobody recorded is `extra`: a hand has put it there."""
    changed, missing, listed, tops = [], [], set(), set()
    try:
        with open(record, newline="", encoding="utf-8") as f:
            rows = list(csv.reader(f))
    except OSError as error:
        return {"error": str(error)}
    for row in rows:
        path = row[0]
        listed.add(path)
        kind, _, want = (row[1] if len(row) > 1 else "").partition("=")
        if path.startswith("..") or "__pycache__" in path:
            continue
        if "/" in path and not path.split("/")[0].endswith(".dist-info"):
            tops.add(path.split("/")[0])
        if not os.path.exists(os.path.join(site, path)):
            missing.append(path)
        elif kind == "sha256" and digest(os.path.join(site, path)) != want:
            changed.append(path)
    extra = [p for top in sorted(tops) for p in sources(site, top) if p not in listed]
    return {
        "files": len(listed), "changed": changed[:MOST], "missing": missing[:MOST],
        "extra": extra[:MOST], "total": len(changed) + len(missing) + len(extra),
    }  # fmt: skip


def digest(path):
    with open(path, "rb") as f:
        data = hashlib.sha256(f.read()).digest()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sources(site, top):
    for folder, _, names in os.walk(os.path.join(site, top)):
        for name in names:
            if name.endswith((".py", ".so", ".pth")):
                yield os.path.relpath(os.path.join(folder, name), site)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
