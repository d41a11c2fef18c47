"""Whether the environment that a release runs in is still what was built on the host."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass

from ddops.command import ALONE, cmd
from ddops.errors import DdopsError
from ddops.hostside import source
from ddops.inventory.model import Host
from ddops.transport import Transport

#: Its interpreter is started once; a cold disk takes its time.
LOOK_S = 60.0


@dataclass(frozen=True, slots=True)
class Environment:
    """`wrong`: what is missing of it. `unknown`: what could not be told, which is not wrong."""

    wrong: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def environment_seen(transport: Transport, host: Host, python: str) -> Environment:
    """The environment that has this interpreter. A host that does not answer makes it unknown."""
    folder = posixpath.dirname(posixpath.dirname(python))
    words = ""
    try:
        done = transport.run(cmd(host.python, *ALONE, "-c", source("env_whole"), folder),
                             deadline_s=LOOK_S)  # fmt: skip
        words = done.err.strip()[-200:] or f"ended with {done.rc}"
        seen = json.loads(done.out) if done.ok else {}
        if seen is None:
            return Environment((f"{folder} is not there",))
        return Environment(tuple(map(str, seen["wrong"])), tuple(map(str, seen["unknown"])))
    except (DdopsError, ValueError, KeyError, TypeError) as error:
        why = error.what if isinstance(error, DdopsError) else words
        return Environment(unknown=(f"{folder} cannot be looked at: {why}",))
