#!/usr/bin/env python3
"""Looks at what provision laid down on this host; prints JSON. Changes nothing.

    state.py < QUERY_JSON

QUERY: lists of paths as `dirs`, `trees`, `files`, `texts`, `envs` (folders of environments), `code`
(folders of patched engine code), `weights` (their folders), and `setup` (resources of setup.py).
Answers: modes of the folders, digests of trees and files, the texts in base64, how environments,
code and weights differ from their record, and what the setup would change; null for what is not
there. What cannot be read is an error: it must not look as if it were not there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import sys

from ddops.hostside.env_whole import seen
from ddops.hostside.setup_run import looked

SKIPPED = "__pycache__"
MOST_TEXT = 1 << 20
MOST_NAMES = 200


def main():
    query = json.load(sys.stdin)
    out = {
        "schema": "ddops.state/1",
        "dirs": {p: mode(p) for p in query.get("dirs", [])},
        "trees": {p: tree_digest(p) for p in query.get("trees", [])},
        "files": {p: file_digest(p) for p in query.get("files", [])},
        "texts": {p: text(p) for p in query.get("texts", [])},
        "envs": {p: seen(p) for p in query.get("envs", [])},
        "code": {p: code(p) for p in query.get("code", [])},
        "weights": {p: weights(p) for p in query.get("weights", [])},
        "setup": looked(query["setup"]) if query.get("setup") else {},
    }
    json.dump(out, sys.stdout)
    return 0


def mode(path):
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return stat.S_IMODE(found.st_mode) if stat.S_ISDIR(found.st_mode) else -1


def file_digest(path):
    try:
        with open(path, "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()
    except OSError:
        return None


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def text(path):
    """A small file's bytes in base64."""
    try:
        with open(path, "rb") as f:
            data = f.read(MOST_TEXT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(data) > MOST_TEXT:
        sys.exit("%s is larger than %d bytes" % (path, MOST_TEXT))
    return base64.b64encode(data).decode()


def weights(path):
    """What hostside/weights.py has put here, and which files have changed since by size or time."""
    if not os.path.lexists(path) and not os.path.lexists(path + ".partial"):
        return None
    told = read_json(path + ".weights.json") or {"want": None, "files": {}}
    changed = []
    for name, marks in sorted(told["files"].items()):
        try:
            found = os.stat(os.path.join(path, name))
        except OSError:
            changed.append(name)
            continue
        if [found.st_size, found.st_mtime_ns] != marks:
            changed.append(name)
    return {"want": told["want"], "changed": changed[:MOST_NAMES],
            "partial": os.path.isdir(path + ".partial")}  # fmt: skip


def tree_digest(root):
    """The digest that ddops/transport/treehash.py gives the same folder."""
    if not os.path.lexists(root):
        return None
    found = []
    stack = [""]
    while stack:
        relative = stack.pop()
        with os.scandir(os.path.join(root, relative)) as entries:
            for entry in entries:
                path = relative + "/" + entry.name if relative else entry.name
                bits = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(bits):
                    if entry.name != SKIPPED:
                        stack.append(path)
                elif stat.S_ISREG(bits) or stat.S_ISLNK(bits):
                    found.append((os.fsencode(path), path, bits))
                else:
                    sys.exit("neither a file, a directory nor a link: %r" % path)
    total = hashlib.sha256()
    for raw, path, bits in sorted(found):
        full = os.path.join(root, path)
        link = stat.S_ISLNK(bits)
        inner = hashlib.sha256(os.fsencode(os.readlink(full))) if link else sha256_of(full)
        kind = "l" if link else "x" if bits & 0o100 else "-"
        total.update(raw + os.fsencode("\0%s\0%s\n" % (kind, inner.hexdigest())))
    return total.hexdigest()


def sha256_of(path):
    found = hashlib.sha256()
    with open(path, "rb") as f:
        for chunk in iter(lambda: f.read(1 << 20), b""):
            found.update(chunk)
    return found


def code(place):
    """Files of a code folder that are not as recorded, and the edits as a diff."""
    told = read_json(os.path.join(place, "code.json"))
    if told is None:
        return None
    want, have = told["files"], {}
    for base, folders, names in os.walk(os.path.join(place, "sglang")):
        folders[:] = [f for f in folders if f != SKIPPED]
        for name in names:
            if not name.endswith((".pyc", ".pyo")):
                full = os.path.join(base, name)
                have[os.path.relpath(full, place)] = blob(full)
    unlike = sorted(p for p in set(want) | set(have) if want.get(p) != have.get(p))
    return {
        "digest": told["digest"], "series": told["series"],
        "changed": [p for p in unlike if p in want and p in have][:MOST_NAMES],
        "missing": [p for p in unlike if p not in have][:MOST_NAMES],
        "extra": [p for p in unlike if p not in want][:MOST_NAMES],
        "diff": diff(place, [p for p in unlike if p in want and p in have][:20]),
    }  # fmt: skip


def blob(path):
    """The object id that git gives these bytes, or a link's target."""
    if os.path.islink(path):
        data = os.fsencode(os.readlink(path))
    else:
        with open(path, "rb") as f:
            data = f.read()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324 - git's own


def diff(place, paths):
    """What a hand changed. git writes nothing for it."""
    if not paths:
        return []
    import subprocess  # here: a look that finds nothing calls nothing

    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env.update(LC_ALL="C", GIT_OPTIONAL_LOCKS="0", GIT_CONFIG_GLOBAL=os.devnull)
    words = ["git", "-C", place, "-c", "safe.directory=*", "diff", "--no-ext-diff", "HEAD", "--"]
    try:
        done = subprocess.run([*words, *paths], env=env, stdin=subprocess.DEVNULL,
                              capture_output=True, check=False, timeout=20)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.decode("utf-8", "replace").splitlines()[:MOST_NAMES]


if __name__ == "__main__":
    sys.exit(main())
