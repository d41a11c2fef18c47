"""A host of a service's router: what is judged beside the GPU chain, or in its place. Pure.

A router is a program on CPUs: it wants a Python environment of its own, space for it, and its port.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddops.compat.model import Finding
from ddops.gates import Observation
from ddops.model import State, Verdict

#: What a shell answers for a program that is not there, or is none.
_ABSENT = (126, 127)


@dataclass(frozen=True, slots=True)
class RouterOnCheck:
    """One router of the host, as it was looked at. `seen` None: `why` says why nothing was.

    `env_rc` and `env_said` are of importing the router with the environment's own Python.
    """

    service: str
    listen: str
    port: int
    seen: Observation | None = None
    env_rc: int | None = None
    env_said: str = ""
    why: str = ""


def about(services: Sequence[str], *, alone: bool) -> Finding:
    """What the host is for, so that a chain of SKIPs is not taken for a clean bill of health."""
    whose = ", ".join(services)
    words = f"the router of {whose} runs here beside an engine: both are judged"
    if alone:
        words = (
            f"for the router of {whose} alone: no GPU chain to judge; what is judged is Python, the"
            " C library, disk, the router's environment and its port"
        )
    return Finding("ROUTER", "Router", Verdict.INFO, words, "", "I", "host")


def judge_router_host(one: RouterOnCheck) -> list[Finding]:
    return [_env(one), _port(one)]


def _env(one: RouterOnCheck) -> Finding:
    """A router that cannot be imported ends when it starts, and its service answers nobody."""
    title = f"Environment of the router of {one.service}"
    said = one.env_said.strip()[-200:]

    def found(verdict: Verdict, seen: str, mend: str = "") -> Finding:
        return Finding("ROUTER-ENV", title, verdict, seen, mend, "E", "host")

    if one.why:
        return found(Verdict.UNKNOWN, one.why)
    if one.env_rc in _ABSENT:
        return found(Verdict.INFO, "not built yet", "ddops provision builds it")
    if one.env_rc is None:
        return found(Verdict.UNKNOWN, "its Python did not answer in time")
    if one.env_rc != 0:
        return found(Verdict.FAIL, f"sglang_router cannot be imported: {said}",
                     "ddops provision builds it again")  # fmt: skip
    return found(Verdict.PASS, f"sglang-router {said} can be imported")


def _port(one: RouterOnCheck) -> Finding:
    """Another program on the router's port answers in its place, and may even look healthy."""
    title, where = f"Port of the router of {one.service}", f"{one.listen}:{one.port}"

    def found(verdict: Verdict, seen: str, mend: str = "") -> Finding:
        return Finding("ROUTER-PORT", title, verdict, seen, mend, "E", "host")

    o = one.seen
    if o is None:
        return found(Verdict.UNKNOWN, one.why or "it was not looked at")
    if o.port.listening and o.port.owned:
        return found(Verdict.PASS, f"the router itself listens on {where}")
    if o.port.listening:
        owner = o.port.owner or "a process that is not ours"
        return found(Verdict.FAIL, f"{where} is held by {owner}",
                     "free it, or set another `port` in the service's [router]")  # fmt: skip
    if o.engine is State.UP:
        return found(Verdict.WARN, f"the router runs, and nothing listens on {where}",
                     f"ddops status {one.service}")  # fmt: skip
    if o.engine is State.UNKNOWN:
        return found(Verdict.UNKNOWN, f"whether the router runs is not known: {o.engine_why}")
    return found(Verdict.PASS, f"{where} is free; the router does not run")


#: The function behind each row of `data/beside.toml`; its docstring is the row's why.
ROUTER_RULES: Mapping[str, Callable[..., Finding]] = {
    "ROUTER": about,
    "ROUTER-ENV": _env,
    "ROUTER-PORT": _port,
}
