"""restic, run here: its password through a pipe, its words read as errors of ours.

Debian's restic 0.14 ends with 1 for most errors; newer ones have numbers (10 no repository,
11 locked, 12 wrong password, 3 incomplete). Both are read: the text decides, the number helps.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ddops.command import Secret
from ddops.errors import CommandFailed, DdopsError, LockHeldError, RefusedError, UnreachableError
from ddops.gitio import clean_env

DEADLINE_S = 3600.0


class Trouble(Enum):
    """What restic's words mean."""

    PASSWORD = "wrong password"
    LOCKED = "locked"
    MISSING = "no repository"
    EXISTS = "exists already"
    FULL = "disk full"
    LINK = "link lost"
    DAMAGED = "damaged"
    INCOMPLETE = "incomplete"
    OTHER = "other"


#: The first that is found in restic's text decides, so the sharper ones come first.
_WORDS: tuple[tuple[Trouble, tuple[str, ...]], ...] = (
    (Trouble.PASSWORD, ("wrong password or no key found",)),
    (Trouble.FULL, ("no space left", "disk quota exceeded", "disk full", "sftp: \"failure\"",
                    "file too large")),
    (Trouble.LOCKED, ("already locked", "unable to create lock", "lock repository")),
    (Trouble.LINK, ("connection refused", "connection reset", "connection closed", "broken pipe",
                    "connection lost", "no route to host", "i/o timeout", "could not resolve",
                    "host key verification failed", "permission denied (publickey",
                    "unexpected eof", "unexpectedly closed", "ssh command exited",
                    "unable to start the sftp session", "connection timed out", ": eof")),
    (Trouble.EXISTS, ("config file already exists",)),
    (Trouble.DAMAGED, ("hash does not match", "does not match", "ciphertext verification failed",
                       "repository contains errors", "is damaged", "pack id", "invalid data",
                       "not found in index", "load(<data/", "mac check", "unexpected number",
                       "loadtree", "loadblob", "tree could not be loaded", "size does not",
                       "error for tree", "pack size", "data seems to be missing")),
    (Trouble.MISSING, ("is there a repository at the following location", "unable to open config",
                       "does not exist")),
    (Trouble.INCOMPLETE, ("at least one source file could not be read",)),
)  # fmt: skip
_NUMBERS = {3: Trouble.INCOMPLETE, 10: Trouble.MISSING, 11: Trouble.LOCKED, 12: Trouble.PASSWORD}


def classify(rc: int, said: str) -> Trouble:
    """What an end of restic means, by its number where it is a telling one, else by its text."""
    if rc in _NUMBERS:
        return _NUMBERS[rc]
    low = said.lower()
    return next((t for t, words in _WORDS if any(w in low for w in words)), Trouble.OTHER)


@dataclass(frozen=True, slots=True)
class Restic:
    """One repository. `env` is what an object store needs; values are secrets."""

    repository: str
    password: Secret
    ssh_config: Path | None = None
    env: Mapping[str, Secret] = field(default_factory=dict)
    cache: Path | None = None

    @property
    def place(self) -> str:
        return f"restic:{self.repository}"

    def run(self, *words: str, cwd: Path | None = None, stdin: bytes | None = None) -> bytes:
        """restic's standard output. Raises the error that its words mean."""
        done = self.attempt(*words, cwd=cwd, stdin=stdin)
        if done.returncode:
            raise self.error(words[0], done)
        return done.stdout

    def attempt(
        self, *words: str, cwd: Path | None = None, stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it, whatever it answers. The password goes through a pipe, never a file."""
        read, write = os.pipe()
        feeder = threading.Thread(target=_feed, args=(write, self.password.reveal()), daemon=True)
        feeder.start()
        try:
            return subprocess.run(
                self._argv(words, read), cwd=cwd, env=self._environment(), pass_fds=(read,),
                input=stdin if stdin is not None else b"", capture_output=True, check=False,
                timeout=DEADLINE_S,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise RefusedError(
                "restic is not installed here", why="[backup.restic] names a repository",
                next="install restic (Debian: apt-get install restic)",
            ) from error  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise UnreachableError(f"{self.place}: no end within {DEADLINE_S:g} s",
                                   why=f"restic {words[0]}") from error  # fmt: skip
        finally:
            os.close(read)
            feeder.join(5.0)

    def ensure(self) -> bool:
        """Make the repository where there is none; whether it was made."""
        done = self.attempt("cat", "config")
        if done.returncode == 0:
            return False
        if classify(done.returncode, _said(done)) is not Trouble.MISSING:
            raise self.error("cat config", done)
        self.run("init")
        return True

    def json_lines(self, out: bytes) -> list[dict[str, object]]:
        """restic's `--json` output, a document a line or one list."""
        rows: list[dict[str, object]] = []
        for line in out.splitlines():
            if not line.strip():
                continue
            value = json.loads(line)
            rows += value if isinstance(value, list) else [value]
        return rows

    def error(self, what: str, done: subprocess.CompletedProcess[bytes]) -> DdopsError:
        """The error of ours for an end of restic."""
        said = _said(done)
        short = "\n".join(said.strip().splitlines()[-3:])[-600:]
        rc = done.returncode
        head = f"{self.place}: restic {what}"
        match classify(done.returncode, said):
            case Trouble.PASSWORD:
                return RefusedError(
                    f"{self.place}: wrong password",
                    why=short,
                    next="mend [backup.restic] password in ddops.toml",
                )
            case Trouble.LOCKED:
                return LockHeldError(
                    f"{self.place}: the repository is locked", why=short,
                    next=f"wait for its holder; when it is certainly gone: restic -r"
                    f" {self.repository} unlock",
                )  # fmt: skip
            case Trouble.FULL:
                return CommandFailed(
                    f"{head}: the disk there is full",
                    rc=rc,
                    why=short,
                    next="free space at the backup place and run again",
                )
            case Trouble.LINK:
                return UnreachableError(
                    f"{head}: the connection was lost or refused",
                    why=short,
                    next="run again: nothing half done counts",
                )
            case Trouble.MISSING:
                return CommandFailed(
                    f"{self.place}: there is no repository",
                    rc=rc,
                    why=short,
                    next="ddops snapshot TARGET makes one",
                )
            case Trouble.DAMAGED:
                return CommandFailed(
                    f"{head}: the repository is damaged",
                    rc=rc,
                    why=short,
                    next="ddops snapshot verify",
                )
            case Trouble.INCOMPLETE:
                return CommandFailed(
                    f"{head}: not everything was read",
                    rc=rc,
                    why=short,
                    next="mend what could not be read and run again",
                )
        return CommandFailed(
            f"{head} failed", rc=rc, why=short, next=f"restic -r {self.repository} check"
        )

    def _argv(self, words: Sequence[str], password_fd: int) -> list[str]:
        argv = ["restic", "-r", self.repository, "--password-file", f"/dev/fd/{password_fd}"]
        argv += ["--cache-dir", str(self.cache)] if self.cache else ["--no-cache"]
        if self.repository.startswith("sftp:") and self.ssh_config is not None:
            host = self.repository.removeprefix("sftp:").removeprefix("//").partition(":")[0]
            host = host.partition("/")[0]
            ssh = ["ssh", "-F", str(self.ssh_config), "-o", "StrictHostKeyChecking=yes",
                   "-o", "BatchMode=yes", host, "-s", "sftp"]  # fmt: skip
            argv += ["-o", f"sftp.command={shlex.join(ssh)}"]
        return [*argv, *words]

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in clean_env().items() if not k.startswith("RESTIC_")}
        return {**kept, **{k: v.reveal() for k, v in self.env.items()}}


def _feed(descriptor: int, password: str) -> None:
    try:
        with os.fdopen(descriptor, "wb") as pipe:
            pipe.write(password.encode() + b"\n")
    except BrokenPipeError:
        return  # restic ended before it asked


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return (done.stderr + b"\n" + done.stdout[-2000:]).decode("utf-8", "replace")
