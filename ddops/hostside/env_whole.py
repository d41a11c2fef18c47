#!/usr/bin/env python3
"""Is an environment on this host still what was built there? Prints JSON; changes nothing.

    env_whole.py FOLDER

Cheap enough for every look: its interpreter is started once, and what the build recorded is asked
for by name. Nothing is imported. Content is `ddops drift`'s to compare.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import subprocess
import sys

#: What a build left: paths below the environment, a line each; `env.json` holds its hash.
LISTING = "listing.txt"
SITES = "lib/python*/site-packages"
#: The smallest question that an interpreter answers: no site, no packages.
ASK = "import sys; print('%d.%d' % sys.version_info[:2])"
START_S = 20
MOST = 5


def main(argv):
    json.dump(seen(argv[0]), sys.stdout)
    return 0


def seen(folder):
    """None where nothing lies; else the digest it was built of and what is wrong with it."""
    if not os.path.lexists(folder):
        return None
    try:
        with open(os.path.join(folder, "env.json"), encoding="utf-8") as f:
            record = json.load(f)
        digest, version = str(record["digest"]), str(record["python"])
    except FileNotFoundError:
        return {"digest": None, "wrong": ["env.json is missing: it was not built to its end"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = "%s: %s" % (type(error).__name__, error)
        return {"digest": None, "wrong": ["env.json cannot be read: %s" % why[:200]]}
    wrong = interpreter(folder, version)
    try:
        there = built_paths(folder, record)
        gone = [p for p in there if not os.path.exists(os.path.join(folder, p))]
    except (OSError, ValueError, TypeError) as error:
        return {"digest": digest, "wrong": [*wrong, "%s: %s" % (LISTING, str(error)[:200])]}
    tops = sorted({top(folder, p) for p in gone})
    wrong += ["%s is missing" % p for p in tops[:MOST]]
    if len(tops) > MOST:
        wrong.append("%d more are missing" % (len(tops) - MOST))
    return {"digest": digest, "wrong": wrong}


def top(folder, path):
    """The highest of a path's folders that is gone: what was below it says nothing more."""
    above = os.path.dirname(path)
    while above and not os.path.exists(os.path.join(folder, above)):
        path, above = above, os.path.dirname(above)
    return path


def interpreter(folder, version):
    """What keeps its Python from being the one that everything was installed for."""
    python = os.path.join(folder, "bin", "python")
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", ASK], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=START_S, check=False, text=True, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        where = os.path.realpath(python)
        return ["bin/python does not start: %s (%s)" % (getattr(error, "strerror", error), where)]
    got, want = done.stdout.strip(), ".".join(version.split(".")[:2])
    if done.returncode:
        return ["bin/python ended with %d: %s" % (done.returncode, done.stderr.strip()[-200:])]
    return [] if got == want else ["bin/python is Python %s, built with %s" % (got, want)]


def built_paths(folder, record):
    """Paths below the folder that were there when it was built."""
    if "listing" not in record:  # built by an earlier release: its distributions are known by name
        site = "lib/python%s/site-packages" % ".".join(str(record["python"]).split(".")[:2])
        return [site, *("%s/%s.dist-info" % (site, name) for name in record.get("packages") or {})]
    with open(os.path.join(folder, LISTING), "rb") as f:
        data = f.read()
    if hashlib.sha256(data).hexdigest() != record["listing"]:
        raise ValueError("not as it was written")
    return os.fsdecode(data).split("\0")[:-1]


def listing(folder):
    """What there is to record: scripts, packages, and what lies in a folder that many packages
    share. Below a package it is code, which a hand may edit: `ddops drift` tells of it."""
    base = glob.escape(folder)
    found = glob.glob(os.path.join(base, "bin", "*"))
    for path in glob.glob(os.path.join(base, SITES, "*")):
        found.append(path)
        if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__init__.py")):
            found += glob.glob(os.path.join(glob.escape(path), "*"))
    kept = sorted(os.path.relpath(p, folder) for p in found
                  if "__pycache__" not in p and os.path.exists(p))  # fmt: skip
    return b"".join(os.fsencode(p) + b"\0" for p in kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
