#!/usr/bin/env python3
"""Is an environment on this host still what was built there? Prints JSON; changes nothing.

    env_whole.py FOLDER

Cheap enough for every look: its interpreter is started once, and what the build recorded is asked
for by name. Nothing is imported. Content is `ddops drift`'s to compare.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import subprocess
import sys

#: What a build left: paths below the environment, a line each; `env.json` holds its hash.
LISTING = "listing.txt"
SITES = "lib/python*/site-packages"
#: The smallest question that an interpreter answers: no site, no packages.
ASK = "import sys; print('%d.%d' % sys.version_info[:2])"
START_S = 20
MOST = 5
#: What a system answers of a path that is not there; anything else says nothing about it.
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENOEXEC)
#: What every hand upgrades, and no engine imports.
TOOLS = re.compile(r"(pip|setuptools|wheel|pkg_resources|_distutils_hack|distutils-precedence)\b")
DIST = re.compile(r"(.+)-[^-]+\.dist-info$")


def main(argv):
    json.dump(seen(argv[0]), sys.stdout)
    return 0


def seen(folder):
    """None where nothing lies; else the digest it was built of and what is wrong with it.

    `unknown` is what could not be told, as of a disk that does not answer: no reason to build.
    """
    if not os.path.lexists(folder):
        return None
    wrong: list[str] = []
    unknown: list[str] = []
    try:
        with open(os.path.join(folder, "env.json"), encoding="utf-8") as f:
            record = json.load(f)
        digest, version = str(record["digest"]), str(record["python"])
    except (FileNotFoundError, NotADirectoryError):
        return {
            "digest": None,
            "wrong": ["env.json is missing: it was not built to its end"],
            "unknown": [],
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = "env.json cannot be read: %s: %s" % (type(error).__name__, error)
        (unknown if isinstance(error, OSError) else wrong).append(why[:200])
        return {"digest": None, "wrong": wrong, "unknown": unknown}
    interpreter(folder, version, wrong, unknown)
    gone = []
    try:
        for path in built_paths(folder, record):
            try:
                os.stat(os.path.join(folder, path))
            except OSError as error:
                if error.errno not in GONE:
                    unknown.append("%s: %s" % (path, error.strerror))
                elif not of_another_version(folder, path):
                    gone.append(path)
    except FileNotFoundError:
        wrong.append("%s is missing" % LISTING)
    except OSError as error:
        unknown.append("%s: %s" % (LISTING, error.strerror))
    except (ValueError, TypeError) as error:
        wrong.append("%s: %s" % (LISTING, str(error)[:200]))
    tops = sorted({top(folder, p) for p in gone})
    wrong += ["%s is missing" % p for p in tops[:MOST]]
    if len(tops) > MOST:
        wrong.append("%d more are missing" % (len(tops) - MOST))
    return {"digest": digest, "wrong": wrong, "unknown": unknown[:MOST]}


def of_another_version(folder, path):
    """Whether a hand put another version in: no part is missing, and `ddops drift` tells of it."""
    found = DIST.match(path)
    return bool(found and glob.glob(os.path.join(
        glob.escape(folder), glob.escape(found.group(1)) + "-*.dist-info")))  # fmt: skip


def top(folder, path):
    """The highest of a path's folders that is gone: what was below it says nothing more."""
    above = os.path.dirname(path)
    while above and not os.path.exists(os.path.join(folder, above)):
        path, above = above, os.path.dirname(above)
    return path


def interpreter(folder, version, wrong, unknown):
    """Adds what keeps its Python from being the one that everything was installed for."""
    python = os.path.join(folder, "bin", "python")
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", ASK], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=START_S, check=False, text=True, errors="replace",
        )  # fmt: skip
    except OSError as error:
        where = os.path.realpath(python)
        words = "bin/python does not start: %s (%s)" % (error.strerror, where)
        (wrong if error.errno in GONE else unknown).append(words)
        return
    except subprocess.SubprocessError:
        unknown.append("bin/python did not answer in %d s" % START_S)
        return
    got, want = done.stdout.strip(), ".".join(version.split(".")[:2])
    if done.returncode:
        words = "bin/python ended with %d: %s" % (done.returncode, done.stderr.strip()[-200:])
        (wrong if done.returncode > 0 else unknown).append(words)  # a signal came from outside
    elif got != want:
        wrong.append("bin/python is Python %s, built with %s" % (got, want))


def built_paths(folder, record):
    """Paths below the folder that were there when it was built."""
    if "listing" not in record:  # built by an earlier release: its distributions are known by name
        site = "lib/python%s/site-packages" % ".".join(str(record["python"]).split(".")[:2])
        names = [n for n in record.get("packages") or {} if not TOOLS.match(n)]
        return [site, *("%s/%s.dist-info" % (site, n) for n in names)]
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
        # Not in a package's own `.libs` or `.dist-info`: another version has other names there.
        shared = os.path.isdir(path) and "." not in os.path.basename(path)
        if shared and not os.path.exists(os.path.join(path, "__init__.py")):
            found += glob.glob(os.path.join(glob.escape(path), "*"))
    kept = sorted(os.path.relpath(p, folder) for p in found
                  if "__pycache__" not in p and os.path.exists(p)
                  and not TOOLS.match(os.path.basename(p)))  # fmt: skip
    return b"".join(os.fsencode(p) + b"\0" for p in kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
