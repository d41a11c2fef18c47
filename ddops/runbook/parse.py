"""Reading a runbook: every fault at once, with file, line and the nearest right word. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from ddops.compat import checks
from ddops.config.locate import KeyPath
from ddops.config.schema import Decoded, Fault, decode, problems
from ddops.config.toml import Document, parse_toml, raise_all, read_toml
from ddops.config.words import kind, unknown
from ddops.runbook.conditions import (
    CONDITIONS,
    CheckIs,
    Condition,
    Fact,
    FileIs,
    LedgerHas,
    StateIs,
    comparisons,
)
from ddops.runbook.fill import fill_table, fill_words, names_in, samples
from ddops.runbook.model import ParamTable, Runbook, RunbookTable, Scalar, StepTable, Table
from ddops.runbook.steps import REMEDIES, STEPS, Action, Shell, WaitUntil

T = TypeVar("T")
LISTS = ("skip_if", "require", "verify")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "text": (str,), "int": (int,), "number": (int, float), "bool": (bool,), "host": (str,),
    "hosts": (str,), "service": (str,), "profile": (str,), "secret": (str,),
}  # fmt: skip


def read_runbook(path: Path, name: str, base: Path | None = None) -> Runbook:
    """Read and judge a file. Raises ConfigError with every fault in it."""
    return judge_runbook(read_toml(path, base=base), name)


def parse_runbook(text: str, name: str) -> Runbook:
    """Judge a text that was kept, such as the ledger's of a run."""
    return judge_runbook(parse_toml(text, Path(f"{name}.toml"), f"runbooks/{name}.toml"), name)


def judge_runbook(document: Document, name: str) -> Runbook:
    """Types first, then what they say of each other."""
    decoded = decode(document.data, RunbookTable)
    faults = [*decoded.faults]
    if decoded.value is not None:
        faults += _faults(decoded.value)
    raise_all(problems(document, faults), next="docs/reference/runbook-steps.md lists the words")
    assert decoded.value is not None  # noqa: S101 - raise_all has ended otherwise
    return Runbook(name=name, source=document.text, table=decoded.value)


def decode_action(
    table: Table, values: Mapping[str, Scalar], host: str | None = None
) -> Decoded[Action]:
    """A `do` table as its step's type. `host` is what it is about where it names none."""
    filled = fill_table(table, values)
    word = filled.pop("step", None)
    cls = STEPS[word] if isinstance(word, str) and word in STEPS else None
    if cls is None:
        why = "required key `step` is missing"
        why = why if word is None else f"expected the word of a step, got {kind(word)}"
        return Decoded(None, (Fault(("step",), _named(word, STEPS, "step", why)),))
    if "host" in cls.__struct_fields__ and cls is not Shell and host is not None:
        filled.setdefault("host", host)
    words = table.get("argv")
    if cls is Shell and isinstance(words, tuple):
        filled["argv"] = fill_words(words, values)
    return decode(filled, cls)


def decode_condition(
    table: Table, values: Mapping[str, Scalar], host: str | None = None
) -> Decoded[Condition]:
    """A condition as its kind's type. A file without a host is a file here."""
    filled = fill_table(table, values)
    found = [k for k in CONDITIONS if k in filled]
    if len(found) != 1:
        words = ", ".join(f"`{k}`" for k in CONDITIONS)
        if found:
            why = f"one kind of condition at a time, got {' and '.join(found)}"
        else:
            word = next((k for k in filled if not k.startswith("x-")), "")
            why = unknown(word, CONDITIONS, "condition") if word else f"expected one of {words}"
        return Decoded(None, (Fault(() if not filled else (next(iter(filled)),), why),))
    cls = CONDITIONS[found[0]]
    if cls in (Fact, CheckIs, StateIs) and host is not None:
        filled.setdefault("host", host)
    decoded = decode(filled, cls)
    if decoded.value is None or decoded.faults:
        return decoded
    return Decoded(decoded.value, tuple(condition_faults(decoded.value)))


def host_of(step: StepTable, values: Mapping[str, Scalar]) -> str | None:
    """The host a step is about: what its `do` names, or what its loop is at."""
    named = step.do.get("host")
    filled = fill_table({"host": named}, values)["host"] if named is not None else None
    if isinstance(filled, str):
        return filled
    looped = values.get("host")
    return looped if isinstance(looped, str) else None


def condition_faults(c: Condition) -> Iterator[Fault]:
    """What a condition's parts say of each other."""
    match c:
        case Fact():
            if len(comparisons(c)) != 1:
                names = "`equals`, `one_of`, `at_least`, `at_most`, `contains`, `exists`"
                yield Fault(("fact",), f"expected exactly one of {names}")
        case CheckIs():
            known = {x.id: x for x in checks()}
            if c.check != "all" and c.check not in known:
                yield Fault(("check",), unknown(c.check, [*known, "all"], "check"))
        case StateIs():
            if c.profile is not None and c.state != "serving":
                yield Fault(("profile",), f"`{c.state}` knows no profile; `serving` does")
        case LedgerHas():
            yield from _ledger_faults(c)
        case FileIs():
            inside = not c.file.startswith("/") and ".." not in c.file.split("/")
            if c.host is None and not inside:
                yield Fault(("file",), "a file here is named relative to the project, without `..`")
            if c.host is not None and not c.file.startswith("/"):
                yield Fault(("file",), "a file on a host is named by its absolute path")
            if not c.exists and (c.sha256 or c.contains):
                yield Fault(("exists",), "what is not there has no content")


def _ledger_faults(c: LedgerHas) -> Iterator[Fault]:
    if c.at_least is not None and c.at_most is not None:
        yield Fault(("at_most",), "`at_least` or `at_most`, not both")
    if (c.value is not None) is not (c.ledger == "retraction"):
        yield Fault(("value",), "`value` goes with `retraction`, and is needed there")
    if (c.suite is not None) is not (c.ledger == "runs"):
        yield Fault(("suite",), "`suite` goes with `runs`, and is needed there")
    if c.service is not None and c.ledger not in ("deployment", "runs"):
        yield Fault(("service",), f"`{c.ledger}` knows no service")
    if c.host is not None and c.ledger == "retraction":
        yield Fault(("host",), "a retraction is of no host")


def _faults(book: RunbookTable) -> Iterator[Fault]:
    yield from _param_faults(book)
    seen: dict[str, int] = {}
    for i, step in enumerate(book.steps):
        if step.id in seen:
            yield Fault(("steps", i, "id"), f"step {seen[step.id] + 1} has this id too")
        seen.setdefault(step.id, i)
        for fault in _step_faults(step, book.params):
            yield Fault(("steps", i, *fault.path), fault.message)


def _param_faults(book: RunbookTable) -> Iterator[Fault]:
    asked = {n for s in book.steps for _, n in names_in(_plain(s))} | {s.each for s in book.steps}
    for name, param in book.params.items():
        here: KeyPath = ("params", name)
        default = param.default
        wrong_type = default is not None and (
            not isinstance(default, _TYPES[param.type])
            or (isinstance(default, bool) and param.type != "bool")
        )
        if wrong_type:
            yield Fault((*here, "default"), f"expected {param.type}, got {kind(default)}")
        if param.type == "secret" and default is not None:
            yield Fault((*here, "default"), "a secret has no default")
        if name not in asked:
            yield Fault(here, "no step uses it")


def _step_faults(step: StepTable, params: Mapping[str, ParamTable]) -> Iterator[Fault]:
    values = samples(params)
    if step.each is not None:
        looped = params.get(step.each)
        if looped is None:
            yield Fault(("each",), unknown(step.each, params, "parameter"))
        elif looped.type != "hosts":
            yield Fault(("each",), f"`{step.each}` is of type {looped.type}; a loop is over hosts")
        if "host" in params:
            yield Fault(("each",), "`${host}` is the loop's; call the parameter otherwise")
        values["host"] = "host"
    yield from _name_faults(step, params, values)
    for _, name in names_in(_plain(step)):
        values.setdefault(name, "text")  # said above; the rest of the step is judged all the same
    yield from _do_faults(step, params, values)
    host = host_of(step, values)
    for name in LISTS:
        for i, table in enumerate(getattr(step, name)):
            yield from _soft(decode_condition(table, values, host), (name, i), table, params)
    for i, table in enumerate(step.on_failure):
        yield from _soft(decode_action(table, values, host), ("on_failure", i), table, params)
        word = table.get("step")
        if isinstance(word, str) and word in STEPS and word not in REMEDIES:
            yield Fault(("on_failure", i, "step"), f"only {', '.join(REMEDIES)} can be a remedy")


def _do_faults(
    step: StepTable, params: Mapping[str, ParamTable], values: Mapping[str, Scalar]
) -> Iterator[Fault]:
    decoded = decode_action(step.do, values, host_of(step, values))
    yield from _soft(decoded, ("do",), step.do, params)
    match decoded.value:
        case Shell() as shell:
            if "none" in shell.effects and len(shell.effects) > 1:
                yield Fault(("do", "effects"), "`none` stands alone")
            if "none" not in shell.effects and not step.verify:
                yield Fault(("do", "effects"), "a shell step that has effects needs `verify`")
        case WaitUntil():
            if not step.verify:
                yield Fault(("do",), "`wait` waits for what `verify` says, and there is none")
        case _:
            pass


def _name_faults(
    step: StepTable, params: Mapping[str, ParamTable], values: Mapping[str, Scalar]
) -> Iterator[Fault]:
    secrets = {n for n, p in params.items() if p.type == "secret"}
    shell = step.do.get("step") == "shell"
    for path, name in names_in(_plain(step)):
        if name not in values:
            yield Fault(path, unknown(name, values, "parameter"))
        elif name in secrets and not (shell and path == ("do", "stdin")):
            yield Fault(path, f"the secret `{name}` can only be the `stdin` of a shell step")


def _plain(step: StepTable) -> dict[str, object]:
    return {n: getattr(step, n) for n in ("content", "do", *LISTS, "on_failure")}


def _soft(
    decoded: Decoded[T], path: KeyPath, table: Table, params: Mapping[str, ParamTable]
) -> Iterator[Fault]:
    """Faults of a table, but of texts that a parameter fills: those are judged when it is given."""
    for fault in decoded.faults:
        key = fault.path[0] if fault.path else None
        names = [n for _, n in names_in(table.get(key))] if isinstance(key, str) else []
        if not any(_is_text(n, params) for n in names):
            yield Fault((*path, *fault.path), fault.message)


def _is_text(name: str, params: Mapping[str, ParamTable]) -> bool:
    return name not in params or params[name].type not in ("int", "number", "bool")


def _named(word: object, known: Mapping[str, object], what: str, otherwise: str) -> str:
    return unknown(word, known, what) if isinstance(word, str) else otherwise
