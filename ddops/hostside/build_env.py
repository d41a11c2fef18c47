#!/usr/bin/env python3
"""Builds an engine environment on this host: a venv from hashed locks. Prints JSON.

    build_env.py SPEC_JSON     (sent with env_whole.py before it)

SPEC: dir, digest, python packages as `torch` (a requirements file without hashes, or null),
`lock` (a requirements file with hashes, or null), `dists` (source folders, installed without
dependencies), `trees` (packages copied as they are), `find_links`, `index`; `torch_build` (cpu,
cuda or null) is checked at the end. One build at a time.
`env.json` is written last: a folder without it is half built and is built anew, and so is one that
is not whole any more (see env_whole.py). What was installed is recorded by the hash of each
distribution's own RECORD, and by the names of what lies there.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time

from ddops.hostside.env_whole import LISTING, SITES, listing, seen

SCHEMA = "ddops.env/1"
REPLACED = ".replaced-"


def main(argv):
    spec = json.loads(argv[0])
    os.makedirs(os.path.dirname(spec["dir"]), exist_ok=True)
    # A controller that was killed leaves its build running here: the next one waits for it.
    with open(spec["dir"] + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(spec)


def build(spec):
    began = time.monotonic()
    target = spec["dir"]
    there = seen(target)
    if there is not None and not there["wrong"]:
        if there["unknown"]:
            sys.exit("%s cannot be looked at: %s" % (target, "; ".join(there["unknown"])))
        print(json.dumps({"schema": SCHEMA, "built": False}))
        return 0
    real = os.path.realpath(target)  # a link to a larger disk stays one
    aside = put_aside(real)
    try:
        os.makedirs(real)
        record = make(spec, target, began)
    except BaseException:
        shutil.rmtree(real, ignore_errors=True)
        if aside is not None:
            os.rename(aside, real)  # broken as it was, and no worse
        raise
    for old in glob.glob(glob.escape(real) + REPLACED + "*"):
        # A restore may have put somebody's tree aside in there: that is not ours to throw away.
        if not os.path.isdir(old):
            os.unlink(old)
        elif not glob.glob(os.path.join(glob.escape(old), SITES, "*.before-*")):
            shutil.rmtree(old, ignore_errors=True)
    print(json.dumps({"schema": SCHEMA, "built": True, "built_s": record["built_s"]}))
    return 0


def put_aside(real):
    """What lies there gets another name: nothing of it has to be removed for that, and an engine
    that runs from it goes on with what it has open. None where nothing lies."""
    if not os.path.lexists(real):
        return None
    aside = "%s%s%d" % (real, REPLACED, time.time_ns())
    os.rename(real, aside)
    return aside


def make(spec, target, began):
    with_pip = bool(spec["torch"] or spec["lock"] or spec["dists"])
    # By its real path: venv takes no link.
    real = os.path.realpath(target)
    run([sys.executable, "-m", "venv", *([] if with_pip else ["--without-pip"]), real])
    python = os.path.join(target, "bin", "python")
    source = sources(spec)
    if spec["torch"]:
        # Its dependencies come from the lock, with hashes.
        run([*pip(python), *source, "--no-deps", "-r", spec["torch"]])
    if spec["lock"]:
        run([*pip(python), *source, "--no-deps", "--require-hashes", "-r", spec["lock"]])
    for dist in spec["dists"]:
        run([*pip(python), "--no-deps", "--no-build-isolation", dist])
    site = site_packages(python)
    for tree in spec["trees"]:
        shutil.copytree(tree, os.path.join(site, os.path.basename(tree)))
    verify(python, spec)
    names = listing(target)
    write(os.path.join(target, LISTING), names)
    record = {
        "schema": SCHEMA,
        "digest": spec["digest"],
        "python": sys.version.split()[0],
        "packages": packages(site),
        "listing": hashlib.sha256(names).hexdigest(),
        "built_s": round(time.monotonic() - began, 1),
    }
    write(os.path.join(target, "env.json"), json.dumps(record, indent=1).encode())
    return record


def verify(python, spec):
    """An environment that cannot import its torch, or got another build of it, is not complete."""
    if spec["torch_build"] is None:
        return
    ask = (
        "import sys, torch; want = sys.argv[1]; got = 'cuda' if torch.version.cuda else 'cpu';"
        "sys.exit('torch is a %s build, not %s' % (got, want) if got != want else 0)"
    )
    run([python, "-c", ask, spec["torch_build"]])


def pip(python):
    return [python, "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check"]


def sources(spec):
    """Where packages come from: a wheelhouse alone, an index, or what the host's pip knows."""
    if spec["find_links"]:
        return ["--no-index", "--find-links", spec["find_links"]]
    return ["--index-url", spec["index"]] if spec["index"] else []


def run(argv):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        sys.stderr.write("%s ended with %d\n%s\n" % (" ".join(argv[:6]), done.returncode, words))
        sys.exit(1)


def site_packages(python):
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.run(
        [python, "-c", ask], capture_output=True, check=True, text=True
    ).stdout.strip()


def packages(site):
    """Each installed distribution: name, version, sha256 of its RECORD (its files' hashes)."""
    out = {}
    for name in sorted(os.listdir(site)):
        if not name.endswith(".dist-info"):
            continue
        record = os.path.join(site, name, "RECORD")
        try:
            with open(record, "rb") as f:
                # Compiled files and install bookkeeping differ by machine; the wheel's own do not.
                lines = [
                    line
                    for line in f.read().splitlines()
                    if not line.startswith(b"../") and b"__pycache__" not in line
                    and not line.startswith(name.encode() + b"/")
                ]  # fmt: skip
        except OSError:
            continue
        out[name[: -len(".dist-info")]] = hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()
    return out


def write(path, data):
    temp = path + ".partial"
    with open(temp, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temp, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
