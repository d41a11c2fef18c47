"""A host's setup: looked at, done, and undone. Joined into setup.py on its way to the host.

What was there before a change is written to `<state>/setup.jsonl` first, so that a change can be
undone, also one that was cut short.
"""

import base64
import hashlib
import json
import os
import time

from ddops.hostside.setup_files import (
    Wrong,
    do_dir,
    do_file,
    do_line,
    do_link,
    look_dir,
    look_file,
    look_line,
    look_link,
    read,
    undo_dir,
    undo_file,
    undo_line,
    undo_link,
)
from ddops.hostside.setup_system import (
    do_module,
    do_package,
    do_sysctl,
    do_unit,
    do_user,
    filled,
    listed,
    look_advice,
    look_module,
    look_package,
    look_require,
    look_sysctl,
    look_unit,
    look_user,
    undo_module,
    undo_package,
    undo_sysctl,
    undo_unit,
    undo_user,
)


def never(*_):
    """For kinds that are looked at alone."""
    raise Wrong("only people can bring this")


KINDS = {
    "require": (look_require, never, never),
    "package": (look_package, do_package, undo_package),
    "user": (look_user, do_user, undo_user),
    "dir": (look_dir, do_dir, undo_dir),
    "file": (look_file, do_file, undo_file),
    "line": (look_line, do_line, undo_line),
    "link": (look_link, do_link, undo_link),
    "sysctl": (look_sysctl, do_sysctl, undo_sysctl),
    "module": (look_module, do_module, undo_module),
    "unit": (look_unit, do_unit, undo_unit),
    "advice": (look_advice, never, never),
}
#: Kinds that only root can do; for the others it depends on where they lie.
ROOTS = ("package", "user", "sysctl", "module", "unit")


def looked(resources):
    """Change and lines of each resource by its id; what is not known is `unknown`."""
    known = None
    rows = {}
    for r in resources:
        try:
            if r["kind"] == "package":
                if known is None:
                    known = all_installed(resources)
                change, lines = look_package(r, known)
            else:
                change, lines = KINDS[r["kind"]][0](r)
        except Wrong as wrong:
            change, lines = "unknown", [str(wrong)]
        except OSError as error:
            change, lines = "unknown", ["%s: %s" % (error.filename, error.strerror)]
        rows[r["id"]] = [change, lines]
    return rows


def all_installed(resources):
    names = []
    for r in resources:
        if r["kind"] == "package":
            try:
                names.append(filled(r["name"]))
            except Wrong:
                continue  # said when the package itself is looked at
    return listed(names) if names else {}


def needs_root(resources):
    """The first resource that this login cannot do."""
    if os.geteuid() == 0:
        return None
    for r in resources:
        if r["kind"] in ROOTS or r.get("owner"):
            return r["id"]
        place = os.path.dirname(r["path"])
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        own = os.path.lexists(r["path"]) and os.lstat(r["path"]).st_uid != os.geteuid()
        if own or not os.access(place, os.W_OK):
            return r["id"]
    return None


def do(spec):
    """Everything that is pending, in order; it stops at the first that cannot be done."""
    pending = [r for r in spec["resources"] if looked([r])[r["id"]][0] not in ("none",)]
    root = needs_root(pending)
    if root:
        return {"state": "root", "id": root}
    done: list[str] = []
    for r in pending:
        row = {"op": spec["op"], "id": r["id"], "resource": without_text(r)}
        try:
            change, _ = KINDS[r["kind"]][0](r)
            if change == "none":
                continue  # came with one before it
            write_row(spec["state"], {**row, "state": "begin", "before": before(r)})
            told = KINDS[r["kind"]][1](r)
            write_row(spec["state"], {**row, "state": "done", "before": told})
        except (Wrong, OSError) as error:
            return {"state": "failed", "id": r["id"], "why": str(error), "done": done}
        done.append(r["id"])
    return {"state": "ok", "done": done}


def before(r):
    """What a kill in the middle leaves known: only for those kinds that change a file whole."""
    if r["kind"] != "file":
        return None
    have = read(r["path"])
    if have is None:
        return None
    found = os.lstat(r["path"])
    return {"data": base64.b64encode(have).decode(), "mode": found.st_mode & 0o7777,
            "ids": [found.st_uid, found.st_gid]}  # fmt: skip


def without_text(r):
    if "content" not in r:
        return r
    digest = hashlib.sha256(base64.b64decode(r["content"])).hexdigest()
    return {**{k: v for k, v in r.items() if k != "content"}, "sha256": digest}


def write_row(state, row):
    """To the disk before anything is changed; the file stays the login's own."""
    path = os.path.join(state, "setup.jsonl")
    fresh = not os.path.exists(path)
    with open(path, "a", encoding="utf-8") as f:
        if fresh:
            found = os.stat(state)
            os.fchmod(f.fileno(), 0o600)
            if os.geteuid() == 0:
                os.fchown(f.fileno(), found.st_uid, found.st_gid)
        f.write(json.dumps({"at": int(time.time()), **row}) + "\n")
        f.flush()
        os.fsync(f.fileno())


def standing(state):
    """What was changed and not undone: of each id the first state, in the order of the changes."""
    out: dict[str, dict] = {}  # type: ignore[type-arg]
    for line in (read(os.path.join(state, "setup.jsonl")) or b"").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the last line of a run that was killed
        if row["state"] == "undone":
            out.pop(row["id"], None)
        elif row["state"] == "done":
            first = out.get(row["id"])
            told = first["before"] if first and first["state"] == "done" else row["before"]
            out[row["id"]] = {**row, "before": told}
        elif row["id"] not in out and row["resource"]["kind"] == "file":
            out[row["id"]] = row
    return out


def manifest(spec):
    """What could be undone, the last change first."""
    rows = list(standing(spec["state"]).values())[::-1]
    return {"state": "ok", "rows": [{"id": r["id"], "at": r["at"], "op": r["op"]} for r in rows]}


def undo(spec):
    """Back to what was there, the last change first; what has changed since is left, and told."""
    rows = [r for r in list(standing(spec["state"]).values())[::-1] if r["id"] in spec["ids"]]
    root = needs_root([r["resource"] for r in rows])
    if root:
        return {"state": "root", "id": root}
    done: list[str] = []
    left: list[str] = []
    for row in rows:
        resource = row["resource"]
        try:
            said = KINDS[resource["kind"]][2](resource, row["before"])
        except (Wrong, OSError) as error:
            return {"state": "failed", "id": row["id"], "why": str(error), "done": done}
        if said:
            left.append(said)
        write_row(spec["state"], {"op": spec["op"], "id": row["id"], "resource": resource,
                                  "state": "undone", "before": None})  # fmt: skip
        done.append(row["id"])
    return {"state": "ok", "done": done, "left": left}
