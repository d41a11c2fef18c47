#!/usr/bin/env python3
"""The managed source tree on this host: made, looked at, patched. Prints JSON.

    tree.py SPEC

SPEC is JSON, by zlib and base64; where that is too long for a word, it is `LONG`, and a variable
of that name stands at the script's top. It holds `verb` (init, status, apply, reverse, export,
rebase, code), `tree`, and what the verb needs. `status` writes nothing, nor does anything with
`check`.
A series is tried in an index of its own first. Only when all of it fits are files written, each
by a rename, from a journal that the next run finishes.
"""

import base64
import csv
import fcntl
import glob
import hashlib
import io
import json
import os
import shutil
import sys
import time
import zipfile
import zlib

from ddops.hostside.tree_git import (
    BRANCH,
    Refused,
    Repo,
    Trial,
    applied,
    decoded,
    mail,
    write_json,
)
from ddops.hostside.tree_run import read_json, running

SCHEMA = "ddops.tree/1"


def main(argv):
    word = globals()["LONG"] if argv[0] == "LONG" else argv[0]
    spec = json.loads(zlib.decompress(base64.b64decode(word)))
    os.umask(0o022)
    verbs = {"init": init, "status": status, "apply": apply, "reverse": apply, "export": export,
             "rebase": rebase, "code": code}  # fmt: skip
    try:
        if spec["verb"] not in ("init", "code") and not os.path.isdir(spec["tree"]):
            raise Refused("unmanaged", why="no folder %s" % spec["tree"])
        with locked(spec["tree"]):
            answer = verbs[spec["verb"]](spec)
    except Refused as refused:
        answer = refused.answer
    json.dump({"schema": SCHEMA, **answer}, sys.stdout)
    return 0


def locked(tree):
    """One change of a tree at a time; the kernel frees it."""
    os.makedirs(os.path.dirname(tree), exist_ok=True)
    handle = open(tree + ".lock", "a")  # noqa: SIM115 - held until the script ends
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Refused("busy", why="another command is at work on this tree") from None
    return handle


def init(spec):
    """Make the tree whole, by a rename. The same pin again is nothing to do."""
    tree = spec["tree"]
    pin = {"source": spec["source"], "engine": spec["engine"], "prefix": spec["prefix"],
           "want": spec["want"]}  # fmt: skip
    if os.path.isdir(tree) and os.listdir(tree):
        there = Repo(tree).pin()
        if {k: there.get(k) for k in pin} == pin:
            return {"state": "ok", "made": False, **there}
        raise Refused("there", why="it was made from %s %s" % (there["source"], there["want"]))
    fresh = tree + ".partial"
    shutil.rmtree(fresh, ignore_errors=True)
    os.makedirs(fresh)
    repo = Repo(fresh)
    repo.out("init", "-q", "-b", BRANCH, ".")
    if spec["kind"] == "git":
        fetch(repo, spec["source"], spec["want"])
    else:
        found = wheel(spec["path"]) if spec["kind"] == "wheel" else installed(spec["path"])
        for name, data, executable in found:
            put(os.path.join(fresh, name), data, executable)
        repo.out("add", "-A", "-f")
        env = {"GIT_AUTHOR_DATE": "@0 +0000", "GIT_COMMITTER_DATE": "@0 +0000"}
        repo.out("commit", "-q", "--allow-empty", "-m", "upstream %s" % spec["engine"], env=env)
    package = os.path.join(fresh, spec["prefix"], "sglang")
    if not os.path.isdir(package):
        raise Refused("no-package", why="no folder sglang below %r" % (spec["prefix"] or "."))
    with open(os.path.join(fresh, ".git", "info", "exclude"), "a", encoding="utf-8") as f:
        f.write("__pycache__/\n*.py[co]\n")
    pin["commit"] = repo.head()
    pin["tree"] = repo.text("rev-parse", "HEAD^{tree}")
    write_json(os.path.join(fresh, ".git", "ddops.json"), pin)
    if os.path.isdir(tree):
        os.rmdir(tree)
    os.rename(fresh, tree)
    return {"state": "ok", "made": True, **pin}


def fetch(repo, source, want):
    """The pinned commit alone where the other side allows that, else all of its branches."""
    done = repo.attempt("fetch", "-q", "--depth", "1", source, want)
    if done.returncode:
        repo.out(
            "fetch", "-q", source, "+refs/heads/*:refs/remotes/up/*", "+refs/tags/*:refs/tags/*"
        )
    if repo.attempt("cat-file", "-e", want + "^{commit}").returncode:
        raise Refused("no-commit", why="%s has no commit %s" % (source, want))
    repo.out("checkout", "-q", "-B", BRANCH, want)


def wheel(path):
    """Files of a released wheel, each against the hash its RECORD names."""
    try:
        yield from unpacked(path)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise Refused("no-wheel", why="it is no whole zip file: %s" % error) from None


def unpacked(path):
    with zipfile.ZipFile(path) as archive:
        record = next((n for n in archive.namelist() if n.endswith(".dist-info/RECORD")), None)
        if record is None:
            raise Refused("no-wheel", why="it has no RECORD")
        rows = csv.reader(io.StringIO(archive.read(record).decode("utf-8")))
        sums = {row[0]: row[1] for row in rows if len(row) > 1}
        for info in archive.infolist():
            name = info.filename
            if info.is_dir() or ".dist-info/" in name or ".data/" in name:
                continue
            if name.startswith("/") or ".." in name.split("/"):
                raise Refused("no-wheel", why="a name leads outside: %s" % name)
            data = archive.read(info)
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            if sums.get(name) != "sha256=" + found:
                raise Refused("no-wheel", why="%s is not what RECORD says" % name)
            yield name, data, bool((info.external_attr >> 16) & 0o100)


def installed(package):
    """Files of an installed package, as they are."""
    for base, folders, names in os.walk(package):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(names):
            path = os.path.join(base, name)
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            with open(path, "rb") as f:
                data = f.read()
            inside = os.path.relpath(path, os.path.dirname(package))
            yield inside, data, bool(os.stat(path).st_mode & 0o100)


def put(path, data, executable):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    os.chmod(path, 0o755 if executable else 0o644)


def status(spec):
    """What the tree is: pin, series, hand edits, and whether the running code is it."""
    repo = Repo(spec["tree"])
    pin = repo.pin()
    patches = decoded(spec["patches"])
    there, rest = applied(repo, pin["prefix"], patches, "HEAD")
    upstream, _ = applied(repo, pin["prefix"], patches, pin["commit"])
    rows = repo.out("status", "--porcelain", "-z", "--no-renames", env={"GIT_OPTIONAL_LOCKS": "0"})
    dirty = [os.fsdecode(r[3:]) for r in rows.split(b"\0") if r]
    own = repo.text("rev-list", "--reverse", pin["commit"] + "..HEAD").split()
    return {
        "state": "ok", "pin": pin, "head": repo.head(),
        "tree": repo.text("rev-parse", "HEAD^{tree}"),
        "applied": there, "superseded": upstream,
        "pure": rest == pin["tree"],
        "commits": len(own), "dirty": dirty[:200], "dirty_count": len(dirty),
        "unfinished": os.path.exists(journal_of(repo)),
        "running": running(repo, pin, spec["services"]),
        "now": time.time(),
    }  # fmt: skip


def journal_of(repo):
    return os.path.join(repo.git_dir, "ddops-apply.json")


def apply(spec):
    """The series into the tree, or out of it: all of it, or nothing."""
    repo = Repo(spec["tree"])
    pin = repo.pin()
    if not spec["check"]:
        finish(repo)
    patches = decoded(spec["patches"])
    back = spec["verb"] == "reverse"
    there, _ = applied(repo, pin["prefix"], patches, "HEAD")
    todo = [p for p in patches if (p[0] in there) is back]
    if spec["only"]:
        todo = [p for p in todo if p[0] in spec["only"]]
    trial = Trial(repo, pin["prefix"], repo.head(), keep=not spec["check"])
    try:
        done, wrong = tried(trial, repo, todo[::-1] if back else todo, back)
        if wrong:
            raise Refused("conflict", patches=wrong, fitting=[d["name"] for d in done])
        if done and not spec["check"]:
            move(repo, trial.commit)
    finally:
        trial.close()
    return {"state": "ok", "done": done, "there": there, "head": repo.head(),
            "tree": repo.text("rev-parse", "HEAD^{tree}")}  # fmt: skip


def tried(trial, repo, todo, back):
    """Each patch on what came before; those behind one that does not fit are tried as well."""
    done, wrong = [], []
    words = ("-R",) if back else ()
    for name, patch in todo:
        message, author = mail(repo, patch)
        if back:
            message, author = "Reverse " + message, {}
        if trial.fits(patch, *words) and trial.take(patch, *words):
            how = "clean"
        elif trial.take(patch, "--3way", *words):
            how = "merged"
        else:
            wrong.append({"name": name, "hunks": trial.hunks(patch, *words)})
            continue
        trial.record(message + "\nDdops-Patch: " + name + "\n", author)
        done.append({"name": name, "how": how})
    return done, wrong


def move(repo, target):
    """Files, index and branch from HEAD to `target`; a journal first, so that a kill is mended."""
    source = repo.head()
    rows = changes(repo, source, target)
    edited = [os.fsdecode(p) for p, old, new in rows if state_of(repo, p) not in (old, new)]
    if edited:
        raise Refused("edited", paths=sorted(edited))
    write_json(journal_of(repo), {"from": source, "to": target})
    finish(repo)


def finish(repo):
    """Do what a journal says, from wherever it was left. Nothing without one."""
    try:
        with open(journal_of(repo), encoding="utf-8") as f:
            told = json.load(f)
    except (OSError, ValueError):
        return
    lock = os.path.join(repo.git_dir, "index.lock")
    if os.path.exists(lock):
        os.unlink(lock)
    lines = []
    for path, _, new in changes(repo, told["from"], told["to"]):
        write_path(repo, path, new)
        mode, oid = new or ("0", "0" * 40)
        lines.append(("%s %s\t" % (mode, oid)).encode() + path)
    repo.out("update-index", "-z", "--index-info", stdin=b"\0".join(lines) + b"\0")
    repo.out("update-ref", "HEAD", told["to"])
    repo.attempt("update-index", "-q", "--refresh")
    os.unlink(journal_of(repo))


def changes(repo, source, target):
    """Path, then old and new (mode, object) or None."""
    words = ("diff-tree", "-r", "-z", "--no-renames", "--raw", source, target)
    fields = repo.out(*words).split(b"\0")
    out = []
    for meta, path in zip(fields[::2], fields[1::2]):
        old_mode, new_mode, old, new, _ = meta.decode().lstrip(":").split()
        out.append((path, (old_mode, old) if old_mode != "000000" else None,
                    (new_mode, new) if new_mode != "000000" else None))  # fmt: skip
    return out


def state_of(repo, path):
    """(mode, object) of a file in the tree as git would store it; None where there is none."""
    full = os.path.join(os.fsencode(repo.tree), path)
    if not os.path.lexists(full):
        return None
    if os.path.islink(full):
        data = os.readlink(full)
        return "120000", repo.text("hash-object", "--stdin", stdin=data)
    if not os.path.isfile(full):
        return "other", ""
    mode = "100755" if os.stat(full).st_mode & 0o100 else "100644"
    return mode, repo.text("hash-object", "--", os.fsdecode(path))


def write_path(repo, path, new):
    full = os.path.join(os.fsencode(repo.tree), path)
    if new is None:
        if os.path.lexists(full):
            os.unlink(full)
        return
    if state_of(repo, path) == new:
        return
    os.makedirs(os.path.dirname(full), exist_ok=True)
    temp = full + b".ddops-partial"
    if os.path.lexists(temp):
        os.unlink(temp)
    data = repo.out("cat-file", "--filters", "--path=" + os.fsdecode(path), new[1])
    if new[0] == "120000":
        os.symlink(data, temp)
    else:
        with open(temp, "wb") as f:
            f.write(data)
        os.chmod(temp, 0o755 if new[0] == "100755" else 0o644)
    os.rename(temp, full)


def code(spec):
    """An environment's package with a series on it, in a folder of its own that appears whole.

    `tree` is that folder, `env` the environment, `digest` what both come to. Where it is whole
    already, what was edited by hand is kept under a ref and put back.
    """
    place = spec["tree"]
    told = read_json(os.path.join(place, "code.json"))
    if told is not None and told["digest"] == spec["digest"]:
        return {"state": "ok", "made": False, **put_back(Repo(place))}
    if os.path.lexists(place):
        raise Refused("there", source=place, want="", why="it has no code.json of this digest")
    found = glob.glob(os.path.join(glob.escape(spec["env"]), "lib/python3*/site-packages/sglang"))
    if len(found) != 1:
        raise Refused("no-package", why="no package sglang in %s" % spec["env"])
    if shutil.which("git") is None:
        raise Refused("no-git", why="a series is tried and applied with it")
    fresh = place + ".new"
    shutil.rmtree(fresh, ignore_errors=True)
    init({**spec, "tree": fresh, "kind": "installed", "source": "installed", "path": found[0],
          "want": spec["digest"], "prefix": ""})  # fmt: skip
    done = apply({**spec, "verb": "apply", "tree": fresh, "only": [], "check": False})
    repo = Repo(fresh)
    files = {}
    for row in repo.out("ls-tree", "-r", "-z", "HEAD").split(b"\0"):
        if row:
            meta, path = row.split(b"\t", 1)
            files[os.fsdecode(path)] = meta.split(b" ")[2].decode()
    write_json(os.path.join(fresh, "code.json"), {
        "schema": "ddops.code/1", "digest": spec["digest"], "engine": spec["engine"],
        "series": spec["series"], "patches": spec["patches"], "applied": done["done"],
        "files": files,
    })  # fmt: skip
    os.rename(fresh, place)
    return {"state": "ok", "made": True, "done": done["done"], "kept": None}


def put_back(repo):
    """Files as they are recorded; what a hand had changed becomes a commit under refs/ddops."""
    trial = Trial(repo, "", "HEAD", keep=True)
    try:
        repo.out("add", "-A", "--", "sglang", env=trial.env)
        if trial.tree() == repo.text("rev-parse", "HEAD^{tree}"):
            return {"kept": None}
        trial.record("Edits made by hand\n", {})
        kept = "refs/ddops/edited/%d" % time.time()
        repo.out("update-ref", kept, trial.commit)
        for path, _, right in changes(repo, trial.commit, "HEAD"):
            write_path(repo, path, right)
    finally:
        trial.close()
    repo.attempt("update-index", "-q", "--refresh")
    return {"kept": kept}


def export(spec):
    """Commits that are no part of the series, and hand edits, as format-patch files."""
    repo = Repo(spec["tree"])
    pin = repo.pin()
    patches = decoded(spec["patches"])
    known = {name for name, _ in patches}
    out = []
    for commit in repo.text(
        "rev-list", "--reverse", "--no-merges", pin["commit"] + "..HEAD"
    ).split():
        body = repo.text("log", "-1", "--format=%B", commit)
        if any("Ddops-Patch: " + n in body for n in known) or body.startswith("Reverse "):
            continue
        out.append(formatted(repo, pin, commit))
    trial = Trial(repo, pin["prefix"], "HEAD", keep=True)
    try:
        repo.out("add", "-A", env=trial.env)
        if trial.tree() != repo.text("rev-parse", "HEAD^{tree}"):
            trial.record("Edits made by hand\n\nWhat: say it\nWhy: say it\nUpstream: not sent\n"
                         "Test: name it\n", {})  # fmt: skip
            out.append(formatted(repo, pin, trial.commit))
    finally:
        trial.close()
    return {"state": "ok", "patches": out, "engine": pin["engine"]}


def formatted(repo, pin, commit):
    """One commit as a format-patch text with paths from the package root."""
    relative = ["--relative=" + pin["prefix"].rstrip("/")] if pin["prefix"] else []
    words = ("format-patch", "-1", "--stdout", "--no-signature", "--full-index", "--binary",
             "--zero-commit", *relative, commit)  # fmt: skip
    name = repo.text("show", "-s", "--format=%f", commit)
    return {"name": name, "data": base64.b64encode(repo.out(*words)).decode()}


def rebase(spec):
    """The series on another upstream, in objects alone: what fits, what is there, what not."""
    repo = Repo(spec["tree"])
    pin = repo.pin()
    base = upstream_commit(repo, spec)
    patches = decoded(spec["patches"])
    trial = Trial(repo, spec["prefix"], base, keep=True)
    rows, out = [], []
    try:
        for name, patch in patches:
            if trial.fits(patch, "-R"):
                rows.append({"name": name, "how": "superseded"})
                continue
            done, wrong = tried(trial, repo, [(name, patch)], False)
            rows.append({"name": name, "how": done[0]["how"] if done else "conflict",
                         "hunks": wrong[0]["hunks"] if wrong else []})  # fmt: skip
            if done:
                onto = {**pin, "prefix": spec["prefix"]}
                out.append({**formatted(repo, onto, trial.commit), "name": name})
    finally:
        trial.close()
    return {"state": "ok", "base": base, "rows": rows, "patches": out}


def upstream_commit(repo, spec):
    """The other upstream as a commit in this repository; no branch moves."""
    if spec["kind"] == "git":
        done = repo.attempt("fetch", "-q", "--depth", "1", spec["source"], spec["want"])
        if done.returncode:
            repo.out("fetch", "-q", spec["source"], "+refs/heads/*:refs/remotes/up/*")
        return repo.text("rev-parse", spec["want"] + "^{commit}")
    index = os.path.join(repo.git_dir, "ddops-rebase.index")
    if os.path.exists(index):
        os.unlink(index)
    env = {"GIT_INDEX_FILE": index}
    lines = []
    for name, data, executable in wheel(spec["path"]):
        oid = repo.text("hash-object", "-w", "--stdin", stdin=data)
        lines.append(("%s %s\t%s" % ("100755" if executable else "100644", oid, name)).encode())
    repo.out("update-index", "-z", "--index-info", stdin=b"\0".join(lines) + b"\0", env=env)
    made = repo.text("write-tree", env=env)
    os.unlink(index)
    return repo.text("commit-tree", made, "-m", "upstream %s" % spec["engine"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
