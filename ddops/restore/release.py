"""The recorded release as one that can be deployed; nothing of today's project is in it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from ddops.deploy.release import Release
from ddops.engines import LaunchSpec, release_digest
from ddops.errors import DdopsError, RefusedError
from ddops.gates import parse_golden
from ddops.inventory.model import Origin, Service
from ddops.provision import EngineCode, EnvRecipe
from ddops.snapshot.model import Manifest
from ddops.transport.files import tree_digest
from ddops.tree.series import Series, parse_patch


def recorded_release(manifest: Manifest, files: Mapping[str, bytes]) -> Release:
    """The release of the record. Raises DdopsError when its digest is not the manifest's."""
    content = json.loads(files["record/release.json"])
    content.pop("digest", None)
    found = release_digest(content)
    if found != manifest.release:
        raise DdopsError(
            f"snapshot {manifest.id[:12]}: its release is not what the manifest names",
            why=f"{found[:12]}, and the manifest names {str(manifest.release)[:12]}",
            next="ddops snapshot verify",
        )
    spec, meta = content["spec"], json.loads(files["record/gates.json"])
    launch = LaunchSpec(
        tuple(spec["argv"]),
        tuple(sorted(spec["env"].items())),
        tuple(sorted(spec["secret_env"].items())),
        spec["api_key"],
        int(spec["stop_grace_s"]),
    )
    text = files["record/golden.json"].decode() if "record/golden.json" in files else None
    golden = parse_golden(text, "the snapshot's golden prompts") if text is not None else None
    return Release(found, content, launch, dict(meta["identity"]), tuple(meta["gates"]), golden,
                   text)  # fmt: skip


def recorded_recipe(manifest: Manifest, files: Mapping[str, bytes], folder: Path) -> EnvRecipe:
    """What the environment was built from, unpacked below `folder`, against its digest."""
    raw = files.get("record/inputs.tar")
    if raw is None:
        raise RefusedError(
            f"snapshot {manifest.id[:12]} does not hold what its environment was built from",
            why="they were not on the host any more, or too large",
            next="take files of its tree alone:"
            f" ddops restore {manifest.id[:12]} --to HOST --path PATH",
        )
    target = folder / str(manifest.content["engine_env"])
    target.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        archive.extractall(target, filter="data")
    found = tree_digest(target)
    if found != manifest.content["lock"]:
        raise DdopsError(
            f"snapshot {manifest.id[:12]}: the environment's inputs are not what was locked",
            why=f"{found[:12]}, and the release names {str(manifest.content['lock'])[:12]}",
            next="ddops snapshot verify",
        )
    return EnvRecipe(str(manifest.content["engine_env"]), target, found)


def recorded_code(manifest: Manifest, files: Mapping[str, bytes], recipe: EnvRecipe) -> EngineCode:
    """The code that the recorded release runs, with the patches of the record.

    A release that runs from the managed tree, or as the environment came, has no code of its own.
    """
    content = json.loads(files["record/release.json"]) if "record/release.json" in files else {}
    path = content.get("spec", {}).get("env", {}).get("PYTHONPATH", "")
    names = files.get("series/series", b"").decode().split()
    if not path.startswith("${engine_dir}/code/"):
        return EngineCode(recipe.digest, recipe.engine, Series(recipe.engine, ()), recipe.plugin)
    patches = tuple(parse_patch(name, files[f"series/{name}"]) for name in names)
    series = Series(recipe.engine, patches)
    if series.digest != content["series"]:
        raise DdopsError(
            f"snapshot {manifest.id[:12]}: its patches are not those of its release",
            why=f"{series.digest[:12]}, and the release names {content['series'][:12]}",
            next="ddops snapshot verify",
        )
    return EngineCode(recipe.digest, recipe.engine, series, recipe.plugin)


def recorded_service(manifest: Manifest, files: Mapping[str, bytes]) -> Service:
    """A service for a project that has none of that name: what the record says, no more."""
    meta = json.loads(files["record/gates.json"])
    model, _, revision = str(manifest.content["model"]).partition("@")
    return Service(
        name=str(manifest.service), origin=Origin("project", Path("snapshot")), model=model,
        revision=revision or None, profile="recorded", hosts=(manifest.host,),
        port=int(meta["port"]), gates=tuple(meta["gates"]),
    )  # fmt: skip
