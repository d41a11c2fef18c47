"""`ddops` that ends itself with SIGKILL at a word of a runbook's journal.

    python -m tests.lab.killing deploy done -- runbook run new-host --host lab1

`begun`: the word is written, the work is not done. Any other: the work is done, and nothing says
so, for the process ends before the word is written.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from ddops.cli.root import run
from ddops.ledger import Ledger


def main(argv: list[str]) -> int:
    step, state, _, *words = argv
    real = Ledger.add_runbook_event

    def add(self: Ledger, run_id: str, at: str, what: str, **more: Any) -> None:
        mine = (at, what) == (step, state)
        if mine and state != "begun":
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, run_id, at, what, **more)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)

    Ledger.add_runbook_event = add  # type: ignore[method-assign,assignment]
    return run(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
