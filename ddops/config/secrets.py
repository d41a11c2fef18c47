"""Secrets by reference: `env:NAME`, `file:PATH`, `cmd:WORDS`. A value never stands in a file."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ddops.command import Redactor, Secret
from ddops.config.files import read_regular, reason
from ddops.errors import DdopsError, UsageError

#: A command that answers later than this waits for somebody to type, and nobody can.
COMMAND_DEADLINE_S = 10.0
MAX_BYTES = 64 * 1024

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FORMS = "env:NAME, file:PATH or cmd:WORDS"


def is_secret_ref(text: str) -> bool:
    """Whether a value of an `env` table means a secret."""
    return text.startswith(("env:", "file:", "cmd:"))


def secret_ref_fault(text: str) -> str:
    """What is wrong with a reference; empty when nothing is. The text is never repeated."""
    scheme, _, rest = text.partition(":")
    if not is_secret_ref(text):
        return (
            f"expected a reference to a secret ({_FORMS}), got a literal value;"
            " a value written here would end up in git, in snapshots and in backups"
        )
    if not rest.strip() or any(ord(c) < 32 for c in rest):
        return f"nothing usable follows `{scheme}:`"
    if scheme == "env" and not _NAME.match(rest):
        return "what follows `env:` is not a variable's name"
    if scheme == "cmd":
        try:
            return "" if shlex.split(rest) else "nothing usable follows `cmd:`"
        except ValueError as error:
            return f"the command after `cmd:` cannot be split into words: {reason(error)}"
    return ""


def resolve_secret(
    ref: str, *, base: Path | None = None, env: Mapping[str, str] | None = None
) -> Secret:
    """Fetch a secret. `base` is what a relative `file:` path starts from.

    `cmd:` runs without a shell and without a terminal, for at most 10 s.
    """
    wrong = secret_ref_fault(ref)
    if wrong:
        raise UsageError(
            "not a reference to a secret",
            why=wrong,
            next=f"write {_FORMS}, and keep the value there",
        )
    scheme, _, rest = ref.partition(":")
    if scheme == "env":
        value = (os.environ if env is None else env).get(rest, "")
        if not value:
            raise UsageError(
                f"the variable {rest} is not set, or empty",
                why=f"a secret is asked for as {ref}",
                next=f"export {rest}=...",
            )
    elif scheme == "file":
        value = _from_file((base or Path()) / Path(rest).expanduser())
    else:
        value = _from_command(shlex.split(rest))
    value = value.removesuffix("\n").removesuffix("\r")
    if not value or "\0" in value:
        raise DdopsError(f"the secret behind {scheme}: is empty or binary", next="mend its source")
    return Secret(value, origin=ref)


def _from_file(path: Path) -> str:
    why = "a secret is read from it"
    try:
        raw, info = read_regular(path, MAX_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {reason(error)}", why=why) from None
    if info.st_mode & 0o077:
        raise UsageError(
            f"{path}: others may read or write this secret (mode {stat.S_IMODE(info.st_mode):04o})",
            next=f"chmod 600 {shlex.quote(str(path))}",
        )
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{path}: larger than 64 KiB; that is not a secret")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text", why=why) from None


def _from_command(argv: list[str]) -> str:
    """Its first answer on stdout. What it prints is shown nowhere; stderr only redacted."""
    try:
        # A session of its own, so that a helper it leaves behind can be ended with it.
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{argv[0]}: cannot be run: {reason(error)}", why="a secret is asked of it"
        ) from None
    try:
        out, err = child.communicate(timeout=COMMAND_DEADLINE_S)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise DdopsError(
            f"{argv[0]}: no answer within {COMMAND_DEADLINE_S:g} s",
            why="a secret is asked of it; it may be waiting for a password",
            next="unlock its store first, then again",
        ) from None
    if child.returncode != 0:
        said = Redactor()(err.decode("utf-8", "replace").strip())[-300:]
        raise DdopsError(
            f"{argv[0]}: ended with status {child.returncode}",
            why=said or "a secret is asked of it",
            next=f"run it yourself: {shlex.join(argv)}",
        )
    if len(out) > MAX_BYTES:
        raise DdopsError(f"{argv[0]}: printed more than 64 KiB; that is not a secret")
    return out.decode("utf-8", "replace")
