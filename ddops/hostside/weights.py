#!/usr/bin/env python3
"""Brings weights to this host: whole, against their checksums, and on from where it was cut short.

    weights.py < SPEC

SPEC holds `verb` and `path`, the folder of the weights, and `want`, what names their content.
`have`: how much of each file of `files` lies here. `finish`: all of them are here; check them and
put the folder in its place. `rsync` and `hub` fetch from `source`, then finish. Files are gathered
in `<path>.partial`; `<path>.weights.json` is written last and says what lies in `path`. It prints
JSON.
"""

import glob
import hashlib
import http.client
import json
import os
import shutil
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

SCHEMA = "ddops.weights/1"
CHUNK = 1 << 20
#: A connection that broke is taken up again this often in a row without a byte between.
TRIES = 5
TIMEOUT_S = 60


class Refused(Exception):
    """In words for people. `more` goes into the answer."""

    def __init__(self, why, **more):
        super().__init__(why)
        self.more = more


def main():
    spec = json.load(sys.stdin)
    verbs = {"have": have, "finish": finish, "rsync": rsync, "hub": hub}
    try:
        answer = {"state": "ok", **verbs[spec["verb"]](spec)}
    except Refused as refused:
        answer = {"state": "refused", "why": str(refused), **refused.more}
    except OSError as error:
        answer = {"state": "refused", "why": "%s: %s" % (error.filename or "", error.strerror)}
    json.dump({"schema": SCHEMA, **answer}, sys.stdout)
    return 0


def have(spec):
    """Bytes of each wanted file in the partial folder; what `path` has already is linked there."""
    partial = spec["path"] + ".partial"
    os.makedirs(partial, exist_ok=True)
    out = {}
    for name, want in spec["files"].items():
        place = inside(partial, name)
        if not os.path.exists(place):
            reuse(os.path.join(spec["path"], name), place, want)
        size = os.path.getsize(place) if os.path.exists(place) else 0
        if size > want["size"]:
            os.unlink(place)
            size = 0
        out[name] = size
    return {"have": out}


def inside(folder, name):
    """A file's place; its folder is made. Names that lead outside are refused."""
    if name.startswith("/") or ".." in name.split("/") or not name:
        raise Refused("a name leads outside: %r" % name)
    place = os.path.join(folder, name)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    return place


def reuse(old, place, want):
    """The same file of the folder that is to be replaced costs no transfer."""
    if not os.path.isfile(old) or os.path.islink(old) or os.path.getsize(old) != want["size"]:
        return
    if wrong(old, want) is None:
        os.link(old, place)


def wrong(path, want):
    """What is not as wanted of a whole file, or None."""
    if os.path.getsize(path) != want["size"]:
        return "has %d of %d bytes" % (os.path.getsize(path), want["size"])
    if want.get("sha256"):
        return None if digest(path, hashlib.sha256()) == want["sha256"] else "sha256 differs"
    if want.get("blob"):
        begin = hashlib.sha1(b"blob %d\0" % want["size"])  # noqa: S324 - git's own
        return None if digest(path, begin) == want["blob"] else "its git object id differs"
    return "has no checksum to be held against"


def digest(path, found):
    with open(path, "rb") as f:
        for chunk in iter(lambda: f.read(CHUNK), b""):
            found.update(chunk)
    return found.hexdigest()


def finish(spec):
    """Check every file, then put the folder in its place; a wrong file is removed and named."""
    partial = spec["path"] + ".partial"
    bad = []
    for name, want in spec["files"].items():
        place = inside(partial, name)
        if not os.path.isfile(place):
            bad.append("%s is missing" % name)
            continue
        fault = wrong(place, want)
        if fault:
            bad.append("%s: %s" % (name, fault))
            if os.path.getsize(place) >= want["size"]:
                os.unlink(place)
    if bad:
        raise Refused("; ".join(bad[:8]), bad=len(bad))
    for name in names(partial):
        if name not in spec["files"]:
            os.unlink(os.path.join(partial, name))
    return placed(spec, partial)


def names(folder):
    for base, _, files in os.walk(folder):
        for name in files:
            yield os.path.relpath(os.path.join(base, name), folder)


def placed(spec, partial):
    path = spec["path"]
    record = path + ".weights.json"
    files = {}
    for name in sorted(names(partial)):
        found = os.stat(os.path.join(partial, name))
        files[name] = [found.st_size, found.st_mtime_ns]
    # In this order: a kill leaves no record beside a folder that it does not speak of.
    if os.path.exists(record):
        os.unlink(record)
    if os.path.lexists(path):
        old = "%s.old-%d" % (path, time.time())
        os.rename(path, old)
        os.rename(partial, path)
    else:
        os.rename(partial, path)
    for left in glob.glob(glob.escape(path) + ".old-*"):  # of a run that was killed, too
        shutil.rmtree(left)
    temp = record + ".partial"
    with open(temp, "w", encoding="utf-8") as f:
        json.dump({"schema": SCHEMA, "want": spec["want"], "files": files}, f, indent=1)
        f.flush()
        os.fsync(f.fileno())
    os.rename(temp, record)
    return {"files": len(files), "bytes": sum(size for size, _ in files.values())}


def rsync(spec):
    """Pull with rsync; the content must come to the digest that the service pins."""
    partial = spec["path"] + ".partial"
    os.makedirs(partial, exist_ok=True)
    words = ["rsync", "-rt", "--partial", "--delete", "--chmod=D755,F644", "-e",
             "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes", spec["source"].rstrip("/") + "/",
             partial + "/"]  # fmt: skip
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError:
        raise Refused("rsync is not installed here") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-600:]
        raise Refused("rsync ended with %d: %s" % (done.returncode, said))
    found = "sha256:" + tree_digest(partial)
    if found != spec["want"]:
        raise Refused("what arrived is %s" % found, found=found)
    return placed(spec, partial)


def tree_digest(root):
    """The digest that ddops/transport/treehash.py gives the same folder of plain files."""
    total = hashlib.sha256()
    for name in sorted(names(root), key=os.fsencode):
        full = os.path.join(root, name)
        bits = os.lstat(full).st_mode
        if not stat.S_ISREG(bits):
            raise Refused("%s is no plain file" % name)
        kind = "x" if bits & 0o100 else "-"
        inner = digest(full, hashlib.sha256())
        total.update(os.fsencode("%s\0%s\0%s\n" % (name, kind, inner)))
    return total.hexdigest()


def hub(spec):
    """Every file of a repository at a commit, against the checksums that the hub names."""
    base, repo, commit = spec["endpoint"].rstrip("/"), spec["source"], spec["commit"]
    quoted = "%s/%s" % (urllib.parse.quote(repo), commit)
    url = "%s/api/models/%s/revision/%s?blobs=true" % (base, urllib.parse.quote(repo), commit)
    told = json.loads(get(url).read())
    if told.get("sha") != commit:
        raise Refused("the hub says that %s is commit %s" % (repo, told.get("sha")))
    files = {}
    for row in told["siblings"]:
        lfs = row.get("lfs") or {}
        files[row["rfilename"]] = {
            "size": lfs.get("size", row.get("size")), "sha256": lfs.get("sha256"),
            "blob": row.get("blobId"),
        }  # fmt: skip
    told = {**spec, "files": files}
    for name, at in have(told)["have"].items():
        place = inside(spec["path"] + ".partial", name)
        where = "%s/%s/resolve/%s" % (base, quoted.rsplit("/", 1)[0], commit)
        fetch("%s/%s" % (where, urllib.parse.quote(name)), place, at, files[name]["size"])
    return finish(told)


def fetch(url, place, at, size):
    """A file's rest from byte `at` on; a broken connection is taken up where it broke."""
    fails = 0
    if at == 0:
        open(place, "wb").close()
    while at < size:
        began = at
        try:
            at = more(url, place, at)
            fault = "the answer ended at byte %d of %d" % (at, size)
        except (OSError, http.client.HTTPException) as error:
            at = os.path.getsize(place)
            fault = str(error) or type(error).__name__
        fails = 0 if at > began else fails + 1
        if fails >= TRIES:
            raise Refused("%s: %s" % (os.path.basename(place), fault))
        if at < size:
            time.sleep(min(2.0, 0.2 * (fails + 1)))
    if at > size:
        os.unlink(place)
        raise Refused("%s is longer than %d bytes" % (os.path.basename(place), size))


def more(url, place, at):
    """One answer's bytes behind those that are there; how many there are then."""
    answer = get(url, {"Range": "bytes=%d-" % at} if at else {})
    # A server that knows no ranges sends it from the beginning.
    mode = "ab" if at and answer.status == 206 else "wb"
    with open(place, mode) as f:
        for chunk in iter(lambda: answer.read(CHUNK), b""):
            f.write(chunk)
        return f.tell()


def get(url, headers=None):
    if not url.startswith(("https://", "http://127.0.0.1", "http://localhost")):
        raise Refused("weights come over https: %s" % url)
    request = urllib.request.Request(url, headers={"User-Agent": "ddops", **(headers or {})})  # noqa: S310
    token = os.environ.get("HF_TOKEN") or read_token()
    if token:
        # Not sent on to where the hub redirects to.
        request.add_unredirected_header("Authorization", "Bearer " + token)
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310 - judged above
    except urllib.error.HTTPError as error:
        if error.code in (408, 429, 500, 502, 503, 504):
            raise OSError(error.code, "the hub answered %d" % error.code) from error
        raise Refused("the hub answered %d for %s" % (error.code, url)) from error


def read_token():
    """The host's own login to the hub; ddops carries none there."""
    try:
        path = os.path.expanduser("~/.cache/huggingface/token")
        with open(path, encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
