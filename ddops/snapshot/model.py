"""The manifest: one JSON document that names everything of a snapshot. Its sha256 is the id."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ddops.config.files import parse_json
from ddops.errors import DdopsError
from ddops.model import canonical, digest

SCHEMA = "ddops.snapshot/1"
#: What differs between two snapshots of the same thing.
_OF_THE_MOMENT = ("at", "host_clock", "skew_s", "previous", "by", "record", "ddops", "ignored")
#: Records that hold times and process ids. Facts count by their steady digest, the environment by
#: its lock, the launch by its release.
_RESTLESS = ("record/facts.json", "record/git.json", "record/env.json", "record/launch.json")


@dataclass(frozen=True, slots=True)
class Manifest:
    """`content` is the document; the properties are what the code asks of it."""

    id: str
    content: Mapping[str, object]

    @property
    def host(self) -> str:
        return str(self.content["host"])

    @property
    def service(self) -> str | None:
        value = self.content["service"]
        return str(value) if value else None

    @property
    def at(self) -> datetime:
        return datetime.fromisoformat(str(self.content["at"]))

    @property
    def previous(self) -> str | None:
        value = self.content["previous"]
        return str(value) if value else None

    @property
    def tree(self) -> Mapping[str, object]:
        return _table(self.content["tree"])

    @property
    def tree_hash(self) -> str:
        return str(self.tree["tree"])

    @property
    def commit(self) -> str:
        return str(self.tree["commit"])

    @property
    def release(self) -> str | None:
        value = self.content["release"]
        return str(value) if value else None

    @property
    def record(self) -> dict[str, str]:
        """Names of the record's files with their sha256."""
        rows = _table(self.content["record"])
        return {k: str(_table(v)["sha256"]) for k, v in rows.items()}

    @property
    def large(self) -> tuple[LargeFile, ...]:
        rows = self.content["large"]
        if not isinstance(rows, list):
            raise TypeError("large is no list")
        return tuple(LargeFile(str(r["path"]), str(r["sha256"]), int(r["bytes"]), str(r["mode"]))
                     for r in rows)  # fmt: skip

    @property
    def apart(self) -> list[str]:
        """What of the tree is not in the snapshot, in words; older manifests do not say."""
        out = []
        rules = self.content.get("ignored")
        if isinstance(rules, dict) and rules["count"]:
            places = ", ".join(f"{name} ({n})" for name, n in rules["places"])
            out.append(f"{rules['count']} ignored by .gitignore, not in it: {places}")
        past = self.content.get("history")
        if isinstance(past, dict) and past["left_out"]:
            out.append(f"left out, the commits of the tree's own repository: {past['left_out']}")
        return out

    @property
    def text(self) -> bytes:
        """The bytes that the id is the sha256 of."""
        return canonical(self.content).encode()

    @property
    def same(self) -> str:
        """Equal for two snapshots that hold the same tree and record."""
        kept = {k: v for k, v in self.content.items() if k not in _OF_THE_MOMENT}
        kept["record"] = {k: v for k, v in self.record.items() if k not in _RESTLESS}
        return digest(kept)


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A file of the tree that git does not hold."""

    path: str
    sha256: str
    bytes: int
    mode: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A manifest with the files of its record, and the commit that holds both."""

    manifest: Manifest
    files: Mapping[str, bytes] = field(default_factory=dict)
    commit: str = ""


def make_manifest(content: Mapping[str, object]) -> Manifest:
    """The manifest of this content; its id follows."""
    text = canonical(content).encode()
    return Manifest(hashlib.sha256(text).hexdigest(), content)


def parse_manifest(raw: bytes, expected: str) -> Manifest:
    """Read a manifest back. Raises DdopsError when it is not the one that the id names."""
    found = hashlib.sha256(raw).hexdigest()
    if found != expected:
        raise DdopsError(
            f"the manifest of snapshot {expected[:12]} is not what was written",
            why=f"its sha256 is {found[:12]}",
            next="ddops snapshot verify",
        )
    try:
        content = parse_json(raw)
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']!r}, want {SCHEMA!r}")
        made = Manifest(expected, content)
        _ = (made.host, made.at, made.tree_hash, made.commit, made.record, made.large)
    except (ValueError, KeyError, TypeError) as error:
        raise DdopsError(
            f"the manifest of snapshot {expected[:12]} cannot be read",
            why=f"{type(error).__name__}: {error}",
            next="use the version of ddops that made it",
        ) from error
    return made


def name_text(name: str) -> str:
    """A file name as JSON can hold it: itself, or `base64:` where it is no UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "base64:" + base64.b64encode(name.encode("utf-8", "surrogateescape")).decode()
    return name


def name_of(text: str) -> str:
    """The reverse of `name_text`."""
    if text.startswith("base64:"):
        return base64.b64decode(text[7:]).decode("utf-8", "surrogateescape")
    return text


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return value
