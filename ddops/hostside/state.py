#!/usr/bin/env python3
"""Looks at what provision laid down on this host; prints JSON. Changes nothing.

    state.py QUERY_JSON

QUERY: `dirs` (paths), `trees` ({path: null}), `files` (paths), `json` (paths of small JSON
files). Answers: modes of the folders, digests of the trees and files, the JSON values; null for
what is not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys


def main(argv):
    query = json.loads(argv[0])
    out = {
        "schema": "ddops.state/1",
        "dirs": {p: mode(p) for p in query.get("dirs", [])},
        "files": {p: file_digest(p) for p in query.get("files", [])},
        "json": {p: read_json(p) for p in query.get("json", [])},
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
