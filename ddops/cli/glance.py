"""One look at a service on a host: what serves, what is committed, who is at work; in one call.

The deploy has its own looks, which do more. This one loads neither the ledger nor the deploy, so
that `ddops status` of many hosts costs a call each.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddops import lock
from ddops.command import sh
from ddops.errors import CommandFailed
from ddops.gates.observation import HTTP_TIMEOUT_S, Observation, parse_observation
from ddops.inventory.model import Host
from ddops.layout import HostLayout
from ddops.transport import Transport

#: $1 the service's folder, $2 the lock, then the observer's words; its script is $4.
GLANCE = """
readlink "$1/committed" || echo
if [ -d "$2" ]; then
  cat "$2/owner.json" 2>/dev/null | tr '\\n' ' '; echo
  now=$(date +%s)
  seen=$(stat -c %Y "$2/heartbeat" 2>/dev/null || stat -c %Y "$2" 2>/dev/null || echo "$now")
  echo $((now - seen))
else
  echo; echo
fi
[ -e "$4" ] || exit 3
shift 2
exec "$@"
"""
DEADLINE_S = 40.0


@dataclass(frozen=True, slots=True)
class Glance:
    """One service on one host; `observation` is None where provision has never been."""

    observation: Observation | None
    locked: str
    committed: str | None


def glance(transport: Transport, host: Host, service: str, port: int) -> Glance:
    """Look once. Raises what the transport raises: then nothing is known, not `down`."""
    layout = HostLayout(host.engine_dir)
    where = layout.service(service).dir
    words = [host.python, f"{layout.hostside}/observe.py", where, str(port), "--http",
             str(HTTP_TIMEOUT_S)]  # fmt: skip
    done = transport.run(sh(GLANCE, where, layout.lock, *words), deadline_s=DEADLINE_S)
    committed, owner, age, rest = [*done.out.split("\n", 3), "", "", "", ""][:4]
    held = lock.parse_held(owner, age).describe() if age else ""
    link = committed.rpartition("/")[2] or None
    if done.rc == 3:
        return Glance(None, held, link)
    if not done.ok:
        raise CommandFailed(
            f"{transport.host}: the service {service} cannot be observed",
            rc=done.rc,
            stderr=done.err,
            next=f"ddops provision {transport.host}",
        )
    return Glance(parse_observation(rest), held, link)
