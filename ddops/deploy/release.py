"""One release for one host: its content, its digest, and the files that carry it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddops.config.files import parse_json, read_text
from ddops.engines import LaunchSpec, launch_spec, release_content, release_digest
from ddops.engines.sglang import server_identity
from ddops.errors import DdopsError
from ddops.gates import Golden, parse_golden
from ddops.inventory.model import Host, Node, Profile, Service
from ddops.layout import HostLayout
from ddops.model import short
from ddops.render import render
from ddops.transport.files import tree_digest

Lookup = Callable[[str], Path]

#: The unit is part of a release, so it is rendered with these left for the host to fill in.
UNIT_PATHS = {
    "service_dir": "${engine_dir}/.ddops/services/%s",
    "state_dir": "${engine_dir}/.ddops",
    "python": "${python}",
    "user": "${user}",
}


@dataclass(frozen=True, slots=True)
class Code:
    """Which code a release runs. `digest` names the folder of patched code, if there is one."""

    digest: str = ""
    series: str = ""
    plugin: str = ""


UNPATCHED = Code()


@dataclass(frozen=True, slots=True)
class Release:
    """`content` is what `digest` is taken of. `identity` is what the server must say it is."""

    digest: str
    content: Mapping[str, object]
    launch: LaunchSpec
    identity: Mapping[str, object]
    gates: tuple[str, ...]
    golden: Golden | None
    golden_text: str | None


def build_release(
    service: Service, profile: Profile, env_digest: str, lookup: Lookup, code: Code = UNPATCHED
) -> Release:
    """Render the release. Pure but for reading project files; no host is asked."""
    layout = HostLayout("${engine_dir}")
    code_dir = layout.code(code.digest) if code.digest else None
    launch = launch_spec(service, profile, layout.env(env_digest), code_dir)
    unit = render(
        lookup,
        "unit.service.j2",
        {k: v.replace("%s", service.name) for k, v in UNIT_PATHS.items()}
        | {"service": service.name, "stop_grace_s": launch.stop_grace_s},
    )
    content = release_content(
        service=service.name,
        upstream=profile.engine,
        series=code.series,
        plugin=code.plugin,
        launch=launch,
        unit=unit,
        lock=env_digest,
        model=_revision(service.model, service.revision, service.model_source, lookup),
        draft=_revision(service.draft, service.draft_revision, service.draft_source, lookup)
        if profile.spec.algorithm != "none"
        else "",
    )
    text = read_text(lookup(service.golden)) if service.golden else None
    return Release(
        digest=release_digest(content),
        content=content,
        launch=launch,
        identity=server_identity(service, profile),
        gates=service.gates,
        golden=parse_golden(text, str(service.golden)) if text is not None else None,
        golden_text=text,
    )


def staged_release(digest: str, files: Mapping[str, str]) -> Release:
    """A release as it lies on a host. Raises when its content is not what its name says."""
    try:
        content = parse_json(files["release.json"])
        named = content.pop("digest")
        meta = parse_json(files["gates.json"])
        spec = content["spec"]
        launch = LaunchSpec(
            tuple(spec["argv"]), tuple(sorted(spec["env"].items())),
            tuple(sorted(spec["secret_env"].items())), spec["api_key"], spec["stop_grace_s"],
        )  # fmt: skip
        gates, identity = tuple(meta["gates"]), dict(meta["identity"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DdopsError(
            f"the staged release {short(digest)} cannot be read",
            why=f"{type(error).__name__}: {error}",
            next="deploy it anew from its profile",
        ) from error
    if named != digest or release_digest(content) != digest:
        raise DdopsError(
            f"the staged release {short(digest)} is not what its name says",
            why="its content was changed on the host",
            next="deploy it anew from its profile",
        )
    text = files.get("golden.json")
    golden = parse_golden(text, f"{short(digest)}/golden.json") if text is not None else None
    return Release(digest, content, launch, identity, gates, golden, text)


def places(host: Host, port: int, node: Node) -> dict[str, str]:
    """What a release leaves for each host to fill in; a job's nodes fill in their own places."""
    known = {"engine_dir": host.engine_dir, "port": str(port)}
    return known if node.later else known | {"rank": str(node.rank), "dist_addr": node.address}


def release_files(release: Release, host: Host, port: int, node: Node) -> dict[str, str]:
    """The files of `releases/<digest>/` on this host, by name. No secret is among them."""
    argv, env = release.launch.expand(places(host, port, node))
    launch = {
        "schema": "ddops.launch/1",
        "release": release.digest,
        "argv": argv,
        "env": env,
        "stop_grace_s": release.launch.stop_grace_s,
    }
    if release.launch.api_key is not None:
        # SGLang reads options from a YAML file too; JSON is YAML, and the file is 0600. An
        # option on the command line would show in the process list.
        where = HostLayout(host.engine_dir).service(str(release.content["service"]))
        launch["argv"] = [*argv, "--config", f"{where.current}/secret-args.yaml"]
    files = {
        "release.json": json.dumps({"digest": release.digest, **release.content}, indent=1),
        "launch.json": json.dumps(launch, indent=1),
        "gates.json": json.dumps(
            {
                "gates": list(release.gates),
                "identity": dict(release.identity),
                "port": port,
                # A follower answers /health and nothing else; its wrapper asks it for no more.
                **({"rank": node.rank} if node.rank else {}),
            }
        ),
    }
    if release.golden_text is not None:
        files["golden.json"] = release.golden_text
    return files


def _revision(name: str | None, revision: str | None, source: str | None, lookup: Lookup) -> str:
    """`name@revision`; weights that come from a local folder are named by their content."""
    if name is None:
        return ""
    if revision is None and source is not None and not source.startswith(("rsync:", "hub:")):
        revision = f"sha256:{tree_digest(lookup(source))}"
    return f"{name}@{revision}" if revision else name
