"""Commands as data: quoting, secrets and redaction are types, never string work.

A `Cmd` holds an argument list. It becomes shell text in exactly one place, `Cmd.render`,
so that no caller joins strings. A `Secret` cannot enter an argument list or an environment
assignment: both show in the host's process list. It travels on standard input only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

MASK = "***"
_PLAIN_PROGRAM = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./-]*\Z")
_RESERVED = frozenset(
    {"case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in"}
    | {"select", "then", "time", "until", "while"}
)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Secret:
    """A value that prints as `***` everywhere; `reveal` is the only way to it."""

    __slots__ = ("_value", "origin")

    def __init__(self, value: str, origin: str = "") -> None:
        self._value = value
        #: Where it came from (`env:NAME`, `file:PATH`, `cmd:...`); safe to show.
        self.origin = origin

    def reveal(self) -> str:
        return self._value

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Secret({self.origin or MASK})"

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a Secret is never pickled")


# No leading wildcard: a name may end any word, and one would cost quadratic time on long words.
_NAMES = (
    r"(?:(?:api|admin|access|secret|private|signing)[_-]?key(?:_id)?"
    r"|passw(?:or)?d|passphrase|secret"
    r"|(?:auth|access|refresh|bearer|hf|hub)[_-]?token)"
)
_OPTION = rf"(?<![\w-])--?[\w-]*{_NAMES}"

# A value as it stands behind a name: quoted (in JSON within JSON, too), to the end of the line if
# the text was cut, or bare.
_VALUE = r"""(\\"[^"\\\n]+(?:\\")?|"(?:\\.|[^"\\\n])+"?|'[^'\n]+'?|(?!["'-])[^\s"',;)}\]]+)"""
_NOT_SET = r"(?!(?:None|null|true|false)\b|[\"']?\*\*\*)"

# What an engine or a tool prints of its own accord. The value group alone is masked, so that
# the reader still sees which key it was.
_PATTERNS = tuple(
    re.compile(p, re.IGNORECASE)
    for p in (
        rf"""({_NAMES}\\?["']?[ \t]*[=:][ \t]*){_NOT_SET}{_VALUE}""",
        rf"""({_OPTION}(?:[ =]+|["'],[ \t]*)){_NOT_SET}{_VALUE}""",
        r"(authorization\s*[=:]\s*[\"']?(?:bearer|basic|token)\s+)([^\s\"',]+)",
        r"(\bbearer\s+)([A-Za-z0-9._~+/=-]{8,})",
        r"(\b\w+://[^/\s:@]*:)([^@\s/]+)(?=@)",
        # Long enough and without underscores: hf_text_config and asia-southeast1 are no secrets.
        r"()(\b(?-i:hf_[A-Za-z0-9]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}))",
        r"()(\b(?:sk-|ghp_|gho_|github_pat_|glpat-|xox[abprs]-)[A-Za-z0-9_-]{16,})",
        r"()(-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))",
    )
)
_KEY = re.compile(rf"{_NAMES}\Z", re.IGNORECASE)
_FLAG = re.compile(rf"{_OPTION}\Z", re.IGNORECASE)
_SHORTEST = 4


def _masked(match: re.Match[str]) -> str:
    """The name as it was, the value gone, its quotes kept: JSON stays JSON."""
    quote = re.match(r"""\\?["']""", match[2])
    around = quote[0] if quote else ""
    return f"{match[1]}{around}{MASK}{around}"


class Redactor:
    """Masks known secret values and well-known shapes of secrets in any text.

    One instance goes with one run of the program and is handed to every sink. Values shorter
    than four characters are not looked for: masking "a" would make every text unreadable.
    """

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._values: set[str] = set()
        for secret in secrets:
            self.add(secret)

    def add(self, secret: Secret) -> Secret:
        """Remember a secret's value, and each long line of a many-line one."""
        value = secret.reveal()
        for part in {value, value.strip(), *value.splitlines()}:
            if len(part) >= _SHORTEST:
                self._values.add(part)
        return secret

    def __call__(self, text: str) -> str:
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, MASK)
        for pattern in _PATTERNS:
            text = pattern.sub(_masked, text)
        return text

    def tree(self, value: object) -> object:
        """The same for JSON-like data; the answer holds JSON types only.

        Whatever stands below a key that names a secret is masked whole, and so is the word
        behind an option that names one. Anything that is not JSON becomes its redacted text.
        """
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {self(str(k)): self._entry(str(k), v) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return self._items(list(value))
        if isinstance(value, bytes | bytearray):
            value = value.decode("utf-8", "backslashreplace")
        return self(str(value))

    def _entry(self, key: str, value: object) -> object:
        if _KEY.search(key) and value is not None and value != "" and not isinstance(value, bool):
            return MASK
        return self.tree(value)

    def _items(self, values: list[object]) -> list[object]:
        out: list[object] = []
        before: object = None
        for value in values:
            flagged = isinstance(before, str) and isinstance(value, str) and _FLAG.match(before)
            option = isinstance(value, str) and value.startswith("-")
            out.append(MASK if flagged and not option else self.tree(value))
            before = value
        return out


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"


@dataclass(frozen=True, slots=True)
class Cmd:
    """One command: words, extra environment, working directory, standard input.

    `stdin` is bytes or a `Secret`; a secret is written to the command's standard input and
    appears nowhere else. Words may hold any bytes but NUL (undecodable ones as surrogates).
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None
    stdin: bytes | Secret | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("a command needs at least one word")
        for word in (*self.argv, *(v for _, v in self.env), self.cwd or "/"):
            if not isinstance(word, str):
                raise TypeError(f"words are str, not {type(word).__name__}")
            if "\0" in word:
                raise ValueError("a command's word cannot hold a NUL byte")
            word.encode("utf-8", "surrogateescape")  # a lone surrogate is no byte: ValueError
        for name, _ in self.env:
            if not _ENV_NAME.match(name):
                raise ValueError(f"not an environment name: {name!r}")
        if self.cwd is not None and not self.cwd.startswith("/"):
            raise ValueError(f"working directory must be absolute: {self.cwd!r}")

    def render(self) -> str:
        """The one place where words become POSIX shell text."""
        words = [shlex.quote(w) for w in self.argv]
        if not _PLAIN_PROGRAM.match(self.argv[0]) or self.argv[0] in _RESERVED:
            # shlex leaves `if`, `a=b` and `-x` bare, which a shell takes for syntax, for an
            # assignment, and (first behind `sh -c`) for an option of its own.
            words[0] = _quoted(self.argv[0])
        if self.env:
            # `env` takes the first word without '=' as the command, so a program whose name
            # holds '=' cannot be run with extra environment; refuse rather than misread it.
            if "=" in self.argv[0]:
                raise ValueError(f"cannot set environment for {self.argv[0]!r}")
            words = ["env", *(shlex.quote(f"{k}={v}") for k, v in self.env), *words]
        text = " ".join(words)
        return f"cd {shlex.quote(self.cwd)} && {text}" if self.cwd else text

    def stdin_bytes(self) -> bytes | None:
        if isinstance(self.stdin, Secret):
            return self.stdin.reveal().encode("utf-8", "surrogateescape")
        return self.stdin

    def with_stdin(self, stdin: bytes | Secret) -> Cmd:
        return replace(self, stdin=stdin)

    def __str__(self) -> str:
        return self.render()


def cmd(
    *words: str,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: bytes | Secret | None = None,
) -> Cmd:
    """Shorthand: `cmd("ls", "-l", path)`."""
    return Cmd(tuple(words), tuple((env or {}).items()), cwd, stdin)


def sh(script: str, *args: str, env: Mapping[str, str] | None = None) -> Cmd:
    """A fixed POSIX script with its values as `$1`, `$2`, ...: data never enters the text."""
    return cmd("sh", "-c", script, "ddops", *args, env=env)


#: How Python is started for a script of ours on a host: no settings, packages or folders of its
#: user's, so that no `json.py` in a home is taken for the library's, and a third of the time.
ALONE = ("-I", "-S")


def python(source: str, *args: str, interpreter: str = "python3") -> Cmd:
    """A standard-library script sent on standard input, its values as arguments."""
    return cmd(interpreter, *ALONE, "-", *args, stdin=source.encode())
