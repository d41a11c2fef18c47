"""What provision's steps know of a host: one look answers for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddops.command import python
from ddops.errors import CommandFailed
from ddops.hostside import source
from ddops.layout import HostLayout
from ddops.plan import Change, Proposal
from ddops.transport import Transport

#: Kind of question to the paths it is asked about; see hostside/state.py.
Query = Mapping[str, Sequence[str]]
NOTHING = Proposal(Change.NONE)
#: Hashing what lies there takes its time on a slow disk.
LOOK_DEADLINE_S = 300.0
_MOST_ANSWER = 64 << 20


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

    def state(self, **query: Sequence[str]) -> dict[str, dict[str, object]]:
        """One look at the host through `hostside/state.py`, or what a look ahead has brought."""
        if self._expected:
            wanted = [*self._expected, query]
            self._expected.clear()
            for kind, values in self._ask(_united(wanted)).items():
                self._ahead.update({(kind, path): value for path, value in values.items()})
        keys = [(kind, path) for kind, paths in query.items() for path in paths]
        if any(key not in self._ahead for key in keys):
            return self._ask(query)
        out: dict[str, dict[str, object]] = {kind: {} for kind in query}
        for kind, path in keys:
            out[kind][path] = self._ahead[kind, path]
        for key in dict.fromkeys(keys):
            del self._ahead[key]
        return out

    def _ask(self, query: Query) -> dict[str, dict[str, object]]:
        words = json.dumps({kind: list(paths) for kind, paths in query.items()})
        done = self.transport.run(
            python(source("state"), words, interpreter=self.python),
            deadline_s=LOOK_DEADLINE_S, limit=_MOST_ANSWER,
        )  # fmt: skip
        if not done.ok:
            raise CommandFailed(
                f"{self.transport.host}: the host's state cannot be read",
                rc=done.rc,
                stderr=done.err,
                next=f"ddops check {self.transport.host}",
            )
        answer: dict[str, object] = json.loads(done.out)
        return {k: v for k, v in answer.items() if isinstance(v, dict)}


def _united(queries: Sequence[Query]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for query in queries:
        for kind, paths in query.items():
            seen = out.setdefault(kind, [])
            seen += [p for p in paths if p not in seen]
    return out
