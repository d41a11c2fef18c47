"""Reading rows back. Answers hold what all chains of the file say, not the own one alone."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from typing import cast

from ddops.errors import UsageError
from ddops.ledger.clean import when
from ddops.ledger.records import (
    COMMITTED,
    ENDED_BADLY,
    Deployment,
    Gate,
    Launch,
    Outcome,
    Release,
    StoredFacts,
    StoredHost,
    Transition,
)
from ddops.ledger.store import Store
from ddops.model import Verdict, short

_PREFIX = re.compile(r"[0-9a-f]{4,64}\Z")
_NAMED = "JOIN host h ON h.ledger = t.ledger AND h.id = t.host"
_ON_HOST = "(:host IS NULL OR h.name = :host OR h.id = :host)"
_DEPLOYMENT = f"SELECT t.*, h.name AS host_name FROM deployment t {_NAMED}"  # noqa: S608
_LAUNCH = f"SELECT t.*, h.name AS host_name FROM launch t {_NAMED}"  # noqa: S608
_FACTS = f"SELECT t.*, h.name AS host_name FROM facts t {_NAMED}"  # noqa: S608
_DONE = "x.op_id = t.op_id AND x.state = :committed AND x.verdict = 'ok'"


class Readers(Store):
    """`host` is a host's name or the id of one of its rows; newest first where not said."""

    def host(self, host: str) -> StoredHost | None:
        """The newest row of a host."""
        sql = """SELECT * FROM host WHERE id = :host OR name = :host
ORDER BY ledger = :own DESC, seq DESC LIMIT 1"""
        found = self._rows(sql, {"host": host, "own": self.ledger_id})
        return _host(found[0]) if found else None

    def facts_latest(self, host: str) -> StoredFacts | None:
        """The facts collected last."""
        sql = f"{_FACTS} WHERE {_ON_HOST} ORDER BY t.at DESC, t.seq DESC LIMIT 1"
        found = self._rows(sql, {"host": host})
        return _facts(found[0]) if found else None

    def release(self, digest_or_prefix: str) -> Release | None:
        """The release of a digest, or of the 4 or more first digits if only one begins so."""
        if not _PREFIX.match(digest_or_prefix):
            raise UsageError(
                f"not a release: {self._clean.text(digest_or_prefix)!r}",
                why="a release is 4 to 64 lower-case hex digits",
                next="ddops status",
            )
        sql = """SELECT * FROM "release" WHERE digest >= :low AND digest < :high
ORDER BY digest, ledger = :own DESC, ledger"""
        # 'g' is the first letter after the hex digits.
        marks = {"low": digest_or_prefix, "high": digest_or_prefix + "g", "own": self.ledger_id}
        found = self._rows(sql, marks)
        digests = list(dict.fromkeys(str(r["digest"]) for r in found))
        if len(digests) > 1:
            raise UsageError(
                f"{digest_or_prefix} is not one release",
                why=f"it begins {', '.join(short(d) for d in digests[:8])}",
                next="give more digits",
            )
        return _release(found[0]) if found else None

    def deployment(self, op_id: str) -> Deployment | None:
        """One deployment."""
        sql = f"{_DEPLOYMENT} WHERE t.op_id = :op_id ORDER BY t.ledger = :own DESC LIMIT 1"
        found = self._rows(sql, {"op_id": op_id, "own": self.ledger_id})
        return _deployment(found[0]) if found else None

    def deployments(
        self, service: str | None = None, host: str | None = None, limit: int = 50
    ) -> list[Deployment]:
        """The last deployments by time, of one service or host where given."""
        sql = f"""{_DEPLOYMENT} WHERE {_ON_HOST} AND (:service IS NULL OR t.service = :service)
ORDER BY t.at DESC, t.seq DESC LIMIT :limit"""
        marks = {"service": service, "host": host, "limit": max(0, limit)}
        return [_deployment(r) for r in self._rows(sql, marks)]

    def last_committed(self, service: str, host: str) -> Deployment | None:
        """The deployment of `service` on `host` that was committed last, or None.

        Within a chain its order counts, not the clock; between chains, the time of the commit.
        """
        sql = f"""WITH done AS (
  SELECT t.ledger, t.op_id, max(x.seq) AS seq FROM deployment t {_NAMED}
  JOIN transition x ON x.ledger = t.ledger AND {_DONE}
  WHERE t.service = :service AND {_ON_HOST} GROUP BY t.ledger, t.op_id),
newest AS (SELECT ledger, op_id, max(seq) AS seq FROM done GROUP BY ledger)
{_DEPLOYMENT} JOIN newest n ON n.ledger = t.ledger AND n.op_id = t.op_id
JOIN transition c ON c.ledger = n.ledger AND c.seq = n.seq
ORDER BY c.at DESC, c.seq DESC LIMIT 1"""  # noqa: S608
        marks = {"service": service, "host": host, "committed": COMMITTED}
        found = self._rows(sql, marks)
        return _deployment(found[0]) if found else None

    def open_deployments(self, host: str | None = None) -> list[Deployment]:
        """Deployments that neither committed nor ended badly: running, or left behind."""
        bad = {f"bad{i}": state for i, state in enumerate(ENDED_BADLY)}
        names = ", ".join(f":{k}" for k in bad)
        sql = f"""{_DEPLOYMENT} WHERE {_ON_HOST} AND NOT EXISTS (SELECT 1 FROM transition x
WHERE ({_DONE}) OR (x.op_id = t.op_id AND x.state IN ({names})))
ORDER BY t.at DESC, t.seq DESC"""  # noqa: S608
        found = self._rows(sql, {"host": host, "committed": COMMITTED, **bad})
        return [_deployment(r) for r in found]

    def transitions(self, op_id: str) -> list[Transition]:
        """A deployment's transitions, first to last."""
        sql = "SELECT * FROM transition WHERE op_id = :op_id ORDER BY ledger, n"
        return [_transition(r) for r in self._rows(sql, {"op_id": op_id})]

    def launch(self, nonce: str) -> Launch | None:
        """One server start."""
        sql = f"{_LAUNCH} WHERE t.nonce = :nonce ORDER BY t.ledger = :own DESC LIMIT 1"
        found = self._rows(sql, {"nonce": nonce, "own": self.ledger_id})
        return _launch(found[0]) if found else None

    def launches(self, host: str | None = None, limit: int = 50) -> list[Launch]:
        """The last server starts by time."""
        sql = f"{_LAUNCH} WHERE {_ON_HOST} ORDER BY t.started DESC, t.seq DESC LIMIT :limit"
        return [_launch(r) for r in self._rows(sql, {"host": host, "limit": max(0, limit)})]

    def gates(self, nonce: str) -> list[Gate]:
        """The gates of one server start, first to last."""
        sql = "SELECT * FROM gate WHERE launch = :nonce ORDER BY ledger, seq"
        return [_gate(r) for r in self._rows(sql, {"nonce": nonce})]

    def deployment_gates(self, op_id: str) -> list[Gate]:
        """The gates of a whole deployment, those before its start too, first to last."""
        sql = "SELECT * FROM gate WHERE deployment = :op_id ORDER BY ledger, seq"
        return [_gate(r) for r in self._rows(sql, {"op_id": op_id})]


def _object(text: str) -> Mapping[str, object]:
    return cast("dict[str, object]", json.loads(text))


def _host(row: sqlite3.Row) -> StoredHost:
    return StoredHost(
        id=row["id"],
        name=row["name"],
        pins=_object(row["pins"]),
        ledger=row["ledger"],
        seq=row["seq"],
    )


def _facts(row: sqlite3.Row) -> StoredFacts:
    return StoredFacts(
        id=row["id"],
        host=row["host_name"],
        host_id=row["host"],
        at=when(row["at"]),
        digest=row["digest"],
        simulated=bool(row["simulated"]),
        json=_object(row["json"]),
        ledger=row["ledger"],
        seq=row["seq"],
    )


def _release(row: sqlite3.Row) -> Release:
    return Release(
        digest=row["digest"],
        service=row["service"],
        upstream=row["upstream"],
        spec=_object(row["spec"]),
        series=row["series"],
        lock=row["lock"],
        plugin=row["plugin"],
        model=row["model"],
        draft=row["draft"],
        at=when(row["at"]),
        ledger=row["ledger"],
        seq=row["seq"],
    )


def _deployment(row: sqlite3.Row) -> Deployment:
    return Deployment(
        op_id=row["op_id"],
        service=row["service"],
        release=row["release"],
        host=row["host_name"],
        host_id=row["host"],
        at=when(row["at"]),
        by=row["by"],
        previous=row["previous"],
        ledger=row["ledger"],
        seq=row["seq"],
    )


def _transition(row: sqlite3.Row) -> Transition:
    return Transition(
        op_id=row["op_id"],
        n=row["n"],
        state=row["state"],
        verdict=Outcome(row["verdict"]),
        evidence=_object(row["evidence"]),
        at=when(row["at"]),
        ledger=row["ledger"],
        seq=row["seq"],
    )


def _launch(row: sqlite3.Row) -> Launch:
    return Launch(
        nonce=row["nonce"],
        deployment=row["deployment"],
        host=row["host_name"],
        host_id=row["host"],
        release=row["release"],
        started=when(row["started"]),
        ledger=row["ledger"],
        seq=row["seq"],
    )


def _gate(row: sqlite3.Row) -> Gate:
    return Gate(
        id=row["id"],
        launch=row["launch"],
        deployment=row["deployment"],
        name=row["name"],
        verdict=Verdict(row["verdict"]),
        message=row["message"],
        evidence=_object(row["evidence"]),
        at=when(row["at"]),
        ledger=row["ledger"],
        seq=row["seq"],
    )
