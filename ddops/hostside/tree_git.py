"""The managed tree's own repository, and a series tried on it without touching a file.

Joined into tree.py on its way to the host.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile

BRANCH = "ddops"
SETTINGS = (
    "user.name=ddops", "user.email=ddops@localhost", "core.hooksPath=/dev/null",
    "commit.gpgSign=false", "core.autocrlf=false", "safe.directory=*", "gc.auto=0",
    "advice.detachedHead=false", "core.quotePath=false", "apply.whitespace=nowarn",
)  # fmt: skip


class Refused(Exception):
    """An answer other than `ok`."""

    def __init__(self, state, **more):
        super().__init__(state)
        self.answer = {"state": state, **more}


class Repo:
    """git in the tree itself, with our settings alone."""

    def __init__(self, tree):
        self.tree = tree
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        self.env.update(LC_ALL="C", GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull,
                        GIT_TERMINAL_PROMPT="0")  # fmt: skip

    def attempt(self, *words, stdin=b"", env=None, cwd=None):
        settings = [w for s in SETTINGS for w in ("-c", s)]
        return subprocess.run(
            ["git", "-C", cwd or self.tree, *settings, *words],
            input=stdin,
            capture_output=True,
            check=False,
            env={**self.env, **(env or {})},
        )

    def out(self, *words, stdin=b"", env=None, cwd=None):
        done = self.attempt(*words, stdin=stdin, env=env, cwd=cwd)
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()[-1200:]
            raise Refused("git", command=" ".join(words[:2]), rc=done.returncode, why=said)
        return done.stdout

    def text(self, *words, **more):
        return self.out(*words, **more).decode("utf-8", "surrogateescape").strip()

    @property
    def git_dir(self):
        return os.path.join(self.tree, ".git")

    def pin(self):
        """What the tree was made from; an error where ddops has not made it."""
        try:
            with open(os.path.join(self.git_dir, "ddops.json"), encoding="utf-8") as f:
                return json.load(f)
        except (OSError, ValueError):
            raise Refused("unmanaged", why=self.tree) from None

    def head(self):
        return self.text("rev-parse", "HEAD")


def write_json(path, value):
    temp = path + ".partial"
    with open(temp, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temp, path)


class Trial:
    """A series tried on a commit in an index of its own, which changes nothing.

    The objects it makes are in the repository with `keep`, and else gone with the trial.
    """

    def __init__(self, repo, prefix, start, keep=False):
        self.repo, self.prefix, self.commit = repo, prefix, start
        self.folder = tempfile.mkdtemp(prefix="ddops-trial-")
        self.env = {"GIT_INDEX_FILE": os.path.join(self.folder, "index")}
        if not keep:
            self.env["GIT_OBJECT_DIRECTORY"] = os.path.join(self.folder, "objects")
            self.env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = os.path.join(repo.git_dir, "objects")
            os.mkdir(self.env["GIT_OBJECT_DIRECTORY"])
        repo.out("read-tree", start, env=self.env)

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def tree(self):
        return self.repo.text("write-tree", env=self.env)

    def fits(self, patch, *words):
        return self._apply(patch, "--check", *words).returncode == 0

    def take(self, patch, *words):
        """Apply to the index; whether that went. `--3way` may have left a conflict: undone."""
        before = self.tree()
        done = self._apply(patch, *words)
        if done.returncode == 0 and not self.repo.out("ls-files", "-u", env=self.env):
            return True
        self.repo.out("read-tree", "--reset", before, env=self.env)
        return False

    def record(self, message, author):
        """A commit of the index behind the last one."""
        env = {**self.env, **author}
        words = ("commit-tree", self.tree(), "-p", self.commit)
        self.commit = self.repo.text(*words, stdin=message.encode("utf-8", "surrogateescape"),
                                     env=env)  # fmt: skip

    def _apply(self, patch, *words):
        more = ["--directory=" + self.prefix.rstrip("/")] if self.prefix else []
        return self.repo.attempt("apply", "--cached", *more, *words, "-", stdin=patch,
                                 env=self.env)  # fmt: skip

    def hunks(self, patch, *words):
        """Which hunks do not fit: each file of the patch, tried in a folder of its own."""
        out = []
        with tempfile.TemporaryDirectory(prefix="ddops-hunks-") as folder:
            for path in touched(patch):
                full = os.path.join(folder, self.prefix, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                found = self.repo.attempt(
                    "cat-file", "blob", ":" + self.prefix + path, env=self.env
                )
                if found.returncode == 0:
                    with open(full, "wb") as f:
                        f.write(found.stdout)
            more = ["--directory=" + self.prefix.rstrip("/")] if self.prefix else []
            env = {"GIT_CEILING_DIRECTORIES": os.path.dirname(folder)}
            done = self.repo.attempt("apply", "--reject", "--verbose", *more, *words, "-",
                                     stdin=patch, cwd=folder, env=env)  # fmt: skip
            said = done.stderr.decode("utf-8", "replace")
        name, ranges = "", hunk_ranges(patch)
        for line in said.splitlines():
            started = re.match(r"Applying patch (.+) with (\d+) rejects?\.\.\.", line)
            absent = re.match(r"error: (.+): (No such file or directory|already exists.*)", line)
            rejected = re.match(r"Rejected hunk #(\d+)\.", line)
            if started:
                name = started.group(1)
            elif absent:
                out.append({"file": absent.group(1), "hunk": 0, "why": absent.group(2)})
            elif rejected:
                number = int(rejected.group(1))
                lines = ranges.get(name[len(self.prefix) :], [])
                where = lines[number - 1] if number <= len(lines) else ""
                out.append({"file": name, "hunk": number, "why": "its lines are not there",
                            "range": where})  # fmt: skip
        return out or [{"file": "", "hunk": 0, "why": said.strip()[-400:]}]


def touched(patch):
    """Paths a patch speaks of, old and new, without `a/` and `b/`."""
    found = re.findall(rb"^(?:---|\+\+\+) [ab]/([^\t\r\n]+)", patch, re.MULTILINE)
    return sorted({os.fsdecode(p) for p in found})


def hunk_ranges(patch):
    """The `@@` lines of each file, in order."""
    out: dict[str, list[str]] = {}
    name = ""
    for line in patch.split(b"\n"):
        if line.startswith(b"+++ b/"):
            name = os.fsdecode(line[6:].split(b"\t")[0])
        elif line.startswith(b"@@ "):
            out.setdefault(name, []).append(line.split(b"@@")[1].strip().decode("ascii", "replace"))
    return out


def mail(repo, patch):
    """Message and author of a format-patch file."""
    with tempfile.TemporaryDirectory(prefix="ddops-mail-") as folder:
        body, diff = os.path.join(folder, "m"), os.path.join(folder, "d")
        info = repo.text("mailinfo", "-b", body, diff, stdin=patch)
        with open(body, encoding="utf-8", errors="surrogateescape") as f:
            rest = f.read()
    fields = dict(line.split(": ", 1) for line in info.splitlines() if ": " in line)
    author = {}
    for key, name in (("Author", "GIT_AUTHOR_NAME"), ("Email", "GIT_AUTHOR_EMAIL"),
                      ("Date", "GIT_AUTHOR_DATE")):  # fmt: skip
        if fields.get(key):
            author[name] = fields[key]
    message = fields.get("Subject", "a patch") + "\n\n" + rest.strip() + "\n"
    return message, author


def decoded(patches):
    return [(p["name"], base64.b64decode(p["data"])) for p in patches]


def applied(repo, prefix, patches, start):
    """Which of a series are in a commit: taken out again from the last to the first."""
    trial = Trial(repo, prefix, start)
    try:
        found = []
        for name, patch in reversed(patches):
            if trial.fits(patch, "-R") and trial.take(patch, "-R"):
                found.append(name)
        return found[::-1], trial.tree()
    finally:
        trial.close()


def forget_partial(path):
    shutil.rmtree(path, ignore_errors=True)
