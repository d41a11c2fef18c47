"""What belongs to a tree beside its files: environment, facts, launch, release, series. Pure."""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddops import __version__
from ddops.config.files import read_data
from ddops.errors import DdopsError, UsageError
from ddops.inventory.model import Host
from ddops.probe import Facts
from ddops.snapshot.model import SCHEMA, Manifest, make_manifest, name_text

#: A managed tree's own repository: what it is, and the objects that the tree itself has not.
REPOSITORY = "repository/repository.json"
PACK = "repository/objects.pack"

Mask = Callable[[object], object]
Lookup = Callable[[str], Path]


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that was seen of one host. `facts` is None where they could not be collected."""

    host: Host
    service: str | None
    tree: str
    about: Mapping[str, object]
    captured: Mapping[str, object]
    facts: Facts | None
    at: datetime


def record_files(seen: Seen, mask: Mask, lookup: Lookup) -> dict[str, bytes]:
    """The record's files by name. Release files stay as they are: a digest is taken of them.

    Everything else passes `mask`, which hides secrets in it.
    """
    files: dict[str, bytes] = {}
    for name in ("env", "models", "launch", "git"):
        value = seen.about.get(name)
        if value:
            files[f"record/{name}.json"] = _json(mask(value))
    if seen.facts is not None:
        files["record/facts.json"] = _json(mask(dict(seen.facts.raw)))
    release = seen.about["release"]
    for name, text in (release if isinstance(release, dict) else {}).items():
        files[f"record/{name}"] = str(text).encode()
    inputs = seen.about.get("inputs")
    if isinstance(inputs, str):
        files["record/inputs.tar"] = base64.b64decode(inputs)
    files.update(_series(seen.about.get("code"), _upstream(release), lookup))
    return {**files, **history_files(seen.captured)}


def history_files(captured: Mapping[str, object]) -> dict[str, bytes]:
    """The tree's own commits as patches, and a managed tree's repository. Scanned on the host.

    A pack and what it is are kept as they are: their objects are checked by hash.
    """
    past = captured.get("history")
    if not isinstance(past, dict):
        return {}
    files = {f"commits/{r['name']}": base64.b64decode(str(r["data"]))
             for r in _rows(past["commits"])}  # fmt: skip
    if isinstance(past["pack"], str):
        told = {k: past[k] for k in ("head", "branch", "pin")}
        files[REPOSITORY] = _json(told)
        files[PACK] = base64.b64decode(past["pack"])
    return files


def _series(code: object, upstream: str | None, lookup: Lookup) -> dict[str, bytes]:
    """The patches that the running code was made with; else the project's for that engine."""
    if not isinstance(code, dict):
        return {f"series/{p.name}": read_data(p) for p in series_files(upstream, lookup)}
    rows = _rows(code["patches"])
    files = {f"series/{r['name']}": base64.b64decode(str(r["data"])) for r in rows}
    files["series/series"] = "".join(f"{r['name']}\n" for r in rows).encode()
    return files


def series_files(upstream: str | None, lookup: Lookup) -> list[Path]:
    """The project's patches for an engine version; none where it has no such folder."""
    if not upstream:
        return []
    try:
        folder = lookup(f"patches/{upstream}")
    except UsageError:
        return []
    return sorted(p for p in folder.iterdir() if p.is_file())


def manifest_of(seen: Seen, files: Mapping[str, bytes], previous: Manifest | None) -> Manifest:
    """The manifest of what was seen, after `previous`."""
    captured, about = seen.captured, seen.about
    content = release_content(about)
    host_now = float(str(captured["now"]))
    return make_manifest({
        "schema": SCHEMA,
        "ddops": __version__,
        "host": seen.host.name,
        "service": seen.service,
        "at": seen.at.isoformat(timespec="seconds"),
        "host_clock": datetime.fromtimestamp(host_now, UTC).isoformat(timespec="seconds"),
        "skew_s": round(host_now - seen.at.timestamp(), 1),
        "by": f"{getpass.getuser()}@{socket.gethostname()}",
        "previous": previous.id if previous else None,
        "engine_env": seen.host.engine_env,
        "tree": {
            "path": name_text(unexpanded(seen.tree, seen.host.engine_dir)),
            "tree": captured["tree"],
            "commit": captured["commit"],
            "nested": [{"path": name_text(str(r["path"])), "head": r["head"]}
                       for r in _rows(captured["nested"])],
            "allowed": [name_text(str(p)) for p in _list(captured["allowed"])],
        },
        "ignored": captured.get("ignored"),
        "history": _past(captured),
        "large": [{**r, "path": name_text(str(r["path"]))} for r in _rows(captured["large"])],
        "release": _digest(about),
        "lock": about.get("lock"),
        "upstream": content.get("upstream"),
        "model": content.get("model"),
        "draft": content.get("draft"),
        "facts": seen.facts.digest if seen.facts else None,
        "simulated": seen.facts.simulated if seen.facts else None,
        "record": {n: {"sha256": hashlib.sha256(d).hexdigest(), "bytes": len(d)}
                   for n, d in sorted(files.items())},
    })  # fmt: skip


def release_content(about: Mapping[str, object]) -> dict[str, object]:
    """The recorded release, without its digest; empty where the host has none."""
    files = about["release"]
    text = files.get("release.json") if isinstance(files, dict) else None
    if text is None:
        return {}
    try:
        content: dict[str, object] = json.loads(text)
    except ValueError as error:
        raise DdopsError("the release that is staged on the host cannot be read",
                         why=str(error), next="ddops status") from error  # fmt: skip
    content.pop("digest", None)
    return content


def unexpanded(path: str, engine_dir: str) -> str:
    """A path as it is the same on every host: `${engine_dir}` for what lies below that folder."""
    root = engine_dir.rstrip("/")
    return "${engine_dir}" + path[len(root) :] if path.startswith(f"{root}/") else path


def expanded(path: str, engine_dir: str) -> str:
    return path.replace("${engine_dir}", engine_dir.rstrip("/"), 1)


def _past(captured: Mapping[str, object]) -> dict[str, object] | None:
    """What the tree's own repository gave, in few words; None where it has none."""
    past = captured.get("history")
    if not isinstance(past, dict):
        return None
    return {"head": past["head"], "commits": len(_rows(past["commits"])),
            "managed": past["pin"] is not None, "left_out": past["left_out"]}  # fmt: skip


def _digest(about: Mapping[str, object]) -> str | None:
    files = about["release"]
    text = files.get("release.json") if isinstance(files, dict) else None
    value = json.loads(text).get("digest") if text else None
    return str(value) if value else None


def _upstream(release: object) -> str | None:
    text = release.get("release.json") if isinstance(release, dict) else None
    value = json.loads(text).get("upstream") if text else None
    return str(value) if value else None


def _json(value: object) -> bytes:
    # ASCII, since a host's words may hold what is no UTF-8.
    return (json.dumps(value, sort_keys=True, indent=1, default=str) + "\n").encode()


def _rows(value: object) -> list[dict[str, object]]:
    return [r for r in value if isinstance(r, dict)] if isinstance(value, list) else []


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
