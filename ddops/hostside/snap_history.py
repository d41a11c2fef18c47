"""What the tree's own repository holds beyond its files, for a snapshot. Joined into snap.py.

Commits that are nowhere else become patches. A managed tree (one that ddops made) is also taken
as a repository: a pack of the objects from its pin to its HEAD that the snapshot's tree has not,
so that a restore gives a tree that knows its upstream. Nothing of it is written in the tree.
What looks like a secret in old versions keeps all of this out, and is said; the tree's files, which
were looked at before, are taken all the same.
"""

import base64
import json
import os
import re
import subprocess

from ddops.hostside.snap_git import write
from ddops.hostside.snap_scan import RULES, judge

MOST_COMMITS = 200
MOST_PATCHES = 8 << 20
MOST_PACK = 32 << 20


class LeftOut(Exception):
    """Why there is no history in the snapshot."""


def history(git, tree, allow, patterns):
    """The tree's own repository in one answer; None where it has none. Kept until it changes."""
    head = git.theirs("rev-parse", "-q", "--verify", "HEAD").decode().strip()
    if not head or not os.path.lexists(git.path(b".git")):
        return None
    key = [head, tree, RULES, sorted(patterns)]
    kept = os.path.join(git.dir, "history.json")
    try:
        with open(kept, encoding="utf-8") as f:
            known = json.load(f)
        if known["key"] == key:
            return known["answer"]
    except (OSError, ValueError, KeyError):
        pass  # never taken, or of an older ddops
    answer = fresh(git, tree, head, allow)
    write(kept, json.dumps({"key": key, "answer": answer}).encode())
    return answer


def fresh(git, tree, head, allow):
    branch = git.theirs("symbolic-ref", "-q", "--short", "HEAD").decode().strip()
    pin = pin_of(git)
    answer = {"head": head, "branch": branch or None, "pin": pin, "commits": [], "pack": None,
              "left_out": ""}  # fmt: skip
    try:
        commits = own_commits(git, pin)
        answer["commits"] = patches(git, commits, allow)
        if pin:
            answer["pack"] = repository(git, tree, pin["commit"], allow)
    except LeftOut as why:
        answer.update(commits=[], pack=None, left_out=str(why))
    return answer


def pin_of(git):
    try:
        with open(git.path(b".git/ddops.json"), encoding="utf-8") as f:
            found = json.load(f)
        return found if found["commit"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def own_commits(git, pin):
    """Commits behind the pin; in another repository those that no remote and no tag holds."""
    words = ["HEAD", "^" + pin["commit"]] if pin else ["HEAD", "--not", "--remotes", "--tags"]
    found = git.theirs("rev-list", "--reverse", "--topo-order", "--no-merges", *words)
    commits = found.decode().split()
    if len(commits) > MOST_COMMITS:
        raise LeftOut("%d commits that no remote and no tag holds, more than %d"
                      % (len(commits), MOST_COMMITS))  # fmt: skip
    return commits


def patches(git, commits, allow):
    out, total = [], 0
    for number, commit in enumerate(commits, 1):
        text = git.theirs("format-patch", "-1", "--root", "--stdout", "--no-signature",
                          "--full-index", "--binary", "--src-prefix=a/", "--dst-prefix=b/",
                          commit)  # fmt: skip
        message, *files = re.split(rb"^(?=diff --git )", text, flags=re.MULTILINE)
        guard(commit, b"", message)
        for part in files:
            named = re.findall(rb"^(?:---|\+\+\+) [ab]/([^\t\r\n]+)", part, re.MULTILINE)
            if not named or not all(allow(os.fsdecode(p)) for p in named):
                guard(commit, named[-1] if named else b"", part)
                # A binary file stands there in a code that no rule can read.
                for oid in binaries(part):
                    guard(commit, b"a binary file", git.theirs("cat-file", "blob", oid))
        total += len(text)
        if total > MOST_PATCHES:
            raise LeftOut("patches of more than %d MB" % (MOST_PATCHES >> 20))
        name = git.theirs("show", "-s", "--format=%f", commit).decode("ascii", "replace").strip()
        out.append({"name": "%04d-%s.patch" % (number, re.sub(r"[^\w.-]", "-", name)[:60]),
                    "data": base64.b64encode(text).decode()})  # fmt: skip
    return out


def binaries(part):
    """The old and the new object of a file that is not text."""
    if b"\nGIT binary patch\n" not in part:
        return []
    found = re.search(rb"^index ([0-9a-f]{40})\.\.([0-9a-f]{40})", part, re.MULTILINE)
    return [o.decode() for o in found.groups() if o.strip(b"0")] if found else []


def guard(where, path, data):
    rules = sorted({rule for rule, _ in judge(path, data)})
    if rules:
        named = os.fsdecode(path) or "its message"
        raise LeftOut("what looks like a secret in %s: %s (%s)"
                      % (where[:12], named, ", ".join(rules)))  # fmt: skip


def repository(git, tree, pin, allow):
    """The pack, in base64. Each file in it that the snapshot's tree has not is looked at."""
    rows = git.theirs("rev-list", "--objects", "HEAD", "^" + pin).split(b"\n")
    names = dict(r.partition(b" ")[::2] for r in rows if r)
    names.update({pin.encode(): b"", git.theirs("rev-parse", pin + "^{tree}").strip(): b""})
    for line in git.theirs("ls-tree", "-r", "-t", "-z", "--full-tree", pin).split(b"\0"):
        meta, _, path = line.partition(b"\t")
        if meta and meta.split()[1] != b"commit":
            names[meta.split()[2]] = path
    there = {tree.encode()}
    for line in git.out("ls-tree", "-r", "-t", "-z", "--full-tree", tree).split(b"\0"):
        if line:
            there.add(line.split(b"\t", 1)[0].split()[2])
    wanted = sorted(set(names) - there)
    made = asked(git, wanted, "pack-objects", "-q", "--stdout", "--window=0", "--threads=1")
    if len(made) > MOST_PACK:
        raise LeftOut("a pack of %d MB" % (len(made) >> 20))
    closed = [o for o in wanted if names[o] and not allow(os.fsdecode(names[o]))]
    for oid, data in blobs(asked(git, closed, "cat-file", "--batch")):
        guard("an older version", names[oid], data)
    return base64.b64encode(made).decode()


def asked(git, oids, *words):
    """The tree's own repository about many objects at once."""
    argv = ["git", "-C", git.tree, "-c", "safe.directory=*", *words]
    done = subprocess.run(argv, env=git.env, input=b"".join(o + b"\n" for o in oids),
                          capture_output=True, check=False)  # fmt: skip
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise LeftOut("git %s: %s" % (words[0], said))
    return done.stdout


def blobs(text):
    """Object and bytes of each file in the answer of `cat-file --batch`."""
    at = 0
    while at < len(text):
        end = text.index(b"\n", at)
        oid, kind, size = text[at:end].split()
        start, at = end + 1, end + 2 + int(size)
        if kind == b"blob":
            yield oid, text[start : at - 1]


def ignored(git):
    """Files that the tree's own rules keep out: how many, and in which folders the most lie."""
    listed = git.out("ls-files", "-z", "-o", "-i", "--exclude-per-directory=.gitignore")
    places: dict[str, int] = {}
    for path in listed.split(b"\0"):
        if not path or path.endswith((b".pyc", b".pyo")) or b"__pycache__/" in path:
            continue  # made anew by whoever runs the code
        first, slash, _ = path.partition(b"/")
        name = os.fsdecode(first + slash)
        places[name] = places.get(name, 0) + 1
    most = sorted(places.items(), key=lambda row: (-row[1], row[0]))[:5]
    return {"count": sum(places.values()), "places": [list(row) for row in most]}
