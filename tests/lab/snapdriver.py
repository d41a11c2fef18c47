"""Takes one snapshot in a process of its own, which may be killed at any of its steps.

    python -m tests.lab.snapdriver WORKDIR [NUMBER before|after] [--restic]

WORKDIR holds `tree`; the place, the store and the ledger are made beside it. Each step (a call to
the host, to the place, of git here, of restic, a row of the ledger) is counted and written to
WORKDIR/steps; at the given one the process ends at once, as by SIGKILL.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddops.clock import SystemClock
from ddops.command import Redactor, Secret
from ddops.errors import DdopsError
from ddops.events import NullReporter
from ddops.gitio import Repo
from ddops.inventory.model import Host, Origin
from ddops.ledger import Ledger
from ddops.snapshot import Tools, make, snapshot_host
from ddops.snapshot.gitplace import GitPlace
from ddops.snapshot.places import GitCopy
from ddops.snapshot.resticio import Restic
from ddops.snapshot.resticplace import ResticCopy
from ddops.snapshot.store import Store
from ddops.transport import LocalTransport


class Steps:
    """Counts calls and ends the process at one of them."""

    def __init__(self, log: Path, number: int, when: str) -> None:
        self.count, self.number, self.when = 0, number, when
        self.log = log.open("w", buffering=1)

    def wrap(self, owner: type, name: str, label: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            mine = self.count
            self.log.write(f"{mine} {label}\n")
            if (mine, "before") == (self.number, self.when):
                os._exit(137)
            try:
                return real(*args, **kwargs)
            finally:
                if (mine, "after") == (self.number, self.when):
                    os._exit(137)

        setattr(owner, name, counted)


def no_facts(*_: object) -> None:
    raise DdopsError("facts are no matter here")


def tools_in(work: Path, *, restic: bool = False, keep: int | None = None) -> Tools:
    """A snapshot's tools with everything below one folder."""
    places: list[make.Place] = [GitCopy(GitPlace(LocalTransport("place"), str(work / "place.git")))]
    if restic:
        repo = Restic(str(work / "restic"), Secret("pw"))
        places.append(ResticCopy(repo, 100))
    return Tools(
        store=Store(work / "store"), places=places, keep=keep,
        ledger=lambda: Ledger.open(work / "ledger.db", redactor=Redactor()),
        lookup=lambda name: work / name, mask=Redactor().tree, clock=SystemClock(),
        report=NullReporter(),
    )  # fmt: skip


def host_in(work: Path) -> Host:
    return Host(name="box", ssh="box", engine_dir=str(work / "engine"), engine_env="sim",
                python=sys.executable, origin=Origin("project", work))  # fmt: skip


def main(argv: list[str]) -> int:
    work = Path(argv[0])
    steps = Steps(work / "steps", int(argv[1]) if len(argv) > 2 else 0,
                  argv[2] if len(argv) > 2 else "")  # fmt: skip
    setattr(make, "collect", no_facts)  # noqa: B010 - a name that make only imports
    steps.wrap(LocalTransport, "run", "call")
    steps.wrap(Repo, "_git", "git")
    steps.wrap(Restic, "attempt", "restic")
    steps.wrap(Ledger, "_append", "row")
    tools = tools_in(work, restic="--restic" in argv)
    try:
        made = snapshot_host(LocalTransport("box"), host_in(work), None, str(work / "tree"), tools)
    except DdopsError as error:
        print(str(error), file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps(made.as_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
