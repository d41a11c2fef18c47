"""Folders, files, lines and links of a host's setup. Joined into setup.py on its way to the host.

For each kind: `look` says what would change, `do` changes it and tells what was there before,
`undo` puts that back where nobody has changed it since.
"""

import base64
import grp
import hashlib
import os
import pwd
import re
import stat

MOST_DIFF = 60


class Wrong(Exception):
    """Not known, or not to be done: in words for people."""


def owner_ids(name):
    try:
        return pwd.getpwnam(name).pw_uid, pwd.getpwnam(name).pw_gid
    except KeyError:
        raise Wrong("no user %s" % name) from None


def ids_for(r, found):
    """Whose a thing is to be: as asked, as before, else as its folder. None without root."""
    if r.get("owner"):
        return owner_ids(r["owner"])
    if os.geteuid() != 0:
        return None
    found = found or os.stat(os.path.dirname(r["path"]))
    return found.st_uid, found.st_gid


def owner_name(found):
    try:
        return pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        return str(found.st_uid)


def marks(r, found):
    """Words on mode and owner that are not as wanted."""
    out = []
    if stat.S_IMODE(found.st_mode) != int(r["mode"], 8):
        out.append("mode of %s: %04o -> %s" % (r["path"], stat.S_IMODE(found.st_mode), r["mode"]))
    if r.get("owner") and owner_name(found) != r["owner"]:
        out.append("owner of %s: %s -> %s" % (r["path"], owner_name(found), r["owner"]))
    return out


def lstat(path):
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_whole(path, data, mode, ids=None):
    """By a rename; until then only the owner can read it."""
    temp = "%s/.ddops-%d.tmp" % (os.path.dirname(path), os.getpid())
    try:
        with open(temp, "wb") as f:
            os.fchmod(f.fileno(), 0o600)
            f.write(data)
            if ids:
                os.fchown(f.fileno(), *ids)
            os.fchmod(f.fileno(), mode)
            f.flush()
            os.fsync(f.fileno())
        os.rename(temp, path)
    finally:
        if os.path.lexists(temp):
            os.unlink(temp)


def changed_lines(path, old, new):
    import difflib  # here: most looks find nothing to show

    was = (old or b"").decode("utf-8", "replace").splitlines()
    now = new.decode("utf-8", "replace").splitlines()
    shown = list(difflib.unified_diff(was, now, path, path, lineterm=""))
    return shown[:MOST_DIFF] or ["write %s" % path]


def look_dir(r):
    found = lstat(r["path"])
    if found is None:
        return "create", ["make %s (mode %s)" % (r["path"], r["mode"])]
    if not stat.S_ISDIR(found.st_mode):
        raise Wrong("%s is in the way: not a folder" % r["path"])
    lines = marks(r, found)
    return ("update", lines) if lines else ("none", [])


def do_dir(r):
    path, found = r["path"], lstat(r["path"])
    made = []
    if found is None:
        above = os.path.dirname(path)
        while not os.path.isdir(above):
            made.append(above)
            above = os.path.dirname(above)
        for folder in reversed(made):
            os.mkdir(folder, 0o755)
            if os.geteuid() == 0:
                over = os.stat(os.path.dirname(folder))
                os.chown(folder, over.st_uid, over.st_gid)
        os.mkdir(path, 0o700)
    before = None if found is None else {"mode": stat.S_IMODE(found.st_mode), "uid": found.st_uid,
                                         "gid": found.st_gid}  # fmt: skip
    ids = ids_for(r, found)
    if ids:
        os.chown(path, *ids)
    os.chmod(path, int(r["mode"], 8))
    return {"was": before, "above": made}


def undo_dir(r, before):
    path = r["path"]
    if before["was"] is not None:
        os.chmod(path, before["was"]["mode"])
        if os.geteuid() == 0:
            os.chown(path, before["was"]["uid"], before["was"]["gid"])
        return None
    for folder in [path, *before["above"]]:
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return "%s is not empty: left" % folder
    return None


def wanted(r):
    return base64.b64decode(r["content"])


def look_file(r):
    found = lstat(r["path"])
    if found is None:
        return "create", changed_lines(r["path"], None, wanted(r))
    if not stat.S_ISREG(found.st_mode):
        raise Wrong("%s is in the way: not a file" % r["path"])
    have = read(r["path"])
    lines = [] if have == wanted(r) else changed_lines(r["path"], have, wanted(r))
    lines += marks(r, found)
    return ("update", lines) if lines else ("none", [])


def do_file(r):
    found, have = lstat(r["path"]), read(r["path"])
    write_whole(r["path"], wanted(r), int(r["mode"], 8), ids_for(r, found))
    if have is None:
        return None
    return {"data": base64.b64encode(have).decode(), "mode": stat.S_IMODE(found.st_mode),
            "ids": [found.st_uid, found.st_gid]}  # fmt: skip


def undo_file(r, before):
    have = read(r["path"])
    if have is None:
        return None if before is None else "%s has been removed since: left" % r["path"]
    if hashlib.sha256(have).hexdigest() != r["sha256"]:
        return "%s has been changed since: left" % r["path"]
    if before is None:
        os.unlink(r["path"])
        return None
    ids = before["ids"] if os.geteuid() == 0 else None
    write_whole(r["path"], base64.b64decode(before["data"]), before["mode"], ids)
    return None


def with_line(r, text):
    """The file's text with the line in it, and which line it took the place of."""
    lines = text.splitlines()
    if r.get("match"):
        for number, line in enumerate(lines):
            if re.search(r["match"], line):
                lines[number] = r["line"]
                return "\n".join(lines) + "\n", (line if line != r["line"] else None)
    elif r["line"] in lines:
        return text, None
    return "\n".join([*lines, r["line"]]) + "\n", None


def look_line(r):
    have = read(r["path"])
    text = (have or b"").decode("utf-8", "surrogateescape")
    new, _ = with_line(r, text)
    if have is not None and new == (text if text.endswith("\n") or not text else text + "\n"):
        return "none", []
    raw = new.encode("utf-8", "surrogateescape")
    return ("create" if have is None else "update"), changed_lines(r["path"], have, raw)


def do_line(r):
    have, found = read(r["path"]), lstat(r["path"])
    new, took = with_line(r, (have or b"").decode("utf-8", "surrogateescape"))
    mode = stat.S_IMODE(found.st_mode) if found else 0o644
    ids = ids_for(r, found)
    write_whole(r["path"], new.encode("utf-8", "surrogateescape"), mode, ids)
    return {"there": have is not None, "took": took}


def undo_line(r, before):
    have, found = read(r["path"]), lstat(r["path"])
    lines = (have or b"").decode("utf-8", "surrogateescape").splitlines()
    if r["line"] not in lines:
        return "the line of %s has been changed since: left" % r["path"]
    at = lines.index(r["line"])
    lines[at : at + 1] = [before["took"]] if before["took"] is not None else []
    if not lines and not before["there"]:
        os.unlink(r["path"])
        return None
    text = "".join(line + "\n" for line in lines)
    ids = (found.st_uid, found.st_gid) if os.geteuid() == 0 else None
    raw = text.encode("utf-8", "surrogateescape")
    write_whole(r["path"], raw, stat.S_IMODE(found.st_mode), ids)
    return None


def look_link(r):
    found = lstat(r["path"])
    if found is None:
        return "create", ["link %s -> %s" % (r["path"], r["target"])]
    if not stat.S_ISLNK(found.st_mode):
        raise Wrong("%s is in the way: not a link" % r["path"])
    have = os.readlink(r["path"])
    if have == r["target"]:
        return "none", []
    return "update", ["link %s: %s -> %s" % (r["path"], have, r["target"])]


def do_link(r):
    found = lstat(r["path"])
    before = os.readlink(r["path"]) if found else None
    put_link(r["target"], r["path"])
    return {"target": before}


def put_link(target, path):
    temp = "%s/.ddops-%d.tmp" % (os.path.dirname(path), os.getpid())
    if os.path.lexists(temp):
        os.unlink(temp)
    os.symlink(target, temp)
    os.rename(temp, path)


def undo_link(r, before):
    found = lstat(r["path"])
    if found is None or not stat.S_ISLNK(found.st_mode) or os.readlink(r["path"]) != r["target"]:
        return "%s has been changed since: left" % r["path"]
    if before["target"] is None:
        os.unlink(r["path"])
    else:
        put_link(before["target"], r["path"])
    return None


def group_names(user):
    return {g.gr_name for g in grp.getgrall() if user in g.gr_mem}
