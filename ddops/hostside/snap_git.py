"""git in a folder of our own, on a host. Joined into the scripts that need it.

No configuration counts but the one written here, and no file of the tree is ever written. The
folder's `info/attributes` turns every conversion off, so a blob is the file's very bytes.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import time

SCHEMA = "ddops.snap/1"
CONFIG = """[core]
\trepositoryformatversion = 0
\tbare = false
\tfilemode = true
\tsymlinks = true
\tignorecase = false
\tautocrlf = false
\tprotectNTFS = false
\tprotectHFS = false
\tlogAllRefUpdates = false
\tlooseCompression = 0
\tquotePath = false
[gc]
\tauto = 0
[pack]
\tcompression = 1
\twindow = 0
"""
ATTRIBUTES = b"* -text -ident -filter !eol !working-tree-encoding\n"
#: Made anew by whoever runs the code, and different on each machine.
EXCLUDE = (b"__pycache__/", b"*.py[co]", b".pytest_cache/", b".mypy_cache/", b".ruff_cache/")
SEED = b".ddops-seed"
EMPTY_BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
IDENTITY = {"NAME": "ddops", "EMAIL": "ddops@localhost"}


class Stop(Exception):
    """An answer other than `ok`."""

    def __init__(self, state, **more):
        super().__init__(state)
        self.answer = {"schema": SCHEMA, "state": state, **more}


def sha256(path):
    total = hashlib.sha256()
    with open(path, "rb") as f:
        for chunk in iter(lambda: f.read(1 << 20), b""):
            total.update(chunk)
    return total.hexdigest()


class Allow:
    """Patterns of paths: `*` does not cross a `/`, `**` does; a plain name is that path."""

    def __init__(self, patterns):
        self.rules = [re.compile(self.regex(p), re.DOTALL) for p in patterns]

    @staticmethod
    def regex(pattern):
        parts = re.split(r"(\*\*|\*|\?)", pattern)
        known = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
        return "".join(known.get(p, re.escape(p)) for p in parts) + r"\Z"

    def __call__(self, path):
        return any(r.match(path) for r in self.rules)


class Lock:
    """One snapshot of a tree at a time on this host; freed by the kernel when we die."""

    def __init__(self, path, wait):
        self.path, self.wait = path, wait

    def __enter__(self):
        self.file = open(self.path, "w")
        deadline = time.monotonic() + self.wait
        while True:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except OSError:
                if time.monotonic() > deadline:
                    raise Stop("busy", why="another snapshot of this tree is at work") from None
                time.sleep(0.05)

    def __exit__(self, *_):
        self.file.close()


class Git:
    """git over our own folder, with no configuration but the one we wrote."""

    def __init__(self, git_dir, tree):
        self.dir, self.tree = git_dir, tree
        self.real = os.path.realpath(tree)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        self.env.update(LC_ALL="C", GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull,
                        GIT_OPTIONAL_LOCKS="0", GIT_TERMINAL_PROMPT="0")  # fmt: skip
        self.ours = {**self.env, "GIT_DIR": git_dir, "GIT_WORK_TREE": tree}

    def path(self, name):
        return os.path.join(self.tree, name)

    def size(self, name):
        """Bytes of a regular file of the tree; 0 for anything else."""
        try:
            found = os.lstat(self.path(os.fsencode(name)))
        except OSError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def ensure(self):
        if os.path.exists(os.path.join(self.dir, "config")):
            return
        if shutil.which("git") is None:
            raise Stop("no-git", why="git is not installed on this host")
        fresh = "%s.%d" % (self.dir, os.getpid())
        shutil.rmtree(fresh, ignore_errors=True)
        os.makedirs(fresh)
        run(["git", "init", "-q", "--bare", "--template=", fresh], self.env)
        for name, text in (("config", CONFIG.encode()), ("info/attributes", ATTRIBUTES)):
            os.makedirs(os.path.dirname(os.path.join(fresh, name)), exist_ok=True)
            write(os.path.join(fresh, name), text)
        try:
            os.rename(fresh, self.dir)
        except OSError:  # another run made it in the meantime
            shutil.rmtree(fresh, ignore_errors=True)
            if not os.path.exists(os.path.join(self.dir, "config")):
                raise

    def sweep(self):
        """What a killed run left: we hold the lock, so nobody is using these."""
        for name in ("index.lock", "HEAD.lock"):
            if os.path.lexists(os.path.join(self.dir, name)):
                os.unlink(os.path.join(self.dir, name))
        folder = os.path.join(self.dir, "objects", "pack")
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith("tmp_"):
                os.unlink(os.path.join(folder, name))

    def load(self):
        blank: dict[str, object] = {
            "last": None, "cleared": None, "nested": [], "large": [], "sums": {}, "index": None,
            "forced": [], "allowed": {}, "ignored": None,
        }  # fmt: skip
        try:
            with open(os.path.join(self.dir, "ddops.json"), encoding="utf-8") as f:
                return {**blank, **json.load(f)}
        except (OSError, ValueError):
            return blank

    def save(self, state):
        write(os.path.join(self.dir, "ddops.json"), json.dumps(state).encode())

    def write_excludes(self, large):
        lines = [*EXCLUDE]
        inside = os.path.relpath(os.fsencode(self.dir), self.tree)
        if not inside.startswith(b".."):
            lines.append(pattern(inside.split(b"/")[0]) + b"/")
        lines += [pattern(os.fsencode(p)) for p in large if "\n" not in p]
        text = b"\n".join(lines) + b"\n"
        path = os.path.join(self.dir, "info", "exclude")
        try:
            with open(path, "rb") as f:
                if f.read() == text:
                    return
        except OSError:
            pass  # not there yet
        write(path, text)

    def changed(self):
        """Paths that are not as the index says, or not in it; nested repositories end in `/`."""
        words = ["ls-files", "-z", "-o", "-m", "--exclude-standard"]
        own = os.path.join(self.tree, b".git", b"info", b"exclude")
        if os.path.exists(own):
            words = ["-c", "core.excludesFile=" + os.fsdecode(own), *words]
        return {p for p in self.out(*words).split(b"\0") if p}

    def tracks(self, path):
        words = ("--literal-pathspecs", "ls-files", "-z", "--", os.fsdecode(path))
        return bool(self.out(*words))

    def update(self, files):
        """Entries that are gone first: a file may have become a folder, or a folder a link."""
        real: dict[bytes, bool] = {}
        here: list[bytes] = []
        gone: list[bytes] = []
        for path in files:
            folder = os.path.dirname(path)
            if folder not in real:
                full = self.path(folder)
                real[folder] = os.path.realpath(full) == os.path.join(self.real, folder).rstrip(
                    b"/"
                )
            there = real[folder] and os.path.lexists(self.path(path))
            if there and os.path.isdir(self.path(path)) and not os.path.islink(self.path(path)):
                there = False
            (here if there else gone).append(path)
        if gone:
            self.forget(gone)
        if here:
            words = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
            self.out(*words, stdin=b"\0".join(here) + b"\0")

    def index_sum(self):
        """The checksum at the index file's end; it changes with anything in it."""
        try:
            with open(os.path.join(self.dir, "index"), "rb") as f:
                f.seek(-20, os.SEEK_END)
                return f.read().hex()
        except OSError:
            return None

    def forget(self, files):
        self.out("update-index", "-z", "--force-remove", "--stdin", stdin=b"\0".join(files) + b"\0")

    def seed(self, folders):
        """An entry below a nested repository makes git look at its files, not at its commit."""
        if folders:
            lines = [b"100644 " + EMPTY_BLOB.encode() + b"\t" + f + SEED for f in folders]
            stdin = b"\0".join(lines) + b"\0"
            self.out("update-index", "-z", "--replace", "--index-info", stdin=stdin)

    def has(self, name):
        done = subprocess.run(["git", "cat-file", "-e", name], env=self.ours, check=False,
                              stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
        return done.returncode == 0

    def commit(self, tree, at):
        env = {**self.ours}
        for who in ("AUTHOR", "COMMITTER"):
            env["GIT_%s_DATE" % who] = "@%d +0000" % at
            env.update({"GIT_%s_%s" % (who, k): v for k, v in IDENTITY.items()})
        # No reference: gc is off here, and what was sent is kept elsewhere.
        return run(["git", "commit-tree", tree], env, b"ddops snapshot\n").decode().strip()

    def theirs(self, *words, below=b""):
        """Asks the tree's own repository; nothing when it cannot tell."""
        argv = ["git", "-C", os.path.join(self.tree, below), "-c", "safe.directory=*", *words]
        done = subprocess.run(argv, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
                              check=False)  # fmt: skip
        return done.stdout if done.returncode == 0 else b""

    def out(self, *words, stdin=None):
        return run(["git", *words], self.ours, stdin)


def pattern(path):
    """A path as a line of an exclude file that means this path alone."""
    return b"/" + re.sub(rb"([\\*?\[\] !#])", rb"\\\1", path)


def run(argv, env, stdin=None):
    done = subprocess.run(argv, env=env, input=stdin if stdin is not None else b"",
                          capture_output=True, check=False)  # fmt: skip
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip()[-1500:]
        raise Stop("git", command=" ".join(map(str, argv[:3])), rc=done.returncode, why=words)
    return done.stdout


def write(path, data):
    temp = "%s.%d.partial" % (path, os.getpid())
    with open(temp, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temp, path)
