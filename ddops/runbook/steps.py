"""The catalogue of steps: what `do` and `on_failure` may say. The schema is these types.

Each calls the product's own function, with its locks, gates and records. `shell` is the last
resort: words and no shell, its effects declared, its outcome verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ddops.inventory.suites import Level, Runs
from ddops.runbook.model import Seconds, Text

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{4,64}$", description="4 to 64 hex digits")]
Fingerprint = Annotated[
    str, Meta(pattern=r"^(SHA256:[A-Za-z0-9+/]{43})?$", description="SHA256: and 43 characters")
]
Effect = Literal["none", "files", "packages", "services", "network", "data"]


class Trust(Struct, frozen=True, kw_only=True):
    """Pin the key that the host shows: the `fingerprint`, or else one that a person approves."""

    host: Text
    fingerprint: Fingerprint = ""


class Probe(Struct, frozen=True, kw_only=True):
    """Collect the host's facts and note them in the ledger."""

    host: Text


class Check(Struct, frozen=True, kw_only=True):
    """Judge the host, for a `service` too where named; fails where `ddops check` refuses."""

    host: Text
    service: Text | None = None


class ProvisionStep(Struct, frozen=True, kw_only=True):
    """Do what `ddops provision` would do; nothing where nothing is pending."""

    host: Text


class Tree(Struct, frozen=True, kw_only=True):
    """`apply` or `reverse` the series on the host's managed tree, or `verify` it and what runs."""

    host: Text
    action: Literal["apply", "reverse", "verify"] = "verify"


class SnapshotStep(Struct, frozen=True, kw_only=True):
    """Take a snapshot, to every backup place; unchanged trees cost little."""

    host: Text
    tree: Text | None = None


class Drill(Struct, frozen=True, kw_only=True):
    """Restore the host's newest snapshot from each place into scratch, and prove it."""

    host: Text


class Deploy(Struct, frozen=True, kw_only=True):
    """Make the service's release live, gated; a failure takes it back."""

    host: Text
    profile: Text | None = None


class Rollback(Struct, frozen=True, kw_only=True):
    """Back to the last other release that passed here, or to the one named."""

    host: Text
    to: Digest | None = None


class Bench(Struct, frozen=True, kw_only=True):
    """Measure what is deployed; fails where a run does not count."""

    host: Text
    suite: Literal["smoke", "concurrency"] = "smoke"
    levels: tuple[Level, ...] = ()
    repeats: Runs | None = None


class SweepStep(Struct, frozen=True, kw_only=True):
    """Measure every arm of the service's sweep; the service's own profile is live at the end."""

    host: Text


class Recommend(Struct, frozen=True, kw_only=True):
    """Which configuration the valid runs of a service speak for, at each concurrency."""

    service: Text


class Report(Struct, frozen=True, kw_only=True):
    """The findings, written to a file of the project and put on record as a conclusion.

    `out` ends in .md or .html, in a folder that is there; an older report is written over.
    """

    out: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_./-]*\.(md|html)$")]
    service: Text | None = None


class Retract(Struct, frozen=True, kw_only=True):
    """Withdraw numbers and every conclusion from them; once, however often it is run."""

    scope: Literal["tree", "release", "run", "where"]
    value: Text
    reason: Text


class WaitUntil(Struct, frozen=True, kw_only=True):
    """Ask what `verify` asks, every `every_s`, until it holds or the step's time is over."""

    every_s: Seconds = 5.0


class Prompt(Struct, frozen=True, kw_only=True):
    """Stop until a person approves, who is recorded by OS user."""

    ask: Text


class Shell(Struct, frozen=True, kw_only=True):
    """Run words, without a shell: on the `host`, or here where none is named.

    `effects` are declared; a step with any but `none` needs `verify`. A secret goes to `stdin`.
    """

    argv: Annotated[tuple[str, ...], Meta(min_length=1)]
    effects: Annotated[tuple[Effect, ...], Meta(min_length=1)]
    host: Text | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str | None = None


Action = (
    Trust | Probe | Check | ProvisionStep | Tree | SnapshotStep | Drill | Deploy | Rollback | Bench
    | SweepStep | Recommend | Report | Retract | WaitUntil | Prompt | Shell
)  # fmt: skip
#: By the word behind `step`.
STEPS: Mapping[str, type[Action]] = {
    "trust": Trust, "probe": Probe, "check": Check, "provision": ProvisionStep, "tree": Tree,
    "snapshot": SnapshotStep, "drill": Drill, "deploy": Deploy, "rollback": Rollback,
    "bench": Bench, "sweep": SweepStep, "recommend": Recommend, "report": Report,
    "retract": Retract, "wait": WaitUntil, "prompt": Prompt, "shell": Shell,
}  # fmt: skip
#: Steps that may stand behind `on_failure`: each can be done where something else went wrong.
REMEDIES = ("rollback", "deploy", "snapshot", "retract", "shell")


def name_of(action: Action) -> str:
    """The word of an action's step."""
    return next(word for word, cls in STEPS.items() if type(action) is cls)
