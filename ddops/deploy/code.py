"""Which code a release runs, and whether a host's managed tree is that code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ddops.deploy.host import ServiceOnHost
from ddops.deploy.release import Code, Release
from ddops.engines.sglang import from_tree
from ddops.errors import RefusedError
from ddops.inventory.model import Host, Profile, Service
from ddops.plan import Change, Proposal
from ddops.provision import EnvRecipe, HostSide, edits, engine_code
from ddops.transport import Transport
from ddops.tree.host import ManagedTree
from ddops.tree.series import Series, read_series

Lookup = Callable[[str], Path]


def release_code(service: Service, profile: Profile, recipe: EnvRecipe, lookup: Lookup) -> Code:
    """Series and plugin of a release. An engine that runs from the managed tree has its series."""
    if from_tree(service, profile):
        return Code(series=read_series(profile.engine, lookup).digest, plugin=recipe.plugin)
    code = engine_code(recipe, lookup)
    return Code(code.digest, code.series.digest, code.plugin)


def tree_rows(
    transport: Transport, host: Host, service: Service, profile: Profile, lookup: Lookup
) -> tuple[tuple[str, str, Proposal], ...]:
    """One row for a release that runs from the managed tree: is it upstream and series, no more?"""
    if not from_tree(service, profile):
        return ()
    series = read_series(profile.engine, lookup)
    wrong = tree_faults(transport, host, series)
    proposal = Proposal(Change.UNKNOWN, tuple(wrong)) if wrong else Proposal(Change.NONE)
    return (("tree", "managed tree", proposal),)


def code_seen(target: ServiceOnHost, release: Release) -> list[str] | None:
    """How the code that a release runs differs from what it names.

    Empty for code that is as recorded, None for an environment's own code, which a wheel's RECORD
    speaks for. UNKNOWN begins a line where it cannot be told.
    """
    layout = target.layout
    _, env = release.launch.expand({"engine_dir": target.host.engine_dir})
    first, want = env.get("PYTHONPATH", "").split(":")[0], str(release.content["series"])
    if first.startswith(f"{layout.engine_dir}/code/"):
        seen = HostSide(target.transport, layout, target.host.python).state(code=[first])
        found = seen["code"][first]
        if not isinstance(found, Mapping):
            return [f"{first} is not there"]
        other = [] if found["series"] == want else [f"made with another series: {found['series']}"]
        return [*other, *edits(found)]
    if first != layout.tree and not first.startswith(f"{layout.tree}/"):
        return None
    series = read_series(str(release.content["upstream"]), target.lookup)
    if series.digest != want:
        return ["UNKNOWN: the project's series is no longer the release's"]
    return tree_faults(target.transport, target.host, series)


def tree_faults(transport: Transport, host: Host, series: Series) -> list[str]:
    """What keeps the managed tree from being its upstream with that series, in words."""
    try:
        seen = ManagedTree(transport, host).status(series, [])
    except RefusedError as error:
        return [error.what]
    return judge_tree(seen, series)


def judge_tree(seen: Mapping[str, object], series: Series) -> list[str]:
    """The same of a status that was taken. Pure."""
    there = {*_names(seen["applied"]), *_names(seen["superseded"])}
    out = [f"{p.name} is not applied: ddops tree apply" for p in series.patches
           if p.name not in there]  # fmt: skip
    if seen["unfinished"]:
        out.append("a change of it was cut short: ddops tree apply")
    if dirty := _names(seen["dirty"]):
        out.append(f"edited by hand: {', '.join(dirty[:8])}: ddops tree export")
    if not seen["pure"] and not out:
        out.append("it has commits beyond the series: ddops tree export")
    return out


def _names(value: object) -> Sequence[str]:
    return [str(v) for v in value] if isinstance(value, list) else []
