"""Snapshots in the ledger: what was taken, where copies were verified, which drills were held."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ddops.ledger.chain import Scalar
from ddops.ledger.clean import when
from ddops.ledger.writers import Writers

_SNAPSHOT = """SELECT s.*, h.name AS host_name FROM snapshot s
JOIN host h ON h.ledger = s.ledger AND h.id = s.host"""
_HAVE = "SELECT 1 FROM snapshot WHERE ledger = :ledger AND id = :id"
_LAST_COPIES = """SELECT place, state, evidence, at FROM snapshot_copy c WHERE snapshot = :id
AND NOT EXISTS (SELECT 1 FROM snapshot_copy n WHERE n.snapshot = c.snapshot AND n.place = c.place
AND (n.at > c.at OR (n.at = c.at AND n.seq > c.seq))) ORDER BY place"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """A snapshot that was taken. `manifest` is the document the id is the sha256 of."""

    id: str
    host: str
    at: datetime
    tree: str
    release: str | None
    manifest: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What was last seen of a copy: `verified`, `failed` or `removed`, and when."""

    place: str
    state: str
    evidence: Mapping[str, object]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One restore drill."""

    snapshot: str
    place: str
    verdict: str
    evidence: Mapping[str, object]
    at: datetime


class Snapshots(Writers):
    """Rows of snapshots, their copies and drills."""

    def add_snapshot(
        self,
        snapshot_id: str,
        *,
        host: str,
        tree: str,
        release: str | None,
        manifest: Mapping[str, object],
        at: datetime | None = None,
    ) -> bool:
        """One snapshot; whether it was new. A host the ledger does not know yet gets a row."""
        clean = self._clean
        row: dict[str, Scalar] = {
            "id": clean.hex64(snapshot_id, "the id of a snapshot"),
            "tree": clean.ident(tree, "the hash of a tree"),
            "release": clean.hex64(release, "the digest of a release") if release else None,
            "manifest": clean.json(manifest),
        }
        with self._writing():
            if self._rows(_HAVE, {"ledger": self.ledger_id, "id": snapshot_id}):
                return False
            known = self._rows("SELECT 1 FROM host WHERE ledger = :ledger AND name = :name",
                               {"ledger": self.ledger_id, "name": host})  # fmt: skip
            host_id = self._host_id(host) if known else self.add_host(host, {})
            self._append("snapshot", {**row, "host": host_id, "at": self._at(at)})
        return True

    def add_copy(
        self,
        snapshot_id: str,
        *,
        place: str,
        state: str,
        evidence: Mapping[str, object] | None = None,
        at: datetime | None = None,
    ) -> None:
        """What was seen of a copy. `verified` only for one that was read back."""
        row = self._of(snapshot_id, place, evidence)
        with self._writing():
            self._append("snapshot_copy", {**row, "state": state, "at": self._at(at)})

    def add_drill(
        self,
        snapshot_id: str,
        *,
        place: str,
        verdict: str,
        evidence: Mapping[str, object] | None = None,
        at: datetime | None = None,
    ) -> None:
        """A restore drill: PASS when the snapshot came back whole."""
        row = self._of(snapshot_id, place, evidence)
        with self._writing():
            self._append("snapshot_drill", {**row, "verdict": verdict, "at": self._at(at)})

    def snapshots(self, host: str | None = None, limit: int = 1000) -> list[StoredSnapshot]:
        """The last snapshots by time."""
        sql = f"""{_SNAPSHOT} WHERE (:host IS NULL OR h.name = :host)
ORDER BY s.at DESC, s.seq DESC LIMIT :limit"""
        return [
            StoredSnapshot(
                id=r["id"], host=r["host_name"], at=when(r["at"]), tree=r["tree"],
                release=r["release"], manifest=json.loads(r["manifest"]),
            )
            for r in self._rows(sql, {"host": host, "limit": max(0, limit)})
        ]  # fmt: skip

    def copies(self, snapshot_id: str) -> list[Copy]:
        """The last word on each copy of a snapshot."""
        return [
            Copy(place=r["place"], state=r["state"], evidence=json.loads(r["evidence"]),
                 at=when(r["at"]))
            for r in self._rows(_LAST_COPIES, {"id": snapshot_id})
        ]  # fmt: skip

    def drills(self, limit: int = 50) -> list[Drill]:
        """The last drills, newest first."""
        sql = "SELECT * FROM snapshot_drill ORDER BY at DESC, seq DESC LIMIT :limit"
        return [
            Drill(snapshot=r["snapshot"], place=r["place"], verdict=r["verdict"],
                  evidence=json.loads(r["evidence"]), at=when(r["at"]))
            for r in self._rows(sql, {"limit": max(0, limit)})
        ]  # fmt: skip

    def _of(
        self, snapshot_id: str, place: str, evidence: Mapping[str, object] | None
    ) -> dict[str, Scalar]:
        return {
            "id": self._new_id(),
            "snapshot": self._clean.hex64(snapshot_id, "the id of a snapshot"),
            "place": self._clean.ident(place, "a backup place"),
            "evidence": self._clean.json(evidence or {}),
        }
