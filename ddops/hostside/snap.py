#!/usr/bin/env python3
"""Takes a snapshot of a source tree into a git folder of our own, on this host. Prints JSON.

    snap.py SPEC_JSON

SPEC: `git_dir` (ours, made when missing), `tree` (the folder), `have` (commits the other side
holds), `allow` (patterns of paths that may be large or look like secrets), `large_bytes`,
`inline_bytes` (a pack up to this size comes with the answer), `at` (seconds, for the commit),
`lock_wait_s`, `rounds`.

Nothing in the tree is written, neither its own `.git`: index, objects and references are all in
`git_dir`. Its `info/attributes` turns every conversion off, so a blob is the file's very bytes.
The answer's `state` is `ok`, or why there is none: `large`, `secrets` (paths only, never a
value), `moving` (edited meanwhile), `busy`. Nothing leaves the host before `ok`.
"""

import base64
import json
import os
import stat
import sys
import time

from ddops.hostside.snap_git import SCHEMA, SEED, Allow, Git, Lock, Stop, sha256
from ddops.hostside.snap_history import history, ignored
from ddops.hostside.snap_scan import RULES, scan

#: So many objects beside a pack that has them too are worth a process that removes them.
MANY = 500


def main(argv):
    spec = json.loads(argv[0])
    os.umask(0o077)
    try:
        answer = capture(spec)
    except Stop as stop:
        answer = stop.answer
    json.dump(answer, sys.stdout)
    return 0


def capture(spec):
    tree = os.fsencode(spec["tree"])
    if not os.path.isdir(tree):
        raise Stop("missing", why="no such folder")
    git = Git(spec["git_dir"], tree)
    git.ensure()
    with Lock(os.path.join(git.dir, "ddops.lock"), spec["lock_wait_s"]):
        git.sweep()
        began = time.monotonic()
        state = git.load()
        allow = Allow(spec["allow"])
        state["large"] = [p for p in state["large"] if git.size(p) > spec["large_bytes"]]
        git.write_excludes(state["large"])
        try:
            rounds = settle(git, state, spec, allow)
        finally:
            git.save(state)  # what it learned of the tree, also when it was refused
        last = state["last"]
        # Bound to the index: a run that was refused or killed may have moved it on.
        index = git.index_sum()
        if rounds or not last or last.get("index") != index or not git.has(last["commit"]):
            last = {"tree": git.out("write-tree").decode().strip(), "index": git.index_sum()}
        plumbing = time.monotonic() - began
        large = large_files(git, state, allow)
        hits = look_for_secrets(git, state, last["tree"], allow)
        if hits:
            git.save(state)
            raise Stop("secrets", hits=hits)
        if "commit" not in last:
            last["commit"] = git.commit(last["tree"], spec["at"])
        past = history(git, last["tree"], allow, spec["allow"])
        if rounds or state["ignored"] is None:
            state["ignored"] = ignored(git)
        state["last"] = last
        state["cleared"] = {"tree": last["tree"], "rules": RULES}
        git.save(state)
        answer = {
            "schema": SCHEMA, "state": "ok", "now": time.time(), "tree": last["tree"],
            "commit": last["commit"], "rounds": rounds,
            "nested": nested_heads(git, state), "large": large,
            "allowed": sorted(state["allowed"]), "plumbing_s": round(plumbing, 4),
            "history": past, "ignored": state["ignored"],
        }  # fmt: skip
        if spec["have"] is not None:
            answer["pack"] = pack(git, last, spec["have"], spec["inline_bytes"])
        answer["took_s"] = round(time.monotonic() - began, 4)
        return answer


def settle(git, state, spec, allow):
    """Bring the index to what the tree holds; how many passes changed it.

    Two looks that agree are a moment at which every file was what the index says.
    """
    force = tracked_but_ignored(git, state)
    for number in range(spec["rounds"] + 1):
        paths = [p for p in git.changed() | force if not p.endswith(SEED) or git.tracks(p)]
        force = set()
        nested = [p for p in paths if p.endswith(b"/")]
        fresh = [os.fsdecode(p) for p in nested if os.fsdecode(p) not in state["nested"]]
        files = [p for p in paths if not p.endswith(b"/")]
        if not files and not fresh:
            return number
        if number == spec["rounds"]:
            raise Stop("moving", paths=[os.fsdecode(p) for p in sorted(files)[:20]])
        files = weigh(git, state, files, spec["large_bytes"], allow)
        git.update(files)
        git.seed([os.fsencode(p) for p in fresh])
        state["nested"] += fresh
    return spec["rounds"]


def look_for_secrets(git, state, tree, allow):
    """Hits in what was not looked at before by these rules."""
    if (state["cleared"] or {}) == {"tree": tree, "rules": RULES}:
        return []
    return scan(git, state, tree, allow)


def weigh(git, state, files, limit, allow):
    """The files that git may hold. A large one stops all, or is set apart when allowed."""
    small, large, apart = [], [], []
    for path in files:
        try:
            found = os.lstat(git.path(path))
        except OSError:
            small.append(path)  # gone: an entry to remove
            continue
        if stat.S_ISREG(found.st_mode) and found.st_size > limit:
            name = os.fsdecode(path)
            if allow(name):
                apart.append(path)
            else:
                large.append({"path": name, "bytes": found.st_size})
        else:
            small.append(path)
    if large:
        raise Stop("large", files=large, limit=limit)
    if apart:
        git.forget(apart)
        state["large"] = sorted({*state["large"], *(os.fsdecode(p) for p in apart)})
        git.write_excludes(state["large"])
    return small


def large_files(git, state, allow):
    """Files that are kept apart from git, with their sha256; read again only when touched."""
    out, kept = [], {}
    for name in state["large"]:
        try:
            found = os.lstat(git.path(os.fsencode(name)))
        except OSError:
            continue
        key = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
        known = state["sums"].get(name)
        digest = known[1] if known and known[0] == key else sha256(git.path(os.fsencode(name)))
        kept[name] = [key, digest]
        out.append({"path": name, "sha256": digest, "bytes": found.st_size,
                    "mode": "100755" if found.st_mode & 0o100 else "100644"})  # fmt: skip
    state["sums"], state["large"] = kept, sorted(kept)
    return out


def tracked_but_ignored(git, state):
    """Files that the tree's own repository tracks although its rules ignore them."""
    own = git.path(b".git")
    if not os.path.lexists(own):
        return set()
    try:
        found = os.stat(os.path.join(own, b"index"))
        key = [found.st_mtime_ns, found.st_size, found.st_ino]
    except OSError:
        key = None  # a linked work tree: looked at each time
    if key is None or key != state["index"]:
        listed = git.theirs("ls-files", "-z", "-c", "-i", "--exclude-standard")
        state["forced"] = [os.fsdecode(p) for p in listed.split(b"\0") if p]
        state["index"] = key
    forced = {os.fsencode(p) for p in state["forced"]}
    return {p for p in forced if os.path.lexists(git.path(p)) and not git.tracks(p)}


def nested_heads(git, state):
    """Repositories inside the tree: their files are in the snapshot, their history is named."""
    out = []
    for name in sorted(state["nested"]):
        if not os.path.lexists(git.path(os.fsencode(name) + b".git")):
            continue
        head = git.theirs("rev-parse", "-q", "--verify", "HEAD", below=os.fsencode(name))
        out.append({"path": name, "head": head.decode().strip() or None})
    return out


def pack(git, last, have, inline):
    """What the other side lacks, as one pack file. None when it has the commit."""
    commit = last["commit"]
    if commit in have:
        return None
    base = next((c for c in have if git.has(c)), None)
    names = {commit, last["tree"]}
    if base:
        raw = git.out("diff-tree", "-r", "-t", "-z", "--no-renames", "--raw", base, commit)
        for field in raw.split(b"\0")[::2]:
            words = field.split(b" ")
            if len(words) == 5 and words[4] != b"D" and words[1] != b"160000":
                names.add(words[3].decode())
    else:
        names = set(git.out("rev-list", "--objects", "--no-object-names", commit).decode().split())
    folder = os.path.join(git.dir, "objects", "pack")
    os.makedirs(folder, exist_ok=True)
    listed = "\n".join(sorted(names)).encode() + b"\n"
    name = git.out("pack-objects", "-q", os.path.join(folder, "pack"), stdin=listed)
    path = os.path.join(folder, "pack-%s.pack" % name.decode().strip())
    if len(names) > MANY:
        git.out("prune-packed", "-q")
    size = os.path.getsize(path)
    answer = {"path": path, "bytes": size, "base": base, "objects": len(names)}
    if size <= inline:
        with open(path, "rb") as f:
            answer["data"] = base64.b64encode(f.read()).decode()
    else:
        answer["sha256"] = sha256(path)
    return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
