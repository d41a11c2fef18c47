"""Raw looks as `hostside/board.py` prints them, to be changed at will."""

from __future__ import annotations

import copy
from typing import Any

from ddops.board.fleet import Fleet, Heard, Kind
from ddops.board.model import HostSpec, ServiceSpec

NOW = 1_800_000_000.0
RELEASE = "ab" * 32
NONCE = "0123456789ab"
SPEC = HostSpec("box1", groups=("nvlink",), services=(ServiceSpec("k26", 30000),))


def launch(nonce: str = NONCE, release: str = RELEASE) -> dict[str, Any]:
    return {
        "nonce": nonce, "weight_version": f"{release[:12]}-{nonce}", "release": release,
        "op_id": "op1", "pid": 42, "guard_pid": 41, "started": NOW - 3600,
    }  # fmt: skip


def service(**more: Any) -> dict[str, Any]:
    """A service that is up, committed and idle."""
    made = launch()
    return {
        "schema": "ddops.observation/1", "at": NOW, "current": RELEASE, "launch": made,
        "engine": {"state": "up", "pid": 42, "uptime_s": 3600.0, "rss_bytes": 1 << 30},
        "unit": None,
        "port": {"port": 30000, "listening": True, "owned": True, "owner": "pid 42 python"},
        "log": {"size": 10, "inode": 1, "tail": "ready\n"},
        "health": {"status": 200, "s": 1.0},
        "model_info": {"status": 200, "s": 0.1,
                       "values": {"weight_version": made["weight_version"]}},
        "server_info": {"status": 200, "s": 0.1, "values": {"version": "0.5.23"}},
        "states": [{"last_gen_throughput": 700.0, "avg_spec_accept_length": 3.5}],
        "metrics": {"status": 200, "at": NOW, "samples": [
            ["num_running_reqs", {"tp_rank": "0"}, 0.0], ["num_queue_reqs", {"tp_rank": "0"}, 0.0],
            ["gen_throughput", {"tp_rank": "0"}, 812.0],
            ["spec_accept_length", {"tp_rank": "0"}, 4.2],
        ]},
        "committed": RELEASE,
        **more,
    }  # fmt: skip


def down() -> dict[str, Any]:
    """The same after its process was killed."""
    return service(
        engine={"state": "down", "pid": 42, "why": "the process is gone"},
        port={"port": 30000, "listening": False, "owned": False, "owner": None},
        health=None, model_info=None, server_info=None, states=[], metrics=None,
    )  # fmt: skip


def gpu(index: int, **more: str) -> dict[str, str]:
    return {
        "index": str(index), "name": "NVIDIA B300 SXM6 AC", "utilization.gpu": "50",
        "memory.used": "137520", "memory.total": "275040", "power.draw": "700.5",
        "power.limit": "1100.00", "temperature.gpu": "54",
        "clocks_event_reasons.active": "0x0000000000000000", **more,
    }  # fmt: skip


def look(seen: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    base = {
        "schema": "ddops.look/1", "at": NOW, "provisioned": True, "load_1m": 1.0, "lock": None,
        "services": {"k26": service() if seen is None else seen},
        "gpus": {"rows": [gpu(n) for n in range(8)], "why": ""},
        **more,
    }  # fmt: skip
    return copy.deepcopy(base)


def samples(**values: float) -> dict[str, Any]:
    """`metrics` of one rank, by family."""
    return {"status": 200, "at": values.pop("at", NOW),
            "samples": [[k, {}, v] for k, v in values.items()]}  # fmt: skip


def fleet(*heard: tuple[float, Kind, dict[str, Any]], spec: HostSpec = SPEC) -> Fleet:
    """A fleet of one host that has heard these, at so many seconds past NOW."""
    made = Fleet.of([spec])
    for at, kind, payload in heard:
        host = "" if kind is Kind.BOOKS else spec.name
        made.apply(Heard(NOW + at, host, kind, payload))
    return made
