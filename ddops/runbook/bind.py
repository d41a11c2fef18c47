"""A runbook with its parameters' values: the steps that will be done, loops laid out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ddops.config.schema import Fault
from ddops.config.secrets import secret_ref_fault
from ddops.config.toml import dotted
from ddops.config.words import unknown
from ddops.errors import UsageError
from ddops.inventory import Inventory, resolve
from ddops.model import digest
from ddops.runbook.conditions import Condition
from ddops.runbook.fill import fill
from ddops.runbook.model import ParamTable, Runbook, Scalar, StepTable, Table
from ddops.runbook.parse import decode_action, decode_condition, host_of
from ddops.runbook.steps import Action


@dataclass(frozen=True, slots=True)
class Instance:
    """One step that will be done. `key` is `id`, or `id@host` in a loop."""

    key: str
    id: str
    host: str | None
    content: str
    priority: str
    do: Action
    skip_if: tuple[Condition, ...]
    require: tuple[Condition, ...]
    verify: tuple[Condition, ...]
    on_failure: tuple[Action, ...]
    time_limit_s: float
    lock_wait_s: float


@dataclass(frozen=True, slots=True)
class Bound:
    """A runbook and what it will do. `hosts` are names in the order of the loops."""

    runbook: Runbook
    params: Mapping[str, Scalar]
    hosts: tuple[str, ...]
    steps: tuple[Instance, ...]

    @property
    def digest(self) -> str:
        return digest([self.runbook.source, dict(self.params)])


def parse_values(runbook: Runbook, hosts: Sequence[str], given: Sequence[str]) -> dict[str, Scalar]:
    """`--host` words and `NAME=VALUE` words as typed values. A secret's value is never repeated."""
    params, out = runbook.table.params, dict[str, Scalar]()
    words = list(given)
    if hosts:
        name = runbook.host_param
        if name is None:
            raise UsageError(
                f"{runbook.name} has no single parameter for hosts",
                next=f"ddops runbook show {runbook.name}",
            )
        words.insert(0, f"{name}={','.join(hosts)}")
    for word in words:
        name, sign, text = word.partition("=")
        if not sign:
            raise UsageError("a parameter is given as NAME=VALUE", next="--set profile=tiny-ar")
        if name not in params:
            raise UsageError(
                unknown(name[:60], params, "parameter"), next=f"ddops runbook show {runbook.name}"
            )
        if name in out:
            raise UsageError(f"the parameter {name} is given twice")
        out[name] = parse_value(name, params[name], text)
    return out


def parse_value(name: str, param: ParamTable, text: str) -> Scalar:
    """A text as a value of the parameter's type."""
    if param.type == "secret":
        wrong = secret_ref_fault(text)
        if wrong:
            raise UsageError(f"the parameter {name}: {wrong}")
        return text
    if param.type == "bool":
        if text in ("true", "false"):
            return text == "true"
        raise UsageError(f"the parameter {name} is true or false, not {text[:60]!r}")
    if param.type in ("int", "number"):
        try:
            return int(text) if param.type == "int" else float(text)
        except ValueError:
            raise UsageError(
                f"the parameter {name} is of type {param.type}, not {text[:60]!r}"
            ) from None
    if not text.strip() or not text.isprintable():
        raise UsageError(f"the parameter {name} is empty, or not printable")
    return text


def bind(runbook: Runbook, given: Mapping[str, Scalar], inventory: Inventory) -> Bound:
    """Fill in and lay out. Raises UsageError for what is missing or does not exist."""
    values: dict[str, Scalar] = {}
    hosts: dict[str, tuple[str, ...]] = {}
    for name, param in runbook.table.params.items():
        value = given.get(name, param.default)
        if value is None:
            raise UsageError(
                f"{runbook.name} needs the parameter {name}: {param.about}",
                why="--host gives hosts, --set NAME=VALUE any other",
                next=f"ddops runbook show {runbook.name}",
            )
        values[name] = value
        hosts[name] = _known(name, param, str(value), inventory)
        if param.type == "host":
            values[name] = hosts[name][0]  # an alias is another name of one host
        elif param.type == "hosts":
            values[name] = ",".join(hosts[name])
    steps = [
        one
        for each, block in groupby(runbook.table.steps, lambda s: s.each)
        for one in _block(list(block), values, hosts[each] if each else None)
    ]
    every = tuple(dict.fromkeys(h for names in hosts.values() for h in names))
    return Bound(runbook, values, every, tuple(steps))


def _known(name: str, param: ParamTable, text: str, inventory: Inventory) -> tuple[str, ...]:
    """Hosts that a parameter means; services and profiles must be there too."""
    if param.type in ("host", "hosts"):
        found = tuple(h.name for h in resolve(inventory, [text]).hosts)
        if param.type == "host" and len(found) != 1:
            raise UsageError(
                f"the parameter {name} is one host; {text} is {len(found)}: {', '.join(found)}",
                next=f"--set {name}={found[0]}",
            )
        return found
    known: Mapping[str, object] = {}
    if param.type == "service":
        known = inventory.services
    elif param.type == "profile":
        known = inventory.profiles
    else:
        return ()
    if text not in known:
        raise UsageError(
            f"the parameter {name}: {unknown(text, known, param.type)}", next="ddops config show"
        )
    return ()


def _block(
    steps: Sequence[StepTable], values: Mapping[str, Scalar], hosts: Sequence[str] | None
) -> list[Instance]:
    """Steps that stand together and loop alike: all of them for one host, then for the next."""
    if hosts is None:
        return [_instance(s, values, s.id) for s in steps]
    return [_instance(s, {**values, "host": h}, f"{s.id}@{h}") for h in hosts for s in steps]


def _instance(step: StepTable, values: Mapping[str, Scalar], key: str) -> Instance:
    host = host_of(step, values)

    def conditions(name: str) -> tuple[Condition, ...]:
        found: list[Condition] = []
        for i, table in enumerate(getattr(step, name)):
            one = decode_condition(table, values, host)
            _refuse(one.faults, f"{key}: {name}[{i}]")
            found += [one.value] if one.value is not None else []
        return tuple(found)

    def action(table: Table, where: str) -> Action:
        made = decode_action(table, values, host)
        _refuse(made.faults, f"{key}: {where}")
        assert made.value is not None  # noqa: S101 - without a fault there is a value
        return made.value

    return Instance(
        key=key,
        id=step.id,
        host=host,
        content=str(fill(step.content, values)),
        priority=step.priority,
        do=action(step.do, "do"),
        skip_if=conditions("skip_if"),
        require=conditions("require"),
        verify=conditions("verify"),
        on_failure=tuple(action(t, f"on_failure[{i}]") for i, t in enumerate(step.on_failure)),
        time_limit_s=step.time_limit_s,
        lock_wait_s=step.lock_wait_s,
    )


def _refuse(faults: Sequence[Fault], where: str) -> None:
    if faults:
        words = "; ".join(f"{dotted(f.path)}: {f.message}" for f in faults)
        raise UsageError(f"{where} does not go with the parameters given", why=words)
