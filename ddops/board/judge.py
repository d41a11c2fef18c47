"""What a state amounts to, in words. Pure: the same for the board, `ddops status` and a replay."""

from __future__ import annotations

from collections.abc import Iterator

from ddops.board.model import Event, Fresh, Gpu, HostState, ServiceSeen
from ddops.gates import Observation, judge_g1, judge_g2
from ddops.model import State, Verdict, short

#: Bits of nvidia-smi's reasons that hold clocks down against the load's wish.
THROTTLES = (
    (0x4, "power cap"), (0x8, "hw slowdown"), (0x20, "sw thermal"), (0x40, "hw thermal"),
    (0x80, "power brake"),
)  # fmt: skip


def health_word(seen: Observation, committed: str | None, *, follower: bool = False) -> str:
    """`ok`: a 200 from our own process that is this start of a release that passed its gates."""
    if seen.health is None or seen.launch is None:
        return "port not ours" if seen.port.listening else "not listening"
    if seen.health.status != 200:
        return str(seen.health.status or "no answer")
    said = seen.model_info.values.get("weight_version") if seen.model_info else None
    if not follower and said != seen.launch.weight_version:
        return "wrong identity"
    if seen.unproven:
        return "unproven"
    # Healthy is not proven right: a start that failed its gates answers /health too.
    return "ok" if committed == seen.launch.release else "ungated"


def unit_word(seen: Observation) -> str:
    """What systemd says of the unit; without one, the process's own state."""
    if seen.unit is not None:
        more = f" x{seen.unit.restarts}" if seen.unit.restarts else ""
        return seen.unit.active + more
    return seen.engine.value


def device_word(seen: Observation) -> str:
    """`sim` or `cpu` where the server says so itself."""
    values = seen.server_info.values if seen.server_info else {}
    if values.get("ddops_simulated"):
        return "sim"
    return "cpu" if values.get("device") == "cpu" else ""


def reach_word(state: HostState, now: float) -> str:
    """`up`: the last try was answered, not long ago. Silence is never `down`."""
    if state.look is None:
        return "no answer" if state.error else "asking"
    if state.error:
        return "no answer"
    return "up" if state.fresh(now) is Fresh.NOW else "silent"


def throttle_words(gpu: Gpu) -> str:
    """Why the clocks are held down; empty when they are not, `?` when it was not told."""
    if gpu.throttle is None:
        return "?"
    return ", ".join(word for bit, word in THROTTLES if gpu.throttle & bit)


def drift_word(state: HostState) -> str:
    """`same`, `drift` or `?`, of the last look for it; empty before the first, and of nothing."""
    if state.drift is None:
        return ""
    if state.drift.error:
        return "?"
    if not state.drift.rows:
        return ""  # nothing was released there: nothing can have drifted
    verdicts = {r.verdict for r in state.drift.rows}
    if "drift" in verdicts:
        return "drift"
    return "?" if "unknown" in verdicts else "same"


def ladder_now(seen: ServiceSeen) -> Iterator[tuple[str, Verdict, str]]:
    """G0 to G3 as this look alone shows them: a name, a verdict, what was seen."""
    o = seen.observation
    engine = {State.UP: Verdict.PASS, State.DOWN: Verdict.FAIL}.get(o.engine, Verdict.UNKNOWN)
    pid = f"pid {o.pid} runs" if o.engine is State.UP else o.engine_why
    if o.unit is not None and o.unit.active != "active":
        engine = Verdict.UNKNOWN if o.unit.active == "unknown" else Verdict.FAIL
        pid = f"{o.unit.name} is {o.unit.active}"
    yield "G0", engine, pid
    for gate in (judge_g1(o), judge_g2(o)):
        yield gate.name, gate.verdict, gate.message
    if o.launch is None or o.model_info is None:
        yield "G3", Verdict.UNKNOWN, "identity was not asked"
        return
    said = o.model_info.values.get("weight_version")
    right = said == o.launch.weight_version
    words = f"it is {said}" if right else f"it is {said!r}, not {o.launch.weight_version}"
    yield "G3", Verdict.PASS if right else Verdict.FAIL, words


def changes(old: HostState, new: HostState, at: float) -> Iterator[Event]:
    """What is different between two states of a host, in words a person would log."""
    name = new.spec.name
    if new.error and not old.error:
        yield Event(at, name, f"no answer: {new.error}", bad=True)
    if old.error and not new.error:
        lost = at - old.since if old.since is not None else 0.0
        yield Event(at, name, f"answers again, after {lost:.0f} s")
    was, now = drift_word(old), drift_word(new)
    if now != was and was + now != "same":
        odd = ", ".join(
            r.what for r in (new.drift.rows if new.drift else ()) if r.verdict != "same"
        )
        words = {"drift": f"drifted: {odd}", "same": "no drift any more"}
        yield Event(at, name, words.get(now, "whether it drifted is not known"), now == "drift")
    if old.look is None or new.look is None or old.look is new.look:
        return
    before, after = old.look.held, new.look.held
    if (before is None) is not (after is None):
        yield Event(at, name, f"locked by {after.describe()}" if after else "lock released")
    for service, seen in new.look.services.items():
        if service in old.look.services:
            follower = new.spec.follows(service)
            yield from _service(name, service, old.look.services[service], seen, at, follower)
    hot = {g.index for g in new.look.gpus or () if throttle_words(g) not in ("", "?")}
    hot -= {g.index for g in old.look.gpus or () if throttle_words(g) not in ("", "?")}
    if hot:
        yield Event(at, name, f"clocks held down on GPU {', '.join(sorted(hot))}", bad=True)


def _service(
    host: str, service: str, old: ServiceSeen, new: ServiceSeen, at: float, follower: bool
) -> Iterator[Event]:
    a, b = old.observation, new.observation
    if a.engine is not b.engine:
        why = f": {b.engine_why}" if b.engine_why else ""
        yield Event(at, host, f"{service} is {b.engine.value}{why}", bad=b.engine is not State.UP)
    if b.launch is not None and (a.launch is None or a.launch.nonce != b.launch.nonce):
        words = f"{service} was started: {short(b.launch.release)}, nonce {b.launch.nonce}"
        yield Event(at, host, words)
    if b.engine is State.UP:
        was = health_word(a, old.committed, follower=follower)
        now = health_word(b, new.committed, follower=follower)
        if was != now:
            yield Event(at, host, f"{service} health: {now}", bad=now != "ok")
    if old.committed != new.committed and new.committed:
        yield Event(at, host, f"{service} committed {short(new.committed)}")
