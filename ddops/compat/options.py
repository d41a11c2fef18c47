"""A launch line against a release's options, by argparse's own rules.

argparse takes a unique prefix of a long option for the option itself, and refuses a prefix that
two options share: that is how a removed option can turn into an "ambiguous" one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddops.compat import tables
from ddops.compat.model import Launch
from ddops.compat.tables import Flags

#: Other names of options that the rules below ask for.
_ALIASES = {
    "tensor-parallel-size": "tp-size", "pipeline-parallel-size": "pp-size",
    "data-parallel-size": "dp-size", "model": "model-path", "tp": "tp-size", "pp": "pp-size",
    "dp": "dp-size",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a launch line. `fatal` faults end the engine at once, with status 2."""

    option: str
    what: str
    fatal: bool = True


@dataclass(frozen=True, slots=True)
class Given:
    """One option as written: `name` is what it resolves to, None when it resolves to nothing."""

    written: str
    name: str | None
    matches: tuple[str, ...]
    values: tuple[str, ...]
    inline: bool


def read(argv: tuple[str, ...], options: frozenset[str]) -> Iterator[Given]:
    """The options of a line; what stands before the first one is the program."""
    words = list(argv)
    start = next((i for i, w in enumerate(words) if w.startswith("--")), len(words))
    at = start
    while at < len(words):
        word, sign, inline = words[at].partition("=")
        at += 1
        values = [inline] if sign else []
        while not sign and at < len(words) and not words[at].startswith("--"):
            values.append(words[at])
            at += 1
        if word in options:
            yield Given(word, word, (word,), tuple(values), bool(sign))
            continue
        matches = tuple(sorted(o for o in options if o.startswith(word)))
        name = matches[0] if len(matches) == 1 else None
        yield Given(word, name, matches, tuple(values), bool(sign))


def lint(argv: tuple[str, ...], flags: Flags) -> list[Fault]:
    """Everything the release's parser would refuse, and deprecated spellings."""
    out = []
    for one in read(argv, flags.options):
        if one.name is None:
            out.append(_unresolved(one, flags))
            continue
        choices = flags.choices.get(one.name)
        if one.name in flags.switches and one.values and one.name not in flags.choices:
            out.append(Fault(one.written, f"is a switch and takes no value: {one.values[0]!r}"))
        elif choices and one.values and one.values[0] not in choices:
            out.append(Fault(one.written, f"{one.values[0]!r} is none of its choices"))
        elif one.name not in flags.switches and one.inline and one.values == ("",):
            out.append(Fault(one.written, "has an empty value"))
        if one.name in flags.deprecated:
            out.append(Fault(one.written, "is deprecated", fatal=False))
    return out


def _unresolved(one: Given, flags: Flags) -> Fault:
    if one.matches:
        return Fault(one.written, f"is ambiguous: could match {', '.join(one.matches[:4])}")
    import difflib

    known = [v for v in tables.flag_versions() if one.written in _options(v)]
    near = difflib.get_close_matches(one.written, flags.options, 1, 0.75)
    words = f"is no option of {flags.version}"
    if known:
        words += f" (it was one of {known[-1]})"
    return Fault(one.written, words + (f"; did you mean {near[0]}?" if near else ""))


def _options(version: str) -> frozenset[str]:
    found = tables.flags(version)
    return found.options if found else frozenset()


def values_of(launch: Launch) -> Mapping[str, str]:
    """Option name without dashes to its first value, `true` for a switch; prefixes resolved."""
    flags = tables.flags(launch.version)
    out: dict[str, str] = {}
    for one in read(launch.argv, flags.options if flags else frozenset()):
        name = (one.name or one.written).removeprefix("--")
        out[_ALIASES.get(name, name)] = one.values[0] if one.values else "true"
    return out
