"""What a runbook file may hold, and a runbook that was read. The schema is these types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field, to_builtins

ParamType = Literal[
    "text", "int", "number", "bool", "host", "hosts", "service", "profile", "secret"
]
Priority = Literal["high", "medium", "low"]
Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[
    str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,39}$", description="small letters, digits, `-`, `_`")
]
Seconds = Annotated[float, Meta(gt=0)]
Wait = Annotated[float, Meta(ge=0)]

Scalar = str | int | float | bool
Value = str | int | float | bool | tuple[str | int | float, ...] | Mapping[str, str]
Table = Mapping[str, Value]

DEFAULT_LIMIT_S = 1800.0


class ParamTable(Struct, frozen=True, kw_only=True):
    """`[params.NAME]`. It must be given where it has no default. A secret is a reference."""

    type: ParamType
    about: Text
    default: Scalar | None = None


class StepTable(Struct, frozen=True, kw_only=True):
    """`[[steps]]`. `content` is the task that the team sees. All conditions of a list must hold.

    `each` names a parameter of type hosts. Steps that stand together with the same `each` are done
    for one host after the other, all of them for the first before the second is begun.
    """

    id: Name
    content: Text
    do: Mapping[Text, Value]
    priority: Priority = "medium"
    each: Text | None = None
    skip_if: tuple[Mapping[Text, Value], ...] = ()
    require: tuple[Mapping[Text, Value], ...] = ()
    verify: tuple[Mapping[Text, Value], ...] = ()
    on_failure: tuple[Mapping[Text, Value], ...] = ()
    time_limit_s: Seconds = DEFAULT_LIMIT_S
    lock_wait_s: Wait = 0.0


class RunbookTable(Struct, frozen=True, kw_only=True):
    """runbooks/NAME.toml."""

    title: Text
    about: Text
    params: Mapping[Name, ParamTable] = field(default_factory=dict)
    steps: Annotated[tuple[StepTable, ...], Meta(min_length=1)]


class Runbook(Struct, frozen=True, kw_only=True):
    """A runbook that was read, with the very text it was read from."""

    name: str
    source: str
    table: RunbookTable

    def as_json(self) -> dict[str, object]:
        """The file as it was read, defaults filled in."""
        table: dict[str, object] = to_builtins(self.table)
        return table

    @property
    def host_param(self) -> str | None:
        """The parameter that `--host` gives: its only one of type host or hosts."""
        found = [n for n, p in self.table.params.items() if p.type in ("host", "hosts")]
        return found[0] if len(found) == 1 else None
