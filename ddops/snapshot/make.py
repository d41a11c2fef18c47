"""Taking a snapshot: host, store, both copies, each verified before the ledger says so.

    looked -> captured -> stored -> git: uploaded, read back, published -> restic: the same

Run again after a kill at any point, it finds what is done and goes on: the same tree and record
are the same snapshot. A copy counts once its place has read it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ddops.clock import Clock
from ddops.errors import DdopsError, PartialError, RefusedError
from ddops.events import Event, Level, Reporter
from ddops.inventory.model import Host
from ddops.ledger import Ledger
from ddops.probe import Facts, collect
from ddops.snapshot.host import Source, Want, pack_of
from ddops.snapshot.model import Manifest, name_of
from ddops.snapshot.note import note
from ddops.snapshot.record import Seen, expanded, manifest_of, record_files, unexpanded
from ddops.snapshot.store import Store
from ddops.transport import Transport

Lookup = Callable[[str], Path]


class Place(Protocol):
    """Somewhere a verified copy is kept."""

    @property
    def name(self) -> str: ...

    @property
    def costly(self) -> bool:
        """Whether asking what is there takes seconds."""
        ...

    def keep(self, store: Store, manifest: Manifest) -> dict[str, object]:
        """Copy, read back, publish; what was done. Raises when the copy does not verify."""
        ...

    def check(self, store: Store, manifest: Manifest) -> None: ...

    def drop(self, store: Store, manifests: Sequence[Manifest]) -> None: ...

    def there(self) -> list[str]:
        """Ids of the whole snapshots that are there."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What a snapshot is given. `mask` hides secrets in JSON-like data."""

    store: Store
    places: Sequence[Place]
    ledger: Callable[[], AbstractContextManager[Ledger]]
    lookup: Lookup
    mask: Callable[[object], object]
    clock: Clock
    report: Reporter
    allow: Sequence[str] = ()
    large_bytes: int = 64 << 20
    keep: int | None = None
    lock_wait_s: float = 60.0


@dataclass(slots=True)
class Made:
    """A snapshot and where it is. `fresh` is False when it was there already."""

    manifest: Manifest
    fresh: bool
    copies: dict[str, str] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        m = self.manifest
        return {"id": m.id, "host": m.host, "service": m.service, "release": m.release,
                "tree": m.tree_hash, "fresh": self.fresh, "copies": dict(self.copies),
                "took_s": {k: round(v, 3) for k, v in self.took.items()}}  # fmt: skip


def snapshot_host(
    transport: Transport, host: Host, service: str | None, tree: str | None, tools: Tools
) -> Made:
    """Snapshot one host and bring it to every place. Raises when a copy did not verify."""
    made = take(transport, host, service, tree, tools)
    copy_out(made, tools)
    return made


def take(
    transport: Transport,
    host: Host,
    service: str | None,
    tree: str | None,
    tools: Tools,
    *,
    facts: Facts | None = None,
    kept: bool = False,
    seen: dict[str, object] | None = None,
) -> Made:
    """The snapshot, in the project's own store only.

    `facts` and `seen`, which is `about`, are those that the caller has just collected. With
    `kept`, a tree that the last snapshot holds is that snapshot, whatever else has changed since.
    """
    began = time.monotonic()
    source, told = Source(transport, host), tree or _vars_tree(host)
    with ThreadPoolExecutor(2, thread_name_prefix="snapshot") as pool:
        known_facts = pool.submit(_facts, transport, host) if facts is None else None
        asked = pool.submit(lambda: seen or source.about(service, told))
        # A tree that was named need not be looked for: both go at once.
        where = told or _tree_of(host, asked.result())
        looked = time.monotonic()
        known = [m.commit for m in tools.store.manifests(host.name)
                 if m.tree["path"] == unexpanded(where, host.engine_dir)][:10]  # fmt: skip
        now = tools.clock.now()
        want = Want(where, known, tools.allow, tools.large_bytes, int(now.timestamp()),
                    tools.lock_wait_s)  # fmt: skip
        captured = source.capture(want)
        belongs = asked.result()
        taken = time.monotonic()
        last = tools.store.latest(host.name, unexpanded(where, host.engine_dir)) if kept else None
        if last is not None and last.tree_hash == captured["tree"]:
            return Made(last, fresh=False, took={"look": looked - began, "capture": taken - looked})
        found = facts if known_facts is None else _settled(known_facts, host, tools.report)
        whole = Seen(host, service if belongs["release"] else None, where, belongs, captured,
                     found, now)  # fmt: skip
    waited = time.monotonic()
    with tools.store.locked():
        _receive(source, where, captured, tools.store)
        made = _manifest(whole, tools)
    made.took |= {"look": looked - began, "capture": taken - looked, "facts": waited - taken,
                  "store": time.monotonic() - waited,
                  "plumbing": float(str(captured["plumbing_s"]))}  # fmt: skip
    _note(made, tools)
    for words in made.manifest.apart:
        _say(tools, made, words, Level.WARN if words.startswith("left out") else Level.INFO)
    return made


def about(transport: Transport, host: Host, service: str | None) -> dict[str, object]:
    """What belongs to the host's tree, without taking it."""
    return Source(transport, host).about(service, _vars_tree(host))


def copy_out(made: Made, tools: Tools) -> None:
    """Bring a snapshot to every place and record how that went; then retention."""
    failed: list[DdopsError] = []
    for place in tools.places:
        began = time.monotonic()
        try:
            done = _known(place, made, tools) or place.keep(tools.store, made.manifest)
            made.copies[place.name] = "verified"
            _say(tools, made, f"{place.name}: {_words(done)}")
            _copy_row(made, place, "verified", done, tools)
        except DdopsError as error:
            made.copies[place.name] = "failed"
            failed.append(error)
            _copy_row(made, place, "failed", {"why": str(error)}, tools)
        finally:
            made.took[place.name.partition(":")[0]] = time.monotonic() - began
    if failed:
        raise _not_backed_up(made, tools, failed)
    if not tools.places:
        _say(tools, made, "kept in this project only: no [backup] is set up", Level.WARN)
    if tools.keep is not None and tools.places:
        from ddops.snapshot.retain import retain

        retain(made.manifest.host, tools.keep, tools)


def _known(place: Place, made: Made, tools: Tools) -> dict[str, object] | None:
    """What is on record of a copy that is costly to look at; None where it must be made.

    Only `snapshot verify` asks such a place again: an unchanged tree costs nothing there.
    """
    if made.fresh or not place.costly:
        return None
    with tools.ledger() as ledger:
        for copy in ledger.copies(made.manifest.id):
            if copy.place == place.name and copy.state == "verified":
                return {"words": f"verified at {copy.at:%Y-%m-%d %H:%M}, nothing new"}
    return None


def _receive(source: Source, tree: str, captured: Mapping[str, object], store: Store) -> None:
    """Bring the objects that are new into the store, then the large files."""
    data, told = pack_of(captured)
    if told is not None:
        if data is None:
            partial = store.incoming / f"{told['sha256']}.pack"
            source.fetch(str(told["path"]), int(str(told["bytes"])), partial)
            try:
                store.repo.take_pack(partial)
            finally:
                partial.unlink()
        else:
            store.repo.take_pack(data)
    store.repo.run("cat-file", "-e", f"{captured['commit']}^{{tree}}")
    rows = captured["large"]
    for row in rows if isinstance(rows, list) else []:
        _large(source, row, tree, store)


def _large(source: Source, row: Mapping[str, object], tree: str, store: Store) -> None:
    """One large file, kept under the hash of what arrived."""
    from ddops.snapshot.large import file_sha256

    target = store.large(str(row["sha256"]))
    if target.exists():
        return
    partial = store.incoming / f"{row['sha256']}.large"
    source.fetch(f"{tree}/{name_of(str(row['path']))}", int(str(row["bytes"])), partial)
    if (found := file_sha256(partial)) != row["sha256"]:
        partial.unlink()
        raise RefusedError(
            f"{source.host.name}: {row['path']} changed while it was copied",
            why=f"sha256 {str(row['sha256'])[:12]} before, {found[:12]} after",
            next=f"ddops snapshot {source.host.name} when the edit is done",
        )
    partial.replace(target)


def _manifest(seen: Seen, tools: Tools) -> Made:
    """The snapshot of what was seen: the last one when nothing is new, else a new one."""
    last = tools.store.latest(seen.host.name, unexpanded(seen.tree, seen.host.engine_dir))
    files = record_files(seen, tools.mask, tools.lookup)
    manifest = manifest_of(seen, files, last)
    if last is not None and last.same == manifest.same:
        return Made(last, fresh=False)
    tools.store.put(manifest, files)
    return Made(manifest, fresh=True)


def _note(made: Made, tools: Tools) -> None:
    with tools.ledger() as ledger:
        note(ledger, made.manifest)


def _copy_row(
    made: Made, place: Place, state: str, evidence: Mapping[str, object], tools: Tools
) -> None:
    with tools.ledger() as ledger:
        note(ledger, made.manifest)
        ledger.add_copy(made.manifest.id, place=place.name, state=state, evidence=evidence)


def _not_backed_up(made: Made, tools: Tools, failed: Sequence[DdopsError]) -> DdopsError:
    """The one error, or several as one; the snapshot itself is in the store."""
    if len(tools.places) == len(failed) == 1:
        return failed[0]
    error = PartialError(
        f"{made.manifest.host}: snapshot {made.manifest.id[:12]} is not backed up at"
        f" {len(failed)} of {len(tools.places)} places",
        why="; ".join(str(e) for e in failed),
        next=f"ddops snapshot {made.manifest.host} goes on where it stopped",
    )
    codes = {e.exit_code for e in failed}
    if len(failed) == len(tools.places) and len(codes) == 1:
        error.exit_code = codes.pop()
    return error


def _facts(transport: Transport, host: Host) -> Facts:
    return collect(transport, host.python, host.engine_dir, str(host.vars.get("root", "/")))


def _settled(facts: Future[Facts], host: Host, report: Reporter) -> Facts | None:
    """Facts; a tree is worth keeping without them, and that is said."""
    try:
        return facts.result()
    except DdopsError as error:
        words = f"the snapshot holds no facts: {error.what}"
        report.emit(Event("snapshot", words, host.name, Level.WARN))
        return None


def _vars_tree(host: Host) -> str | None:
    value = host.vars.get("tree")
    return expanded(str(value), host.engine_dir) if value else None


def _tree_of(host: Host, about: Mapping[str, object]) -> str:
    if about["tree"] is None or not about["tree_there"]:
        where = f"{about['tree']} is not there" if about["tree"] else (
            f"neither {host.engine_dir}/tree nor an environment with sglang")  # fmt: skip
        raise RefusedError(
            f"{host.name}: no source tree to take",
            why=where,
            next=f"ddops snapshot {host.name} --tree PATH, or set vars.tree in hosts.toml",
        )
    return str(about["tree"])


def _words(done: Mapping[str, object]) -> str:
    return str(done.get("words", "verified"))


def _say(tools: Tools, made: Made, message: str, level: Level = Level.INFO) -> None:
    tools.report.emit(Event("snapshot", message, made.manifest.host, level))
