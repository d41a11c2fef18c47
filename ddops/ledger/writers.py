"""One method for each kind of row. All of them redact, and answer the row's key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ddops.errors import DdopsError
from ddops.ledger.chain import Scalar
from ddops.ledger.records import Outcome
from ddops.ledger.store import Store
from ddops.model import GateResult, short

_HOST = """SELECT id, pins FROM host WHERE ledger = :ledger AND (id = :host OR name = :host)
ORDER BY id = :host DESC, seq DESC LIMIT 1"""
_RELEASE = """SELECT service, upstream, spec, series, lock, plugin, model, draft FROM "release"
WHERE ledger = :ledger AND digest = :digest"""
_SAME_NAME = """SELECT id, pins FROM host WHERE ledger = :ledger AND name = :name
ORDER BY seq DESC LIMIT 1"""
_LAST_N = "SELECT max(n) AS n FROM transition WHERE ledger = :ledger AND op_id = :op_id"


class Writers(Store):
    """Adding rows. `host` is a host's name (its newest row is meant) or its id."""

    def add_host(self, name: str, pins: Mapping[str, object]) -> str:
        """The host's id: the present one while the pins are the same, else a new one."""
        ident, text = self._clean.ident(name, "a host's name"), self._clean.json(pins)
        with self._writing():
            found = self._rows(_SAME_NAME, {"ledger": self.ledger_id, "name": ident})
            if found and found[0]["pins"] == text:
                return str(found[0]["id"])
            host_id = self._new_id()
            self._append("host", {"id": host_id, "name": ident, "pins": text})
            return host_id

    def add_facts(
        self,
        host: str,
        json: Mapping[str, object],
        *,
        digest: str,
        simulated: bool,
        at: datetime | None = None,
    ) -> str:
        """One collection of facts; `digest` is the collector's. Answers the row's id."""
        text, sha = self._clean.json(json), self._clean.hex64(digest, "the digest of facts")
        with self._writing():
            facts_id = self._new_id()
            row: dict[str, Scalar] = {
                "id": facts_id,
                "host": self._host_id(host),
                "at": self._at(at),
                "digest": sha,
                "simulated": int(simulated),
                "json": text,
            }
            self._append("facts", row)
            return facts_id

    def add_release(
        self,
        digest: str,
        *,
        service: str,
        spec: Mapping[str, object],
        upstream: str = "",
        series: str = "",
        lock: str = "",
        plugin: str = "",
        model: str = "",
        draft: str = "",
        at: datetime | None = None,
    ) -> str:
        """The digest. A release that is there with the same content is left alone.

        The same digest with other content is an error: one of the two is not what it says.
        """
        clean = self._clean
        sha = clean.hex64(digest, "the digest of a release")
        content: dict[str, Scalar] = {
            "service": clean.ident(service, "a service's name"),
            "upstream": clean.text(upstream),
            "spec": clean.json(spec),
            "series": clean.text(series),
            "lock": clean.text(lock),
            "plugin": clean.text(plugin),
            "model": clean.text(model),
            "draft": clean.text(draft),
        }
        with self._writing():
            found = self._rows(_RELEASE, {"ledger": self.ledger_id, "digest": sha})
            if not found:
                self._append("release", {"digest": sha, **content, "at": self._at(at)})
                return sha
        unlike = [k for k, v in content.items() if found[0][k] != v]
        if unlike:
            raise DdopsError(
                f"release {short(sha)} is recorded with other content",
                why=f"{', '.join(unlike)} differ, and a digest stands for one content",
                next="find out which of the two was made by hand; the ledger was not changed",
            )
        return sha

    def add_deployment(
        self,
        op_id: str,
        *,
        service: str,
        release: str,
        host: str,
        by: str,
        previous: str | None = None,
        at: datetime | None = None,
    ) -> str:
        """Begin a deployment. `previous` is the digest that served before, None for nothing."""
        clean = self._clean
        row: dict[str, Scalar] = {
            "op_id": clean.ident(op_id, "an operation's id"),
            "service": clean.ident(service, "a service's name"),
            "release": clean.hex64(release, "the digest of a release"),
            "by": clean.text(by),
            "previous": clean.hex64(previous, "the previous digest") if previous else None,
        }
        with self._writing():
            self._append("deployment", {**row, "host": self._host_id(host), "at": self._at(at)})
        return op_id

    def add_transition(
        self,
        op_id: str,
        state: str,
        verdict: Outcome,
        evidence: Mapping[str, object] | None = None,
        *,
        at: datetime | None = None,
    ) -> int:
        """The deployment's next transition. Answers its number within it, from 1."""
        row: dict[str, Scalar] = {
            "op_id": self._clean.ident(op_id, "an operation's id"),
            "state": self._clean.ident(state, "a state"),
            "verdict": Outcome(verdict).value,
            "evidence": self._clean.json(evidence or {}),
        }
        with self._writing():
            last = self._rows(_LAST_N, {"ledger": self.ledger_id, "op_id": op_id})[0]["n"]
            n = int(last or 0) + 1
            self._append("transition", {**row, "n": n, "at": self._at(at)})
        return n

    def add_launch(
        self,
        nonce: str,
        *,
        deployment: str,
        host: str,
        release: str,
        started: datetime | None = None,
    ) -> str:
        """One server start. `release` is what was started: at a rollback, the previous one."""
        clean = self._clean
        row: dict[str, Scalar] = {
            "nonce": clean.ident(nonce, "a launch's nonce"),
            "deployment": clean.ident(deployment, "an operation's id"),
            "release": clean.hex64(release, "the digest of a release"),
        }
        with self._writing():
            self._append(
                "launch", {**row, "host": self._host_id(host), "started": self._at(started)}
            )
        return nonce

    def add_gate(
        self,
        result: GateResult,
        *,
        deployment: str,
        launch: str | None = None,
        at: datetime | None = None,
    ) -> str:
        """One gate's verdict; `launch` is the nonce it was about. Answers the row's id."""
        clean = self._clean
        row: dict[str, Scalar] = {
            "id": self._new_id(),
            "launch": clean.ident(launch, "a launch's nonce") if launch is not None else None,
            "deployment": clean.ident(deployment, "an operation's id"),
            "name": clean.ident(result.name, "a gate's name"),
            "verdict": result.verdict.value,
            "message": clean.text(result.message),
            "evidence": clean.json(result.evidence),
        }
        with self._writing():
            self._append("gate", {**row, "at": self._at(at)})
        return str(row["id"])

    def _host_id(self, host: str) -> str:
        name = self._clean.ident(host, "a host's name")
        found = self._rows(_HOST, {"ledger": self.ledger_id, "host": name})
        if found:
            return str(found[0]["id"])
        raise DdopsError(
            f"the ledger does not know the host {name}",
            why="a row names its host, so the host's row comes first",
            next="call add_host before",
        )
