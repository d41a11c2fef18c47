#!/usr/bin/env python3
"""Tells what belongs to a snapshot beside the source tree. Reads only; prints JSON.

    snap_about.py SPEC_JSON

SPEC: `engine_dir`, `service` (a name or null), `tree` (a folder, or null to look for it).
The answer holds the service's release files (never its secrets), the environment's record and
inputs, the weights by name and size, and where the running code lies.
"""

import base64
import glob
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import time

SCHEMA = "ddops.snap-about/1"
#: Files of a release that hold no secret.
RELEASE_FILES = ("release.json", "launch.json", "gates.json", "golden.json")
MOST_INPUTS = 32 << 20


def main(argv):
    spec = json.loads(argv[0])
    state = os.path.join(spec["engine_dir"], ".ddops")
    service = os.path.join(state, "services", spec["service"]) if spec["service"] else None
    links = {n: link(service, n) for n in ("committed", "current")} if service else {}
    release = links.get("committed") or links.get("current")
    files = release_files(os.path.join(service or "", "releases", release)) if release else {}
    lock = lock_of(files)
    env = os.path.join(spec["engine_dir"], "env", lock[:12]) if lock else only_env(spec)
    tree = spec["tree"] or find_tree(spec["engine_dir"], env)
    answer = {
        "schema": SCHEMA,
        "now": time.time(),
        "engine_dir": os.path.isdir(spec["engine_dir"]),
        "tree": tree,
        "tree_there": tree is not None and os.path.isdir(tree),
        "links": links,
        "release": files,
        "lock": lock,
        "env": read_json(os.path.join(env, "env.json")) if env else None,
        "env_path": env,
        "inputs": inputs(os.path.join(state, "inputs", lock[:12])) if lock else None,
        "code": code(files),
        "launch": read_json(os.path.join(service, "run", "launch.json")) if service else None,
        "models": models(os.path.join(spec["engine_dir"], "models")),
        "git": own_repository(tree) if tree else None,
    }
    json.dump(answer, sys.stdout)
    return 0


def only_env(spec):
    """The environment of a host that has served nothing yet, when it has just one."""
    found = glob.glob(os.path.join(glob.escape(spec["engine_dir"]), "env", "*", "env.json"))
    return os.path.dirname(found[0]) if len(found) == 1 else None


def link(service, name):
    try:
        return os.path.basename(os.readlink(os.path.join(service, name)))
    except OSError:
        return None


def release_files(folder):
    out = {}
    for name in RELEASE_FILES:
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                out[name] = f.read()
        except OSError:
            continue  # golden.json is there for some services only
    return out


def lock_of(files):
    """Digest of what the release's environment was built from."""
    try:
        return json.loads(files["release.json"])["lock"] or None
    except (KeyError, ValueError, TypeError):
        return None


def code(files):
    """Engine and series of the patched code that the release runs, or None where it runs none."""
    try:
        paths = json.loads(files["launch.json"])["env"]["PYTHONPATH"].split(":")
    except (KeyError, ValueError, TypeError):
        return None
    told = read_json(os.path.join(paths[0], "code.json"))
    return told and {key: told[key] for key in ("engine", "series", "patches")}


def find_tree(engine_dir, env):
    """The managed tree, else the package the environment runs (also one installed editable)."""
    managed = os.path.join(engine_dir, "tree")
    if os.path.isdir(managed):
        return managed
    if env is None:
        return None
    for site in glob.glob(os.path.join(glob.escape(env), "lib", "python3*", "site-packages")):
        package = os.path.join(site, "sglang")
        if os.path.isdir(package):
            return package
        for told in glob.glob(os.path.join(glob.escape(site), "sglang-*", "direct_url.json")):
            url = (read_json(told) or {}).get("url", "")
            if url.startswith("file:///"):
                return url[len("file://") :]
    return None


def inputs(folder):
    """What the environment was built from, as a tar that depends on its content alone."""
    if not os.path.isdir(folder):
        return None
    import tarfile  # here: it takes as long to load as all the rest together

    out, total = io.BytesIO(), 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for base, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(base, name)
                found = os.lstat(path)
                if not stat.S_ISREG(found.st_mode):
                    continue
                total += found.st_size
                if total > MOST_INPUTS:
                    return None
                member = tarfile.TarInfo(os.path.relpath(path, folder))
                member.size = found.st_size
                member.mode = 0o755 if found.st_mode & 0o100 else 0o644
                with open(path, "rb") as f:
                    archive.addfile(member, f)
    return base64.b64encode(out.getvalue()).decode()


def models(folder):
    """Weights by name: size, files, and the digest of their configuration."""
    out = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        place = os.path.join(folder, name)
        files = [os.path.join(b, n) for b, _, ns in os.walk(place) for n in ns]
        config = os.path.join(place, "config.json")
        out[name] = {
            "files": len(files),
            "bytes": sum(os.lstat(f).st_size for f in files),
            "config": file_digest(config) if os.path.isfile(config) else None,
        }
    return out


def file_digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def own_repository(tree):
    """What the tree's own repository says of itself; its working files are not judged here."""
    if not os.path.lexists(os.path.join(tree, ".git")):
        return None
    head = git(tree, "rev-parse", "-q", "--verify", "HEAD")
    return {
        "head": head or None,
        "branch": git(tree, "symbolic-ref", "-q", "--short", "HEAD") or None,
        "describe": git(tree, "describe", "--tags", "--always") or None,
        "subject": git(tree, "log", "-1", "--format=%s")[:200] or None,
    }


def git(tree, *words):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env.update(LC_ALL="C", GIT_OPTIONAL_LOCKS="0")
    argv = ["git", "-C", tree, "-c", "safe.directory=*", *words]
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
