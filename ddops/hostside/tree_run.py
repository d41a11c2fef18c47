"""Which code the running engine has, file by file against the tree. Joined into tree.py."""

import hashlib
import json
import os
import subprocess

ASK = (
    "import importlib.util, sys; s = importlib.util.find_spec('sglang');"
    "print(s.origin if s else '')"
)


def running(repo, pin, services):
    """For each service that runs: where its code lies and which files are not the tree's."""
    out = {}
    for name, folder in sorted(services.items()):
        launch = read_json(os.path.join(folder, "run", "launch.json"))
        spec = read_json(os.path.join(folder, "current", "launch.json"))
        if launch is None or spec is None or not os.path.exists("/proc/%d" % launch["pid"]):
            continue
        out[name] = judged(repo, pin, launch, spec)
    return out


def judged(repo, pin, launch, spec):
    package = package_of(spec)
    if package is None:
        return {"package": None, "differs": [], "since": [], "equal": None}
    want = {}
    below = pin["prefix"] + "sglang"
    for row in repo.out("ls-tree", "-r", "-z", "HEAD", "--", below).split(b"\0"):
        if row:
            meta, path = row.split(b"\t", 1)
            want[os.fsdecode(path)[len(below) + 1 :]] = meta.split(b" ")[2].decode()
    found, since = {}, []
    for base, folders, names in os.walk(package):
        folders[:] = [f for f in folders if f != "__pycache__"]
        for file in names:
            path = os.path.join(base, file)
            inside = os.path.relpath(path, package)
            if file.endswith((".pyc", ".pyo")) or os.path.islink(path):
                continue
            found[inside] = blob(path)
            if os.stat(path).st_ctime > launch["started"]:
                since.append(inside)
    links = {k for k in want if os.path.islink(os.path.join(package, k))}
    differs = sorted(k for k in set(want) | set(found)
                     if k not in links and want.get(k) != found.get(k))  # fmt: skip
    return {"package": package, "differs": differs[:200], "since": sorted(since)[:200],
            "equal": not differs and not since}  # fmt: skip


def package_of(spec):
    """The folder that `import sglang` means for that command line; nothing of it is run."""
    env = {**os.environ, **spec["env"]}
    done = subprocess.run([spec["argv"][0], "-c", ASK], env=env, stdin=subprocess.DEVNULL,
                          capture_output=True, check=False, timeout=60, cwd="/")  # fmt: skip
    origin = done.stdout.decode("utf-8", "replace").strip()
    return os.path.dirname(origin) if done.returncode == 0 and origin else None


def blob(path):
    """The object id that git gives these bytes."""
    with open(path, "rb") as f:
        data = f.read()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324 - git's own


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return None
