"""Is the memory of a host's GPUs free? Pure.

A GPU host cannot hold two models: a leftover shows later as a failed load.
"""

from __future__ import annotations

from ddops.errors import DdopsError
from ddops.probe import Facts

#: What a driver and a display keep for themselves, in MiB.
MOST_MIB = 1024


def free_memory(host: str, facts: Facts) -> list[object]:
    """MiB in use on each GPU. Raises DdopsError, naming the holders, where one is not free.

    What cannot be read is not free.
    """
    rows = facts.raw.get("gpus")
    used = [r["memory.used"] for r in rows] if isinstance(rows, list) else [None]
    if any(not (isinstance(u, str) and u.isdigit() and int(u) < MOST_MIB) for u in used):
        raise DdopsError(
            f"{host}: GPU memory is not free after the stop",
            why=f"MiB in use per GPU: {used}; held by {_holders(facts)}",
            next="nvidia-smi --query-compute-apps=pid,used_memory --format=csv on the host",
        )
    return used


def _holders(facts: Facts) -> str:
    """The processes that nvidia-smi names, `pid, memory` each; it sees none of other containers."""
    commands = facts.raw.get("commands")
    apps = commands.get("smi_apps") if isinstance(commands, dict) else None
    out = apps.get("out") if isinstance(apps, dict) else None
    lines = [x.strip() for x in str(out or "").splitlines() if x.strip()]
    return "; ".join(f"pid {x}" for x in lines[:8]) or "nobody that nvidia-smi names"
