"""What provision's steps know of a host: one look answers for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from ddops.command import Cmd, cmd
from ddops.errors import CommandFailed
from ddops.hostside import joined
from ddops.layout import HostLayout
from ddops.plan import Change, Proposal
from ddops.transport import Transport

#: What is asked about: a path, or a resource of a host's setup, which has an `id`.
Asked = str | Mapping[str, object]
#: Kind of question to what it is asked about; see hostside/state.py.
Query = Mapping[str, Sequence[Asked]]
NOTHING = Proposal(Change.NONE)
#: Hashing what lies there takes its time on a slow disk.
LOOK_DEADLINE_S = 300.0
_MOST_ANSWER = 64 << 20


@cache
def look_text() -> str:
    """The script that looks, with what it needs of a host's setup. It changes nothing."""
    return joined("setup_files", "setup_system", "setup_run", "env_whole", "state")


def look_command(interpreter: str, query: Mapping[str, object]) -> Cmd:
    """The script is a word and the question its input: a setup's files may be large."""
    return cmd(interpreter, "-S", "-c", look_text(), stdin=json.dumps(query).encode())


@dataclass(frozen=True, slots=True)
class HostSide:
    """What every step needs of its host.

    `expect` names what the steps are going to ask. The first question then brings all answers at
    once, and each of them is given once: who asks again sees the host as it is by then.
    """

    transport: Transport
    layout: HostLayout
    python: str
    _expected: list[Query] = field(default_factory=list, compare=False, repr=False)
    _ahead: dict[tuple[str, str], object] = field(default_factory=dict, compare=False, repr=False)

    def expect(self, queries: Sequence[Query]) -> None:
        self._ahead.clear()
        self._expected[:] = queries

    def state(self, **query: Sequence[Asked]) -> dict[str, dict[str, object]]:
        """One look at the host through `hostside/state.py`, or what a look ahead has brought."""
        if self._expected:
            wanted = [*self._expected, query]
            self._expected.clear()
            for kind, values in self._ask(_united(wanted)).items():
                self._ahead.update({(kind, path): value for path, value in values.items()})
        keys = [(kind, _name(one)) for kind, some in query.items() for one in some]
        if any(key not in self._ahead for key in keys):
            return self._ask(query)
        out: dict[str, dict[str, object]] = {kind: {} for kind in query}
        for kind, path in keys:
            out[kind][path] = self._ahead[kind, path]
        for key in dict.fromkeys(keys):
            del self._ahead[key]
        return out

    def _ask(self, query: Query) -> dict[str, dict[str, object]]:
        done = self.transport.run(
            look_command(self.python, {k: list(v) for k, v in query.items()}),
            deadline_s=LOOK_DEADLINE_S,
            limit=_MOST_ANSWER,
        )
        if not done.ok:
            raise CommandFailed(
                f"{self.transport.host}: the host's state cannot be read",
                rc=done.rc,
                stderr=done.err,
                next=f"ddops check {self.transport.host}",
            )
        answer: dict[str, object] = json.loads(done.out)
        return {k: v for k, v in answer.items() if isinstance(v, dict)}


def _name(asked: Asked) -> str:
    return asked if isinstance(asked, str) else str(asked["id"])


def _united(queries: Sequence[Query]) -> dict[str, list[Asked]]:
    out: dict[str, dict[str, Asked]] = {}
    for query in queries:
        for kind, some in query.items():
            out.setdefault(kind, {}).update({_name(one): one for one in some})
    return {kind: list(some.values()) for kind, some in out.items()}
