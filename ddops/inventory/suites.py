"""`suites/*.toml`: what is measured and how. The schema is these types.

A suite is looked up as `suites/<service>/<kind>.toml`, then `suites/<kind>.toml`, each in the
project first and in the package second.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from ddops.config.schema import Fault, decode, problems
from ddops.config.toml import raise_all, read_toml
from ddops.config.words import unknown
from ddops.errors import UsageError
from ddops.inventory.checks import pair_faults, profile_faults
from ddops.inventory.merge import Inventory
from ddops.inventory.model import Count, Profile, Scalar, Service, Spec, Text

Kind = Literal["smoke", "concurrency", "sweep"]
KINDS: tuple[Kind, ...] = ("smoke", "concurrency", "sweep")
Route = Literal["generate", "completions", "chat"]
Connections = Literal["warm", "cold"]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

#: Axes that vary the launch: `spec.<field>` or `launch.<option>`.
_SPEC = ("algorithm", "budget", "topk", "block")
MAX_ARMS = 256


class Arm(Struct, frozen=True, kw_only=True):
    """Configurations that a sweep compares: a profile, or its variants along `axes`."""

    profile: Text
    axes: Mapping[Text, Annotated[tuple[Scalar, ...], Meta(min_length=1)]] = field(
        default_factory=dict
    )


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds past which a run is void: the client or the machine was not fit to measure."""

    #: p99 of the time between when a request could have been sent and when it was.
    send_delay_ms: Positive = 5.0
    #: Part of a core's time that others took, by a spinning probe before and after.
    noise: Share = 0.02
    #: What the delivered concurrency may fall short of the level.
    short: Share = 0.01
    #: Width of the bound on the median TTFT, where it is also above 5 % of it.
    bound_ms: Positive = 1.0


class SuiteTable(Struct, frozen=True, kw_only=True):
    """One suite. `waves` counts requests of each slot in the window, besides `warm_waves`.

    A closed loop keeps `levels` requests under way. `rates` adds open loops: so many requests a
    second for `rate_s` seconds, at absolute times, whatever the answers do.
    """

    kind: Kind
    prompts: Text = "suites/prompts/code.jsonl"
    route: Route = "generate"
    levels: Annotated[tuple[Count, ...], Meta(min_length=1)] = (1,)
    rates: tuple[Positive, ...] = ()
    rate_s: Positive = 60.0
    arrivals: Literal["constant", "poisson"] = "poisson"
    output_tokens: Count = 256
    ignore_eos: bool = True
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    warm_waves: Count = 1
    waves: Count = 4
    least_requests: Count = 8
    repeats: Count = 1
    launches: Count = 1
    seed: int = 1
    connections: Connections = "warm"
    timeout_s: Positive = 300.0
    deadline_s: Positive = 1800.0
    sample_s: Positive = 1.0
    limits: Limits = Limits()
    arms: tuple[Arm, ...] = ()


class Suite(SuiteTable, frozen=True, kw_only=True):
    """A suite under the name of its file."""

    name: str

    def requests(self, level: int) -> int:
        """How many a closed loop of `level` slots sends, warm-up included."""
        return level * self.warm_waves + max(level * self.waves, self.least_requests)


def find_suite(
    lookup: Callable[[str], Path], service: str, kind: Kind, base: Path | None = None
) -> Suite:
    """The suite of a kind for a service. Raises ConfigError with every fault in it."""
    names = (f"suites/{service}/{kind}.toml", f"suites/{kind}.toml")
    try:
        path, name = lookup(names[0]), names[0]
    except UsageError:
        path, name = lookup(names[1]), names[1]
    return read_suite(path, name, kind, base)


def read_suite(path: Path, name: str, kind: Kind, base: Path | None = None) -> Suite:
    """Read and judge one file."""
    document = read_toml(path, base=base)
    decoded = decode(document.data, SuiteTable)
    faults = [*decoded.faults]
    if decoded.value is not None:
        faults += _faults(decoded.value, kind)
    raise_all(problems(document, faults))
    assert decoded.value is not None  # noqa: S101 - raise_all has ended otherwise
    fields: dict[str, Any] = {n: getattr(decoded.value, n) for n in SuiteTable.__struct_fields__}
    return Suite(**fields, name=name)


def _faults(suite: SuiteTable, kind: Kind) -> list[Fault]:
    out = []
    if suite.kind != kind:
        out.append(Fault(("kind",), f"expected `{kind}`, got `{suite.kind}`"))
    if suite.kind == "sweep" and not suite.arms:
        out.append(Fault(("arms",), "a sweep compares at least one arm"))
    if suite.kind != "sweep" and suite.arms:
        out.append(
            Fault(("arms",), f"`{suite.kind}` measures what is deployed; only a sweep deploys")
        )
    if len(set(suite.levels)) != len(suite.levels):
        out.append(Fault(("levels",), "a level stands there twice"))
    if suite.rates and suite.kind == "sweep":
        out.append(Fault(("rates",), "a sweep keeps requests under way; rates go with concurrency"))
    for i, arm in enumerate(suite.arms):
        for axis in arm.axes:
            part, _, key = axis.partition(".")
            if part not in ("spec", "launch") or not key or (part == "spec" and key not in _SPEC):
                near = unknown(axis, [f"spec.{s}" for s in _SPEC], "axis")
                out.append(Fault(("arms", i, "axes", axis), f"{near}; or `launch.<option>`"))
    return out


def arms_of(inventory: Inventory, suite: Suite, service: Service) -> tuple[Profile, ...]:
    """Every configuration of a sweep, as profiles; each is checked against the service.

    A variant is called `<profile>+<axis>=<value>,...`.
    """
    out: dict[str, Profile] = {}
    for arm in suite.arms:
        base = inventory.profile_of(service, arm.profile)
        for values in itertools.product(*arm.axes.values()):
            made = variant(base, dict(zip(arm.axes, values, strict=True)))
            wrong = [f.message for f in profile_faults(made)] + list(pair_faults(service, made))
            if wrong:
                raise UsageError(
                    f"{suite.name}: {made.name} cannot be run", why="; ".join(wrong),
                    next="take the value out of the axis",
                )  # fmt: skip
            out[made.name] = made
    if len(out) > MAX_ARMS:
        raise UsageError(
            f"{suite.name}: {len(out)} configurations, at most {MAX_ARMS}",
            next="shorten an axis",
        )
    return tuple(out.values())


def variant(base: Profile, values: Mapping[str, Scalar]) -> Profile:
    """The profile with other values; itself when there are none."""
    if not values:
        return base
    spec = {k.partition(".")[2]: v for k, v in values.items() if k.startswith("spec.")}
    launch = {k.partition(".")[2]: v for k, v in values.items() if k.startswith("launch.")}
    fields = {n: getattr(base.spec, n) for n in Spec.__struct_fields__} | spec
    words = ",".join(f"{k.partition('.')[2]}={v}" for k, v in values.items())
    return msgspec.structs.replace(
        base,
        name=f"{base.name}+{words}",
        spec=msgspec.convert(fields, Spec),
        launch={**base.launch, **launch},
    )


def names_of(profiles: Sequence[Profile]) -> str:
    """For messages."""
    return ", ".join(p.name for p in profiles)
