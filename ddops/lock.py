"""The host's own lock: who is at work here. It lives on the target, so a second operator sees it.

Taking it is one rename of a prepared folder onto the lock's name: the kernel refuses when the
lock is held, and the owner's name is in it from the first moment.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ddops.clock import Clock
from ddops.command import sh
from ddops.config.files import parse_json
from ddops.errors import CommandFailed, DdopsError, LockHeldError
from ddops.layout import HostLayout
from ddops.transport import Transport

HEARTBEAT_S = 10.0
#: A lock whose heart has not beaten for this long is stale: it may be released by hand.
STALE_S = 60.0

_TAKE = """
set -u; umask 077; lock=$1; new="$1.$2"
state=$(dirname "$lock")
# The folder above is no secret: others read environments and weights there.
(umask 022; mkdir -p "$(dirname "$state")") && mkdir -p "$state" && mkdir "$new" || exit 1
cat > "$new/owner.json" && : > "$new/heartbeat" || exit 1
if mv -T "$new" "$lock" 2>/dev/null; then exit 0; fi
rm -rf "$new"; [ -d "$lock" ] && exit 75; exit 1
"""
_READ = """
[ -d "$1" ] || exit 3
cat "$1/owner.json" 2>/dev/null; printf '\\n'
seen=$(stat -c %Y "$1/heartbeat" 2>/dev/null || stat -c %Y "$1")
now=$(date +%s); echo $((now - seen))
"""
_BEAT = """
grep -qsF "$2" "$1/owner.json" || exit 75
touch "$1/heartbeat"
"""
# The folder is renamed away first: a half-removed lock would look free to nobody and held to all.
# Looked at again behind the rename: another release may have come between, and a new owner.
_RELEASE = """
[ -d "$1" ] || exit 3
if [ -n "$2" ]; then grep -qF "$2" "$1/owner.json" || exit 75; fi
mv -T "$1" "$1.$3" || exit 1
if [ -n "$2" ] && ! grep -qF "$2" "$1.$3/owner.json"; then mv -T "$1.$3" "$1"; exit 75; fi
rm -rf "$1.$3"
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lock. `token` is the run's own and is never shown to others.

    `process` is the holder's process in words that nobody else can have: boot id, pid
    namespace and start tick; empty where the system does not tell.
    """

    token: str
    who: str
    where: str
    pid: int
    purpose: str
    at: str
    process: str = ""

    @property
    def gone(self) -> bool:
        """Whether the holder has certainly ended: it ran on this very machine, and is not there.

        False where that cannot be known, as for a holder on another machine.
        """
        before, _, ticks = self.process.rpartition("/")
        mine = _process(os.getpid())
        if not before or before != mine.rpartition("/")[0]:
            return False
        return _process(self.pid).rpartition("/")[2] != ticks


def owner(op_id: str, purpose: str, clock: Clock) -> Owner:
    """This process, as the holder of a lock for one operation."""
    return Owner(
        token=f"{op_id}.{secrets.token_hex(8)}",
        who=getpass.getuser(),
        where=socket.gethostname(),
        pid=os.getpid(),
        purpose=purpose,
        at=clock.now().isoformat(timespec="seconds"),
        process=_process(os.getpid()),
    )


def _process(pid: int) -> str:
    """`boot id/pid namespace/start tick`; the tick is `-` where no such process runs."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *rest = stat.rpartition(") ")[2].split()
    except (OSError, ValueError):
        return f"{boot}/{space}/-"
    return f"{boot}/{space}/{'-' if state in 'ZX' else rest[18]}"


@dataclass(frozen=True, slots=True)
class Held:
    """A lock as seen on the host. `age_s` is the time since its last heartbeat."""

    owner: Owner | None
    age_s: float

    @property
    def stale(self) -> bool:
        return self.age_s > STALE_S

    def describe(self) -> str:
        """Owner, purpose and age in words."""
        if self.owner is None:
            return f"an unreadable owner, last heartbeat {self.age_s:.0f} s ago"
        o = self.owner
        return (
            f"{o.who}@{o.where} pid {o.pid} ({o.purpose}) since {o.at},"
            f" last heartbeat {self.age_s:.0f} s ago{', stale' if self.stale else ''}"
        )


def read(transport: Transport, layout: HostLayout) -> Held | None:
    """The host's lock, or None when it is free."""
    done = transport.run(sh(_READ, layout.lock))
    if done.rc == 3:
        return None
    if not done.ok:
        raise CommandFailed(
            f"{transport.host}: the lock cannot be read", rc=done.rc, stderr=done.err
        )
    text, _, age = done.out.strip().rpartition("\n")
    return parse_held(text, age)


def parse_held(text: str, age: str) -> Held:
    """A lock that is held, from its owner's file and the seconds since its last heartbeat."""
    try:
        owner = Owner(**parse_json(text))
    except (ValueError, TypeError):
        owner = None
    return Held(owner, float(age))


def take(
    transport: Transport,
    layout: HostLayout,
    owner: Owner,
    *,
    wait_s: float = 0.0,
    pause: Callable[[float], None] = time.sleep,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Take the lock, waiting up to `wait_s`; `LockHeldError` names the owner.

    `pause` sleeps between two tries, and raises when nobody wants to wait any more; `tell` hears
    once for whom it waits.

    A lock whose holder has certainly ended, as after a kill, is taken over: there is nobody to
    ask, and what it left half done is what this run looks at first.
    """
    body = json.dumps(asdict(owner)).encode()
    waited = 0.0
    while True:
        done = transport.run(sh(_TAKE, layout.lock, secrets.token_hex(4)).with_stdin(body))
        if done.ok:
            return
        if done.rc != 75:
            raise CommandFailed(
                f"{transport.host}: the lock cannot be taken", rc=done.rc, stderr=done.err,
                next=f"ddops provision {transport.host}",
            )  # fmt: skip
        held = read(transport, layout)
        if held is not None and held.owner is not None and held.owner.gone:
            _take_over(transport, layout, held.owner)
            continue
        if waited >= wait_s:
            what = held.describe() if held else "somebody who released it just now"
            stale = held is not None and held.stale
            raise LockHeldError(
                f"{transport.host}: locked by {what}",
                next=f"ddops lock release {transport.host} --stale"
                if stale
                # Not every command that takes the lock can be told to wait for it.
                else f"wait until it has ended: ddops lock status {transport.host}",
            )
        if not waited:
            holder = held.describe() if held else "a run that has just ended"
            tell(f"waiting up to {wait_s:g} s for the lock of {holder}")
        pause(1.0)
        waited += 1.0


def release(transport: Transport, layout: HostLayout, *, token: str = "") -> bool:
    """Give the lock back; with a token only if it is still ours. False when it was free."""
    done = transport.run(sh(_RELEASE, layout.lock, token, secrets.token_hex(4)))
    if done.rc == 3:
        return False
    if done.rc == 75:
        raise LockHeldError(
            f"{transport.host}: the lock is no longer ours",
            why="somebody released or took it in the meantime",
            next=f"ddops lock status {transport.host}",
        )
    if not done.ok:
        raise CommandFailed(
            f"{transport.host}: the lock cannot be released", rc=done.rc, stderr=done.err
        )
    return True


def _take_over(transport: Transport, layout: HostLayout, gone: Owner) -> None:
    try:
        release(transport, layout, token=gone.token)
    except LockHeldError:
        return  # another run was quicker: the next try meets that one


@dataclass(slots=True)
class Lease:
    """A lock that is held, until a heartbeat finds that it is not."""

    host: str
    lost: bool = False

    def check(self) -> None:
        """Raise `LockHeldError` once the lock was taken from us: somebody else is at work."""
        if self.lost:
            raise LockHeldError(
                f"{self.host}: the lock was taken from this run; it touches nothing any more",
                why="it looked dead to somebody, as after a suspended machine",
                next=f"ddops lock status {self.host}",
            )


@contextmanager
def holding(
    transport: Transport,
    layout: HostLayout,
    owner: Owner,
    *,
    wait_s: float = 0.0,
    pause: Callable[[float], None] = time.sleep,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Lease]:
    """Hold the lock for a block, its heart beating meanwhile.

    When the host cannot be reached at the end, the lock stays and goes stale; the error of the
    block, if there is one, is not hidden by that.
    """
    take(transport, layout, owner, wait_s=wait_s, pause=pause, tell=tell)
    stop, lease = threading.Event(), Lease(transport.host)
    heart = threading.Thread(
        target=_beat,
        args=(transport, layout, owner.token, stop, lease),
        daemon=True,
        name="heartbeat",
    )
    heart.start()
    try:
        yield lease
    except BaseException as error:
        stop.set()
        try:
            release(transport, layout, token=owner.token)
        except DdopsError as second:
            error.add_note(f"and the lock on {transport.host} stays: {second.what}")
        raise
    stop.set()
    release(transport, layout, token=owner.token)


def _beat(
    transport: Transport, layout: HostLayout, token: str, stop: threading.Event, lease: Lease
) -> None:
    while not stop.wait(HEARTBEAT_S):
        try:
            done = transport.run(sh(_BEAT, layout.lock, token), deadline_s=HEARTBEAT_S)
        except DdopsError:
            continue  # a lost connection shows in the work itself; the lock then goes stale
        if done.rc == 75:
            lease.lost = True
            return
