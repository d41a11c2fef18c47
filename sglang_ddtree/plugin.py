"""What SGLang calls at the start of each of its processes.

SGLang logs whatever a plugin raises and goes on without it. So the outcome is kept in `health()`,
which a preflight reads, and an SGLang that does not fit leaves an algorithm behind that says so
when it is asked for, instead of an unknown name. Servers that do not use DDTREE are left alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NoReturn

from sglang_ddtree import compat
from sglang_ddtree.args import ALGORITHM, DDTreeConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether DDTREE can be used in this process, and if not, why."""

    registered: bool = False
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.registered and not self.problems


_state = Health()


def health() -> Health:
    """The outcome of `register` in this process; not registered before it ran."""
    return _state


def register() -> None:
    """Register the algorithm and its hooks. Called twice, the second call changes nothing."""
    global _state
    if _state.registered:
        return
    problem = compat.version_problem()
    try:
        if problem is None:
            _register_algorithm()
        else:
            _register_refusing(problem)
    except Exception as error:
        _state = Health(problems=(f"{type(error).__name__}: {error}",))
        logger.exception("DDTREE could not be registered")
        raise
    if problem is not None:
        logger.error("DDTREE is off: %s", problem)
    _state = Health(registered=True, problems=() if problem is None else (problem,))


def _register_algorithm() -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sglang_ddtree.algo import DDTreeAlgo
    from sglang_ddtree.hooks import install

    def worker(server_args: Any) -> type:
        del server_args
        from sglang_ddtree.worker import DDTreeWorkerV2

        return DDTreeWorkerV2

    SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, spec_class=DDTreeAlgo)(worker)
    install()


def _register_refusing(problem: str) -> None:
    """The name, whose use is refused with the reason; else it would be an unknown algorithm."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    def refuse(server_args: Any) -> NoReturn:
        del server_args
        raise DDTreeConfigError(misfit([problem]))

    decorate = SpeculativeAlgorithm.register(
        ALGORITHM, supports_overlap=True, validate_server_args=refuse
    )
    decorate(refuse)


def misfit(problems: list[str]) -> str:
    """What to say when the engine is not the one that the plugin knows."""
    return (
        "DDTREE cannot run in this engine: "
        + "; ".join(problems)
        + f". Next: install sglang=={compat.SGLANG_VERSION}, or the ddops made for this release"
    )


def preflight() -> list[str]:
    """Every reason why DDTREE would not start here; empty when there is none.

    Loads the plugins as a server does, so it needs an interpreter of the engine's environment.
    """
    found = compat.problems()
    if found:
        return found
    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sglang_ddtree.hooks import missing

    load_plugins()
    if health().problems:
        return list(health().problems)
    try:
        SpeculativeAlgorithm.from_string(ALGORITHM)
    except ValueError:
        return ["SGLang did not load the plugin: is SGLANG_PLUGINS set without `ddtree`?"]
    return [f"SGLang did not apply the hook on {target}" for target in missing()]
