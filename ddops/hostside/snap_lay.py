#!/usr/bin/env python3
"""Lays a snapshot's tree down on this host, whole or not at all, and proves it. Prints JSON.

    snap_lay.py SPEC_JSON

SPEC: `verb` and what it needs. `look`: what is at `tree` and below `engine_dir` now.
`lay`: the commit of `git_dir` (a pack at `pack` is taken in first) appears at `tree` by a rename;
what is there must be empty, unless `replace` says that it is ours to remove. `files`: single paths
of the commit, each by a rename, the old one kept beside it as `<path><suffix>`.
The proof reads every file back from disk and hashes it.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from ddops.hostside.snap_git import SCHEMA, Git, Lock, Stop, run


def main(argv):
    spec = json.loads(argv[0])
    os.umask(0o022)
    try:
        answer = {"look": look, "lay": lay, "files": files}[spec["verb"]](spec)
    except Stop as stop:
        answer = stop.answer
    json.dump({"schema": SCHEMA, **answer}, sys.stdout)
    return 0


def look(spec):
    """What is there. A tree that is the snapshot's already is said to be the same."""
    engine, tree = spec["engine_dir"], resolve(spec["tree"])
    service = os.path.join(engine, ".ddops", "services", spec["service"] or "-")
    there = os.path.isdir(tree) and bool(os.listdir(tree))
    same = False
    if there and os.path.exists(os.path.join(spec["git_dir"], "config")):
        git = Git(spec["git_dir"], os.fsencode(tree))
        git.write_excludes(spec["large_paths"])
        same = git.has(spec["commit"]) and differing(git, spec["hash"]) == []
    return {
        "state": "ok", "tree": tree, "tree_there": there, "same": same,
        "git": shutil.which("git") is not None,
        "have": os.path.exists(os.path.join(spec["git_dir"], "config"))
        and Git(spec["git_dir"], os.fsencode(tree)).has(spec["commit"]),
        "service_there": os.path.lexists(os.path.join(service, "current"))
        or os.path.lexists(os.path.join(service, "committed")),
        "restoring": read_text(os.path.join(engine, ".ddops", "restoring")),
    }  # fmt: skip


def resolve(tree):
    """The tree's place; where the interpreter has another minor version, its folder."""
    match = re.match(r"(.*/lib/)python3\.\d+(/site-packages/.*)", tree)
    if match and not os.path.isdir(os.path.dirname(tree)):
        found = glob.glob(glob.escape(match.group(1)) + "python3*/site-packages")
        if len(found) == 1:
            return os.path.dirname(found[0]) + match.group(2)
    return tree


def lay(spec):
    tree = resolve(spec["tree"])
    git = Git(spec["git_dir"], os.fsencode(tree))
    git.ensure()
    with Lock(os.path.join(git.dir, "ddops.lock"), 60):
        git.sweep()
        git.write_excludes(spec["large_paths"])
        take(git, spec)
        if os.path.isdir(tree) and differing(git, spec["hash"]) == []:
            rebuild(git, spec, tree)
            return {"state": "ok", "tree": tree, "laid": False}
        fresh = tree + ".partial"
        shutil.rmtree(fresh, ignore_errors=True)
        os.makedirs(fresh)
        write_out(git, spec, fresh)
        there = Git(git.dir, os.fsencode(fresh))
        wrong = differing(there, spec["hash"])
        if wrong:
            raise Stop("differs", paths=wrong[:20])
        rebuild(git, spec, fresh)
        old = tree + ".replaced"
        shutil.rmtree(old, ignore_errors=True)
        if os.path.lexists(tree):
            if not spec["replace"] and (not os.path.isdir(tree) or os.listdir(tree)):
                raise Stop("there", why="%s is not empty" % tree)
            os.rename(tree, old)
        os.rename(fresh, tree)
        shutil.rmtree(old, ignore_errors=True)
        return {"state": "ok", "tree": tree, "laid": True}


def take(git, spec):
    """The objects; hashed by git as they come in."""
    if spec["pack"] and not git.has(spec["commit"]):
        with open(spec["pack"], "rb") as f:
            run(["git", "index-pack", "--stdin", "--strict", "--fix-thin"], git.ours, f.read())
    if not git.has(spec["commit"]):
        raise Stop("missing", why="the objects did not arrive")
    if spec["pack"] and os.path.exists(spec["pack"]):
        os.unlink(spec["pack"])


def write_out(git, spec, target):
    env = {
        **git.ours,
        "GIT_WORK_TREE": target,
        "GIT_INDEX_FILE": os.path.join(git.dir, "lay.index"),
    }
    run(["git", "read-tree", "--reset", spec["hash"]], env)
    run(["git", "checkout-index", "-a", "-q", "-f"], env)
    for row in spec.get("large", ()):
        path = os.path.join(target, row["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(row["from"], path)
        os.chmod(path, 0o755 if row["mode"] == "100755" else 0o644)


def rebuild(git, spec, tree):
    """A managed tree's own repository, as far back as its pin; put in place by a rename.

    Its objects are those of the snapshot's tree and those of the pack that came with it.
    """
    told, final = spec.get("repo"), os.path.join(tree, ".git")
    if not told or os.path.lexists(final):
        return
    dot = git.dir + ".repository"
    shutil.rmtree(dot, ignore_errors=True)
    run(["git", "init", "-q", "--bare", "--template=", dot], git.env)
    env = {**git.env, "GIT_DIR": dot, "GIT_WORK_TREE": tree}
    rows = git.out("ls-tree", "-r", "-t", "-z", "--full-tree", spec["hash"]).split(b"\0")
    names = [r.split(b"\t", 1)[0].split()[2] for r in rows if r] + [spec["hash"].encode()]
    packs = os.path.join(dot, "objects", "pack", "pack")
    git.out("pack-objects", "-q", packs, stdin=b"\n".join(names) + b"\n")
    with open(told["pack"], "rb") as f:
        run(["git", "index-pack", "--stdin"], env, f.read())
    pin, head = told["pin"], told["head"]
    if b"\nparent " in run(["git", "cat-file", "commit", pin["commit"]], env).split(b"\n\n")[0]:
        put(os.path.join(dot, "shallow"), pin["commit"] + "\n")
    run(["git", "config", "core.bare", "false"], env)
    if told["branch"]:
        run(["git", "update-ref", "refs/heads/" + told["branch"], head], env)
        run(["git", "symbolic-ref", "HEAD", "refs/heads/" + told["branch"]], env)
    else:
        run(["git", "update-ref", "--no-deref", "HEAD", head], env)
    run(["git", "fsck", "--no-dangling", "--no-progress"], env)
    os.makedirs(os.path.join(dot, "info"), exist_ok=True)
    put(os.path.join(dot, "info", "exclude"), "__pycache__/\n*.py[co]\n")
    put(os.path.join(dot, "ddops.json"), json.dumps(pin, indent=1))
    run(["git", "read-tree", "HEAD"], env)
    # What was edited by hand differs on purpose, and git ends with 1 then.
    subprocess.run(["git", "update-index", "-q", "--refresh"], env=env, check=False,
                   stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
    beside = final + ".ddops-partial"  # the tree may lie on another disk
    shutil.rmtree(beside, ignore_errors=True)
    shutil.move(dot, beside)
    os.rename(beside, final)
    os.unlink(told["pack"])


def put(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def differing(git, tree):
    """Paths that are not as in `tree`, every file read: an index made now knows no times."""
    with tempfile.TemporaryDirectory(prefix="ddops-prove-") as folder:
        env = {**git.ours, "GIT_INDEX_FILE": os.path.join(folder, "index")}
        run(["git", "read-tree", tree], env)
        out = run(["git", "ls-files", "-z", "-m", "-o", "--exclude-standard"], env)
    return sorted({os.fsdecode(p) for p in out.split(b"\0") if p})


def files(spec):
    """Single files. A folder means all files below it."""
    tree = resolve(spec["tree"])
    git = Git(spec["git_dir"], os.fsencode(tree))
    git.ensure()
    done = []
    with Lock(os.path.join(git.dir, "ddops.lock"), 60):
        git.sweep()
        take(git, spec)
        rows = wanted(git, spec)
        clash = [r for r in rows if os.path.lexists(git.path(r[2])) and not same(git, r)]
        if clash and not spec["suffix"]:
            raise Stop("there", why=", ".join(os.fsdecode(r[2]) for r in clash[:8]))
        for row in rows:
            done.append({"path": os.fsdecode(row[2]), "kept": put_file(git, row, spec["suffix"])})
    return {"state": "ok", "tree": tree, "files": done}


def wanted(git, spec):
    rows = []
    for name in spec["paths"]:
        words = ("--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", spec["hash"], "--")
        found = [r for r in git.out(*words, name.rstrip("/")).split(b"\0") if r]
        if not found:
            raise Stop("no-path", why=name)
        for line in found:
            meta, path = line.split(b"\t", 1)
            mode, _, oid = meta.decode().split()
            rows.append((mode, oid, path))
    return rows


def same(git, row):
    mode, oid, path = row
    full = git.path(path)
    if os.path.islink(full) != (mode == "120000") or os.path.isdir(full):
        return False
    if mode == "120000":
        return os.fsencode(os.readlink(full)) == git.out("cat-file", "blob", oid)
    executable = bool(os.lstat(full).st_mode & 0o100)
    with open(full, "rb") as f:
        return f.read() == git.out("cat-file", "blob", oid) and executable == (mode == "100755")


def put_file(git, row, suffix):
    """One file by a rename; the name the old one is kept under, or None."""
    mode, oid, path = row
    full = git.path(path)
    if os.path.lexists(full) and same(git, row):
        return None
    os.makedirs(os.path.dirname(full), exist_ok=True)
    temp, data = full + b".ddops-partial", git.out("cat-file", "blob", oid)
    if os.path.lexists(temp):
        os.unlink(temp)
    if mode == "120000":
        os.symlink(data, temp)
    else:
        with open(temp, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(temp, 0o755 if mode == "100755" else 0o644)
    kept = None
    if os.path.lexists(full):
        kept = full + os.fsencode(suffix)
        os.rename(full, kept)
    os.rename(temp, full)
    if not same(git, row):
        raise Stop("differs", paths=[os.fsdecode(path)])
    return os.fsdecode(kept) if kept else None


def read_text(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
