"""Whether the environment that a release runs in is still what was built on the host."""

from __future__ import annotations

import json
import posixpath

from ddops.command import ALONE, cmd
from ddops.hostside import source
from ddops.inventory.model import Host
from ddops.transport import Transport

#: Its interpreter is started once; a cold disk takes its time.
LOOK_S = 60.0


def environment_wrong(transport: Transport, host: Host, python: str) -> tuple[str, ...]:
    """What is missing of the environment that has this interpreter; empty where it is whole.

    UNKNOWN begins a line where it cannot be told.
    """
    folder = posixpath.dirname(posixpath.dirname(python))
    done = transport.run(cmd(host.python, *ALONE, "-c", source("env_whole"), folder),
                         deadline_s=LOOK_S)  # fmt: skip
    try:
        seen = json.loads(done.out) if done.ok else {}
        if seen is None:
            return (f"{folder} is not there",)
        return tuple(str(w) for w in seen["wrong"])
    except (ValueError, KeyError, TypeError):
        words = done.err.strip()[-200:] or f"ended with {done.rc}"
        return (f"UNKNOWN: {folder} cannot be looked at: {words}",)
