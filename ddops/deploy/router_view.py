"""What is told of a router: by `ddops status` and by `ddops drift`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddops.deploy.drift import Row, Same
from ddops.deploy.router import ReplicaSeen, RouterSeen
from ddops.inventory.router import Routed
from ddops.model import State, short

#: A replica's place behind its router.
OK, SICK, OUT, STRANGER = "ok", "unhealthy", "left out", "not in the inventory"
#: The router calls it healthy, and it did not answer when it was asked itself.
SILENT = "unknown"


@dataclass(frozen=True, slots=True)
class ReplicaWord:
    """One replica: by its host's name, by its URL where the inventory knows none."""

    name: str
    url: str
    health: str
    release: str
    nonce: str
    note: str


@dataclass(frozen=True, slots=True)
class RouterWord:
    """`state` is up, DOWN or unknown: a router that has no healthy replica is down.

    Where all that it calls healthy are silent, nobody knows.
    """

    state: str
    why: str
    replicas: tuple[ReplicaWord, ...]


def judge_router(routed: Routed, seen: RouterSeen) -> RouterWord:
    """A router against the inventory."""
    replicas = tuple(_replicas(routed, seen))
    if seen.state is State.DOWN:
        return RouterWord("DOWN", seen.why or "nobody listens on its port", replicas)
    if seen.state is State.UNKNOWN:
        return RouterWord("unknown", seen.why, replicas)
    silent = sum(r.healthy is True for r in seen.replicas)
    if not seen.healthy and silent:
        return RouterWord("unknown", f"none of {silent} replicas that it serves answers", replicas)
    if not seen.healthy:
        known = sum(r.healthy is not None for r in seen.replicas)
        return RouterWord("DOWN", f"up with no healthy replica, {known} known", replicas)
    if not seen.ready:
        return RouterWord("DOWN", "/readiness does not answer 200", replicas)
    return RouterWord("up", "", replicas)


def _replicas(routed: Routed, seen: RouterSeen) -> Iterator[ReplicaWord]:
    ours = {r.url: r.host for r in routed.replicas}
    for url, host in ours.items():
        one = seen.of(url)
        yield _word(host, one, "?" if seen.state is not State.UP else _health(one))
    for one in seen.replicas:
        if one.url not in ours and one.healthy is not None:
            yield _word(one.url, one, STRANGER)


def _health(one: ReplicaSeen) -> str:
    if one.healthy is None:
        return OUT
    if not one.healthy:
        return SICK
    return OK if one.proven else SILENT


def _word(name: str, one: ReplicaSeen, health: str) -> ReplicaWord:
    release, _, nonce = one.version.partition("-")
    return ReplicaWord(name, one.url, health, release or "-", nonce or "-", one.why)


def drift_rows(
    routed: Routed, word: RouterWord, host: str, wanted: str, current: str | None
) -> list[Row]:
    """A replica's place behind its router; with the first replica, the router's own rows."""
    mine = next(r for r in word.replicas if r.name == host)
    behind = {"?": Same.UNKNOWN, SILENT: Same.UNKNOWN, OK: Same.YES}.get(mine.health, Same.NO)
    found = [Row("behind router", "served, healthy", mine.health, behind)]
    if host != routed.replicas[0].host:
        return found
    up = {"up": Same.YES, "unknown": Same.UNKNOWN}.get(word.state, Same.NO)
    found.append(Row("router", "up", f"{word.state}{word.why and ': '}{word.why}", up))
    now = short(current) if current else "nothing"
    same = Same.YES if wanted == current else Same.NO
    found.append(Row("router release", short(wanted), now, same))
    strangers = [r.url for r in word.replicas if r.health == STRANGER]
    if strangers:
        found.append(Row("router replicas", "the inventory's", ", ".join(strangers), Same.NO))
    return found
