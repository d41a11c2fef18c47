"""Speed and commit length, each with where it comes from and how old it is. Pure.

Nothing is taken from what is configured. An engine's gauges hold its last interval of work, so
they count only while it works; the counter of decoded tokens is right at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddops.board.model import HostState, Load, RunSeen, ServiceSeen

#: Two looks closer or farther apart than this give no rate, in seconds.
NEAREST_S, FARTHEST_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` None: the engine rests. `mark` is the source in one letter, `at` its moment.

    `at` is None for a figure of the last look itself. `device` is " sim" or " cpu" where a run
    was not made on a GPU.
    """

    value: float | None
    mark: str
    source: str
    at: float | None = None
    device: str = ""


def speed(state: HostState, service: str, runs: Iterable[RunSeen]) -> Figure | None:
    """Output tokens per second of a service, or None where nothing tells it."""
    seen = _of(state, service)
    if seen is not None and seen.observation.health is not None:
        load, counted = seen.load, _counted(state, service)
        if counted is not None and (counted > 0 or not load.running):
            return Figure(counted, "c", "/metrics: tokens decoded between the last two looks")
        if load.running == 0:
            return Figure(None, "m", "/metrics: no request is running")
        if load.gen_tps is not None:
            return Figure(load.gen_tps, "m", "/metrics: gen_throughput, the last interval")
        if load.last_tps is not None:
            return Figure(load.last_tps, "i", "/server_info: last_gen_throughput, of unknown age")
    run = last_run(state, service, runs)
    if run is None or run.output_tps is None:
        return None
    return _of_run(run.output_tps, run)


def commit_length(state: HostState, service: str, runs: Iterable[RunSeen]) -> Figure | None:
    """Tokens committed per verify pass, or None where nothing tells it."""
    seen = _of(state, service)
    if seen is not None and seen.observation.health is not None:
        load = seen.load
        if load.accept is not None and load.running:
            return Figure(load.accept, "m", "/metrics: spec_accept_length, the last interval")
        if load.lifetime_accept is not None:
            words = "/server_info: avg_spec_accept_length, since the start"
            return Figure(load.lifetime_accept, "i", words)
    run = last_run(state, service, runs)
    if run is None or run.commit is None:
        return None
    return _of_run(run.commit, run)


def _of_run(value: float, run: RunSeen) -> Figure:
    words = f"run {run.id} on {run.device_class}: {run.label or run.suite}"
    return Figure(
        value, "r", words, run.at, "" if run.device_class == "gpu" else " " + run.device_class
    )


def last_run(state: HostState, service: str, runs: Iterable[RunSeen]) -> RunSeen | None:
    """The newest run of this host that counts, and is of the release that runs there now."""
    seen = _of(state, service)
    launch = seen.observation.launch if seen is not None else None
    found = (
        r for r in runs
        if r.counts and r.host == state.spec.name
        and launch is not None and r.release == launch.release
    )  # fmt: skip
    return max(found, key=lambda r: r.at, default=None)


def load_of(state: HostState, service: str) -> Load | None:
    """What the engine said of its load at the last look."""
    seen = _of(state, service)
    return seen.load if seen is not None else None


def _of(state: HostState, service: str) -> ServiceSeen | None:
    return state.look.services.get(service) if state.look is not None else None


def _counted(state: HostState, service: str) -> float | None:
    """Tokens per second between the last two looks, by the host's own clock, of one start."""
    if state.look is None or state.before is None or service not in state.before.services:
        return None
    old, new = state.before.services[service], state.look.services[service]
    a, b = old.observation.launch, new.observation.launch
    if a is None or b is None or a.nonce != b.nonce:
        return None
    was, now = old.load, new.load
    if was.decoded is None or now.decoded is None or was.host_at is None or now.host_at is None:
        return None
    seconds, tokens = now.host_at - was.host_at, now.decoded - was.decoded
    if not NEAREST_S <= seconds <= FARTHEST_S or tokens < 0:
        return None
    return tokens / seconds
