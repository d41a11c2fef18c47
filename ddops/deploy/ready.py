"""Waiting for an engine: patient while it loads, quick when it cannot come."""

from __future__ import annotations

from dataclasses import dataclass

from ddops.clock import Clock
from ddops.command import Redactor
from ddops.deploy.host import ServiceOnHost
from ddops.deploy.stop import Stop
from ddops.engines.sglang import FATAL_LINES
from ddops.errors import GateFailed, HostKeyError, UnreachableError
from ddops.events import Event, Level, Reporter
from ddops.gates import Observation
from ddops.model import State

POLL_S = 0.5
#: At first it is asked as soon as an answer is read: a small engine is there at once.
SOON_S = 0.005
#: A queue is asked less often: its controller serves a whole cluster.
QUEUE_S = 2.0
#: A start must show its launch record within this time; forking takes milliseconds.
APPEAR_S = 20.0
#: A load that keeps making progress may take this many times its budget, then it is given up.
STRETCH = 4
#: An engine that printed a fatal line and neither ends nor serves is given up after this time.
FATAL_S = 15.0
SHOWN_LINES, SHOWN_CHARS = 15, 400
#: A connection may be lost for this long during a load: a load goes on without us.
LOST_S = 60.0


@dataclass(slots=True)
class Waiter:
    """Waits for one start. `log_from` is the log's size before it."""

    service: ServiceOnHost
    op_id: str
    log_from: int
    budget_s: float
    clock: Clock
    stop: Stop
    report: Reporter
    redactor: Redactor
    nonce: str | None = None
    fatal_since: float | None = None
    lost_since: float | None = None

    def ready(self) -> Observation:
        """Return the first observation with a healthy engine of ours on the port.

        Raises `GateFailed` when the engine died, prints a fatal line, or does not come in time;
        the message carries the last lines of its log, redacted.
        """
        began = progress = told = asked = self.clock.monotonic()
        size = self.log_from
        while True:
            self.stop.check("while the engine was loading")
            seen = self._look()
            if seen is None:
                self.stop.wait(POLL_S)
                continue
            ours = seen.launch is not None and seen.launch.op_id == self.op_id
            now = self.clock.monotonic()
            if ours and seen.healthy:
                return seen
            queued = self._queued(seen, now - asked)
            if queued:
                began = progress = now
            else:
                self._fail_fast(seen, ours, now, began)
            if seen.log_size != size:
                size, progress = seen.log_size, now
            if now - progress > self.budget_s or now - began > STRETCH * self.budget_s:
                raise self._failed(seen, "G2", f"not ready after {now - began:.0f} s")
            if now - told > 10:
                told = now
                self._tell(seen, now - asked)
            if queued:
                self.stop.wait(QUEUE_S)
            else:
                self.stop.wait(POLL_S if now - began > POLL_S else SOON_S)

    def _queued(self, seen: Observation, waited: float) -> bool:
        """Whether a scheduler has no nodes for it yet; too long, or over before it ran, fails."""
        job = seen.job
        if job is None:
            return False
        if job.restarts:
            raise self._failed(seen, "G0", f"{job.why}: the node it was started on is lost")
        limit = self.service.host.slurm.queue_s
        if job.waits and waited > limit:
            raise self._failed(seen, "G0", f"{job.why}, for {limit:g} s")
        if not job.waits and job.state != "RUNNING":
            raise self._failed(seen, "G0", f"{job.why}: the engine ended while loading")
        return job.waits

    def _look(self) -> Observation | None:
        """One look; None while the connection is lost, which says nothing about the engine."""
        began = self.clock.monotonic()
        try:
            seen = self.service.observe()
        except HostKeyError:
            raise
        except UnreachableError as error:
            if self.lost_since is None:
                self.lost_since = began
                words = f"no answer while loading, trying on: {error.what}"
                self.report.emit(Event("loading", words, self.service.host.name, Level.WARN))
            if self.clock.monotonic() - self.lost_since > min(LOST_S, self.budget_s):
                raise
            return None
        self.lost_since = None
        return seen

    def _fail_fast(self, seen: Observation, ours: bool, now: float, began: float) -> None:
        if not ours:
            if seen.launch is not None and not seen.launch.op_id:  # nobody's start but a boot's
                raise self._failed(seen, "G0", "the host was booted, and this start is gone")
            if now - began > APPEAR_S:
                raise self._failed(seen, "G0", "the engine was not started")
            return
        nonce = seen.launch.nonce if seen.launch else None
        self.nonce = self.nonce or nonce
        if seen.engine is State.DOWN or nonce != self.nonce:
            raise self._failed(seen, "G0", "the engine ended while loading")
        if fatal_line(self.tail(seen)) is None:
            self.fatal_since = None
        elif self.fatal_since is None:
            self.fatal_since = now
        elif now - self.fatal_since > FATAL_S:
            raise self._failed(seen, "G0", "the engine hangs after a fatal line")

    def _failed(self, seen: Observation, gate: str, what: str) -> GateFailed:
        # Masked whole, then cut: what is cut first may end in half a secret.
        lines = [x[:SHOWN_CHARS] for x in self.redactor(self.tail(seen)).splitlines()]
        shown = "\n  ".join(lines[-SHOWN_LINES:])
        fatal = fatal_line(self.tail(seen))
        why = (f"{fatal}\n" if fatal else "") + f"last lines of the log:\n  {shown}"
        return GateFailed(
            f"{self.service.host.name}: {gate}: {what}",
            gate=gate,
            why=self.redactor(why),
            next=f"the whole log is {self.service.where.log}/engine.log on the host",
        )

    def tail(self, seen: Observation) -> str:
        """What the log gained since the start, as far as the observation holds it."""
        gained, raw = seen.log_size - self.log_from, seen.log_tail.encode()
        if not 0 < gained < len(raw):
            return seen.log_tail
        # Bytes, as the sizes are: progress bars are full of letters of three.
        before, new = raw[:-gained], raw[-gained:]
        if not before.endswith((b"\n", b"\r")):
            new = b"".join(new.splitlines(keepends=True)[1:])  # half a line may be half a secret
        return new.decode("utf-8", "replace")

    def _tell(self, seen: Observation, waited: float) -> None:
        last = (self.tail(seen).strip().splitlines() or ["no line yet"])[-1]
        if seen.job is not None and seen.job.waits:
            last = seen.job.why
        self.report.emit(
            Event(
                "loading",
                f"loading, {waited:.0f} s: {last[:120]}",
                self.service.host.name,
                Level.INFO,
                {"log_size": seen.log_size},
            )
        )


def fatal_line(log: str) -> str | None:
    """The first line that says the start cannot succeed, or None."""
    for line in log.splitlines():
        if any(mark in line for mark in FATAL_LINES):
            return line.strip()[:300]
    return None
