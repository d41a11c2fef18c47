"""`suites/*.toml`: what is measured and how. The schema is these types.

A suite is looked up as `suites/<service>/<kind>.toml`, then `suites/<kind>.toml`, each in the
project first and in the package second.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from ddops.config.locate import KeyPath
from ddops.config.schema import Fault, decode, problems
from ddops.config.toml import Document, dotted, raise_all, read_toml
from ddops.config.words import unknown
from ddops.errors import ConfigError, Problem, UsageError
from ddops.inventory.checks import pair_faults, profile_faults
from ddops.inventory.merge import Inventory
from ddops.inventory.model import Profile, Scalar, Service, Spec, Text

Kind = Literal["smoke", "concurrency", "sweep"]
KINDS: tuple[Kind, ...] = ("smoke", "concurrency", "sweep")
Route = Literal["generate", "completions", "chat"]
Connections = Literal["warm", "cold"]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

#: One thread of one core is the client (ADR 0013). It reads tens of thousands of events a second:
#: so many come from 4096 streams of ten tokens a second each.
MAX_LEVEL = 4096
#: It sends no faster than it reads the heads of the answers.
MAX_RATE = 10_000
#: Requests of one run. The client keeps each of them, and the time of each token of its answer.
MAX_REQUESTS = 100_000
#: Runs of a level on one start, and starts of an arm. Three are enough for a claim.
MAX_RUNS = 1000
#: Levels or rates of one suite, and arms of a sweep: somebody has to read the table.
MAX_LOADS = MAX_ARMS = 256
DAY_S = 86_400

#: Behind `why`, what is told with a number above its bound.
Level = Annotated[
    int,
    Meta(ge=1, le=MAX_LEVEL, extra={"why": "one measuring client reads no more streams at once"}),
]
Levels = Annotated[tuple[Level, ...], Meta(min_length=1, max_length=MAX_LOADS)]
Rate = Annotated[
    float,
    Meta(gt=0, le=MAX_RATE, extra={"why": "one measuring client sends no more in a second"}),
]
Requests = Annotated[
    int,
    Meta(ge=1, le=MAX_REQUESTS, extra={"why": "the measuring client holds no more in one run"}),
]
Runs = Annotated[int, Meta(ge=1, le=MAX_RUNS, extra={"why": "no figure needs more runs than that"})]
Seconds = Annotated[float, Meta(gt=0, le=DAY_S, extra={"why": "a run does not last for days"})]
Tokens = Annotated[
    int,
    Meta(ge=1, le=1 << 20, extra={"why": "longer than any context an engine is started with"}),
]

#: Axes that vary the launch: `spec.<field>` or `launch.<option>`.
_SPEC = ("algorithm", "budget", "topk", "block")


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
    levels: Levels = (1,)
    rates: Annotated[tuple[Rate, ...], Meta(max_length=MAX_LOADS)] = ()
    rate_s: Seconds = 60.0
    arrivals: Literal["constant", "poisson"] = "poisson"
    output_tokens: Tokens = 256
    ignore_eos: bool = True
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    warm_waves: Requests = 1
    waves: Requests = 4
    least_requests: Requests = 8
    repeats: Runs = 1
    launches: Runs = 1
    seed: int = 1
    connections: Connections = "warm"
    timeout_s: Seconds = 300.0
    deadline_s: Seconds = 1800.0
    #: A look asks the engine and nvidia-smi, which takes tens of milliseconds.
    sample_s: Annotated[float, Meta(ge=0.05, le=DAY_S)] = 1.0
    limits: Limits = Limits()
    arms: tuple[Arm, ...] = ()

    def requests(self, level: int) -> int:
        """How many a closed loop of `level` slots sends, warm-up included."""
        return level * self.warm_waves + max(level * self.waves, self.least_requests)

    def arrivals_of(self, rate: float) -> int:
        """How many an open loop sends."""
        return max(1, round(rate * self.rate_s))


class Suite(SuiteTable, frozen=True, kw_only=True):
    """A suite under the name of its file. `document` is that file, to name its lines."""

    name: str
    document: Document | None = None

    def raise_faults(self, faults: Sequence[Fault], *, next: str) -> None:
        """What was found wrong after reading it, as a ConfigError with file, line and key."""
        if self.document is not None:
            raise_all(problems(self.document, faults), next=next)
        elif faults:
            found = [Problem(self.name, 0, dotted(f.path), f.message) for f in faults]
            raise ConfigError(found, next=next)


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
        # A list that lost a fault of its own is judged no further: it stands for the default.
        hurt = {f.path[0] for f in decoded.faults if f.path}
        faults += [f for f in _faults(decoded.value, kind) if f.path[0] not in hurt]
    raise_all(problems(document, faults))
    assert decoded.value is not None  # noqa: S101 - raise_all has ended otherwise
    fields: dict[str, Any] = {n: getattr(decoded.value, n) for n in SuiteTable.__struct_fields__}
    return Suite(**fields, name=name, document=document)


def too_many(count: int) -> str:
    """What is wrong with so many requests of one run; empty when nothing is."""
    if count <= MAX_REQUESTS:
        return ""
    return (
        f"{count} requests in one run, at most {MAX_REQUESTS}: the measuring client holds them and"
        " the times of all their tokens"
    )


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
    for i, level in enumerate(suite.levels):
        if words := too_many(suite.requests(level)):
            waves = f"{suite.warm_waves} + {suite.waves} waves"
            out.append(Fault(("levels", i), f"{level} under way for {waves} are {words}"))
    for i, rate in enumerate(suite.rates):
        if words := too_many(suite.arrivals_of(rate)):
            out.append(Fault(("rates", i), f"{rate:g} a second for {suite.rate_s:g} s are {words}"))
    for i, arm in enumerate(suite.arms):
        out += _axes_faults(arm, ("arms", i))
    made = sum(_variants(arm) for arm in suite.arms)
    if made > MAX_ARMS:
        out.append(Fault(("arms",), f"they make {made} configurations, at most {MAX_ARMS}"))
    return out


def _variants(arm: Arm) -> int:
    return math.prod(len(values) for values in arm.axes.values())


def _axes_faults(arm: Arm, at: KeyPath) -> Iterator[Fault]:
    """Axes that are none, and values that are none of their key."""
    for axis, values in arm.axes.items():
        here = (*at, "axes", axis)
        part, _, key = axis.partition(".")
        if part not in ("spec", "launch") or not key or (part == "spec" and key not in _SPEC):
            near = unknown(axis, [f"spec.{s}" for s in _SPEC], "axis")
            yield Fault(here, f"{near}; or `launch.<option>`")
            continue
        for n, value in enumerate(values):
            if part == "spec":
                for fault in decode({key: value}, Spec).faults:
                    yield Fault((*here, n), fault.message)
            if _same(value, values[:n]):
                yield Fault((*here, n), "a value stands there twice")


def _same(value: Scalar, others: Sequence[Scalar]) -> bool:
    """Whether an engine would be given the same word: `1` and `1.0` are two, as are 1 and true."""
    return any(str(value) == str(other) for other in others)


def arms_of(inventory: Inventory, suite: Suite, service: Service) -> tuple[Profile, ...]:
    """Every configuration of a sweep, as profiles; each is checked against the service.

    A variant is called `<profile>+<axis>=<value>,...`. Raises ConfigError with all that cannot run.
    """
    out: dict[str, Profile] = {}
    faults: list[Fault] = []
    for i, arm in enumerate(suite.arms):
        at: KeyPath = ("arms", i)
        base = inventory.profiles.get(arm.profile)
        if base is None:
            words = unknown(arm.profile, inventory.profiles, "profile")
            faults.append(Fault((*at, "profile"), words))
            continue
        for places in itertools.product(*(range(len(v)) for v in arm.axes.values())):
            chosen = dict(zip(arm.axes, places, strict=True))
            made = variant(base, {axis: arm.axes[axis][n] for axis, n in chosen.items()})
            faults += _misfits(service, made, at, chosen)
            out[made.name] = made
    suite.raise_faults(faults, next="take the value out of the axis, or the arm out of the sweep")
    return tuple(out.values())


def _misfits(
    service: Service, made: Profile, at: KeyPath, chosen: Mapping[str, int]
) -> Iterator[Fault]:
    """Why a service cannot run by a variant, at the value that is to blame for it."""
    found = [(".".join(map(str, f.path)), f.message) for f in profile_faults(made)]
    found += [("spec.algorithm", words) for words in pair_faults(service, made)]
    for key, words in found:
        blamed = next((axis for axis in (key, "spec.algorithm") if axis in chosen), None)
        path = (*at, "profile") if blamed is None else (*at, "axes", blamed, chosen[blamed])
        yield Fault(path, f"{words} (in {made.name[:120]})")


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
